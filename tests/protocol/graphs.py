"""Small random overlays and their properties."""

from collections import deque
from collections.abc import Iterable

from hypothesis import strategies as st

Link = tuple[int, int]


@st.composite
def connected(draw: st.DrawFn, brokers_max: int = 8) -> tuple[int, list[Link]]:
    """Draw a number of brokers and links that connect them: a random tree and some further links."""
    size = draw(st.integers(2, brokers_max))
    links = {(draw(st.integers(0, broker - 1)), broker) for broker in range(1, size)}
    extra = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    for one, other in draw(st.lists(extra, max_size=size)):
        if one != other:
            links.add((min(one, other), max(one, other)))
    return size, sorted(links)


def both_ways(links: Iterable[Link]) -> list[Link]:
    return [way for one, other in links for way in ((one, other), (other, one))]


def distances(links: Iterable[Link], source: int) -> dict[int, int]:
    """Return the hops from one broker to all that it reaches."""
    around: dict[int, list[int]] = {}
    for one, other in both_ways(links):
        around.setdefault(one, []).append(other)
    found, queue = {source: 0}, deque([source])
    while queue:
        here = queue.popleft()
        for there in around.get(here, ()):
            if there not in found:
                found[there] = found[here] + 1
                queue.append(there)
    return found
