"""The client against a real Mosquitto."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Mosquitto, free_port
from tests.client.stories import DEADLINE_S, QUICK, run, take, until

from hanse.client import (
    Client,
    Closed,
    Connected,
    ConnectRefused,
    Disconnected,
    Event,
    LocalError,
    PublishRefused,
    SubscribeRefused,
    Unavailable,
    Will,
)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as one:
        yield one


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_message_arrives_as_it_was_published(broker: Mosquitto, qos: int, version: Any) -> None:
    async def story() -> None:
        async with Client(broker.url, version=version) as client, client.messages(f"t/{version}/#", qos=qos) as stream:
            for number in range(20):
                await client.publish(f"t/{version}/{qos}", f"n{number}", qos=qos)
            messages = await take(stream, 20)
            assert [(one.topic, one.text(), one.qos) for one in messages] == [
                (f"t/{version}/{qos}", f"n{number}", qos) for number in range(20)
            ]
            assert client.unacknowledged == 0

    run(story)


def test_all_properties_arrive(broker: Mosquitto) -> None:
    async def story() -> None:
        async with Client(broker.url) as client, client.messages("properties") as stream:
            await client.publish(
                "properties",
                "é",
                expiry_s=60,
                content_type="text/plain",
                response_topic="answers/1",
                correlation_data=b"\0\1",
                user_properties=[("a", "1"), ("a", "2")],
            )
            (one,) = await take(stream, 1)
        assert one.payload == "é".encode()
        assert one.expiry_s is not None
        assert 0 < one.expiry_s <= 60
        assert (one.content_type, one.response_topic, one.correlation_data) == ("text/plain", "answers/1", b"\0\1")
        assert one.user_properties == [("a", "1"), ("a", "2")]
        assert one.payload_format_indicator == 1
        assert not one.retain

    run(story)


def test_streams_with_overlapping_filters_get_each_message_once(broker: Mosquitto) -> None:
    async def story() -> None:
        async with (
            Client(broker.url) as client,
            client.messages("over/#") as wide,
            client.messages("over/lap") as narrow,
            client.messages("$share/g/over/lap") as shared,
            client.messages("over/lap") as same,
        ):
            for number in range(10):
                await client.publish("over/lap", str(number))
            for stream in (wide, narrow, shared, same):
                assert [one.text() for one in await take(stream, 10)] == [str(number) for number in range(10)]
            await client.publish("over/lap", "last")
            for stream in (wide, narrow, shared, same):
                assert [one.text() for one in await take(stream, 1)] == ["last"]

    run(story)


def test_break_unsubscribes_unless_another_stream_wants_the_filter(broker: Mosquitto) -> None:
    async def story() -> None:
        async with Client(broker.url) as client:
            async with client.messages("break/#") as other:
                await client.publish("break/1", "kept", retain=True)
                async for message in client.messages("break/#"):
                    assert message.text() == "kept"
                    break
                await client.publish("break/2", "x")
                # The second stream made the broker send the retained message again.
                assert [one.topic for one in await take(other, 3)] == ["break/1", "break/1", "break/2"]
            await client.publish("break/3", "nobody")
            await client.publish("break/1", "", retain=True)
        assert "break/#" not in client._session.subscriptions
        assert not client._identifiers
        assert not client._inbox.streams

    run(story)


def test_subscription_without_stream_keeps_its_messages_for_one(broker: Mosquitto) -> None:
    async def story() -> None:
        async with Client(broker.url) as client:
            await client.subscribe("early/#")
            await client.publish("early/1", "1")
            await client.publish("early/2", "2")
            stream = client.messages()
            assert [one.topic for one in await take(stream, 2)] == ["early/1", "early/2"]
            await client.unsubscribe("early/#")
            assert "early/#" not in client._session.subscriptions

    run(story)


def test_message_is_acknowledged_when_the_next_one_is_asked_for(broker: Mosquitto) -> None:
    async def story() -> None:
        async def open_client() -> Client:
            return Client(broker.url, client_id="worker", session_expiry_s=60, backoff=QUICK)

        async with await open_client() as client, Client(broker.url) as publisher:
            stream = client.messages("jobs/#")
            async with stream:
                for number in range(3):
                    await publisher.publish("jobs", str(number))
                assert [one.text() for one in await take(stream, 2)] == ["0", "1"]
                # The acknowledgement of message 0 leaves before this publication. Then message 1 is at hand and 2 is
                # queued when the connection is cut, as a crash would do.
                await client.publish("elsewhere", "")
                client._session.abort()
                await client._session.stop(with_will=True)
        async with await open_client() as client, client.messages("jobs/#") as stream:
            assert [(one.text(), one.dup) for one in await take(stream, 2)] == [("1", True), ("2", True)]

    run(story)


def test_manual_acknowledgement_lets_several_tasks_read_one_stream(broker: Mosquitto) -> None:
    async def story() -> None:
        seen: list[str] = []
        async with Client(broker.url) as client, client.messages("manual", manual_ack=True) as stream:

            async def work() -> None:
                async for message in stream:
                    seen.append(message.text())
                    stream.ack(message)

            workers = [asyncio.create_task(work()) for _ in range(3)]
            for number in range(30):
                await client.publish("manual", str(number))
            await until(lambda: len(seen) == 30, "30 messages")
            assert sorted(seen, key=int) == [str(number) for number in range(30)]
            await stream.aclose()
            await asyncio.gather(*workers)

    run(story)


def test_two_tasks_may_not_read_one_stream_without_manual_acknowledgement(broker: Mosquitto) -> None:
    async def story() -> None:
        async with Client(broker.url) as client, client.messages("single") as stream:
            first = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            with pytest.raises(LocalError, match="Two tasks"):
                await anext(stream)
            await client.publish("single", "x")
            assert (await first).text() == "x"

    run(story)


def test_full_queue_drops_and_counts_qos_0_only(broker: Mosquitto) -> None:
    async def story() -> None:
        async with (
            Client(broker.url, queue_max=5) as client,
            client.messages("full/#", qos=2) as stream,
            client.messages("end") as end,
        ):
            for number in range(20):
                await client.publish("full/0", str(number), qos=0)
            for number in range(20):
                await client.publish("full/1", str(number), qos=1)
            await client.publish("end", "")
            await take(end, 1)
            assert client.counters.drops == {"queue_full": 15}
            topics = [one.topic for one in await take(stream, 25)]
            assert topics == ["full/0"] * 5 + ["full/1"] * 20

    run(story)


def test_receive_maximum_bounds_what_waits_unacknowledged(broker: Mosquitto) -> None:
    async def story() -> None:
        async with (
            Client(broker.url, receive_max=10) as client,
            Client(broker.url) as publisher,
            client.messages("window", qos=1) as stream,
        ):
            for number in range(50):
                await publisher.publish("window", str(number))
            await until(lambda: len(client._inbox.streams[0].queue) == 10, "a full window")
            # After the first acknowledgement Mosquitto 2.0.11 sends all the rest at once, window or not.
            assert [one.text() for one in await take(stream, 50)] == [str(number) for number in range(50)]

    run(story)


def test_client_subscribes_and_sends_again_after_the_broker_restarts() -> None:
    async def story() -> None:
        events: list[Event] = []
        with Mosquitto() as broker:
            async with (
                Client(broker.url, backoff=QUICK, on_event=events.append) as client,
                client.messages("again/#") as stream,
            ):
                broker.kill()
                await until(lambda: not client.is_connected, "the end of the connection")
                waiting = asyncio.create_task(client.publish("again/1", "while away"))
                await asyncio.sleep(0)
                broker.start()
                async with asyncio.timeout(DEADLINE_S):
                    await waiting
                await until(lambda: client._session.is_subscribed, "the subscription")
                await client.publish("again/2", "back")
                # The first may have come before the subscription was made again.
                async with asyncio.timeout(DEADLINE_S):
                    async for message in stream:
                        if message.topic == "again/2":
                            break
        assert isinstance(events[0], Connected)
        assert any(isinstance(event, Disconnected) for event in events)
        assert len([event for event in events if isinstance(event, Connected)]) == 2

    run(story)


def test_silent_broker_is_given_up_after_an_unanswered_ping() -> None:
    async def story() -> None:
        with Mosquitto() as broker:
            async with Client(broker.url, backoff=QUICK, keep_alive_s=1) as client:
                os.kill(broker.pid, signal.SIGSTOP)
                try:
                    await until(lambda: not client.is_connected, "the verdict")
                    assert "keep-alive" in str(client._last_error)
                finally:
                    os.kill(broker.pid, signal.SIGCONT)
                await client.wait_connected(DEADLINE_S)

    run(story)


def test_will_with_its_properties_is_published_for_a_client_that_vanishes(broker: Mosquitto) -> None:
    async def story() -> None:
        will = Will("wills/1", b"gone", qos=1, content_type="text/plain", user_properties=(("why", "cut"),))
        async with Client(broker.url) as witness, witness.messages("wills/#") as stream:
            async with Client(broker.url, will=will, client_id="mortal") as mortal:
                async with Client(broker.url, client_id="mortal"):  # takes the session over
                    (one,) = await take(stream, 1)
                await mortal.wait_connected(DEADLINE_S)
            assert (one.topic, one.payload, one.content_type) == ("wills/1", b"gone", "text/plain")
            assert one.user_properties == [("why", "cut")]

    run(story)


def test_persistent_session_gets_what_was_queued_while_away(broker: Mosquitto) -> None:
    async def story() -> None:
        async with Client(broker.url, client_id="away", session_expiry_s=60) as client:
            await client.subscribe("queued/#")
        async with Client(broker.url) as publisher:
            for number in range(5):
                await publisher.publish("queued", str(number))
        # They arrive before anybody reads them.
        async with Client(broker.url, client_id="away", session_expiry_s=60) as client:
            await until(lambda: client.counters.publications_in == 5, "the queued messages")
            stream = client.messages("queued/#")
            assert [one.text() for one in await take(stream, 5)] == [str(number) for number in range(5)]

    run(story)


def test_access_list_refusals_are_errors_with_their_reason_code() -> None:
    async def story() -> None:
        with Mosquitto() as plain:
            acl = plain.directory / "acl"
            acl.write_text("topic readwrite allowed/#\n")
            with Mosquitto(f"acl_file {acl}") as broker:
                async with Client(broker.url) as client:
                    with pytest.raises(PublishRefused) as refused:
                        await client.publish("forbidden", "x", qos=1)
                    assert refused.value.reason_code == 0x87
                    with pytest.raises(PublishRefused):
                        await client.publish("forbidden", "x", qos=2)
                    await client.publish("allowed/1", "x")

    run(story)


def test_refused_filter_is_an_error_and_is_not_asked_for_again(tmp_path: Path) -> None:
    async def story() -> None:
        # Its access lists for subscribing come with a plugin.
        rules = tmp_path / "rules.json"
        access = {"publishClientSend": True, "publishClientReceive": True, "subscribe": False, "unsubscribe": True}
        rules.write_text(json.dumps({"defaultACLAccess": access, "clients": [], "groups": [], "roles": []}))
        plugin = "/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so"
        with Mosquitto(f"plugin {plugin}", f"plugin_opt_config_file {rules}") as broker:
            async with Client(broker.url) as client:
                with pytest.raises(SubscribeRefused) as refused:
                    await client.subscribe("forbidden/#")
                assert (refused.value.filter, refused.value.reason_code) == ("forbidden/#", 0x87)
                assert client._session.wanted("forbidden/#") is None
                await client.publish("a", "the connection stands")
                assert client.counters.connects == 1

    run(story)


def test_filter_over_which_the_broker_ends_the_connection_is_an_error_and_costs_one_reconnect() -> None:
    async def story() -> None:
        with Mosquitto() as broker:
            async with Client(broker.url, backoff=QUICK) as client, client.messages("good/#") as stream:
                deep = "/".join("x" * 250)  # Mosquitto takes up to 200 levels
                with pytest.raises(SubscribeRefused) as refused:
                    await client.subscribe(deep)
                assert (refused.value.filter, refused.value.reason_code) == (deep, 0x81)
                await until(lambda: client._session.is_subscribed, "the good subscription")
                await client.publish("good/1", "x")
                assert [one.topic for one in await take(stream, 1)] == ["good/1"]
                assert client.counters.connects == 2

    run(story)


def test_wrong_login_ends_the_first_connection_at_once() -> None:
    async def story() -> None:
        with Mosquitto(anonymous=False) as broker:
            with pytest.raises(ConnectRefused) as refused:
                async with Client(broker.url, username="nobody", password="wrong"):
                    pass
            assert refused.value.reason_code in {0x86, 0x87}
            assert "wrong" not in str(refused.value)

    run(story)


def test_no_broker_is_unavailable_after_the_timeout() -> None:
    async def story() -> None:
        with pytest.raises(Unavailable, match="cannot be reached"):
            async with Client(f"mqtt://127.0.0.1:{free_port()}", connect_timeout_s=0.3, backoff=QUICK):
                pass

    run(story)


def test_use_outside_the_block_and_wrong_settings_are_local_errors(broker: Mosquitto) -> None:
    async def story() -> None:
        client = Client(broker.url)
        with pytest.raises(Closed):
            await client.publish("a", "b")
        async with client:
            with pytest.raises(LocalError, match="QoS 3"):
                await client.publish("a", "b", qos=3)
            with pytest.raises(LocalError, match="topic name"):
                await client.publish("a/#", "b")
            with pytest.raises(LocalError, match="filter"):
                client.messages("a/#/b")
        with pytest.raises(Closed):
            await client.publish("a", "b")
        with pytest.raises(LocalError, match="client_id"):
            Client(broker.url, session_expiry_s=60)
        with pytest.raises(LocalError, match="scheme"):
            Client("http://localhost")

    run(story)


def test_closing_ends_streams_and_waiting_publications() -> None:
    async def story() -> None:
        with Mosquitto() as broker:
            client = Client(broker.url)
            async with client:
                stream = client.messages("never")
                reading = asyncio.create_task(take(stream, 1))
                await until(lambda: client._session.is_subscribed and client._inbox.streams, "the subscription")
                os.kill(broker.pid, signal.SIGSTOP)
                publishing: Awaitable[None] = asyncio.create_task(client.publish("x", "y"))
                await until(lambda: client.unacknowledged == 1, "a publication without answer")
            os.kill(broker.pid, signal.SIGCONT)
            with pytest.raises(Unavailable, match="closed before"):
                await publishing
            with pytest.raises(StopAsyncIteration):
                await reading

    run(story)


def test_publish_waits_where_too_much_is_unacknowledged() -> None:
    async def story() -> None:
        with Mosquitto() as broker:
            async with Client(broker.url, unacknowledged_max=10) as client:
                os.kill(broker.pid, signal.SIGSTOP)
                try:
                    tasks = [asyncio.create_task(client.publish("x", "y")) for _ in range(25)]
                    await until(lambda: client.unacknowledged == 10, "a full queue")
                    assert not any(task.done() for task in tasks)
                finally:
                    os.kill(broker.pid, signal.SIGCONT)
                await asyncio.gather(*tasks)

    run(story)
