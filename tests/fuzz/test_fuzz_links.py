"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is the link port of a whole agent: a handshake, frames, and any messages and runs in them. Whatever a
neighbour sends, the host broker gets well-formed publications on topics that cross, or nothing.
"""

import asyncio
import json
from pathlib import Path

import mqtt5
import pytest
from hypothesis import strategies as st
from tests.fuzz.agents import Scene, Sink, scenes
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.protocol.net import packet
from tests.protocol.strategies import CONTROL_FRAMES, batches

from hanse.mqtt.publication import encode
from hanse.protocol import codec
from hanse.protocol.identity import private_group
from hanse.protocol.messages import Run
from hanse.protocol.settings import MANAGEMENT_GROUP


def frame(topic: str, payload: bytes, number: int = 0) -> bytes:
    qos = mqtt5.QoS(1 if number else 0)
    return mqtt5.PublishPacket(topic, payload, qos=qos, packet_id=number or None).write()


CONNECT = mqtt5.ConnectPacket("2", user_properties=[("protocol", "1"), ("hanse", "0")], clean_start=True).write()
CONTROLS = CONTROL_FRAMES.map(lambda one: frame("c", codec.encode_control(one)))
DATA = st.builds(lambda runs, number: frame("d", codec.encode_data(runs), number), batches(), st.integers(0, 5))
TOPICS = st.sampled_from(
    ["a/b", "a/x", "$SYS/broker/log", "federator/core_ann/7/2", "hanse/probe/x", "$hanse/telemetry/v1/x/1"]
)


def run_of(groups: tuple[str, ...], first: int, packets: list[bytes]) -> bytes:
    return frame("d", codec.encode_data([Run(3, 1_000, first, len(packets), 0, 1, groups, b"".join(packets))]))


WANTED = st.builds(
    lambda topics, payload, first: run_of(("a/#",), first, [packet(topic, payload) for topic in topics]),
    st.lists(TOPICS, min_size=1, max_size=3),
    st.binary(max_size=5),
    st.integers(0, 50),
)
WORDS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["retained", "shares", "bridges", "x"])},
    optional={
        "names": st.lists(st.text(max_size=3)) | st.integers(),
        "filters": st.lists(st.just("a")),
        "to": st.sampled_from([-1, 2, 2**70, float("inf"), "7", None]),
    },
)
GROUPS = st.sampled_from([MANAGEMENT_GROUP, private_group(7), "$hanse/x", "$hanse/telemetry/#"])
INTERNAL = st.builds(
    lambda word, group, first: run_of((group,), first, [encode(MANAGEMENT_GROUP, json.dumps(word).encode())]),
    WORDS,
    GROUPS,
    st.integers(0, 50),
)
STREAMS = st.lists(st.one_of(WANTED, INTERNAL, CONTROLS, DATA), min_size=2, max_size=6).map(
    lambda frames: CONNECT + b"".join(frames)
)


async def talk(scene: Scene, data: bytes) -> Sink:
    protocol, sink = scene.connect()
    size = len(data) if len(data) % 2 else 1 + len(data) // 3
    for at in range(0, len(data), max(1, size)):
        if not sink.is_closed:
            protocol.data_received(data[at : at + size])
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    scene.end()
    await asyncio.sleep(0)
    await scene.agent.retained.stop()
    return sink


@pytest.mark.parametrize("settings", [{}, {"import_deny": ("a/x",), "prefix": "p"}], ids=["plain", "named"])
def test_the_agent_survives_any_input_from_a_neighbour(tmp_path: Path, settings: dict[str, object]) -> None:
    with scenes(tmp_path, **settings) as (runner, state, read):

        def take(data: bytes) -> None:
            async def once() -> None:
                await talk(Scene(state, read), data)

            runner.run(once())

        fuzz("links", STREAMS, take, refusals=(), is_slow=True)
        if not settings:
            many = frame("d", codec.encode_data([]))
            assert_linear(lambda size: CONNECT + many * (size // len(many)), take, refusals=(), large=1 << 17)
