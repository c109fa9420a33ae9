"""Share groups with members at three brokers: each message goes to one member."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest
from tests.brokers import Mosquitto
from tests.client.stories import QUICK, run, take, until
from tests.gateway import packets as p
from tests.gateway.test_interest_live import federation
from tests.gateways import Gateway, RawClient

from hanse.client import Client, Message
from hanse.gateway.placement import Broker, score
from hanse.gateway.share.shares import key_of

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Mosquitto], Gateway]]:
    with federation(tmp_path_factory.mktemp("share"), 3, "--share", "once", "--subscribe-barrier") as (
        brokers,
        _,
        gateway,
    ):
        yield brokers, gateway


class Workers:
    """Members of one share group, which keep the messages of each member."""

    def __init__(self) -> None:
        self.got: dict[str, list[bytes]] = {}

    async def work(self, client: Client, pattern: str, qos: int, ready: asyncio.Event) -> None:
        mine = self.got.setdefault(client.client_id, [])
        async with client.messages(pattern, qos=qos) as messages:
            ready.set()
            message: Message
            async for message in messages:
                mine.append(message.payload)

    @property
    def all(self) -> list[bytes]:
        return [payload for mine in self.got.values() for payload in mine]


def client_at(broker: int, prefix: str) -> str:
    """Return a client id that the hash places at this broker of three."""
    made = [Broker(f"b{k}", "mqtt://x") for k in range(3)]
    names = (f"{prefix}{k}" for k in range(1_000))
    return next(name for name in names if max(made, key=lambda one: score(one.key, name.encode())).id == f"b{broker}")


@pytest.mark.parametrize(
    ("qos", "version", "count"), [pytest.param(1, 5, 10_000, marks=pytest.mark.slow), (1, 5, 500), (2, 4, 500)]
)
def test_each_message_reaches_one_member(
    place: tuple[list[Mosquitto], Gateway], qos: int, version: Literal[4, 5], count: int
) -> None:
    deliver_once(*place, qos, version, count)


@pytest.mark.slow
def test_each_message_reaches_one_member_of_two_workers(tmp_path: Path) -> None:
    words = ("--share", "once", "--subscribe-barrier", "--workers", "2")
    with federation(tmp_path, 3, *words) as (brokers, _, gateway):
        deliver_once(brokers, gateway, 1, 5, 2_000)


def deliver_once(brokers: Sequence[Mosquitto], gateway: Gateway, qos: int, version: Literal[4, 5], count: int) -> None:
    """Publish at all brokers to six members at all brokers, and check that each message reaches one of them."""
    name = f"{qos}{version}{count}"
    pattern = f"$share/team{name}/jobs/{name}/#"
    ids = [client_at(k % 3, f"m{name}{k}-") for k in range(6)]

    async def story() -> None:
        workers = Workers()
        async with asyncio.TaskGroup() as tasks:
            running = []
            clients = []
            for one in ids:
                client = Client(f"mqtt://127.0.0.1:{gateway.port}", client_id=one, version=version, backoff=QUICK)
                await client.__aenter__()
                clients.append(client)
                ready = asyncio.Event()
                running.append(tasks.create_task(workers.work(client, pattern, qos, ready)))
                await ready.wait()
            publishers = [Client(broker.url, unacknowledged_max=200) for broker in brokers]
            for publisher in publishers:
                await publisher.__aenter__()
            sent = [f"{k}".encode() for k in range(count)]
            await asyncio.gather(
                *(publishers[k % 3].publish(f"jobs/{name}/{k % 7}", one, qos=qos) for k, one in enumerate(sent))
            )
            await until(lambda: len(workers.all) >= count, "all messages", 100)
            await asyncio.sleep(0.2)
            assert Counter(workers.all) == Counter(sent)
            # The broker that serves the group takes turns among all members, wherever they are.
            assert all(len(mine) > count // 20 for mine in workers.got.values())
            for task in running:
                task.cancel()
            for client in (*clients, *publishers):
                await client.__aexit__(None, None, None)

    run(story, 200)


def test_unacknowledged_publications_of_a_leaving_member_go_to_another(place: tuple[list[Mosquitto], Gateway]) -> None:
    brokers, gateway = place
    url = f"mqtt://127.0.0.1:{gateway.port}"
    pattern = "$share/leave/left/#"

    async def story() -> None:
        async with (
            Client(brokers[0].url) as publisher,
            Client(url, client_id=client_at(0, "stays")) as stays,
            stays.messages(pattern, manual_ack=True) as kept,
            Client(url, client_id=client_at(1, "leaves")) as leaves,
            leaves.messages(pattern, manual_ack=True) as lost,
        ):
            sent = [str(number).encode() for number in range(20)]
            for payload in sent:
                await publisher.publish("left/x", payload)
            first = await take(lost, 5)
            leaves._session.abort()
            got = await take(kept, 20)
            assert sorted(one.payload for one in got) == sorted(sent)
            assert {one.payload for one in first} <= {one.payload for one in got}
            for message in got:
                kept.ack(message)

    run(story)


@pytest.mark.slow
def test_groups_return_with_the_session_and_end_with_unsubscribe(place: tuple[list[Mosquitto], Gateway]) -> None:
    brokers, gateway = place
    pattern = "$share/back/again/#"
    joined = 'hanse_gateway_share_total{what="joined"}'

    def member() -> Client:
        url = f"mqtt://127.0.0.1:{gateway.port}"
        return Client(url, client_id=client_at(2, "back"), session_expiry_s=60, backoff=QUICK)

    async def story() -> None:
        async with Client(brokers[0].url) as publisher:
            first = member()
            await first.__aenter__()
            await first.subscribe(pattern, "plain/#")
            before = gateway.metric(joined)
            # As a network would cut it: the session stays at the broker.
            first._session.abort()
            await first._session.stop(with_will=True)
            async with member() as second:
                messages = second.messages()
                await until(lambda: gateway.metric(joined) > before, "the group, joined again")
                await publisher.publish("again/1", "1")
                await publisher.publish("plain/1", "2")
                assert {one.payload for one in await take(messages, 2)} == {b"1", b"2"}
                await second.unsubscribe(pattern)
                await until(lambda: second._session.is_subscribed, "UNSUBACK")
                await publisher.publish("again/2", "nobody")
                await publisher.publish("plain/2", "3")
                assert [one.payload for one in await take(messages, 1)] == [b"3"]

    run(story)


def test_attack_client_cannot_take_over_a_second_session(place: tuple[list[Mosquitto], Gateway]) -> None:
    _, gateway = place
    with RawClient(gateway.port) as client:
        client.send(p.connect(5, b"victim~share").packet)
        assert client.packet()[:4] == b"\x20\x03\x00\x85"
        assert client.is_closed()
    assert gateway.metric('hanse_gateway_refused_total{reason="reserved_id"}') == 1


def test_group_moves_away_from_a_drained_broker_and_back(place: tuple[list[Mosquitto], Gateway]) -> None:
    brokers, gateway = place
    pattern = "$share/drain/drained/#"
    drained = serving(pattern)

    async def story() -> None:
        async with (
            Client(brokers[0].url) as publisher,
            Client(f"mqtt://127.0.0.1:{gateway.port}", client_id=client_at((drained + 1) % 3, "dr")) as member,
            member.messages(pattern) as messages,
        ):
            moved = 'hanse_gateway_share_total{what="moved"}'
            for words in (("drain", f"b{drained}"), ("undrain", f"b{drained}")):
                before = gateway.metric(moved)
                assert (await asyncio.to_thread(gateway.command, *words)).returncode == 0
                await until(lambda before=before: gateway.metric(moved) > before, "the move")  # type: ignore[misc]
                await publisher.publish("drained/1", words[0])
                seen = [one.payload for one in await take(messages, 1)]
                assert seen == [words[0].encode()]

    run(story)


def serving(pattern: str) -> int:
    """Return which of three brokers serves a group."""
    made = [Broker(f"b{k}", "mqtt://x") for k in range(3)]
    return made.index(max(made, key=lambda one: score(one.key, key_of(pattern.encode()))))


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
@pytest.mark.parametrize("gateways", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_at_least_once_while_the_serving_broker_dies_or_hangs(
    tmp_path: Path, how: signal.Signals, gateways: int
) -> None:
    pattern = "$share/team/tasks/#"
    lost = serving(pattern)
    near = [k for k in range(3) if k != lost]
    count = 2_000

    async def story(brokers: list[Mosquitto], urls: list[str]) -> None:
        workers = Workers()
        members = [Client(urls[k % len(urls)], client_id=client_at(k % 3, f"d{k}-"), backoff=QUICK) for k in range(6)]
        publishers = [Client(brokers[k].url, unacknowledged_max=200) for k in near]
        async with contextlib.AsyncExitStack() as stack:
            for client in (*members, *publishers):
                await stack.enter_async_context(client)
            running = []
            for member in members:
                ready = asyncio.Event()
                running.append(asyncio.create_task(workers.work(member, pattern, 1, ready)))
                await ready.wait()

            async def publish(number: int) -> None:
                await publishers[number % 2].publish(f"tasks/{number % 5}", str(number), qos=1)

            tasks = []
            for number in range(count):
                if number == count // 2:
                    os.kill(brokers[lost].pid, how)
                tasks.append(asyncio.create_task(publish(number)))
                if number % 10 == 9:
                    await asyncio.sleep(0.01)
            await asyncio.gather(*tasks)
            wanted = {str(number).encode() for number in range(count)}
            await until(lambda: wanted <= set(workers.all), lambda: f"missing: {len(wanted - set(workers.all))}", 100)
            repeated = len(workers.all) - count
            print(f"{how.name}: {repeated} of {count} repeated")
            # A gateway does not know what another one has delivered in the second before the loss.
            assert repeated < (count // 2 if len(urls) == 1 else count)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    with (
        federation(tmp_path, 3, "--share", "once", "--subscribe-barrier") as (brokers, _, gateway),
        contextlib.ExitStack() as stack,
    ):
        urls = [f"mqtt://127.0.0.1:{gateway.port}"]
        if gateways == 2:
            # The same brokers and flags, another process.
            second = Gateway(tmp_path / "second")
            second.words += [word for word in gateway.words[gateway.words.index("--broker") :] if word]
            stack.enter_context(second)
            urls.append(f"mqtt://127.0.0.1:{second.port}")
        try:
            run(lambda: story(brokers, urls), 200)
        finally:
            if how is signal.SIGSTOP:
                os.kill(brokers[lost].pid, signal.SIGCONT)
