"""Detection of publications that come back without our ids through a foreign bridge and must not loop.

At a host with a static bridge, the bridge and the federation can form a loop. A delivery at one broker comes back at
another as a new publication, again and again. Two memories, by a hash of topic and payload, cut the loop:

- A publication *delivered* to the host is expected back there within `DELIVERED_S`: the bridge's own duplicate.
- A publication *sent* from the host is expected back there within `SENT_S`, after a round through another broker.
- Both are expected from the federators whose brokers are joined with this one by bridges (`bridges`), because those
  took the bridge's duplicate for a publication of their own.

Each entry cancels as many arrivals, at the host and from those federators, as it can have echoes: one for each of those
federators. The number of publications thus stays right even if an honest repeat is taken for an echo and the echo for
the repeat. Equal content makes exactness impossible: at a host with a bridge, if the same bytes are published on the
same topic again within `SENT_S`, with no echo between them, not all of them are forwarded. Hosts without a bridge are
not affected: the memory is active only while a bridge is up.

`ContentMemory` also serves hosts without No Local, which send our own publications back to us (`older_host`).
"""

from collections import deque

from hanse.mqtt.publication import payload_of, split, topic_bytes_of

# A bridge answers within its round trip. A longer time only mistakes more honest repeats for echoes.
DELIVERED_S = 10.0
SENT_S = 1.0
# Some 200 bytes per entry, four times. At the limit, the oldest is forgotten, which at worst lets one echo pass.
ENTRIES_MAX = 50_000


class ContentMemory:
    """Contents of the last seconds, and how often each; of equal ones the oldest is used first."""

    __slots__ = ("_counts", "_entries_max", "_order", "_taken", "span_s")

    def __init__(self, span_s: float, entries_max: int | None = None) -> None:
        self.span_s = span_s
        self._entries_max = ENTRIES_MAX if entries_max is None else entries_max
        self._counts: dict[int, int] = {}
        self._order: deque[tuple[float, int, int]] = deque()
        # Entries still in the order that no longer count: the oldest of their content.
        self._taken: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, now: float, key: int, count: int) -> None:
        """Expect so many more arrivals of this content."""
        # Here as well: if nothing ever arrives, nothing is taken, and this would grow without end.
        self._forget(now)
        self._counts[key] = self._counts.get(key, 0) + count
        self._order.append((now, key, count))

    def take(self, now: float, key: int) -> bool:
        """Return whether this arrival was expected; if so, expect one less."""
        self._forget(now)
        if key not in self._counts:
            return False
        _decrease(self._counts, key, 1)
        self._taken[key] = self._taken.get(key, 0) + 1
        return True

    def is_awaited(self, key: int) -> bool:
        """Return whether an arrival of this content is expected."""
        return key in self._counts

    def was_taken(self, key: int) -> bool:
        """Return whether an expected arrival of this content came lately: another one may be its repeat."""
        return key in self._taken

    def wait(self, seconds: float) -> None:
        """Extend all entries, because nothing could arrive for so long."""
        self._order = deque((since + seconds, key, count) for since, key, count in self._order)

    def clear(self) -> None:
        """Forget all entries, because none of them will arrive any more."""
        self._order.clear()
        self._counts.clear()
        self._taken.clear()

    def _forget(self, now: float) -> None:
        order = self._order
        while order and (order[0][0] < now - self.span_s or len(order) >= self._entries_max):
            _, key, count = order.popleft()
            taken = min(count, self._taken.get(key, 0))
            _decrease(self._taken, key, taken)
            _decrease(self._counts, key, count - taken)


def _decrease(counts: dict[int, int], key: int, by: int) -> None:
    if not by:
        return
    if counts[key] == by:
        del counts[key]
    else:
        counts[key] -= by


class EchoMemory:
    """Contents that crossed this host lately, in either direction."""

    __slots__ = ("_delivered", "_delivered_by_link", "_sent", "_sent_by_link", "echoes", "is_active", "joined")

    def __init__(self) -> None:
        self.is_active = False
        # The federators whose brokers are joined with this one, and the number of echoes per publication.
        self.joined: frozenset[int] = frozenset()
        self.echoes = 1
        self._delivered, self._delivered_by_link = ContentMemory(DELIVERED_S), ContentMemory(DELIVERED_S)
        self._sent, self._sent_by_link = ContentMemory(SENT_S), ContentMemory(SENT_S)

    def expect_from(self, joined: frozenset[int], *, is_bridged: bool) -> None:
        """Set the federators joined by bridges, and whether this host has a bridge. Without one, remember nothing."""
        self.is_active = is_bridged
        self.joined = joined
        self.echoes = max(1, len(joined))

    def remember(self, now: float, run: bytes) -> None:
        """Remember packets that were delivered to the host."""
        for start, end in split(run):
            key = key_of(run[start:end])
            self._delivered.add(now, key, self.echoes)
            self._delivered_by_link.add(now, key, self.echoes)

    def without_echoes(self, now: float, run: bytes) -> tuple[bytes, int]:
        """Return a joined federator's packets that are not echoes, and how many echoes there were."""
        fresh = []
        for start, end in split(run):
            packet = run[start:end]
            key = key_of(packet)
            if not (self._sent_by_link.take(now, key) or self._delivered_by_link.take(now, key)):
                fresh.append(packet)
        return b"".join(fresh), len(fresh)

    def is_echo(self, now: float, packet: bytes) -> bool:
        """Return whether this arrival at the host is an echo; if not, remember it as sent."""
        key = key_of(packet)
        if self._delivered.take(now, key) or self._sent.take(now, key):
            return True
        self._sent.add(now, key, self.echoes)
        self._sent_by_link.add(now, key, self.echoes)
        return False


def key_of(packet: bytes) -> int:
    """Return a key of topic and payload of one canonical packet, independent of the rest, which brokers may change."""
    return hash((topic_bytes_of(packet), payload_of(packet)))
