"""The silver tables of telemetry: one for each contract, derived from its fields and not written by hand.

`of_contract` is the one function that turns a contract into columns: a moment `x_at_us` becomes the timestamp
`x_at`; everything else keeps its name, its type and whether it may be missing. Two columns stand before them: who
reported, and when the collector received it.
"""

from hanse.pipeline.schemas.table import Column, Table, moment, text
from hanse.telemetry import KINDS
from hanse.telemetry.contracts import Contract
from hanse.telemetry.registry import FIELDS, Field

# By name, because a name means the same in every contract.
MEANINGS = {
    "answered_at": "when the target answered, by the target's clock",
    "at": "when it was measured or happened",
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
    "destination": "the subscribing broker, where one is meant",
    "distance": "links to the core after the event",
    "dropped_frames": "frames given up since `started_at`",
    "epoch": "boot epoch of the origin, or of the core in mesh events",
    "event": "what happened",
    "federator": "whom the event is about",
    "group": "the group, by default a subscription filter",
    "hop": "links crossed so far; 0 at the origin",
    "hops": "links crossed",
    "host": "the machine, and so the clock, of the reporter",
    "is_duplicate": "a copy that came after the first, and was dropped",
    "is_ok": "whether the check was answered in time",
    "measure": "published, forwarded, delivered, duplicate or dropped",
    "neighbour": "the other end of the link",
    "next_hops": "how many neighbours it was handed to",
    "origin": "the publishing broker",
    "parent": "the new parent",
    "payload_bytes": "bytes of payload since `started_at`",
    "previous": "the neighbour it came from; missing at the origin",
    "publications": "publications since `started_at`",
    "published_at": "when the host broker handed it over, by the origin's clock",
    "qos": "quality of service of the delivery",
    "queue_bytes": "bytes waiting for this link",
    "reason": "why, for what was dropped, failed or went down",
    "received_at": "when it came in",
    "retransmitted_frames": "frames sent again since `started_at`",
    "returned_at": "when the answer was back",
    "role": "what the process is",
    "rss_bytes": "resident memory",
    "sent_at": "when it was handed on",
    "seq": "number of the message within the origin's epoch",
    "started_at": "the last moment at which the count is known to have been zero",
    "target": "who was checked",
    "target_host": "the machine, and so the clock, of the target",
    "topic": "the publication's topic",
}

_TYPES = {int: "long", float: "double", bool: "boolean", str: "string"}


def column_of(field: Field) -> Column:
    """The column that holds `field`."""
    name = field.name.removesuffix("_us") if field.is_moment else field.name
    kind = "timestamp" if field.is_moment else _TYPES[field.type]
    return Column(name, kind, MEANINGS[name], is_required=not field.is_nullable)


def of_contract(kind: str, contract: type[Contract]) -> Table:
    """The silver table of one kind of telemetry."""
    row = (contract.__doc__ or "").strip().splitlines()[0]
    columns = (
        text("reporter", "the federator or manager that measured it"),
        moment("collected_at", "when the collector received it"),
        *[column_of(field) for field in FIELDS[kind]],
    )
    return Table(f"silver_{kind}", row, columns)


TABLES = {kind: of_contract(kind, contract) for kind, contract in KINDS.items()}
