"""The client against the real broker."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import uvloop
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.brokers import Mosquitto, free_port

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.mqtt.client import Client, ClientHandler, ClientSettings, Will
from hanse.mqtt.publication import Publication, decode, encode
from hanse.mqtt.subscriptions import Subscription

pytestmark = pytest.mark.processes
DEADLINE_S = 20.0
LIVE: list[Client] = []


class Recorder(ClientHandler):
    def __init__(self) -> None:
        self.client: Client | None = None
        self.publications: list[Publication] = []
        self.acknowledged: list[int] = []
        self.refused: list[tuple[int, int]] = []
        self.connected: list[bool] = []
        self.disconnected: list[HanseError | None] = []
        self.subscribed: list[tuple[Subscription, int]] = []
        self.unsubscribed: list[tuple[Subscription, int]] = []
        self.batches = 0

    def on_connected(self, session_present: bool) -> None:
        self.connected.append(session_present)

    def on_disconnected(self, error: HanseError | None) -> None:
        self.disconnected.append(error)

    def on_publications(self, publications: list[Publication]) -> None:
        self.publications += publications
        self.batches += 1

    def on_acknowledged(self, numbers: list[int]) -> None:
        self.acknowledged += numbers

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        self.refused += refused

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.subscribed += answers

    def on_unsubscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.unsubscribed += answers


async def until(condition: Callable[[], object], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        if loop.time() > deadline:
            raise TimeoutError(f"not within {DEADLINE_S} s: {what}")
        await asyncio.sleep(0.005)


async def connected(url: str, client_id: str, **settings: Any) -> tuple[Client, Recorder]:
    recorder = Recorder()
    client = Client(ClientSettings(url=url, client_id=client_id, **settings), recorder, jitter=lambda: 0.5)
    recorder.client = client
    await client.start(must_connect=True)
    LIVE.append(client)
    return client, recorder


def play(story: Callable[[Mosquitto], Coroutine[Any, Any, None]], broker: Mosquitto) -> None:
    async def with_an_end() -> None:
        try:
            await story(broker)
        finally:
            while LIVE:
                await LIVE.pop().stop()

    uvloop.run(with_an_end())


async def subscribed(client: Client, *items: Subscription) -> None:
    client.subscribe(items)
    await until(lambda: client.is_subscribed, "SUBACK")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_batch_makes_the_round_trip_at_each_qos(qos: int) -> None:
    async def story(broker: Mosquitto) -> None:
        there, sent = await connected(broker.url, "there")
        back, got = await connected(broker.url, "back", auto_ack=True)
        await subscribed(back, Subscription("t/#", identifier=7))
        run = b"".join(encode(f"t/{n % 10}", str(n).encode(), qos=qos) for n in range(500))
        first = there.publish_run(run)
        await until(lambda: len(got.publications) == 500, "500 publications")
        assert [int(p.payload) for p in got.publications] == list(range(500))
        assert b"".join(p.packet for p in got.publications) == run
        assert {(p.qos, p.subscription_ids, p.retain, p.dup) for p in got.publications} == {(qos, (7,), False, False)}
        assert got.batches < 500
        if qos:
            await until(lambda: len(sent.acknowledged) == 500, "500 acknowledgements")
            assert sorted(sent.acknowledged) == list(range(first, first + 500))
            assert there.unacknowledged == 0
        else:
            assert first == 0

    with Mosquitto("max_inflight_messages 100", "max_queued_messages 0") as broker:
        play(story, broker)


def test_a_unix_socket_works_like_tcp_also_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"

    async def story(broker: Mosquitto) -> None:
        # Nothing listens at the address, so all traffic goes over the socket.
        nowhere = f"mqtt://127.0.0.1:{free_port()}"
        client, recorder = await connected(nowhere, "beside", socket_path=path, auto_ack=True)
        await subscribed(client, Subscription("t/#", no_local=False))
        client.publish_run(b"".join(encode("t/x", b"x" * 50_000, qos=1) for _ in range(40)))
        await until(lambda: len(recorder.publications) == 40, "40 publications of 50,000 bytes")
        broker.kill()
        await until(lambda: recorder.disconnected, "the loss to be noticed")
        broker.start()
        await until(lambda: len(recorder.connected) == 2 and client.is_subscribed, "another session")
        client.publish_run(encode("t/y", b"again"))
        await until(lambda: recorder.publications[-1].payload == b"again", "a publication over the new socket")

    with Mosquitto(f"listener 0 {path}") as broker:
        play(story, broker)


def test_a_missing_socket_is_named(tmp_path: Path) -> None:
    async def story(broker: Mosquitto) -> None:
        client = Client(ClientSettings(broker.url, "lost", socket_path=tmp_path / "none.sock"), ClientHandler())
        with pytest.raises(Unavailable, match=r"unix:.*none\.sock cannot be reached: No such file"):
            await client.start(must_connect=True)

    with Mosquitto() as broker:
        play(story, broker)


def test_all_properties_of_a_publication_survive_to_and_from_paho() -> None:
    got: list[paho.MQTTMessage] = []

    async def story(broker: Mosquitto) -> None:
        other = paho.Client(CallbackAPIVersion.VERSION2, "other", protocol=paho.MQTTv5)
        other.on_message = lambda _client, _data, message: got.append(message)
        subscribed_at: list[int] = []
        other.on_subscribe = lambda *_: subscribed_at.append(1)
        other.connect("127.0.0.1", broker.port)
        other.loop_start()
        try:
            other.subscribe("to/paho", qos=2)
            await until(lambda: subscribed_at, "paho's SUBACK")
            client, recorder = await connected(broker.url, "ours", auto_ack=True)
            await subscribed(client, Subscription("from/paho", identifier=300))
            packet = encode(
                "to/paho",
                "grün".encode(),
                qos=2,
                expiry_s=100,
                payload_format_indicator=1,
                content_type="text/plain",
                response_topic="answer/here",
                correlation_data=b"\x00\x01",
                user_properties=[("a", "1"), ("a", "2"), ("b", "ü")],
            )
            client.publish_run(packet)
            await until(lambda: got, "paho's message")
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.MessageExpiryInterval = 60
            properties.ContentType = "application/json"
            properties.ResponseTopic = "answer/there"
            properties.CorrelationData = b"\xff\x00"
            properties.UserProperty = [("x", "1"), ("x", "1"), ("y", "")]
            other.publish("from/paho", b"{}", qos=1, retain=True, properties=properties)
            await until(lambda: recorder.publications, "our publication")
        finally:
            other.disconnect()
            other.loop_stop()
        message = got[0]
        assert (message.topic, message.payload, message.qos) == ("to/paho", "grün".encode(), 2)
        assert message.properties is not None
        theirs = message.properties.json()  # type: ignore[no-untyped-call]
        assert theirs["UserProperty"] == [("a", "1"), ("a", "2"), ("b", "ü")]
        assert (theirs["ContentType"], theirs["ResponseTopic"]) == ("text/plain", "answer/here")
        assert 95 <= theirs["MessageExpiryInterval"] <= 100
        ours = recorder.publications[0]
        assert (ours.retain, ours.qos, ours.subscription_ids) == (True, 1, (300,))
        parts = decode(ours.packet)
        assert (parts.content_type, parts.response_topic, parts.correlation_data) == (
            "application/json",
            "answer/there",
            b"\xff\x00",
        )
        assert parts.user_properties == [("x", "1"), ("x", "1"), ("y", "")]
        assert parts.subscription_ids == []
        assert parts.message_expiry_interval is not None

    with Mosquitto() as broker:
        play(story, broker)


def test_no_local_and_retain_handling_suppress_own_and_retained_publications() -> None:
    async def story(broker: Mosquitto) -> None:
        other, _ = await connected(broker.url, "other")
        other.publish("r/old", b"old", qos=1, retain=True)
        await until(lambda: other.unacknowledged == 0, "PUBACK")
        client, recorder = await connected(broker.url, "ours", auto_ack=True)
        await subscribed(client, Subscription("r/#"))
        client.publish("r/own", b"own")
        other.publish("r/new", b"new", qos=1, retain=True)
        await until(lambda: recorder.publications, "the new publication")
        await subscribed(client, Subscription("r/#", retain_handling=0, no_local=False))
        await until(lambda: len(recorder.publications) >= 3, "the retained publications")
        assert sorted((p.topic, p.retain) for p in recorder.publications) == [
            ("r/new", True),
            ("r/new", True),
            ("r/old", True),
        ]

    with Mosquitto() as broker:
        play(story, broker)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_withheld_acknowledgement_makes_the_broker_send_again_with_dup(qos: int) -> None:
    async def story(broker: Mosquitto) -> None:
        session: dict[str, Any] = {"clean_start": False, "session_expiry_s": 300}
        first, got = await connected(broker.url, "ours", **session)
        await subscribed(first, Subscription("t"))
        other, _ = await connected(broker.url, "other")
        other.publish_run(b"".join(encode("t", str(n).encode(), qos=qos) for n in range(10)))
        await until(lambda: len(got.publications) == 10, "ten")
        first.ack([p.receipt for p in got.publications[:4]])
        # The broker must have read these acknowledgements before the crash below.
        answer = "Received PUBACK from ours" if qos == 1 else "Received PUBREC from ours"
        await until(lambda: broker.log.count(answer) == 4, "the broker to read four acknowledgements")
        task = first._task
        assert task is not None
        task.cancel()
        first.abort()
        second, again = await connected(broker.url, "ours", **session)
        assert again.connected == [True]
        await until(lambda: len(again.publications) == 6, "six again")
        assert [int(p.payload) for p in again.publications] == [4, 5, 6, 7, 8, 9]
        assert all(p.dup for p in again.publications)
        assert [p.packet_id for p in again.publications] == [p.packet_id for p in got.publications[4:]]
        assert [p.packet for p in again.publications] == [p.packet for p in got.publications[4:]]
        second.ack([p.receipt for p in again.publications])
        other.publish("t", b"end", qos=qos)
        await until(lambda: len(again.publications) == 7, "one more")

    with Mosquitto() as broker:
        play(story, broker)


def test_publications_that_the_caller_still_holds_arrive_only_once_after_a_cut() -> None:
    async def story(broker: Mosquitto) -> None:
        client, got = await connected(broker.url, "ours", session_expiry_s=300)
        await subscribed(client, Subscription("t"))
        other, _ = await connected(broker.url, "other")
        other.publish_run(b"".join(encode("t", str(n).encode(), qos=1 + n % 2) for n in range(20)))
        await until(lambda: len(got.publications) == 20, "twenty")
        assert sorted(int(p.payload) for p in got.publications) == list(range(20))
        client.abort()
        await until(lambda: len(got.connected) == 2, "the reconnect")
        other.publish("t", b"20", qos=1)
        await until(lambda: len(got.publications) == 21, "the next publication")
        assert int(got.publications[20].payload) == 20
        assert client.counters.drops == {"held_already": 20}
        client.ack([p.receipt for p in got.publications])
        await until(
            lambda: broker.log.count("Received PUBACK from ours") == 11, "the broker to read the acknowledgements"
        )
        await until(lambda: broker.log.count("Sending PUBREL to ours") == 10, "the broker to release")
        client.abort()
        await until(lambda: len(got.connected) == 3, "another reconnect")
        other.publish("t", b"21", qos=1)
        await until(lambda: len(got.publications) >= 22, "one more")
        assert int(got.publications[-1].payload) == 21

    with Mosquitto() as broker:
        play(story, broker)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_restarted_broker_gets_all_unacknowledged_publications(qos: int) -> None:
    async def story(broker: Mosquitto) -> None:
        # Mosquitto 2.0.11 does not save a session whose CONNECT asked for a clean start.
        session: dict[str, Any] = {"clean_start": False, "session_expiry_s": 300}
        client, sent = await connected(broker.url, "ours", **session)
        reader, got = await connected(broker.url, "reader", auto_ack=True, **session)
        await subscribed(reader, Subscription("t"))
        broker.save()
        broker.kill()
        await until(lambda: not client.is_connected and not reader.is_connected, "both ends to notice")
        numbers = [client.publish("t", str(n).encode(), qos=qos) for n in range(200)]
        assert client.publish("t", b"lost", qos=0) == 0
        assert client.counters.drops == {"disconnected": 1}
        broker.start()
        await until(lambda: len(sent.acknowledged) >= 200, "acknowledgements")
        await until(lambda: len(got.publications) >= 200, "publications")
        assert sorted(sent.acknowledged) == numbers
        assert [int(p.payload) for p in got.publications] == list(range(200))
        assert got.connected == [False, True]

    with Mosquitto("persistence true", "max_queued_messages 0") as broker:
        play(story, broker)


def test_subscriptions_are_restored_when_the_broker_lost_the_session() -> None:
    async def story(broker: Mosquitto) -> None:
        client, got = await connected(broker.url, "ours", session_expiry_s=300, auto_ack=True)
        await subscribed(client, *[Subscription(f"t/{n}", identifier=n + 1) for n in range(1500)])
        broker.restart()
        await until(lambda: len(got.connected) == 2 and client.is_subscribed, "the reconnect")
        assert got.connected == [False, False]
        client.unsubscribe(["t/0"])
        await until(lambda: got.unsubscribed, "UNSUBACK")
        other, _ = await connected(broker.url, "other")
        other.publish_run(b"".join(encode(f"t/{n}", b"x") for n in (0, 1, 1499)))
        await until(lambda: len(got.publications) == 2, "two")
        assert [(p.topic, p.subscription_ids) for p in got.publications] == [("t/1", (2,)), ("t/1499", (1500,))]

    with Mosquitto() as broker:
        play(story, broker)


def test_a_mebibyte_crosses_both_ways() -> None:
    async def story(broker: Mosquitto) -> None:
        client, got = await connected(broker.url, "ours", auto_ack=True)
        await subscribed(client, Subscription("big", no_local=False, identifier=5))
        payload = bytes(range(256)) * 4096
        client.publish_run(encode("big", payload, qos=1) + encode("big", b"", qos=2))
        await until(lambda: len(got.publications) == 2, "both")
        assert got.publications[0].payload == payload
        assert got.publications[1].payload == b""

    with Mosquitto() as broker:
        play(story, broker)


def test_the_will_is_published_when_the_client_vanishes_and_not_when_it_leaves() -> None:
    async def story(broker: Mosquitto) -> None:
        watcher, got = await connected(broker.url, "watcher", auto_ack=True)
        await subscribed(watcher, Subscription("will/#"))
        will = Will("will/vanished", b"gone", qos=1, retain=True)
        polite, _ = await connected(broker.url, "polite", will=Will("will/polite"))
        await polite.stop()
        client, _ = await connected(broker.url, "ours", will=will)
        assert client._task is not None
        client._task.cancel()
        client.abort()
        await until(lambda: got.publications, "the will")
        leaver, _ = await connected(broker.url, "leaver", will=Will("will/asked"))
        await leaver.stop(with_will=True)
        await until(lambda: len(got.publications) == 2, "the requested will")
        assert [p.topic for p in got.publications] == ["will/vanished", "will/asked"]

    with Mosquitto() as broker:
        play(story, broker)


def test_a_quiet_connection_is_kept_alive_and_a_frozen_broker_is_noticed() -> None:
    async def story(broker: Mosquitto) -> None:
        import os
        import signal

        client, got = await connected(broker.url, "ours", keep_alive_s=1)
        await until(lambda: "Sending PINGRESP to ours" in broker.log, "a ping")
        assert client.is_connected
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            await until(lambda: not client.is_connected, "the silence to be noticed")
            assert "keep-alive" in str(got.disconnected[0])
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await until(lambda: client.is_connected, "the broker's return")

    with Mosquitto() as broker:
        play(story, broker)


def test_wrong_settings_are_reported_in_one_sentence(tmp_path: Any) -> None:
    async def failure(url: str, **settings: Any) -> HanseError:
        recorder = Recorder()
        client = Client(ClientSettings(url=url, client_id="x", connect_timeout_s=5, **settings), recorder)
        with pytest.raises(HanseError) as caught:
            await client.start(must_connect=True)
        return caught.value

    async def story(broker: Mosquitto) -> None:
        wrong_password = await failure(broker.url, username="ours", password="nosuchsecret")
        assert isinstance(wrong_password, LocalError)
        assert "nosuchsecret" not in str(wrong_password)
        assert "not authori" in str(wrong_password)
        nobody = await failure(f"mqtt://127.0.0.1:{free_port()}")
        assert isinstance(nobody, Unavailable)
        assert "cannot be reached" in str(nobody)
        plain = await failure(f"mqtts://127.0.0.1:{broker.port}")
        assert isinstance(plain, HanseError)
        assert "TLS" in str(plain)

    password_file = tmp_path / "passwords"
    password_file.write_text("ours:$7$101$AAAA$AAAA\n")
    with Mosquitto(f"password_file {password_file}", anonymous=False) as broker:
        play(story, broker)


def test_a_broker_that_uses_an_identifier_twice_keeps_its_session() -> None:
    async def story(broker: Mosquitto) -> None:
        there, _ = await connected(broker.url, "there")
        slow, got = await connected(broker.url, "slow", receive_max=65_534)
        await subscribed(slow, Subscription("t", qos=1))
        for first in range(0, 65_600, 8_200):
            there.publish_run(b"".join(encode("t", b"%05d" % (first + n), qos=1) for n in range(8_200)), qos=1)
            await until(lambda: not there.unacknowledged, "the broker to acknowledge all")
        await until(lambda: len(got.publications) == 65_534, "a full window")
        # Acknowledgements out of order free capacity, and the broker reuses identifiers of publications that the client
        # still holds. It also sends more than the window allows.
        slow.ack([p.receipt for p in got.publications[-50:]])
        await until(lambda: len(got.publications) >= 65_584, "as many publications again")
        assert slow.counters.refusals["identifier_reused"] > 40
        acknowledged = {*range(65_484, 65_534)}
        while len(acknowledged) < 65_600:
            due = [k for k in range(len(got.publications)) if k not in acknowledged]
            slow.ack([got.publications[k].receipt for k in due])
            acknowledged.update(due)
            await until(lambda: len(got.publications) > len(acknowledged) or len(acknowledged) == 65_600, "the rest")
        assert [int(p.payload) for p in got.publications] == list(range(65_600))
        there.publish("t", b"65600", qos=1)
        await until(lambda: len(got.publications) == 65_601, "the session to go on")
        assert got.disconnected == []

    with Mosquitto("max_inflight_messages 65535", "max_queued_messages 0") as broker:
        play(story, broker)


def test_a_session_under_another_client_id_takes_subscriptions_and_publications_along() -> None:
    with Mosquitto() as broker:

        async def story(_: Mosquitto) -> None:
            client, recorder = await connected(broker.url, "former", clean_start=False, session_expiry_s=60)
            await subscribed(client, Subscription("t/#", qos=1, no_local=False))
            client.rename("latter")
            # Handed over while no connection stands. It leaves before the subscriptions do.
            number = client.publish("t/x", b"between", qos=1)
            await until(lambda: recorder.acknowledged == [number], "the publication went along")
            await until(lambda: client.is_subscribed, "the subscription went along")
            client.publish("t/y", b"after", qos=1)
            await until(lambda: [one.topic for one in recorder.publications] == ["t/y"], "it arrives")
            assert recorder.connected == [False, False]
            assert " as latter (" in broker.log
            await client.stop()

        play(story, broker)
