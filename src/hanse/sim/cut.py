"""Partitioning of an overlay into two halves with few links between them, so that two processes exchange little.

Rules:
- Both halves have as many link ends, to within one federator. A link end is what costs time.
- The same overlay is always cut in the same way.
"""

import heapq

from hanse.sim.overlay import Overlay, distances

# A pass of exchanges that saves nothing is the last one. Random overlays need about ten.
PASSES_MAX = 20


def halves(overlay: Overlay) -> tuple[frozenset[int], frozenset[int]]:
    """Return the federators of both halves. The second half is empty if the overlay has one federator.

    The federators nearest to the first one make the initial half. Then federators change sides for as long as that
    saves links (Fiduccia and Mattheyses, 1982).
    """
    first = set[int]()
    ends = 2 * len(overlay.links)
    weight = 0
    # Federators that are not connected come last.
    nearest = distances(overlay.identities[0], overlay.neighbours)
    for identity in (*nearest, *(k for k in overlay.identities if k not in nearest)):
        if 2 * weight >= ends and first:
            break
        first.add(identity)
        weight += len(overlay.neighbours(identity))
    for _ in range(PASSES_MAX):
        moved = _better(overlay, first)
        if not moved:
            break
        first ^= moved
    return frozenset(first), frozenset(overlay.identities) - first


def crossing(overlay: Overlay, first: frozenset[int] | set[int]) -> int:
    """Return the number of links with one end in each half."""
    return sum((one in first) != (other in first) for one, other in overlay.links)


def _better(overlay: Overlay, first: set[int]) -> set[int]:
    """Return the federators that should change sides in this pass.

    Each moves once at most, the most profitable first. The result is the best state that the pass went through.
    """
    neighbours = overlay.neighbours
    is_first = {identity: identity in first for identity in overlay.identities}
    # Number of crossing links that would be saved if this federator moved.
    gains = {k: sum(1 if is_first[other] != is_first[k] else -1 for other in neighbours(k)) for k in overlay.identities}
    waiting: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for k, gain in gains.items():
        waiting[is_first[k]].append((-gain, k))
    for heap in waiting.values():
        heapq.heapify(heap)
    # How many more link ends the first half has than the second.
    excess = sum(len(neighbours(k)) * (1 if is_first[k] else -1) for k in overlay.identities)
    excess_max = max(abs(excess), *(len(neighbours(k)) for k in overlay.identities))
    moved: list[int] = []
    done = set[int]()
    saved = best = best_count = 0
    while True:
        heap = waiting[excess > 0]
        while heap and (heap[0][1] in done or -heap[0][0] != gains[heap[0][1]]):
            heapq.heappop(heap)
        if not heap:
            return set(moved[:best_count])
        k = heapq.heappop(heap)[1]
        saved += gains[k]
        done.add(k)
        moved.append(k)
        excess += 2 * len(neighbours(k)) * (-1 if is_first[k] else 1)
        is_first[k] = not is_first[k]
        for other in neighbours(k):
            if other not in done:
                gains[other] += -2 if is_first[other] == is_first[k] else 2
                heapq.heappush(waiting[is_first[other]], (-gains[other], other))
        if saved > best and abs(excess) <= excess_max:
            best, best_count = saved, len(moved)
