"""Recent deliveries of serving brokers to this worker's members, which a replay leaves out.

Rules:

1. Contents are known by hash, per group. A delivery counts for one replayed publication.
2. A delivery counts for a publication only if it came after a federator had it, less `EARLY_S`. An old delivery of the
   same content therefore removes nothing.
3. Where it is not certain for which group a broker has delivered, nothing is noted: a replay may then repeat.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from hanse.gateway.session.publication import read_publish
from hanse.gateway.session.received import digest
from hanse.gateway.session.replayed import Replayed
from hanse.gateway.share.link import ShareLink
from hanse.protocol.topics import matches

# Federators retain for about 7 s.
KEPT_S: Final = 12.0
KEPT_MAX: Final = 200_000
# Time by which a delivery may seem to be earlier than the replayed publication.
EARLY_S: Final = 0.5


class Delivered:
    """Deliveries of the last seconds."""

    def __init__(self) -> None:
        self._records: deque[tuple[float, bytes, int]] = deque()

    def add(self, now: float, link: ShareLink, packet: bytes, version: int) -> None:
        """Note a delivery."""
        found = read_publish(packet, version)
        patterns = list(link.filters)
        if len(patterns) > 1:
            topic = found.topic.decode("utf-8", "replace")
            patterns = [one for one in patterns if matches(one.split(b"/", 2)[2].decode("utf-8", "replace"), topic)]
        if len(patterns) == 1:
            self._records.append((now, patterns[0], digest(found.topic, found.payload)))
        while self._records and (self._records[0][0] < now - KEPT_S or len(self._records) > KEPT_MAX):
            self._records.popleft()

    def missing(self, pattern: bytes, items: Iterable[Replayed]) -> list[Replayed]:
        """Return the publications that were not delivered for a group."""
        times: dict[int, deque[float]] = {}
        for at, one, content in self._records:
            if one == pattern:
                times.setdefault(content, deque()).append(at)
        left: list[Replayed] = []
        for item in sorted(items, key=_time):
            known = times.get(item.content)
            while known and known[0] < item.time - EARLY_S:
                known.popleft()
            if known:
                known.popleft()
            else:
                left.append(item)
        return left


def _time(item: Replayed) -> float:
    return item.time
