"""Results of a run, as data."""

from dataclasses import asdict, dataclass
from typing import Any

from hanse.load.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Latency:
    """Times from sending to arrival, in ms."""

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, histogram: Histogram) -> "Latency":
        """Return the percentiles of a histogram."""
        return cls(
            count=histogram.count,
            mean_ms=histogram.total_ns / max(1, histogram.count) / 1e6,
            p50_ms=histogram.percentile_ns(50) / 1e6,
            p95_ms=histogram.percentile_ns(95) / 1e6,
            p99_ms=histogram.percentile_ns(99) / 1e6,
            max_ms=histogram.max_ns / 1e6,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one run of the load generator.

    Attributes:
        published: messages handed to the publishers' brokers.
        acknowledged: messages with a PUBACK or PUBCOMP (QoS 1 and 2). The fate of the others is unknown; they are not
            lost.
        refused: messages acknowledged with an error.
        expected: published messages times subscribers.
        received: arrivals, duplicates included.
        lost: expected messages that never arrived.
        duplicates: arrivals of a message that this subscriber already had.
        reordered: first arrivals after a later message of the same publisher. MQTT promises no order between several
            topics of a publisher.
        corrupted: arrivals with another length, or (with `verify`) with other bytes.
        foreign: arrivals that do not belong to this run.
        publish_rate_per_s: rate from the first send to the last one.
        receive_rate_per_s: average rate per subscriber, from the first send after the warm-up to its last arrival. Time
            in a queue counts.
        latency: latency of arrivals after the warm-up.
        send_lag_ms_p99: lateness of the generator itself against its schedule; large means a busy machine.
    """

    published: int
    acknowledged: int
    refused: int
    expected: int
    received: int
    lost: int
    duplicates: int
    reordered: int
    corrupted: int
    foreign: int
    publish_s: float
    receive_s: float
    publish_rate_per_s: float
    receive_rate_per_s: float
    latency: Latency
    send_lag_ms_p99: float
    publisher_cpu_s: float
    subscriber_cpu_s: float

    @property
    def is_clean(self) -> bool:
        """Return whether every message arrived once, in order and unaltered."""
        return not (self.lost or self.duplicates or self.reordered or self.corrupted or self.refused)

    def to_json(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        return asdict(self)
