"""Failover in a real federation: what was published while a client had no broker is replayed to it.

The short drill runs in `make test`; those of the issue's size, with three seeds, in `make test-all`.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federators import ring, running
from tests.gateway.drill import LoadClient, Outcome, at_rate, judge, until
from tests.gateway.placing import name_at
from tests.gateways import Gateway

from hanse.local import ports

pytestmark = pytest.mark.processes
NAMES = ("a", "b", "c")


class Federation:
    """Three brokers, their federators, and a gateway that reports interest."""

    def __init__(self, brokers: dict[str, Mosquitto], gateway: Gateway) -> None:
        self.brokers = brokers
        self.gateway = gateway

    def moved(self) -> float:
        return self.gateway.metric('hanse_gateway_moved_total{reason="broker_down"}')

    def clients_at(self, name: str) -> float:
        return self.gateway.metric(f'hanse_gateway_broker_clients{{broker="{name}"}}')


@contextmanager
def federation(directory: Path, *words: str) -> Iterator[Federation]:
    listeners = [f"tcp://127.0.0.1:{port}" for port in ports.free(len(NAMES))]
    asked = [["--interest", "gateway", "--gateway-listen", one, "--gateway-token", "secret"] for one in listeners]
    # 1,000 publications per second pass one session of the federator; its window is Mosquitto's.
    brokers = {name: Mosquitto("max_queued_messages 100000", quiet=True) for name in NAMES}
    for broker in brokers.values():
        broker.__enter__()
    try:
        named = [
            f"{name}={broker.url}?federator={at}" for (name, broker), at in zip(brokers.items(), listeners, strict=True)
        ]
        more = ("--federator-token", "secret", "--drain-rate", "0.1", "--subscribe-barrier", *words)
        with (
            running(ring(list(brokers.values()), directory, asked)),
            Gateway(directory / "gateway", *named, words=more) as gateway,
        ):
            yield Federation(brokers, gateway)
    finally:
        for broker in brokers.values():
            broker.__exit__(None, None, None)


async def lose(scene: Federation, fault: str, seed: int) -> None:
    """Let broker `a` fail after a moment that depends on the seed."""
    await asyncio.sleep(random.Random(seed).uniform(0.3, 1.0))
    broker = scene.brokers["a"]
    if fault == "kill":
        broker.kill()
    elif fault == "hang":
        os.kill(broker.pid, signal.SIGSTOP)
        await asyncio.sleep(4.0)
        os.kill(broker.pid, signal.SIGCONT)
    elif fault == "drain":
        done = await asyncio.to_thread(scene.gateway.command, "drain", "a", "--rate", "500")
        assert done.returncode == 0, done.stderr


async def subscribers(
    scene: Federation, fault: str, seed: int, *, clients: int, messages: int, per_second: float, qos: int
) -> Outcome:
    """Lose the broker of many subscribers while somebody publishes at another broker."""
    port = scene.gateway.port
    readers = [
        await LoadClient.connect(port, name_at("a", NAMES, f"r{k}x"), 5 if k % 2 else 4, will=(b"w", b"reader", 1))
        for k in range(clients)
    ]
    for k, reader in enumerate(readers):
        # One in ten has a filter that others have, too.
        await reader.subscribe((b"t/%d" % k, qos), *([(b"all/#", qos)] if k % 10 == 0 else []))
    watcher = await LoadClient.connect(scene.brokers["b"].port, "watcher")
    await watcher.subscribe((b"w", 1))
    writer = await LoadClient.connect(scene.brokers["b"].port, "writer")
    topics = [b"all/x" if k % 50 == 49 else b"t/%d" % (k % clients) for k in range(messages)]
    began = time.monotonic()
    losing = asyncio.create_task(lose(scene, fault, seed))
    await at_rate(messages, per_second, lambda k: writer.publish(topics[k], b"m%d" % k, qos))
    await until(lambda: not writer.outstanding, "all acknowledged")
    await losing
    wanted = [
        [b"m%d" % j for j in range(messages) if topics[j] == b"t/%d" % k or (k % 10 == 0 and topics[j] == b"all/x")]
        for k in range(clients)
    ]
    pairs = list(zip(readers, wanted, strict=True))
    with suppress(AssertionError):
        await until(lambda: not judge(pairs).missing, "all received", 20)
    outcome = judge(pairs)
    print(f"{fault}, seed {seed}, {clients} subscribers, QoS {qos}, {time.monotonic() - began:.0f} s: {outcome}")
    assert not watcher.got, "a will was published"
    for one in (*readers, watcher, writer):
        one.close()
    return outcome


def check(outcome: Outcome, *, repeats: bool) -> None:
    assert not outcome.lost
    assert not outcome.missing, outcome.missing[:20]
    if not repeats:
        assert not outcome.repeated


def drill(story: Callable[[], Awaitable[Outcome]]) -> Outcome:
    return asyncio.run(story())  # type: ignore[arg-type]


def test_a_killed_broker_costs_its_subscribers_nothing(tmp_path: Path) -> None:
    with federation(tmp_path) as scene:
        outcome = drill(lambda: subscribers(scene, "kill", 1, clients=20, messages=600, per_second=200, qos=1))
        assert scene.moved() == 20
    check(outcome, repeats=True)
