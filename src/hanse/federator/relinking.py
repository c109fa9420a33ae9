"""Replacement links when neighbours die and no manager answers. Pure, without messages between the federators.

Every federator keeps the manager's last map of the overlay. If some of it is dead, the living around each dead part
(its *rim*) link in a ring, by their ids. The map alone determines the neighbours in the ring, so both ends of a new
link find it by themselves.

Guarantees, for a map and a set of dead federators that all share:

1. If the overlay of the map was connected, that of the living is connected.
2. If it was two-connected, that of the living is two-connected again, if three or more live: around the dead part there
   is now a ring instead of one more route.
3. A federator gets at most two new links for one dead part, and had at least one into it: degrees grow by at most one
   per dead part. At most two federators dial the same one.

A federator that turns out dead when it is dialled joins the dead part, and the ring closes around it as well.
"""

from collections.abc import Collection, Iterable


def partners(identity: int, links: Iterable[tuple[int, int]], dead: Collection[int]) -> list[int]:
    """Return the federators to link to because of the dead, ascending, without the map's neighbours."""
    around: dict[int, set[int]] = {}
    for a, b in links:
        around.setdefault(a, set()).add(b)
        around.setdefault(b, set()).add(a)
    mine = around.get(identity, set())
    gone = set(dead) - {identity}
    found: set[int] = set()
    seen: set[int] = set()
    for first in sorted(mine & gone):
        if first not in seen:
            rim = _rim(first, around, gone, seen)
            found |= _beside(identity, sorted(rim))
    return sorted(found - mine - {identity})


def _rim(first: int, around: dict[int, set[int]], dead: set[int], seen: set[int]) -> set[int]:
    """Return the living around the dead part that holds `first`; add the dead of that part to `seen`."""
    rim: set[int] = set()
    waiting = [first]
    seen.add(first)
    while waiting:
        for other in around[waiting.pop()]:
            if other not in dead:
                rim.add(other)
            elif other not in seen:
                seen.add(other)
                waiting.append(other)
    return rim


def _beside(identity: int, ring: list[int]) -> set[int]:
    at = ring.index(identity)
    return {ring[at - 1], ring[(at + 1) % len(ring)]}
