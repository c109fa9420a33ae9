"""What an adapter can report, as data.

A report says only what its source knows. Mosquitto's log says that a client with a clean session left, so that its
subscriptions are gone; of an MQTT 5 client it cannot say, so the report says `Session.UNKNOWN` and the registry
decides how long to keep what it knew.
"""

import enum
from dataclasses import dataclass


class Session(enum.Enum):
    """What becomes of a client's subscriptions when it is not connected."""

    ENDED = "ended"
    KEPT = "kept"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A client holds a subscription from now on.

    Attributes:
        client: the client id, or a name of the adapter's own where the source tells none.
        filter: as the client wrote it, `$share/<name>/` included.
        qos: granted at most.
        ttl_s: forget it unless it is reported again within this time; None where the source tells of its end.
    """

    client: str
    filter: str
    qos: int
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A client gave a subscription back (or said so without ever having had it)."""

    client: str
    filter: str


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """A client's connection ended.

    Attributes:
        session: what becomes of its subscriptions.
        ttl_s: a kept session ends after this time; None if the source reports its end.
    """

    client: str
    session: Session
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClientBack:
    """A client connected. `session_kept` is False when it asked for a clean start: what it held before is gone."""

    client: str
    session_kept: bool


@dataclass(frozen=True, slots=True)
class BridgeSeen:
    """A bridge of the broker's own is up: what we deliver here may come back by it, as a foreign loop."""

    name: str


@dataclass(frozen=True, slots=True)
class BridgeGone:
    """A bridge of the broker's own went down."""

    name: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Reports may have been missed: all that is known from this source is unconfirmed from now on."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Everything that is known from this source holds now, as its own count of subscriptions shows."""


Report = Subscribed | Unsubscribed | ClientLeft | ClientBack | BridgeSeen | BridgeGone | Gap | Confirmed
