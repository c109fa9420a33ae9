"""Interest from Mosquitto's log topics: no plugin, no file, only a subscription.

The broker publishes each subscribe, unsubscribe and connection line on `$SYS/broker/log/...`, unretained, and with
an expiry of 20 s in MQTT 5. Nothing is replayed: what happened while the federator was away is a gap, and the shell
says so with `lost()`. `hanse interest config --vendor mosquitto` prints what the broker's configuration needs.
"""

from collections import Counter

from hanse.interest.mosquitto_lines import MosquittoLines
from hanse.interest.reports import BridgeGone, BridgeSeen, Gap, Report

LOG = "$SYS/broker/log/"
SUBSCRIBE = LOG + "M/subscribe"
UNSUBSCRIBE = LOG + "M/unsubscribe"
NOTICE = LOG + "N"
CONNECTION = "$SYS/broker/connection/"
_STATE = "/state"


class MosquittoLogAdapter:
    """Messages of `topics()` in, reports out."""

    source = "mosquitto-log"

    def __init__(self, own_prefix: str) -> None:
        """`own_prefix`: what every client id of the federator begins with, so that it does not hear itself."""
        self._lines = MosquittoLines(own_prefix)

    @property
    def counters(self) -> Counter[str]:
        """What was refused or ignored, by reason."""
        return self._lines.counters

    def topics(self) -> list[str]:
        """What the host session has to subscribe to. Bridges are retained states, so they arrive at once."""
        return [SUBSCRIBE, UNSUBSCRIBE, NOTICE, f"{CONNECTION}+{_STATE}"]

    def message(self, topic: str, payload: bytes) -> list[Report]:
        """One message of the host's; an unreadable one is counted and yields nothing."""
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
        if topic == NOTICE:
            return self._lines.notice(text)
        self.counters["messages_of_no_concern"] += 1
        return []

    def lost(self) -> list[Report]:
        """The connection to the host was lost, so lines were missed."""
        self._lines.forget()
        return [Gap()]
