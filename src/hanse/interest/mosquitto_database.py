"""Subscriptions of persistent sessions, from Mosquitto's database (`mosquitto.db`, format 6 of versions 2.0 and 2.1).

The file begins with a mark, a checksum that is 0, and the format. Chunks follow, each with a kind and a length; numbers
are big-endian. Two kinds matter here:

    client (6)        8 bytes: end of the session in seconds, in the machine's byte order
                      4: session expiry interval; 2: last packet identifier; 2: length of the client id
                      2: port; 2: length of the user name; 4: unused; client id; user name
    subscription (5)  4: identifier; 2: length of the client id; 2: length of the filter
                      1: QoS; 1: options; 2: unused; client id; filter

Rules:

1. The file lacks clean sessions, shared subscriptions, and everything since it was last saved. It may contain what has
   ended since. So it gives hints, and no list that is complete.
2. Subscriptions of sessions that have expired are left out.
"""

import struct
import sys
from collections.abc import Iterator

from hanse.errors import RemoteError

FORMAT = 6
_MARK = b"\x00\xb5\x00mosquitto db"
_HEAD = struct.Struct(">II")
_SUBSCRIPTION = struct.Struct(">IHHBBxx")
_CLIENT = struct.Struct(">IHHHHxxxx")
_KIND_SUBSCRIPTION = 5
_KIND_CLIENT = 6
_TIME_BYTES = 8
_NO_EXPIRY = 0xFFFF_FFFF


def parse(data: bytes, wall_s: float) -> list[tuple[str, str, int]]:
    """Return client, filter and QoS of the subscriptions in a database.

    Raises:
        RemoteError: the data is not a database of this format, or breaks off.
    """
    if not data.startswith(_MARK) or len(data) < len(_MARK) + _HEAD.size:
        raise RemoteError("It is not a database of Mosquitto.")
    _, version = _HEAD.unpack_from(data, len(_MARK))
    if version != FORMAT:
        raise RemoteError(f"It is a database of format {version}; {FORMAT} can be read.")
    found: list[tuple[str, str, int]] = []
    ended: set[str] = set()
    for kind, body in _chunks(data, len(_MARK) + _HEAD.size):
        try:
            if kind == _KIND_SUBSCRIPTION:
                _, client_length, filter_length, qos, _ = _SUBSCRIPTION.unpack_from(body)
                client, end = _text(body, _SUBSCRIPTION.size, client_length)
                wanted, _ = _text(body, end, filter_length)
                found.append((client, wanted, min(qos, 2)))
            elif kind == _KIND_CLIENT:
                ends_at_s = int.from_bytes(body[:_TIME_BYTES], sys.byteorder, signed=True)
                interval_s, _, client_length, _, _ = _CLIENT.unpack_from(body, _TIME_BYTES)
                if interval_s != _NO_EXPIRY and 0 < ends_at_s < wall_s:
                    ended.add(_text(body, _TIME_BYTES + _CLIENT.size, client_length)[0])
        except (struct.error, UnicodeDecodeError) as error:
            raise RemoteError(f"A chunk of kind {kind} in the database cannot be read: {error}.") from error
    return [one for one in found if one[0] not in ended]


def _chunks(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(data):
        if at + _HEAD.size > len(data):
            raise RemoteError("The database breaks off within a chunk.")
        kind, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + length > len(data):
            raise RemoteError("The database breaks off within a chunk.")
        if kind in (_KIND_SUBSCRIPTION, _KIND_CLIENT):
            yield kind, data[at : at + length]
        at += length


def _text(body: bytes, start: int, length: int) -> tuple[str, int]:
    end = start + length
    if end > len(body):
        raise struct.error(f"a text of {length} bytes does not fit")
    return body[start:end].decode(), end
