"""Messages between federators about retained state. `codec` gives each its bytes."""

from typing import NamedTuple

from hanse.protocol.retained.versions import Version


class Change(NamedTuple):
    """One topic's value with its version; an empty `value` is a deletion."""

    topic: str
    version: Version
    value: bytes


class Cursor(NamedTuple):
    """Position up to which the asker has applied one federator's change feed."""

    federator: int
    epoch: int
    sequence: int


class Fetch(NamedTuple):
    """Request for everything that is retained under some filters, and has changed since the cursors."""

    number: int
    filters: tuple[str, ...]
    cursors: tuple[Cursor, ...] = ()


class Answer(NamedTuple):
    """Part of the answer to a fetch: changes in the order of the feed, up to `sequence` of the answerer's `epoch`."""

    number: int
    epoch: int
    sequence: int
    is_last: bool
    changes: tuple[Change, ...] = ()


class Push(NamedTuple):
    """Values that are newer than those in the receiver's answer."""

    changes: tuple[Change, ...]


class Rejoined(NamedTuple):
    """Note that a link of the sender is back: federators behind it may have missed something."""

    neighbour: int


Message = Fetch | Answer | Push | Rejoined
