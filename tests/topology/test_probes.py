import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest
from tests.brokers import Mosquitto, free_port

from hanse.federator.words import probe_answer
from hanse.local.nats import Nats
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication
from hanse.mqtt.subscriptions import Subscription
from hanse.topology.health import Answer, Outcome
from hanse.topology.model import Probe
from hanse.topology.probes import PROBE_TOPIC, MqttProber, Target

pytestmark = pytest.mark.processes

TIMEOUT_S = 5.0


def target(node: int, port: int, probe: Probe = Probe.BROKER) -> Target:
    return Target(node, f"mqtt://127.0.0.1:{port}", probe)


def with_prober(body: Callable[[MqttProber, list[int]], Awaitable[None]]) -> None:
    async def main() -> None:
        lost: list[int] = []
        prober = MqttProber("m1", lost.append)
        try:
            await body(prober, lost)
        finally:
            await prober.close()

    asyncio.run(main())


class Answering(ClientHandler):
    """Federator that answers probes, and records announcements of the topology."""

    def __init__(self, port: int, node: int) -> None:
        self.heard: asyncio.Queue[Publication] = asyncio.Queue()
        self.node = node
        self.payload = b""
        self.client = Client(
            ClientSettings(url=f"mqtt://127.0.0.1:{port}", client_id=f"federator-{node}", auto_ack=True), self
        )
        self._subscribed = asyncio.Event()

    async def start(self, *filters: str) -> None:
        await self.client.start(must_connect=True)
        self.client.subscribe([Subscription(pattern, qos=1) for pattern in filters])
        await asyncio.wait_for(self._subscribed.wait(), TIMEOUT_S)

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        del answers
        self._subscribed.set()

    def on_publications(self, publications: list[Publication]) -> None:
        for publication in publications:
            if publication.topic.startswith(PROBE_TOPIC):
                self.client.publish(f"{publication.topic}/{self.node}", self.payload, qos=0)
            else:
                self.heard.put_nowait(publication)


def test_a_broker_that_returns_the_publication_is_healthy_and_its_latency_known() -> None:
    with Mosquitto() as broker:

        async def body(prober: MqttProber, lost: list[int]) -> None:
            for _ in range(3):
                (seen,) = await prober.probe([target(0, broker.port)], TIMEOUT_S)
                assert seen.outcome is Outcome.WELL
                assert seen.latency_ms is not None
                assert 0 < seen.latency_ms < TIMEOUT_S * 1000
            assert lost == []

        with_prober(body)


def test_an_unreachable_address_is_a_failure_and_does_not_affect_others() -> None:
    with Mosquitto() as broker:

        async def body(prober: MqttProber, _: list[int]) -> None:
            seen = await prober.probe([target(0, broker.port), target(1, free_port())], TIMEOUT_S)
            assert [one.outcome for one in seen] == [Outcome.WELL, Outcome.FAILED]
            assert seen[1].is_definite

        with_prober(body)


def test_a_silent_listener_is_a_failure_after_the_timeout() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # the system accepts connections, but nobody reads

        async def body(prober: MqttProber, _: list[int]) -> None:
            (seen,) = await prober.probe([target(0, listener.getsockname()[1])], 0.3)
            assert seen.outcome is Outcome.FAILED
            assert not seen.is_definite

        with_prober(body)


def test_a_broker_that_speaks_only_3_1_1_is_probed() -> None:
    with Nats() as broker:

        async def body(prober: MqttProber, lost: list[int]) -> None:
            for _ in range(2):
                (seen,) = await prober.probe([target(0, broker.port)], TIMEOUT_S)
                assert seen.outcome is Outcome.WELL
            assert lost == []

        with_prober(body)


def test_two_federators_at_one_broker_do_not_end_each_others_connections() -> None:
    # An earlier manager had one client id for all of its connections: each connection ended the one before.
    with Mosquitto() as broker:

        async def body(prober: MqttProber, lost: list[int]) -> None:
            for _ in range(3):
                seen = await prober.probe([target(n, broker.port) for n in range(5)], TIMEOUT_S)
                assert {one.outcome for one in seen} == {Outcome.WELL}
            assert lost == []

        with_prober(body)


