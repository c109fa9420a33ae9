"""Conversion of publications to spool rows, and of spool rows to the state that a restarted collector needs.

Rules: rows are built one block at a time, in the commit thread. The content hash that `redelivery` compares is the same
whether it is computed from a publication or from its row.
"""

from collections.abc import Iterable

import pyarrow as pa
from mqtt5 import PublishPacket

from hanse.mqtt.publication import Publication, decode
from hanse.pipeline.schemas.mqtt import PROPERTIES, SPOOLED_ROW
from hanse.pipeline.spool import SpoolReader, read_slice

Row = tuple[int, Publication]
"""Time of receipt in microseconds, and the publication."""

_NO_PROPERTIES = (None, None, None, None, None, None)


def _hash(topic: str, payload: bytes, retain: bool, properties: object) -> int:
    return hash((topic, payload, retain, properties))


def properties_of(packet: PublishPacket) -> tuple[object, ...] | None:
    """Return the properties in the order of the row schema, or None if there are none (the common case)."""
    user = packet.user_properties
    found = (
        packet.payload_format_indicator or None,
        packet.message_expiry_interval,
        packet.content_type,
        packet.response_topic,
        packet.correlation_data,
        tuple(user) if user else None,
    )
    return None if found == _NO_PROPERTIES else found


def _hashable(properties: tuple[object, ...] | None) -> object:
    # The expiry counts down, so it is left out. Properties that held only an expiry compare equal to none.
    if properties is None:
        return None
    rest = (properties[0], *properties[2:])
    return rest if any(one is not None for one in rest) else None


def content_of(publication: Publication) -> int:
    """Return the content hash that a redelivery of this publication must have."""
    packet = decode(publication.packet)
    return _hash(publication.topic, bytes(packet.payload), publication.retain, _hashable(properties_of(packet)))


def build(producer: str, rows: list[Row], first_row: int) -> tuple[pa.RecordBatch, list[tuple[int, int]]]:
    """Return the Arrow batch of these publications, and (packet identifier, content hash) of each.

    This runs in the commit thread. It takes 3 us per row, most of it in the codec and in Arrow.
    """
    count = len(rows)
    packets = [decode(one.packet) for _, one in rows]
    payloads = [bytes(packet.payload) for packet in packets]
    properties = [properties_of(packet) for packet in packets]
    columns = [
        pa.array([producer] * count, pa.string()),
        pa.array(range(first_row, first_row + count), pa.int64()),
        pa.array([received_us for received_us, _ in rows], pa.timestamp("us", tz="UTC")),
        pa.array([one.topic for _, one in rows], pa.string()),
        pa.array(payloads, pa.binary()),
        pa.array([one.qos for _, one in rows], pa.int32()),
        pa.array([one.retain for _, one in rows], pa.bool_()),
        pa.array([one.dup for _, one in rows], pa.bool_()),
        properties_column(properties),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.int32()),
        pa.array([one.packet_id or None for _, one in rows], pa.int32()),
    ]
    seen = [
        (one.packet_id, _hash(one.topic, payload, one.retain, _hashable(found)))
        for (_, one), payload, found in zip(rows, payloads, properties, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SPOOLED_ROW), seen


def properties_column(properties: list[tuple[object, ...] | None]) -> pa.Array:
    """Build the `properties` column from results of `properties_of`."""
    if not any(properties):
        return pa.nulls(len(properties), PROPERTIES)
    names = [PROPERTIES.field(n).name for n in range(PROPERTIES.num_fields)]
    as_rows: list[dict[str, object] | None] = []
    for found in properties:
        if found is None:
            as_rows.append(None)
            continue
        row = dict(zip(names, found, strict=True))
        user = row["user"]
        if isinstance(user, tuple):
            row["user"] = [{"name": name, "value": value} for name, value in user]
        as_rows.append(row)
    return pa.array(as_rows, PROPERTIES)


def last_rows(spool: str, producer: str, *, first_row: int, count: int) -> list[tuple[int, int]]:
    """Return (packet identifier, content hash) of the last `count` QoS 1 and 2 rows from `first_row` on, in order."""
    reader = SpoolReader(spool, producer)
    end, found = reader.tail(), [list[tuple[int, int]]()]
    for start in reversed(reader.starts()):
        here: list[tuple[int, int]] = []
        for part in reader.slices(start, end):
            for batch in read_slice(part):
                here += _identified(batch, first_row)
        found.append(here)
        end = start
        if sum(map(len, found)) >= count or start.rows <= first_row:
            break
    rows = [row for some in reversed(found) for row in some]
    return rows[-count:]


def _identified(batch: pa.RecordBatch, first_row: int) -> Iterable[tuple[int, int]]:
    names = ("seq", "packet_id", "topic", "payload", "retain", "properties")
    for seq, packet_id, topic, payload, retain, found in zip(
        *(batch.column(name).to_pylist() for name in names), strict=True
    ):
        if packet_id and seq >= first_row:
            properties = None
            if found is not None:
                user = found["user"]
                pairs = tuple((one["name"], one["value"]) for one in user) if user else None
                properties = (*list(found.values())[:-1], pairs)
            yield packet_id, _hash(topic, payload, retain, _hashable(properties))
