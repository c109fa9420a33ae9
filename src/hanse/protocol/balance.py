"""The accounts of all federators combined: for each origin and group, did everything that was published arrive?

For each destination with interest in the group:

    missing     = published - (delivered + merged + what the destination itself kept out)
    unexplained = missing - (what others dropped, could not send, hold back, or sent over a link that lost it)

but never below 0: a publication that is dropped on one of two routes has usually arrived by the other, and its drop
explains nothing then. When the traffic rests, `unexplained` must be 0.

Where a comparison is impossible, the result gives the reason in place of a number: a destination may have restarted, or
its interest may have begun, after the origin began to count. The counts of an origin's former run are lost with it, so
what others hold of that run is left out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hanse.protocol.accounts import DROPPED, OTHER_GROUPS, Row
from hanse.protocol.topics import TELEMETRY_PREFIX

# Drops that concern the destination's own broker. Any other drop can keep a publication from federators further on.
LOCAL_DROPS = frozenset({f"{DROPPED}{reason}" for reason in ("import", "echo", "host")})
INTERNAL_PREFIX = "$hanse/"

# Origin, epoch, group.
Name = tuple[int, int, str]


# Why publications are in no account at all.
GAPS = {
    "damaged on disk": "records in the outbox were damaged, so what they held could not be sent on",
    "session taken over": "another client used the federator's session at its host broker and received what came there",
}


@dataclass(frozen=True, slots=True)
class Gap:
    """Publications that no account counts.

    Attributes:
        federator: Whose page reports the gap.
        kind: One of `GAPS`.
        since, until: When it began and ended; `until` is None while it lasts.
        publications: How many are missing; None if that is not known.
        detail: Which ones, in words.
    """

    federator: int
    kind: str
    since: float
    until: float | None
    publications: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Books:
    """The accounts that one federator reports. All times are on one clock.

    Attributes:
        started: When the federator began to count.
        interest: The groups that its clients want, and since when.
        rows: Its accounts.
        waiting: The publications that it holds back now, as rows of the measure `waiting`.
        left_off: Accounts that were left off, or publications that found none. The balance is complete only if 0.
        gaps: What is in no account.
    """

    identity: int
    started: float
    interest: dict[str, float]
    rows: Sequence[Row]
    waiting: Sequence[Row] = ()
    left_off: int = 0
    gaps: Sequence[Gap] = ()


@dataclass(frozen=True, slots=True)
class Destination:
    """Outcome of an origin's publications in one group, at one broker with interest in the group."""

    federator: int
    delivered: int
    merged: int
    duplicates: int
    dropped: dict[str, int]
    # Negative if more was delivered than published, because of repeats at QoS 1.
    missing: int
    # None if it is not known; `why` then gives the reason.
    unexplained: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """One origin's publications in one group and one epoch."""

    origin: int
    epoch: int
    group: str
    published: int
    waiting: int
    # By reason, at any federator or link on the route.
    lost_on_the_way: dict[str, int]
    destinations: tuple[Destination, ...]


@dataclass(frozen=True, slots=True)
class LinkAccount:
    """One link in one direction.

    `lost` is the difference between sent and received, or None with a reason if it is not known.
    """

    source: int
    target: int
    sent: int
    received: int
    lost: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """Balance of a whole federation."""

    accounts: tuple[Account, ...]
    links: tuple[LinkAccount, ...]
    left_off: int
    gaps: tuple[Gap, ...] = ()
    unexplained: int = field(init=False)

    def __post_init__(self) -> None:
        total = sum(d.unexplained or 0 for account in self.accounts for d in account.destinations)
        object.__setattr__(self, "unexplained", total)


