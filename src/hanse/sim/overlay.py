"""Overlays: which federators have a link. All functions are pure; randomness comes in as an argument.

Rules:
- An overlay is simple (no loops, no double links). Its links are sorted pairs in sorted order.
- Every generated overlay is connected. Only a fault disconnects it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from hanse.errors import LocalError

Pair = tuple[int, int]

# If the random pairing of link ends fails this often, the requested overlay is impossible.
PAIRING_ATTEMPTS = 200


def pair(one: int, other: int) -> Pair:
    """Return the name of a link: its two ends, the smaller first."""
    return (one, other) if one < other else (other, one)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Federators and the links between them."""

    identities: tuple[int, ...]
    links: tuple[Pair, ...]
    _neighbours: Mapping[int, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = set(self.identities)
        found: dict[int, list[int]] = {identity: [] for identity in self.identities}
        for one, other in self.links:
            if one == other or one not in known or other not in known:
                raise LocalError(f"Link {one}-{other} must join two different brokers among those given.")
            found[one].append(other)
            found[other].append(one)
        if len(set(self.links)) != len(self.links) or any(one > other for one, other in self.links):
            raise LocalError("An overlay's links must be distinct pairs, the smaller id first.")
        neighbours = {identity: tuple(sorted(others)) for identity, others in found.items()}
        object.__setattr__(self, "_neighbours", neighbours)

    def neighbours(self, identity: int) -> tuple[int, ...]:
        """Return the neighbours of a federator, sorted."""
        return self._neighbours[identity]

    def is_connected(self) -> bool:
        """Return True if each federator can reach each other one."""
        return len(components(self.identities, self.neighbours)) <= 1

    def diameter(self) -> int:
        """Return the longest of the shortest paths, in hops. The time is quadratic, so this is for small overlays."""
        return max(max(distances(identity, self.neighbours).values()) for identity in self.identities)


def distances(start: int, neighbours: Callable[[int], Iterable[int]]) -> dict[int, int]:
    """Map each federator that can be reached from `start` to its distance in hops."""
    found = {start: 0}
    edge = [start]
    while edge:
        following = []
        for identity in edge:
            for other in neighbours(identity):
                if other not in found:
                    found[other] = found[identity] + 1
                    following.append(other)
        edge = following
    return found


def components(identities: Iterable[int], neighbours: Callable[[int], Iterable[int]]) -> list[list[int]]:
    """Return the connected components, each sorted, in the order of their smallest members."""
    found: list[list[int]] = []
    seen: set[int] = set()
    for identity in sorted(identities):
        if identity not in seen:
            component = sorted(distances(identity, neighbours))
            seen.update(component)
            found.append(component)
    return found


def given(identities: Iterable[int], links: Iterable[Pair]) -> Overlay:
    """Return the overlay with exactly these links."""
    return Overlay(tuple(sorted(set(identities))), tuple(sorted({pair(*link) for link in links})))


def line(count: int) -> Overlay:
    """Return a line: each federator is linked to the next. It has the longest paths and no redundancy."""
    return given(range(count), ((k, k + 1) for k in range(count - 1)))


def ring(count: int) -> Overlay:
    """Return a ring: a line that closes, with exactly two paths between any two federators."""
    _at_least(count, 3, "ring")
    return given(range(count), ((k, (k + 1) % count) for k in range(count)))


def grid(rows: int, columns: int) -> Overlay:
    """Return a grid, which has many shortest paths of equal length."""
    _at_least(rows, 1, "grid")
    _at_least(columns, 1, "grid")
    places = [(row, column) for row in range(rows) for column in range(columns)]
    across = [(r * columns + c, r * columns + c + 1) for r, c in places if c + 1 < columns]
    down = [(r * columns + c, (r + 1) * columns + c) for r, c in places if r + 1 < rows]
    return given(range(rows * columns), across + down)


def full(count: int) -> Overlay:
    """Return a full mesh, in which loops would form most easily."""
    return given(range(count), ((one, other) for one in range(count) for other in range(one + 1, count)))


def random_regular(count: int, degree: int, random: Random) -> Overlay:
    """Return a random overlay in which each federator has `degree` neighbours.

    Link ends are paired at random. A loop or a double link is exchanged with a link drawn at random. Then links are
    exchanged between components until there is one component. If `count * degree` is odd, one federator has one
    neighbour fewer.
    """
    if not 2 <= degree < count:
        raise LocalError(f"Degree {degree} with {count} brokers: it must be at least 2 and less than the brokers.")
    for _ in range(PAIRING_ATTEMPTS):
        links = _paired(count, degree, random)
        if links is not None and _joined(count, links, random):
            return given(range(count), links)
    raise LocalError(f"No connected overlay of {count} brokers with degree {degree} was found; take another degree.")


def placement(count: int, degree_max: int, random: Random) -> Overlay:
    """Return the overlay that grows by the topology manager's placement rule, one joining federator after the other.

    The first neighbour is the one with the lowest latency among those with fewer than `degree_max` neighbours. The
    second is the one with the fewest neighbours. Among equals, the smaller id wins. If all are full, a link a-b becomes
    a-new-b. Latency is the distance between random points of a square.
    """
    _at_least(degree_max, 2, "placement")
    places = [(random.random(), random.random()) for _ in range(count)]
    found: list[set[int]] = [set() for _ in range(count)]
    for new in range(1, count):
        x, y = places[new]
        latency = {k: (places[k][0] - x) ** 2 + (places[k][1] - y) ** 2 for k in range(new)}
        open_ones = [k for k in range(new) if len(found[k]) < degree_max]
        if not open_ones:
            near = min(range(new), key=lambda k: (latency[k], k))
            far = min(found[near])
            found[near].remove(far)
            found[far].remove(near)
            chosen = [near, far]
        else:
            first = min(open_ones, key=lambda k: (latency[k], k))
            rest = [k for k in open_ones if k != first]
            chosen = [first, min(rest, key=lambda k: (len(found[k]), k))] if rest else [first]
        for other in chosen:
            found[new].add(other)
            found[other].add(new)
    return given(range(count), ((k, other) for k in range(count) for other in found[k]))


def scale_free(count: int, links_each: int, random: Random) -> Overlay:
    """Return an overlay with a few hubs.

    Each new federator links to `links_each` others, drawn in proportion to the number of their neighbours.
    """
    _at_least(links_each, 1, "scale-free")
    links: list[Pair] = []
    ends: list[int] = [0]
    for new in range(1, count):
        chosen: set[int] = set()
        while len(chosen) < min(links_each, new):
            chosen.add(random.choice(ends))
        for other in sorted(chosen):
            links.append((other, new))
            ends += (other, new)
    return given(range(count), links)


def build(kind: str, count: int, degree: int, random: Random) -> Overlay:
    """Return the overlay that `--overlay KIND` names: a word, `grid:RxC`, or links such as `0-1,1-2`."""
    _at_least(count, 1, kind)
    if count == 1 or kind == "line":
        return line(count)
    if kind == "ring":
        return ring(count) if count > 2 else line(count)
    if kind == "full":
        return full(count)
    if kind == "random":
        return random_regular(count, min(degree, count - 1), random) if count > 2 else line(count)
    if kind == "placement":
        return placement(count, degree, random)
    if kind == "scale-free":
        return scale_free(count, max(2, degree // 2), random)
    if kind == "grid":
        rows = max(k for k in range(1, int(count**0.5) + 1) if count % k == 0)
        return grid(rows, count // rows)
    return _parsed(kind, count)


KINDS = ("random", "ring", "line", "grid", "full", "placement", "scale-free")


def _parsed(text: str, count: int) -> Overlay:
    try:
        if text.startswith("grid:"):
            rows, columns = (int(word) for word in text.removeprefix("grid:").split("x"))
            overlay = grid(rows, columns)
        else:
            ends = [link.split("-") for link in text.split(",")]
            overlay = given(range(count), [(int(one), int(other)) for one, other in ends])
    except ValueError as error:
        expected = f"one of {', '.join(KINDS)}, grid:RxC, or links such as 0-1,1-2"
        raise LocalError(f"Overlay {text!r} was given; expected {expected}.") from error
    if len(overlay.identities) != count:
        raise LocalError(f"Overlay {text!r} has {len(overlay.identities)} brokers, but --brokers says {count}.")
    return overlay


def _paired(count: int, degree: int, random: Random) -> list[Pair] | None:
    """Pair link ends without loops and double links. Return None if the last ones cannot be exchanged."""
    stubs = [identity for identity in range(count) for _ in range(degree)]
    random.shuffle(stubs)
    if len(stubs) % 2:
        stubs.pop()
    links: list[Pair] = []
    taken: set[Pair] = set()
    refused: list[Pair] = []
    for k in range(0, len(stubs), 2):
        link = pair(stubs[k], stubs[k + 1])
        if link[0] == link[1] or link in taken:
            refused.append(link)
        else:
            taken.add(link)
            links.append(link)
    for one, other in refused:
        for _ in range(100):
            place = random.randrange(len(links))
            third, fourth = links[place]
            first, second = pair(one, third), pair(other, fourth)
            if len({one, third}) == 2 and len({other, fourth}) == 2 and not {first, second} & taken and first != second:
                taken.remove(links[place])
                taken.update((first, second))
                links[place] = first
                links.append(second)
                break
        else:
            return None
    return links


def _joined(count: int, links: list[Pair], random: Random) -> bool:
    """Exchange link ends between components until there is one component. Return False if that fails."""
    for _ in range(count):
        found: dict[int, list[int]] = {identity: [] for identity in range(count)}
        for one, other in links:
            found[one].append(other)
            found[other].append(one)
        parts = components(range(count), found.__getitem__)
        if len(parts) == 1:
            return True
        inside = set(parts[0])
        mine = [k for k, link in enumerate(links) if link[0] in inside]
        others = [k for k, link in enumerate(links) if link[0] not in inside]
        if not mine or not others:
            return False
        here, there = random.choice(mine), random.choice(others)
        (one, other), (third, fourth) = links[here], links[there]
        links[here], links[there] = pair(one, third), pair(other, fourth)
    return False


def _at_least(value: int, smallest: int, what: str) -> None:
    if value < smallest:
        raise LocalError(f"An overlay {what!r} was requested with {value}; it must be at least {smallest}.")
