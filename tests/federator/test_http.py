import asyncio
import contextlib
import http.client
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import LocalError, Unavailable
from hanse.federator.http import JSON, TEXT, HttpLimits, HttpServer, PostRoute, Reply, Route


class Serve(Protocol):
    def __call__(self, check: "Check", **limits: float) -> None: ...


def fail() -> Reply:
    raise ZeroDivisionError("secret detail")


def not_yet() -> Reply:
    raise Unavailable("not yet")


ROUTES: dict[str, Route] = {
    "/healthz": lambda: (200, TEXT, "ok\n"),
    "/down": lambda: (503, TEXT, b"host broker is away\n"),
    "/groups": lambda: (200, JSON, json.dumps({"topic": "grün"}, ensure_ascii=False)),
    "/fail": fail,
    "/not-yet": not_yet,
    "/large": lambda: (200, TEXT, b"x" * 5_000_000),
}


async def say_again(body: bytes) -> Reply:
    return 200, JSON, body


async def never(_: bytes) -> Reply:
    ended.append(False)
    try:
        await asyncio.sleep(3_600)
    finally:
        ended[-1] = True
    raise AssertionError


async def break_down(_: bytes) -> Reply:
    raise ZeroDivisionError("secret detail")


ended: list[bool] = []
POSTS: dict[str, PostRoute] = {"/again": say_again, "/never": never, "/break": break_down}
Check = Callable[[HttpServer, int], Awaitable[None]]
HOST = "\r\nHost: h"


def answer(head: str | bytes) -> tuple[int, dict[str, str], bytes]:
    raw = HttpServer(ROUTES).answer(head.encode("latin-1") if isinstance(head, str) else head)
    first, _, body = raw.partition(b"\r\n\r\n")
    status, *headers = first.decode("ascii").split("\r\n")
    assert status.startswith("HTTP/1.1 ")
    return int(status.split(" ")[1]), dict(header.split(": ", 1) for header in headers), body


def test_a_page_is_the_result_of_its_route() -> None:
    status, headers, body = answer("GET /groups?x=1 HTTP/1.1" + HOST)
    assert (status, body) == (200, '{"topic": "grün"}'.encode())
    assert headers["Content-Type"] == JSON
    assert headers["Content-Length"] == str(len(body))
    assert headers["Connection"] == "close"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert answer("GET /down HTTP/1.0")[0] == 503


def test_head_is_get_without_its_body() -> None:
    status, headers, body = answer("HEAD /groups HTTP/1.1" + HOST)
    assert (status, body) == (200, b"")
    assert headers == answer("GET /groups HTTP/1.1" + HOST)[1]
    assert answer("HEAD /nothing HTTP/1.1" + HOST)[2] == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("", 400),
        ("GET", 400),
        ("GET /healthz", 400),
        ("GET  /healthz HTTP/1.1" + HOST, 400),
        ("GET /health z HTTP/1.1" + HOST, 400),
        ("GET healthz HTTP/1.1" + HOST, 400),
        ("GET http://h/healthz HTTP/1.1" + HOST, 400),
        ("GET * HTTP/1.1" + HOST, 400),
        ("GET /\x00 HTTP/1.1" + HOST, 400),
        ("GET /\xff HTTP/1.1" + HOST, 400),
        ("G\tT /healthz HTTP/1.1" + HOST, 400),
        ("GET /healthz HTTP/1.1", 400),
        ("GET /healthz HTTP/1.1" + HOST + HOST, 400),
        ("GET /healthz HTTP/1.1\r\nHost : h", 400),
        ("GET /healthz HTTP/1.1\r\n Host: h", 400),
        ("GET /healthz HTTP/1.1" + HOST + "\r\n folded", 400),
        ("GET /healthz HTTP/1.1" + HOST + "\r\nx: a\nb", 400),
        ("GET /healthz HTTP/1.1" + HOST + "\r\nx: a\x00b", 400),
        ("GET /healthz HTTP/1.1" + HOST + "\r\n: x", 400),
        ("GET /healthz http/1.1" + HOST, 400),
        ("GET /healthz HTTP/11" + HOST, 400),
        ("GET /healthz HTTP/2.0" + HOST, 505),
        ("GET /healthz HTTP/1.1" + HOST + "\r\nx: y" * 100, 431),
        ("GET /healthz HTTP/1.1" + HOST + "\r\nContent-Length: 5", 413),
        ("GET /healthz HTTP/1.1" + HOST + "\r\nContent-Length: 0", 200),
        ("GET /healthz HTTP/1.1" + HOST + "\r\nTransfer-Encoding: chunked", 413),
        ("POST /healthz HTTP/1.1" + HOST + "\r\nContent-Length: 5", 405),
        ("POST /healthz HTTP/1.1" + HOST, 405),
        ("BREW /healthz HTTP/1.1" + HOST, 405),
        ("get /healthz HTTP/1.1" + HOST, 405),
        ("POST /nothing HTTP/1.1" + HOST, 404),
        ("GET / HTTP/1.1" + HOST, 404),
        ("GET /healthz/ HTTP/1.1" + HOST, 404),
        ("GET /../healthz HTTP/1.1" + HOST, 404),
        ("GET /%68ealthz HTTP/1.1" + HOST, 404),
        ("GET /<script> HTTP/1.1" + HOST, 404),
    ],
)
def test_an_odd_request_gets_its_status_and_is_not_repeated(head: str, status: int) -> None:
    found, headers, body = answer(head)
    assert found == status
    assert b"script" not in body
    assert headers["Connection"] == "close"
    assert ("Allow" in headers) == (status == 405)


