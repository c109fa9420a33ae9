"""Figures 2, 3 and 4 of the TD-MQTT paper packet by packet, at a real gateway and brokers; and the proxied clients."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateways import Gateway, RawClient, wait_until

from hanse.gateway.placement import Broker, score
from hanse.mqtt.properties import varint

pytestmark = pytest.mark.processes

DISCOVER = ("--discover", "--discover-interval", "200ms", "--discover-for", "300ms")
REDIRECT = ("--mode", "redirect")
FOLLOWS = (b"server-reference", b"follow")


def hello(
    client_id: bytes,
    *,
    version: int = 5,
    clean: bool = True,
    login: tuple[bytes, bytes] | None = None,
    say: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    """Return a CONNECT with user properties and a login."""
    properties = b"".join(b"\x26" + p.text(name) + p.text(value) for name, value in say)
    flags = (0x02 if clean else 0) | (0xC0 if login else 0)
    head = b"\x00\x04MQTT" + bytes((version, flags)) + b"\x00\x3c"
    if version == 5:
        head += varint(len(properties)) + properties
    return p.packet(0x10, head + p.text(client_id) + b"".join(map(p.text, login or ())))


def reference(packet: bytes) -> tuple[int, str]:
    """Return the reason code and Server Reference of a CONNACK or DISCONNECT; the gateway sends no other property."""
    at = 3 if packet[0] == 0x20 else 2
    if len(packet) <= at + 1 or not packet[at + 1]:
        return packet[at], ""
    assert packet[at + 2] == 0x1C
    size = int.from_bytes(packet[at + 3 : at + 5], "big")
    assert len(packet) == at + 5 + size
    return packet[at], packet[at + 5 :].decode()


def redirected(
    port: int, client_id: bytes, filter_: bytes, *, say: tuple[tuple[bytes, bytes], ...] = ()
) -> tuple[int, str]:
    """Perform figure 2 at the gateway and check each packet; return the code and the reference."""
    with RawClient(port) as client:
        client.send(hello(client_id, say=say))
        assert client.packet() == b"\x20\x03\0\0\0"
        client.send(p.subscribe(7, (filter_, 1)))
        assert client.packet() == p.suback(7, 1)
        goodbye = client.packet()
        assert goodbye[0] == 0xE0
        assert client.is_closed()
        return reference(goodbye)


def is_proxied(port: int, connect: bytes) -> bool:
    """Return whether a client gets its CONNACK from a broker, which takes its subscription and keeps it."""
    with RawClient(port) as client:
        client.send(connect)
        connack = client.packet()
        assert connack[0] == 0x20, connack
        version = 5 if len(connack) > 4 else 4
        client.send(p.subscribe(9, (b"is/proxied", 0), version=version))
        answer = client.packet()
        client.send(b"\xc0\x00")
        return answer == p.suback(9, 0, version=version) and client.packet() == b"\xd0\x00"


def retain(broker: Mosquitto, topic: bytes, payload: bytes = b"x") -> None:
    with RawClient(broker.port) as client:
        client.send(hello(b"") + p.publish(topic, payload, 1, 1, retain=True))
        assert client.packet()[0] == 0x20
        assert client.packet()[0] == 0x40


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Mosquitto, Mosquitto]]:
    with Mosquitto() as first, Mosquitto() as second:
        for k, broker in enumerate((first, second)):
            retain(broker, b"plant/%d" % k)
        yield first, second


def urls(*brokers: Mosquitto) -> list[str]:
    return [f"mqtt://127.0.0.1:{one.port}" for one in brokers]


@pytest.fixture(scope="module")
def gateway(brokers: tuple[Mosquitto, Mosquitto], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    words = (*REDIRECT, *DISCOVER, "--redirect-deny", "secret/#", "--redirect-moved", "old/#=b1")
    listen = ("mqtt://127.0.0.1:0", "mqtt://127.0.0.1:0?mode=auto")
    with Gateway(tmp_path_factory.mktemp("gateway"), *urls(*brokers), words=words, listen=listen) as running:
        wait_until(lambda: running.metric("hanse_gateway_topics") >= 2, "the topics are known")
        yield running


def test_figure_2_a_subscriber_is_sent_to_the_broker_of_its_topic(
    gateway: Gateway, brokers: tuple[Mosquitto, Mosquitto]
) -> None:
    for k, broker in enumerate(brokers):
        code, where = redirected(gateway.port, b"figure2-%d" % k, b"plant/%d" % k)
        assert (code, where) == (0x9C, f"127.0.0.1:{broker.port}")
        with RawClient(int(where.rpartition(":")[2])) as client:
            client.send(hello(b"figure2-%d" % k) + p.subscribe(7, (b"plant/%d" % k, 1)))
            assert client.packet()[0] == 0x20
            assert client.packet() == p.suback(7, 1)
            assert client.packet()[4:11] == b"plant/%d" % k


def test_a_publisher_is_sent_to_the_broker_of_its_topic_before_it_is_acknowledged(
    gateway: Gateway, brokers: tuple[Mosquitto, Mosquitto]
) -> None:
    with RawClient(gateway.port) as client:
        client.send(hello(b"publisher") + p.publish(b"plant/1", b"x", 1, 3))
        assert client.packet() == p.connack()
        assert reference(client.packet()) == (0x9C, f"127.0.0.1:{brokers[1].port}")
        assert client.is_closed()


def test_connack_names_the_broker_where_it_is_known_at_connect(
    gateway: Gateway, brokers: tuple[Mosquitto, Mosquitto], tmp_path: Path
) -> None:
    """For a client with a session, one that names its topic, and where only one broker can be named."""
    ranked = [Broker("b0", ""), Broker("b1", "")]
    belongs = max((0, 1), key=lambda k: score(ranked[k].key, b"session"))
    for connect, k in (
        (hello(b"session", clean=False), belongs),
        (hello(b"names", say=((b"server-reference-topic", b"plant/1"),)), 1),
        (hello(b"names0", say=((b"server-reference-topic", b"plant/0"),)), 0),
    ):
        with RawClient(gateway.port) as client:
            client.send(connect)
            assert reference(client.packet()) == (0x9C, f"127.0.0.1:{brokers[k].port}")
            assert client.is_closed()
    with Gateway(tmp_path, *urls(brokers[0]), words=REDIRECT) as alone, RawClient(alone.port) as client:
        client.send(hello(b"alone"))
        assert reference(client.packet()) == (0x9C, f"127.0.0.1:{brokers[0].port}")
        assert alone.metric('hanse_gateway_redirects_total{how="connack_0x9c"}') == 1


@pytest.mark.parametrize("told", ["localhost:{}", "127.0.0.1:{}", "[::1]:{}", "gateway-7.plant.example"])
def test_each_form_of_reference_reaches_the_client_unchanged(
    told: str, brokers: tuple[Mosquitto, Mosquitto], tmp_path: Path
) -> None:
    told = told.format(brokers[0].port)
    listed = [f"{urls(brokers[0])[0]}?reference={told}", *urls(brokers[1])]
    words = (*REDIRECT, "--redirect-moved", "#=b0")
    with Gateway(tmp_path, *listed, words=words) as gateway:
        assert redirected(gateway.port, b"form", b"any") == (0x9D, told)


def test_moved_topics_get_0x9d_and_filters_that_are_not_accepted_0x8f(
    gateway: Gateway, brokers: tuple[Mosquitto, Mosquitto], tmp_path: Path
) -> None:
    assert redirected(gateway.port, b"moved", b"old/t") == (0x9D, f"127.0.0.1:{brokers[1].port}")
    with RawClient(gateway.port) as client:
        client.send(hello(b"denied") + p.subscribe(1, (b"secret/+", 1)))
        assert client.packet() == p.connack()
        assert client.packet() == p.suback(1, 0x8F)
        assert client.packet() == p.disconnect(0x8F)
        assert client.is_closed()
    words = (*REDIRECT, *DISCOVER, "--redirect-unknown", "refuse")
    with Gateway(tmp_path, *urls(*brokers), words=words) as strict:
        wait_until(lambda: strict.metric("hanse_gateway_topics") >= 2, "the topics are known")
        assert redirected(strict.port, b"strict", b"plant/+")[0] == 0x9C
        assert redirected(strict.port, b"strict2", b"nowhere/t") == (0x8F, "")
        named = ((b"server-reference-topic", b"nowhere/t"),)
        assert redirected(strict.port, b"strict3", b"nowhere/t", say=named) == (0x8F, "")


def test_a_client_that_cannot_or_does_not_follow_is_proxied(gateway: Gateway) -> None:
    auto = gateway.port_of(1)
    assert is_proxied(gateway.port, hello(b"older", version=4))
    assert is_proxied(auto, hello(b"older", version=4, say=(FOLLOWS,)))
    assert is_proxied(auto, hello(b"quiet"))
    assert redirected(auto, b"follows", b"plant/0", say=(FOLLOWS,))[0] == 0x9C
    # It did not follow, and is back: there is one redirect in a row.
    assert redirected(gateway.port, b"paho", b"plant/0")[0] == 0x9C
    for _ in range(3):
        assert is_proxied(gateway.port, hello(b"paho"))
    assert gateway.metric('hanse_gateway_redirect_proxied_total{reason="version"}') >= 1
    assert gateway.metric('hanse_gateway_redirect_proxied_total{reason="does_not_follow"}') >= 1
    assert gateway.metric('hanse_gateway_redirect_proxied_total{reason="came_back"}') == 3


def test_one_redirect_in_a_row_over_all_workers(brokers: tuple[Mosquitto, Mosquitto], tmp_path: Path) -> None:
    words = (*REDIRECT, "--workers", "2")
    with Gateway(tmp_path, *urls(*brokers), words=words) as gateway:
        for k in range(12):
            name = b"spread%d" % k
            assert redirected(gateway.port, name, b"any")[0] == 0x9C
            # The other worker learns of it within milliseconds.
            wait_until(lambda name=name: is_proxied_quietly(gateway.port, name), "it is proxied")  # type: ignore[misc]
            assert all(is_proxied(gateway.port, hello(name)) for _ in range(3))


def is_proxied_quietly(port: int, name: bytes) -> bool:
    try:
        return is_proxied(port, hello(name))
    except AssertionError:
        return False


def test_explain_shows_where_a_topic_is_redirected(gateway: Gateway) -> None:
    found = json.loads(gateway.command("explain", "--client", "c", "--topic", "plant/1", "--json").stdout)
    tables = {(one["listener"], one["as"]): one for one in found["by_topic"]}
    assert {one["broker"] for one in tables.values()} == {"b1"}
    subscriber = tables[gateway.urls[0], "subscriber"]
    assert "home of 1 of 1 topics seen there" in subscriber["ranking"][0]["reason"]
    shown = gateway.command("explain", "--client", "c", "--topic", "old/t").stdout
    assert "as a subscriber: b1" in shown
    assert "the topics have moved here for good" in shown
    alone = gateway.command("explain", "--topic", "plant/0").stdout
    assert "as a publisher: b0" in alone
    assert "policy" not in alone
    assert "misplaced #" in gateway.command("explain", "--topic", "a/#/b").stderr
    assert gateway.command("explain").returncode == 2


# --- credentials ------------------------------------------------------------------------------------------------------


@contextmanager
def closed_broker(directory: Path) -> Iterator[Mosquitto]:
    """A broker that wants the login anna, secret."""
    program = shutil.which("mosquitto_passwd")
    assert program, "mosquitto_passwd comes with mosquitto"
    path = directory / "passwords"
    subprocess.run([program, "-c", "-b", str(path), "anna", "secret"], check=True, capture_output=True)
    with Mosquitto(f"password_file {path}", anonymous=False) as broker:
        yield broker


def test_no_broker_is_named_to_a_client_whose_credentials_no_broker_has_accepted(tmp_path: Path) -> None:
    with (
        closed_broker(tmp_path) as first,
        closed_broker(tmp_path) as second,
        Gateway(tmp_path / "g", *urls(first, second), words=REDIRECT) as gateway,
    ):
        for login in (None, (b"anna", b"wrong"), (b"", b"")):
            with RawClient(gateway.port) as client:
                client.send(hello(b"stranger", login=login) + p.subscribe(1, (b"t", 0)))
                # The broker's own refusal, because the client is proxied.
                assert reference(client.packet()) == (0x87, "")
                assert client.is_closed()
        # A session of the same id at the broker survives the check.
        with RawClient(first.port) as there, RawClient(second.port) as there_too:
            for one in (there, there_too):
                one.send(hello(b"anna-1", login=(b"anna", b"secret")))
                assert one.packet()[0] == 0x20
            with RawClient(gateway.port) as client:
                client.send(hello(b"anna-1", login=(b"anna", b"secret")) + p.subscribe(1, (b"t", 0)))
                assert client.packet() == p.connack()
                assert client.packet() == p.suback(1, 0)
                assert reference(client.packet())[0] == 0x9C
            for one in (there, there_too):
                one.send(b"\xc0\x00")
                assert one.packet() == b"\xd0\x00"
        checks = gateway.metric("hanse_gateway_redirect_checks_total")
        for k in range(5):
            with RawClient(gateway.port) as client:
                client.send(hello(b"other%d" % k, login=(b"anna", b"secret")))
                assert client.packet() == p.connack()
        assert gateway.metric("hanse_gateway_redirect_checks_total") == checks, "a verdict is kept"
        assert "secret" not in gateway.log
        assert "wrong" not in gateway.log


# --- figures 3 and 4 --------------------------------------------------------------------------------------------------


def test_figure_3_a_subscriber_of_a_silent_broker_is_sent_to_the_next_one(tmp_path: Path) -> None:
    """PINGREQ gets no answer within the client's timeout. The gateway has noticed as well, and knows another broker."""
    with Mosquitto() as first, Mosquitto() as second, Mosquitto() as third:
        retain(first, b"line/t")
        words = (*REDIRECT, *DISCOVER, "--redirect-return", "500ms", "--health-timeout", "300ms")
        with Gateway(tmp_path, *urls(first, second, third), words=words) as gateway:
            wait_until(lambda: gateway.metric("hanse_gateway_topics") == 1, "the topic is known")
            assert redirected(gateway.port, b"figure3", b"line/t") == (0x9C, f"127.0.0.1:{first.port}")
            with RawClient(first.port, timeout_s=1.0) as client:
                client.send(hello(b"figure3") + p.subscribe(1, (b"line/t", 1)) + b"\xc0\x00")
                assert [client.packet()[0] for _ in range(4)] in ([0x20, 0x90, 0x33, 0xD0], [0x20, 0x90, 0xD0, 0x33])
                os.kill(first.pid, signal.SIGSTOP)
                try:
                    client.send(b"\xc0\x00")
                    with pytest.raises(TimeoutError):
                        client.packet()
                    # The publisher has moved to another broker.
                    retain(second, b"line/t")
                    wait_until(lambda: gateway.metric('hanse_gateway_broker_up{broker="b0"}') == 0, "b0 is hung")
                    assert redirected(gateway.port, b"figure3", b"line/t") == (0x9C, f"127.0.0.1:{second.port}")
                finally:
                    os.kill(first.pid, signal.SIGCONT)


