"""Interest that a real gateway reports to real federators whose brokers report none."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import Federator, ring, running
from tests.gateways import Gateway, wait_until

from hanse.local import ports
from hanse.local.nats import Nats

pytestmark = pytest.mark.processes
LONG = "long/" + "x" * 3_000


@contextmanager
def federation(
    tmp_path: Path, count: int, *words: str
) -> Iterator[tuple[list[Mosquitto], Sequence[Federator], Gateway]]:
    """Run brokers without log topics, a federator beside each, and a gateway that knows all of them."""
    listeners = [f"tcp://127.0.0.1:{port}" for port in ports.free(count)]
    asked = [["--interest", "gateway", "--gateway-listen", one, "--gateway-token", "secret"] for one in listeners]
    brokers = [Mosquitto(quiet=True) for _ in range(count)]
    for broker in brokers:
        broker.__enter__()
    try:
        named = [f"{one.url}?federator={at}" for one, at in zip(brokers, listeners, strict=True)]
        with running(ring(brokers, tmp_path, asked)) as federators:
            gateway = Gateway(tmp_path / "gateway", *named, words=("--federator-token", "secret", *words))
            with gateway:
                yield brokers, federators, gateway
    finally:
        for broker in brokers:
            broker.__exit__(None, None, None)


def client_at(gateway: Gateway, broker: int, prefix: str) -> str:
    """Return a client id that the gateway places at this broker."""
    for k in range(200):
        if f"goes to b{broker};" in gateway.command("explain", "--client", f"{prefix}{k}").stdout:
            return f"{prefix}{k}"
    raise AssertionError


def test_interest_follows_the_clients_and_outlives_gateway_and_federator(tmp_path: Path) -> None:
    with federation(tmp_path, 2) as (brokers, federators, gateway):
        name = client_at(gateway, 0, "s")
        with Client(gateway.port, name=name) as subscriber, Client(brokers[1].port) as publisher:
            subscriber.subscribe(LONG)
            subscriber.subscribe("short/#")
            eventually(lambda: federators[1].knows(LONG), "the long filter is known at the other federator")
            eventually(lambda: federators[1].knows("short/#"), "the other filter, too")
            publisher.publish(LONG, b"1")
            assert [message.payload for message in subscriber.expect(1)] == [b"1"]
            subscriber.client.unsubscribe("short/#")
            eventually(lambda: not federators[1].knows("short/#"), "the end of a filter is known")

            # A federator that returns gets all reports again.
            federators[0].end(signal.SIGKILL)
            (tmp_path / "federator-0" / "interest.json").unlink(missing_ok=True)
            federators[0].start()
            eventually(lambda: federators[0].health() is not None, "the federator answers")
            eventually(lambda: federators[0].knows(LONG), "the returned federator is told again")
            eventually(lambda: federators[1].knows(LONG), "and so is the other one")
            publisher.publish(LONG, b"2")
            assert [message.payload for message in subscriber.expect(2)] == [b"1", b"2"]
        eventually(lambda: not federators[1].knows(LONG), "the end of the client is known")
        assert gateway.metric('hanse_gateway_federator_total{what="interest_snapshots"}') >= 3
        # A gateway that is stopped says that its clients have left; nobody waits for its lease.
        with Client(gateway.port, name=name) as subscriber:
            subscriber.subscribe("last/#")
            eventually(lambda: federators[1].knows("last/#"), "the last client is known")
            subscriber.client.loop_stop()
            gateway.end()
            eventually(lambda: not federators[1].knows("last/#"), "the end of the gateway", deadline_s=20)


def test_gateway_that_is_killed_and_returns_ends_the_interest_of_its_former_clients(tmp_path: Path) -> None:
    with federation(tmp_path, 2) as (_, federators, gateway):
        names = [client_at(gateway, 0, "s"), client_at(gateway, 0, "t")]
        with Client(gateway.port, name=names[0]) as gone, Client(gateway.port, name=names[1]) as stays:
            gone.subscribe("gone/#")
            stays.subscribe("stays/#")
            eventually(lambda: federators[1].knows("gone/#") and federators[1].knows("stays/#"), "both are known")
            gone.client.loop_stop()
            gateway.end(signal.SIGKILL)
            time.sleep(0.5)
            # Within the lease a lost gateway changes nothing.
            assert federators[1].knows("gone/#")
            gateway.words[gateway.words.index("--listen") + 1] = f"mqtt://127.0.0.1:{gateway.port}"
            gateway.start()
            eventually(stays.client.is_connected, "the other client has connected again")
            stays.subscribe("stays/#")
            eventually(lambda: not federators[1].knows("gone/#"), "the former client's interest ends with the snapshot")
            eventually(lambda: federators[1].knows("stays/#"), "the client that has come back is known")


def test_barrier_holds_the_suback_until_the_next_publication_anywhere_arrives(tmp_path: Path) -> None:
    rounds = 30
    with federation(tmp_path, 3, "--subscribe-barrier", "--barrier-timeout", "20s") as (brokers, _, gateway):
        wait_until(lambda: gateway.log.count("connected to federator") == 3, "three federators")
        name = client_at(gateway, 0, "s")
        with (
            Client(gateway.port, name=name) as subscriber,
            Client(brokers[1].port) as one,
            Client(brokers[2].port) as two,
        ):
            for number in range(rounds):
                subscriber.subscribe(f"first/{number}")  # returns at SUBACK
                one.publish(f"first/{number}", b"one", qos=0)
                two.publish(f"first/{number}", b"two", qos=0)
            subscriber.expect(2 * rounds)
        passed = gateway.metric('hanse_gateway_federator_total{what="barriers_passed"}')
        assert passed == rounds
        assert gateway.metric('hanse_gateway_federator_total{what="barriers_late"}') == 0


def test_barrier_is_bounded_when_a_federator_does_not_answer(tmp_path: Path) -> None:
    with federation(tmp_path, 2, "--subscribe-barrier", "--barrier-timeout", "300ms") as (_, federators, gateway):
        wait_until(lambda: gateway.log.count("connected to federator") == 2, "two federators")
        name = client_at(gateway, 0, "s")
        process = federators[1].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            with Client(gateway.port, name=name) as subscriber:
                subscriber.subscribe("held/#")
                late = 'hanse_gateway_federator_total{what="barriers_late"}'
                wait_until(lambda: gateway.metric(late) == 1, "the barrier that was late")
        finally:
            process.send_signal(signal.SIGCONT)


def test_broker_of_another_make_needs_no_list_of_its_subscriptions(tmp_path: Path) -> None:
    listeners = [f"tcp://127.0.0.1:{port}" for port in ports.free(2)]
    words = [["--interest", "gateway", "--gateway-listen", one] for one in listeners]
    with Nats() as nats, Mosquitto(quiet=True) as mosquitto:
        brokers: list[Nats | Mosquitto] = [nats, mosquitto]
        named = [f"{one.url}?federator={at}" for one, at in zip(brokers, listeners, strict=True)]
        with running(ring(brokers, tmp_path, words)) as federators, Gateway(tmp_path / "gateway", *named) as gateway:
            name = client_at(gateway, 0, "s")
            with Client(gateway.port, version=4, name=name) as subscriber, Client(mosquitto.port) as publisher:
                subscriber.subscribe("nats/+/x")
                eventually(lambda: federators[1].knows("nats/+/x"), "the subscription at NATS is known elsewhere")
                publisher.publish("nats/1/x", b"hi")
                assert [message.payload for message in subscriber.expect(1)] == [b"hi"]
            # NATS itself keeps the interest of a client that left for an hour, because its list does not say more.
            eventually(lambda: not federators[1].knows("nats/+/x"), "the end of the client")
