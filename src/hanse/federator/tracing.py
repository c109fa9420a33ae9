"""`POST /trace`: a probe from this federator, followed to its end, and this federator's part in probes of others.

A probe goes link by link. Each federator that handles it reports to the origin at once, over the origin's private
group, so a hop is seen even if the next link loses the probe. A probe that never sets out cannot tell why. The origin
therefore also asks all others over the management group. A federator that knows a reason (interest that `import` keeps
out, a member of the mesh whose link is down) answers with a *remark*.

Rules:

1. Nothing is delivered to clients, and nothing is kept except the memory of `protocol.tracing`.
2. A trace ends when all sent probes have been reported, and others have had `REMARKS_S` for remarks, or at its
   deadline. A probe without a report by then is unanswered.
3. Everything is bounded: simultaneous traces, reports per trace, probes and questions per second, and reports that wait
   for the origin's private group. More are refused and counted.
4. Reports come from other federators: a malformed one is counted and dropped.

Times are microseconds since 1970 by the clock of the federator that measured them.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hanse.errors import HanseError, RemoteError
from hanse.federator.crossing import Crossing
from hanse.federator.http import JSON, Reply
from hanse.mqtt.publication import encode, payload_of
from hanse.protocol import codec
from hanse.protocol.identity import private_group
from hanse.protocol.machine import Machine
from hanse.protocol.messages import PathHop, Probe, Run
from hanse.protocol.packets import split, topic_of
from hanse.protocol.topics import check_name, matches, may_cross
from hanse.protocol.tracing import WORDS, End, Reason, Tracer, Verdict, foremost

REPORT_TOPIC = "$hanse/trace"
# Simultaneous traces of one federator, and reports per trace: a federation of a thousand, twice.
TRACES_MAX = 8
REPORTS_MAX = 2_000
TRACE_BYTES_MAX = 8 * 1024 * 1024
# Size of one report, and the groups that it names of each kind. More are omitted.
REPORT_BYTES_MAX = 1024 * 1024
GROUPS_MAX = 8
# Probes and questions of others per second. Each costs a table lookup and one report.
HANDLED_A_SECOND_MAX = 200
# Longest duration of a trace, and its default. Reports take some milliseconds per hop. The first one must wait for the
# claim of the private group, which travels as fast.
WAIT_S = 2.0
WAIT_S_MAX = 10.0
# Time for remarks of others: longer if nothing arrived, because then they matter.
REMARKS_S, REMARKS_S_UNDELIVERED = 0.2, 1.0
# Number of reports that wait for the origin's private group, and their time.
PENDING_MAX = 64
PENDING_S = 2.0
_LOOK_AGAIN_S = 0.02
# Filters of local interest that are searched for a remark; there may be a million.
FILTERS_MAX = 100_000
_TEXT_MAX = 200
# Errors from parsing another's JSON: it nests too deep, or holds Infinity in place of a whole number.
_NOT_ONE_OF_OURS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


class _Trace:
    """One trace of this federator, with its reports."""

    def __init__(self, name: tuple[int, int, int], topic: str) -> None:
        self.name = name
        self.topic = topic
        self.hops: list[dict[str, Any]] = []
        self.remarks: list[dict[str, Any]] = []
        self.changed = asyncio.Event()
        self._bytes = 0

    def take(self, report: dict[str, Any], size: int = 0) -> bool:
        """Add a report; return False for one too many."""
        self._bytes += size
        if len(self.hops) + len(self.remarks) >= REPORTS_MAX or self._bytes > TRACE_BYTES_MAX:
            return False
        (self.remarks if report["is_remark"] else self.hops).append(report)
        self.changed.set()
        return True

    @property
    def delivered_at(self) -> list[int]:
        return sorted({hop["federator"] for hop in self.hops if hop["delivered"]})

    def fill_in(self) -> None:
        """Add hops whose own report is missing, from the paths in other reports."""
        known = {(hop["previous"], hop["federator"]) for hop in self.hops}
        for hop in list(self.hops):
            path = [*hop["path"], [hop["federator"], hop["arrived_us"], None]]
            for (before, *_), (here, arrived_us, left_us), (after, *_) in zip(path, path[1:], path[2:], strict=False):
                if (before, here) not in known:
                    known.add((before, here))
                    verdict = Verdict(forwarded=((after, ()),))
                    self.hops.append(_report(here, before, arrived_us, left_us, verdict))

    def unanswered(self) -> list[tuple[int, int]]:
        """Return senders and receivers of unreported probes; several to one neighbour count one by one."""
        sent = Counter((hop["federator"], one["neighbour"]) for hop in self.hops for one in hop["forwarded"])
        sent.subtract((hop["previous"], hop["federator"]) for hop in self.hops)
        return sorted(edge for edge, count in sent.items() if count > 0)


class Tracing:
    """Both roles: traces for this broker, and reports on the probes of others.

    Args:
        machine: machine whose plans probes follow.
        crossing: rules for leaving and entering the broker.
        publish: function that sends packets to a group over the federation.
        ask_all: function that sends a message to all federators.
        send: function that sends a probe to a neighbour; returns False if its link is down or full.
        is_host_up: function that returns whether the host broker is connected.
        filters: function that returns the filters of local clients.
        join, part: functions that join and leave the own private group.
        counters: counters to update.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        crossing: Crossing,
        publish: Callable[[str, list[bytes]], None],
        ask_all: Callable[[dict[str, object]], None],
        send: Callable[[int, bytes], bool],
        is_host_up: Callable[[], bool],
        filters: Callable[[], Iterable[str]],
        join: Callable[[], None],
        part: Callable[[], None],
        counters: Counter[str],
    ) -> None:
        self._machine = machine
        self._tracer = Tracer(machine)
        self._crossing = crossing
        self._publish = publish
        self._ask_all = ask_all
        self._send = send
        self._is_host_up = is_host_up
        self._filters = filters
        self._join = join
        self._part = part
        self._counters = counters
        self._traces: dict[tuple[int, int, int], _Trace] = {}
        self._next_number = 1
        self._tasks: set[asyncio.Task[None]] = set()
        self._second = 0
        self._handled = 0

    # --- our own traces -----------------------------------------------------------------------------------------------

    async def answer(self, body: bytes) -> Reply:
        """Answer `POST /trace` with `{"topic": ..., "wait_ms": ...}`: return the whole trace, as JSON."""
        try:
            topic, wait_s = _question(body)
        except HanseError as error:
            return 400, JSON, json.dumps({"error": str(error)})
        if len(self._traces) >= TRACES_MAX:
            self._counters["traces_refused"] += 1
            return 503, JSON, json.dumps({"error": f"{TRACES_MAX} traces are under way here; try again in a moment."})
        return 200, JSON, json.dumps(await self._trace(topic, wait_s))

    async def _trace(self, topic: str, wait_s: float) -> dict[str, Any]:
        machine = self._machine
        name = (machine.identity, machine.epoch, self._next_number)
        self._next_number += 1
        trace = self._traces[name] = _Trace(name, topic)
        self._join()
        started_us = _now_us()
        try:
            self._set_out(trace, started_us)
            await self._gather(trace, wait_s)
        finally:
            self._part()
            del self._traces[name]
        return _told(trace, started_us)

    def _set_out(self, trace: _Trace, started_us: int) -> None:
        topic = self._crossing.leave(trace.topic)
        if topic is None:
            is_open = may_cross(trace.topic)
            verdict = Verdict(ends=(End(Reason.EXPORT if is_open else Reason.NEVER_CROSSES),))
        elif not self._is_host_up():
            verdict = Verdict(ends=(End(Reason.HOST_DOWN, detail="publications of its clients do not arrive"),))
        else:
            self._ask_all({"kind": "trace", "id": trace.name, "topic": topic})
            verdict = self._tracer.look(topic)
        probe = Probe(*trace.name, topic or trace.topic, (), ())
        verdict, left_us = self._send_on(probe, started_us, verdict)
        trace.take(_report(self._machine.identity, None, started_us, left_us, verdict))

    async def _gather(self, trace: _Trace, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        is_stuck_here = not trace.hops[0]["forwarded"] and any(
            end["reason"] in (Reason.EXPORT, Reason.NEVER_CROSSES, Reason.HOST_DOWN) for end in trace.hops[0]["ends"]
        )
        while not is_stuck_here:
            remarks_s = REMARKS_S if trace.delivered_at else REMARKS_S_UNDELIVERED
            until = begun + (wait_s if trace.unanswered() else min(wait_s, remarks_s))
            if loop.time() >= until:
                return
            trace.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await trace.changed.wait()

    # --- probes and questions of others -------------------------------------------------------------------------------

    def on_probe(self, neighbour: int, payload: bytes) -> None:
        """Handle a neighbour's probe.

        Raises:
            RemoteError: it is malformed, or its path does not end with the neighbour.
        """
        arrived_us = _now_us()
        probe = codec.decode_probe(payload)
        if probe.path[-1].federator != neighbour:
            raise RemoteError(
                f"A probe of federator {probe.origin} came from {neighbour}, and its path ends with "
                f"{probe.path[-1].federator}; it must end with its sender."
            )
        if neighbour not in self._machine.neighbours():
            raise RemoteError(f"A probe came from federator {neighbour}, which is not a connected neighbour.")
        if not self._may_handle():
            return
        verdict = self._at_this_broker(probe.topic, self._tracer.take(neighbour, probe))
        verdict, left_us = self._send_on(probe, arrived_us, verdict)
        report = _report(self._machine.identity, neighbour, arrived_us, left_us, verdict)
        report["path"] = [[hop.federator, hop.arrived_us, hop.left_us] for hop in probe.path]
        self._tell(probe.origin, (probe.origin, probe.epoch, probe.number), report)

    def on_question(self, origin: int, message: dict[str, Any]) -> None:
        """Handle another federator's question for remarks. A malformed one raises ValueError or similar."""
        name = _name(message["id"])
        topic = str(message["topic"])
        try:
            check_name(topic)
        except RemoteError as error:
            raise ValueError(topic[:_TEXT_MAX]) from error
        if origin == self._machine.identity or name[0] != origin or not self._may_handle():
            return
        ends = self._remarks(topic)
        if ends:
            report = _report(self._machine.identity, None, _now_us(), None, Verdict(ends=ends))
            report["is_remark"] = True
            self._tell(origin, name, report)

    def _remarks(self, topic: str) -> tuple[End, ...]:
        ends = [end for end in self._tracer.look(topic).ends if end.reason is Reason.LINK_DOWN and end.groups]
        local = self._crossing.inward(topic)
        if local is not None and self._crossing.enter(topic) is None:
            wanted = tuple(
                filter_
                for _, filter_ in zip(range(FILTERS_MAX), self._filters(), strict=False)
                if matches(filter_, local)
            )
            if wanted:
                ends.append(End(Reason.IMPORT, wanted, detail="clients there subscribe to it"))
        return tuple(ends)

    def _at_this_broker(self, topic: str, verdict: Verdict) -> Verdict:
        """Note obstacles between the federator and its broker's clients."""
        if not verdict.delivered:
            return verdict
        if self._crossing.enter(topic) is None:
            end = End(Reason.IMPORT, verdict.delivered)
        elif not self._is_host_up():
            end = End(Reason.HOST_DOWN, verdict.delivered)
        else:
            return verdict
        return Verdict((), verdict.forwarded, (*verdict.ends, end))

    def _send_on(self, probe: Probe, arrived_us: int, verdict: Verdict) -> tuple[Verdict, int | None]:
        """Send the probe to the next hops. A link that does not accept it is an end."""
        sent: list[tuple[int, tuple[str, ...]]] = []
        ends = list(verdict.ends)
        left_us = None
        for neighbour, groups in verdict.forwarded:
            left_us = _now_us()
            hop = PathHop(self._machine.identity, arrived_us, left_us)
            payload = codec.encode_probe(probe._replace(groups=groups, path=(*probe.path, hop)))
            if self._send(neighbour, payload):
                sent.append((neighbour, groups))
            else:
                ends.append(End(Reason.LINK_DOWN, groups, neighbour, "it accepts nothing more"))
        return Verdict(verdict.delivered, tuple(sent), tuple(ends)), left_us if sent else None

    def _may_handle(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._handled = second, 0
        self._handled += 1
        if self._handled > HANDLED_A_SECOND_MAX:
            self._counters["traces_refused"] += 1
            return False
        return True

    # --- reports ------------------------------------------------------------------------------------------------------

    def _tell(self, origin: int, name: tuple[int, int, int], report: dict[str, Any]) -> None:
        group = private_group(origin)
        packet = encode(REPORT_TOPIC, json.dumps({"id": name, **report}).encode(), qos=1)
        if self._machine.is_known(group):
            self._publish(group, [packet])
        elif len(self._tasks) < PENDING_MAX:
            task = asyncio.ensure_future(self._tell_when_known(group, packet))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._counters["trace_reports_dropped"] += 1

    async def _tell_when_known(self, group: str, packet: bytes) -> None:
        """Wait for the origin's claim of its private group, then send the report."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PENDING_S
        while not self._machine.is_known(group) and loop.time() < until:  # noqa: ASYNC110 - a deadline, not an event
            await asyncio.sleep(_LOOK_AGAIN_S)
        if self._machine.is_known(group):
            self._publish(group, [packet])
        else:
            self._counters["trace_reports_dropped"] += 1

    def take_report(self, run: Run) -> bool:
        """Handle a run for our private group; return False if it is not a report."""
        try:
            if topic_of(run.body) != REPORT_TOPIC:
                return False
        except RemoteError:
            return False
        for start, end in split(run.body):
            try:
                report = json.loads(payload_of(run.body[start:end])) if end - start <= REPORT_BYTES_MAX else {}
                trace = self._traces.get(_name(report["id"]))
                is_taken = trace is not None and trace.take(_checked(run.origin, report), end - start)
            except _NOT_ONE_OF_OURS:
                is_taken = False
            if not is_taken:
                self._counters["trace_reports_dropped"] += 1
        return True

    async def stop(self) -> None:
        """End the traces under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _question(body: bytes) -> tuple[str, float]:
    try:
        question = json.loads(body)
        topic, wait_ms = question["topic"], question.get("wait_ms", WAIT_S * 1e3)
    except _NOT_ONE_OF_OURS as error:
        raise RemoteError('Expected JSON like {"topic": "a/b", "wait_ms": 2000}; wait_ms is optional.') from error
    if not isinstance(topic, str) or isinstance(wait_ms, bool) or not isinstance(wait_ms, int | float):
        raise RemoteError("The topic must be a string, and wait_ms a number.")
    if not 0 < wait_ms <= WAIT_S_MAX * 1e3:
        raise RemoteError(f"wait_ms is {wait_ms}; it must be above 0 and at most {WAIT_S_MAX * 1e3:.0f}.")
    check_name(topic)
    return topic, wait_ms / 1e3


def _report(
    federator: int, previous: int | None, arrived_us: int, left_us: int | None, verdict: Verdict
) -> dict[str, Any]:
    return {
        "federator": federator,
        "previous": previous,
        "is_remark": False,
        "arrived_us": arrived_us,
        "left_us": left_us,
        "delivered": list(verdict.delivered[:GROUPS_MAX]),
        "forwarded": [
            {"neighbour": neighbour, "groups": list(groups[:GROUPS_MAX])} for neighbour, groups in verdict.forwarded
        ],
        "ends": [
            {
                "reason": end.reason.value,
                "groups": list(end.groups[:GROUPS_MAX]),
                "neighbour": end.neighbour if end.neighbour >= 0 else None,
                "detail": end.detail,
            }
            for end in verdict.ends
        ],
        "path": [],
    }


def _checked(sender: int, report: dict[str, Any]) -> dict[str, Any]:
    """Return another federator's report, reduced to the known fields."""
    previous, left_us = report["previous"], report["left_us"]
    verdict = Verdict(
        tuple(map(str, report["delivered"])),
        tuple((int(one["neighbour"]), tuple(map(str, one["groups"]))) for one in report["forwarded"]),
        tuple(
            End(
                Reason(one["reason"]),
                tuple(map(str, one["groups"])),
                -1 if one["neighbour"] is None else int(one["neighbour"]),
                str(one["detail"])[:_TEXT_MAX],
            )
            for one in report["ends"]
        ),
    )
    checked = _report(
        sender,
        None if previous is None else int(previous),
        int(report["arrived_us"]),
        None if left_us is None else int(left_us),
        verdict,
    )
    checked["is_remark"] = report["is_remark"] is True
    checked["path"] = [[int(federator), int(came), int(went)] for federator, came, went in report["path"]]
    return checked


def _told(trace: _Trace, started_us: int) -> dict[str, Any]:
    """Return the answer: hops in order, unanswered probes as an end at their sender, and the most telling reason."""
    trace.fill_in()
    by_federator = {hop["federator"]: hop for hop in reversed(trace.hops)}
    for source, target in trace.unanswered():
        end = {"reason": Reason.NO_ANSWER.value, "groups": [], "neighbour": target, "detail": ""}
        by_federator[source]["ends"].append(end)
    reasons = {Reason(end["reason"]) for hop in (*trace.hops, *trace.remarks) for end in hop["ends"]}
    reason = None if trace.delivered_at else foremost(reasons)
    for hop in (*trace.hops, *trace.remarks):
        del hop["is_remark"]
        for end in hop["ends"]:
            end["words"] = WORDS[Reason(end["reason"])]
    return {
        "topic": trace.topic,
        "at": trace.name[0],
        "started_us": started_us,
        "delivered_at": trace.delivered_at,
        "reason": None if reason is None else reason.value,
        "words": "" if reason is None else WORDS[reason],
        "hops": sorted(trace.hops, key=lambda hop: (hop["arrived_us"], hop["federator"])),
        "remarks": sorted(trace.remarks, key=lambda remark: remark["federator"]),
    }


def _name(words: Any) -> tuple[int, int, int]:  # noqa: ANN401 - from another federator
    origin, epoch, number = words
    return int(origin), int(epoch), int(number)


def _now_us() -> int:
    return time.time_ns() // 1_000
