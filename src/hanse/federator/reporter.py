"""Telemetry of this federator, published on `$hanse/telemetry/v1/<kind>/<id>` for any collector.

Rules:

- Nothing is built while nobody is interested. Telemetry is an ordinary group. Without a claim for it, `is_active` is
  False and the data path pays one check per batch.
- Counts are cumulative and come from the machine's accounts. Samples (hop traces, deliveries) give paths and times.
- Rows wait in bounded lists for the next report. Rows beyond the bound are dropped and counted.
"""

import asyncio
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hanse.errors import RemoteError
from hanse.federator.metrics import LinkTraffic
from hanse.mqtt.publication import encode
from hanse.protocol.effects import Emit
from hanse.protocol.forwarding import Routed
from hanse.protocol.messages import Run
from hanse.protocol.packets import split, topic_of
from hanse.telemetry import (
    KINDS,
    Contract,
    Delivery,
    FlowCount,
    HopTrace,
    LinkCount,
    MeshEvent,
    ResourceSample,
    TopologyEvent,
    is_sampled,
    topic_for,
)
from hanse.telemetry.reporter import Reporter

REPORT_EVERY_S = 2.0
# One in a thousand: 100 rows per second at 100,000 messages per second, 1.3 us per decision.
SAMPLE_RATE = 0.001
ROWS_MAX = 20_000
_TICKS_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class FederatorReporter:
    """Collector of rows and, every `REPORT_EVERY_S`, of counts; `publish` sends the packets."""

    def __init__(
        self,
        identity: int,
        *,
        is_wanted: Callable[[str], bool],
        publish: Callable[[str, bytes], None],
        flows: Callable[[], Mapping[tuple[str, int, tuple[str, ...]], list[int]]],
        links: Callable[[], Mapping[int, tuple[LinkTraffic, LinkTraffic]]],
        sample_rate: float = SAMPLE_RATE,
    ) -> None:
        self._identity = str(identity)
        self._topics = [topic_for(kind, self._identity) for kind in KINDS]
        self._is_wanted = is_wanted
        self._publish = publish
        self._flows = flows
        self._links = links
        self._sample_rate = sample_rate
        self.counters: Counter[str] = Counter()
        self._host = platform.node() or "unknown"
        self._started_at_us = _now_us()
        self._rows = Reporter(self._identity, ROWS_MAX)
        self._rows.add(TopologyEvent(self._started_at_us, "federator_up", self._identity, None, None))
        self.is_active = False

    # --- rows of events ------------------------------------------------------------------------------------------

    def note(self, event: Emit, epoch: int) -> None:
        """Record a change of a mesh that the protocol reports. It is kept even while nobody listens."""
        at_us = _now_us()
        group, core = event.group, str(event.core) if event.core >= 0 else None
        if event.name in ("core_elected", "core_withdrawn"):
            self._rows.add(MeshEvent(at_us, event.name, group, self._identity, epoch, core, None, None))

    def note_interest(self, group: str, *, is_added: bool, epoch: int) -> None:
        """Record the beginning or end of local interest: this federator is a member of the group, or no longer."""
        name = "member_joined" if is_added else "member_left"
        self._rows.add(MeshEvent(_now_us(), name, group, self._identity, epoch, None, None, None))

    def note_link(self, neighbour: int, *, is_up: bool) -> None:
        """Record that a link came up or went down."""
        name = "link_up" if is_up else "link_down"
        self._rows.add(TopologyEvent(_now_us(), name, self._identity, str(neighbour), None))

    def trace(self, runs: Sequence[Run], routed: Routed, previous: int | None) -> None:
        """Record sampled publications of one batch: their senders, how many went on, and which were delivered."""
        at_us = _now_us()
        onward: dict[tuple[int, int, int], int] = {}
        for sent in routed.frames.values():
            for run in sent:
                for seq in self._sampled(run):
                    key = (run.origin, run.epoch, seq)
                    onward[key] = onward.get(key, 0) + 1
        delivered = {(run.origin, run.epoch, seq): run for run in routed.deliveries for seq in self._sampled(run)}
        for run in runs:
            spans: list[tuple[int, int]] = []
            for seq in self._sampled(run):
                key = (run.origin, run.epoch, seq)
                spans = spans or split(run.body)
                topic = _topic(run.body, spans[seq - run.first][0])
                hops = onward.get(key, 0)
                is_new = previous is None or hops > 0 or key in delivered
                self._rows.add(
                    HopTrace(
                        str(run.origin),
                        run.epoch,
                        seq,
                        topic,
                        run.groups[0],
                        0 if previous is None else run.hops,
                        None if previous is None else str(previous),
                        at_us,
                        _now_us() if hops else None,
                        hops,
                        not is_new,
                    ),
                )
                if key in delivered:
                    self._rows.add(
                        Delivery(
                            str(run.origin), run.epoch, seq, topic, run.groups[0], run.qos, run.hops, None, _now_us()
                        ),
                    )

    def _sampled(self, run: Run) -> list[int]:
        origin, rate = str(run.origin), self._sample_rate
        return [seq for seq in range(run.first, run.first + run.length) if is_sampled(origin, run.epoch, seq, rate)]

    # --- counts at the report -------------------------------------------------------------------------------------

    async def report_again(self) -> None:
        """Report repeatedly until the end."""
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self.report()

    def report(self) -> None:
        """Publish the collected rows if anybody wants them; events wait for a collector, within their limit."""
        self.is_active = any(map(self._is_wanted, self._topics))
        if not self.is_active:
            return
        rows: list[Contract] = [*self._flow_rows(), *self._link_rows(), self._resources()]
        for row in rows:
            self._rows.add(row)
        for topic, payload in self._rows.flush():
            self._publish(topic, encode(topic, payload, qos=1))
            self.counters["telemetry_published"] += 1
        self.counters["telemetry_rows_dropped"] = sum(self._rows.dropped.values())

    def _flow_rows(self) -> list[FlowCount]:
        at_us = _now_us()
        rows: dict[tuple[str, int, str], list[int]] = {}
        for (measure, origin, groups), (count, size) in self._flows().items():
            for group in groups:
                row = rows.setdefault((measure, origin, group), [0, 0])
                row[0] += count
                row[1] += size
        return [
            FlowCount(
                at_us,
                self._started_at_us,
                str(origin),
                self._identity if measure not in ("published", "forwarded") else None,
                group,
                measure.partition(":")[0],
                measure.partition(":")[2] or None,
                count,
                size,
            )
            for (measure, origin, group), (count, size) in sorted(rows.items())
        ]

    def _link_rows(self) -> list[LinkCount]:
        at_us = _now_us()
        return [
            LinkCount(
                at_us=at_us,
                started_at_us=self._started_at_us,
                neighbour=str(neighbour),
                data_frames_sent=out.frames,
                data_frames_received=into.frames,
                data_bytes_sent=out.bytes,
                data_bytes_received=into.bytes,
                control_frames_sent=out.control_frames,
                control_frames_received=into.control_frames,
                control_bytes_sent=out.control_bytes,
                control_bytes_received=into.control_bytes,
                retransmitted_frames=0,
                dropped_frames=out.dropped_frames,
                queue_bytes=0,
            )
            for neighbour, (out, into) in sorted(self._links().items())
        ]

    def _resources(self) -> ResourceSample:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - a pseudo file, read every two seconds
            fields = file.read().rpartition(b")")[2].split()
        cpu_us = (int(fields[11]) + int(fields[12])) * 1_000_000 // _TICKS_S
        rss_bytes = int(fields[21]) * _PAGE_BYTES
        return ResourceSample(_now_us(), self._started_at_us, self._host, "federator", cpu_us, rss_bytes)


def _topic(body: bytes, start: int) -> str:
    try:
        return topic_of(body, start)
    except RemoteError:  # from a neighbour: only the last hop parses it
        return ""


def _now_us() -> int:
    return time.time_ns() // 1_000
