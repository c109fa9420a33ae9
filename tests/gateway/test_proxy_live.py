"""Real clients through a real gateway to real brokers."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateways import Gateway, RawClient, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Mosquitto, Mosquitto]]:
    with Mosquitto() as first, Mosquitto() as second:
        yield first, second


@pytest.fixture(scope="module")
def gateway(brokers: tuple[Mosquitto, Mosquitto], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    urls = [f"mqtt://127.0.0.1:{one.port}" for one in brokers]
    with Gateway(tmp_path_factory.mktemp("gateway"), *urls) as running:
        yield running


def broker_of(gateway: Gateway, client: str) -> str:
    found = json.loads(gateway.command("explain", "--client", client, "--json").stdout)
    return str(found["broker"])


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_clients_meet_through_the_gateway(gateway: Gateway, version: str) -> None:
    where = ["-h", "127.0.0.1", "-p", str(gateway.port), "-V", version]
    publisher = next(f"p{k}" for k in range(50) if broker_of_key(f"p{k}") == broker_of(gateway, "meet"))
    with subprocess.Popen(
        # Line by line: mosquitto_sub buffers what it writes into a pipe.
        ["stdbuf", "-oL", "mosquitto_sub", *where, "-i", "meet", "-t", f"x/{version}/#", "-q", "2", "-C", "3", "-d"],
        stdout=subprocess.PIPE,
        text=True,
    ) as subscriber:
        try:
            assert subscriber.stdout is not None
            assert any("Subscribed" in line for line in subscriber.stdout)
            for qos in ("0", "1", "2"):
                subprocess.run(
                    ["mosquitto_pub", *where, "-i", publisher, "-t", f"x/{version}/{qos}", "-m", f"hi{qos}", "-q", qos],
                    timeout=30,
                    check=True,
                )
            out, _ = subscriber.communicate(timeout=30)
        finally:
            subscriber.kill()
    assert [line for line in out.splitlines() if line.startswith("hi")] == ["hi0", "hi1", "hi2"]


def broker_of_key(client: str) -> str:
    from hanse.gateway.placement import Broker, score

    made = [Broker("b0", "mqtt://a"), Broker("b1", "mqtt://b")]
    return max(made, key=lambda one: score(one.key, client.encode())).id


def test_clients_are_spread_by_the_hash_and_explain_agrees(
    gateway: Gateway, brokers: tuple[Mosquitto, Mosquitto]
) -> None:
    clients = []
    try:
        for k in range(20):
            client = RawClient(gateway.port)
            clients.append(client)
            client.send(p.connect(4, f"spread{k}".encode()).packet)
            assert client.packet() == b"\x20\x02\0\0"
            at = int(broker_of_key(f"spread{k}")[1:])
            wait_until(lambda at=at, k=k: f"as spread{k} " in brokers[at].log, f"spread{k} at broker {at}")  # type: ignore[misc]
        found = gateway.command("explain", "--client", "spread3")
        assert found.returncode == 0, found.stderr
        assert f"'spread3' goes to {broker_of_key('spread3')}; policy hash" in found.stdout
        wait_until(lambda: gateway.health()["clients"] == 20, "20 clients counted")
        assert gateway.metric("hanse_gateway_clients") == 20
        assert sum(gateway.metric(f'hanse_gateway_broker_clients{{broker="b{k}"}}') for k in (0, 1)) == 20
    finally:
        for client in clients:
            client.socket.close()
    wait_until(lambda: gateway.health()["clients"] == 0, "all clients gone")
    assert sum(gateway.metric(f'hanse_gateway_broker_clients{{broker="b{k}"}}') for k in (0, 1)) == 0


def test_a_large_publication_and_a_slow_reader(gateway: Gateway) -> None:
    name = b"slow"
    with RawClient(gateway.port) as reader, RawClient(gateway.port) as writer:
        reader.send(p.connect(5, name).packet + p.subscribe(1, (b"big", 0)))
        assert reader.packet()[0] == 0x20
        assert reader.packet()[0] == 0x90
        other = next(f"w{k}" for k in range(50) if broker_of_key(f"w{k}") == broker_of_key("slow"))
        writer.send(p.connect(5, other.encode()).packet)
        assert writer.packet()[0] == 0x20
        large = p.publish(b"big", bytes(3_000_000))
        for _ in range(8):
            writer.send(large)
        for _ in range(8):
            assert reader.packet() == large


def test_a_will_is_published_when_the_client_is_cut_and_not_after_disconnect(gateway: Gateway) -> None:
    near = [f"n{k}" for k in range(100) if broker_of_key(f"n{k}") == "b0"]
    with RawClient(gateway.port) as watcher:
        watcher.send(p.connect(4, near[0].encode()).packet + p.subscribe(1, (b"w/#", 1), version=4))
        assert watcher.packet()[0] == 0x20
        assert watcher.packet()[0] == 0x90
        for name, goodbye in ((near[1], p.disconnect()), (near[2], b"")):
            with RawClient(gateway.port) as client:
                client.send(p.connect(4, name.encode(), will=(b"w/" + name.encode(), b"gone", 0)).packet)
                assert client.packet() == b"\x20\x02\0\0"
                client.send(goodbye)
        assert watcher.packet() == p.publish(b"w/" + near[2].encode(), b"gone", version=4)


def test_an_older_connection_with_the_same_id_is_ended(gateway: Gateway) -> None:
    with RawClient(gateway.port) as older, RawClient(gateway.port) as newer:
        older.send(p.connect(5, b"same").packet)
        assert older.packet()[0] == 0x20
        newer.send(p.connect(5, b"same").packet)
        assert newer.packet()[0] == 0x20
        assert older.is_closed() or older.is_closed()
        newer.send(b"\xc0\x00")
        assert newer.packet() == b"\xd0\x00"


def test_wrong_first_packets_are_refused_with_the_right_code(gateway: Gateway) -> None:
    for sent, answer in (
        (p.packet(0x10, b"\x00\x04MQTT\x06\x02\x00\x3c\x00\x00\x01a"), b"\x20\x02\x00\x01"),
        (p.publish(b"a", b""), b""),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
        (b"\x10\xff\xff\xff\xff\x01", b""),
    ):
        with RawClient(gateway.port) as client:
            client.send(sent)
            got = client.packet()
            assert got == answer
            if got:
                assert client.is_closed()


def test_a_gateway_without_a_broker_refuses_with_that_reason(tmp_path: Path) -> None:
    with Mosquitto() as broker, Gateway(tmp_path, f"mqtt://127.0.0.1:{broker.port}") as gateway:
        assert gateway.page("/healthz")[0] == 200
        broker.kill()
        wait_until(lambda: gateway.page("/healthz")[0] == 503, "503")
        for version, answer in ((4, b"\x20\x02\0\x03"), (5, b"\x20\x03\0\x88\0")):
            with RawClient(gateway.port) as client:
                client.send(p.connect(version, b"x").packet)
                assert client.packet() == answer
                assert client.is_closed()
        assert json.loads(gateway.command("explain", "--client", "x", "--json").stdout)["broker"] is None
        broker.restart()
        wait_until(lambda: gateway.page("/healthz")[0] == 200, "200 again")
        with RawClient(gateway.port) as client:
            client.send(p.connect(5, b"x").packet)
            assert client.packet()[:1] == b"\x20"


def test_sigterm_ends_the_clients_with_a_reason(tmp_path: Path) -> None:
    with Mosquitto() as broker, Gateway(tmp_path, f"mqtt://127.0.0.1:{broker.port}") as gateway:
        with RawClient(gateway.port) as client:
            client.send(p.connect(5, b"x").packet)
            assert client.packet()[0] == 0x20
            os.kill(gateway.pid, signal.SIGTERM)
            assert client.packet() == p.disconnect(0x8B)
            assert client.is_closed()
        assert gateway.end() == 0


def test_during_the_grace_clients_are_served_and_balancers_are_warned(tmp_path: Path) -> None:
    words = ("--shutdown-grace", "60s", "--log-format", "json")
    with Mosquitto() as broker, Gateway(tmp_path, f"mqtt://127.0.0.1:{broker.port}", words=words) as gateway:
        with RawClient(gateway.port) as first:
            first.send(p.connect(5, b"first").packet)
            assert first.packet()[0] == 0x20
            os.kill(gateway.pid, signal.SIGTERM)
            wait_until(lambda: gateway.page("/healthz")[0] == 503, "503")
            assert gateway.health()["status"] == "ending"
            with RawClient(gateway.port) as late:
                late.send(p.connect(5, b"late").packet)
                assert late.packet()[3] == 0
                first.send(b"\xc0\x00")
                assert first.packet() == b"\xd0\x00"
                # A second signal ends the grace.
                os.kill(gateway.pid, signal.SIGTERM)
                assert late.packet() == p.disconnect(0x8B)
                assert first.packet() == p.disconnect(0x8B)
        assert gateway.end() == 0
        lines = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
        assert "ending; /healthz answers 503" in [line["event"] for line in lines]


def test_a_client_beyond_its_rate_is_slowed_down_and_loses_nothing(tmp_path: Path) -> None:
    words = ("--client-bytes-rate", "100000")
    with (
        Mosquitto() as broker,
        Gateway(tmp_path, f"mqtt://127.0.0.1:{broker.port}", words=words) as gateway,
        RawClient(gateway.port) as writer,
        RawClient(broker.port) as reader,
    ):
        reader.send(p.connect(4, b"reader").packet + p.subscribe(1, (b"r", 0), version=4))
        assert reader.packet()[0] == 0x20
        assert reader.packet()[0] == 0x90
        writer.send(p.connect(4, b"writer").packet)
        assert writer.packet()[0] == 0x20
        began = time.monotonic()
        sent = [p.publish(b"r", b"%6d" % k + bytes(10_000), version=4) for k in range(40)]
        for one in sent:
            writer.send(one)
        assert [reader.packet() for _ in sent] == sent
        # 400 kB at 100 kB/s, of which one second's worth and one read of 256 KiB may come at once.
        assert time.monotonic() - began > 0.9


def test_policies_place_transient_clients_and_the_hash_all_others(
    brokers: tuple[Mosquitto, Mosquitto], tmp_path: Path
) -> None:
    urls = [f"b{k}=mqtt://127.0.0.1:{one.port}" for k, one in enumerate(brokers)]
    for policy in ("round-robin", "least-connections"):
        with Gateway(tmp_path / policy, *urls, words=("--policy", policy)) as gateway:
            clients = []
            try:
                for k in range(10):
                    client = RawClient(gateway.port)
                    clients.append(client)
                    client.send(p.connect(5, f"t{k}".encode()).packet)
                    assert client.packet()[3] == 0
                wait_until(lambda gateway=gateway: gateway.health()["clients"] == 10, "10 clients")  # type: ignore[misc]
                assert [one["clients"] for one in gateway.health()["brokers"]] == [5, 5], policy
                shown = gateway.command("explain", "--client", "kept")
                assert "keeps a session" in shown.stdout
                assert f"goes to {broker_of_key('kept')};" in shown.stdout
                shown = gateway.command("explain", "--client", "kept", "--clean")
                assert "keeps a session" not in shown.stdout
                assert policy != "least-connections" or "5 clients of this gateway" in shown.stdout
            finally:
                for client in clients:
                    client.socket.close()


@pytest.mark.parametrize("words", [("--failover",), ("--no-failover",)])
def test_all_properties_arrive_as_they_do_without_a_gateway(tmp_path: Path, words: tuple[str, ...]) -> None:
    properties = (
        b"\x01\x01"  # payload format
        b"\x02\x00\x00\x10\x00"  # expiry
        b"\x03\x00\x04text"  # content type
        b"\x08\x00\x06answer"  # response topic
        b"\x09\x00\x03\x00\xff\x01"  # correlation data
        b"\x26\x00\x01a\x00\x011\x26\x00\x01a\x00\x012"  # user properties, one name twice
    )
    identifier = b"\x0b\x07"
    with Mosquitto() as broker, Gateway(tmp_path, f"mqtt://127.0.0.1:{broker.port}", words=words) as gateway:
        found: dict[str, list[bytes]] = {}
        for way, port in (("direct", broker.port), ("gateway", gateway.port)):
            with RawClient(port) as reader, RawClient(port) as writer:
                hello = p.connect(5, f"reader-{way}".encode(), properties=b"\x22\x00\x00")
                reader.send(hello.packet + p.subscribe(1, (b"all", 2), properties=identifier))
                assert reader.packet()[0] == 0x20
                assert reader.packet()[0] == 0x90
                writer.send(p.connect(5, f"writer-{way}".encode()).packet)
                assert writer.packet()[0] == 0x20
                got = found.setdefault(way, [])
                for qos in (0, 1, 2):
                    writer.send(p.publish(b"all", b"payload", qos, 9, properties=properties))
                    if qos == 2:
                        assert writer.packet()[0] == 0x50
                        writer.send(p.ack(0x62, 9))
                    if qos:
                        assert writer.packet()[0] == (0x40 if qos == 1 else 0x70)
                    one = reader.packet()
                    if qos == 1:
                        reader.send(p.ack(0x40, int.from_bytes(one[7:9], "big")))
                    got.append(one)
        assert found["gateway"] == found["direct"]
        assert all(identifier in one and b"\x03\x00\x04text" in one for one in found["gateway"])
