"""Generate telemetry of a federation that never ran, but could have: the same seed gives the same bytes.

Brokers are on a ring with chords, each on a host with its own clock. Groups have members. Publications take shortest
paths with the links' delays. Counts agree with the published, delivered, duplicated and lost messages. A manager makes
checks. On request, one federator is killed in the middle. `Traffic.truth` holds the actual events, to compare tables
with.

    python bench/generate_traffic.py --rows 1000000 --out traffic.parquet
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq

from hanse.pipeline.schemas.mqtt import ROW
from hanse.telemetry import (
    Contract,
    Delivery,
    FlowCount,
    HealthCheck,
    HopTrace,
    LinkCount,
    MeshEvent,
    ResourceSample,
    TopologyEvent,
    encode_batches,
    is_sampled,
    kind_of,
    topic_for,
)

START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
SECOND_US = 1_000_000
EPOCH = START_US // SECOND_US
MANAGER = "manager"


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of the traffic. At a sample rate of 1, a publication costs about 3 rows per member of its group."""

    seed: int = 1
    brokers: int = 6
    groups: int = 3
    members: int = 3
    seconds: int = 120
    publications_per_s: int = 20  # per group, over all its origins
    sample_rate: float = 1.0
    report_s: int = 5
    loss_share: float = 0.001
    duplicate_share: float = 0.05
    skew_ms: float = 2_000.0
    kill_at_s: int | None = None  # the last broker
    detect_s: int = 10


@dataclass(slots=True)
class Truth:
    """Actual events, by the true time."""

    published: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    delivered: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))
    dropped: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))
    latencies_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    skew_ms: dict[str, float] = field(default_factory=dict)
    rows: int = 0


