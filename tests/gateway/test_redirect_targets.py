"""Address that a client gets for each broker, and 0x9D when it changes."""

import asyncio
from typing import Any

import pytest
from tests.gateway import packets as p
from tests.gateway.test_redirect_live import hello

from hanse.errors import LocalError
from hanse.gateway.addresses import ListenAddress, parse_broker
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.brokers.directory import Directory
from hanse.gateway.front.client import Client
from hanse.gateway.front.connect import read_connect
from hanse.gateway.placement import Broker
from hanse.gateway.redirect.redirector import Redirector
from hanse.gateway.redirect.targets import check_reference, parse_moved, parse_source, reference_of
from hanse.gateway.session.events import TopicsAsked
from hanse.gateway.session.settings import Settings
from hanse.gateway.settings import GatewaySettings
from hanse.gateway.traffic import Traffic
from hanse.mqtt.tls import TlsSettings

HERE = ListenAddress("127.0.0.1", 1883)
OUTSIDE = ListenAddress("0.0.0.0", 1883)
TLS = ListenAddress("10.0.0.1", 8883, is_tls=True)


@pytest.mark.parametrize(
    ("url", "listener", "told"),
    [
        ("mqtt://10.0.0.7:1884", OUTSIDE, "10.0.0.7:1884"),
        ("mqtt://10.0.0.7", OUTSIDE, "10.0.0.7:1883"),
        ("mqtt://b.example", OUTSIDE, "b.example:1883"),
        ("mqtt://[2001:db8::7]:1884", OUTSIDE, "[2001:db8::7]:1884"),
        ("mqtt://127.0.0.1:1884", HERE, "127.0.0.1:1884"),
        ("mqtts://10.0.0.7", TLS, "10.0.0.7:8883"),
        ("mqtt://127.0.0.1:1884", OUTSIDE, ""),
        ("mqtt://localhost:1884", OUTSIDE, ""),
        ("mqtt://10.0.0.7", TLS, ""),
        ("mqtts://10.0.0.7", OUTSIDE, ""),
        ("unix:/run/b.sock", HERE, ""),
        ("unix:/run/b.sock?reference=b.example:1883", HERE, "b.example:1883"),
        ("mqtt://127.0.0.1:1884?reference=b.example", OUTSIDE, "b.example"),
        ("mqtt://10.0.0.7?reference=b.example:8883", TLS, "b.example:8883"),
    ],
)
def test_the_reference_of_a_broker(url: str, listener: ListenAddress, told: str) -> None:
    reference, obstacle = reference_of(parse_broker(f"b={url}"), listener)
    assert reference == told
    assert bool(obstacle) == (not told)
    assert told or "reference=HOST:PORT" in obstacle


def test_references_sources_and_moves_are_checked() -> None:
    check_reference(Broker("b", "mqtt://x", reference="a.example:1 [::1]:2"))
    for wrong in ("a b c!", "host:0", "_mqtt._tcp.example", "[::1", " ".join("abcdefghij"), "a\nb"):
        with pytest.raises(LocalError, match="clients cannot use"):
            check_reference(Broker("b", "mqtt://x", reference=wrong))
    assert parse_moved("a/+/c=b1") == ("a/+/c", "b1")
    assert parse_source("mqtt://x:1=http://10.0.0.1:9180/p") == ("mqtt://x:1", "http://10.0.0.1:9180/p")
    for wrong in ("a", "=b", "a="):
        with pytest.raises(LocalError):
            parse_moved(wrong)
    for wrong in ("b=", "http://x", "b=mqtt://x", "=http://x", "b=http://"):
        with pytest.raises(LocalError):
            parse_source(wrong)


