"""What comes back without our ids through somebody else's bridge, and is not to be carried round again.

Where a host has a static bridge, the bridge and the federation can close a loop: what is delivered at one broker comes
back at another as a new publication, and again, without end. Two memories by a hash of topic and payload cut it:

- what was *delivered* to the host is expected back there within `DELIVERED_S`: the bridge's own copy of it;
- what was *sent* from the host is expected back there within `SENT_S`: it went round through another broker;
- both are expected from the federators whose brokers are joined with this one by bridges (`bridges`), which took the
  bridge's copy for a publication of its own.

Each entry cancels as many arrivals, at the host and from those federators, as it can have echoes: one for each of
those federators. So the number of publications stays right even where an honest repeat is taken for an echo and the
echo for the repeat. Equal content makes exactness impossible: at a host with a bridge, of the same bytes published on
the same topic again within `SENT_S`, with no echo between them, not all are carried.
Hosts without a bridge are not affected: the memory is active only while a bridge is up.

`ContentMemory` serves hosts without No Local too, which send our own publications back to us (`older_host`).
"""

from collections import deque

from hanse.mqtt.publication import payload_of, split, topic_bytes_of

# A bridge answers within its round trip; longer only takes more honest repeats for echoes.
DELIVERED_S = 10.0
SENT_S = 1.0
# Some 200 bytes an entry, four times; at the limit the oldest is forgotten, which at worst lets one echo pass.
ENTRIES_MAX = 50_000


class ContentMemory:
    """Contents of the last seconds, and how often each; of equal ones the oldest is taken first."""

    __slots__ = ("_counts", "_entries_max", "_order", "_taken", "span_s")

    def __init__(self, span_s: float, entries_max: int | None = None) -> None:
        self.span_s = span_s
        self._entries_max = ENTRIES_MAX if entries_max is None else entries_max
        self._counts: dict[int, int] = {}
        self._order: deque[tuple[float, int, int]] = deque()
        # What still stands in the order and counts no more: the oldest of its content.
        self._taken: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, now: float, key: int, count: int) -> None:
        """Expect so many arrivals more of this content."""
        # Here too: where nothing ever arrives nothing is taken, and this would grow without end.
        self._forget(now)
        self._counts[key] = self._counts.get(key, 0) + count
        self._order.append((now, key, count))

    def take(self, now: float, key: int) -> bool:
        """Whether this arrival was expected; if so, it is expected once less."""
        self._forget(now)
        if key not in self._counts:
            return False
        _decrease(self._counts, key, 1)
        self._taken[key] = self._taken.get(key, 0) + 1
        return True

    def is_awaited(self, key: int) -> bool:
        """Whether an arrival of this content is expected."""
        return key in self._counts

    def was_taken(self, key: int) -> bool:
        """Whether an arrival of this content was expected lately and came: what comes again may be the same one."""
        return key in self._taken

    def wait(self, seconds: float) -> None:
        """Nothing could arrive for so long: everything lives that much longer."""
        self._order = deque((since + seconds, key, count) for since, key, count in self._order)

    def clear(self) -> None:
        """Nothing of it will arrive any more."""
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
    """What crossed this host lately, in either direction."""

    __slots__ = ("_delivered", "_delivered_by_link", "_sent", "_sent_by_link", "echoes", "is_active", "joined")

    def __init__(self) -> None:
        self.is_active = False
        # The federators whose brokers hang together with this one, and how many echoes one publication has.
        self.joined: frozenset[int] = frozenset()
        self.echoes = 1
        self._delivered, self._delivered_by_link = ContentMemory(DELIVERED_S), ContentMemory(DELIVERED_S)
        self._sent, self._sent_by_link = ContentMemory(SENT_S), ContentMemory(SENT_S)

    def expect_from(self, joined: frozenset[int], *, is_bridged: bool) -> None:
        """Who is joined with this host by bridges, and whether it has a bridge at all: else nothing is remembered."""
        self.is_active = is_bridged
        self.joined = joined
        self.echoes = max(1, len(joined))

    def remember(self, now: float, run: bytes) -> None:
        """These packets were delivered to the host."""
        for start, end in split(run):
            key = key_of(run[start:end])
            self._delivered.add(now, key, self.echoes)
            self._delivered_by_link.add(now, key, self.echoes)

    def without_echoes(self, now: float, run: bytes) -> tuple[bytes, int]:
        """What of the packets of a joined federator is not something coming back, and how many they are."""
        fresh = []
        for start, end in split(run):
            packet = run[start:end]
            key = key_of(packet)
            if not (self._sent_by_link.take(now, key) or self._delivered_by_link.take(now, key)):
                fresh.append(packet)
        return b"".join(fresh), len(fresh)

    def is_echo(self, now: float, packet: bytes) -> bool:
        """Whether this arrival at the host is something coming back; if not, it is remembered as sent."""
        key = key_of(packet)
        if self._delivered.take(now, key) or self._sent.take(now, key):
            return True
        self._sent.add(now, key, self.echoes)
        self._sent_by_link.add(now, key, self.echoes)
        return False


def key_of(packet: bytes) -> int:
    """The content of one canonical packet: its topic and its payload, whatever else a broker changed."""
    return hash((topic_bytes_of(packet), payload_of(packet)))
