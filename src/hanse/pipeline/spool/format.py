"""Bytes of the spool on disk: names, block header, index record. This module opens no file.

Rules of the layout:

1. A block is self-contained: a header, then one Arrow IPC stream with one batch. Any block can be read alone.
2. Nothing is trusted without its checksum: the header, the body and every index record have one.
3. Row numbers are gapless per producer and start at 0: `(producer, seq)` identifies a row for ever.
4. All integers are little-endian; times are microseconds since 1970 in UTC.

`docs/pipeline.md` shows the same tables byte by byte.
"""

import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Self

from hanse.errors import LocalError, Unavailable

BLOCK_MAGIC = b"HSB1"
VERSION = 1

# magic, version, flags, body bytes, rows, first row, received min, received max, body CRC; then the header's CRC
_HEADER = struct.Struct("<4sHHIIQqqI")
HEADER_BYTES = _HEADER.size + 4

# end position, end row, received min, received max, body CRC, rows, reserved; then the record's CRC
_RECORD = struct.Struct("<QQqqIII")
RECORD_BYTES = _RECORD.size + 4

_CRC = struct.Struct("<I")

# A block holds one group commit (1 MiB) and at most one more message (16 MiB). A reader must hold a block in memory, so
# a header that claims more than this is treated as damaged.
BLOCK_BYTES_MAX = 64 * 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SEGMENT = re.compile(r"(\d{10})-(\d{20})\.(seg|idx)")


class SpoolCorruptError(LocalError):
    """Durable bytes have changed since they were written; an operator must check the disk."""


class SpoolGoneError(LocalError):
    """Rows were deleted before the reader read them."""


class SpoolLockedError(LocalError):
    """Another process writes to this producer's directory."""


class SpoolFullError(Unavailable):
    """The disk or the quota is full. Nothing of the append is visible, and the same append may work later."""


class SpoolBrokenError(Unavailable):
    """Bytes could not be made durable. The writer must be reopened, which checks the data on disk."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Block boundary in one producer's spool: segment number, byte offset in it, and number of rows before it."""

    seg: int
    pos: int
    rows: int

    def to_json(self) -> dict[str, int]:
        """Return the offset in the form of Spark's log."""
        return {"seg": self.seg, "pos": self.pos, "rows": self.rows}

    @classmethod
    def from_json(cls, value: Any) -> Self:  # noqa: ANN401 - any JSON value
        """Read an offset back; raise LocalError if it is not one."""
        numbers = [value.get(key) for key in ("seg", "pos", "rows")] if isinstance(value, dict) else []
        if len(numbers) != 3 or not all(type(number) is int and number >= 0 for number in numbers):
            raise LocalError(
                f'{value!r} is not a spool offset; expected {{"seg": n, "pos": n, "rows": n}}, each 0 or more.'
            )
        return cls(value["seg"], value["pos"], value["rows"])


START = Position(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Header:
    """Header in front of a block's Arrow stream."""

    body_bytes: int
    rows: int
    first_row: int
    received_us_min: int
    received_us_max: int
    body_crc: int

    def pack(self) -> bytes:
        """Return the header as 48 bytes."""
        fields = _HEADER.pack(
            BLOCK_MAGIC,
            VERSION,
            0,
            self.body_bytes,
            self.rows,
            self.first_row,
            self.received_us_min,
            self.received_us_max,
            self.body_crc,
        )
        return fields + _CRC.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Self | str:
        """Return the header at the start of `data`, or a description of its error."""
        if len(data) < HEADER_BYTES:
            return f"{len(data)} bytes where a block header has {HEADER_BYTES}"
        magic, version, flags, body_bytes, rows, first_row, low, high, body_crc = _HEADER.unpack_from(data)
        if magic != BLOCK_MAGIC:
            return f"magic {bytes(magic)!r} where {BLOCK_MAGIC!r} was expected"
        if zlib.crc32(data[: _HEADER.size]) != _CRC.unpack_from(data, _HEADER.size)[0]:
            return "a block header whose checksum does not match"
        if version != VERSION or flags != 0:
            return f"block version {version}, flags {flags}; this Hanse reads version {VERSION}, flags 0"
        if body_bytes > BLOCK_BYTES_MAX:
            return f"a block of {body_bytes} bytes; the limit is {BLOCK_BYTES_MAX}"
        return cls(body_bytes, rows, first_row, low, high, body_crc)


@dataclass(frozen=True, slots=True)
class Record:
    """Index entry for one block that is durable and visible."""

    end_pos: int
    end_row: int
    received_us_min: int
    received_us_max: int
    body_crc: int
    rows: int

    def pack(self) -> bytes:
        """Return the record as 48 bytes."""
        fields = _RECORD.pack(
            self.end_pos, self.end_row, self.received_us_min, self.received_us_max, self.body_crc, self.rows, 0
        )
        return fields + _CRC.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self | None:
        """Return the record at `offset`, or None if its checksum does not match."""
        fields = data[offset : offset + _RECORD.size]
        if zlib.crc32(fields) != _CRC.unpack_from(data, offset + _RECORD.size)[0]:
            return None
        end_pos, end_row, low, high, body_crc, rows, _reserved = _RECORD.unpack(fields)
        return cls(end_pos, end_row, low, high, body_crc, rows)


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """Number of a segment and number of its first row, as encoded in its file names."""

    number: int
    first_row: int

    @property
    def segment(self) -> str:
        """Name of the file with the blocks."""
        return f"{self.number:010d}-{self.first_row:020d}.seg"

    @property
    def index(self) -> str:
        """Name of the file with the index records."""
        return f"{self.number:010d}-{self.first_row:020d}.idx"

    @classmethod
    def parse(cls, file_name: str) -> Self | None:
        """Parse the name of a `.seg` file; return None for any other file."""
        match = _SEGMENT.fullmatch(file_name)
        return cls(int(match[1]), int(match[2])) if match and match[3] == "seg" else None


def check_name(kind: str, name: str) -> str:
    """Return `name` if it is a valid file name on every system; producers and consumers are named like files."""
    if not _NAME.fullmatch(name):
        raise LocalError(
            f"{name!r} cannot name a {kind}: use 1 to 128 letters, digits, '.', '_' or '-', not starting with '.' "
            "or '-'."
        )
    return name
