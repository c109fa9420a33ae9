"""A listener that strangers crowd: connections without a CONNECT, and TLS handshakes that do not go on."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from tests.certificates import authority, certificate

from hanse.errors import HanseError
from hanse.mqtt.endpoints import LinkDialler, LinkGreeting, LinkListener, LinkListenerHandler
from hanse.mqtt.link import Link
from hanse.mqtt.tls import TlsSettings

pytestmark = pytest.mark.processes
IDLE = 1_500
# Longer than any test waits: no place becomes free by itself.
NEVER_S = 600.0


class Federator(LinkListenerHandler):
    def __init__(self) -> None:
        self.links: list[Link] = []

    def on_greeting(self, greeting: LinkGreeting) -> None:
        greeting.accept({})

    def on_link(self, link: Link) -> None:
        self.links.append(link)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for ca in ("ours", "strangers"):
        authority(folder, ca)
    for ca, name in (("ours", "server"), ("ours", "one"), ("strangers", "stranger")):
        certificate(folder, ca, name)
    return folder


def tls_of(folder: Path, name: str, ca: str = "ours") -> TlsSettings:
    return TlsSettings(folder / f"{ca}.crt", folder / f"{name}.crt", folder / f"{name}.key")


async def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(6_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError(what)


async def idle(port: int, count: int, host: str = "127.0.0.1") -> list[socket.socket]:
    """Return sockets that are connected and say nothing."""
    made = []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        one.bind((host, 0))
        await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
        made.append(one)
    return made


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_idle_connections_do_not_delay_a_link(kind: str, certificates: Path) -> None:
    async def story() -> None:
        there = Federator()
        listener = LinkListener("two", there, connect_deadline_s=NEVER_S)
        tls = tls_of(certificates, "server") if kind == "tls" else None
        await listener.start("127.0.0.1", 0, tls)
        strangers = await idle(listener.port, IDLE)
        scheme = "mqtt" if tls is None else "mqtts"
        failures: list[HanseError] = []
        dialler = LinkDialler(
            f"{scheme}://127.0.0.1:{listener.port}",
            "one",
            Federator(),
            tls=None if tls is None else tls_of(certificates, "one"),
            on_failed=failures.append,
        )
        try:
            dialler.start()
            await until(lambda: there.links, "the link stands")
            assert failures == []
            assert listener.listener.counters.refusals["connections"] > 0
            assert listener.listener.waiting < IDLE
        finally:
            for one in strangers:
                one.close()
            await dialler.stop()
            await listener.stop()

    uvloop.run(story())


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_strangers_do_not_take_the_places_of_known_hosts(kind: str, certificates: Path) -> None:
    async def story() -> None:
        listener = LinkListener("two", Federator(), connections_max=20, connect_deadline_s=NEVER_S)
        listener.listener.is_known_host = lambda host: host == "127.0.0.2"
        await listener.start("127.0.0.1", 0, tls_of(certificates, "server") if kind == "tls" else None)
        known = await idle(listener.port, 5, "127.0.0.2")
        strangers = await idle(listener.port, 60)
        try:
            await until(lambda: listener.listener.counters.refusals.get("connections", 0) >= 45, "strangers end")
            await asyncio.sleep(0.05)
            for one in known:
                with pytest.raises(BlockingIOError):  # still open, and nothing to read
                    one.recv(1)
        finally:
            for one in (*known, *strangers):
                one.close()
            await listener.stop()

    uvloop.run(story())


def test_links_keep_their_places() -> None:
    async def story() -> None:
        there = Federator()
        listener = LinkListener("two", there, connections_max=1, connect_deadline_s=NEVER_S)
        await listener.start("127.0.0.1", 0)
        dialler = LinkDialler(f"mqtt://127.0.0.1:{listener.port}", "one", Federator())
        dialler.start()
        await until(lambda: there.links, "the link stands")
        (stranger,) = await idle(listener.port, 1)
        try:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.get_running_loop().sock_recv(stranger, 1) == b""
            assert there.links[0].is_open
            assert listener.listener.counters.refusals == {"connections": 1}
        finally:
            stranger.close()
            await dialler.stop()
            await listener.stop()

    uvloop.run(story())


def test_refused_handshakes_are_reported_with_their_reason(certificates: Path) -> None:
    async def story() -> None:
        told: list[tuple[str, str]] = []
        there = Federator()
        listener = LinkListener("two", there, connect_deadline_s=0.5)
        listener.listener.on_refused_tls = lambda address, event, _: told.append((address.split(":")[0], event))
        await listener.start("127.0.0.1", 0, tls_of(certificates, "server"))
        stranger = LinkDialler(
            f"mqtts://127.0.0.1:{listener.port}",
            "x",
            Federator(),
            tls=TlsSettings(certificates / "ours.crt", certificates / "stranger.crt", certificates / "stranger.key"),
        )
        nobody = LinkDialler(
            f"mqtts://127.0.0.1:{listener.port}", "y", Federator(), tls=TlsSettings(certificates / "ours.crt")
        )
        plain = LinkDialler(f"mqtt://127.0.0.1:{listener.port}", "z", Federator())
        try:
            stranger.start()
            await until(lambda: ("127.0.0.1", "tls_unknown_authority") in told, "an unknown authority")
            await stranger.stop()
            told.clear()
            nobody.start()
            await until(lambda: ("127.0.0.1", "tls_refused") in told, "no certificate")
            await nobody.stop()
            told.clear()
            plain.start()
            await until(lambda: ("127.0.0.1", "tls_refused") in told, "no TLS")
            assert there.links == []
        finally:
            for one in (stranger, nobody, plain):
                await one.stop()
            await listener.stop()

    uvloop.run(story())
