"""A gateway's connection to a federator's listener, both real, over TCP and TLS."""

import asyncio
from pathlib import Path

import pytest
from tests.certificates import authority, certificate
from tests.client.stories import run, until

from hanse.errors import RemoteError, Unavailable
from hanse.federator import gateways as federator_side
from hanse.federator.gateways import GatewayName, GatewayPeer, Gateways
from hanse.gateway.federators import FederatorConnection, FederatorLogin, Federators
from hanse.gateway.placement import Broker
from hanse.mqtt.backoff import Backoff, BackoffSettings
from hanse.mqtt.tls import TlsSettings
from hanse.request_channel import Answer, Endpoint, Request, RequestChannel

ANYWHERE = Endpoint("127.0.0.1", 0)


async def echo(gateway: GatewayPeer, request: Request) -> Answer:
    await request.part({"part": 1}, b"first")
    return Answer({"owner": str(gateway.name), **request.fields}, request.body)


def test_gateway_is_known_by_its_name_and_gets_answers() -> None:
    async def story() -> None:
        come: list[GatewayName] = []
        gone: list[GatewayName] = []
        federator = Gateways(7)
        federator.watch(lambda peer: come.append(peer.name), lambda peer: gone.append(peer.name))
        federator.offer("echo", echo)
        endpoint = await federator.listen(ANYWHERE)
        connection = FederatorConnection(endpoint, FederatorLogin("g1", "abc", 2))
        with pytest.raises(Unavailable, match="no connection"):
            await connection.ask("echo", timeout_s=1)
        connection.start()
        await until(lambda: connection.is_open, "the connection")
        parts: list[Answer] = []
        answer = await connection.ask("echo", {"x": "é"}, b"\0", timeout_s=10, on_part=parts.append)
        assert answer == Answer({"owner": "g1/abc/2", "x": "é"}, b"\0")
        assert parts == [Answer({"part": 1}, b"first")]
        assert connection.federator == 7
        await connection.stop()
        await until(lambda: gone, "the end at the federator")
        assert come == gone == [GatewayName("g1", "abc", 2)]
        assert not federator.peers
        await federator.stop()

    run(story)


def test_gateway_reconnects_when_the_federator_returns() -> None:
    async def story() -> None:
        federator = Gateways(1)
        endpoint = await federator.listen(ANYWHERE)
        lost: list[int] = []
        connection = FederatorConnection(
            endpoint, FederatorLogin("g", "i"), on_lost=lambda one: lost.append(one.opened)
        )
        connection.start()
        await until(lambda: connection.is_open, "the connection")
        await federator.stop()
        await until(lambda: lost == [1], "the loss")
        federator = Gateways(1)
        await federator.listen(endpoint)
        await until(lambda: connection.opened == 2, "the return")
        await connection.stop()
        await federator.stop()

    run(story)


def test_newer_connection_of_the_same_name_replaces_the_older_one_which_is_not_gone() -> None:
    async def story() -> None:
        told: list[str] = []
        federator = Gateways(1)
        federator.offer("echo", echo)
        federator.watch(
            lambda peer: told.append(f"come {peer.name}"),
            lambda peer: told.append(f"gone {peer.name}"),
        )
        endpoint = await federator.listen(ANYWHERE)
        older, newer = (FederatorConnection(endpoint, FederatorLogin("g", "i")) for _ in range(2))
        older.start()
        await until(lambda: older.is_open, "the first")
        # Its end has not reached the federator when the gateway is back.
        older._backoff = Backoff(BackoffSettings(first_s=60, max_s=60), lambda: 1.0)
        newer.start()
        await until(lambda: newer.is_open, "the second")
        assert (await newer.ask("echo", {}, timeout_s=10)).fields == {"owner": "g/i/0"}
        await until(lambda: len(federator._channels) == 1, "the end of the first")
        assert told == ["come g/i/0", "come g/i/0"]
        await newer.stop()
        await until(lambda: told[-1] == "gone g/i/0", "the end of the second")
        await older.stop()
        await federator.stop()

    run(story)


