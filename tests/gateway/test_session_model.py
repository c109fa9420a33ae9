"""Failover of clients in a simulated world: faults at every packet, in both directions, and random ones by seed."""

from collections.abc import Callable

import pytest
from tests.budget import SHARE
from tests.gateway.session_world import Client, World

MESSAGES = 6
# One run per packet takes about 2 ms.
SEEDS = max(2, 20 * SHARE // 100)


def scene(seed: int, version: int, qos: int, *, together: bool) -> tuple[World, Client, Client]:
    """Return a world with a subscriber at the first broker and a publisher there or at the second one."""
    world = World(seed)
    subscriber = world.client(b"s", version, filters=((b"a/#", qos),), will=(b"w/s", b"gone", 1))
    publisher = world.client(b"p", version, first=0 if together else 1, will=(b"w/p", b"gone", 0))
    world.clock.run(1.0)
    assert subscriber.subscribed_at is not None
    for k in range(MESSAGES):
        world.clock.at(0.004 * k, lambda k=k: publisher.publish(b"a/b", b"m%d" % k, qos))  # type: ignore[misc]
    return world, subscriber, publisher


def steps_of(seed: int, version: int, qos: int, *, together: bool) -> tuple[int, int]:
    """Return the numbers of the first and last packets that a run without a fault has after its beginning."""
    world, _, _ = scene(seed, version, qos, together=together)
    first = world.steps + 1
    world.clock.run(4.0)
    world.check()
    return first, world.steps


FAULTS: dict[str, Callable[[World], None]] = {
    "kill": lambda world: world.kill(world.brokers[0]),
    "hang": lambda world: world.hang(world.brokers[0], 3.0),
    "cut": lambda world: world.cut(world.brokers[0]),
    "drain": lambda world: world.drain(world.brokers[0], 0.002),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_fault_at_every_packet(version: int, qos: int, together: bool, fault: str) -> None:
    for seed in range(SEEDS):
        first, last = steps_of(seed, version, qos, together=together)
        for step in range(first, last + 1):
            world, subscriber, publisher = scene(seed, version, qos, together=together)
            world.at_step = (step, lambda world=world: FAULTS[fault](world))
            world.clock.run(8.0)
            try:
                excluded = set() if qos < 2 or fault != "kill" else unsure_of(world, publisher)
                world.check(excluded=excluded, doubled=0 if fault == "drain" else None)
                if qos and not together:
                    world.check_order(publisher)
                assert len(subscriber.driver.settled) == 1
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error


def unsure_of(world: World, publisher: Client) -> set[bytes]:
    """Return what the killed broker had taken for good at QoS 2 and its federator had not got."""
    known = {payload for broker in world.brokers for _, _, payload, _ in broker.retained}
    return {one.payload for one in publisher.all_sent if one.payload not in known}
