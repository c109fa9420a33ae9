"""The bulk connection beside a real Mosquitto: its messages, those of the session, and no visible difference."""

import asyncio
import base64
import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.brokers import Mosquitto, free_port

from hanse.federator import lane as lane_module
from hanse.federator.host import HostSession
from hanse.federator.journal import DeliveryJournal
from hanse.federator.lane import REST_S, Lane
from hanse.federator.ring import DeliveredRing
from hanse.mqtt import websocket
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.counters import Counters
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.subscriptions import Subscription
from hanse.mqtt.urls import Address
from hanse.mqtt.websocket_publisher import connect_packet

pytestmark = pytest.mark.processes

BATCH = 200
WAIT_S = 20.0


def played(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(story)
    def test(*arguments: Any, **named: Any) -> None:
        uvloop.run(story(*arguments, **named))

    return test


@pytest.fixture(scope="module")
def broker() -> Iterator[tuple[int, int]]:
    """Start a broker, and return its port and that of its WebSockets."""
    lane_port = free_port()
    listener = (f"listener {lane_port} 127.0.0.1", "protocol websockets", "socket_domain ipv4", "allow_anonymous true")
    lines = ("max_queued_messages 0", *listener)
    with Mosquitto(*lines, quiet=True) as running:
        yield running.port, lane_port


class Listener(ClientHandler):
    """Client of the host broker that records the numbers it gets."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def on_publications(self, publications: list[Publication]) -> None:
        self.numbers += [int(publication.packet[-8:]) for publication in publications]


class Host:
    """Federator's session with its bulk connection, and a client that listens."""

    def __init__(self, directory: Path, port: int, lane_port: int | None, name: str) -> None:
        self.came_back: list[Publication] = []
        self.listener = Listener()
        url = f"mqtt://127.0.0.1:{port}"
        self.subscriber = Client(ClientSettings(url, f"listener-{name}"), self.listener)
        self.session = HostSession(
            ClientSettings(url, f"hanse-{name}", clean_start=False, session_expiry_s=60),
            on_publications=self._on_publications,
            on_internal=self._on_publications,
            on_state=lambda *_: None,
            on_credit=lambda: None,
            journal=DeliveryJournal(directory / "journal"),
            ring=DeliveredRing(directory / "delivered", capacity=64),
            lane=None if lane_port is None else Address("127.0.0.1", lane_port),
        )
        self.sent = 0

    def _on_publications(self, publications: list[Publication]) -> None:
        self.came_back += publications

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Host"]:
        self.subscriber.subscribe([Subscription("load/#", no_local=False)])
        await self.subscriber.start()
        await self.session.client.start()
        await until(lambda: self.subscriber.is_subscribed and self.session.client.is_connected)
        try:
            yield self
        finally:
            await self.session.client.stop()
            await self.subscriber.stop()

    def uses_lane(self) -> bool:
        return self.session.uses_lane

    def deliver(self, count: int, group: str = "load/#") -> None:
        run = b"".join(encode("load/x", b"%08d" % number) for number in range(self.sent, self.sent + count))
        self.session.deliver_loose(run, count, [(group,)])
        self.sent += count

    async def stream(self, seconds: float, until_: Callable[[], bool] = lambda: False, group: str = "load/#") -> None:
        """Publish some 100,000 messages per second."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and not until_():
            self.deliver(BATCH, group)
            await asyncio.sleep(0.002)

    async def all_came_once_in_order(self) -> None:
        await until(lambda: len(self.listener.numbers) >= self.sent)
        assert self.listener.numbers == list(range(self.sent))
        assert not self.came_back
        assert not self.session.client.counters.drops


async def until(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    while not condition():
        assert loop.time() < deadline, f"not within {WAIT_S} s"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def streaming(tmp_path: Path, broker: tuple[int, int], name: str) -> AsyncIterator[Host]:
    """Return a host whose bulk connection is in use."""
    async with Host(tmp_path, *broker, name).running() as host:
        await host.stream(WAIT_S, host.uses_lane)
        assert host.uses_lane()
        yield host


@played
async def test_a_stream_uses_the_bulk_connection_and_a_trickle_does_not(
    tmp_path: Path, broker: tuple[int, int]
) -> None:
    async with Host(tmp_path, *broker, "ebb").running() as host:
        for _ in range(20):
            host.deliver(1)
            await asyncio.sleep(0.01)
        assert not host.uses_lane()
        for _ in range(2):
            await host.stream(WAIT_S, host.uses_lane)
            assert host.uses_lane()
            await host.stream(0.3)
            assert host.uses_lane()
            for _ in range(20):
                host.deliver(1)
                await asyncio.sleep(0.01)
            assert not host.uses_lane()
        await host.all_came_once_in_order()


@played
async def test_an_overlapping_subscription_is_sent_after_the_switch_to_the_session(
    tmp_path: Path, broker: tuple[int, int]
) -> None:
    async with streaming(tmp_path, broker, "meets") as host:
        host.session.want("+/x")
        assert not host.uses_lane()
        assert "+/x" not in host.session.client.subscriptions
        host.session.want("far/away")
        host.deliver(BATCH)
        await until(lambda: "far/away" in host.session.client.subscriptions)
        assert "+/x" in host.session.client.subscriptions
        await host.stream(0.5)
        assert not host.uses_lane()
        await host.all_came_once_in_order()


@played
async def test_a_subscription_that_does_not_overlap_changes_nothing(tmp_path: Path, broker: tuple[int, int]) -> None:
    async with streaming(tmp_path, broker, "apart") as host:
        host.session.want("commands/#")
        assert host.uses_lane()
        assert "commands/#" in host.session.client.subscriptions
        await host.stream(0.3)
        assert host.uses_lane()
        await host.all_came_once_in_order()


@played
async def test_groups_that_overlap_a_subscription_pause_the_bulk_connection(
    tmp_path: Path, broker: tuple[int, int]
) -> None:
    async with Host(tmp_path, *broker, "groups").running() as host:
        host.session.want("commands/#")
        await until(lambda: host.session.client.is_subscribed)
        await host.stream(WAIT_S, host.uses_lane)
        assert host.uses_lane()
        loop = asyncio.get_running_loop()
        began = loop.time()
        host.deliver(BATCH, "#")
        assert not host.uses_lane()
        await host.stream(0.5)
        # A machine that stood still for longer than the pause may be using it again.
        assert not host.uses_lane() or loop.time() - began >= REST_S
        await host.all_came_once_in_order()


@played
async def test_no_new_groups_use_the_bulk_connection_while_an_answer_is_pending(
    tmp_path: Path, broker: tuple[int, int]
) -> None:
    async with streaming(tmp_path, broker, "settled") as host:
        host.session.want("commands/#")
        host.session.release("commands/#")
        assert not host.session.client.is_subscribed
        host.deliver(BATCH, "load/+")
        assert not host.uses_lane()
        await host.all_came_once_in_order()


@played
async def test_the_session_replaces_a_broken_bulk_connection(tmp_path: Path, broker: tuple[int, int]) -> None:
    async with streaming(tmp_path, broker, "breaks") as host:
        await until(lambda: len(host.listener.numbers) == host.sent)
        assert host.session._lane is not None
        assert host.session._lane._wire is not None
        host.session._lane._wire.abort()
        await until(lambda: not host.uses_lane())
        await host.stream(0.1)
        await host.all_came_once_in_order()


@played
async def test_a_session_of_a_former_process_has_no_bulk_connection(tmp_path: Path, broker: tuple[int, int]) -> None:
    for life in ("first", "second"):
        (tmp_path / life).mkdir()
        async with Host(tmp_path / life, *broker, "former").running() as host:
            await host.stream(0.5, host.uses_lane)
            assert host.uses_lane() is (life == "first")
            await host.all_came_once_in_order()


@played
async def test_without_a_websocket_listener_the_session_carries_everything(
    tmp_path: Path, broker: tuple[int, int]
) -> None:
    async with Host(tmp_path, broker[0], free_port(), "nobody").running() as host:
        await host.stream(0.3)
        assert not host.uses_lane()
        await host.all_came_once_in_order()


# --- brokers that misbehave -------------------------------------------------------------------------------------------


class Fake(asyncio.Protocol):
    """Broker that answers the handshake correctly, then each packet as the test says."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers
        self.is_shaken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self.is_shaken:
            self.is_shaken = True
            key = data.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
            proof = base64.b64encode(hashlib.sha1(key + websocket._GUID).digest())
            self.transport.write(b"HTTP/1.1 101 .\r\nSec-WebSocket-Accept: " + proof + b"\r\n\r\n")
        elif self._answers:
            self.transport.write(self._answers.pop(0))


LET_IN = b"\x82\x05\x20\x03\x00\x00\x00"
ANSWERED = b"\x82\x02\xd0\x00"


class Alone:
    """Bulk connection without a session; `published` has the publications that the session would carry."""

    def __init__(self, port: int) -> None:
        self.published: list[bytes] = []
        self.counters = Counters()
        self.lane = Lane(
            Address("127.0.0.1", port),
            connect_packet("hanse-1-lane", "ann", "secret"),
            publish=lambda run, _: self.published.append(run),
            fence=lambda passed: passed(),
            held=list,
            is_settled=lambda: True,
            counters=self.counters,
        )

    async def open(self) -> None:
        self.lane.start()
        await until(lambda: self.lane._wire is not None)

    def enter(self) -> None:
        self.lane._since = -1.0
        self.lane._packets = 10_000_000_000
        self.lane.deliver(b"first", 1, [("a",)])


@contextlib.asynccontextmanager
async def alone(*answers: bytes) -> AsyncIterator[Alone]:
    server = await asyncio.get_running_loop().create_server(lambda: Fake(list(answers)), "127.0.0.1")
    alone = Alone(server.sockets[0].getsockname()[1])
    try:
        yield alone
    finally:
        alone.lane.stop()
        server.close()


@played
async def test_publications_that_wait_for_a_missing_answer_go_over_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "ANSWER_S", 0.2)
    async with alone(LET_IN) as one:
        await one.open()
        one.enter()
        assert one.lane.is_used
        said: list[str] = []
        one.lane.leave(lambda: said.append("now"))
        one.lane.deliver(b"held", 1, [("a",)])
        assert not one.published
        assert not said
        await until(lambda: said == ["now"])
        assert one.published == [b"held"]


