"""Interest from Mosquitto's log topics: no plugin and no file, only subscriptions of the federator's session.

The broker publishes each subscribe, unsubscribe and connection line on `$SYS/broker/log/...`, without retain, and for
MQTT 5 clients with an expiry of 20 s. Lines from the time before the subscription are never sent. Lines from a time
without a connection may be missing, so the shell calls `lost()` when the connection ends. `hanse interest config
--vendor mosquitto` prints the lines that the broker's configuration needs.

The adapter also reads how many subscriptions the broker counts. All topics must be subscribed to in one session and
with one QoS, because the ledger relies on their order.
"""

from collections import Counter

from hanse.interest.ledger import Counts, Ledger
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
# The broker publishes the uptime at the beginning of each tick, then the counts that changed since the last one.
UPTIME = "$SYS/broker/uptime"
SUBSCRIPTIONS = "$SYS/broker/subscriptions/count"
SHARED = "$SYS/broker/shared_subscriptions/count"
AWAY = "$SYS/broker/clients/disconnected"
COUNT_TOPICS = (UPTIME, SUBSCRIPTIONS, SHARED, AWAY)
_NUMBER_DIGITS_MAX = 12


class MosquittoLogAdapter:
    """Reader of the messages on `topics()`.

    Args:
        own_prefix: prefix of all client ids of the federators, whose subscriptions are not interest.
        bridge_topics: number of topics that bridges in the broker's configuration subscribe to, which are never logged.

    Attributes:
        ledger: every subscription that the log told, compared with the broker's counts.
    """

    source = "mosquitto-log"

    def __init__(self, own_prefix: str, bridge_topics: int = 0) -> None:
        # Own lines pass, because the ledger counts them; it does not report them.
        self._lines = MosquittoLines(None)
        self.ledger = Ledger(own_prefix, self._lines.counters, bridge_topics=bridge_topics)
        # The last value of each count; unknown until the broker publishes it.
        self._counts: dict[str, int] = {}
        self._is_tick_open = False

    @property
    def counters(self) -> Counter[str]:
        """Lines that were refused or ignored, by reason."""
        return self._lines.counters

    def topics(self) -> list[str]:
        """Return the topics to subscribe to, the log of subscriptions first, so that it shows the others.

        The states of bridges are retained, so they arrive at once.
        """
        return [SUBSCRIBE, UNSUBSCRIBE, NOTICE, ERROR, f"{CONNECTION}+{_STATE}", *COUNT_TOPICS]

    def message(self, topic: str, payload: bytes, *, is_retained: bool = False) -> list[Report]:
        """Read one message of the host broker; one that is unreadable is counted and gives no report."""
        if topic in COUNT_TOPICS:
            return self._count(topic, payload, is_retained=is_retained)
        if topic.startswith(CONNECTION) and topic.endswith(_STATE):
            name = topic[len(CONNECTION) : -len(_STATE)]
            return self.ledger.take([BridgeSeen(name) if payload == b"1" else BridgeGone(name)])
        reports = self._close_tick()
        text = self._lines.text(payload)
        if text is None:
            return reports
        if topic == SUBSCRIBE:
            return reports + self.ledger.take(self._lines.subscribe(text))
        if topic == UNSUBSCRIBE:
            return reports + self.ledger.take(self._lines.unsubscribe(text))
        if topic in {NOTICE, ERROR}:
            return reports + self.ledger.take(self._lines.notice(text))
        self.counters["messages_of_no_concern"] += 1
        return reports

    def _count(self, topic: str, payload: bytes, *, is_retained: bool) -> list[Report]:
        if topic == UPTIME:
            # A retained one tells of a tick in the past.
            if is_retained:
                return []
            reports = self._close_tick()
            self._is_tick_open = True
            return reports
        if not payload.isdigit() or len(payload) > _NUMBER_DIGITS_MAX:
            self.counters["counts_unreadable"] += 1
            return []
        self._counts[topic] = int(payload)
        return []

    def _close_tick(self) -> list[Report]:
        """Compare with the counts of a tick that is complete, because another message follows it."""
        if not self._is_tick_open:
            return []
        self._is_tick_open = False
        ordinary = self._counts.get(SUBSCRIPTIONS)
        if ordinary is None:
            return []
        return self.ledger.tick(Counts(ordinary, self._counts.get(SHARED), self._counts.get(AWAY)))

    def lost(self) -> list[Report]:
        """Note that the connection to the host broker was lost, so lines and counts may have been missed."""
        self._lines.forget()
        self._counts.clear()
        self._is_tick_open = False
        return self.ledger.take([Gap()])
