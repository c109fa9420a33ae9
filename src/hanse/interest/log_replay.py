"""Subscriptions that stand at the end of a Mosquitto's log file, from the broker's last start in it.

Rules:

1. Only lines since the last "mosquitto version ... starting" count. Without such a line the file begins too late, and
   everything in it counts: what it shows may be incomplete.
2. The log does not tell how an MQTT 5 session ends, so subscriptions of clients that left may have ended: they are
   hints.
"""

import re
from collections import Counter

from hanse.interest.ledger import Ledger
from hanse.interest.mosquitto_file import MosquittoFileAdapter

_STARTING = re.compile(rb"(?:^|\n)(?:[0-9T:.+ -]{9,40}: )?mosquitto version \d+\.\d[^\n ]* starting\r?\n")


def replay(log: bytes, own_prefix: str) -> tuple[list[tuple[str, str, int]], bool]:
    """Return client, filter and QoS of the subscriptions, and whether the broker's start is in the log."""
    begin = 0
    has_start = False
    for match in _STARTING.finditer(log):
        begin, has_start = match.end(), True
    adapter = MosquittoFileAdapter(own_prefix)
    ledger = Ledger(own_prefix, Counter())
    ledger.take(adapter.feed(log[begin:]))
    held = [(client, wanted, qos) for client, _, filters in ledger.dump() for wanted, qos in filters]
    return held, has_start
