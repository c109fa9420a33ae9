"""Events for the keeper of retained state. `Keeper.step(now, wall_ms, event)` takes one of these."""

from collections.abc import Mapping
from dataclasses import dataclass

from hanse.protocol.retained.messages import Message


@dataclass(frozen=True, slots=True)
class Wanted:
    """Clients of the host broker are interested in filters."""

    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The last client that was interested in a filter is gone."""

    filter: str


@dataclass(frozen=True, slots=True)
class Granted:
    """The host broker holds our subscription to a filter, without a gap since the last unheard write."""

    filter: str


@dataclass(frozen=True, slots=True)
class Ended:
    """This federator is no longer subscribed to a filter at the host broker."""

    filter: str


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The host broker has lost the session; it held it until `at_ms` at least."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class HostRestarted:
    """The host broker has restarted, perhaps with older files."""


@dataclass(frozen=True, slots=True)
class HostUp:
    """The host broker can be looked at, or no longer."""

    is_up: bool = True


@dataclass(frozen=True, slots=True)
class Looked:
    """A look is complete: the retained messages of the host broker under its filters, as packets by topic.

    `unclear`: topics about which it says nothing.
    """

    number: int
    found: Mapping[str, bytes]
    unclear: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LookFailed:
    """A look could not be completed."""

    number: int


@dataclass(frozen=True, slots=True)
class Injected:
    """The host broker has acknowledged these injections."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The connection ended before the host broker acknowledged these injections: they may never have arrived."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The host broker refuses these injections."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Touched:
    """Clients published on these topics at a host broker that does not mark retained publications."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A message of another federator."""

    sender: int
    message: Message


@dataclass(frozen=True, slots=True)
class LinkRestored:
    """The link to a neighbour is up again."""

    neighbour: int


@dataclass(frozen=True, slots=True)
class Tick:
    """`Keeper.deadline` has come."""


Event = (
    Wanted
    | Unwanted
    | Granted
    | Ended
    | SessionLost
    | HostRestarted
    | HostUp
    | Looked
    | LookFailed
    | Injected
    | Uncertain
    | Refused
    | Touched
    | Received
    | LinkRestored
    | Tick
)
