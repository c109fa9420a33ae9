"""ASGI middleware that bounds a request's body, in bytes and in time, regardless of its length header."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanse.topology.problems import problem

BODY_BYTES_MAX = 2 * 1024 * 1024  # a report of 10,000 groups is about 1 MB
BODY_TIMEOUT_S = 30.0


class BodyLimit:
    """Middleware that counts a request's body, and answers 413 if it is too large."""

    def __init__(self, app: ASGIApp, bytes_max: int = BODY_BYTES_MAX, timeout_s: float = BODY_TIMEOUT_S) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        count = scope["app"].state.manager.counters.refuse
        refusal = problem(413, f"The body has more than {self._bytes_max} bytes, which is the limit.")
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or int(told[:20]) > self._bytes_max:
            count("too-large")
            await refusal(scope, receive, send)
            return
        # The limit is small, so the whole body is read before the application runs. A request that turns out too large
        # then has no effect.
        chunks: list[Message] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                while not chunks or chunks[-1].get("more_body", False):
                    chunks.append(await receive())
                    size += len(chunks[-1].get("body", b""))
                    if size > self._bytes_max:
                        break
        except TimeoutError:
            count("too-slow")
            await problem(408, f"The body did not come within {self._timeout_s:g} s.")(scope, receive, send)
            return
        if size > self._bytes_max:
            count("too-large")
            await refusal(scope, receive, send)
            return
        chunks.reverse()

        async def replay() -> Message:
            return chunks.pop() if chunks else await receive()

        await self._app(scope, replay, send)
