"""One federation, simulated by one process or by two: the result is the same, and no process stays behind."""

import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hanse.errors import HanseError, LocalError
from hanse.protocol.effects import CloseLink
from hanse.protocol.settings import Settings
from hanse.sim.cut import crossing, halves
from hanse.sim.halves import NODE_TRACE_BLOCK, Part, PartEngine
from hanse.sim.host import Client
from hanse.sim.overlay import Overlay, build, given, line, ring
from hanse.sim.peer import Peer, second_process
from hanse.sim.run import ROUNDS_MAX, RunProfile, _processes, _simulate, run
from hanse.sim.seeds import overlay_random

T = TypeVar("T")


def results(profile: RunProfile) -> list[dict[str, Any]]:
    """Return the results of one process and of two, without the values that may differ."""
    found = []
    for processes in (1, 2):
        result = dataclasses.asdict(run(dataclasses.replace(profile, processes=processes)))
        assert result.pop("processes") == processes
        assert result.pop("seconds") >= 0  # rounded to milliseconds
        assert result.pop("rss_bytes") > 1_000_000
        found.append(result)
    assert not multiprocessing.active_children()
    return found


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "overlay",
    [
        "random",
        "grid",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("ring", "full", "placement", "scale-free")),
    ],
)
def test_one_process_and_two_agree_at_equal_latencies(overlay: str, seed: int) -> None:
    one, two = results(RunProfile(brokers=16, degree=4, groups=8, overlay=overlay, seed=seed))
    assert one == two
    assert one["converged"], one["trouble"]
    assert one["delivered"] == one["eligible"] > 0


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_one_process_and_two_agree_at_unequal_latencies(seed: int) -> None:
    one, two = results(RunProfile(brokers=20, degree=4, groups=10, cores=5, seed=seed, latency_ms=(5.0, 100.0)))
    assert one == two
    assert one["converged"], one["trouble"]


