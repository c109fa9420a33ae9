"""Publishers of one process: as fast as the brokers accept, or on a schedule.

Rules:

1. On a schedule, message n of publisher j of P is due at start + (n P + j) / rate, whatever happened before. A broker
   that delays the publisher does not reduce its own load, and the delayed messages carry the time at which they were
   due.
2. The generator's own lateness does not count against the broker. If the generator was idle until its timer woke it,
   the stamp is the time of waking, and the lateness is counted separately (`send_lag`).
3. A QoS 1 or 2 publisher has at most its window unacknowledged, and then waits for the broker.
"""

import ctypes
import heapq
import selectors
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hanse.errors import Unavailable
from hanse.load.gathering import GATHER_S
from hanse.load.histogram import Histogram
from hanse.load.packets import Block, Reader
from hanse.load.plan import Load, parse_url
from hanse.load.wire import Wire, client_id

_PR_SET_TIMERSLACK = 29
_PROGRESS_NS = 500_000_000
# After this time without an acknowledgement, the fate of the rest is unknown and the run is over.
_STALLED_NS = 30_000_000_000
_TURN_BLOCKS = 4
# Interval of checks while the publisher waits for acknowledgements or capacity, on a schedule.
_LOOK_AGAIN_S = 0.001
_GATHER_WINDOW_MIN = 1_000
_FOREVER = 1 << 62


@dataclass(slots=True)
class Published:
    """Results of the publishers of one process."""

    sent: list[tuple[int, int]] = field(default_factory=list)
    acknowledged: int = 0
    refused: int = 0
    first_send_ns: int = _FOREVER
    measured_from_ns: int = _FOREVER
    last_send_ns: int = 0
    lag: Histogram = field(default_factory=Histogram)


