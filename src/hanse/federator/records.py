"""Bytes of a record in the outbox: the runs of one batch, in parts that can be read without each other.

    part: version, wall clock when it was written, length, data frame

Rules:

1. A part holds at most `PART_PUBLICATIONS` publications, or one that is larger than `PART_BYTES`. A damaged byte costs
   the part that it lies in.
2. A record is read from the parts that are left. Runs that continue one another become one again.
3. An older version wrote the whole batch as one part without version and length.
"""

import struct
from collections.abc import Iterable, Sequence

from hanse.errors import RemoteError
from hanse.protocol import codec
from hanse.protocol.messages import Run
from hanse.protocol.packets import split

# The most that a damaged byte costs. Batches of 64 publications of 200 bytes take 1.2 % more of the disk than whole,
# and 0.5 us more to write and 0.3 us more to read per publication (bench/bench_outbox.py). Smaller parts cost more.
PART_PUBLICATIONS = 16
PART_BYTES = 16 << 10
_PART = struct.Struct(">BdI")
_VERSION = 1
_OLD = struct.Struct(">d")  # its first byte is 0x41 from 1970 on


def encode(
    runs: Sequence[Run],
    now_s: float,
    *,
    publications_max: int = PART_PUBLICATIONS,
    bytes_max: int = PART_BYTES,
) -> tuple[bytes, ...]:
    """Return the parts of a record."""
    parts = []
    for piece in _pieces(runs, publications_max, bytes_max):
        data = codec.encode_data(piece)
        parts.append(_PART.pack(_VERSION, now_s, len(data)) + data)
    return tuple(parts)


def decode(payload: bytes) -> list[tuple[float, list[Run]]]:
    """Return the runs of the parts of a record, by the wall clock when they were written.

    Raises:
        RemoteError: The bytes are no record.
    """
    if not payload or payload[0] != _VERSION:
        if len(payload) <= _OLD.size:
            return []
        return [(_OLD.unpack_from(payload)[0], codec.decode_data(payload[_OLD.size :], is_record=True))]
    found: list[tuple[float, list[Run]]] = []
    at = 0
    while at < len(payload):
        if at + _PART.size > len(payload) or payload[at] != _VERSION:
            raise RemoteError(f"A record of the outbox has no part at byte {at}, where one should begin.")
        _, written_s, length = _PART.unpack_from(payload, at)
        at += _PART.size
        runs = codec.decode_data(payload[at : at + length], is_record=True)
        at += length
        if found and found[-1][0] == written_s:
            found[-1] = (written_s, _joined([*found[-1][1], *runs]))
        else:
            found.append((written_s, runs))
    return found


def _pieces(runs: Iterable[Run], publications_max: int, bytes_max: int) -> list[list[Run]]:
    pieces: list[list[Run]] = [[]]
    count = size = 0
    for run in runs:
        is_small = run.length <= publications_max and len(run.body) <= bytes_max
        for piece in [run] if is_small else _cut(run, publications_max, bytes_max):
            if count and (count + piece.length > publications_max or size + len(piece.body) > bytes_max):
                pieces.append([])
                count = size = 0
            pieces[-1].append(piece)
            count += piece.length
            size += len(piece.body)
    return pieces


def _cut(run: Run, publications_max: int, bytes_max: int) -> list[Run]:
    """Return a run in pieces, each small enough for a part."""
    spans = split(run.body)
    pieces = []
    low = 0
    while low < len(spans):
        high = low + 1
        while high - low < publications_max and high < len(spans) and spans[high][1] - spans[low][0] <= bytes_max:
            high += 1
        body = run.body[spans[low][0] : spans[high - 1][1]]
        pieces.append(run._replace(first=run.first + low, length=high - low, body=body))
        low = high
    return pieces


def _joined(runs: Iterable[Run]) -> list[Run]:
    """Return the runs with those in one that `_cut` made of one."""
    joined: list[list[Run]] = []
    for run in runs:
        last = joined[-1][-1] if joined else None
        if (
            last is not None
            and run._replace(first=0, length=0, body=b"") == last._replace(first=0, length=0, body=b"")
            and run.first == last.first + last.length
        ):
            joined[-1].append(run)
        else:
            joined.append([run])
    return [
        group[0]
        if len(group) == 1
        else group[0]._replace(length=sum(run.length for run in group), body=b"".join(run.body for run in group))
        for group in joined
    ]
