"""Fetches, on the side that asks: requests, answers, and the applied part of each federator's feed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hanse.protocol.retained.codec import CURSORS_MAX, FILTERS_MAX
from hanse.protocol.retained.messages import Change, Cursor, Fetch

# Simultaneous open fetches; older ones are closed early.
OPEN_MAX = 256


@dataclass(slots=True)
class OpenFetch:
    """Fetch that waits for answers."""

    filters: tuple[str, ...]
    until: float
    is_afresh: bool = False
    answered: set[int] = field(default_factory=set)
    # Duplicates that wait for the answer of their origin: (answerer, change).
    held: list[tuple[int, Change]] = field(default_factory=list)


class Fetches:
    """Open fetches, filters that wait for a fetch, and cursors."""

    def __init__(self) -> None:
        self.open: dict[int, OpenFetch] = {}
        self.cursors: dict[str, dict[int, tuple[int, int]]] = {}
        self._due: dict[str, bool] = {}
        self._next = 1

    @property
    def is_due(self) -> bool:
        """Return whether filters wait for a fetch."""
        return bool(self._due)

    def want(self, filters: Iterable[str], *, afresh: bool = False) -> None:
        """Fetch filters soon. With `afresh`, ignore the cursors, because a value is needed again."""
        for filter_ in filters:
            self._due[filter_] = afresh or self._due.get(filter_, False)

    def is_open_for(self, filter_: str) -> bool:
        """Return whether answers to a fetch of just this filter are awaited."""
        return any(filter_ in fetch.filters for fetch in self.open.values())

    def begin(self, until: float) -> list[Fetch]:
        """Open fetches for all filters that wait; return the messages."""
        due, self._due = self._due, {}
        made = []
        for afresh in (False, True):
            filters = sorted(filter_ for filter_, anew in due.items() if anew == afresh)
            for start in range(0, len(filters), FILTERS_MAX):
                part = tuple(filters[start : start + FILTERS_MAX])
                number = self._next
                self._next += 1
                self.open[number] = OpenFetch(part, until, is_afresh=afresh)
                made.append(Fetch(number, part, () if afresh else self._cursors_for(part)))
        return made

    def _cursors_for(self, filters: tuple[str, ...]) -> tuple[Cursor, ...]:
        """Return the cursors that are valid for all of the filters: the smallest per federator."""
        known = [self.cursors.get(filter_, {}) for filter_ in filters]
        found = []
        for federator in sorted(known[0]):
            places = [places[federator] for places in known if federator in places]
            if len(places) == len(known) and len({epoch for epoch, _ in places}) == 1:
                found.append(Cursor(federator, places[0][0], min(sequence for _, sequence in places)))
        return tuple(found[:CURSORS_MAX])

    def note(self, filters: Iterable[str], federator: int, epoch: int, sequence: int) -> None:
        """Note that a federator's feed up to a number has been applied for these filters (R93)."""
        for filter_ in filters:
            self.cursors.setdefault(filter_, {})[federator] = (epoch, sequence)

    def forget(self, filter_: str) -> dict[int, tuple[int, int]]:
        """Give up a filter; return its cursors."""
        self._due.pop(filter_, None)
        return self.cursors.pop(filter_, {})

    def expired(self, now: float) -> list[OpenFetch]:
        """Close fetches whose time is over, and those beyond `OPEN_MAX`; return them."""
        numbers = [number for number, fetch in self.open.items() if fetch.until <= now]
        numbers += [number for number in list(self.open)[: max(0, len(self.open) - OPEN_MAX)] if number not in numbers]
        return [self.open.pop(number) for number in numbers]

    @property
    def deadline(self) -> float:
        """Return the time at which the next open fetch closes."""
        return min((fetch.until for fetch in self.open.values()), default=float("inf"))
