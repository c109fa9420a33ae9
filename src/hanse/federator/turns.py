"""Order of reading, if publications of one origin arrive over two links: the older ones must be read first.

A publication may arrive over several links, and the first arrival counts (R47). Data of a link waits in the kernel
while reads are gathered (`hanse.mqtt.gathering`), or while another link's are handled. If interest elsewhere opens a
second route meanwhile, its first frames would overtake that data. At 5,000 messages per second, 2 in 250 changes of
distant filters reordered a few messages, at 20,000 some hundred.

Rules:

- A link's frame of an origin waits while the link that last brought something new of that origin has unread data: until
  that has been read, or for `HELD_S_MAX`.
- A waiting frame delays all later ones of its link. Beyond `HELD_FRAMES_MAX` frames, none waits.
- When a link ends, nothing waits: its frames are handled before its end.
"""

import asyncio
from collections.abc import Callable

from hanse.mqtt.link import Frame

# A pause is 5 ms at most. A starved process takes longer to end it.
HELD_S_MAX = 0.05
HELD_FRAMES_MAX = 256
_LOOK_EVERY_S = 0.002

# Ids come from neighbours: an honest federation has fewer federators than this.
ORIGINS_MAX = 16_384


class Turns:
    """Waiting frames of one federator.

    Args:
        has_unread: function that returns whether a neighbour has sent data that nobody has read yet.
        take: function that handles a neighbour's frames.

    Attributes:
        held: Waiting frames by neighbour.
        came_by: By origin, the neighbour that last brought something new of it.
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
        """Note that a link brought something new of an origin."""
        if len(self.came_by) >= ORIGINS_MAX and origin not in self.came_by:
            self.came_by.clear()
        self.came_by[origin] = neighbour

    def is_early(self, neighbour: int, origin: int) -> bool:
        """Return whether a link's frame of an origin must wait for older data of another link."""
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
        """Note that a link has been read, so frames that waited for it may go."""
        if neighbour in self._awaited:
            self.release()

    def release(self) -> None:
        """Let nothing wait any longer."""
        held, self.held = self.held, {}
        self._awaited.clear()
        self._is_releasing = True
        try:
            for neighbour, frames in held.items():
                self._take(neighbour, frames)
        finally:
            self._is_releasing = False

    def _look(self) -> None:
        """Check now and then, while frames wait, whether there is still a reason."""
        if not self.held:
            return
        if self._loop.time() < self._until and any(map(self._has_unread, self._awaited)):
            self._loop.call_later(_LOOK_EVERY_S, self._look)
        else:
            self.release()