class Asked:
    """A redirector whose supervisor is the test, and whose clients have no sockets."""

    def __init__(self, *brokers: str) -> None:
        self.settings = GatewaySettings(broker=brokers, mode="redirect", redirect_return_s=0.1)
        self.directory = Directory()
        self.set_brokers(*brokers)
        self.traffic = Traffic()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.proxied: list[bytes] = []
        self.redirector = Redirector(
            self.settings,
            self.directory,
            Dialler(TlsSettings()),
            session_settings=Settings(),
            traffic=self.traffic,
            share=1,
            ask=lambda kind, **fields: self.asked.append((kind, fields)),
            proxy=lambda _client, _connect, rest: self.proxied.append(rest),
            run=lambda work: work.close(),
        )
        now = asyncio.get_running_loop().time()
        login = self.redirector.credentials.key(read_connect(hello(b"")))
        self.redirector.credentials._verdicts[login] = (now + 1e6, True)

    def set_brokers(self, *brokers: str) -> None:
        self.directory.update(self.directory.version + 1, [parse_broker(one) for one in brokers])

    def connect(self, name: bytes) -> "Unconnected":
        """Return a client that has sent CONNECT."""
        client = Unconnected(self)
        assert self.redirector.take(client, read_connect(hello(name)), b"")
        return client

    def redirect(self, name: bytes, broker: str, code: int = 0x9C) -> bytes:
        """Redirect a client; the supervisor answers with this broker. Return the last packet."""
        client = self.connect(name)
        assert client.session is not None
        client.session.client_data(p.subscribe(1, (b"t", 0)), 0.0)
        client.settle()
        _, question = next(one for one in reversed(self.asked) if one[0] == "where")
        self.redirector.answered(question["number"], {"code": code, "broker": broker, "reference": "evil.example:1"})
        return client.told[-1]


class Unconnected(Client):
    """A client without a socket, which keeps the packets that it gets."""

    def __init__(self, owner: Asked) -> None:
        super().__init__(owner, HERE, "10.0.0.9")  # type: ignore[arg-type]
        self.owner = owner
        self.told: list[bytes] = []
        self.is_open = True

    def settle(self) -> None:
        session = self.session
        assert session is not None
        self.told += session.to_client
        session.to_client.clear()
        events, session.events[:] = session.events[:], []
        for event in events:
            if isinstance(event, TopicsAsked):
                self.owner.redirector.asked(self, event)


@pytest.mark.anyio
async def test_a_broker_with_a_new_address_counts_as_moved() -> None:
    asked = Asked("a=mqtt://127.0.0.1:1001", "b=mqtt://127.0.0.1:1002")
    assert asked.redirect(b"c", "a")[2] == 0x9C
    assert asked.redirect(b"other", "a")[2] == 0x9C
    asked.set_brokers("a=mqtt://127.0.0.1:2001", "b=mqtt://127.0.0.1:1002")
    await asyncio.sleep(0.15)
    moved = asked.redirect(b"c", "a")
    assert moved[2] == 0x9D
    assert moved.endswith(b"127.0.0.1:2001")
    assert asked.redirect(b"new", "a")[2] == 0x9C
    assert asked.traffic.redirects == {"disconnect_0x9c": 3, "disconnect_0x9d": 1}
    await asyncio.sleep(0.15)
    assert asked.redirect(b"other", "b")[2] == 0x9C, "another broker has not moved"


@pytest.mark.anyio
async def test_an_answer_names_only_brokers_of_the_directory() -> None:
    asked = Asked("a=mqtt://127.0.0.1:1001", "b=mqtt://127.0.0.1:1002")
    told = asked.redirect(b"c", "a")
    assert b"evil" not in told
    assert told.endswith(b"127.0.0.1:1001")
    assert asked.redirect(b"d", "nobody") == p.disconnect(0x89)
    assert asked.redirect(b"e", "", 0x8F) == p.disconnect(0x8F)
    # An answer for a client that is gone, or without a question, is dropped.
    asked.redirector.answered(999, {"code": 0x9C, "broker": "a"})


@pytest.mark.anyio
async def test_the_question_names_the_broker_that_the_client_came_from() -> None:
    asked = Asked("a=mqtt://127.0.0.1:1001", "b=mqtt://127.0.0.1:1002")
    asked.redirect(b"c", "a")
    await asyncio.sleep(0.15)
    asked.redirect(b"c", "b")
    questions = [fields for kind, fields in asked.asked if kind == "where"]
    assert [one["came_from"] for one in questions] == ["", "a"]
    assert questions[0]["filters"] == ["t"]
    assert bytes.fromhex(questions[0]["client"]) == b"c"
