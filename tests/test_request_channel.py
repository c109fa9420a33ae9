"""Requests, parts and answers between two channels that share a pair of sockets."""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.client.stories import run, until

from hanse import request_channel
from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.request_channel import Answer, Endpoint, Request, RequestChannel, parse_endpoint


async def pair(
    handlers: dict[str, Any], **settings: Any
) -> tuple[RequestChannel, RequestChannel, list[str], Callable[[], Coroutine[Any, Any, None]]]:
    """Return a channel that asks, one that answers, and why either ended."""
    loop = asyncio.get_running_loop()
    ends: list[str] = []
    one, other = socket.socketpair()
    asking = RequestChannel({}, ends.append, **settings)
    answering = RequestChannel(handlers, ends.append, **settings)
    await loop.create_connection(lambda: asking, sock=one)
    await loop.create_connection(lambda: answering, sock=other)

    async def close() -> None:
        asking.abort("the test ends")
        answering.abort("the test ends")
        await until(lambda: len(ends) == 2, "both ends")

    return asking, answering, ends, close


def test_answers_reach_their_requests_in_any_order() -> None:
    async def story() -> None:
        may_end = asyncio.Event()

        async def double(request: Request) -> Answer:
            if request.fields["n"] == 1:
                await may_end.wait()
            else:
                may_end.set()
            return Answer({"n": 2 * request.fields["n"]}, request.body * 2)

        asking, _, _, close = await pair({"double": double})
        first = asyncio.create_task(asking.ask("double", {"n": 1}, b"a", timeout_s=10))
        await asyncio.sleep(0)
        assert await asking.ask("double", {"n": 2}, b"b", timeout_s=10) == Answer({"n": 4}, b"bb")
        assert await first == Answer({"n": 2}, b"aa")
        await close()

    run(story)


def test_parts_come_in_order_and_wait_for_a_slow_reader() -> None:
    async def story() -> None:
        sent = 0

        async def stream(request: Request) -> Answer:
            nonlocal sent
            for number in range(100):
                await request.part({"number": number}, bytes(100_000))
                sent = number + 1
            return Answer({"count": 100})

        asking, _, _, close = await pair({"stream": stream})
        got: list[int] = []
        assert asking.transport is not None

        def take(part: Answer) -> None:
            got.append(part.fields["number"])
            if got == [0] and asking.transport is not None:
                asking.transport.pause_reading()

        task = asyncio.create_task(asking.ask("stream", timeout_s=15, on_part=take))
        await until(lambda: got, "the first part")
        for _ in range(200):
            await asyncio.sleep(0)
        assert sent < 100, "the handler did not wait for the reader"
        asking.transport.resume_reading()
        assert (await task).fields == {"count": 100}
        assert got == list(range(100))
        await close()

    run(story)


def test_errors_keep_their_kind_and_an_unknown_request_is_refused_by_name() -> None:
    async def story() -> None:
        async def refuse(request: Request) -> Answer:
            raise (Unavailable if request.fields["later"] else RemoteError)("no good")

        async def fail(_: Request) -> Answer:
            raise ZeroDivisionError

        asking, _, _, close = await pair({"refuse": refuse, "fail": fail})
        with pytest.raises(RemoteError, match="no good"):
            await asking.ask("refuse", {"later": False}, timeout_s=10)
        with pytest.raises(Unavailable, match="no good"):
            await asking.ask("refuse", {"later": True}, timeout_s=10)
        with pytest.raises(Unavailable, match="log says why"):
            await asking.ask("fail", timeout_s=10)
        with pytest.raises(RemoteError, match="'unheard' is not known"):
            await asking.ask("unheard", timeout_s=10)
        await close()

    run(story)


def test_the_end_of_the_connection_fails_pending_requests_and_cancels_handlers() -> None:
    async def story() -> None:
        is_cancelled = asyncio.Event()
        is_begun = asyncio.Event()

        async def wait(_: Request) -> None:
            is_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                is_cancelled.set()

        asking, answering, ends, _ = await pair({"wait": wait})
        task = asyncio.create_task(asking.ask("wait", timeout_s=15))
        await is_begun.wait()
        answering.abort("the plug was pulled")
        with pytest.raises(Unavailable):
            await task
        await is_cancelled.wait()
        with pytest.raises(Unavailable):
            await asking.ask("wait", timeout_s=15)
        await until(lambda: len(ends) == 2, "both ends")
        assert "the plug was pulled" in ends

    run(story)


