"""Contracts of all measured data, and the topics on which it travels: `$hanse/telemetry/v1/<kind>/<reporter>`.

The package needs only the standard library, so that every agent can report.

    >>> from hanse.telemetry import ResourceSample, decode, encode, topic_for
    >>> sample = ResourceSample(
    ...     at_us=2_000_000, started_at_us=0, host="plant-7", role="federator", cpu_us=1_500, rss_bytes=40 << 20
    ... )
    >>> topic, payload = topic_for("resource", "7"), encode("resource", [sample])
    >>> topic, len(payload)
    ('$hanse/telemetry/v1/resource/7', 89)
    >>> decode(topic, payload) == [sample]
    True
"""

from hanse.telemetry.contracts import (
    FLOW_MEASURES,
    MESH_EVENTS,
    ROLES,
    TOPOLOGY_EVENTS,
    Contract,
    Delivery,
    FlowCount,
    HealthCheck,
    HopTrace,
    LinkCount,
    MeshEvent,
    ResourceSample,
    TopologyEvent,
)
from hanse.telemetry.encoding import PAYLOAD_BYTES_MAX, ROWS_MAX, decode, decode_columns, encode, encode_batches
from hanse.telemetry.registry import KINDS, contract_of, fields_of, kind_of
from hanse.telemetry.reporter import Reporter
from hanse.telemetry.sampling import is_sampled
from hanse.telemetry.topic import FILTER_ALL, TelemetryTopic, parse_topic, topic_for

__all__ = [
    "FILTER_ALL",
    "FLOW_MEASURES",
    "KINDS",
    "MESH_EVENTS",
    "PAYLOAD_BYTES_MAX",
    "ROLES",
    "ROWS_MAX",
    "TOPOLOGY_EVENTS",
    "Contract",
    "Delivery",
    "FlowCount",
    "HealthCheck",
    "HopTrace",
    "LinkCount",
    "MeshEvent",
    "Reporter",
    "ResourceSample",
    "TelemetryTopic",
    "TopologyEvent",
    "contract_of",
    "decode",
    "decode_columns",
    "encode",
    "encode_batches",
    "fields_of",
    "is_sampled",
    "kind_of",
    "parse_topic",
    "topic_for",
]