@played
async def test_the_answer_to_an_earlier_ping_is_not_the_fence() -> None:
    async with alone(LET_IN) as one:
        await one.open()  # and the first ping to keep it alive
        one.enter()
        one.lane.leave()
        wire = one.lane._wire
        assert wire is not None
        answer = websocket.Frame(websocket.BINARY, b"\xd0\x00")
        wire._take(answer)
        one.lane.deliver(b"held", 1, [("a",)])
        assert not one.published
        wire._take(answer)
        assert one.published == [b"held"]


@played
async def test_held_publications_are_bounded_and_the_excess_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "HELD_BYTES_MAX", 10)
    monkeypatch.setattr(lane_module, "WRITE_BYTES_MAX", 10)
    async with alone(LET_IN) as one:
        await one.open()
        one.enter()
        one.lane.leave()
        one.lane.deliver(b"12345678", 2, [("a",)])
        one.lane.deliver(b"12345678", 3, [("a",)])
        assert one.counters.drops == {"slow_peer": 3}


@played
async def test_too_many_sets_of_groups_end_the_use_of_the_bulk_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "GROUPS_MAX", 3)
    async with alone(LET_IN) as one:
        await one.open()
        one.enter()
        for number in range(2):
            one.lane.deliver(b"x", 1, [(f"g{number}",)])
        assert one.lane.is_used
        one.lane.deliver(b"x", 1, [("one more",)])
        assert not one.lane.is_used


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\x82\x05\x20\x03\x00\x87\x00", "refused the bulk connection"),
        (b"\x82\x0a\x20\x08\x00\x00\x05\x27\x00\x00\x04\x00", "limits packet size"),
        (b"\x82\x02\xe0\x00", "refused the bulk connection"),
        (b"\x82\x00", "refused the bulk connection"),
        (b"\x88\x00", "closed the WebSocket"),
        (b"\x82\x03\x20\x03\x00", "cannot be read"),
        (b"\x81\x02hi", "expected a whole binary one"),
    ],
)
@played
async def test_the_session_carries_everything_if_the_broker_refuses_the_bulk_connection(
    answer: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", lane_module.__name__)
    async with alone(answer) as one:
        one.lane.start()
        await until(lambda: why in caplog.text)
        assert one.lane._wire is None
        one.enter()
        assert one.published == [b"first"]


@played
async def test_a_ping_of_the_server_is_answered_and_a_publication_ends_the_connection() -> None:
    async with alone(LET_IN) as one:
        await one.open()
        wire = one.lane._wire
        assert wire is not None
        wire.data_received(b"\x89\x02hi")
        assert not wire.closed.is_set()
        wire.data_received(b"\x82\x02\x30\x00")
        await until(wire.closed.is_set)


@played
async def test_an_endless_answer_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", lane_module.__name__)

    class Endless(Fake):
        def data_received(self, data: bytes) -> None:
            del data
            self.transport.write(b"x" * 20_000)

    server = await asyncio.get_running_loop().create_server(lambda: Endless([]), "127.0.0.1")
    one = Alone(server.sockets[0].getsockname()[1])
    one.lane.start()
    try:
        await until(lambda: "has more than" in caplog.text)
    finally:
        one.lane.stop()
        server.close()
