"""What a run saw, as data."""

from dataclasses import asdict, dataclass
from typing import Any

from hanse.load.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Latency:
    """Times from send to arrival, in ms."""

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, histogram: Histogram) -> "Latency":
        """Of what was counted."""
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
    """One run of the load generator.

    Attributes:
        published: messages handed to the publishers' brokers.
        acknowledged: of those, PUBACK or PUBCOMP came (QoS 1 and 2). The rest is unknown, not lost.
        refused: acknowledged with an error.
        expected: published, times the subscribers.
        received: arrivals, duplicates included.
        lost: expected and never arrived.
        duplicates: arrivals of a message that this subscriber had already.
        reordered: first arrivals after a later message of the same publisher. With several topics a publisher,
            MQTT promises no order between them.
        corrupted: arrivals of another length, or (with `verify`) with other bytes.
        foreign: arrivals that are not of this run.
        publish_rate_per_s: from the first send to the last one.
        receive_rate_per_s: what each subscriber got in a second on average, from the first send after the warm-up
            to its last arrival: waiting in a queue counts as time.
        latency: of arrivals after the warm-up.
        send_lag_ms_p99: how late the generator itself sent, against its schedule; large means a busy machine.
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
        """Whether every message arrived once, in order, unaltered."""
        return not (self.lost or self.duplicates or self.reordered or self.corrupted or self.refused)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)
