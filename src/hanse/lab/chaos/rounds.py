"""One round: a workload, a fault in the middle of it, and the verdict.

Publishers are at the sites 0 and 3, subscribers at 2 and 4 (as far as those exist), all for one group. In a ring of
five, 2 is the group's core, 1 only forwards, and 3 is in the mesh between 2 and 4, so every kill affects some traffic.

The stream begins when a probe of every publisher has reached every subscriber. The fault begins at a time that the seed
draws, and the stream goes on for `AFTER_S` after its end. Before a broker is killed, it has time to save its sessions,
and enough of the stream that some messages are left to judge.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.lab.chaos import history, pages
from hanse.lab.chaos.clients import Publisher, Subscriber, filter_of
from hanse.lab.chaos.faults import NONE, Fault, Flow
from hanse.lab.chaos.ground import CONVERGED_S, Ground
from hanse.lab.chaos.history import History, Span
from hanse.lab.chaos.judge import DURABLE_S, Accounting, Evidence, Verdict, count, judge

PUBLISHERS_AT, SUBSCRIBERS_AT = (0, 3), (2, 4)
BEFORE_S, AFTER_S = 1.2, 1.2
_SAVED_BEFORE_S = DURABLE_S + 1.2
_MOMENT_S = 0.75
_NO_FAULT_S = 3.0
_OPEN_S = 40.0
_STREAM_EXTRA_S = 60.0
_ACKNOWLEDGED_S = 20.0
_LATE_COPIES_S = 0.5
_SETTLED_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Workload:
    """Publications during the fault.

    Attributes:
        messages: number of messages of all publishers together.
        qos: 1, 2, or 0 for a mix of both, by topic.
        topics: topics per publisher.
        window: unacknowledged messages per publisher.
        quiet_s: time without new arrivals after which missing messages are lost; more than a federation needs to heal.
        drain_s: longest wait for arrivals after the stream.
    """

    messages: int = 20_000
    qos: int = 1
    topics: int = 4
    size_bytes: int = 64
    window: int = 2_000
    quiet_s: float = 12.0
    drain_s: float = 90.0

    def __post_init__(self) -> None:
        if self.messages < 1 or self.qos not in {0, 1, 2} or self.topics < 1 or self.window < 1:
            raise LocalError(
                f"A workload of {self.messages} messages at QoS {self.qos} on {self.topics} topics with a window of "
                f"{self.window} was requested; expected at least one of each, and QoS 1, 2, or a mix."
            )

    def qos_by_topic(self) -> list[int]:
        """Return the QoS of each topic of a publisher."""
        return [self.qos or 1 + topic % 2 for topic in range(self.topics)]


@dataclass(slots=True)
class Round:
    """Result of one fault."""

    fault: str
    target: str
    seed: int
    workload: Workload
    accounting: Accounting
    verdicts: list[Verdict]
    converged_s: float | None
    history: History
    span: Span | None
    drops: dict[str, int] = field(default_factory=dict)
    counters: dict[int, dict[str, float]] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def held(self) -> bool:
        """Return whether every promise held."""
        return all(verdict.held for verdict in self.verdicts)

    def keep_history(self, directory: Path) -> Path:
        """Write the history of each message, and return the path."""
        path = directory / f"{self.fault}-qos-{self.workload.qos or 'mix'}-seed-{self.seed}.csv"
        history.write(path, self.history, self.span)
        return path

    def to_json(self) -> dict[str, Any]:
        """Return a document of all fields, without the history."""
        return {
            "fault": self.fault,
            "target": self.target,
            "seed": self.seed,
            "held": self.held,
            "messages": self.workload.messages,
            "qos": self.workload.qos or "mix",
            "accounting": self.accounting.to_json(),
            "promises": [{"promise": one.promise, "held": one.held, "seen": one.seen} for one in self.verdicts],
            "converged_s": self.converged_s,
            "drops": self.drops,
            "counters": {f"federator {site}": found for site, found in self.counters.items()},
            "took_s": round(self.took_s, 1),
        }


def require(fault: Fault | None, ground: Ground) -> None:
    """Refuse a fault that the ground does not support.

    Raises:
        LocalError: It names the missing abilities.
    """
    missing = sorted((fault.needs if fault is not None else frozenset()) - ground.abilities)
    if fault is not None and missing:
        raise LocalError(
            f"The fault {fault.name} needs control over {' and '.join(missing)}, which this federation does not give; "
            "omit --state to start a federation that does."
        )


async def run_round(
    ground: Ground,
    fault: Fault | None,
    workload: Workload,
    seed: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Round:
    """Run one fault against one workload.

    Raises:
        Unavailable: the federation did not forward messages before the fault began.
    """
    require(fault, ground)
    began_s = time.monotonic()
    chance = random.Random(seed)  # noqa: S311 - a fault must be repeatable, not secret
    run = int.from_bytes(os.urandom(4))
    await ground.wait_converged(CONVERGED_S)
    async with AsyncExitStack() as stack:
        publishers, subscribers = await _clients(stack, ground, workload, run)
        await _open(ground, publishers, subscribers, run)
        flow = await find_flow(ground, run, publishers[0].sent.site, subscribers[-1].reader.site)
        before = await _pages(ground)
        ends = ground.unasked_ends()
        tell("publishing")
        span, converged_s = await _stream(ground, fault, workload, chance, flow, publishers, filter_of(run), tell)
        await asyncio.gather(*(publisher.wait_acknowledged(_ACKNOWLEDGED_S) for publisher in publishers))
        tell("waiting for messages under way")
        await _drain(publishers, subscribers, workload)
        after = await _settled(ground)
        told = History([one.sent for one in publishers], [one.reader for one in subscribers])
    accounting = count(told, span)
    drops = pages.drops(before, after)
    bound_s = fault.converged_bound_s if fault is not None else CONVERGED_S
    held = {
        f"federator {site}: {name.removeprefix('hanse_federator_')}": value
        for site, page in enumerate(after)
        if page is not None
        for name, value in page.under_way.items()
    }
    ends = ground.unasked_ends() - ends
    evidence = Evidence(fault is not None, drops, converged_s, bound_s, ends, held, workload.messages)
    return Round(
        fault.name if fault is not None else NONE,
        fault.target if fault is not None else "nothing",
        seed,
        workload,
        accounting,
        judge(accounting, evidence),
        converged_s,
        told,
        span,
        drops,
        {place.site: pages.changes(before[place.site], after[place.site]) for place in ground.places},
        time.monotonic() - began_s,
    )


async def _clients(
    stack: AsyncExitStack, ground: Ground, workload: Workload, run: int
) -> tuple[list[Publisher], list[Subscriber]]:
    places = ground.places
    at = [site for site in PUBLISHERS_AT if site < len(places)]
    wanted = [site for site in SUBSCRIBERS_AT if site < len(places)] or [len(places) - 1]
    shares = [workload.messages // len(at) + (k < workload.messages % len(at)) for k in range(len(at))]
    publishers = [
        Publisher(
            run,
            k,
            site,
            places[site].broker_url,
            qos=workload.qos_by_topic(),
            count=shares[k],
            size_bytes=workload.size_bytes,
        )
        for k, site in enumerate(at)
    ]
    sent = [publisher.sent for publisher in publishers]
    qos = max(workload.qos_by_topic())
    subscribers = [Subscriber(run, k, site, places[site].broker_url, sent, qos) for k, site in enumerate(wanted)]
    clients: list[Publisher | Subscriber] = [*subscribers, *publishers]
    for client in clients:
        stack.push_async_callback(client.stop)
        await client.start()
    return publishers, subscribers


async def _open(ground: Ground, publishers: Sequence[Publisher], subscribers: Sequence[Subscriber], run: int) -> None:
    """Wait until all federators know the group, and a probe of each publisher has reached each subscriber."""
    until_s = time.monotonic() + _OPEN_S
    everyone = set(range(len(publishers)))
    while not all(subscriber.probed >= everyone for subscriber in subscribers):
        if time.monotonic() > until_s:
            deaf = [one.reader.site for one in subscribers if not one.probed >= everyone]
            raise Unavailable(
                f"Within {_OPEN_S:g} s, and before any fault, not every probe reached the subscribers at the brokers "
                f"{', '.join(map(str, deaf))}; look at the federators' logs."
            )
        for publisher in publishers:
            publisher.probe()
        await asyncio.sleep(0.3)
    await ground.wait_converged(_OPEN_S, filter_of(run))
    # A subscriber is entitled 2A after its subscription. A probe shows that its first route was ready before, but not
    # every second parent.
    await asyncio.sleep(2 * ground.interval_s)


async def find_flow(ground: Ground, run: int, origin: int, last: int) -> Flow:
    """Return the sites by role: from the origin to the core by the first parent, and those between."""
    sites = {place.id: place.site for place in ground.places}
    row = await ground.group(origin, filter_of(run))
    core = sites[row["core"]] if row is not None and row["core"] in sites else last
    way: list[int] = []
    at = origin
    while at != core and len(way) < len(sites):
        row = await ground.group(at, filter_of(run))
        if row is None or not row["parents"] or row["parents"][0] not in sites:
            break
        at = sites[row["parents"][0]]
        way.append(at)
    between = [site for site in way if site not in {core, last, origin}]
    return Flow(origin, between[0] if between else core, last, core)


async def _stream(
    ground: Ground,
    fault: Fault | None,
    workload: Workload,
    chance: random.Random,
    flow: Flow,
    publishers: Sequence[Publisher],
    group: str,
    tell: Callable[[str], None],
) -> tuple[Span | None, float | None]:
    """Publish, with the fault in the middle; return the fault's time, and the time to converge."""
    span_s = fault.span_s if fault is not None else 0.0
    before_s = _SAVED_BEFORE_S if fault is not None and fault.kills_brokers else BEFORE_S
    stream_s = before_s + span_s + AFTER_S if fault is not None else _NO_FAULT_S
    streams = [
        asyncio.create_task(publisher.stream(len(publisher.sent.sent_s) / stream_s, workload.window))
        for publisher in publishers
    ]
    span: Span | None = None
    try:
        if fault is not None:
            await asyncio.sleep(before_s - chance.uniform(0, _MOMENT_S))
            begin_s = time.monotonic()
            try:
                await fault.begin(ground, flow, chance)
                began_s = time.monotonic()
                tell(f"{fault.name}: {fault.target}")
                await asyncio.sleep(span_s)
            finally:
                await fault.end(ground)
            span = Span(begin_s, began_s, time.monotonic(), dict(fault.brokers_killed))
            tell("the fault has ended")
        converged_s: float | None
        try:
            converged_s = await ground.wait_converged(CONVERGED_S, group)
        except Unavailable:
            converged_s = None
        async with asyncio.timeout(stream_s + _STREAM_EXTRA_S):
            await asyncio.gather(*streams)
    except TimeoutError:
        pass  # the accounting shows how many messages were not published
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return span, converged_s