class Traffic:
    """Telemetry of one plan, and its truth."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.truth = Truth()
        self._random = random.Random(plan.seed)
        self._names = [f"b{i:02d}" for i in range(plan.brokers)]
        self._overlay = nx.cycle_graph(self._names)
        for i in range(0, plan.brokers, 3):
            self._overlay.add_edge(self._names[i], self._names[(i + plan.brokers // 2) % plan.brokers])
        self._overlay.remove_edges_from(list(nx.selfloop_edges(self._overlay)))
        self._delay_us = {frozenset(link): self._random.randint(500, 20_000) for link in self._overlay.edges}
        self._skew_us = {name: round(self._random.uniform(-1, 1) * plan.skew_ms * 1_000) for name in self._names}
        self._skew_us[MANAGER] = 0
        self.truth.skew_ms = {name: skew / 1_000 for name, skew in self._skew_us.items()}
        self._groups = [f"plant/{i}/+" for i in range(plan.groups)]
        self._members = {group: self._random.sample(self._names, plan.members) for group in self._groups}
        self._flow: dict[tuple[str, tuple[str, str | None, str, str, str | None]], list[int]] = {}
        self._link: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * 10)
        self._cpu_us: dict[str, int] = defaultdict(int)
        self._seq: dict[str, int] = defaultdict(int)
        self._pending: dict[tuple[str, str], list[Contract]] = defaultdict(list)
        self._up = set(self._names)
        self._paths: dict[tuple[str, str], list[str]] = {}

    def batches(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield what a collector would have received: time, topic, payload."""
        plan = self.plan
        self._begin()
        for since_s in range(0, plan.seconds, plan.report_s):
            if plan.kill_at_s is not None and since_s >= plan.kill_at_s and self._names[-1] in self._up:
                self._kill(since_s)
            for group in self._groups:
                self._publish(group, since_s)
            self._report(since_s + plan.report_s)
            yield from self._flush(since_s + plan.report_s)

    def _clock(self, who: str, true_us: int) -> int:
        return START_US + true_us + self._skew_us[who]

    def _add(self, reporter: str, row: Contract) -> None:
        self._pending[reporter, kind_of(type(row))].append(row)

    def _begin(self) -> None:
        for name in self._names:
            self._add(MANAGER, TopologyEvent(self._clock(MANAGER, 0), "join", name, None, None))
        for a, b in self._overlay.edges:
            self._add(a, TopologyEvent(self._clock(a, 0), "link_up", a, b, None))
            self._add(b, TopologyEvent(self._clock(b, 1_000), "link_up", b, a, None))
        for group, members in self._members.items():
            core = min(members)
            for name in members:
                # By the manager's clock, because memberships are compared with other brokers' reports.
                moment = START_US - 3_600 * SECOND_US
                self._add(MANAGER, MeshEvent(moment, "member_joined", group, name, EPOCH, core, None, None))
            self._add(core, MeshEvent(self._clock(core, 0), "core_elected", group, core, EPOCH, core, None, 0))

    def _kill(self, at_s: int) -> None:
        gone = self._names[-1]
        self._up.discard(gone)
        self._paths.clear()
        down_us = (at_s + self.plan.detect_s) * SECOND_US
        moment = self._clock(MANAGER, down_us)
        self._add(MANAGER, TopologyEvent(moment, "federator_down", gone, None, "two checks failed"))
        for neighbour in sorted(self._overlay[gone]):
            at_us = self._clock(neighbour, at_s * SECOND_US + 300_000)
            self._add(neighbour, TopologyEvent(at_us, "link_down", neighbour, gone, "connection reset"))
        for group, members in self._members.items():
            if gone in members:
                left = START_US + at_s * SECOND_US
                self._add(MANAGER, MeshEvent(left, "member_left", group, gone, EPOCH, min(members), None, None))

    def _path(self, origin: str, member: str) -> list[str]:
        if (origin, member) not in self._paths:
            alive = self._overlay.subgraph(self._up)
            tree = nx.single_source_shortest_path(alive, origin)
            self._paths.update({(origin, name): path for name, path in tree.items()})
        return self._paths[origin, member]

    def _publish(self, group: str, since_s: int) -> None:
        plan, rng = self.plan, self._random
        span_us = plan.report_s * SECOND_US
        members = [name for name in self._members[group] if name in self._up]
        for _ in range(plan.publications_per_s * plan.report_s):
            origin = rng.choice(self._names)
            if origin not in self._up:
                continue
            self._seq[origin] += 1
            # Published early enough in the slice that the delivery also falls into it.
            at_us = since_s * SECOND_US + rng.randrange(span_us - SECOND_US)
            payload_bytes = rng.randint(20, 400)
            self.truth.published[origin, group] += 1
            self._count(origin, (origin, None, group, "published", None), payload_bytes)
            self._carry(group, (origin, self._seq[origin]), at_us, members, payload_bytes)

    def _carry(self, group: str, message: tuple[str, int], at_us: int, members: list[str], payload_bytes: int) -> None:
        plan, rng = self.plan, self._random
        origin, seq = message
        sampled = is_sampled(origin, EPOCH, seq, plan.sample_rate)
        topic = f"{group[:-1]}{seq % 50}"
        arrived = {origin: at_us}
        hops: dict[str, tuple[int, str | None]] = {origin: (0, None)}
        for member in members:
            if member == origin:
                continue
            path = self._path(origin, member)
            key = (origin, member, group)
            if rng.random() < plan.loss_share:
                self.truth.dropped[key] += 1
                self._count(path[-2], (origin, member, group, "dropped", "queue full"), payload_bytes)
                continue
            for hop, (here, there) in enumerate(pairwise(path), start=1):
                if there not in arrived:
                    wire_us = self._delay_us[frozenset((here, there))]
                    arrived[there] = arrived[here] + 200 + wire_us + int(rng.expovariate(1 / 2_000))
                    hops[there] = (hop, here)
                    self._count(here, (origin, None, group, "forwarded", None), payload_bytes)
                    self._cross(here, there, payload_bytes)
            delivered_us = arrived[member] + 300
            self.truth.delivered[key] += 1
            self._count(member, (origin, member, group, "delivered", None), payload_bytes)
            if sampled:
                self.truth.latencies_ms[">".join(path)].append((delivered_us - at_us) / 1_000)
                moment = self._clock(member, delivered_us)
                self._add(member, Delivery(origin, EPOCH, seq, topic, group, 1, len(path) - 1, None, moment))
            if rng.random() < plan.duplicate_share:
                self._count(member, (origin, member, group, "duplicate", None), payload_bytes)
                if sampled:
                    late_us = self._clock(member, delivered_us + 1_000)
                    self._add(
                        member,
                        HopTrace(origin, EPOCH, seq, topic, group, len(path), path[-2], late_us, None, 0, True),
                    )
        if sampled:
            for name, (hop, previous) in hops.items():
                came, sent = self._clock(name, arrived[name]), self._clock(name, arrived[name] + 200)
                self._add(name, HopTrace(origin, EPOCH, seq, topic, group, hop, previous, came, sent, 1, False))

    def _count(self, reporter: str, key: tuple[str, str | None, str, str, str | None], payload_bytes: int) -> None:
        counts = self._flow.setdefault((reporter, key), [0, 0])
        counts[0] += 1
        counts[1] += payload_bytes
        self._cpu_us[reporter] += 40

    def _cross(self, here: str, there: str, payload_bytes: int) -> None:
        sent, received = self._link[here, there], self._link[there, here]
        sent[0] += 1
        sent[2] += payload_bytes + 30
        received[1] += 1
        received[3] += payload_bytes + 30

    def _report(self, at_s: int) -> None:
        rng = self._random
        at_us = at_s * SECOND_US
        for (reporter, (origin, destination, group, measure, reason)), counts in self._flow.items():
            if reporter in self._up:
                moment, zero = self._clock(reporter, at_us), self._clock(reporter, 0)
                row = FlowCount(moment, zero, origin, destination, group, measure, reason, *counts)
                self._add(reporter, row)
        for name in self._names:
            is_up = name in self._up
            self._check(name, at_us, is_up=is_up)
            if not is_up:
                continue
            moment, zero = self._clock(name, at_us), self._clock(name, 0)
            for neighbour in sorted(self._overlay[name]):
                if neighbour in self._up:
                    counts = self._link[name, neighbour]
                    for column, amount in ((4, 5), (5, 5), (6, 300), (7, 300)):
                        counts[column] += amount * self.plan.report_s // 5
                    levels = [*counts, rng.randrange(4_096)]
                    self._add(name, LinkCount(moment, zero, neighbour, *levels))
            self._cpu_us[name] += 20_000 * self.plan.report_s
            rss_bytes = (60 << 20) + rng.randrange(1 << 20)
            self._add(name, ResourceSample(moment, zero, f"host-{name}", "federator", self._cpu_us[name], rss_bytes))

    def _check(self, target: str, at_us: int, *, is_up: bool) -> None:
        sent = self._clock(MANAGER, at_us)
        host, target_host = "host-manager", f"host-{target}"
        if not is_up:
            row = HealthCheck(target, host, target_host, sent, None, None, None, False, "no answer")
        else:
            there_us, back_us = (200 + int(self._random.expovariate(1 / 500)) for _ in range(2))
            received = self._clock(target, at_us + there_us)
            returned = self._clock(MANAGER, at_us + there_us + 100 + back_us)
            row = HealthCheck(target, host, target_host, sent, received, received + 100, returned, True, None)
        self._add(MANAGER, row)

    def _flush(self, at_s: int) -> Iterator[tuple[int, str, bytes]]:
        for (reporter, kind), rows in sorted(self._pending.items()):
            self.truth.rows += len(rows)
            for payload in encode_batches(kind, rows):
                yield START_US + at_s * SECOND_US + 50_000, topic_for(kind, reporter), payload
        self._pending.clear()


