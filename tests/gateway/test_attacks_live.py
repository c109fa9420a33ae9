"""Attacks on a real gateway: the attacker's connection is refused or closed, nobody else notices, and memory
stays bounded."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateways import Gateway, RawClient, wait_until

from hanse.mqtt.properties import varint

pytestmark = pytest.mark.processes

WORDS = (
    "--connect-timeout", "3s",
    "--connect-bytes-max", "4096",
    "--packet-bytes-max", "1000000",
    "--connections-max", "300",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto(quiet=True) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(broker: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), f"b=mqtt://127.0.0.1:{broker.port}", words=WORDS) as running:
        yield running


class Bystander:
    """A client that does nothing wrong, and must not notice anything."""

    def __init__(self, gateway: Gateway) -> None:
        self._client = RawClient(gateway.port)
        self._client.send(p.connect(4, b"bystander").packet + p.subscribe(1, (b"by/#", 1), version=4))
        assert self._client.packet()[0] == 0x20
        assert self._client.packet()[0] == 0x90
        self._count = 0

    def check(self) -> None:
        """Publish to itself and wait for that."""
        self._count += 1
        self._client.send(p.publish(b"by/stander", b"%d" % self._count, version=4) + b"\xc0\x00")
        got = sorted((self._client.packet(), self._client.packet()))
        assert got == sorted((p.publish(b"by/stander", b"%d" % self._count, version=4), b"\xd0\x00"))

    def close(self) -> None:
        self._client.socket.close()


@pytest.fixture
def bystander(gateway: Gateway) -> Iterator[Bystander]:
    made = Bystander(gateway)
    try:
        yield made
        made.check()
    finally:
        made.close()


def rss_mb(gateway: Gateway) -> float:
    return psutil.Process(gateway.pid).memory_info().rss / 1e6


def refused(gateway: Gateway) -> float:
    page = gateway.page("/metrics")[1].splitlines()
    lines = [line for line in page if line.startswith(("hanse_gateway_refused_total", "hanse_gateway_closes_total"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def connect(version: int, flags: int = 2, body: bytes = b"\0\x01x", properties: bytes = b"") -> bytes:
    more = varint(len(properties)) + properties if version == 5 else b""
    return p.packet(0x10, b"\0\4MQTT" + bytes((version, flags)) + b"\0\x3c" + more + body)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        # MQTT 5 has a reason code for each; 3.1.1 closes without an answer where it has none (3.1.4).
        (connect(5, flags=3), b"\x81"),
        (connect(4, flags=3), b""),
        (connect(5, body=b"\0\x02\xff\xfe"), b"\x81"),
        (connect(4, body=b"\0\x02\xff\xfe"), b""),
        (connect(5, body=b"\0\x09x"), b"\x81"),
        (connect(5, flags=0x1A), b"\x81"),
        (connect(5, properties=b"\x21\0\0"), b"\x82"),
        (connect(5, properties=b"\x21\0\1\x21\0\1"), b"\x82"),
        (connect(5, properties=b"\x7f\0"), b"\x81"),
        (connect(5) + connect(5), b"\x82"),
        (connect(5)[:-1] + b"x" + b"\x30\xff\xff\xff\xff\x01", b"\x81"),
        (connect(5) + b"\x30\x80\x00", b"\x81"),
        (connect(5) + b"\x30\xff\xff\x7f", b"\x95"),
        (connect(5) + b"\x82\xff\xff\x07", b"\x95"),
        (connect(5) + p.packet(0x82, b"\0\1\0"), b"\x82"),
        (connect(6), b"\x01"),
        (b"\x10\xff\xff\xff\xff\x01", b""),
        (b"\x10\xff\xff\x7f" + connect(5)[2:], b"\x95"),
        (p.subscribe(1, (b"#", 0)), b""),
        (b"\xc0\x00", b""),
        (bytes(10), b""),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b""),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 1883\r\n" + connect(5), b""),
    ],
)
def test_a_client_that_breaks_a_rule_gets_the_reason_and_is_closed(
    gateway: Gateway, bystander: Bystander, sent: bytes, answer: bytes
) -> None:
    before = refused(gateway)
    with RawClient(gateway.port) as client:
        client.send(sent)
        last = b""
        while got := client.packet():
            last = got
        # CONNACK 20 len flags CODE, or DISCONNECT e0 len CODE.
        code = last[3:4] if last[:1] == b"\x20" else last[2:3]
        assert code == answer
    wait_until(lambda: refused(gateway) == before + 1, "it is counted")
    bystander.check()


def test_a_slow_connect_ends_at_its_deadline(gateway: Gateway, bystander: Bystander) -> None:
    hello = connect(5)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(gateway.port)) for _ in range(60)]
        began = time.monotonic()
        # A byte now and then does not move the deadline.
        for k in range(len(hello) - 1):
            for client in clients:
                with suppress(OSError):
                    client.send(hello[k : k + 1])
            time.sleep(0.3)
            if time.monotonic() - began > 4:
                break
        bystander.check()
        for client in clients:
            # Without an answer, although the version is known: CONNACK has no code for it.
            assert client.is_closed()
    wait_until(lambda: gateway.metric('hanse_gateway_refused_total{reason="connect_timeout"}') >= 60, "all are counted")


def test_a_flood_of_connects_is_refused_with_its_reason_and_passes(broker: Mosquitto, tmp_path: Path) -> None:
    words = ("--connect-rate", "20")
    with Gateway(tmp_path, f"b=mqtt://127.0.0.1:{broker.port}", words=words) as gateway:
        bystander = Bystander(gateway)
        codes: list[int] = []
        lock = threading.Lock()

        def flood(k: int) -> None:
            for j in range(50):
                with RawClient(gateway.port) as client:
                    client.send(p.connect(5, b"flood-%d-%d" % (k, j)).packet)
                    with lock:
                        codes.append(client.packet()[3])

        threads = [threading.Thread(target=flood, args=(k,)) for k in range(4)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            bystander.check()
        took_s = time.monotonic() - began
        assert set(codes) <= {0, 0x9F}
        # One second's worth at once, then the rate.
        assert codes.count(0) <= 20 + 20 * took_s + 1
        assert codes.count(0x9F) == gateway.metric('hanse_gateway_refused_total{reason="connect_rate"}')

        def is_admitted() -> bool:
            with RawClient(gateway.port) as client:
                client.send(p.connect(5, b"after").packet)
                return client.packet()[3] == 0

        wait_until(is_admitted, "the next client is admitted")
        bystander.close()


def test_too_many_connections_are_refused_and_leave_room_again(gateway: Gateway, bystander: Bystander) -> None:
    with ExitStack() as stack:
        codes = []
        for k in range(310):
            client = stack.enter_context(RawClient(gateway.port))
            client.send(p.connect(5, b"many-%d" % k).packet)
            codes.append(client.packet()[3])
        # The bystander is one of the 300.
        assert codes.count(0) <= 299
        assert codes.count(0x97) >= 11
        bystander.check()
    wait_until(lambda: gateway.health()["clients"] == 1, "their places are free")


def test_readers_that_do_not_read_and_writers_that_do_not_end_cost_bounded_memory(
    gateway: Gateway, bystander: Bystander
) -> None:
    before_mb = rss_mb(gateway)
    big = p.publish(b"flood", bytes(500_000), version=4)
    with ExitStack() as stack:
        readers = [stack.enter_context(RawClient(gateway.port)) for _ in range(20)]
        for k, reader in enumerate(readers):
            reader.send(p.connect(4, b"lazy-%d" % k).packet + p.subscribe(1, (b"flood", 0), version=4))
            assert reader.packet()[0] == 0x20
            assert reader.packet()[0] == 0x90
        writer = stack.enter_context(RawClient(gateway.port))
        writer.send(p.connect(4, b"loud").packet)
        assert writer.packet()[0] == 0x20
        # 400 MB for readers that read nothing.
        for _ in range(40):
            writer.send(big)
        # Packets that begin and do not end.
        for k in range(40):
            endless = stack.enter_context(RawClient(gateway.port))
            endless.send(p.connect(4, b"endless-%d" % k).packet)
            assert endless.packet()[0] == 0x20
            endless.send(b"\x32" + varint(900_000) + b"\0\1a\0\1" + bytes(800_000))
        bystander.check()
        # 21 times buffer_bytes, and a few reads of 256 KiB each; not 400 MB.
        assert rss_mb(gateway) - before_mb < 80
    bystander.check()


def test_a_reset_in_the_middle_of_anything_is_harmless(gateway: Gateway, bystander: Bystander) -> None:
    whole = p.connect(5, b"reset").packet + p.subscribe(1, (b"r", 1)) + p.publish(b"r", bytes(3_000), 1, 7)
    for end in range(1, len(whole), 101):
        client = RawClient(gateway.port)
        client.send(whole[:end])
        # RST instead of FIN.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.socket.close()
        bystander.check()
    wait_until(lambda: gateway.health()["clients"] == 1, "all are gone")
    assert "Traceback" not in gateway.log
