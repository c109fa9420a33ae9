"""Reports of adapters, as data.

A report contains only the knowledge of its source. Mosquitto's log says that a client with a clean session left, so its
subscriptions are gone. For an MQTT 5 client it cannot say so. The report then has `Session.UNKNOWN`, and the registry
decides how long to keep the subscriptions.
"""

import enum
from dataclasses import dataclass


class Session(enum.Enum):
    """Fate of a client's subscriptions while it is not connected."""

    ENDED = "ended"
    KEPT = "kept"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A client holds a subscription from now on.

    Attributes:
        client: the client id, or a name chosen by the adapter if the source gives none.
        filter: the filter as the client wrote it, `$share/<name>/` included.
        qos: granted QoS.
        ttl_s: lifetime of the subscription unless it is reported again; None if the source reports its end.
    """

    client: str
    filter: str
    qos: int
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A client ended a subscription (or tried to end one that it never had)."""

    client: str
    filter: str


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """A client's connection ended.

    Attributes:
        session: fate of its subscriptions.
        ttl_s: a kept session ends after this time; None if the source reports its end.
    """

    client: str
    session: Session
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClientBack:
    """A client connected. `session_kept` is False for a clean start, which ends its former subscriptions."""

    client: str
    session_kept: bool


@dataclass(frozen=True, slots=True)
class BridgeSeen:
    """A bridge of the broker itself is up. It may send deliveries back, as a foreign loop."""

    name: str


@dataclass(frozen=True, slots=True)
class BridgeGone:
    """A bridge of the broker itself went down."""

    name: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Reports may have been missed: all interest of this source is unconfirmed from now on."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The interest of this source is current, or at least its own count of subscriptions shows no end of any."""


Report = Subscribed | Unsubscribed | ClientLeft | ClientBack | BridgeSeen | BridgeGone | Gap | Confirmed
