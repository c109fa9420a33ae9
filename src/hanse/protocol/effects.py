"""The effects that `Machine.step` returns, to be carried out in order."""

from dataclasses import dataclass

from hanse.protocol.messages import ControlFrame, Run, Summary


@dataclass(frozen=True, slots=True)
class Send:
    """Send a control frame over the link to `neighbour`."""

    neighbour: int
    frame: ControlFrame


@dataclass(frozen=True, slots=True)
class SendRuns:
    """Send runs, as one data frame, over the link to `neighbour`.

    Its acknowledgement names the token, unless that is 0.
    """

    neighbour: int
    runs: tuple[Run, ...]
    token: int = 0


@dataclass(frozen=True, slots=True)
class SendSummaries:
    """Tell `neighbour` what we have of some groups. Its acknowledgement names the token."""

    neighbour: int
    summaries: tuple[Summary, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Publish runs at the host broker. Its acknowledgement names the token."""

    runs: tuple[Run, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Acknowledge the frames with these receipts to their giver: a neighbour, or the host broker as `HOST`."""

    giver: int
    receipts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Write records to the outbox of a destination, from this position on. Report `Stored` when they are durable.

    Durable means that they would survive a power cut.
    """

    way: int
    position: int
    records: tuple[tuple[Run, ...], ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read records of a destination's outbox from `start` to at most `end`. Report how far it went with `Fetched`."""

    way: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete records of a destination's outbox that are no longer needed."""

    way: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SubscribeHost:
    """Subscribe to a group at the host broker, because another federator wants it."""

    group: str


@dataclass(frozen=True, slots=True)
class UnsubscribeHost:
    """Unsubscribe from a group at the host broker, because no other federator wants it any longer."""

    group: str


@dataclass(frozen=True, slots=True)
class StoreEpoch:
    """Write the epoch to disk before any later effect is carried out."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the link to `neighbour`, which broke a rule that makes the link useless or dangerous."""

    neighbour: int
    reason: str


@dataclass(frozen=True, slots=True)
class Emit:
    """Report an event to telemetry and logs. `name` is one of `effects.EMITTED`."""

    name: str
    group: str = ""
    core: int = -1
    neighbour: int = -1
    detail: str = ""


# Every name that `Emit` can carry, with its meaning.
EMITTED = {
    "core_elected": "this federator claims the group",
    "core_withdrawn": "this federator no longer claims the group",
    "core_lost": "no route to the core was found within an announcement interval",
    "parents_changed": "the parents towards the core are now `detail`",
    "member_joined": "the neighbour joined the group's mesh under the core",
    "member_left": "the neighbour left the group's mesh under the core",
    "neighbour_lost": "we have not heard the neighbour, or it has not heard us, for K announcement intervals",
    "neighbour_left": "the neighbour said that it leaves",
    "epoch_raised": "a neighbour had heard of a later epoch of this federator; its epoch is now `detail`",
    "identity_conflict": "another federator uses this federator's id, or two neighbours use the same id",
    "grouping_differs": "the management group's core advertises the grouping `detail`, not ours",
    "limit_reached": "a limit refused something: `detail`",
}

Effect = (
    Send
    | SendRuns
    | SendSummaries
    | Deliver
    | Acknowledge
    | Store
    | Fetch
    | Discard
    | SubscribeHost
    | UnsubscribeHost
    | StoreEpoch
    | CloseLink
    | Emit
)
