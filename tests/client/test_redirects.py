"""The client follows Server References, from a server that sends them to a real Mosquitto."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers import Mosquitto, free_port
from tests.certificates import authority, certificate
from tests.client.referrer import Referrer, When
from tests.client.stories import DEADLINE_S, QUICK, run, take, until

from hanse.client import Client, Connected, Event, Redirected, TlsSettings, Unavailable
from hanse.mqtt.tls import server_context

pytestmark = pytest.mark.processes
TEMPORARY, MOVED = 0x9C, 0x9D


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as one:
        yield one


@pytest.mark.parametrize("when", ["connect", "subscribe"])
@pytest.mark.parametrize("code", [TEMPORARY, MOVED])
def test_reference_is_followed_and_messages_flow(broker: Mosquitto, when: When, code: int) -> None:
    async def story() -> None:
        events: list[Event] = []
        async with (
            Referrer(code, f"127.0.0.1:{broker.port}", when=when) as gateway,
            Client(gateway.url, follow=["127.0.0.1"], backoff=QUICK, on_event=events.append) as client,
        ):
            async with client.messages("redirected/#", qos=2) as stream:
                for qos in (0, 1, 2):
                    # The gateway's SUBACK came before the broker's; the publication may be there before that.
                    await until(lambda: client.address.endswith(str(broker.port)), "the broker's address")
                    await until(lambda: client._session.is_subscribed, "the subscription at the broker")
                    await client.publish("redirected/1", str(qos), qos=qos)
                assert [one.text() for one in await take(stream, 3)] == ["0", "1", "2"]
            assert Redirected(gateway.url, f"mqtt://127.0.0.1:{broker.port}", code) in events
            assert ("server-reference", "follow") in gateway.connects[0].user_properties
            if when == "subscribe":
                assert gateway.packets == ["CONNECT", "CONNACK", "SUBSCRIBE", "SUBACK", "DISCONNECT"]

    run(story)


@pytest.mark.parametrize(("code", "visits"), [(TEMPORARY, 2), (MOVED, 1)])
def test_after_a_lost_connection_the_gateway_is_asked_again_unless_the_server_has_moved(code: int, visits: int) -> None:
    async def story() -> None:
        with Mosquitto() as broker:
            async with (
                Referrer(code, f"127.0.0.1:{broker.port}") as gateway,
                Client(gateway.url, follow=["127.0.0.1"], backoff=QUICK) as client,
            ):
                assert len(gateway.connects) == 1
                client._session.abort()
                await until(lambda: client.counters.connects == 2, "the second connection")
                assert len(gateway.connects) == visits

    run(story)


def test_silent_broker_is_left_for_the_gateway_which_names_another() -> None:
    async def story() -> None:
        with Mosquitto() as silent, Mosquitto() as other:
            async with (
                Referrer(TEMPORARY, f"127.0.0.1:{silent.port}", when="subscribe") as gateway,
                Client(gateway.url, follow=["127.0.0.1"], backoff=QUICK, keep_alive_s=1) as client,
                client.messages("a/#") as stream,
            ):
                await until(lambda: client.address.endswith(str(silent.port)), "the first broker")
                await until(lambda: client._session.is_subscribed, "the subscription there")
                os.kill(silent.pid, signal.SIGSTOP)
                try:
                    gateway.references = f"127.0.0.1:{other.port}"
                    await until(lambda: client.address.endswith(str(other.port)), "the second broker")
                    await until(lambda: client._session.is_subscribed, "the subscription there")
                    await client.publish("a/1", "x")
                    assert [one.topic for one in await take(stream, 1)] == ["a/1"]
                finally:
                    os.kill(silent.pid, signal.SIGCONT)

    run(story)


def test_unacknowledged_publication_goes_along(broker: Mosquitto) -> None:
    async def story() -> None:
        with Mosquitto() as dying:
            async with (
                Client(broker.url) as witness,
                witness.messages("along/#", qos=2) as stream,
                Referrer(TEMPORARY, f"127.0.0.1:{dying.port}") as gateway,
                Client(gateway.url, follow=["127.0.0.1"], backoff=QUICK) as client,
            ):
                os.kill(dying.pid, signal.SIGSTOP)
                waiting = [asyncio.create_task(client.publish("along/1", str(qos), qos=qos)) for qos in (1, 2)]
                await until(lambda: client.unacknowledged == 2, "two unacknowledged publications")
                gateway.references = f"127.0.0.1:{broker.port}"
                dying.kill()
                async with asyncio.timeout(DEADLINE_S):
                    await asyncio.gather(*waiting)
                assert {one.text() for one in await take(stream, 2)} == {"1", "2"}

    run(story)


def test_attack_reference_outside_the_list_is_not_dialled_and_is_counted(broker: Mosquitto) -> None:
    async def story() -> None:
        async with (
            Referrer(TEMPORARY, None) as evil,
            Referrer(TEMPORARY, f"localhost:{evil.port}") as gateway,
        ):
            with pytest.raises(Unavailable, match="not followed"):
                async with Client(
                    gateway.url,
                    follow=[f"localhost:{broker.port}"],
                    username="u",
                    password="secret",
                    connect_timeout_s=0.5,
                    backoff=QUICK,
                ):
                    pass
            assert len(gateway.connects) >= 2
            assert not evil.connects

    run(story)


def test_without_a_list_nothing_is_followed_and_the_error_says_what_to_do(broker: Mosquitto) -> None:
    async def story() -> None:
        async with Referrer(TEMPORARY, f"127.0.0.1:{broker.port}") as gateway:
            with pytest.raises(Unavailable, match="`follow` lists the servers"):
                async with Client(gateway.url, connect_timeout_s=0.5, backoff=QUICK):
                    pass
            assert not gateway.connects[0].user_properties

    run(story)


def test_attack_circle_of_references_is_left_with_a_delay() -> None:
    async def story() -> None:
        events: list[Event] = []
        async with (
            Referrer(TEMPORARY, None) as one,
            Referrer(TEMPORARY, f"127.0.0.1:{one.port}") as other,
        ):
            one.references = f"127.0.0.1:{other.port}"
            client = Client(one.url, follow=["127.0.0.1"], connect_timeout_s=1.0, on_event=events.append)
            with pytest.raises(Unavailable):
                async with client:
                    pass
            # Delays of 50 ms to 800 ms leave room for at most 5 rows of 4 connections in a second.
            assert 4 <= len(one.connects) + len(other.connects) <= 20
            assert client.counters.refusals["server_reference"] >= 1

    run(story)


def test_unreachable_reference_leads_to_the_next_one_of_the_packet(broker: Mosquitto) -> None:
    async def story() -> None:
        async with (
            Referrer(TEMPORARY, f"127.0.0.1:{free_port()} 127.0.0.1:{broker.port}") as gateway,
            Client(gateway.url, follow=["127.0.0.1"], backoff=QUICK) as client,
        ):
            assert client.address == f"mqtt://127.0.0.1:{broker.port}"
            assert len(gateway.connects) == 1

    run(story)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder, "ours")
    certificate(folder, "ours", "server")  # for localhost and 127.0.0.1
    return folder


def test_tls_stays_and_the_new_server_needs_its_own_name(certificates: Path) -> None:
    context = server_context(TlsSettings(cert_file=certificates / "server.crt", key_file=certificates / "server.key"))
    files = (
        f"cafile {certificates}/ours.crt",
        f"certfile {certificates}/server.crt",
        f"keyfile {certificates}/server.key",
    )

    async def story() -> None:
        events: list[Event] = []
        with Mosquitto(*files) as broker:
            async with Referrer(TEMPORARY, f"127.0.0.1:{broker.port}", context=context) as gateway:
                tls = TlsSettings(ca_file=certificates / "ours.crt", server_name="localhost")
                async with Client(gateway.url, tls=tls, follow=["127.0.0.0/8"], backoff=QUICK) as client:
                    assert client.address == f"mqtts://127.0.0.1:{broker.port}"
                    await client.publish("a", "b")
                # The certificate holds no such name, and `server_name` speaks of the first server alone.
                gateway.references = f"127.0.0.2:{broker.port}"
                with pytest.raises(Unavailable):
                    async with Client(
                        gateway.url,
                        tls=tls,
                        follow=["127.0.0.0/8"],
                        backoff=QUICK,
                        connect_timeout_s=1.0,
                        on_event=events.append,
                    ):
                        pass
                assert not [one for one in events if isinstance(one, Connected)]

    run(story)
