"""ASGI middleware that refuses a body beyond the limit, whatever its length header says, before it is in memory."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanse.topology.problems import problem

BODY_BYTES_MAX = 2 * 1024 * 1024  # a report of 10,000 groups is about 1 MB


class BodyLimit:
    """Counts a request's body, and answers 413 when it is too large."""

    def __init__(self, app: ASGIApp, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        refusal = problem(413, f"The body has more than {self._bytes_max} bytes, the most that is read.")
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or int(told[:20]) > self._bytes_max:
            await refusal(scope, receive, send)
            return
        # The limit is small: the whole body is taken before the application runs, so that nothing of a request
        # that turns out too large has had any effect.
        chunks: list[Message] = []
        size = 0
        while True:
            message = await receive()
            chunks.append(message)
            size += len(message.get("body", b""))
            if size > self._bytes_max:
                await refusal(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        chunks.reverse()

        async def replay() -> Message:
            return chunks.pop() if chunks else await receive()

        await self._app(scope, replay, send)