def test_a_federator_that_answers_is_distinguished_from_a_silent_one() -> None:
    with Mosquitto() as broker:

        async def body(prober: MqttProber, _: list[int]) -> None:
            federator = Answering(broker.port, 7)
            await federator.start(f"{PROBE_TOPIC}/+/+")
            try:
                (seen,) = await prober.probe([target(7, broker.port, Probe.FEDERATOR)], TIMEOUT_S)
                assert seen.outcome is Outcome.WELL
            finally:
                await federator.client.stop()
            (seen,) = await prober.probe([target(7, broker.port, Probe.FEDERATOR)], 0.5)
            assert seen.outcome is Outcome.SILENT
            assert seen.latency_ms is not None
            (seen,) = await prober.probe([target(7, broker.port)], TIMEOUT_S)
            assert seen.outcome is Outcome.WELL

        with_prober(body)


def test_an_answer_with_clock_times_makes_a_two_way_check_and_one_without_still_counts() -> None:
    with Mosquitto() as broker:

        async def body(prober: MqttProber, _: list[int]) -> None:
            federator = Answering(broker.port, 7)
            await federator.start(f"{PROBE_TOPIC}/+/+")
            try:
                (seen,) = await prober.probe([target(7, broker.port, Probe.FEDERATOR)], TIMEOUT_S)
                assert seen.exchange is not None
                assert seen.exchange.answer is None
                federator.payload = probe_answer("far", 5)
                (seen,) = await prober.probe([target(7, broker.port, Probe.FEDERATOR)], TIMEOUT_S)
                assert (seen.outcome, seen.exchange and seen.exchange.answer) == (Outcome.WELL, Answer("far", 5, 5))
                assert seen.exchange is not None
                assert seen.exchange.returned_us is not None
                took_us = seen.exchange.returned_us - seen.exchange.sent_us
                assert seen.latency_ms is not None
                # The answer comes after the return, unless the clock was set in between.
                assert took_us / 1000 >= 0.5 * seen.latency_ms
            finally:
                await federator.client.stop()
            (seen,) = await prober.probe([target(8, free_port(), Probe.FEDERATOR)], TIMEOUT_S)
            assert (seen.outcome, seen.exchange and seen.exchange.returned_us) == (Outcome.FAILED, None)

        with_prober(body)


def test_a_killed_broker_is_reported_at_once_and_found_after_its_return() -> None:
    with Mosquitto() as broker:

        async def body(prober: MqttProber, lost: list[int]) -> None:
            (seen,) = await prober.probe([target(0, broker.port)], TIMEOUT_S)
            assert seen.outcome is Outcome.WELL
            broker.kill()
            async with asyncio.timeout(TIMEOUT_S):
                while not lost:  # noqa: ASYNC110 - the prober calls back and sets no event
                    await asyncio.sleep(0.01)
            assert lost == [0]
            (seen,) = await prober.probe([target(0, broker.port)], TIMEOUT_S)
            assert seen.outcome is Outcome.FAILED
            broker.restart()
            (seen,) = await prober.probe([target(0, broker.port)], TIMEOUT_S)
            assert seen.outcome is Outcome.WELL

        with_prober(body)


def test_an_announcement_reaches_the_federator_on_its_broker() -> None:
    with Mosquitto() as broker:

        async def body(prober: MqttProber, _: list[int]) -> None:
            federator = Answering(broker.port, 1)
            await federator.start("federated_topology_ann")
            try:
                payload = json.dumps({"action": "add"}).encode()
                assert await prober.publish(target(1, broker.port), "federated_topology_ann", payload, TIMEOUT_S)
                heard = await asyncio.wait_for(federator.heard.get(), TIMEOUT_S)
                assert heard.payload == payload
            finally:
                await federator.client.stop()
            assert not await prober.publish(target(2, free_port()), "federated_topology_ann", b"", TIMEOUT_S)

        with_prober(body)


def test_connections_that_are_not_kept_are_closed() -> None:
    with Mosquitto() as broker:

        async def body(prober: MqttProber, lost: list[int]) -> None:
            await prober.probe([target(n, broker.port) for n in range(3)], TIMEOUT_S)
            await prober.keep([1])
            assert list(prober._lines) == [1]
            assert lost == []

        with_prober(body)


def test_a_broker_that_requires_a_login_is_healthy_only_with_one() -> None:
    with Mosquitto(anonymous=False) as broker:

        async def body(prober: MqttProber, _: list[int]) -> None:
            (seen,) = await prober.probe([target(0, broker.port)], TIMEOUT_S)
            assert seen.outcome is Outcome.FAILED

        with_prober(body)