def test_attack_wrong_token_is_refused_and_nothing_can_be_asked_before_the_hello() -> None:
    async def story() -> None:
        federator = Gateways(1, token="secret")
        federator.offer("echo", echo)
        endpoint = await federator.listen(ANYWHERE)
        wrong = FederatorConnection(endpoint, FederatorLogin("g", "i", token="guess"))
        none = FederatorConnection(endpoint, FederatorLogin("g", "i"))
        right = FederatorConnection(endpoint, FederatorLogin("g", "i", token="secret"))
        for connection in (wrong, none, right):
            connection.start()
        await until(lambda: right.is_open and wrong.failures and none.failures, "three outcomes")
        assert not wrong.is_open
        assert not none.is_open
        assert federator.counters["hello_refused"] == 2
        for connection in (wrong, none, right):
            await connection.stop()
        loop = asyncio.get_running_loop()
        stranger = RequestChannel({})
        await loop.create_connection(lambda: stranger, endpoint.host, endpoint.port)
        with pytest.raises(RemoteError, match="not known here"):
            await stranger.ask("echo", {}, timeout_s=10)
        # Before the hello a frame is small.
        with pytest.raises(Unavailable):
            await stranger.ask("hello", {}, bytes(10_000), timeout_s=10)
        await federator.stop()

    run(story)


def test_attack_silent_connection_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federator_side, "HELLO_S", 0.05)

    async def story() -> None:
        federator = Gateways(1)
        endpoint = await federator.listen(ANYWHERE)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        assert await reader.read() == b""
        writer.close()
        assert federator.counters["hello_late"] == 1
        await federator.stop()

    run(story)


@pytest.mark.processes
def test_tls_is_mutual_and_a_stranger_gets_nothing(tmp_path: Path) -> None:
    for ca in ("ours", "strangers"):
        authority(tmp_path, ca)
    for ca, name in (("ours", "server"), ("ours", "gateway"), ("strangers", "stranger")):
        certificate(tmp_path, ca, name)

    def files(name: str) -> TlsSettings:
        return TlsSettings(tmp_path / "ours.crt", tmp_path / f"{name}.crt", tmp_path / f"{name}.key")

    async def story() -> None:
        federator = Gateways(1, tls=files("server"))
        federator.offer("echo", echo)
        endpoint = await federator.listen(Endpoint("127.0.0.1", 0, True))
        good = FederatorConnection(endpoint, FederatorLogin("g", "i", tls=files("gateway")))
        stranger = FederatorConnection(endpoint, FederatorLogin("h", "i", tls=files("stranger")))
        nobody = FederatorConnection(endpoint, FederatorLogin("h", "i", tls=TlsSettings(tmp_path / "ours.crt")))
        misled = FederatorConnection(
            Endpoint("127.0.0.2", endpoint.port, True), FederatorLogin("h", "i", tls=files("gateway"))
        )
        for one in (good, stranger, nobody, misled):
            one.start()
        await until(lambda: good.is_open and stranger.failures and nobody.failures and misled.failures, "four outcomes")
        assert (await good.ask("echo", {}, timeout_s=10)).fields == {"owner": "g/i/0"}
        assert [str(name) for name in federator.peers] == ["g/i/0"]
        for one in (good, stranger, nobody, misled):
            await one.stop()
        await federator.stop()

    run(story)


def test_federator_on_another_machine_is_not_dialled_without_tls(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        for is_insecure in (False, True):
            federators = Federators(
                FederatorLogin("g", "i"), barrier_timeout_s=1, clock=lambda: 0.0, is_insecure=is_insecure
            )
            # 192.0.2.0/24 is for documentation: nobody answers there.
            federators.update([Broker("a", "mqtt://h:1", federator="tcp://192.0.2.1:7")])
            assert (federators.connection("a") is not None) is is_insecure
            federators.update([])
            await federators.stop()

    run(story)
    assert "without TLS" in caplog.text
