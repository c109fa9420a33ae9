"""TLS with client certificates, at the real broker and between two federators."""

import asyncio
import os
from pathlib import Path

import pytest
import uvloop
from tests.brokers import Mosquitto
from tests.certificates import authority, certificate

from hanse.errors import HanseError, LocalError
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.endpoints import LinkDialler, LinkGreeting, LinkListener, LinkListenerHandler
from hanse.mqtt.link import Frame, Link
from hanse.mqtt.tls import TlsSettings, client_context, server_context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for ca in ("ours", "strangers"):
        authority(folder, ca)
    for ca, name in (("ours", "server"), ("ours", "one"), ("strangers", "stranger")):
        certificate(folder, ca, name)
    return folder


def identity(folder: Path, name: str | None, *, ca: str = "ours") -> TlsSettings:
    if name is None:
        return TlsSettings(ca_file=folder / f"{ca}.crt")
    return TlsSettings(folder / f"{ca}.crt", folder / f"{name}.crt", folder / f"{name}.key")


async def failure(url: str, tls: TlsSettings) -> HanseError | None:
    client = Client(ClientSettings(url=url, client_id="x", tls=tls, connect_timeout_s=5), ClientHandler())
    try:
        await client.start(must_connect=True)
    except HanseError as error:
        return error
    await client.stop()
    return None


@pytest.mark.processes
def test_a_broker_that_requires_a_certificate_gets_ours_and_wrong_ones_are_refused(certificates: Path) -> None:
    lines = [
        f"cafile {certificates}/ours.crt",
        f"certfile {certificates}/server.crt",
        f"keyfile {certificates}/server.key",
        "require_certificate true",
    ]

    async def story(port: int) -> None:
        url = f"mqtts://127.0.0.1:{port}"
        assert await failure(url, identity(certificates, "one")) is None
        wrong_ca = await failure(url, identity(certificates, "one", ca="strangers"))
        assert isinstance(wrong_ca, LocalError)
        assert "not trusted" in str(wrong_ca)
        assert await failure(url, identity(certificates, None)) is not None
        assert await failure(url, identity(certificates, "stranger")) is not None
        # The certificate does not name this host.
        other_name = TlsSettings(ca_file=certificates / "ours.crt", server_name="elsewhere.example")
        wrong_name = await failure(url, other_name)
        assert isinstance(wrong_name, LocalError)
        # A later attempt does not connect either.
        client = Client(
            ClientSettings(url=url, client_id="y", tls=identity(certificates, "one", ca="strangers")),
            ClientHandler(),
        )
        await client.start()
        with pytest.raises(HanseError):
            await client.wait_connected(0.5)
        await client.stop()

    with Mosquitto(*lines) as broker:
        uvloop.run(story(broker.port))


class Federator(LinkListenerHandler):
    def __init__(self) -> None:
        self.links: list[Link] = []
        self.frames: list[Frame] = []
        self.certificates: list[dict[str, object] | None] = []

    def on_greeting(self, greeting: LinkGreeting) -> None:
        self.certificates.append(greeting.peer_certificate)
        greeting.accept({})

    def on_link(self, link: Link) -> None:
        self.links.append(link)

    def on_frames(self, link: Link, frames: list[Frame]) -> None:
        self.frames += frames
        link.ack([frame.receipt for frame in frames])


@pytest.mark.processes
def test_a_link_authenticates_both_sides_and_a_stranger_gets_none(certificates: Path) -> None:
    async def until(condition: object) -> None:
        for _ in range(2000):
            if condition():  # type: ignore[operator]
                return
            await asyncio.sleep(0.005)
        raise TimeoutError("the condition did not become true in time")

    async def story() -> None:
        here, there = Federator(), Federator()
        listener = LinkListener("two", there)
        await listener.start("127.0.0.1", 0, identity(certificates, "server"))
        url = f"mqtts://127.0.0.1:{listener.port}"
        failures: list[HanseError] = []
        dialler = LinkDialler(url, "one", here, tls=identity(certificates, "one"))
        papers = identity(certificates, "stranger")
        stranger = LinkDialler(url, "x", Federator(), tls=papers, on_failed=failures.append)
        plain = LinkDialler(f"mqtt://127.0.0.1:{listener.port}", "p", Federator(), on_failed=failures.append)
        try:
            dialler.start()
            await until(lambda: here.links)
            payload = os.urandom(2_000_000)
            here.links[0].send("d", payload)
            await until(lambda: there.frames)
            assert there.frames[0].payload == payload
            assert "one" in str(there.certificates[0])
            # A lone acknowledgement goes through TLS as well, not straight to the kernel.
            await until(lambda: not here.links[0].unacknowledged)
            stranger.start()
            await until(lambda: len(failures) >= 2)
            await stranger.stop()
            failures.clear()
            plain.start()
            await until(lambda: failures)
            assert len(there.links) == 1
        finally:
            for one in (dialler, stranger, plain):
                await one.stop()
            await listener.stop()

    uvloop.run(story())


