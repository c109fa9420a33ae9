"""Topics of real brokers: figure 1 of the TD-MQTT paper packet by packet, and 10,000 topics on five brokers."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator

import pytest
from tests.brokers import Mosquitto
from tests.federation import environment
from tests.gateway import packets as p
from tests.gateway.recorder import recorded
from tests.gateways import RawClient

from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.discovery import listening
from hanse.gateway.discovery.listening import Credentials, listen
from hanse.gateway.discovery.topics import Presence, Topics
from hanse.gateway.discovery.watch import TopicWatch
from hanse.gateway.placement import Broker
from hanse.mqtt.tls import TlsSettings

pytestmark = pytest.mark.processes

# Longer than anything here takes; nothing waits for it unless a test fails.
LONG_S = 60.0


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[Mosquitto]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Mosquitto(quiet=True)) for _ in range(5)]


def dialler() -> Dialler:
    return Dialler(TlsSettings(), timeout_s=10.0)


def publish(broker: Mosquitto, topics: list[str], *, retain: bool, payload: bytes = b"x") -> None:
    """Publish, and wait until the broker has taken all."""
    with socket.create_connection(("127.0.0.1", broker.port), 20) as client:
        client.sendall(p.connect(5, b"").packet)
        for k in range(0, len(topics), 500):
            part = topics[k : k + 500]
            packets = [p.publish(one.encode(), payload, 1, 1 + n, retain=retain) for n, one in enumerate(part)]
            client.sendall(b"".join(packets))
        client.sendall(b"\xc0\x00")
        have = b""
        while b"\xd0\x00" not in have[-2:]:
            more = client.recv(1 << 16)
            assert more, "the broker closed the connection"
            have = have[-2:] + more
        client.sendall(p.disconnect())


@pytest.mark.anyio
@pytest.mark.parametrize("level", [5, 4])
async def test_figure_1_packet_by_packet(brokers: list[Mosquitto], level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(brokers[0], ["figure/1"], retain=True)
    if level == 4:
        monkeypatch.setattr(listening, "MQTT_5", 4)
    seen: list[tuple[str, bool]] = []
    enough = asyncio.Event()

    def on_topic(topic: str, is_retained: bool) -> None:
        seen.append((topic, is_retained))
        enough.set()

    async with recorded(brokers[0].port) as recorder:
        broker = Broker("b", f"mqtt://127.0.0.1:{recorder.port}")
        run = await listen(dialler(), broker, on_topic, for_s=LONG_S, enough=enough)
        await recorder.until("> DISCONNECT")
    assert recorder.names == [
        "> CONNECT",
        "< CONNACK",
        "> SUBSCRIBE",
        "< SUBACK",
        "< PUBLISH",
        "> PUBACK",
        "> DISCONNECT",
    ]
    sent = dict(recorder.packets)
    assert sent["> SUBSCRIBE"] == p.subscribe(1, (b"#", 1), version=level)
    assert sent["> PUBACK"][2:] == sent["< PUBLISH"][12:14]
    assert sent["> DISCONNECT"] == b"\xe0\x00"
    assert seen == [("figure/1", True)]
    assert run.ended == listening.ENOUGH
    publish(brokers[0], ["figure/1"], retain=True, payload=b"")


@pytest.mark.anyio
async def test_a_run_ends_after_its_time_or_its_bytes(brokers: list[Mosquitto]) -> None:
    # Much more than one read brings, which may be beyond the limit.
    topics = [f"large/{k}" for k in range(100)]
    publish(brokers[0], topics, retain=True, payload=bytes(100_000))
    broker = Broker("b", f"mqtt://127.0.0.1:{brokers[0].port}")
    seen: set[str] = set()
    run = await listen(dialler(), broker, lambda topic, _: seen.add(topic), for_s=LONG_S, bytes_max=300_000)
    assert run.ended == listening.BYTES
    assert 2 <= len(seen) < len(topics)
    assert (
        await listen(dialler(), broker, lambda *_: None, filters=["nothing/here"], for_s=0.2)
    ).ended == listening.TIME
    publish(brokers[0], topics, retain=True, payload=b"")


@pytest.mark.anyio
async def test_a_broker_that_refuses_or_is_away_is_reported() -> None:
    with Mosquitto(anonymous=False) as broker:
        where = Broker("b", f"mqtt://127.0.0.1:{broker.port}")
        refused = await listen(dialler(), where, lambda *_: None, credentials=Credentials("u", "p"), for_s=LONG_S)
        assert (refused.ended, refused.detail) == (listening.REFUSED, "CONNACK with code 0x87")
    lost = await listen(dialler(), where, lambda *_: None, for_s=LONG_S)
    assert lost.ended == listening.LOST
    assert "cannot be reached" in lost.detail


@pytest.mark.anyio
async def test_ten_thousand_topics_on_five_brokers_within_time_and_memory(brokers: list[Mosquitto]) -> None:
    """Each broker retains 2,000 topics. A round finds all; the table stays within its bounds."""
    names = [[f"plant/{k}/line/{n}/temperature" for n in range(2_000)] for k in range(5)]
    for broker, topics in zip(brokers, names, strict=True):
        publish(broker, topics, retain=True)
    known = [Broker(f"b{k}", f"mqtt://127.0.0.1:{one.port}") for k, one in enumerate(brokers)]
    tracemalloc.start()
    try:
        table = Topics(bytes_max=16 << 20)
        watch = TopicWatch(table, dialler(), lambda: known, listen_s=1.0)
        async with asyncio.timeout(LONG_S):
            await watch.round()
            while table.count < 10_000:  # a machine that is busy with other work needs a second round
                await watch.round()
        await watch.stop()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table.counts() == {f"b{k}": 2_000 for k in range(5)}
    assert [table.topics_of(f"b{k}") for k in range(5)] == [sorted(topics) for topics in names]
    assert table.dropped == 0
    assert table.size_bytes < 16 << 20
    assert peak_bytes < 40 << 20
    assert table.presence("plant/3/#") == {"b3": Presence(2_000, 2_000)}
    assert table.presence("plant/+/line/77/temperature") == {f"b{k}": Presence(1, 1) for k in range(5)}

    small = Topics(topics_max=1_000)
    watch = TopicWatch(small, dialler(), lambda: known, listen_s=1.0)
    await watch.round()
    await watch.stop()
    assert small.count == 1_000
    assert small.dropped > 0


@pytest.mark.anyio
async def test_the_table_follows_a_topic_that_moves_and_forgets_one_that_ends(brokers: list[Mosquitto]) -> None:
    known = [Broker(f"b{k}", f"mqtt://127.0.0.1:{one.port}") for k, one in enumerate(brokers[:2])]
    table = Topics()
    watch = TopicWatch(table, dialler(), lambda: known, listen_s=0.3, expiry_s=0.0)
    publish(brokers[0], ["move/t"], retain=True)
    async with asyncio.timeout(LONG_S):
        while table.presence("move/t") != {"b0": Presence(1, 1)}:
            await watch.round()
        publish(brokers[0], ["move/t"], retain=True, payload=b"")

        async def publish_at_the_other() -> None:
            while True:
                await asyncio.to_thread(publish, brokers[1], ["move/t"], retain=False)
                await asyncio.sleep(0.02)

        task = asyncio.ensure_future(publish_at_the_other())
        # On demand, as for a client that has come back.
        while "b1" not in table.presence("move/t"):
            assert await watch.look(["move/t"], 5.0)
        assert table.presence("move/t")["b1"].homes == 1
        while table.presence("move/t") != {"b1": Presence(1, 1)}:
            await watch.round()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await watch.stop()
    assert set(watch.runs) <= {listening.TIME, listening.ENOUGH}


@pytest.mark.anyio
async def test_looks_are_bounded_and_shared(brokers: list[Mosquitto]) -> None:
    known = [Broker("b0", f"mqtt://127.0.0.1:{brokers[0].port}"), Broker("f", "mqtt://127.0.0.1:1", federator="f:1")]
    watch = TopicWatch(Topics(), dialler(), lambda: known)
    looks = [asyncio.ensure_future(watch.look([f"look/{k % 17}"], LONG_S)) for k in range(34)]
    async with asyncio.timeout(LONG_S):
        await asyncio.sleep(0)
        done, _ = await asyncio.wait(looks, timeout=0.05)
        assert [task.result() for task in done] == [False, False]
        assert watch.looks_refused == 2
        publishing = asyncio.ensure_future(_keep_publishing(brokers[0], [f"look/{k}" for k in range(16)]))
        assert all(await asyncio.gather(*(look for look in looks if look not in done)))
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    assert watch.runs == {listening.ENOUGH: 16}, "a broker with a federator was listened to, or a look was not shared"
    await watch.stop()


@pytest.mark.anyio
async def test_a_look_for_a_shared_subscription_takes_no_message_away(brokers: list[Mosquitto]) -> None:
    known = [Broker("b0", f"mqtt://127.0.0.1:{brokers[0].port}")]
    watch = TopicWatch(Topics(), dialler(), lambda: known)
    with RawClient(brokers[0].port) as member:
        member.send(p.connect(5, b"member").packet + p.subscribe(1, (b"$share/g/share/t", 0)))
        assert member.packet()[0] == 0x20
        assert member.packet() == p.suback(1, 0)
        look = asyncio.ensure_future(watch.look(["$share/g/share/t"], LONG_S))
        sent = 0
        async with asyncio.timeout(LONG_S):
            while not look.done():
                await asyncio.to_thread(publish, brokers[0], ["share/t"], retain=False)
                sent += 1
        assert sent > 0
        for _ in range(sent):
            assert (await asyncio.to_thread(member.packet))[0] & 0xF0 == 0x30
    await watch.stop()


async def _keep_publishing(broker: Mosquitto, topics: list[str]) -> None:
    while True:
        await asyncio.to_thread(publish, broker, topics, retain=False)
        await asyncio.sleep(0.05)


def test_the_command_lists_the_topics_of_each_broker() -> None:
    def discover(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hanse", "discover", "topics", "--for", "2s", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)

    with Mosquitto() as broker:
        publish(broker, ["cli/a", "cli/b"], retain=True)
        words = ["--broker", f"x=mqtt://127.0.0.1:{broker.port}", "--broker", "y=mqtt://127.0.0.1:1"]
        done = discover(*words)
        found = json.loads(discover(*words, "--json").stdout)
    assert (done.returncode, done.stdout.splitlines()) == (1, ["x\tcli/a", "x\tcli/b"])
    assert "y: lost (" in done.stderr
    assert found["brokers"]["x"]["topics"] == ["cli/a", "cli/b"]
    assert found["brokers"]["x"]["run"]["ended"] == "time"
    assert found["brokers"]["y"]["run"]["ended"] == "lost"
