"""Effects of the keeper of retained state, in order."""

from dataclasses import dataclass

from hanse.protocol.retained.messages import Message

# Receiver of a message for all federators.
EVERYBODY = -1


@dataclass(frozen=True, slots=True)
class Keep:
    """Write records to the book on disk before any later effect is carried out; an empty value removes the key."""

    records: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Inject:
    """Publish a packet at the host broker with RETAIN; report `Injected` with the number when it is acknowledged."""

    number: int
    topic: str
    packet: bytes


@dataclass(frozen=True, slots=True)
class Look:
    """Read the retained messages of the host broker under some filters; report `Looked` or `LookFailed`."""

    number: int
    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """Publish a message found at the host broker to the groups of its topic, with this stamp in the run header."""

    topic: str
    packet: bytes
    stamp: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to one federator, or to `EVERYBODY`."""

    receiver: int
    message: Message


@dataclass(frozen=True, slots=True)
class Release:
    """Interest in a filter has ended for good: tell the protocol."""

    filter: str


Effect = Keep | Inject | Look | Spread | Tell | Release
