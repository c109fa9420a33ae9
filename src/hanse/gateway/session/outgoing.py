"""The publications of QoS 1 and 2 that one client sent, until its broker has them for good.

Rules:

1. A publication is kept whole from the client's PUBLISH to the broker's PUBACK or PUBCOMP, because another broker
   knows nothing of it and must get all of it. A PUBREL alone would be answered with success and deliver nothing.
2. The client's side and the broker's side of an exchange of QoS 2 are tracked apart: after a move they differ.
3. Packet identifiers are the client's own at every broker. Identifiers of the gateway's own publications are searched
   from the top; they are in use only while the client's new packets wait.
4. A publication is sent to at most two brokers that die with it: it may be the cause.
"""

from collections import deque
from typing import Final

# States of one side of an exchange. SENT: PUBLISH. RECEIVED: PUBREC. RELEASED: PUBREL.
UNSENT: Final = 0
SENT: Final = 1
RECEIVED: Final = 2
RELEASED: Final = 3

# Number of brokers that get the same publication, if each dies soon afterwards.
SENDINGS_MAX: Final = 2


class Publication:
    """One PUBLISH of QoS 1 or 2 and its state on both sides.

    Attributes:
        is_own: the gateway repeats it; the client has its acknowledgement already.
        sendings: number of brokers that it was sent to.
    """

    __slots__ = ("at_broker", "at_client", "is_own", "packet", "qos", "sendings")

    def __init__(self, packet: bytes, qos: int, *, is_own: bool = False, sendings: int = 1) -> None:
        self.packet = packet
        self.qos = qos
        self.at_client = SENT
        self.at_broker = SENT
        self.is_own = is_own
        self.sendings = sendings


class Outgoing:
    """All publications of QoS 1 and 2 of one client, oldest first, and those that were acknowledged a moment ago.

    Attributes:
        kept: publications by packet identifier.
        kept_bytes: their size.
    """

    __slots__ = ("_recent", "_recent_bytes", "kept", "kept_bytes")

    def __init__(self) -> None:
        self.kept: dict[int, Publication] = {}
        self.kept_bytes = 0
        # From the first such publication on: an empty deque takes 760 bytes, and most clients only receive.
        self._recent: deque[tuple[float, bytes, int]] | None = None
        self._recent_bytes = 0

    def keep(self, packet_id: int, publication: Publication) -> None:
        """Keep a publication that goes to the broker."""
        former = self.kept.pop(packet_id, None)
        if former is not None:
            self.kept_bytes -= len(former.packet)
        self.kept[packet_id] = publication
        self.kept_bytes += len(publication.packet)

    def drop(self, packet_id: int) -> Publication | None:
        """Return and forget the publication of an exchange that is over."""
        found = self.kept.pop(packet_id, None)
        if found is not None:
            self.kept_bytes -= len(found.packet)
        return found

    def remember(self, publication: Publication, now: float, bytes_max: int) -> None:
        """Keep a publication of QoS 1 for a moment after its acknowledgement."""
        recent = self._recent
        if recent is None:
            recent = self._recent = deque()
        recent.append((now, publication.packet, publication.sendings))
        self._recent_bytes += len(publication.packet)
        while self._recent_bytes > bytes_max:
            self._recent_bytes -= len(recent.popleft()[1])

    def forget_before(self, time: float) -> None:
        """Drop what was acknowledged before this time."""
        recent = self._recent
        while recent and recent[0][0] < time:
            self._recent_bytes -= len(recent.popleft()[1])

    def take_recent(self) -> list[tuple[bytes, int]]:
        """Return and forget what was acknowledged a moment ago: packets, and how often each was sent."""
        found = [(packet, sendings) for _, packet, sendings in self._recent or ()]
        self.forget_recent()
        return found

    def forget_recent(self) -> None:
        """Drop what was acknowledged a moment ago: the broker has not died."""
        self._recent = None
        self._recent_bytes = 0
