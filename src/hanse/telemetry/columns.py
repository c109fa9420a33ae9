"""One column of a telemetry batch as bytes.

Rules of this module:

- Everything is little-endian. Nothing is read beyond the end of the input. Nothing is allocated before its size is
  checked against the rest of the input, or against the batch's row count, which the caller has bounded.
- Integers are stored as offsets from the column's smallest value in the fewest bytes that hold them (0, 1, 2, 4 or 8).
  The times of one batch lie close together, sequence numbers do as well, and most counts are small. A constant column
  costs 9 bytes.
- Each distinct string is stored once, and the rows hold its number. Topics, groups and ids repeat in almost every row.

```
integers   width u8 (0, 1, 2, 4, 8) | smallest u64 | rows x width
floats     rows x f64, finite
booleans   integers, 0 or 1
strings    distinct u32 | distinct x (length u16, UTF-8) | numbers as integers
nullable   integers, 1 where null | the column of the values that are not null
```
"""

import struct
from collections.abc import Sequence
from typing import Any, cast

from hanse.errors import LocalError, RemoteError

INTEGER_MAX = 2**63 - 1  # largest long of Arrow, Parquet and Spark
STRING_BYTES_MAX = 65_535  # MQTT's limit for a topic, and the largest u16 length

_WIDTHS = {0: "", 1: "B", 2: "H", 4: "I", 8: "Q"}
_INTEGERS = struct.Struct("<BQ")


class Reader:
    """Input, and the position up to which it has been read."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> int:
        """Skip `size` bytes and return their start."""
        start = self.position
        if size > len(self.data) - start:
            raise RemoteError(
                f"Telemetry ends at byte {len(self.data)}, inside a field of {size} bytes from byte {start}."
            )
        self.position = start + size
        return start

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read one fixed layout."""
        return layout.unpack_from(self.data, self.take(layout.size))


def put_integers(out: bytearray, values: Sequence[int]) -> None:
    """Append integers from 0 to `INTEGER_MAX`."""
    smallest, largest = (min(values), max(values)) if values else (0, 0)
    if smallest < 0 or largest > INTEGER_MAX:
        raise LocalError(f"Telemetry integers must lie between 0 and {INTEGER_MAX}; got {smallest} to {largest}.")
    span = largest - smallest
    width = 0 if span == 0 else 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8
    out += _INTEGERS.pack(width, smallest)
    if width:
        out += struct.pack(f"<{len(values)}{_WIDTHS[width]}", *[value - smallest for value in values])


def get_integers(reader: Reader, rows: int, largest: int = INTEGER_MAX) -> list[int]:
    """Read `rows` integers, none above `largest`."""
    width, smallest = reader.unpack(_INTEGERS)
    if width not in _WIDTHS:
        raise RemoteError(f"Telemetry integers have {width} bytes; expected a width of 0, 1, 2, 4 or 8.")
    if not width:
        values = [smallest] * rows
    else:
        layout = struct.Struct(f"<{rows}{_WIDTHS[width]}")
        offsets = layout.unpack_from(reader.data, reader.take(layout.size))
        values = [smallest + offset for offset in offsets] if smallest else list(offsets)
    if values and max(values) > largest:
        raise RemoteError(f"Telemetry integer {max(values)}; expected at most {largest} in this column.")
    return values


def _put_floats(out: bytearray, values: Sequence[float]) -> None:
    if not all(value - value == 0 for value in values):
        raise LocalError("Telemetry floats must be finite; got NaN or an infinity: leave the row out, or send None.")
    out += struct.pack(f"<{len(values)}d", *values)


def _get_floats(reader: Reader, rows: int) -> list[float]:
    layout = struct.Struct(f"<{rows}d")
    values = list(layout.unpack_from(reader.data, reader.take(layout.size)))
    if not all(value - value == 0 for value in values):
        raise RemoteError("Telemetry float is NaN or infinite; expected finite numbers.")
    return values


def _put_strings(out: bytearray, values: Sequence[str]) -> None:
    numbers: dict[str, int] = {}
    for value in values:
        numbers.setdefault(value, len(numbers))
    out += len(numbers).to_bytes(4, "little")
    for value in numbers:
        try:
            text = value.encode()
        except UnicodeEncodeError as error:
            raise LocalError(f"Telemetry text cannot be UTF-8: {error.reason} at {error.start}.") from error
        if len(text) > STRING_BYTES_MAX:
            raise LocalError(f"Telemetry text of {len(text)} bytes; at most {STRING_BYTES_MAX} are allowed.")
        out += len(text).to_bytes(2, "little")
        out += text
    put_integers(out, [numbers[value] for value in values])


def _get_strings(reader: Reader, rows: int) -> list[str]:
    data = reader.data
    start = reader.take(4)
    count = int.from_bytes(data[start : start + 4], "little")
    if count > rows or (rows and not count):
        raise RemoteError(f"Telemetry column of {rows} rows with {count} distinct strings; expected 1 to {rows}.")
    texts: list[str] = []
    for _ in range(count):
        start = reader.take(2)
        size = int.from_bytes(data[start : start + 2], "little")
        start = reader.take(size)
        try:
            texts.append(data[start : start + size].decode())
        except UnicodeDecodeError as error:
            raise RemoteError(f"Telemetry text at byte {start} is not UTF-8: {error.reason}.") from error
    return [texts[number] for number in get_integers(reader, rows, max(count - 1, 0))]


def put(out: bytearray, kind: type, is_nullable: bool, values: Sequence[Any]) -> None:
    """Append one column of `kind` (int, float, bool or str)."""
    if is_nullable:
        put_integers(out, [int(value is None) for value in values])
        values = [value for value in values if value is not None]
    for value in values:
        # bool is a subclass of int, and an int passes for a float. Only the exact type decodes to an equal value.
        if type(value) is not kind:
            raise LocalError(f"Telemetry column of {kind.__name__} got a {type(value).__name__}.")
    if kind is str:
        _put_strings(out, values)
    elif kind is float:
        _put_floats(out, values)
    else:
        put_integers(out, [int(value) for value in values] if kind is bool else values)


def get(reader: Reader, kind: type, is_nullable: bool, rows: int, largest: int = INTEGER_MAX) -> list[Any]:
    """Read one column of `rows` values; integers are at most `largest`."""
    nulls = get_integers(reader, rows, 1) if is_nullable else None
    present = rows - sum(nulls) if nulls is not None else rows
    values: list[Any]
    if kind is str:
        values = cast("list[Any]", _get_strings(reader, present))
    elif kind is float:
        values = cast("list[Any]", _get_floats(reader, present))
    elif kind is bool:
        values = [bool(value) for value in get_integers(reader, present, 1)]
    else:
        values = cast("list[Any]", get_integers(reader, present, largest))
    if nulls is None or present == rows:
        return values
    following = iter(values)
    return [None if is_null else next(following) for is_null in nulls]
