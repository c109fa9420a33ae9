"""Stand-in for a machine that another process runs (`halves`).

It has a module of its own because it derives from a class that may be compiled, and must then be compiled as well.
"""

import math
from typing import NamedTuple

from hanse.protocol.effects import Effect
from hanse.protocol.events import Event
from hanse.protocol.identity import boot_epoch
from hanse.protocol.machine import Machine
from hanse.protocol.settings import Settings


class Told(NamedTuple):
    """State of a machine in the other process, as far as the check of convergence needs it."""

    identity: int
    epoch: int
    cores: dict[str, int | None]
    # Core to its known epoch, the distance, and the parents.
    ways: dict[int, tuple[int | None, int | None, tuple[int, ...]]]
    # Group to mesh neighbours, if the machine is a member.
    meshes: dict[str, tuple[int, ...]]


class Elsewhere(Machine):
    """Stand-in that does nothing and answers with the state that it was last told."""

    def __init__(self, identity: int, settings: Settings, *, now: float, wall_s: int, stored_epoch: int = 0) -> None:
        del now
        self.identity = identity
        self.settings = settings
        self.epoch = boot_epoch(stored_epoch, wall_s)
        self.deadline = math.inf

    def start(self, now: float) -> list[Effect]:
        """Do nothing."""
        del now
        return []

    def step(self, now: float, event: Event) -> list[Effect]:
        """Do nothing."""
        del now, event
        return []

    def restore(self, now: float, **left: object) -> list[Effect]:
        """Do nothing."""
        del now, left
        return []

    def tell(self, told: Told) -> None:
        """Replace the known state."""
        self.epoch = told.epoch
        self._told = told

    def cores(self) -> dict[str, int | None]:
        """Return the known cores."""
        return self._told.cores

    def core_epoch(self, core: int) -> int | None:
        """Return the known epoch of a core."""
        return self._told.ways[core][0]

    def distance_to(self, core: int) -> int | None:
        """Return the known distance to a core."""
        return self._told.ways[core][1]

    def parents_of(self, core: int) -> tuple[int, ...]:
        """Return the known parents towards a core."""
        return self._told.ways[core][2]

    def is_member(self, group: str) -> bool:
        """Return whether the federator is known as a member of the group's mesh."""
        return group in self._told.meshes

    def mesh_neighbours(self, group: str) -> tuple[int, ...]:
        """Return the known neighbours in the group's mesh."""
        return self._told.meshes.get(group, ())
