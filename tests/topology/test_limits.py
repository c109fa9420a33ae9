import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hanse.topology.limits import BodyLimit
from hanse.topology.metrics import Counters


async def ask(chunks: list[bytes], headers: list[tuple[bytes, bytes]], *, ends: bool = True) -> tuple[int, list[bytes]]:
    """Return the middleware's answer, and the bytes that the application behind it received."""
    got: list[bytes] = []
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        del scope
        while True:
            message = await receive()
            got.append(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    waiting = list(chunks)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting) or not ends}

    async def send(message: Any) -> None:
        sent.append(message)

    app = SimpleNamespace(state=SimpleNamespace(manager=SimpleNamespace(counters=Counters())))
    scope = {"type": "http", "method": "POST", "headers": headers, "app": app}
    await BodyLimit(application, bytes_max=10, timeout_s=0.05)(scope, receive, send)
    return sent[0]["status"], got


@pytest.mark.parametrize(
    ("chunks", "headers", "status"),
    [
        ([b"0123456789"], [], 200),
        ([b"01234", b"56789"], [], 200),
        ([b""], [], 200),
        ([b"01234", b"567890"], [], 413),
        ([b"x"], [(b"content-length", b"11")], 413),
        ([b"x"], [(b"content-length", b"-1")], 413),
        ([b"x"], [(b"content-length", b"9" * 5000)], 413),
    ],
)
def test_a_body_beyond_the_limit_never_reaches_the_application(
    chunks: list[bytes], headers: list[tuple[bytes, bytes]], status: int
) -> None:
    answered, got = asyncio.run(ask(chunks, headers))
    assert answered == status
    assert got == (chunks if status == 200 else [])


def test_attack_a_body_that_never_ends_is_given_up() -> None:
    answered, got = asyncio.run(ask([b"0"], [], ends=False))
    assert answered == 408
    assert got == []
