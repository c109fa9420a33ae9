"""Links between simulated federators: latency, breaks, silence, one-way loss, noise.

Rules:
- A link is a connection like TCP's: ordered and lossless until it breaks, and then everything in flight is lost.
  `generation` tells frames of an old connection from those of the new one.
- A *silent* direction (a cut without a reset) holds frames back. They arrive late if it opens again in time. Otherwise
  both ends give up the connection.
- A *deaf* direction drops everything and tells nobody: the neighbour can be heard but does not hear.
- Noise is for carriers of datagrams. Frames are lost, late or repeated. Frames with only QoS 0, for which nobody has
  custody, are only late or repeated.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hanse.sim.overlay import Pair

# Frames per direction that a noisy link remembers, to repeat one of them at any later time.
REMEMBERED_FRAMES = 16


@dataclass(frozen=True, slots=True)
class Noise:
    """Behaviour of a carrier of datagrams, as shares of the frames."""

    loss: float = 0.0
    reorder: float = 0.0
    replay: float = 0.0
    # A frame that is out of order is at most this late.
    delay_s_max: float = 0.5


class Direction:
    """One direction of a link."""

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
        # Number of faults that hold frames back, and number of faults that drop them.
        self.silent = 0
        self.deaf = 0
        # True if the target has been told that the link is up.
        self.is_known = False
        # True while the direction has no fault. This is the only test per frame on the fast path.
        self.is_plain = True
        self.stalled: list[Any] = []
        self.remembered: list[Any] = []

    def settle(self) -> None:
        """Update `is_plain`. The caller does this after every change of a fault."""
        self.is_plain = not (self.silent or self.deaf or self.link.noise)


class Link:
    """Connection between two federators, up or down."""

    __slots__ = ("closed", "directions", "ends", "generation", "is_up", "noise")

    def __init__(self, ends: "Pair", latency_s: float) -> None:
        self.ends = ends
        self.is_up = False
        self.generation = 0
        # Number of faults that keep the link closed. It is up only when there are none and both ends run.
        self.closed = 0
        self.noise: Noise | None = None
        one, other = ends
        self.directions = (Direction(self, one, other, latency_s), Direction(self, other, one, latency_s))

    @property
    def can_connect(self) -> bool:
        """True if frames would pass in both directions."""
        return not self.closed and not any(way.silent for way in self.directions)

    def direction_to(self, target: int) -> Direction:
        """Return the direction that leads to one of the ends."""
        return self.directions[0] if self.directions[0].target == target else self.directions[1]

    def set_noise(self, noise: Noise | None) -> None:
        """Switch noise on or off."""
        self.noise = noise
        for way in self.directions:
            way.remembered.clear()
            way.settle()
