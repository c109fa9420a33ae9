"""Failover in a real federation: publications from the time when a client had no broker are replayed to it.

The short drill runs in `make test`; those with 200 clients, for three seeds, in `make test-all`. Each prints what it
has counted: `pytest -s -m slow tests/gateway/test_replay_live.py`.
"""

import asyncio
import os
import random
import signal
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federators import ring, running
from tests.gateway.drill import LoadClient, Outcome, at_rate, judge, until
from tests.gateway.placing import name_at
from tests.gateway.relay import Relay
from tests.gateways import Gateway

from hanse.local import ports

pytestmark = pytest.mark.processes
NAMES = ("a", "b", "c")
SEEDS = (1, 2, 3)
FAULTS = ("kill", "hang", "cut", "drain")
CLIENTS, MESSAGES, PER_SECOND = 200, 20_000, 1_000.0


class Scene:
    """Three brokers, their federators, and a gateway that reports interest and reaches broker `a` by a relay."""

    def __init__(self, brokers: dict[str, Mosquitto], relay: Relay, gateway: Gateway) -> None:
        self.brokers = brokers
        self.relay = relay
        self.gateway = gateway

    def moved(self) -> float:
        """Return the number of moves, for any reason."""
        return sum(
            self.gateway.metric(f'hanse_gateway_moved_total{{reason="{one}"}}') for one in ("broker_down", "moved")
        )

    def attached_late(self) -> float:
        """Return how many clients were between two brokers for more than 2 s."""
        return self.gateway.metric('hanse_gateway_move_total{what="attached_late"}')

    async def client(self, at: str, name: str, version: int = 5, **more: object) -> LoadClient:
        """Connect a client that is placed at this broker."""
        return await LoadClient.connect(self.gateway.port, name_at(at, NAMES, name), version, **more)

    async def lose(self, fault: str, seed: int, within_s: float) -> None:
        """Let broker `a` fail after a time that depends on the seed."""
        await asyncio.sleep(random.Random(seed).uniform(0.2, 0.6) * within_s)
        broker = self.brokers["a"]
        if fault == "kill":
            broker.kill()
        elif fault == "hang":
            os.kill(broker.pid, signal.SIGSTOP)
            await asyncio.sleep(4.0)
            os.kill(broker.pid, signal.SIGCONT)
        elif fault == "cut":
            self.relay.cut()
        else:
            done = await asyncio.to_thread(self.gateway.command, "drain", "a", "--rate", "500")
            assert done.returncode == 0, done.stderr


@contextmanager
def scenery(directory: Path) -> Iterator[Scene]:
    listeners = [f"tcp://127.0.0.1:{port}" for port in ports.free(len(NAMES))]
    asked = [["--interest", "gateway", "--gateway-listen", one, "--gateway-token", "secret"] for one in listeners]
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(Mosquitto("max_queued_messages 100000", quiet=True)) for name in NAMES}
        relay = stack.enter_context(Relay(brokers["a"].port))
        urls = [f"mqtt://127.0.0.1:{relay.port}", brokers["b"].url, brokers["c"].url]
        named = [f"{name}={url}?federator={at}" for name, url, at in zip(NAMES, urls, listeners, strict=True)]
        # A broker that has returned gets nobody back before the end.
        words = ("--federator-token", "secret", "--drain-rate", "0.1", "--subscribe-barrier")
        stack.enter_context(running(ring(list(brokers.values()), directory, asked)))
        yield Scene(brokers, relay, stack.enter_context(Gateway(directory / "gateway", *named, words=words)))


async def with_subscribers(
    scene: Scene, fault: str, seed: int, qos: int, clients: int, messages: int, rate: float
) -> Outcome:
    """Lose the broker of many subscribers while somebody publishes at another broker."""
    readers = [
        await scene.client("a", f"r{k}x", 5 if k % 2 else 4, will=(b"w", b"reader%d" % k, 1)) for k in range(clients)
    ]
    for k, reader in enumerate(readers):
        # One in ten has a filter that others have as well.
        await reader.subscribe((b"t/%d" % k, qos), *([(b"all/#", qos)] if k % 10 == 0 else []))
    watcher = await scene.client("b", "watcher")
    await watcher.subscribe((b"w", 1))
    writer = await scene.client("b", "writer")
    topics = [b"all/x" if k % 50 == 49 else b"t/%d" % (k % clients) for k in range(messages)]
    losing = asyncio.create_task(scene.lose(fault, seed, messages / rate))
    await at_rate(messages, rate, lambda k: writer.publish(topics[k], b"m%d" % k, qos))
    await until(lambda: not writer.outstanding, "all acknowledged")
    await losing
    wanted = [
        [b"m%d" % j for j in range(messages) if topics[j] == b"t/%d" % k or (k % 10 == 0 and topics[j] == b"all/x")]
        for k in range(clients)
    ]
    pairs = list(zip(readers, wanted, strict=True))
    return await finish(scene, fault, seed, f"{clients} subscribers, QoS {qos}", pairs, readers, [watcher, writer])


