"""A small HTTP/1.1 server for `/healthz`, `/metrics` and other pages: GET and HEAD, one request per connection.

Rules:

1. It gives only the result of a route, and accepts nothing: no bodies, no uploads, no keep-alive. Only a route of
   `posts` accepts a POST: JSON of bounded size, only from this machine, and never from a page in a browser.
2. Everything is bounded: connections, the size of a request's head, the time until it is complete, and the time for the
   answer to leave. A slow client is cut off, and the next one gets the slot.
3. A request is parsed strictly. An odd one gets 400, and the connection ends. Text of a client is never repeated to it,
   so nothing can be smuggled into a page or a log.
4. A route runs on the event loop and must be quick. One of `posts` may wait, and is cancelled when its client goes. A
   route that fails is a 500 and a line in the log, nothing more.
"""

import asyncio
import ipaddress
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple, cast

from hanse.errors import LocalError, Unavailable

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

# Status, media type, body.
Reply = tuple[int, str, bytes | str]
Route = Callable[[], Reply]
PostRoute = Callable[[bytes], Awaitable[Reply]]

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
_TARGET = re.compile(rb"/[!-~]*")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_METHODS = (b"GET", b"HEAD")
# Bytes that a client may send after its answer: an unwanted form, not a film.
_DROPPED_BYTES_MAX = 1 << 20
_HEAD_END = b"\r\n\r\n"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one server.

    Attributes:
        head_bytes_max: Size of request line and headers. Prometheus sends about 300 bytes, a browser with cookies
            2,000.
        headers_max: Number of header lines; 100 is the limit of Apache and Python's own server.
        connections_max: Simultaneous connections. A scraper or two, a health check and a person with curl are ten.
        request_s: Time from the connection to the end of the head. A longer one lets a slow client hold a slot longer.
        answer_s: Time from the answer to the end of the connection. Prometheus itself gives up after 10 s.
        body_bytes_max: Size of a POST: the longest topic, with every second character escaped.
        post_s: Time from the end of a POST to its answer.
    """

    head_bytes_max: int = 8_192
    headers_max: int = 100
    connections_max: int = 32
    request_s: float = 5.0
    answer_s: float = 10.0
    body_bytes_max: int = 262_144
    post_s: float = 15.0


class Request(NamedTuple):
    """Relevant parts of a request. The query is ignored."""

    method: bytes
    path: str


class _Refused(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


def read_head(head: bytes, headers_max: int) -> Request:
    """Return method and path of a request's head, without its blank line.

    Raises:
        _Refused: With the status to answer.
    """
    method, path, headers = _read(head, headers_max)
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE if method in _METHODS else HTTPStatus.METHOD_NOT_ALLOWED)
    return Request(method, path)


def _read(head: bytes, headers_max: int) -> tuple[bytes, str, dict[bytes, bytes]]:
    """Return method, path and headers, their names in small letters; of a repeated name, the last value."""
    line, *lines = head.split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or _TOKEN.fullmatch(parts[0]) is None:
        raise _Refused(HTTPStatus.BAD_REQUEST)
    method, target, version = parts
    if re.fullmatch(rb"HTTP/[0-9]\.[0-9]", version) is None or _TARGET.fullmatch(target) is None:
        raise _Refused(HTTPStatus.BAD_REQUEST)
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise _Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    if len(lines) > headers_max:
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    hosts = 0
    headers: dict[bytes, bytes] = {}
    for header in lines:
        name, colon, value = header.partition(b":")
        # RFC 9112, 5.1 and 5.2: a blank before the colon and a folded line are refused.
        if not colon or _TOKEN.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise _Refused(HTTPStatus.BAD_REQUEST)
        name = name.lower()
        hosts += name == b"host"
        value = value.strip()
        # RFC 9112, 6.3: two different lengths are a means to smuggle a request.
        if name == b"content-length" and headers.get(name, value) != value:
            raise _Refused(HTTPStatus.BAD_REQUEST)
        headers[name] = value
    # RFC 9112, 3.2: exactly one Host in 1.1.
    if hosts > 1 or (version == b"HTTP/1.1" and hosts == 0):
        raise _Refused(HTTPStatus.BAD_REQUEST)
    return method, target.partition(b"?")[0].decode("ascii"), headers


class HttpServer:
    """The server.

    Args:
        routes: Path to the function that answers it.
        posts: Path to the function that answers a POST there, given the body.

    Attributes:
        answered: Number of answers by status.
        cut_off: Number of connections that ended for lack of time or capacity.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        limits: HttpLimits | None = None,
        *,
        posts: Mapping[str, PostRoute] | None = None,
    ) -> None:
        self.limits = limits or HttpLimits()
        self.answered: Counter[int] = Counter()
        self.cut_off = 0
        self._routes = dict(routes)
        self._posts = dict(posts or {})
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Port of the listening socket."""
        assert self._server is not None, "the server was not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> str:
        """Start to listen; port 0 takes a free one.

        Returns:
            The URL, without a path.

        Raises:
            LocalError: The address is not available.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Connection(self), host, port)
        except OSError as error:
            raise LocalError(
                f"Cannot serve metrics on {host}:{port}: {error.strerror or error}; choose another address."
            ) from error
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def stop(self) -> None:
        """Stop listening, and end every connection. Do nothing if the server does not run."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in list(self._connections):
            connection.abort()
        await server.wait_closed()

    def answer(self, head: bytes) -> bytes:
        """Return the whole answer to a request's head (without its blank line); no IO."""
        try:
            request = read_head(head, self.limits.headers_max)
        except _Refused as refused:
            return self.refusal(refused.status)
        route = self._routes.get(request.path)
        if route is None:
            return self.refusal(HTTPStatus.NOT_FOUND, is_head=request.method == b"HEAD")
        if request.method not in _METHODS:
            return self.refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            status, media_type, body = route()
            raw = body.encode("utf-8", "replace") if isinstance(body, str) else body
        except Unavailable:
            return self.refusal(HTTPStatus.SERVICE_UNAVAILABLE, is_head=request.method == b"HEAD")
        except Exception:  # noqa: BLE001 - the edge of the shell: a page that fails must not end the agent
            _log.exception("a page could not be made", extra={"path": request.path})
            return self.refusal(HTTPStatus.INTERNAL_SERVER_ERROR, is_head=request.method == b"HEAD")
        return self._written(HTTPStatus(status), media_type, raw, is_head=request.method == b"HEAD")

    def posting(self, head: bytes, peer: str) -> tuple[PostRoute, int] | None:
        """Return the route of a POST, and the length of its body; None for a head that `answer` handles.

        Raises:
            _Refused: With the status to answer.
        """
        if not head.startswith(b"POST ") or not self._posts:
            return None
        method, path, headers = _read(head, self.limits.headers_max)
        route = self._posts.get(path)
        if route is None or method != b"POST":
            return None
        if not _is_this_machine(peer):
            raise _Refused(HTTPStatus.FORBIDDEN)
        # A page in a browser can send this type to another site only if that site agrees, which this one never does.
        if headers.get(b"content-type", b"").lower() != JSON.encode() or b"origin" in headers:
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or re.fullmatch(rb"[0-9]{1,9}", length) is None:
            raise _Refused(HTTPStatus.LENGTH_REQUIRED)
        if int(length) > self.limits.body_bytes_max:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return route, int(length)

    async def answer_post(self, route: PostRoute, body: bytes) -> bytes:
        """Return the whole answer to a POST."""
        try:
            async with asyncio.timeout(self.limits.post_s):
                status, media_type, answer = await route(body)
        except TimeoutError:
            return self.refusal(HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:  # noqa: BLE001 - the edge of the shell: a question that fails must not end the agent
            _log.exception("a POST could not be answered")
            return self.refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        raw = answer.encode("utf-8", "replace") if isinstance(answer, str) else answer
        return self._written(HTTPStatus(status), media_type, raw, is_head=False)

    def refusal(self, status: HTTPStatus, *, is_head: bool = False) -> bytes:
        """Return an answer that contains only its status."""
        return self._written(status, TEXT, f"{status.phrase}\n".encode(), is_head=is_head)

    def _written(self, status: HTTPStatus, media_type: str, body: bytes, *, is_head: bool) -> bytes:
        self.answered[status.value] += 1
        allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"Content-Type: {media_type}\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"{allow}"
            "Cache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode("latin-1") if is_head else head.encode("latin-1") + body

    def admit(self, connection: "_Connection") -> bool:
        """Accept a connection; return False if there are too many."""
        if len(self._connections) >= self.limits.connections_max:
            self.cut_off += 1
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: "_Connection") -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """One connection: a head in, an answer out, the end."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._is_answered = False
        self._dropped_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        # The route of a POST, and the length of its body.
        self._posting: tuple[PostRoute, int] | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the same methods without being subclasses.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        if self._server.admit(self):
            self._set_deadline(self._server.limits.request_s, self._on_late)
        else:
            # Without a deadline, which only those within the limit have: it ends as soon as the answer has left.
            self._is_answered = True
            transport.write(self._server.refusal(HTTPStatus.SERVICE_UNAVAILABLE))
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            # Read and drop up to a limit: closing with unread bytes would reset the connection and lose the answer.
            self._dropped_bytes += len(data)
            if self._dropped_bytes > _DROPPED_BYTES_MAX:
                self.abort()
            return
        self._buffer += data
        if self._posting is not None:
            self._take_body()
            return
        limit = self._server.limits.head_bytes_max
        end = self._buffer.find(_HEAD_END, 0, limit + len(_HEAD_END))
        if end >= 0:
            self._take_head(bytes(self._buffer[:end]))
        elif len(self._buffer) > limit:
            self._send(self._server.refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def eof_received(self) -> bool:
        # A client may close its half right behind the request and still expect the answer, which is written by now or
        # never.
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()
        self._server.forget(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _take_head(self, head: bytes) -> None:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        try:
            self._posting = self._server.posting(head, peer[0] if peer else "")
        except _Refused as refused:
            self._send(self._server.refusal(refused.status))
            return
        if self._posting is None:
            self._send(self._server.answer(head))
            return
        del self._buffer[: len(head) + len(_HEAD_END)]
        self._take_body()

    def _take_body(self) -> None:
        assert self._posting is not None
        route, length = self._posting
        if self._task is None and len(self._buffer) >= length:
            if self._deadline is not None:
                self._deadline.cancel()
            self._task = asyncio.ensure_future(self._answer_post(route, bytes(self._buffer[:length])))
        if self._task is not None:
            self._buffer.clear()  # later bytes are ignored

    async def _answer_post(self, route: PostRoute, body: bytes) -> None:
        answer = await self._server.answer_post(route, body)
        if self._transport is not None and not self._transport.is_closing():
            self._send(answer)

    def _send(self, answer: bytes) -> None:
        assert self._transport is not None
        self._is_answered = True
        self._buffer.clear()
        self._set_deadline(self._server.limits.answer_s, self._on_slow)
        self._transport.write(answer)
        # Close only our half: then the client's FIN ends the rest, or the deadline does.
        self._transport.write_eof()

    def _set_deadline(self, after_s: float, call: Callable[[], None]) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(after_s, call)

    def _on_late(self) -> None:
        self._server.cut_off += 1
        self._send(self._server.refusal(HTTPStatus.REQUEST_TIMEOUT))

    def _on_slow(self) -> None:
        self._server.cut_off += 1
        self.abort()


def _is_this_machine(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False
