"""A machine that another process runs, as this one sees it (`halves`).

A module of its own, because it is derived from a class that may be compiled, and then has to be so itself.
"""

import math
from typing import NamedTuple

from hanse.protocol.effects import Effect
from hanse.protocol.events import Event
from hanse.protocol.identity import boot_epoch
from hanse.protocol.machine import Machine
from hanse.protocol.settings import Settings


class Told(NamedTuple):
    """What the judge of convergence must know of a machine that runs in the other process."""

    identity: int
    epoch: int
    cores: dict[str, int | None]
    # Core to the epoch in which it is known, the distance, and the parents.
    ways: dict[int, tuple[int | None, int | None, tuple[int, ...]]]
    # Group to the neighbours in its mesh, where the machine is a member.
    meshes: dict[str, tuple[int, ...]]


class Elsewhere(Machine):
    """Stands for a machine that the other process runs: it does nothing, and knows what was last told of it."""

    def __init__(self, identity: int, settings: Settings, *, now: float, wall_s: int, stored_epoch: int = 0) -> None:
        del now
        self.identity = identity
        self.settings = settings
        self.epoch = boot_epoch(stored_epoch, wall_s)
        self.deadline = math.inf

    def start(self, now: float) -> list[Effect]:
        """Nothing is to be done here."""
        del now
        return []

    def step(self, now: float, event: Event) -> list[Effect]:
        """Nothing is to be done here."""
        del now, event
        return []

    def restore(self, now: float, **left: object) -> list[Effect]:
        """Nothing is to be done here."""
        del now, left
        return []

    def tell(self, told: Told) -> None:
        """From now on this is known."""
        self.epoch = told.epoch
        self._told = told

    def cores(self) -> dict[str, int | None]:
        """As it was told."""
        return self._told.cores

    def core_epoch(self, core: int) -> int | None:
        """As it was told."""
        return self._told.ways[core][0]

    def distance_to(self, core: int) -> int | None:
        """As it was told."""
        return self._told.ways[core][1]

    def parents_of(self, core: int) -> tuple[int, ...]:
        """As it was told."""
        return self._told.ways[core][2]

    def is_member(self, group: str) -> bool:
        """As it was told."""
        return group in self._told.meshes

    def mesh_neighbours(self, group: str) -> tuple[int, ...]:
        """As it was told."""
        return self._told.meshes.get(group, ())
