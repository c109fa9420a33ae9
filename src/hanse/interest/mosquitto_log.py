"""Interest from Mosquitto's log topics: no plugin and no file, only subscriptions of the federator's session.

The broker publishes each subscribe, unsubscribe and connection line on `$SYS/broker/log/...`, without retain, and for
MQTT 5 clients with an expiry of 20 s. Lines from the time before the subscription are never sent. Lines from a time
without a connection may be missing, so the shell calls `lost()` when the connection ends. `hanse interest config
--vendor mosquitto` prints the lines that the broker's configuration needs.
"""

from collections import Counter

from hanse.interest.mosquitto_lines import MosquittoLines
from hanse.interest.reports import BridgeGone, BridgeSeen, Gap, Report

LOG = "$SYS/broker/log/"
SUBSCRIBE = LOG + "M/subscribe"
UNSUBSCRIBE = LOG + "M/unsubscribe"
NOTICE = LOG + "N"
# Version 2.0 reports a take-over as an error.
ERROR = LOG + "E"
CONNECTION = "$SYS/broker/connection/"
_STATE = "/state"


class MosquittoLogAdapter:
    """Reader of the messages on `topics()`."""

    source = "mosquitto-log"

    def __init__(self, own_prefix: str) -> None:
        """`own_prefix`: prefix of all client ids of the federator, whose subscriptions are not interest."""
        self._lines = MosquittoLines(own_prefix)

    @property
    def counters(self) -> Counter[str]:
        """Lines that were refused or ignored, by reason."""
        return self._lines.counters

    def topics(self) -> list[str]:
        """Return the topics to subscribe to. The states of bridges are retained, so they arrive at once."""
        return [SUBSCRIBE, UNSUBSCRIBE, NOTICE, ERROR, f"{CONNECTION}+{_STATE}"]

    def message(self, topic: str, payload: bytes) -> list[Report]:
        """Read one message of the host broker; one that is unreadable is counted and gives no report."""
        if topic.startswith(CONNECTION) and topic.endswith(_STATE):
            name = topic[len(CONNECTION) : -len(_STATE)]
            return [BridgeSeen(name)] if payload == b"1" else [BridgeGone(name)]
        text = self._lines.text(payload)
        if text is None:
            return []
        if topic == SUBSCRIBE:
            return self._lines.subscribe(text)
        if topic == UNSUBSCRIBE:
            return self._lines.unsubscribe(text)
        if topic in {NOTICE, ERROR}:
            return self._lines.notice(text)
        self.counters["messages_of_no_concern"] += 1
        return []

    def lost(self) -> list[Report]:
        """Note that the connection to the host broker was lost, so lines may have been missed."""
        self._lines.forget()
        return [Gap()]
