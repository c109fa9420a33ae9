"""Links between simulated federators: latency, breaks, silence, one-way loss, noise.

Rules:
- A link is a connection, as TCP gives it: ordered and lossless until it breaks, and then everything in flight is
  gone (`generation` tells frames of an old connection from those of the new one).
- A *silent* way (a cut that sends no reset) holds frames back. They arrive late if it opens again in time; else
  both ends give the connection up.
- `deaf` drops what goes one way and tells nobody: the link of a neighbour that can be heard but does not hear.
- Noise is for datagram-like carriers: frames are lost, late or repeated; those that hold only QoS 0, for which nobody
  has custody, late or repeated.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hanse.sim.overlay import Pair

# Frames of a direction that a noisy link remembers, to repeat one of them at any later time.
REMEMBERED_FRAMES = 16


@dataclass(frozen=True, slots=True)
class Noise:
    """What a datagram-like carrier does, as shares of the frames."""

    loss: float = 0.0
    reorder: float = 0.0
    replay: float = 0.0
    # A frame that is out of order comes up to this much later.
    delay_s_max: float = 0.5


class Direction:
    """One way of a link."""

    __slots__ = (
        "deaf",
        "is_known",
        "is_plain",
        "latency_s",
        "link",
        "remembered",
        "silent",
        "source",
        "stalled",
        "target",
    )

    def __init__(self, link: "Link", source: int, target: int, latency_s: float) -> None:
        self.link = link
        self.source = source
        self.target = target
        self.latency_s = latency_s
        # Faults that hold frames back, and faults that drop them.
        self.silent = 0
        self.deaf = 0
        # Whether the target has been told that the link stands.
        self.is_known = False
        # True while nothing special is on: the one test that a frame costs on the fast path.
        self.is_plain = True
        self.stalled: list[Any] = []
        self.remembered: list[Any] = []

    def settle(self) -> None:
        """To be called whenever something was switched on or off."""
        self.is_plain = not (self.silent or self.deaf or self.link.noise)


class Link:
    """The connection between two federators, up or down."""

    __slots__ = ("closed", "directions", "ends", "generation", "is_up", "noise")

    def __init__(self, ends: "Pair", latency_s: float) -> None:
        self.ends = ends
        self.is_up = False
        self.generation = 0
        # Faults that hold the link closed; it stands only when none does and both ends run.
        self.closed = 0
        self.noise: Noise | None = None
        one, other = ends
        self.directions = (Direction(self, one, other, latency_s), Direction(self, other, one, latency_s))

    @property
    def can_connect(self) -> bool:
        """Whether frames would pass both ways."""
        return not self.closed and not any(way.silent for way in self.directions)

    def direction_to(self, target: int) -> Direction:
        """The way that leads to one of the ends."""
        return self.directions[0] if self.directions[0].target == target else self.directions[1]

    def set_noise(self, noise: Noise | None) -> None:
        """Switch noise on or off."""
        self.noise = noise
        for way in self.directions:
            way.remembered.clear()
            way.settle()
