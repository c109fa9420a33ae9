"""Whose turn it is, where publications of one origin come by two links: the older ones are to be read first.

A publication may come by several links, and the first copy counts (R47). What a link has brought waits in the kernel
while its reads are gathered (`hanse.mqtt.gathering`), or while another link's are handled. When interest elsewhere
opens a second way meanwhile, its first frames would overtake that: at 5,000 messages a second 2 in 250 changes of far
filters put a few messages out of order, and at 20,000 some hundred.

Rules:

- What a link brings of an origin waits while the link that brought something new of that origin last has something
  unread: until that has been read, or for `HELD_S_MAX`.
- Who waits does so with all that comes after it on its link. More than `HELD_FRAMES_MAX` frames do not wait.
- When a link ends nobody waits: what it brought is taken before its end.
"""

import asyncio
from collections.abc import Callable

from hanse.mqtt.link import Frame

# A pause is 5 ms at most; a process that was starved takes longer to end it.
HELD_S_MAX = 0.05
HELD_FRAMES_MAX = 256
_LOOK_EVERY_S = 0.002

# Ids come from neighbours: an honest federation has fewer federators than this.
ORIGINS_MAX = 16_384


class Turns:
    """What waits at one federator.

    Args:
        has_unread: whether a neighbour has sent something that nobody has read yet.
        take: takes a neighbour's frames.

    Attributes:
        held: By neighbour, the frames that wait.
        came_by: By origin, the neighbour that brought something new of it last.
    """

    def __init__(self, has_unread: Callable[[int], bool], take: Callable[[int, list[Frame]], None]) -> None:
        self._has_unread = has_unread
        self._take = take
        self._loop = asyncio.get_running_loop()
        self.came_by: dict[int, int] = {}
        self.held: dict[int, list[Frame]] = {}
        self._awaited: set[int] = set()
        self._until = 0.0
        self._is_releasing = False

    def note_new(self, origin: int, neighbour: int) -> None:
        """A link brought something new of an origin."""
        if len(self.came_by) >= ORIGINS_MAX and origin not in self.came_by:
            self.came_by.clear()
        self.came_by[origin] = neighbour

    def is_early(self, neighbour: int, origin: int) -> bool:
        """Whether what a link brings of an origin is to wait for what another one may have brought before."""
        usual = self.came_by.get(origin, neighbour)
        return usual != neighbour and not self._is_releasing and self._has_unread(usual)

    def hold(self, neighbour: int, origin: int, frames: list[Frame]) -> None:
        """Let frames wait, of which the first is early."""
        if not self.held:
            self._until = self._loop.time() + HELD_S_MAX
            self._loop.call_later(_LOOK_EVERY_S, self._look)
        self._awaited.add(self.came_by[origin])
        self.held[neighbour] = frames

    def join(self, neighbour: int, frames: list[Frame]) -> None:
        """Let frames wait behind others of their link."""
        self.held[neighbour] += frames
        if len(self.held[neighbour]) > HELD_FRAMES_MAX:
            self.release()

    def note_read(self, neighbour: int) -> None:
        """A link has been read: it was the turn of what it brought."""
        if neighbour in self._awaited:
            self.release()

    def release(self) -> None:
        """Nobody waits any longer."""
        held, self.held = self.held, {}
        self._awaited.clear()
        self._is_releasing = True
        try:
            for neighbour, frames in held.items():
                self._take(neighbour, frames)
        finally:
            self._is_releasing = False

    def _look(self) -> None:
        """Now and then while somebody waits: whether there is still something to wait for."""
        if not self.held:
            return
        if self._loop.time() < self._until and any(map(self._has_unread, self._awaited)):
            self._loop.call_later(_LOOK_EVERY_S, self._look)
        else:
            self.release()
