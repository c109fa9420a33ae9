"""Subscribers of one process: they count arrivals, and know when everything has arrived."""

import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hanse.load.gathering import GATHER_S, Gathering
from hanse.load.histogram import Histogram
from hanse.load.ledger import Ledger
from hanse.load.packets import Arrivals, Reader, Row
from hanse.load.plan import Load, parse_url
from hanse.load.wire import Wire, client_id

_PROGRESS_NS = 500_000_000
# Wait after the last expected message: a duplicate would arrive in this time.
LINGER_NS = 200_000_000


@dataclass(slots=True)
class Subscriber:
    """One connection and its records."""

    number: int
    wire: Wire
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    last_arrival_ns: int = 0
    measured: int = 0
    unique: int = 0


@dataclass(slots=True)
class Received:
    """Observations of the subscribers of one process."""

    received: int = 0
    lost: int = 0
    duplicates: int = 0
    reordered: int = 0
    corrupted: int = 0
    foreign: int = 0
    # Per subscriber: messages after the warm-up, and the last arrival.
    measured: list[tuple[int, int]] = field(default_factory=list)
    latency: Histogram = field(default_factory=Histogram)


class Subscribers:
    """Subscribers of one process. The constructor subscribes."""

    def __init__(self, load: Load, run: int, numbers: list[int]) -> None:
        self._load = load
        self._run = run
        self._result = Received()
        self._selector = selectors.DefaultSelector()
        self._subscribers: list[Subscriber] = []
        self._qos = load.qos if load.subscribe_qos is None else load.subscribe_qos
        for number in numbers:
            address = parse_url(load.subscribe_urls[number % len(load.subscribe_urls)])
            reader = Reader(load.size_bytes, verify=load.verify)
            wire = Wire(address, client_id(run, "sub", number), reader)
            wire.subscribe(load.subscription(), self._qos)
            one = Subscriber(number, wire)
            self._subscribers.append(one)
            self._selector.register(wire.socket, selectors.EVENT_READ, one)

    def run(
        self, finished: Callable[[], dict[int, int] | None], control: int, progress: Callable[[int], None]
    ) -> Received:
        """Receive until everything has arrived.

        Args:
            finished: returns the message count of each publisher once it is known; called when `control` is readable.
            control: a file descriptor.
            progress: called with the number of arrivals, now and then.
        """
        self._selector.register(control, selectors.EVENT_READ, None)
        sent: dict[int, int] | None = None
        told_ns = quiet_since_ns = time.perf_counter_ns()
        gathering = Gathering(self._qos) if self._load.rate_per_s is None else None
        while True:
            if gathering is not None and gathering.should_pause(time.perf_counter_ns(), self._result.received):
                time.sleep(GATHER_S)
            for key, events in self._selector.select(0.05):
                if key.data is None:
                    sent = finished()
                    if sent is not None:
                        self._selector.unregister(control)
                        quiet_since_ns = time.perf_counter_ns()
                    continue
                if self._serve(key.data, events):
                    quiet_since_ns = key.data.last_arrival_ns
            now_ns = time.perf_counter_ns()
            if now_ns - told_ns > _PROGRESS_NS:
                told_ns = now_ns
                progress(self._result.received)
            if sent is not None:
                patience_ns = LINGER_NS if self._has_all(sent) else int(self._load.idle_s * 1e9)
                if now_ns - quiet_since_ns > patience_ns:
                    return self._account(sent)

    def _serve(self, one: Subscriber, events: int) -> bool:
        if events & selectors.EVENT_WRITE:
            one.wire.flush()
            if not one.wire.has_unsent:
                self._selector.modify(one.wire.socket, selectors.EVENT_READ, one)
        if not events & selectors.EVENT_READ or (got := one.wire.receive()) is None:
            return False
        now_ns, arrivals = got
        if arrivals.answers:
            one.wire.send(arrivals.answers)
            if one.wire.has_unsent:
                self._selector.modify(one.wire.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
        return self._take(one, now_ns, arrivals)

    def _take(self, one: Subscriber, now_ns: int, arrivals: Arrivals) -> bool:
        """Record arrivals, and return whether any was new.

        Foreign messages and duplicates alone must not prolong a run.
        """
        before = one.unique
        for row in arrivals.rows:
            self._result.corrupted += row.corrupted
            if row.records:
                self._take_row(one, now_ns, row)
        is_new = one.unique > before
        if is_new:
            one.last_arrival_ns = now_ns
        return is_new

    def _take_row(self, one: Subscriber, now_ns: int, row: Row) -> None:
        runs, publishers, numbers, stamps = zip(*row.records, strict=True)
        count = len(numbers)
        # The usual row has one run and one publisher, and is entirely after the warm-up: C calls only.
        if (
            runs.count(self._run) == count
            and publishers.count(publishers[0]) == count
            and publishers[0] < self._load.publishers
        ):
            one.unique += self._ledger(one, publishers[0]).take(numbers)
            if min(numbers) >= self._load.warm_up:
                self._result.latency.add_since(now_ns, stamps)
                one.measured += count
                self._result.received += count
                return
            self._result.received += count
            measured = [stamp for number, stamp in zip(numbers, stamps, strict=True) if number >= self._load.warm_up]
            self._result.latency.add_since(now_ns, measured)
            one.measured += len(measured)
            return
        for run, publisher, number, stamp in row.records:
            if run != self._run or publisher >= self._load.publishers:
                self._result.foreign += 1
                continue
            self._result.received += 1
            one.unique += self._ledger(one, publisher).take((number,))
            if number >= self._load.warm_up:
                self._result.latency.add(now_ns - stamp)
                one.measured += 1

    def _ledger(self, one: Subscriber, publisher: int) -> Ledger:
        ledger = one.ledgers.get(publisher)
        if ledger is None:
            ledger = one.ledgers[publisher] = Ledger(self._load.count)
        return ledger

    def _has_all(self, sent: dict[int, int]) -> bool:
        total = sum(sent.values())
        return all(one.unique >= total for one in self._subscribers)

    def _account(self, sent: dict[int, int]) -> Received:
        result = self._result
        for one in self._subscribers:
            for publisher, count in sent.items():
                ledger = one.ledgers.get(publisher)
                result.lost += count if ledger is None else ledger.missing(count)
            for ledger in one.ledgers.values():
                result.duplicates += ledger.duplicates
                result.reordered += ledger.reordered
                result.foreign += ledger.out_of_range
            result.measured.append((one.measured, one.last_arrival_ns))
            self._selector.unregister(one.wire.socket)
            one.wire.close()
        self._selector.close()
        return result
