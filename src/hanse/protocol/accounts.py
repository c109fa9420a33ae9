"""The accounts of one federator: the outcome of publications, per origin, epoch and group.

A measure is one of `MEASURES`. A publication is counted when it arrives (`published` by the host broker's clients, or
`received` from a neighbour), and again for each of its outcomes: `forwarded` to a neighbour, `queued`, `parked`,
`unwanted` (nobody here or beyond wants it any more), `duplicate`, `delivered`, `merged` (delivered before for another
of its groups), `dropped:<reason>`. `balance` combines the accounts of all federators.

The rules:

- The data path pays at most one lookup per run and nothing per message. The outcome of a run follows from its `Way`
  (where it came from and where its plan sends it), so only the uses of each `Way` are counted. Which neighbour got what
  is computed when somebody asks. Outcomes that differ from the plan (a duplicate, a drop) are counted by `count`.
- Accounts outlive plans: an equal `Way` is the same account after every change of the meshes.
- The table is bounded. Beyond `ACCOUNTS_MAX`, new accounts are combined under `OTHER_GROUPS`. Beyond twice that, they
  are only counted in `folded`, and the balance reports that it is incomplete.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hanse.protocol.messages import HOST, Run

# About 300 bytes each. Telemetry kept the same number of flows before.
ACCOUNTS_MAX = 100_000
OTHER_GROUPS = ("(other)",)

# A source besides the host broker's clients and the neighbours: a piece of a run that was counted on arrival.
PIECE = -9

DROPPED = "dropped:"
MEASURES = {
    "published": "by clients of this broker, and wanted elsewhere",
    "received": "from the neighbour, duplicates included",
    "forwarded": "to the neighbour",
    "queued": "counted as forwarded, but waits behind others or until the neighbour is back; counted again when sent",
    "parked": "waits until there is a route",
    "unwanted": "received, but wanted neither here nor beyond",
    "duplicate": "received, but served before for all of its groups",
    "delivered": "handed to the host broker",
    "merged": "of interest here, but delivered before for another of its groups",
    f"{DROPPED}too_large": "larger than `message_bytes_max`",
    f"{DROPPED}hops": "beyond the limit of hops (R50)",
    f"{DROPPED}too_old": "its id is too old to tell whether it is a duplicate (R52)",
    f"{DROPPED}unknown_group": "nobody claims any of its groups or any group that its topic matches (R49)",
    f"{DROPPED}malformed": "a packet without a valid topic, or a packet of QoS 0 with the flag *returned*",
    f"{DROPPED}parked_full": "the oldest that waited for a route, when `parked_bytes_max` was exceeded (R51)",
    f"{DROPPED}parked_expired": "no route appeared in time (R51)",
    f"{DROPPED}import": "`import_allow` or `import_deny` of the destination keeps it out",
    f"{DROPPED}echo": "a bridge had already brought it",
    f"{DROPPED}host": "QoS 0, and the host broker was away or too slow",
    f"{DROPPED}link": "the link was down or full",
}

# Measures that telemetry reports by the same name (`telemetry.contracts.FLOW_MEASURES`), besides drops.
TOLD = frozenset({"published", "forwarded", "delivered", "duplicate"})

Groups = tuple[str, ...]
# Origin and epoch of publications.
Stream = tuple[int, int]
# Number of publications, bytes of their packets, and when the first one was counted.
Use = list[float]


class Way(NamedTuple):
    """The source of a run and its destinations, as its plan has them."""

    source: int
    groups: Groups
    hops: tuple[tuple[int, Groups], ...]
    is_local: bool
    blocked: Groups


class Row(NamedTuple):
    """One account. `neighbour` is -1 if the measure has none; `since` is when counting began, on the clock of `now`."""

    measure: str
    origin: int
    epoch: int
    groups: Groups
    neighbour: int
    publications: int
    bytes: int
    since: float


_Key = tuple[str, int, int, Groups, int]


class Accounts:
    """Table of accounts.

    Attributes:
        now: Time of the last batch, on the clock that `Row.since` uses.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._ways: dict[Way, dict[Stream, Use]] = {}
        self._others: dict[_Key, Use] = {}
        self._size = 0
        self._folded: Use = [0, 0, 0.0]

    @property
    def folded(self) -> int:
        """Publications that were counted neither in an account of their own nor under `OTHER_GROUPS`."""
        return int(self._folded[0])

    def uses(self, way: Way) -> dict[Stream, Use]:
        """Return the uses of a way, per stream. Use `begin` for a stream that is missing."""
        uses = self._ways.get(way)
        if uses is None:
            if not self._has_room():
                return {}
            self._size += 1
            uses = self._ways[way] = {}
        return uses

    def begin(self, uses: dict[Stream, Use], way: Way, stream: Stream) -> Use:
        """Return a new account, to be added to, for a stream that is missing among the uses of its way."""
        if self._size < ACCOUNTS_MAX:
            self._size += 1
            use = uses[stream] = [0, 0, self.now]
            return use
        way = _folded(way)
        uses = self._ways.get(way, {})
        found = uses.get(stream)
        if found is not None:
            return found
        if not self._has_room(2):
            return self._folded
        if not uses:
            self._ways[way] = uses
        self._size += 1
        use = uses[stream] = [0, 0, self.now]
        return use

    def use(self, way: Way, run: Run) -> None:
        """Count a run that took its planned way. Not for the hot path."""
        stream = run.origin, run.epoch
        uses = self.uses(way)
        use = uses.get(stream) or self.begin(uses, way, stream)
        use[0] += run.length
        use[1] += len(run.body)

    def count(self, measure: str, run: Run, groups: Groups | None = None, *, neighbour: int = -1) -> None:
        """Count another outcome of a run, for all of its groups or for those given."""
        self.add(
            measure,
            (run.origin, run.epoch),
            run.groups if groups is None else groups,
            run.length,
            len(run.body),
            neighbour=neighbour,
        )

    def add(self, measure: str, stream: Stream, groups: Groups, count: int, size: int, *, neighbour: int = -1) -> None:
        """Add to the account with this name."""
        key = (measure, *stream, groups, neighbour)
        use = self._others.get(key)
        if use is None:
            if not self._has_room():
                key = (measure, *stream, OTHER_GROUPS, neighbour)
            use = self._others.get(key)
            if use is None:
                if not self._has_room(2):
                    self._folded[0] += count
                    return
                self._size += 1
                use = self._others[key] = [0, 0, self.now]
        use[0] += count
        use[1] += size

    def rows(self) -> list[Row]:
        """Return all accounts that are not empty, sorted."""
        table: dict[_Key, Use] = {}
        for way, uses in self._ways.items():
            for stream, use in uses.items():
                if use[0]:
                    for measure, groups, neighbour in _outcomes(way):
                        _gather(table, (measure, *stream, groups, neighbour), use)
        for key, use in self._others.items():
            _gather(table, key, use)
        return [Row(*key, int(use[0]), int(use[1]), use[2]) for key, use in sorted(table.items())]

    def flows(self) -> dict[tuple[str, int, Groups], list[int]]:
        """Return the flows for telemetry by measure, origin and groups.

        Measures: published, forwarded, delivered, duplicate, dropped.
        """
        flows: dict[tuple[str, int, Groups], list[int]] = {}
        for row in self.rows():
            if row.measure in TOLD or row.measure.startswith(DROPPED):
                flow = flows.setdefault((row.measure, row.origin, row.groups), [0, 0])
                flow[0] += row.publications
                flow[1] += row.bytes
        return flows

    def _has_room(self, times: int = 1) -> bool:
        return self._size < times * ACCOUNTS_MAX


def _folded(way: Way) -> Way:
    """Replace the groups and keep the neighbours, so that the balance of each link stays exact."""
    hops = tuple((neighbour, OTHER_GROUPS) for neighbour, _ in way.hops)
    return Way(way.source, OTHER_GROUPS, hops, way.is_local, OTHER_GROUPS if way.blocked else ())


def _outcomes(way: Way) -> Iterable[tuple[str, Groups, int]]:
    """Yield measure, groups and neighbour for each outcome that one use of the way stands for."""
    if way.source == HOST:
        yield "published", way.groups, -1
    elif way.source >= 0:
        yield "received", way.groups, way.source
    for neighbour, groups in way.hops:
        yield "forwarded", groups, neighbour
    if way.blocked:
        yield "parked", way.blocked, -1
    if not (way.hops or way.blocked or way.is_local):
        yield "unwanted", way.groups, -1


def _gather(table: dict[_Key, Use], key: _Key, use: Use) -> None:
    found = table.setdefault(key, [0, 0, use[2]])
    found[0] += use[0]
    found[1] += use[1]
    found[2] = min(found[2], use[2])
