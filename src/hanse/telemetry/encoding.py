"""Encoding of a batch of telemetry rows of one kind as the payload of one publication, and back.

```
format u8 = 1 | fingerprint of the contract u32 | rows u16 | the contract's columns in order (see columns.py)
```

Rules of this module:

- `decode` accepts exactly the payloads that `encode` can produce for this build's contracts, whole. Any strict prefix,
  trailing byte, other format, other fingerprint, row count or value out of range is a `RemoteError`, and costs memory
  bounded by `ROWS_MAX` and `PAYLOAD_BYTES_MAX`.
- The *meaning* of a row (a known event, a plausible time) is not checked here. The pipeline's quality rules check it.
"""

import struct
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from hanse.errors import LocalError, RemoteError
from hanse.telemetry import columns
from hanse.telemetry.contracts import Contract
from hanse.telemetry.registry import FIELDS, FINGERPRINTS, KINDS, Field, contract_of
from hanse.telemetry.topic import TelemetryTopic, parse_topic

FORMAT = 1

# Rows in one batch. A larger value saves header bytes and Spark work per row, a smaller one bounds the cost of one bad
# payload (10,000 rows of 14 constant columns decode from 200 bytes into about 2 MB). A federator that reports every
# second needs far fewer.
ROWS_MAX = 10_000

# Bytes of a payload. Brokers accept 256 MiB by default and Hanse 16 MiB. Telemetry must not delay data on a link, hence
# 1 MiB.
PAYLOAD_BYTES_MAX = 1 << 20

# The last time that datetime, and thus Spark's Python side, can express: the end of the year 9999.
MOMENT_US_MAX = 253_402_300_799_999_999

_HEADER = struct.Struct("<BIH")


def encode(kind: str, rows: Sequence[Contract]) -> bytes:
    """Return the payload that carries `rows`, all of the contract of `kind`.

    Raises:
        LocalError: There are no rows, too many, or rows of another contract, a value is out of range, or the payload is
            too large.
    """
    contract = contract_of(kind)
    if not 1 <= len(rows) <= ROWS_MAX:
        raise LocalError(f"A telemetry batch holds 1 to {ROWS_MAX} rows; got {len(rows)}: use encode_batches.")
    for row in rows:
        if type(row) is not contract:
            raise LocalError(f"Telemetry of kind {kind} must hold {contract.__name__}; got {type(row).__name__}.")
    out = bytearray(_HEADER.pack(FORMAT, FINGERPRINTS[kind], len(rows)))
    for field in FIELDS[kind]:
        values = list(map(attrgetter(field.name), rows))
        columns.put(out, field.type, field.is_nullable, values)
        if field.is_moment and max((value for value in values if value is not None), default=0) > MOMENT_US_MAX:
            raise LocalError(
                f"{contract.__name__}.{field.name} lies after the year 9999; expected microseconds since 1970."
            )
    if len(out) > PAYLOAD_BYTES_MAX:
        raise LocalError(f"{len(rows)} rows take {len(out)} bytes; at most {PAYLOAD_BYTES_MAX}: use encode_batches.")
    return bytes(out)


def encode_batches(kind: str, rows: Sequence[Contract]) -> Iterator[bytes]:
    """Return payloads that carry any number of `rows`, each within the limits."""
    if len(rows) > ROWS_MAX:
        for start in range(0, len(rows), ROWS_MAX):
            yield from encode_batches(kind, rows[start : start + ROWS_MAX])
    elif rows:
        try:
            payload = encode(kind, rows)
        except LocalError:
            # Too large, or invalid: halves that fit are encoded, and an invalid row raises when it is alone.
            if len(rows) == 1:
                raise
            half = len(rows) // 2
            yield from encode_batches(kind, rows[:half])
            yield from encode_batches(kind, rows[half:])
        else:
            yield payload


def _column(reader: columns.Reader, field: Field, rows: int) -> list[Any]:
    largest = MOMENT_US_MAX if field.is_moment else columns.INTEGER_MAX
    return columns.get(reader, field.type, field.is_nullable, rows, largest)


def decode_columns(topic: str, payload: bytes) -> tuple[TelemetryTopic, dict[str, list[Any]]]:
    """Return the columns of a publication on a telemetry topic: for the pipeline, without one object per row.

    Raises:
        RemoteError: The topic or the payload is not telemetry that this build supports.
    """
    said = parse_topic(topic)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise RemoteError(f"Telemetry payload of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} are accepted.")
    reader = columns.Reader(payload)
    form, seen, rows = reader.unpack(_HEADER)
    if form != FORMAT:
        raise RemoteError(f"Telemetry payload has format {form}; this build supports {FORMAT}.")
    if seen != FINGERPRINTS[said.kind]:
        raise RemoteError(f"Telemetry of kind {said.kind} has fields other than this build's: upgrade the older side.")
    if not 1 <= rows <= ROWS_MAX:
        raise RemoteError(f"Telemetry batch has {rows} rows; expected 1 to {ROWS_MAX}.")
    decoded = {field.name: _column(reader, field, rows) for field in FIELDS[said.kind]}
    if reader.position != len(payload):
        raise RemoteError(f"Telemetry batch has {len(payload) - reader.position} bytes after its end.")
    return said, decoded


def decode(topic: str, payload: bytes) -> list[Contract]:
    """Return the rows of a publication on a telemetry topic.

    Raises:
        RemoteError: The topic or the payload is not telemetry that this build supports.
    """
    said, decoded = decode_columns(topic, payload)
    contract = KINDS[said.kind]
    return [contract(*row) for row in zip(*decoded.values(), strict=True)]
