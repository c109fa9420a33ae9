"""Failover of clients in a simulation: faults at every packet, in both directions, and random ones by seed."""

from collections.abc import Callable
from functools import partial

import pytest
from tests.budget import SHARE
from tests.gateway.session_world import Broker, Client, World

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


FAULTS: dict[str, Callable[[World, Broker], None]] = {
    "kill": World.kill,
    "hang": lambda world, broker: world.hang(broker, 3.0),
    "cut": World.cut,
    "drain": lambda world, broker: world.drain(broker, 0.002),
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
            world.at_step = (step, partial(FAULTS[fault], world, world.brokers[0]))
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
    """Return the QoS 2 publications that the killed broker had accepted and its federator had not got."""
    known = {payload for broker in world.brokers for _, _, payload, _ in broker.retained}
    return {one.payload for one in publisher.all_sent if one.payload not in known}


def random_run(seed: int) -> World:
    """Run three brokers with several clients of all kinds, and one or two faults at random times."""
    world = World(seed, brokers=3)
    rnd = world.clock.random
    subscribers = [
        world.client(
            b"s%d" % k,
            rnd.choice((4, 5)),
            filters=((b"a/#", rnd.choice((1, 2))), (b"w/#", 2)),
            receive_max=rnd.choice((1, 3, 65_535)),
            answers_after_s=rnd.choice((0.0, 0.01, 0.2)),
            first=rnd.randrange(3),
            will=(b"w/s%d" % k, b"s", 1),
        )
        for k in range(2)
    ]
    publishers = [world.client(b"p%d" % k, rnd.choice((4, 5)), first=rnd.randrange(3)) for k in range(2)]
    mortal = world.client(b"d", rnd.choice((4, 5)), first=rnd.randrange(3), will=(b"w/d", b"died", rnd.randrange(3)))
    world.clock.run(1.0)
    for k in range(30):
        publisher = rnd.choice(publishers)
        # Some contents repeat.
        payload = b"m%d" % k if rnd.random() < 0.8 else b"same"
        qos = rnd.choice((0, 1, 1, 2)) if payload != b"same" else 1
        world.clock.at(rnd.random() * 6, partial(publisher.publish, b"a/b", payload, qos))
    for client in (*subscribers, *publishers):
        for _ in range(5):
            world.clock.at(rnd.random() * 7, client.ping)
    faults = rnd.sample(range(3), rnd.choice((1, 1, 2)))
    at = rnd.random() * 3
    for number in faults:
        world.clock.at(at, partial(FAULTS[rnd.choice(sorted(FAULTS))], world, world.brokers[number]))
        at += 2.0 + rnd.random() * 2
    world.clock.at(rnd.random() * 7, mortal.die)
    world.clock.run(25.0)
    assert world.ends == {"published": 1}, world.ends
    world.clients.remove(mortal)
    for one in subscribers:
        wills = [payload for topic, payload, _, _ in one.got if topic == b"w/d"]
        assert set(wills) <= {b"died"}
        if mortal.will_qos:
            assert wills
    return world


@pytest.mark.parametrize("part", range(4))
def test_random_faults(part: int) -> None:
    for seed in range(part, max(120, 4000 * SHARE // 100), 4):
        try:
            world = random_run(seed)
            excluded = {one.payload for client in world.clients for one in client.all_sent if one.qos == 2} - {
                payload for broker in world.brokers for _, _, payload, _ in broker.seen
            }
            world.check(excluded=excluded)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def returning_run(seed: int, fault: str) -> World:
    """Let the broker of a lasting session fail and return, and its clients go back."""
    world = World(seed)
    rnd = world.clock.random
    away, home = world.brokers[1], world.brokers[0]
    version = rnd.choice((4, 5))
    subscriber = world.client(b"s", version, filters=((b"a/#", 2),), clean=False, expiry_s=3_600, will=(b"w", b"s", 1))
    publisher = world.client(b"p", 5, first=1)
    world.clock.run(1.0)
    for k in range(60):
        # From before the fault to behind the return.
        world.clock.at(rnd.random() * 12, partial(publisher.publish, b"a/b", b"m%d" % k, rnd.choice((1, 2, 2))))
    world.clock.at(1.0 + rnd.random(), partial(FAULTS[fault], world, home))
    world.clock.at(6.0, partial(world.restart if fault == "kill" else world.heal, home))
    world.clock.at(6.5 + rnd.random(), partial(world.bring_back, home, 0.01))
    world.clock.run(25.0)
    assert subscriber.driver.broker is home
    assert len(subscriber.driver.settled) == 2
    assert not home.sessions[b"s"].queue
    assert away.sessions.keys() <= {b"p", b"s"}
    return world


@pytest.mark.parametrize("fault", ["cut", "hang", "kill"])
def test_a_lasting_session_is_emptied_when_its_broker_returns(fault: str) -> None:
    for seed in range(max(30, 400 * SHARE // 100)):
        try:
            world = returning_run(seed, fault)
            seen = {payload for broker in world.brokers for _, _, payload, _ in broker.seen}
            world.check(excluded={one.payload for client in world.clients for one in client.all_sent} - seen)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(("qos", "brokers_lost"), [(0, 1), (1, 2), (2, 2)])
def test_a_publication_that_kills_brokers_does_not_travel_through_all_of_them(qos: int, brokers_lost: int) -> None:
    for seed in range(10):
        world = World(seed, brokers=4)
        world.deadly = {b"deadly"}
        other = world.client(b"o", 5, filters=((b"a/#", 1),))
        killer = world.client(b"k", 5)
        world.clock.run(1.0)
        killer.publish(b"a/b", b"deadly", qos)
        world.clock.run(5.0)
        world.client(b"p", 5).publish(b"a/b", b"later", 1)
        world.clock.run(8.0)
        assert world.killed_by == {b"deadly": brokers_lost}
        assert [one.is_up for one in world.brokers].count(True) == 4 - brokers_lost
        assert world.lost == ([b"k"] if qos else [])
        assert [payload for _, payload, _, _ in other.got] == [b"later"]
