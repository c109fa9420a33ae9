"""Where a joining federator is linked. Pure: candidates in, neighbours out.

The seeds' rule (`seeds`, the default), with what they leave open decided:

1. The first neighbour has the lowest latency among those with fewer than the maximum of neighbours.
2. The second, another one, has the fewest neighbours.
3. Ties go to the smaller id. A latency that is not yet known counts as the highest.
4. Whoever joins second is linked to the first alone.
5. Where fewer than two have room, a link a-b becomes a-new-b: degrees stay as they are, and the new one sits on a
   link that was there, so nothing is cut and the overlay stays two-connected if it was.

Other strategies stand beside it in `STRATEGIES`, under the same signature.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from hanse.topology.model import Link

WANTED = 2  # neighbours for a joining federator, as in the seeds


@dataclass(frozen=True, slots=True)
class Candidate:
    """A living federator, as placement sees it."""

    id: int
    latency_ms: float | None
    degree: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The neighbours of the joining one, and the link that it takes the place of, if any."""

    neighbors: tuple[int, ...]
    split: Link | None = None


Strategy = Callable[[Sequence[Candidate], Collection[Link], int], Placement]


def place_as_seeds(candidates: Sequence[Candidate], links: Collection[Link], degree_max: int) -> Placement:
    """Lowest latency with room, then fewest neighbours."""
    if len(candidates) < WANTED:
        return Placement(tuple(one.id for one in candidates))
    with_room = [one for one in candidates if one.degree < degree_max]
    if len(with_room) < WANTED:
        return _split(candidates, links)
    first = min(with_room, key=lambda one: (_latency(one), one.id))
    second = min((one for one in with_room if one.id != first.id), key=lambda one: (one.degree, one.id))
    return Placement((first.id, second.id))


def place_balanced(candidates: Sequence[Candidate], links: Collection[Link], degree_max: int) -> Placement:
    """Fewest neighbours twice, latency only as the tie: no hub grows around the fastest broker."""
    if len(candidates) < WANTED:
        return Placement(tuple(one.id for one in candidates))
    with_room = [one for one in candidates if one.degree < degree_max]
    if len(with_room) < WANTED:
        return _split(candidates, links)
    ranked = sorted(with_room, key=lambda one: (one.degree, _latency(one), one.id))
    return Placement((ranked[0].id, ranked[1].id))


STRATEGIES: Mapping[str, Strategy] = {"seeds": place_as_seeds, "balanced": place_balanced}


def _latency(one: Candidate) -> float:
    return math.inf if one.latency_ms is None else one.latency_ms


def _split(candidates: Sequence[Candidate], links: Collection[Link]) -> Placement:
    """Rule 5, on the link whose two ends are nearest."""
    latency = {one.id: _latency(one) for one in candidates}
    here = [link for link in links if link[0] in latency and link[1] in latency]
    if not here:
        # Nobody has room and nobody has a link: only a maximum of 0 could do that, and settings refuse it.
        raise AssertionError("placement: a full federator without any link")
    split = min(here, key=lambda link: (latency[link[0]] + latency[link[1]], link))
    return Placement(split, split)
