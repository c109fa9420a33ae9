"""Placement of a joining federator. Pure: candidates in, neighbours out.

The papers' rule (`seeds`, the default), with the open points decided:

1. The first neighbour has the lowest latency among those with fewer than the maximum of neighbours.
2. The second neighbour is a different one, and has the fewest neighbours.
3. Ties go to the smaller id. An unknown latency counts as the highest.
4. The second federator of all is linked to the first alone.
5. If fewer than two have capacity, a link a-b becomes a-new-b. Degrees stay the same, and the new federator sits on an
   existing link, so nothing is cut and the overlay stays two-connected if it was.

`STRATEGIES` holds this and other strategies, under the same signature.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from hanse.topology.model import Link

WANTED = 2  # neighbours for a joining federator, as in the papers


@dataclass(frozen=True, slots=True)
class Candidate:
    """Living federator, as placement sees it."""

    id: int
    latency_ms: float | None
    degree: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Neighbours of the joining federator, and the link that it replaces, if any."""

    neighbors: tuple[int, ...]
    split: Link | None = None


Strategy = Callable[[Sequence[Candidate], Collection[Link], int], Placement]


def place_as_seeds(candidates: Sequence[Candidate], links: Collection[Link], degree_max: int) -> Placement:
    """Choose the lowest latency with capacity, then the fewest neighbours."""
    if len(candidates) < WANTED:
        return Placement(tuple(one.id for one in candidates))
    with_room = [one for one in candidates if one.degree < degree_max]
    if len(with_room) < WANTED:
        return _split(candidates, links)
    first = min(with_room, key=lambda one: (_latency(one), one.id))
    second = min((one for one in with_room if one.id != first.id), key=lambda one: (one.degree, one.id))
    return Placement((first.id, second.id))


def place_balanced(candidates: Sequence[Candidate], links: Collection[Link], degree_max: int) -> Placement:
    """Choose the fewest neighbours twice, latency only as the tie: no hub grows around the fastest broker."""
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
    """Apply rule 5 to the link whose two ends are nearest."""
    latency = {one.id: _latency(one) for one in candidates}
    here = [link for link in links if link[0] in latency and link[1] in latency]
    if not here:
        # No candidate has capacity and there is no link: only a maximum of 0 could do that, and settings refuse it.
        raise AssertionError("placement: a full federator without any link")
    split = min(here, key=lambda link: (latency[link[0]] + latency[link[1]], link))
    return Placement(split, split)