def test_a_route_that_fails_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        status, _, body = answer("GET /fail HTTP/1.0")
    assert (status, body) == (500, b"Internal Server Error\n")
    assert "ZeroDivisionError" in caplog.text
    assert answer("GET /not-yet HTTP/1.0")[0] == 503


def test_answers_are_counted_by_status() -> None:
    server = HttpServer(ROUTES)
    for head in (b"GET /healthz HTTP/1.0", b"GET /healthz HTTP/1.0", b"?"):
        server.answer(head)
    assert server.answered == {200: 2, 400: 1}


@given(st.binary(max_size=200))
def test_any_bytes_get_an_answer(head: bytes) -> None:
    assert answer(head)[0] in {200, 400, 404, 405, 413, 431, 500, 503, 505}


# From here on with real sockets on loopback, because these tests check the end of connections.


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def serve(request: pytest.FixtureRequest) -> Serve:
    def run(check: Check, **limits: float) -> None:
        async def checked() -> None:
            server = HttpServer(ROUTES, HttpLimits(**limits), posts=POSTS)  # type: ignore[arg-type]
            url = await server.start("127.0.0.1", 0)
            assert url == f"http://127.0.0.1:{server.port}"
            try:
                async with asyncio.timeout(5):
                    await check(server, server.port)
            finally:
                await server.stop()
                await server.stop()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(checked())

    return run