def test_an_abandoned_request_is_cancelled_on_the_other_side() -> None:
    async def story() -> None:
        is_cancelled = asyncio.Event()

        async def wait(_: Request) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                is_cancelled.set()

        asking, _, _, close = await pair({"wait": wait})
        with pytest.raises(Unavailable, match="did not answer"):
            await asking.ask("wait", timeout_s=0.05)
        await is_cancelled.wait()
        await close()

    run(story)


def test_silent_peer_is_given_up_and_a_quiet_one_is_not() -> None:
    async def story() -> None:
        _, answering, ends, close = await pair({}, ping_s=0.1, silence_s=0.4)
        await asyncio.sleep(1.0)
        assert not ends
        assert answering.transport is not None
        answering.transport.pause_reading()
        await until(lambda: ends, "the end")
        assert "Nothing was heard" in ends[0]
        await close()

    run(story)


def test_attack_too_many_requests_stop_the_reading_and_all_are_served() -> None:
    async def story() -> None:
        running = most = 0
        gate = asyncio.Event()

        async def wait(_: Request) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1

        asking, _, _, close = await pair({"wait": wait})
        count = 3 * request_channel.REQUESTS_MAX
        # Each in a write of its own, as big as a socket buffer lets a read be.
        tasks = [asyncio.create_task(asking.ask("wait", {}, bytes(2_000), timeout_s=15)) for _ in range(count)]
        await until(lambda: running >= request_channel.REQUESTS_MAX, "enough requests")
        for _ in range(100):
            await asyncio.sleep(0)
        assert most < count
        gate.set()
        await asyncio.gather(*tasks)
        await close()

    run(story)


def frame(header: object, body: bytes = b"") -> bytes:
    head = json.dumps(header).encode()
    return (4 + len(head) + len(body)).to_bytes(4) + len(head).to_bytes(4) + head + body


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\xff\xff\xff\xff\x00\x00\x00\x02", id="too large"),
        pytest.param(b"\x00\x00\x00\x06\x00\x00\x00\x09{}", id="a header beyond its frame"),
        pytest.param(b"\x00\x00\x00\x02\x00\x00\x00\x02", id="shorter than its header's length"),
        pytest.param(b"\x00\x00\x00\x06\x00\x00\x00\x02{{", id="no JSON"),
        pytest.param(frame([1]), id="no object"),
        pytest.param(frame({"ask": "1", "kind": "x"}), id="a number that is text"),
        pytest.param(frame({"ask": 1, "kind": "x", "fields": 3}), id="fields that are a number"),
        pytest.param(frame({"ask": 1, "kind": "w"}) * 2, id="the same number twice"),
    ],
)
def test_attack_malformed_frame_ends_the_connection(sent: bytes) -> None:
    async def story() -> None:
        async def wait(_: Request) -> None:
            await asyncio.Event().wait()

        asking, _, ends, _ = await pair({"w": wait})
        assert asking.transport is not None
        asking.transport.write(sent)
        await until(lambda: len(ends) == 2, "both ends")

    run(story)


def test_a_frame_that_is_too_large_is_refused_by_its_sender() -> None:
    async def story() -> None:
        asking, _, _, close = await pair({}, frame_bytes_max=1_000)
        with pytest.raises(LocalError, match="1000 are allowed"):
            await asking.ask("x", {}, bytes(1_000), timeout_s=10)
        await close()

    run(story)


def test_valid_endpoints_are_parsed_and_others_refused() -> None:
    assert parse_endpoint("tls://f.example:7") == Endpoint("f.example", 7, True)
    assert str(parse_endpoint("tcp://[::1]:0")) == "tcp://[::1]:0"
    for text in ("f.example:7", "mqtt://f:7", "tls://f", "tcp://f:7/x", "tcp://me@f:7", "tcp://f:x", "tcp://[::1"):
        with pytest.raises(LocalError, match="write tls"):
            parse_endpoint(text)