@pytest.mark.parametrize("is_wire", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_process_and_two_agree_with_bytes_and_with_objects(is_wire: bool) -> None:
    one, two = results(RunProfile(brokers=30, groups=30, cores=6, is_wire=is_wire, seed=4))
    assert one == two


@pytest.mark.parametrize("brokers", [1, 2, 3])
def test_the_smallest_federations_are_also_cut(brokers: int) -> None:
    one, two = results(RunProfile(brokers=brokers))
    assert one == two
    assert one["converged"], one["trouble"]


@pytest.mark.parametrize("latency_ms", [(1e6, 1e6), (3e4, 9e4)], ids=["nothing arrives", "all is late"])
def test_one_process_and_two_agree_on_why_a_federation_has_not_converged(latency_ms: tuple[float, float]) -> None:
    one, two = results(RunProfile(brokers=8, degree=3, groups=3, latency_ms=latency_ms))
    assert one == two
    assert not one["converged"]
    assert "core" in one["trouble"]
    assert one["rounds"] == ROUNDS_MAX


@pytest.mark.slow
def test_the_state_told_by_the_second_process_is_enough_for_any_verdict() -> None:
    """Compare both ways of judging at every moment from the start until the federation converges."""
    shape = build("random", 24, 4, overlay_random(3))
    whole = Part(shape, Settings(), None, seed=3, latency_s=(0.2, 0.9), is_wire=False)
    prepare(whole)
    here, there = multiprocessing.Pipe()
    parts = [
        Part(shape, Settings(), Peer(number, connection), seed=3, latency_s=(0.2, 0.9), is_wire=False)
        for number, connection in enumerate((here, there))
    ]
    with here, there, ThreadPoolExecutor(2) as pool:
        for part in parts:
            prepare(part)
        sentences: list[str | None] = []
        while not sentences or sentences[-1] is not None:
            whole.run(0.35)
            list(pool.map(lambda part: part.run(0.35), parts))
            sentences.append(whole.why_not_converged())
            assert list(pool.map(Part.why_not_converged, parts)) == [sentences[-1]] * 2
        assert list(pool.map(Part.trace_hash, parts)) == [whole.trace_hash()] * 2
    # No core named, different cores named, no route yet, no mesh yet.
    kinds = {
        kind
        for kind in ("names core", "knows no core", "hops from", "mesh")
        for text in sentences
        if kind in (text or "")
    }
    assert len(kinds) >= 3, sentences


def prepare(federation: Part) -> None:
    for k in range(12):
        for broker in (k, (5 * k + 7) % 24):
            federation.subscribe(Client(f"client-{k}-{broker}", broker), f"group/{k}")
    federation.start_all(within_s=1.0)


def test_a_window_is_the_smallest_latency_of_a_crossing_link() -> None:
    shape = build("random", 40, 4, overlay_random(1))
    here, there = multiprocessing.Pipe()
    with here, there:
        part = Part(shape, Settings(), Peer(0, here), seed=2, latency_s=(0.005, 0.1), is_wire=False)
    first, second = halves(shape)
    latencies = {ends: link.directions[0].latency_s for ends, link in part.links.items()}
    assert part.window_s == min(latencies[a, b] for a, b in shape.links if (a in first) != (b in first))
    assert part.window_s > min(latencies.values())
    assert part.nodes_here.keys() == first
    assert Part(shape, Settings(), None, seed=1, latency_s=(0.01, 0.01), is_wire=False).window_s == math.inf
    assert second


def test_simultaneous_frames_follow_all_other_events_in_the_order_of_their_senders() -> None:
    seen: list[str] = []
    engine = PartEngine(1)
    engine.frame_at(1.0, 7, seen.append, "frame of 7")
    engine.frame_at(1.0, 0, seen.append, "frame of 0")
    engine.at(1.0, seen.append, "timer")
    engine.frame_at(1.0, 7, seen.append, "second frame of 7")
    engine.frame_at(0.5, 9, seen.append, "earlier frame")
    engine.run_until(1.0)
    assert seen == ["earlier frame", "timer", "frame of 0", "frame of 7", "second frame of 7"]


def test_a_trace_covers_only_its_node_and_its_order() -> None:
    def trace(*records: tuple[int, int]) -> bytes:
        engine = PartEngine(1)
        for record in records:
            engine.note(*record)
        return engine.trace_of(5)

    assert trace((3, 5), (3, 6), (7, 5)) == trace((3, 5), (7, 5), (9, 6))
    assert trace((3, 5), (7, 5)) != trace((7, 5), (3, 5))
    # A frame belongs to its receiver.
    assert trace((1, 6 << 32 | 5)) != trace() == trace((1, 5 << 32 | 6))
    many = [(3, 5)] * (2 * NODE_TRACE_BLOCK)
    assert trace(*many) != trace(*many[1:])


@pytest.mark.parametrize(
    "shape",
    [build(kind, 60, 4, overlay_random(1)) for kind in ("random", "ring", "grid", "full", "placement", "scale-free")]
    + [line(1), line(2), given(range(4), []), given(range(9), [(0, 1), (2, 3)])],
)
def test_halves_are_balanced_and_complete(shape: Overlay) -> None:
    first, second = halves(shape)
    assert first
    assert not first & second
    assert first | second == set(shape.identities)
    ends = [sum(len(shape.neighbours(k)) for k in half) for half in (first, second)]
    assert abs(ends[0] - ends[1]) <= 2 * max(len(shape.neighbours(k)) for k in shape.identities)
    assert halves(shape) == (first, second)


def test_few_links_cross() -> None:
    assert crossing(ring(100), halves(ring(100))[0]) == 2
    shape = build("random", 1_000, 5, overlay_random(1))
    # Half of them would cross if federators were drawn at random.
    assert crossing(shape, halves(shape)[0]) < 0.25 * len(shape.links)


def test_an_error_of_the_second_process_is_raised_in_the_first() -> None:
    bad = RunProfile(brokers=5, overlay="0-1,1-9")
    with second_process(_simulate, bad) as peer, pytest.raises(HanseError, match="second process failed") as caught:
        peer.share("something")
    assert "Link 1-9 must join two different brokers" in str(caught.value)
    assert "Traceback" in caught.value.__notes__[0]
    assert not multiprocessing.active_children()


def test_a_second_process_that_is_killed_ends_the_run() -> None:
    with second_process(_simulate, RunProfile(brokers=5)) as peer:
        peer.share((math.inf, []))
        (process,) = multiprocessing.active_children()
        process.kill()
        process.join()
        # Its former output may still be in the pipe. The second call fails at the latest.
        with contextlib.suppress(HanseError):
            peer.share((math.inf, []))
        with pytest.raises(HanseError, match="ended with exit code -9"):
            peer.share((math.inf, []))
    assert not multiprocessing.active_children()


def test_an_error_of_the_first_process_ends_the_second() -> None:
    with pytest.raises(KeyboardInterrupt), second_process(_simulate, RunProfile(brokers=5)):
        raise KeyboardInterrupt
    assert not multiprocessing.active_children()


@pytest.mark.processes
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_first_process_ends_the_second(end: signal.Signals) -> None:
    # Far more than there is time for.
    words = [sys.executable, "-m", "hanse", "sim", "run", "--brokers", "5000", "--groups", "5000", "--processes", "2"]
    # Start it as a shell does: in a process group of its own, so that Ctrl-C reaches the whole group, and with SIGINT
    # not ignored. A script's background job ignores SIGINT, and its children inherit that.
    heeding = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        first = subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, env=environment())
    finally:
        signal.signal(signal.SIGINT, heeding)
    with first:
        try:
            second = wait_for(lambda: children(first.pid))
            os.killpg(first.pid, end) if end == signal.SIGINT else first.send_signal(end)
            first.communicate(timeout=30)
            wait_for(lambda: not Path(f"/proc/{second[0]}").exists())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that have begun their work."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    # Apart from the second process, `multiprocessing` has a process that tracks resources.
    return [child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def wait_for(condition: Callable[[], T]) -> T:
    """Wait until a condition is true and return its value."""
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("the condition was not true within a minute")


def test_a_link_that_a_federator_closes_ends_the_run() -> None:
    part = Part(line(2), Settings(), None, seed=1, latency_s=(0.01, 0.01), is_wire=False)
    part.start_all(within_s=0.0)
    part.run(1.0)
    with pytest.raises(HanseError, match="closed its link to 1: it lied"):
        part._carry_out(part.nodes[0], [CloseLink(1, "it lied")])


def test_large_federations_use_both_processors_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert [_processes(RunProfile(brokers=brokers)) for brokers in (499, 500)] == [1, 2]
    assert _processes(RunProfile(brokers=500, processes=1)) == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert _processes(RunProfile(brokers=500)) == 1


def test_three_processes_are_refused() -> None:
    with pytest.raises(LocalError, match="processes is 3"):
        RunProfile(processes=3)
