"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is the protocol's machine: well-formed frames with any content, runs with any claims, between ticks. It never
raises, sends nothing back to its sender, and keeps its limits. A program of bytes determines senders, messages and
times.
"""

import tracemalloc
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.fuzzing import GROWTH_BYTES_MAX, fuzz
from tests.protocol.strategies import CONTROL_FRAMES, batches

from hanse.errors import RemoteError
from hanse.protocol import codec
from hanse.protocol.effects import EMITTED, Effect, Emit, Send, SendRuns
from hanse.protocol.events import LinkDown, LinkUp, Received, Subscribed, Tick
from hanse.protocol.machine import Machine
from hanse.protocol.messages import ControlFrame, Run
from hanse.protocol.settings import Settings

GROUPS_MAX, CORES_MAX, PARKED_BYTES_MAX = 40, 15, 2_000
SETTINGS = Settings(groups_max=GROUPS_MAX, cores_max=CORES_MAX, neighbours_max=4, parked_bytes_max=PARKED_BYTES_MAX)
NEIGHBOURS = (1, 2, 300)


class Scene:
    """Federator with three neighbours, any of which may send anything."""

    def __init__(self) -> None:
        self.machine = Machine(5, SETTINGS, now=0.0, wall_s=1_000)
        self.now = 0.0
        self.numbers = dict.fromkeys(NEIGHBOURS, 0)
        self.check(self.machine.start(0.0))
        for neighbour in NEIGHBOURS:
            self.check(self.machine.step(0.0, LinkUp(neighbour)))
        for wanted in ("a/#", "+", "sensors/b"):
            self.check(self.machine.step(0.0, Subscribed(wanted)))

    def check(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(_, frame):
                    assert codec.decode_control(codec.encode_control(frame)) == frame
                case SendRuns(_, runs):
                    assert codec.decode_data(codec.encode_data(runs)) == list(runs)
                case Emit(name):
                    assert name in EMITTED

    def say(self, neighbour: int, frame: ControlFrame, *, is_plausible: bool) -> None:
        if is_plausible:  # otherwise nearly all are stale, or from a stranger
            self.numbers[neighbour] += 1
            frame = replace(frame, sender=neighbour, epoch=1_000, number=self.numbers[neighbour])
        self.check(self.machine.step(self.now, Received(neighbour, frame)))

    def hand_in(self, neighbour: int, runs: list[Run]) -> None:
        routed = self.machine.forward(self.now, neighbour, runs)
        for to, sent in routed.frames.items():
            assert to != neighbour
            assert codec.decode_data(codec.encode_data(sent)) == sent
            assert all(run.hops <= 255 for run in sent)
        for run in routed.deliveries:
            assert run.origin != self.machine.identity

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(100):
            if self.machine.deadline > until:
                break
            self.now = max(self.now, self.machine.deadline)
            self.check(self.machine.step(self.now, Tick()))
        self.now = until

    def check_limits(self) -> None:
        machine = self.machine
        assert len(machine.groups()) <= GROUPS_MAX + 4
        assert len(machine.neighbours()) <= 4
        assert machine.parked_bytes <= PARKED_BYTES_MAX
        assert sum(machine.distance_to(core) is not None for core in range(600)) <= CORES_MAX + 1
        assert len(machine.host_subscriptions()) <= GROUPS_MAX + 4


def take(data: bytes) -> None:
    """Run a program.

    Each piece has a byte for the sender, one for the kind, two for the length, and the frame's bytes.
    """
    scene = Scene()
    at = 0
    refusal: RemoteError | None = None
    while at + 4 <= len(data):
        who, how, size = data[at], data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        frame, at = data[at + 4 : at + 4 + size], at + 4 + size
        neighbour = NEIGHBOURS[who % 3]
        try:
            if how & 1:
                scene.hand_in(neighbour, codec.decode_data(frame))
            else:
                scene.say(neighbour, codec.decode_control(frame), is_plausible=bool(how & 2))
        except RemoteError as error:
            refusal = error
        if how & 4:
            scene.wait((how >> 4) / 3)
        if how & 8 and how & 16:
            scene.check(scene.machine.step(scene.now, LinkDown(neighbour, is_removed=bool(how & 32))))
            scene.check(scene.machine.step(scene.now, LinkUp(neighbour)))
    scene.wait(2.0)
    scene.check_limits()
    if refusal is not None:
        raise refusal


def piece(who: int, how: int, frame: bytes) -> bytes:
    return bytes((who, how)) + len(frame).to_bytes(2) + frame


CONTROLS = st.builds(
    piece, st.integers(0, 2), st.integers(0, 127).map(lambda how: how * 2), CONTROL_FRAMES.map(codec.encode_control)
)
DATA = st.builds(
    piece, st.integers(0, 2), st.integers(0, 127).map(lambda how: how * 2 + 1), batches().map(codec.encode_data)
)
PROGRAMS = st.lists(st.one_of(CONTROLS, DATA), min_size=1, max_size=12).map(b"".join)


def test_the_machine_survives_any_input_from_neighbours() -> None:
    fuzz("machine", PROGRAMS, take, is_slow=True)


@settings(max_examples=3, deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(NEIGHBOURS), CONTROL_FRAMES), min_size=20, max_size=20))
def test_ten_thousand_false_messages_do_not_make_memory_grow(words: list[tuple[int, ControlFrame]]) -> None:
    scene = Scene()
    for neighbour, frame in words:
        scene.say(neighbour, frame, is_plausible=True)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2_000):
            neighbour, frame = words[number % len(words)]
            scene.say(neighbour, frame, is_plausible=True)
            if number % 100 == 0:
                scene.wait(0.1)
        assert tracemalloc.get_traced_memory()[0] - before < GROWTH_BYTES_MAX
    finally:
        tracemalloc.stop()
    scene.check_limits()