async def talk(port: int, *parts: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


async def flood(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server sets no event for the condition
        await asyncio.sleep(0.005)


@pytest.mark.processes
def test_a_real_client_gets_pages_one_after_the_other(serve: Serve) -> None:
    def fetch(port: int) -> list[tuple[int, int]]:
        found = []
        for method, path in (("GET", "/healthz"), ("HEAD", "/groups"), ("GET", "/large"), ("GET", "/x")):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request(method, path)
            response = connection.getresponse()
            found.append((response.status, len(response.read())))
            connection.close()
        return found

    async def check(server: HttpServer, port: int) -> None:
        found = await asyncio.to_thread(fetch, port)
        assert found == [(200, 3), (200, 0), (200, 5_000_000), (404, 10)]
        await until(lambda: not server._connections)
        assert server.cut_off == 0

    serve(check)


@pytest.mark.processes
def test_a_request_may_come_in_pieces_and_only_the_first_is_answered(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        said = await talk(port, b"GET /hea", b"lthz HTTP/1.0\r", b"\n\r\n", b"GET /down HTTP/1.0\r\n\r\n")
        assert said.count(b"HTTP/1.1") == 1
        assert said.endswith(b"\r\n\r\nok\n")
        assert server.answered == {200: 1}

    serve(check)


@pytest.mark.processes
@pytest.mark.parametrize("junk", [b"x" * 9_000, b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 2_000])
def test_a_head_that_does_not_end_is_refused_at_its_limit(serve: Serve, junk: bytes) -> None:
    async def check(server: HttpServer, port: int) -> None:
        assert (await talk(port, junk)).startswith(b"HTTP/1.1 431 ")
        assert server.answered == {431: 1}

    serve(check)


@pytest.mark.processes
def test_attack_a_slow_client_is_cut_off_and_frees_its_slot(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        said = await talk(port, b"GET /healthz HTTP/1.1\r\n")
        assert said.startswith(b"HTTP/1.1 408 ")
        await until(lambda: not server._connections)
        assert server.cut_off == 1

    serve(check, request_s=0.05)


@pytest.mark.processes
def test_attack_a_client_that_never_reads_its_answer_is_cut_off(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
        writer.write(b"GET /large HTTP/1.0\r\n\r\n")
        await until(lambda: server.cut_off == 1)
        await until(lambda: not server._connections)
        writer.close()
        assert not reader.at_eof()

    serve(check, answer_s=0.1)


@pytest.mark.processes
def test_attack_connections_beyond_the_limit_are_turned_away_at_once(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(server._connections) == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        held[0][1].close()
        await until(lambda: len(server._connections) == 2)
        assert (await talk(port, b"GET /healthz HTTP/1.0\r\n\r\n")).endswith(b"ok\n")
        for _, other in held[1:]:
            other.close()

    serve(check, connections_max=3)


@pytest.mark.processes
def test_attack_a_body_without_end_is_cut_off(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n")
        with pytest.raises(ConnectionError):
            await flood(writer)
        await until(lambda: not server._connections)
        assert server.answered == {405: 1}
        writer.close()

    serve(check)


@pytest.mark.processes
def test_a_port_in_use_is_an_error_for_the_operator(serve: Serve) -> None:
    async def check(_: HttpServer, port: int) -> None:
        second = HttpServer(ROUTES)
        with pytest.raises(LocalError, match=f"127.0.0.1:{port}.*choose another"):
            await second.start("127.0.0.1", port)
        await second.stop()

    serve(check)


@pytest.mark.processes
def test_stopping_ends_connections_that_are_open(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: len(server._connections) == 1)
        await server.stop()
        with contextlib.suppress(ConnectionError):  # an end without a reset is as good
            assert await reader.read() == b""
        writer.close()
        await until(lambda: not server._connections)

    serve(check)


# --- POST -----------------------------------------------------------------------------------------------------------


def post(path: str, body: bytes, *headers: str, kind: str = JSON, length: int | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", *headers]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.processes
def test_a_post_is_answered_by_its_route_even_in_pieces(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        whole = post("/again", b'{"a": 1}')
        assert (await talk(port, whole)).endswith(b'\r\n\r\n{"a": 1}')
        assert (await talk(port, whole[:30], whole[30:-3], whole[-3:-1], whole[-1:])).endswith(b'{"a": 1}')
        assert (await talk(port, post("/again", b""))).startswith(b"HTTP/1.1 200 ")
        assert server.answered == {200: 3}
        await until(lambda: not server._connections)

    serve(check)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post("/healthz", b"x"), 405),
        (post("/nothing", b"x"), 405),
        (post("/again", b"x", kind="text/plain"), 415),
        (post("/again", b"x", kind=""), 415),
        (post("/again", b"x", "Origin: http://elsewhere"), 415),
        (post("/again", b"x", "Transfer-Encoding: chunked"), 411),
        (post("/again", b"x", "Content-Length: 2"), 400),
        (post("/again", b"", length=-1), 411),
        (post("/again", b"", length=99_999_999), 413),
        (b"POST /again HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\r\n", 411),
        (b"POST /again HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n", 400),
        (post("/break", b"x"), 500),
    ],
)
def test_an_odd_post_is_refused(serve: Serve, request_: bytes, status: int) -> None:
    async def check(server: HttpServer, port: int) -> None:
        said = await talk(port, request_)
        assert said.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"secret" not in said
        await until(lambda: not server._connections)

    serve(check)


def test_attack_a_post_from_another_machine_is_forbidden() -> None:
    server = HttpServer(ROUTES, posts=POSTS)
    head = post("/again", b"x").partition(b"\r\n\r\n")[0]
    for peer in ("10.0.0.1", "192.168.1.5", "2001:db8::1", "", "localhost"):
        with pytest.raises(Exception) as refusal:  # noqa: PT011 - the module's own
            server.posting(head, peer)
        assert getattr(refusal.value, "status", None) == 403
    for peer in ("127.0.0.1", "127.8.9.1", "::1"):
        assert server.posting(head, peer) == (say_again, 1)


@pytest.mark.processes
def test_a_post_is_cancelled_when_its_client_goes_or_its_time_is_over(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        ended.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post("/never", b"x"))
        await until(lambda: ended == [False])
        writer.transport.abort()
        await until(lambda: ended == [True])
        await until(lambda: not server._connections)
        assert (await talk(port, post("/never", b"x"))).startswith(b"HTTP/1.1 503 ")
        assert ended == [True, True]

    serve(check, post_s=0.2)


@pytest.mark.processes
def test_attack_a_body_that_does_not_come_is_not_waited_for(serve: Serve) -> None:
    async def check(server: HttpServer, port: int) -> None:
        assert (await talk(port, post("/again", b"x", length=5))).startswith(b"HTTP/1.1 408 ")
        assert server.cut_off == 1

    serve(check, request_s=0.05)
