"""Events of a client's connection, for logs and displays."""

from dataclasses import dataclass

from hanse.errors import HanseError


@dataclass(frozen=True, slots=True)
class Connected:
    """Acceptance by a broker. Subscriptions and unacknowledged publications follow by themselves."""

    address: str
    session_present: bool


@dataclass(frozen=True, slots=True)
class Disconnected:
    """End of a connection, or of an attempt. The client tries again."""

    address: str
    error: HanseError | None


@dataclass(frozen=True, slots=True)
class Redirected:
    """Server Reference that the client follows: its next attempt goes to `target`.

    `reason_code` is 0x9C (for one connection) or 0x9D (for good).
    """

    address: str
    target: str
    reason_code: int


Event = Connected | Disconnected | Redirected