async def _drain(publishers: Sequence[Publisher], subscribers: Sequence[Subscriber], workload: Workload) -> None:
    """Wait until all acknowledged messages have arrived, or nothing new arrives any more."""
    until_s = time.monotonic() + workload.drain_s
    began_s = time.monotonic()
    while time.monotonic() < until_s:
        if not _missing(publishers, subscribers):
            await asyncio.sleep(_LATE_COPIES_S)
            return
        last_s = max(began_s, *(subscriber.received_s for subscriber in subscribers))
        if time.monotonic() - last_s > workload.quiet_s:
            return
        await asyncio.sleep(_POLL_S * 4)


def _missing(publishers: Sequence[Publisher], subscribers: Sequence[Subscriber]) -> bool:
    for k, publisher in enumerate(publishers):
        acked = publisher.sent.acked_s
        for subscriber in subscribers:
            copies = subscriber.reader.seen[k].copies
            if any(acked[n] and not copies[n] for n in range(publisher.sent.count)):
                return True
    return False


async def _settled(ground: Ground) -> list[pages.Page | None]:
    """Return the pages when no federator holds a message any more, or after a while."""
    until_s = time.monotonic() + _SETTLED_S
    while True:
        found = await _pages(ground)
        if not any(page.under_way for page in found if page is not None) or time.monotonic() > until_s:
            return found
        await asyncio.sleep(0.5)


async def _pages(ground: Ground) -> list[pages.Page | None]:
    async def read(metrics_url: str, broker_url: str) -> pages.Page | None:
        try:
            return await pages.read(metrics_url, broker_url)
        except HanseError:
            return None

    return list(await asyncio.gather(*(read(place.metrics_url, place.broker_url) for place in ground.places)))