class _Publisher:
    def __init__(self, load: Load, run: int, number: int) -> None:
        self.number = number
        self.block = Block(run, number, load.topics_of(number), load.size_bytes, load.qos)
        address = parse_url(load.publish_urls[number % len(load.publish_urls)])
        self.wire = Wire(address, client_id(run, "pub", number), Reader(load.size_bytes))
        self.window = min(load.window_or_default, self.wire.receive_max) if load.qos else _FOREVER
        # A trickle of acknowledgements should not become a trickle of tiny writes.
        self.batch_min = max(1, min(self.window // 4, 64)) if load.qos and load.rate_per_s is None else 1
        self.count = load.count
        self.next = 0
        self.in_flight = 0

    def can_take(self) -> int:
        if self.wire.has_unsent:
            return 0
        free = min(self.window - self.in_flight, self.count - self.next)
        if free < self.batch_min and self.in_flight and free < self.count - self.next:
            return 0
        return min(free, self.block.room())

    def send(self, times_ns: list[int]) -> None:
        self.wire.send(self.block.take(self.next, times_ns))
        self.next += len(times_ns)
        if self.window != _FOREVER:
            self.in_flight += len(times_ns)

    @property
    def is_done(self) -> bool:
        return self.next == self.count and not self.in_flight and not self.wire.has_unsent


class Publishers:
    """The publishers of one process: connect, then `run`."""

    def __init__(self, load: Load, run: int, numbers: list[int]) -> None:
        self._load = load
        self._publishers = [_Publisher(load, run, number) for number in numbers]
        self._result = Published()
        self._sent_for_acknowledgement = 0
        self._selector = selectors.DefaultSelector()
        for one in self._publishers:
            self._selector.register(one.wire.socket, selectors.EVENT_READ, one)

    def run(self, progress: Callable[[int], None]) -> Published:
        """Publish everything, and wait for the acknowledgements."""
        if self._load.rate_per_s is None:
            self._saturate(progress)
        else:
            self._keep_to_schedule(self._load.rate_per_s, progress)
        self._result.sent = [(one.number, one.next) for one in self._publishers]
        for one in self._publishers:
            self._selector.unregister(one.wire.socket)
            one.wire.close()
        self._selector.close()
        return self._result

    def _saturate(self, progress: Callable[[int], None]) -> None:
        waiting = list(self._publishers)
        told_ns = moved_ns = time.perf_counter_ns()
        # Acknowledgements come one by one. With a window that outlasts the pause, it pays to wait for many.
        gathers = bool(self._load.qos) and all(one.window >= _GATHER_WINDOW_MIN for one in waiting)
        while waiting:
            for one in waiting:
                one.wire.flush()
                for _ in range(_TURN_BLOCKS):
                    count = one.can_take()
                    if not count:
                        break
                    now_ns = time.perf_counter_ns()
                    self._note(one, count, now_ns, now_ns)
                    one.send([now_ns] * count)
            waiting = [one for one in waiting if not one.is_done]
            if gathers and waiting:
                time.sleep(GATHER_S)
            moved_ns = self._wait(waiting, moved_ns, timeout_s=1.0)
            now_ns = time.perf_counter_ns()
            if now_ns - told_ns > _PROGRESS_NS:
                told_ns = now_ns
                progress(sum(one.next for one in self._publishers))

    def _keep_to_schedule(self, rate_per_s: float, progress: Callable[[int], None]) -> None:
        _wake_precisely()
        every_ns = 1e9 / rate_per_s
        # The schedule is that of all processes together. This process has the slots of its own publishers.
        step_ns = every_ns * self._load.publishers
        start_ns = time.perf_counter_ns() + 1_000_000
        idle_since_ns = told_ns = moved_ns = start_ns
        offsets = [start_ns + one.number * every_ns for one in self._publishers]
        # A publisher without due messages sleeps in the heap. One that could not send all its due messages is behind,
        # and tries again.
        asleep = [(due_ns, index) for index, due_ns in enumerate(offsets)]
        heapq.heapify(asleep)
        behind: list[int] = []
        while asleep or behind or self._in_flight():
            now_ns = time.perf_counter_ns()
            awake, behind = behind, []
            while asleep and asleep[0][0] <= now_ns:
                awake.append(heapq.heappop(asleep)[1])
            for index in awake:
                one = self._publishers[index]
                one.wire.flush()
                due = min(one.count, int((now_ns - offsets[index]) / step_ns) + 1)
                while one.next < due and (count := min(one.can_take(), due - one.next)):
                    self._send_due(
                        one,
                        count,
                        offset_ns=offsets[index],
                        step_ns=step_ns,
                        idle_since_ns=idle_since_ns,
                    )
                    moved_ns = now_ns
                if one.next < due or one.wire.has_unsent:
                    behind.append(index)
                elif one.next < one.count:
                    heapq.heappush(asleep, (offsets[index] + one.next * step_ns, index))
            moved_ns = self._wait(self._publishers, moved_ns, timeout_s=0)
            idle_since_ns = time.perf_counter_ns()
            if idle_since_ns - told_ns > _PROGRESS_NS:
                told_ns = idle_since_ns
                progress(sum(one.next for one in self._publishers))
            pause_s = (asleep[0][0] - idle_since_ns) / 1e9 if asleep else _LOOK_AGAIN_S
            if behind or self._in_flight():
                pause_s = min(pause_s, _LOOK_AGAIN_S)
            if pause_s > 0:
                time.sleep(min(pause_s, 0.5))

    def _in_flight(self) -> int:
        return self._sent_for_acknowledgement - self._result.acknowledged

    def _send_due(self, one: _Publisher, count: int, *, offset_ns: float, step_ns: float, idle_since_ns: int) -> None:
        times_ns = []
        now_ns = time.perf_counter_ns()  # as close to the sending as possible: the time before is not the broker's
        for number in range(one.next, one.next + count):
            due_ns = int(offset_ns + number * step_ns)
            was_idle = due_ns >= idle_since_ns
            times_ns.append(now_ns if was_idle else due_ns)
            self._result.lag.add(now_ns - due_ns)
        # Rates are those of the schedule: a late first message must not make it look faster.
        self._note(one, count, int(offset_ns + one.next * step_ns), now_ns)
        one.send(times_ns)

    def _note(self, one: _Publisher, count: int, began_ns: int, now_ns: int) -> None:
        result = self._result
        result.first_send_ns = min(result.first_send_ns, began_ns)
        if one.next + count > self._load.warm_up:
            result.measured_from_ns = min(result.measured_from_ns, began_ns)
        result.last_send_ns = now_ns
        if self._load.qos:
            self._sent_for_acknowledgement += count

    def _wait(self, waiting: list[_Publisher], moved_ns: int, timeout_s: float) -> int:
        """Read acknowledgements, and wait for them or for capacity if nothing else can be done."""
        if not waiting:
            return moved_ns
        if timeout_s:
            for one in waiting:
                wants = selectors.EVENT_READ
                if one.wire.has_unsent:
                    wants |= selectors.EVENT_WRITE
                if self._selector.get_key(one.wire.socket).events != wants:
                    self._selector.modify(one.wire.socket, wants, one)
            if any(one.can_take() for one in waiting):
                timeout_s = 0
        now_ns = time.perf_counter_ns()
        for key, events in self._selector.select(timeout_s):
            one = key.data
            if events & selectors.EVENT_WRITE:
                moved_ns = now_ns
            if not events & selectors.EVENT_READ or (got := one.wire.receive()) is None:
                continue
            _, arrivals = got
            moved_ns = now_ns
            one.in_flight -= arrivals.acknowledged
            self._result.acknowledged += arrivals.acknowledged
            self._result.refused += arrivals.refused
            if arrivals.answers:
                one.wire.send(arrivals.answers)
        if now_ns - moved_ns > _STALLED_NS and (self._in_flight() or any(one.wire.has_unsent for one in waiting)):
            raise Unavailable(f"A broker accepted nothing for 30 s; {self._in_flight()} messages are unacknowledged.")
        return moved_ns


def _wake_precisely() -> None:
    """Ask Linux for timers that are precise to 1 ns.

    By default they may be 50 us late to save power, which is half of the time that one broker takes.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
