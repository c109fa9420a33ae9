"""The publications of QoS 1 and 2 that one client received lately, as hashes.

A publication is known by topic and payload. Properties, packet identifiers and QoS may differ from broker to broker.
QoS 0 is left out: federators do not retain it, so no replay repeats it.
"""

from array import array
from bisect import bisect_left
from hashlib import blake2b
from typing import Final

# From this size of topic and payload on, the digest can be taken of pieces, because such a packet may come in pieces.
LARGE_BYTES: Final = 32 * 1024


def digest(topic: bytes, payload: bytes) -> int:
    """Return the hash that identifies a publication in this process."""
    if len(topic) + len(payload) < LARGE_BYTES:
        return hash((topic, payload))
    large = LargeDigest(topic)
    large.add(payload)
    return large.value()


class LargeDigest:
    """The digest of a large publication whose payload comes in pieces."""

    def __init__(self, topic: bytes) -> None:
        self._hash = blake2b(len(topic).to_bytes(2, "big") + topic, digest_size=8)

    def add(self, piece: bytes) -> None:
        """Take the next piece of the payload."""
        self._hash.update(piece)

    def value(self) -> int:
        """Return the digest."""
        return int.from_bytes(self._hash.digest(), "big", signed=True)


class Received:
    """Digests and times of the publications that went to a client.

    Attributes:
        dropped: number of digests that the bound has pushed out. Their publications may be repeated after a move.
    """

    __slots__ = ("_digests", "_entries_max", "_times", "dropped")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._digests = array("q")
        self._times = array("d")
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, digests: list[int], now: float) -> None:
        """Remember publications of one read."""
        self._digests.extend(digests)
        self._times.extend([now] * len(digests))
        if len(self._digests) > self._entries_max:
            # A quarter at a time: the arrays move their tails when their heads go.
            count = len(self._digests) - self._entries_max * 3 // 4
            self.dropped += count
            del self._digests[:count]
            del self._times[:count]

    def forget_before(self, time: float) -> None:
        """Forget the publications from before this time."""
        count = bisect_left(self._times, time)
        if count:
            del self._digests[:count]
            del self._times[:count]

    def by_content(self) -> dict[int, list[float]]:
        """Return the times at which each content came, oldest first."""
        found: dict[int, list[float]] = {}
        for content, time in zip(self._digests, self._times, strict=True):
            times = found.get(content)
            if times is None:
                found[content] = [time]
            else:
                times.append(time)
        return found
