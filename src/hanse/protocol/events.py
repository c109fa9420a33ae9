"""The events of a federator. `Machine.step(now, event)` takes one of these."""

from dataclasses import dataclass

from hanse.errors import LocalError
from hanse.protocol.messages import ControlFrame, Run, Summary
from hanse.protocol.settings import RANK_MAX


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A link to a neighbour is up: frames can cross it in both directions."""

    neighbour: int


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A link is lost. `is_removed`: the link is no longer in the overlay, so nothing is kept for the neighbour."""

    neighbour: int
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """A control frame arrived over the link to `neighbour`."""

    neighbour: int
    frame: ControlFrame


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The host broker's clients are now interested in a filter."""

    filter: str


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The host broker's clients are no longer interested in a filter."""

    filter: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """The manager gives this federator a rank in the election of a group's core."""

    group: str
    rank: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank <= RANK_MAX:
            raise LocalError(f"The rank is {self.rank}; it must be between 0 and {RANK_MAX}.")


@dataclass(frozen=True, slots=True)
class Appointed:
    """The manager wants this federator to claim a group even without local interest, or no longer wants it."""

    group: str
    is_appointed: bool = True


@dataclass(frozen=True, slots=True)
class Tick:
    """`Machine.deadline` has come."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The federator is about to stop and must tell its neighbours."""


@dataclass(frozen=True, slots=True)
class Summarised:
    """A neighbour tells what it has of some groups, and waits for the acknowledgement of this receipt."""

    neighbour: int
    summaries: tuple[Summary, ...]
    receipt: int


@dataclass(frozen=True, slots=True)
class Stored:
    """All records of a destination's outbox up to `end` would survive a power cut."""

    way: int
    end: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of a destination's outbox with their positions: all that exist from the requested start up to `end`."""

    way: int
    records: tuple[tuple[int, tuple[Run, ...]], ...]
    end: int


Event = (
    LinkUp
    | LinkDown
    | Received
    | Subscribed
    | Unsubscribed
    | Ranked
    | Appointed
    | Tick
    | Leave
    | Summarised
    | Stored
    | Fetched
)