class _Sums:
    """Sums over all rows of all books, as the balance needs them."""

    def __init__(self, books: Iterable[Books]) -> None:
        self.published: Counter[Name] = Counter()
        self.since: dict[Name, float] = {}
        # (federator, name) to measure to publications.
        self.here: defaultdict[tuple[int, Name], Counter[str]] = defaultdict(Counter)
        self.waiting: Counter[Name] = Counter()
        self.lost: defaultdict[Name, Counter[str]] = defaultdict(Counter)
        # (source, target, name): sent minus received. And per link: sent, received, and since when either was counted.
        self.under_way: Counter[tuple[int, int, Name]] = Counter()
        self.sent: Counter[tuple[int, int]] = Counter()
        self.received: Counter[tuple[int, int]] = Counter()
        self.counted_since: dict[tuple[int, int], float] = {}
        for book in books:
            for row in book.rows:
                self._take(book.identity, row)
            for row in book.waiting:
                for name in _names(row):
                    self.waiting[name] += row.publications
        for (source, target, name), count in self.under_way.items():
            if count > 0:
                self.lost[name][f"link {source} to {target}"] += count

    def _take(self, identity: int, row: Row) -> None:
        if row.measure in ("forwarded", "received", "queued", f"{DROPPED}link"):
            self._take_link(identity, row)
        for name in _names(row):
            self.here[identity, name][row.measure] += row.publications
            if row.measure == "published" and row.origin == identity:
                self.published[name] += row.publications
                self.since[name] = min(row.since, self.since.get(name, row.since))
            elif row.measure == "unwanted":
                self.lost[name]["unwanted"] += row.publications
            elif row.measure.startswith(DROPPED) and row.measure not in LOCAL_DROPS:
                self.lost[name][row.measure.removeprefix(DROPPED)] += row.publications

    def _take_link(self, identity: int, row: Row) -> None:
        if row.measure == "received":
            link, count = (row.neighbour, identity), -row.publications
            self.received[link] += row.publications
        else:
            # Publications that the link refused or that wait for it were counted as forwarded before.
            link, count = (identity, row.neighbour), row.publications * (1 if row.measure == "forwarded" else -1)
            self.sent[link] += count
        self.counted_since[link] = min(row.since, self.counted_since.get(link, row.since))
        for name in _names(row):
            self.under_way[(*link, name)] += count


def balance(books: Sequence[Books]) -> Balance:
    """Return the balance of a federation from the books of all federators that answered."""
    sums = _Sums(books)
    accounts = [_account(sums, books, name) for name in sorted(sums.published) if not is_internal(name[2])]
    started = {book.identity: book.started for book in books}
    links = [_link(sums, started, link) for link in sorted(sums.sent.keys() | sums.received.keys())]
    gaps = tuple(gap for book in books for gap in book.gaps)
    return Balance(tuple(accounts), tuple(links), sum(book.left_off for book in books), gaps)


def is_internal(group: str) -> bool:
    """Return whether a group is internal, with no broker as its destination, or no group at all."""
    return group in OTHER_GROUPS or (group.startswith(INTERNAL_PREFIX) and not group.startswith(TELEMETRY_PREFIX))


def _account(sums: _Sums, books: Sequence[Books], name: Name) -> Account:
    origin, epoch, group = name
    lost = dict(sorted(sums.lost[name].items()))
    destinations = [
        _destination(sums, book, name)
        for book in books
        if book.identity != origin and (group in book.interest or sums.here[book.identity, name]["delivered"])
    ]
    return Account(origin, epoch, group, sums.published[name], sums.waiting[name], lost, tuple(destinations))


def _destination(sums: _Sums, book: Books, name: Name) -> Destination:
    here = sums.here[book.identity, name]
    dropped = {measure.removeprefix(DROPPED): here[measure] for measure in sorted(LOCAL_DROPS.intersection(here))}
    missing = sums.published[name] - here["delivered"] - here["merged"] - sum(dropped.values())
    unexplained: int | None = max(0, missing - sums.waiting[name] - sum(sums.lost[name].values()))
    why = ""
    since = book.interest.get(name[2])
    if unexplained and since is None:
        unexplained, why = None, "its interest has ended"
    elif missing > 0 and since is not None and max(since, book.started) > sums.since[name]:
        what = "its interest" if since >= book.started else "its federator's count"
        unexplained, why = None, f"{what} began after the first publication"
    return Destination(
        book.identity, here["delivered"], here["merged"], here["duplicate"], dropped, missing, unexplained, why
    )


def _link(sums: _Sums, started: dict[int, float], link: tuple[int, int]) -> LinkAccount:
    sent, received = sums.sent[link], sums.received[link]
    silent = [end for end in link if end not in started]
    lost: int | None = sent - received
    why = ""
    if silent:
        lost, why = None, f"federator {silent[0]} does not answer"
    elif lost and max(started[end] for end in link) > sums.counted_since[link]:
        restarted = max(link, key=lambda end: started[end])
        lost, why = None, f"federator {restarted} began to count later than the other"
    return LinkAccount(*link, sent, received, lost, why)


def _names(row: Row) -> list[Name]:
    return [(row.origin, row.epoch, group) for group in row.groups]