def to_arrow(batches: Iterator[tuple[int, str, bytes]], producer: str = "generated", seq: int = 0) -> pa.Table:
    """Yield the same as rows of bronze."""
    rows = [
        {
            "producer": producer,
            "seq": seq + i,
            "received_at": moment,
            "topic": topic,
            "payload": payload,
            "qos": 1,
            "retain": False,
            "dup": False,
        }
        for i, (moment, topic, payload) in enumerate(batches)
    ]
    return pa.Table.from_pylist(rows, ROW)


def plan_for(rows: int, seed: int = 1) -> Plan:
    """Return a plan that gives about so many rows of telemetry: 12 brokers, 8 groups, half an hour."""
    base = Plan(seed=seed, brokers=12, groups=8, members=4, seconds=1_800, kill_at_s=1_500)
    rows_per_publication = 9.9
    fixed = 1_800 / base.report_s * 1_500
    per_s = max(1, round((rows - fixed) / rows_per_publication / base.groups / base.seconds))
    return Plan(**{name: getattr(base, name) for name in base.__slots__} | {"publications_per_s": per_s})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="approximate number of telemetry rows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="Parquet file of bronze rows")
    asked = parser.parse_args()
    traffic = Traffic(plan_for(asked.rows, asked.seed))
    begun = time.monotonic()
    table = to_arrow(traffic.batches())
    pq.write_table(table, asked.out)
    print(f"{traffic.truth.rows} rows in {table.num_rows} payloads, {time.monotonic() - begun:.1f} s, {asked.out}")


if __name__ == "__main__":
    main()
