"""Shapes of an overlay, as edges between the brokers 0 to N-1.

Each edge `(smaller, larger)` occurs once, in sorted order, so the same arguments give the same federation.
"""

import re

from hanse.errors import LocalError

SHAPES = "ring, line, full, star or grid:RxC"
# No given shape: the manager places the federators that join.
MANAGED = "managed"
# `hanse up` uses one machine; a full overlay of this size has 499,500 links already.
BROKERS_MAX = 1_000
_GRID = re.compile(r"grid:(\d{1,4})x(\d{1,4})")


def edges(shape: str, brokers: int) -> list[tuple[int, int]]:
    """Return the links of a shape for the given number of brokers.

    Raises:
        LocalError: there is no such shape, or it does not fit the number.
    """
    if not 1 <= brokers <= BROKERS_MAX:
        raise LocalError(f"{brokers} brokers are not possible; expected 1 to {BROKERS_MAX}.")
    match shape:
        case "managed":
            return []
        case "line":
            return [(k, k + 1) for k in range(brokers - 1)]
        case "ring":
            line = [(k, k + 1) for k in range(brokers - 1)]
            # With two brokers, the closing link would be the same link again.
            return sorted([*line, (0, brokers - 1)]) if brokers > 2 else line
        case "full":
            return [(a, b) for a in range(brokers) for b in range(a + 1, brokers)]
        case "star":
            return [(0, k) for k in range(1, brokers)]
    match = _GRID.fullmatch(shape)
    if match is None:
        raise LocalError(f"Overlay {shape!r} is not known; expected {SHAPES}.")
    rows, columns = int(match[1]), int(match[2])
    if rows * columns != brokers:
        raise LocalError(
            f"Overlay {shape} has {rows * columns} places for {brokers} brokers; "
            f"give --brokers {rows * columns}, or another grid."
        )
    across = [(r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)]
    down = [(r * columns + c, (r + 1) * columns + c) for r in range(rows - 1) for c in range(columns)]
    return sorted(across + down)


def neighbours(links: list[tuple[int, int]], brokers: int) -> list[list[int]]:
    """Return the sorted neighbours of each broker."""
    of: list[set[int]] = [set() for _ in range(brokers)]
    for a, b in links:
        of[a].add(b)
        of[b].add(a)
    return [sorted(one) for one in of]
