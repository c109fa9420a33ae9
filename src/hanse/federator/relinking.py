"""Whom to link to when neighbours die and no manager answers. Pure, and without a word between the federators.

Every federator keeps the manager's last map of the overlay. When some of it is dead, those who still live around each
dead part (its *rim*) link in a ring, by their ids: whoever stands next to whom follows from the map alone, so both
ends of a new link come to it by themselves.

What holds, for a map and a set of dead that all share:

1. If the overlay of the map was connected, that of the living is.
2. If it was two-connected, that of the living is again, as far as three or more live: around the dead part there is
   now a ring where there was one way more.
3. Nobody gets more than two new links for one dead part, and had at least one into it: degrees grow by at most one a
   dead part. Nobody is dialled by more than two.

Whoever turns out dead when it is dialled joins the dead part, and the ring closes around it too.
"""

from collections.abc import Collection, Iterable


def partners(identity: int, links: Iterable[tuple[int, int]], dead: Collection[int]) -> list[int]:
    """The federators to link to because of the dead, ascending; those that the map has as neighbours are left out."""
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
    """The living around the dead part that holds `first`; `seen` takes the dead of it."""
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