def test_figure_4_a_topic_that_has_moved_is_looked_for_again(tmp_path: Path) -> None:
    """The broker sends DISCONNECT 0x8F; only the look on demand shows the gateway where the topic is now."""
    with Mosquitto() as first, Mosquitto() as second:
        retain(first, b"cell/t")
        words = (
            *REDIRECT,
            "--discover",
            "--discover-interval",
            "1h",
            "--discover-for",
            "1s",
            "--redirect-return",
            "500ms",
        )
        with Gateway(tmp_path, *urls(first, second), words=words) as gateway:
            wait_until(lambda: gateway.metric("hanse_gateway_topics") == 1, "the topic is known")
            assert redirected(gateway.port, b"figure4", b"cell/t") == (0x9C, f"127.0.0.1:{first.port}")
            with answering_disconnect(first) as port, RawClient(port) as client:
                client.send(hello(b"figure4") + p.subscribe(1, (b"cell/t", 1)))
                assert client.packet()[0] == 0x20
                assert client.packet() == p.suback(1, 1)
                retain(first, b"cell/t", b"")
                retain(second, b"cell/t")
                while (goodbye := client.packet())[0] != 0xE0:
                    assert goodbye[0] & 0xF0 == 0x30
                assert goodbye == p.disconnect(0x8F)
            # Back after the window in which it would be proxied.
            time.sleep(0.7)
            assert redirected(gateway.port, b"figure4", b"cell/t") == (0x9C, f"127.0.0.1:{second.port}")


@contextmanager
def answering_disconnect(broker: Mosquitto) -> Iterator[int]:
    """A real broker behind a relay that ends the client with DISCONNECT 0x8F after its first publication.

    No broker that runs here reports that a topic has moved. The relay adds what the paper puts into the broker.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client, socket.create_connection(("127.0.0.1", broker.port)) as there:
            client.settimeout(20)
            there.settimeout(20)
            there.sendall(client.recv(65536))
            seen = b""
            while b"cell/t" not in seen:
                data = there.recv(65536)
                assert data
                seen += data
                client.sendall(data)
            client.sendall(p.disconnect(0x8F))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(20)
        listener.close()
