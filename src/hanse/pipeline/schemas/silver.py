"""Silver tables of telemetry: one per contract, derived from the contract's fields.

`of_contract` converts a contract to columns. A time `x_at_us` becomes the timestamp `x_at`; every other field keeps its
name, its type and its nullability. Two columns precede them: the reporter, and the time when the collector received the
report.
"""

from hanse.pipeline.schemas.table import Column, Table, moment, text
from hanse.telemetry import KINDS
from hanse.telemetry.contracts import Contract
from hanse.telemetry.registry import FIELDS, Field

# Keyed by name, because a name has the same meaning in every contract.
MEANINGS = {
    "answered_at": "when the target answered, by the target's clock",
    "at": "when the measurement was taken, or the event happened",
    "control_bytes_received": "bytes of control frames received since `started_at`",
    "control_bytes_sent": "bytes of control frames sent since `started_at`",
    "control_frames_received": "control frames received since `started_at`",
    "control_frames_sent": "control frames sent since `started_at`",
    "core": "the group's core after the event",
    "cpu_us": "CPU time used since `started_at`, in microseconds",
    "data_bytes_received": "bytes of data frames received since `started_at`",
    "data_bytes_sent": "bytes of data frames sent since `started_at`",
    "data_frames_received": "data frames received since `started_at`",
    "data_frames_sent": "data frames sent since `started_at`",
    "delivered_at": "when the host broker acknowledged it",
    "destination": "the subscribing broker, if the count refers to one",
    "distance": "links to the core after the event",
    "dropped_frames": "frames dropped since `started_at`",
    "epoch": "boot epoch of the origin, or of the core in mesh events",
    "event": "what happened",
    "federator": "the federator that the event concerns",
    "group": "the group, by default a subscription filter",
    "hop": "links crossed so far; 0 at the origin",
    "hops": "links crossed",
    "host": "the reporter's machine, and therefore its clock",
    "is_duplicate": "true for a duplicate that was dropped",
    "is_ok": "true if the check was answered in time",
    "measure": "published, forwarded, delivered, duplicate or dropped",
    "neighbour": "the other end of the link",
    "next_hops": "number of neighbours that it was sent to",
    "origin": "the publishing broker",
    "parent": "the new parent",
    "payload_bytes": "bytes of payload since `started_at`",
    "previous": "the neighbour it came from; missing at the origin",
    "publications": "publications since `started_at`",
    "published_at": "when the federator received it from the host broker, by the origin's clock",
    "qos": "quality of service of the delivery",
    "queue_bytes": "bytes queued for this link",
    "reason": "reason, if something was dropped, failed or went down",
    "received_at": "when it was received",
    "retransmitted_frames": "frames sent again since `started_at`",
    "returned_at": "when the answer returned",
    "role": "role of the process",
    "rss_bytes": "resident memory",
    "sent_at": "when it was sent on",
    "seq": "number of the message within the origin's epoch",
    "started_at": "the last moment at which the count is known to have been zero",
    "target": "the federator or manager that was checked",
    "target_host": "the target's machine, and therefore its clock",
    "topic": "the publication's topic",
}

_TYPES = {int: "long", float: "double", bool: "boolean", str: "string"}


def column_of(field: Field) -> Column:
    """Return the column for `field`."""
    name = field.name.removesuffix("_us") if field.is_moment else field.name
    kind = "timestamp" if field.is_moment else _TYPES[field.type]
    return Column(name, kind, MEANINGS[name], is_required=not field.is_nullable)


def of_contract(kind: str, contract: type[Contract]) -> Table:
    """Return the silver table for one kind of telemetry."""
    row = (contract.__doc__ or "").strip().splitlines()[0]
    columns = (
        text("reporter", "the federator or manager that measured it"),
        moment("collected_at", "when the collector received it"),
        *[column_of(field) for field in FIELDS[kind]],
    )
    return Table(f"silver_{kind}", row, columns)


TABLES = {kind: of_contract(kind, contract) for kind, contract in KINDS.items()}