async def link_failure(folder: Path, name: str, tls: TlsSettings, told: list[tuple[str, str]]) -> str:
    """Return why a dialler got no link to a listener with the certificate NAME; `told` gets what the listener says."""
    listener = LinkListener("two", Federator())
    listener.listener.on_refused_tls = lambda _, event, reason: told.append((event, reason))
    failed: asyncio.Future[HanseError] = asyncio.get_running_loop().create_future()
    await listener.start("127.0.0.1", 0, identity(folder, name))
    url = f"mqtts://127.0.0.1:{listener.port}"
    dialler = LinkDialler(
        url, "one", Federator(), tls=tls, on_failed=lambda one: None if failed.done() else failed.set_result(one)
    )
    try:
        dialler.start()
        return str(await asyncio.wait_for(failed, 20)).replace(url, "URL")
    finally:
        await dialler.stop()
        await listener.stop()


def test_a_failed_link_names_the_side_and_the_setting_that_must_change(certificates: Path) -> None:
    certificate(certificates, "ours", "serving", usage="serverAuth")
    certificate(certificates, "ours", "elsewhere", names="DNS:elsewhere.example")
    ours, strangers = certificates / "ours.crt", certificates / "strangers.crt"

    async def story() -> None:
        told: list[tuple[str, str]] = []
        files = (certificates / "serving.crt", certificates / "serving.key")
        said = await link_failure(certificates, "server", TlsSettings(ours, *files, prefix="link_"), told)
        assert "it may have refused link_cert_file: its log says why" in said or "the other side refused" in said
        assert "want a client certificate" not in said
        assert told == [
            (
                "tls_wrong_purpose",
                "unsuitable certificate purpose: the peer's certificate lacks the extended key usage clientAuth",
            )
        ]
        said = await link_failure(certificates, "elsewhere", TlsSettings(ours, prefix="link_"), told)
        assert said == (
            "the certificate of URL is not trusted: IP address mismatch, certificate is not valid for '127.0.0.1'; "
            "give the other side a certificate with the name that is dialled (an IP address as an address)."
        )
        said = await link_failure(certificates, "server", TlsSettings(strangers, prefix="link_"), told)
        assert f"; check that link_ca_file ({strangers}) holds the authority of that certificate." in said
        said = await link_failure(certificates, "server", TlsSettings(prefix="link_"), told)
        assert "no link_ca_file is given, so the system's authorities count" in said

    uvloop.run(story())


def test_a_plain_port_is_asked_about(certificates: Path) -> None:
    async def story() -> None:
        listener = LinkListener("two", Federator())
        await listener.start("127.0.0.1", 0)
        failed: asyncio.Future[HanseError] = asyncio.get_running_loop().create_future()
        dialler = LinkDialler(
            f"mqtts://127.0.0.1:{listener.port}",
            "one",
            Federator(),
            tls=identity(certificates, "one"),
            on_failed=lambda one: None if failed.done() else failed.set_result(one),
        )
        try:
            dialler.start()
            assert "is it a TLS port?" in str(await asyncio.wait_for(failed, 20))
        finally:
            await dialler.stop()
            await listener.stop()

    uvloop.run(story())


def test_unusable_files_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(LocalError, match=r"nosuch\.pem"):
        client_context(TlsSettings(ca_file=tmp_path / "nosuch.pem"))
    with pytest.raises(LocalError, match="ca_file"):
        client_context(TlsSettings(ca_file=empty))
    with pytest.raises(LocalError, match="cert_file"):
        client_context(TlsSettings(cert_file=empty))
    with pytest.raises(LocalError, match="needs its certificate"):
        client_context(TlsSettings(key_file=empty))
    with pytest.raises(LocalError, match="needs a certificate"):
        server_context(TlsSettings())
    with pytest.raises(LocalError, match="mqtts://"):
        asyncio.run(_plain_with_tls())


async def _plain_with_tls() -> None:
    Client(ClientSettings(url="mqtt://b", client_id="x", tls=TlsSettings()), ClientHandler())
