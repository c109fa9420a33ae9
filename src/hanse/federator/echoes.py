"""What comes back without our ids: through a static bridge beside the federation, or from a host without No Local.

What is delivered to such a host is remembered by a hash of topic and payload, and each entry cancels one equal
arrival within `ECHO_S`. Equal content makes exactness impossible: a client that publishes the very same bytes on the
same topic within that time may have one of them taken for an echo. docs/operating.md says so.
"""

from collections import deque

from hanse.mqtt.publication import payload_of, split, topic_bytes_of

# A bridge answers within its round trip; longer only makes honest repeats more likely to be taken for echoes.
ECHO_S = 10.0
# 64 bytes an entry or so; at the limit the oldest is forgotten, which at worst lets one echo pass.
ENTRIES_MAX = 200_000


class EchoMemory:
    """What was delivered lately, and how often."""

    __slots__ = ("_counts", "_order", "cancelled", "is_active")

    def __init__(self) -> None:
        self.is_active = False
        self.cancelled = 0
        self._counts: dict[int, int] = {}
        self._order: deque[tuple[float, int]] = deque()

    def remember(self, now: float, run: bytes) -> None:
        """These packets are being delivered to the host."""
        self._forget(now)
        for start, end in split(run):
            key = _key(run[start:end])
            self._counts[key] = self._counts.get(key, 0) + 1
            self._order.append((now, key))

    def cancels(self, now: float, packet: bytes) -> bool:
        """Whether this arrival is one of them coming back; it then counts no more."""
        self._forget(now)
        key = _key(packet)
        count = self._counts.get(key, 0)
        if not count:
            return False
        self._take(key, count)
        self.cancelled += 1
        return True

    def _forget(self, now: float) -> None:
        order = self._order
        while order and (order[0][0] < now - ECHO_S or len(order) > ENTRIES_MAX):
            _, key = order.popleft()
            count = self._counts.get(key, 0)
            if count:
                self._take(key, count)

    def _take(self, key: int, count: int) -> None:
        if count == 1:
            del self._counts[key]
        else:
            self._counts[key] = count - 1


def _key(packet: bytes) -> int:
    return hash((topic_bytes_of(packet), payload_of(packet)))
