"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is the host broker's side of a whole agent: CONNACK and later packets, with messages that any client of that
broker may publish on the agent's topics: log lines, beacons, announcements, control topics.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import mqtt5
import pytest
from hypothesis import strategies as st
from tests.fuzz.agents import IDENTITY, Scene, Sink, scenes
from tests.fuzz.fuzzing import fuzz
from tests.protocol.strategies import CONTROL_FRAMES, batches

from hanse.federator.broker_link import encode_data
from hanse.mqtt.connection import Connection
from hanse.protocol import codec

CONNACK = mqtt5.ConnAckPacket(user_properties=[("a", "b")]).write()
TOPICS = st.sampled_from(
    [
        "$SYS/broker/log/M/subscribe",
        "$SYS/broker/log/M/unsubscribe",
        "$SYS/broker/log/N",
        "$SYS/broker/connection/x/state",
        "federator/beacon/a/b",
        "federator/beacon/$SYS/x",
        f"federator/core_ann/{IDENTITY}/2",
        f"federator/memb_ann/{IDENTITY}/2",
        f"federator/routing/{IDENTITY}/2",
        f"federator/ack/{IDENTITY}/2",
        "NEW_REGULAR_TOPIC",
        "a/b",
    ]
)
PAYLOADS = st.one_of(
    st.sampled_from([b"c 1 a/#", b"c a/#", b"Client c disconnected.", b"1", b'{"topic": "a/+"}', b""]),
    CONTROL_FRAMES.map(codec.encode_control),
    batches().map(codec.encode_data).map(lambda frame: encode_data(1_000, 3, frame)),
    st.binary(max_size=30),
)


def message(topic: str, payload: bytes, qos: int, number: int, identifiers: list[int], retain: bool) -> bytes:
    packet_id = number if qos else None
    return mqtt5.PublishPacket(
        topic, payload, qos=mqtt5.QoS(qos), packet_id=packet_id, subscription_ids=identifiers, retain=retain
    ).write()


MESSAGES = st.builds(
    message,
    TOPICS,
    PAYLOADS,
    st.integers(0, 2),
    st.integers(1, 9),
    st.sampled_from([[1], [1, 2], [2], []]),
    st.booleans(),
)
ANSWERS = st.sampled_from(
    [
        mqtt5.SubAckPacket(64_512, [mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE] * 4).write(),
        mqtt5.PubAckPacket(1).write(),
        mqtt5.PubRecPacket(1).write(),
        mqtt5.PubRelPacket(1).write(),
        mqtt5.DisconnectPacket(reason_str="x").write(),
        mqtt5.PingRespPacket().write(),
    ]
)
STREAMS = st.lists(st.one_of(MESSAGES, MESSAGES, ANSWERS), min_size=1, max_size=8).map(
    lambda packets: CONNACK + b"".join(packets)
)


async def serve(scene: Scene, data: bytes) -> None:
    client = scene.agent.host.client
    made: list[tuple[Connection, Sink]] = []

    async def dial(make: Callable[[], Connection]) -> None:
        if made:
            raise OSError("one connection is enough")
        made.append((make(), Sink()))
        made[0][0].connection_made(made[0][1])

    client._dial = dial
    scene.agent.host.listen(scene.agent.interest.topics())
    await client.start()
    for _ in range(5):
        await asyncio.sleep(0)
    protocol, sink = made[0]
    for piece in (data[: len(CONNACK)], data[len(CONNACK) :]):
        if piece and not sink.is_closed:
            protocol.data_received(piece)
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    await client.stop()
    scene.end()
    await scene.agent.retained.stop()


@pytest.mark.parametrize("link", ["direct", "broker"])
def test_the_agent_survives_any_input_from_the_host(tmp_path: Path, link: str) -> None:
    sources = ("mosquitto-log", "beacon", "announce")
    with scenes(tmp_path, link=link, interest=sources) as (runner, state, read):

        def take(data: bytes) -> None:
            async def once() -> None:
                await serve(Scene(state, read), data)

            runner.run(once())

        fuzz("host", STREAMS, take, refusals=(), is_slow=True)
