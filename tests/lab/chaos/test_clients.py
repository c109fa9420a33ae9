"""The workload's own clients at one real broker: their records match the events, and they leave nothing behind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.brokers import Mosquitto

from hanse.errors import LocalError
from hanse.lab.chaos.clients import Publisher, Subscriber
from hanse.lab.chaos.history import History
from hanse.lab.chaos.judge import Accounting, count
from hanse.mqtt.client import Client, ClientHandler, ClientSettings

pytestmark = pytest.mark.processes

RUN = 0xC0FFEE
MESSAGES = 2_000
DEADLINE_S = 20.0
LINES = ("max_inflight_messages 20000", "max_queued_messages 0", "persistence true", "autosave_interval 1")

Break = Callable[[Publisher, Subscriber], Awaitable[None]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the client sets no event
            await asyncio.sleep(0)


async def stream(broker: Mosquitto, disturb: Break | None) -> tuple[Accounting, Subscriber]:
    publisher = Publisher(RUN, 0, 0, broker.url, qos=(1, 2), count=MESSAGES)
    subscriber = Subscriber(RUN, 0, 1, broker.url, [publisher.sent], 2)
    try:
        await subscriber.start()
        await publisher.start()
        streaming = asyncio.create_task(publisher.stream(2_000, 500))
        if disturb is not None:
            await disturb(publisher, subscriber)
        async with asyncio.timeout(DEADLINE_S):
            await streaming
        await publisher.wait_acknowledged(DEADLINE_S)
        await until(lambda: 0 not in subscriber.reader.seen[0].copies)
        await asyncio.sleep(0.2)
    finally:
        await publisher.stop()
        await subscriber.stop()
    return count(History([publisher.sent], [subscriber.reader]), None), subscriber


def test_a_stream_of_both_qos_is_seen_whole_and_in_order() -> None:
    with Mosquitto(*LINES) as broker:
        found, subscriber = asyncio.run(stream(broker, None))
    assert (found.published, found.acked, found.delivered, found.retried) == (MESSAGES, MESSAGES, MESSAGES, 0)
    assert (found.duplicates.total(), found.reordered, found.corrupted, found.foreign) == (0, 0, 0, 0)
    assert set(subscriber.reader.seen[0].copies) == {1}


def test_broken_connections_are_reopened_and_repeated_messages_are_recorded() -> None:
    async def cut(publisher: Publisher, subscriber: Subscriber) -> None:
        # Until a message is under way: an idle connection that breaks has nothing to repeat.
        for _ in range(3):
            await until(lambda: publisher.client.unacknowledged > 0)
            publisher.client.abort()
            subscriber.client.abort()
            await asyncio.sleep(0.15)

    with Mosquitto(*LINES) as broker:
        found, _ = asyncio.run(stream(broker, cut))
    assert (found.published, found.acked, found.delivered) == (MESSAGES, MESSAGES, MESSAGES)
    assert found.retried > 0
    assert found.duplicates[2] == 0
    assert found.duplicates[1] <= found.published


def test_clients_resume_their_sessions_at_a_restarted_broker() -> None:
    with Mosquitto(*LINES) as broker:

        async def restart(publisher: Publisher, subscriber: Subscriber) -> None:  # noqa: ARG001 - the broker is the target
            await asyncio.sleep(0.3)
            await asyncio.to_thread(broker.stop)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(broker.start)

        found, _ = asyncio.run(stream(broker, restart))
    assert (found.acked, found.delivered, found.unknown) == (MESSAGES, MESSAGES, 0)
    assert found.duplicates[2] == 0


def test_no_session_is_left_at_the_broker() -> None:
    class Knock(ClientHandler):
        had_session: bool | None = None

        def on_connected(self, session_present: bool) -> None:
            self.had_session = session_present

    async def knock(broker: Mosquitto, client_id: str) -> bool | None:
        handler = Knock()
        client = Client(ClientSettings(broker.url, client_id, clean_start=False), handler)
        await client.start(must_connect=True)
        await client.stop()
        return handler.had_session

    with Mosquitto(*LINES) as broker:
        asyncio.run(stream(broker, None))
        assert asyncio.run(knock(broker, f"chaos-{RUN:08x}-p0")) is False
        assert asyncio.run(knock(broker, f"chaos-{RUN:08x}-s0")) is False


def test_a_payload_too_small_for_a_stamp_is_refused() -> None:
    async def make() -> None:
        Publisher(RUN, 0, 0, "mqtt://127.0.0.1:1", qos=(1,), count=1, size_bytes=10)

    with pytest.raises(LocalError, match="a stamp needs 14"):
        asyncio.run(make())
