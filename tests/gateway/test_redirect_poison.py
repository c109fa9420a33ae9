"""Poisoned redirects: no client gets the address of a server that the gateway's own settings do not name."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
from tests.brokers import Mosquitto
from tests.gateway import packets as p
from tests.gateway.test_redirect_live import hello, is_proxied, redirected
from tests.gateways import Gateway, RawClient, wait_until

from hanse.gateway.placement import Broker, score
from hanse.mqtt.properties import varint

pytestmark = pytest.mark.processes

EVIL = b"evil.example:6666"
POISON = b"\x1c" + p.text(EVIL)


class EvilBroker:
    """A broker that answers health checks correctly, and sends all others to a server of its own.

    It shows endless topics to discovery, then sends DISCONNECT 0x9C with its reference. Clients, and checks of
    credentials, get CONNACK 0x9C with it; or, if it is mute, nothing.
    """

    def __init__(self, *, is_mute: bool = False) -> None:
        self._is_mute = is_mute
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.seen: set[str] = set()

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)

    def _begin(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            self._begin(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            who = client.recv(65536)
            if b"hanse-health" in who:
                client.sendall(p.connack())
                while client.recv(65536):
                    client.sendall(b"\xd0\x00")
            elif b"hanse-discover" in who:
                self.seen.add("discovery")
                client.sendall(p.connack())
                client.recv(65536)
                client.sendall(p.suback(1, 1))
                for k in range(2_000):
                    client.sendall(p.publish(b"plant/%d" % k, b"x"))
                client.sendall(p.packet(0xE0, b"\x9c" + varint(len(POISON)) + POISON))
            else:
                self.seen.add("check" if b"hanse-check" in who else "client")
                while self._is_mute and client.recv(65536):
                    pass
                client.sendall(p.connack(code=0x9C, properties=POISON))
            client.close()
        except OSError:
            pass


def placed_at(broker_id: str, count: int) -> list[bytes]:
    """Return client ids that the hash places at a broker."""
    brokers = [Broker("evil", ""), Broker("good", "")]
    names = (b"c%d" % k for k in range(1_000))
    return [one for one in names if max(brokers, key=lambda b: score(b.key, one)).id == broker_id][:count]


@contextmanager
def poisoned(directory: Path, *words: str) -> Iterator[tuple[Gateway, EvilBroker, Mosquitto]]:
    with Mosquitto() as good, EvilBroker() as evil:
        listed = (f"evil=mqtt://127.0.0.1:{evil.port}", f"good=mqtt://127.0.0.1:{good.port}")
        with Gateway(directory, *listed, words=("--mode", "redirect", *words)) as gateway:
            yield gateway, evil, good


def test_a_reference_in_a_brokers_answer_never_reaches_a_client(tmp_path: Path) -> None:
    with poisoned(tmp_path) as (gateway, evil, _):
        # Their check of credentials, and then their CONNECT, go to the evil broker. It accepts neither.
        for name in placed_at("evil", 5):
            with RawClient(gateway.port) as client:
                client.send(hello(name))
                connack = client.packet()
                assert (connack[0], connack[3]) == (0x20, 0), "the other broker serves the client"
                assert EVIL not in connack
                client.send(b"\xc0\x00")
                assert client.packet() == b"\xd0\x00"
        assert evil.seen == {"check", "client"}
        assert gateway.metric('hanse_gateway_redirect_proxied_total{reason="credentials"}') == 5
        assert EVIL.decode() not in gateway.log


def test_a_client_whose_check_takes_too_long_is_refused_once(tmp_path: Path) -> None:
    """The refusal comes before the check has ended. Nothing is opened for the client after that."""
    with EvilBroker(is_mute=True) as evil:
        words = ("--mode", "redirect", "--connect-timeout", "300ms", "--dial-timeout", "900ms")
        with Gateway(tmp_path, f"mqtt://127.0.0.1:{evil.port}", words=words) as gateway:
            with RawClient(gateway.port) as client:
                client.send(hello(b"waits"))
                assert client.packet() == p.connack(code=0x89)
                wait_until(lambda: gateway.metric("hanse_gateway_redirect_checks_total") == 1, "the check has ended")
            assert evil.seen == {"check"}


def test_topics_that_a_broker_invents_are_bounded_and_name_no_other_server(tmp_path: Path) -> None:
    words = ("--discover", "--discover-interval", "200ms", "--discover-for", "1s", "--discover-topics-max", "500")
    with poisoned(tmp_path, *words) as (gateway, evil, good):
        wait_until(lambda: gateway.metric("hanse_gateway_topics_dropped_total") > 0, "the table is full")
        assert gateway.metric("hanse_gateway_topics") == 500
        known = {f"127.0.0.1:{one.port}" for one in (evil, good)}
        for name in placed_at("good", 5):
            code, where = redirected(gateway.port, name, b"plant/1")
            assert code == 0x9C
            assert where in known
        assert "discovery" in evil.seen


def test_the_text_of_a_client_names_no_server(gateway_of_two: Gateway) -> None:
    """References, brokers and filters in user properties and filters are only text."""
    for k, value in enumerate((EVIL, b"", b"a/#/b", b"\xf0\x9f\x92\xa9", b"x" * 60_000)):
        say = ((b"server-reference", EVIL), (b"server-reference-topic", value), (b"\x1c", EVIL))
        with RawClient(gateway_of_two.port) as client:
            client.send(hello(b"say%d" % k, say=say) + p.subscribe(1, (b"t", 0)))
            heard = b"".join(iter(client.packet, b""))
            assert b"127.0.0.1:" in heard
            assert EVIL not in heard
    assert "Traceback" not in gateway_of_two.log


def test_an_attackers_redirect_costs_the_owner_of_the_id_no_service(gateway_of_two: Gateway) -> None:
    assert redirected(gateway_of_two.port, b"owner", b"t")[0] == 0x9C
    assert is_proxied(gateway_of_two.port, hello(b"owner"))


@pytest.fixture(scope="module")
def gateway_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Mosquitto() as first, Mosquitto() as second:
        listed = [f"mqtt://127.0.0.1:{one.port}" for one in (first, second)]
        with Gateway(tmp_path_factory.mktemp("gateway"), *listed, words=("--mode", "redirect")) as gateway:
            yield gateway


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--broker", "x=mqtt://127.0.0.1:1?reference=a b/c"), "reference that clients cannot use"),
        (("--broker", "x=mqtt://127.0.0.1:1?reference=host:99999"), "reference that clients cannot use"),
        (("--redirect-moved", "a/#=nobody"), "names the broker 'nobody'; known: b0"),
        (("--groups", "nobody=http://127.0.0.1:1"), "names the broker 'nobody'; known: b0"),
        (("--groups", "b0=ftp://127.0.0.1:1"), "is not the page of a federator"),
        (("--redirect-deny", "a/#/b"), "misplaced #"),
        (("--listen", "ws://127.0.0.1:0?mode=redirect"), "cannot redirect"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, "mqtt://127.0.0.1:1", words=("--mode", "redirect", *words))
    with pytest.raises(AssertionError, match="the gateway ended with 2"):
        gateway.start()
    assert said in gateway.log


def test_the_pages_of_federators_are_read_with_care(tmp_path: Path) -> None:
    """A page that is not JSON, or huge, or names other brokers, changes only a counter."""
    pages = iter(
        [
            b"HTTP/1.1 200 OK\r\n\r\nnonsense",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n"
            + json.dumps({"id": 7, "groups": [{"group": "t", "role": "core"}, 1, {}]}).encode(),
        ]
    )
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for page in pages:
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(page)

    thread = threading.Thread(target=serve)
    thread.start()
    where = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with Mosquitto() as first, Mosquitto() as second:
            listed = [f"mqtt://127.0.0.1:{one.port}" for one in (first, second)]
            words = ("--mode", "redirect", "--groups", f"b1={where}", "--groups-interval", "100ms")
            with Gateway(tmp_path, *listed, words=words) as gateway:
                wait_until(lambda: gateway.metric("hanse_gateway_groups") == 1, "one row is good")
                assert redirected(gateway.port, b"c", b"t") == (0x9C, f"127.0.0.1:{second.port}")
                assert gateway.metric('hanse_gateway_groups_dropped_total{reason="unreadable"}') == 2
                assert gateway.log.count("a federator shows no groups") == 1
    finally:
        thread.join(20)
        listener.close()
