"""Frames on a second link do not overtake the first link's frames that nobody has read yet."""

import asyncio

from hanse.federator import turns as module
from hanse.federator.turns import HELD_FRAMES_MAX, Turns
from hanse.mqtt.link import Frame

ORIGIN, USUAL, OTHER = 9, 1, 2


def frames(*names: str) -> list[Frame]:
    return [Frame.of(name, b"") for name in names]


class Desk:
    """Two neighbours, either of which may have unread data."""

    def __init__(self) -> None:
        self.unread: set[int] = set()
        self.taken: list[tuple[int, list[str]]] = []
        self.turns = Turns(self.unread.__contains__, self._take)
        self.turns.note_new(ORIGIN, USUAL)

    def _take(self, neighbour: int, taken: list[Frame]) -> None:
        assert not self.turns.is_early(neighbour, ORIGIN), "it has waited"
        self.taken.append((neighbour, [frame.topic for frame in taken]))


def test_frames_on_the_usual_link_or_behind_an_empty_one_never_wait() -> None:
    async def steps() -> None:
        desk = Desk()
        assert not desk.turns.is_early(OTHER, ORIGIN)
        desk.unread.add(USUAL)
        assert not desk.turns.is_early(USUAL, ORIGIN)
        assert not desk.turns.is_early(OTHER, ORIGIN + 1), "of that origin nobody has brought anything"
        assert desk.turns.is_early(OTHER, ORIGIN)

    asyncio.run(steps())


def test_an_early_frame_waits_with_all_later_ones_until_the_usual_link_has_been_read() -> None:
    async def steps() -> None:
        desk = Desk()
        desk.unread.add(USUAL)
        desk.turns.hold(OTHER, ORIGIN, frames("a"))
        desk.turns.join(OTHER, frames("b", "c"))
        desk.turns.note_read(OTHER)
        assert desk.taken == []
        desk.turns.note_read(USUAL)
        assert desk.taken == [(OTHER, ["a", "b", "c"])]
        assert not desk.turns.held

    asyncio.run(steps())


def test_an_early_frame_does_not_wait_for_an_empty_link() -> None:
    async def steps() -> None:
        desk = Desk()
        desk.unread.add(USUAL)
        desk.turns.hold(OTHER, ORIGIN, frames("a"))
        await asyncio.sleep(0.005)
        assert desk.taken == []
        desk.unread.clear()
        await asyncio.sleep(0.02)
        assert desk.taken == [(OTHER, ["a"])]

    asyncio.run(steps())


def test_no_frame_waits_for_ever() -> None:
    async def steps() -> None:
        desk = Desk()
        desk.unread.add(USUAL)
        desk.turns.hold(OTHER, ORIGIN, frames("a"))
        async with asyncio.timeout(5.0):
            while not desk.taken:  # noqa: ASYNC110 - the code under test sets no event
                await asyncio.sleep(0.01)

    asyncio.run(steps())


def test_frames_beyond_the_limit_do_not_wait() -> None:
    async def steps() -> None:
        desk = Desk()
        desk.unread.add(USUAL)
        desk.turns.hold(OTHER, ORIGIN, frames("a"))
        desk.turns.join(OTHER, frames(*"b" * HELD_FRAMES_MAX))
        assert len(desk.taken[0][1]) == HELD_FRAMES_MAX + 1

    asyncio.run(steps())


def test_the_memory_of_origins_is_limited() -> None:
    async def steps() -> None:
        desk = Desk()
        for origin in range(module.ORIGINS_MAX + 10):
            desk.turns.note_new(origin, USUAL)
        assert len(desk.turns.came_by) <= module.ORIGINS_MAX

    asyncio.run(steps())