async def with_publishers(
    scene: Scene, fault: str, seed: int, qos: int, clients: int, messages: int, rate: float
) -> Outcome:
    """Lose the broker of many publishers while somebody is subscribed at another broker."""
    writers = [
        await scene.client("a", f"p{k}x", 5 if k % 2 else 4, will=(b"w", b"writer%d" % k, 1)) for k in range(clients)
    ]
    reader = await scene.client("b", "reader")
    await reader.subscribe((b"t/#", qos))
    watcher = await scene.client("b", "watcher")
    await watcher.subscribe((b"w", 1))
    losing = asyncio.create_task(scene.lose(fault, seed, messages / rate))
    await at_rate(messages, rate, lambda k: writers[k % clients].publish(b"t/%d" % (k % clients), b"m%d" % k, qos))
    await until(lambda: not any(one.outstanding for one in writers), "all acknowledged")
    await losing
    pairs = [(reader, [b"m%d" % k for k in range(messages)])]
    return await finish(scene, fault, seed, f"{clients} publishers, QoS {qos}", pairs, writers, [watcher, reader])


async def finish(
    scene: Scene,
    fault: str,
    seed: int,
    what: str,
    pairs: list[tuple[LoadClient, list[bytes]]],
    displaced: list[LoadClient],
    others: list[LoadClient],
) -> Outcome:
    """Wait for publications on their way, judge, and let some clients die; each will must then be published once."""
    watcher = others[0]
    with suppress(AssertionError):
        await until(lambda: not judge(pairs).missing, "all received", 15)
    await asyncio.sleep(1.0)
    outcome = judge(pairs)
    outcome.lost += sum(one.is_lost for one in displaced if one not in dict(pairs))
    print(f"{fault}, seed {seed}, {what}: {outcome}; {scene.moved():.0f} moves")
    assert not watcher.got, f"wills were published: {watcher.got}"
    mortal = [one for one in displaced if not one.is_lost][:10]
    for one in mortal:
        one.close(goodbye=False)
    with suppress(AssertionError):
        await until(lambda: len(watcher.got) == len(mortal), "the wills", 15)
    assert len(watcher.got) == len(mortal), watcher.got
    assert set(watcher.got.values()) == {1}
    for one in (*(one for one in displaced if one not in mortal), *others):
        one.close()
    # The loop closes the sockets in its next turns.
    await asyncio.sleep(0.1)
    return outcome


def run(story: Coroutine[None, None, Outcome]) -> Outcome:
    return asyncio.run(story)


def test_a_killed_broker_costs_its_subscribers_nothing(tmp_path: Path) -> None:
    with scenery(tmp_path) as scene:
        outcome = run(with_subscribers(scene, "kill", 1, 1, 20, 600, 200))
        assert scene.moved() == 20
    assert not outcome.lost
    assert not outcome.missing, outcome.missing[:20]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_many_subscribers_lose_their_broker(tmp_path: Path, fault: str, seed: int) -> None:
    qos = 2 if fault == "drain" else 1
    with scenery(tmp_path) as scene:
        outcome = run(with_subscribers(scene, fault, seed, qos, CLIENTS, MESSAGES, PER_SECOND))
        assert not scene.attached_late(), "clients were without a broker for more than 2 s"
    assert not outcome.lost
    assert not outcome.missing, outcome.missing[:20]
    assert fault != "drain" or not outcome.repeated


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_many_publishers_lose_their_broker(tmp_path: Path, fault: str, seed: int) -> None:
    qos = 2 if fault == "drain" else 1
    with scenery(tmp_path) as scene:
        outcome = run(with_publishers(scene, fault, seed, qos, CLIENTS, MESSAGES, PER_SECOND))
        assert not scene.attached_late(), "clients were without a broker for more than 2 s"
    assert not outcome.lost
    assert not outcome.missing, outcome.missing[:20]
    assert fault != "drain" or not outcome.repeated
