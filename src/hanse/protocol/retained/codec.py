"""Bytes of the messages, as docs/protocol.md defines them, and of the book's records.

A decoder accepts exactly the output of an encoder. Nothing is allocated because a peer claims a size: a count is
checked against the remaining bytes.
"""

from collections.abc import Callable
from typing import TypeVar, assert_never

from hanse.errors import RemoteError
from hanse.protocol import topics
from hanse.protocol.codec import VERSION
from hanse.protocol.codec import _Reader as Reader
from hanse.protocol.codec import _text as put_text
from hanse.protocol.codec import _varint as put_number
from hanse.protocol.packets import check_body, topic_of
from hanse.protocol.retained.book import Entry, Injection
from hanse.protocol.retained.messages import Answer, Change, Cursor, Fetch, Message, Push, Rejoined
from hanse.protocol.retained.versions import Version

# Type byte of a message.
FETCH, ANSWER, PUSH, REJOINED = range(16, 20)
# Changes in one message; a change may be as large as a publication.
CHANGES_MAX = 1_000
FILTERS_MAX = 64
CURSORS_MAX = 1_000
_LAST = 1
_KEPT = 4

_Item = TypeVar("_Item")


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    match message:
        case Fetch(number, filters, cursors):
            return b"".join(
                (
                    bytes((VERSION, FETCH)),
                    put_number(number),
                    _put_filters(filters),
                    put_number(len(cursors)),
                    *(put_number(value) for cursor in cursors for value in cursor),
                )
            )
        case Answer(number, epoch, sequence, is_last, changes):
            head = bytes((VERSION, ANSWER, is_last * _LAST))
            return head + b"".join(map(put_number, (number, epoch, sequence))) + _put_changes(changes)
        case Push(changes):
            return bytes((VERSION, PUSH)) + _put_changes(changes)
        case Rejoined(neighbour):
            return bytes((VERSION, REJOINED)) + put_number(neighbour)
        case _:
            assert_never(message)


def decode(data: bytes) -> Message:
    """Return the message that these bytes hold.

    Raises:
        RemoteError: No encoder makes these bytes.
    """
    reader = Reader(data)
    version, kind = reader.byte(), reader.byte()
    if version != VERSION or kind not in _READERS:
        raise RemoteError(
            f"A message about retained state has version {version} and type {kind}; expected version {VERSION} and "
            f"types {FETCH} to {REJOINED}."
        )
    message = _READERS[kind](reader)
    reader.finish()
    return message


def _put_filters(filters: tuple[str, ...]) -> bytes:
    return put_number(len(filters)) + b"".join(map(put_text, filters))


def _put_changes(changes: tuple[Change, ...]) -> bytes:
    out = [put_number(len(changes))]
    for topic, version, value in changes:
        out += (put_text(topic), put_number(version.stamp), put_number(version.federator))
        out += (put_number(len(value)), value)
    return b"".join(out)


def _many(reader: Reader, largest: int, what: str, read: Callable[[Reader], _Item]) -> tuple[_Item, ...]:
    count = reader.varint(min(largest, reader.left), f"number of {what}")
    return tuple([read(reader) for _ in range(count)])


def _flags(reader: Reader, known: int) -> int:
    flags = reader.byte()
    if flags > known:
        raise RemoteError(f"A message about retained state has flags {flags:#x}; expected {known:#x}.")
    return flags


def _get_change(reader: Reader) -> Change:
    topic = reader.text("topic")
    topics.check_name(topic)
    version = Version(reader.sequence("stamp"), reader.federator())
    value = reader.raw(reader.varint(reader.left, "length of a value"), "value")
    if value:
        check_body(value, 1, value[0] >> 1 & 3)
        if topic_of(value) != topic:
            raise RemoteError("A change names another topic than its packet does; it is malformed.")
    return Change(topic, version, value)


def _get_changes(reader: Reader) -> tuple[Change, ...]:
    return _many(reader, CHANGES_MAX, "changes", _get_change)


def _get_filters(reader: Reader) -> tuple[str, ...]:
    return _many(reader, FILTERS_MAX, "filters", Reader.group)


def _get_cursor(reader: Reader) -> Cursor:
    return Cursor(reader.federator(), reader.epoch(), reader.sequence())


def _get_fetch(reader: Reader) -> Fetch:
    number, filters = reader.sequence("number"), _get_filters(reader)
    return Fetch(number, filters, _many(reader, CURSORS_MAX, "cursors", _get_cursor))


def _get_answer(reader: Reader) -> Answer:
    is_last = bool(_flags(reader, _LAST))
    number, epoch, sequence = reader.sequence("number"), reader.epoch(), reader.sequence()
    return Answer(number, epoch, sequence, is_last, _get_changes(reader))


_READERS: dict[int, Callable[[Reader], Message]] = {
    FETCH: _get_fetch,
    ANSWER: _get_answer,
    PUSH: lambda reader: Push(_get_changes(reader)),
    REJOINED: lambda reader: Rejoined(reader.federator()),
}


# --- records of the book ---------------------------------------------------------------------------------------------


def encode_entry(entry: Entry) -> bytes:
    """Return the record of one topic."""
    out = [bytes((1, entry.qos | entry.is_kept * _KEPT)), _put_version(entry.version), put_number(entry.digest)]
    out += (_put_version(entry.host), put_number(entry.host_digest))
    out += (put_number(entry.sequence), put_number(entry.changed_ms), put_number(len(entry.priors)))
    out += map(put_number, entry.priors)
    out.append(put_number(len(entry.recent)))
    for at_ms, digest, version in entry.recent:
        out += (put_number(at_ms), put_number(digest), _put_version(version))
    return b"".join(out)


def decode_entry(data: bytes) -> Entry:
    """Return the entry of a record.

    Raises:
        RemoteError: It is damaged.
    """
    reader = Reader(data)
    if reader.byte() != 1:
        raise RemoteError("A record of the book is of an unknown version.")
    flags = _flags(reader, 2 | _KEPT)
    version, digest = _get_version(reader), _get_digest(reader)
    host, host_digest = _get_version(reader), _get_digest(reader)
    sequence, changed_ms = reader.sequence(), reader.sequence("time")
    priors = _many(reader, reader.left, "priors", _get_digest)
    recent = _many(
        reader,
        reader.left,
        "injections",
        lambda reader: Injection(reader.sequence("time"), _get_digest(reader), _get_version(reader)),
    )
    reader.finish()
    qos, is_kept = flags & ~_KEPT, flags & _KEPT != 0
    return Entry(version, digest, host, host_digest, sequence, changed_ms, priors, recent, qos, is_kept)


def encode_numbers(*values: int) -> bytes:
    """Return a record of numbers."""
    return b"".join(map(put_number, values))


def decode_numbers(data: bytes, count: int) -> list[int]:
    """Return the numbers of such a record.

    Raises:
        RemoteError: It is damaged.
    """
    reader = Reader(data)
    values = [reader.sequence() for _ in range(count)]
    reader.finish()
    return values


def _put_version(version: Version | None) -> bytes:
    return b"\0" if version is None else b"\1" + put_number(version.stamp) + put_number(version.federator)


def _get_version(reader: Reader) -> Version | None:
    return Version(reader.sequence("stamp"), reader.federator()) if reader.varint(1, "mark of a version") else None


def _get_digest(reader: Reader) -> int:
    return reader.varint((1 << 63) - 1, "digest")
