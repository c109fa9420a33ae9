"""A two-way connection between two services for requests, parts of answers, and answers, over TCP or TLS.

Either side asks; a request has a kind, fields (JSON) and a body (bytes):

    answer = await channel.ask("sum", {"numbers": [1, 2]}, timeout_s=5)     # answer.fields, answer.body
    channel = RequestChannel({"sum": handle})                               # the other side

    async def handle(request: Request) -> Answer:
        await request.part({"so_far": 1}, b"...")                           # any number of parts; waits for a slow peer
        return Answer({"sum": 3})                                           # or raise a HanseError

On the wire a frame is the length of the rest (4 bytes, big endian), the length of its header (4 bytes), its header (a
JSON object), and its body.

Rules:

1. Everything is bounded: a frame, the requests that a peer may have under way, the bytes that wait for a slow peer.
   Beyond the second bound the peer is not read; beyond the third `part` waits.
2. A malformed frame ends the connection. A request that cannot be served gets an error as its answer.
3. Silence is noticed: after `PING_S` without a frame a side pings, after `SILENCE_S` it gives the connection up.
4. When a connection ends, the requests of this side fail with `Unavailable`, and handlers of the other side's requests
   are cancelled. Whether the other side has carried out a request is then unknown: repeat only what may be repeated.
5. Kinds that are not known are refused by name, so that versions can differ.
"""

import asyncio
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

from hanse.errors import HanseError, LocalError, RemoteError, Unavailable

# A publication of Mosquitto's default limit for Hanse (16 MiB), with its header.
FRAME_BYTES_MAX: Final = 17 << 20
# Requests of one peer under way. More would let one peer fill the memory with tasks.
REQUESTS_MAX: Final = 256
# Unsent bytes beyond which `part` and `ask` wait.
WAITING_BYTES_MAX: Final = 256 * 1024
PING_S: Final = 2.0
SILENCE_S: Final = 8.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a listener for request channels: `tcp://HOST:PORT` or `tls://HOST:PORT`."""

    host: str
    port: int
    is_tls: bool = False

    @property
    def is_open_to_others(self) -> bool:
        """Return whether what is sent there passes a network without TLS."""
        if self.is_tls or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.is_tls else 'tcp'}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Read an address.

    Raises:
        LocalError: It is not such an address.
    """
    expected = "write tls://HOST:PORT, or tcp://HOST:PORT on one machine"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise LocalError(f"The address {text[:200]!r} cannot be read: {error}; {expected}.") from None
    if parts.scheme not in {"tcp", "tls"} or not parts.hostname or port is None:
        raise LocalError(f"The address {text[:200]!r} is not one of a federator's gateway listener; {expected}.")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username is not None:
        raise LocalError(f"The address {text[:200]!r} has more than host and port; {expected}.")
    return Endpoint(parts.hostname, port, parts.scheme == "tls")


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a handler and of `ask`; also a part of it."""

    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""


class Request:
    """A peer's request.

    Attributes:
        kind: Kind of the request.
        fields: The details, as the peer sent them: check each before use.
        body: Bytes of the request.
        channel: Channel of the peer.
    """

    __slots__ = ("_number", "body", "channel", "fields", "kind")

    def __init__(self, channel: "RequestChannel", number: int, kind: str, fields: dict[str, Any], body: bytes) -> None:
        self.channel = channel
        self.kind = kind
        self.fields = fields
        self.body = body
        self._number = number

    async def part(self, fields: dict[str, Any], body: bytes = b"") -> None:
        """Send a part of the answer; wait while the peer takes no more."""
        await self.channel.wait_writable()
        self.channel.send({"part": self._number, "fields": fields}, body)


Handler = Callable[[Request], Awaitable[Answer | None]]


class _Asked:
    """A request of this side."""

    __slots__ = ("future", "on_part")

    def __init__(self, future: asyncio.Future[Answer], on_part: Callable[[Answer], None] | None) -> None:
        self.future = future
        self.on_part = on_part


class RequestChannel(asyncio.Protocol):
    """One end of a connection.

    Args:
        handlers: What answers the peer's requests, by kind; may be replaced at any time.
        on_closed: Called once, with the reason, when the connection has ended.
        frame_bytes_max: The largest frame that is taken or sent; a listener raises it once it knows the peer.
        ping_s: Silence after which this side pings.
        silence_s: Silence after which it gives the connection up.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        on_closed: Callable[[str], None] | None = None,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        ping_s: float = PING_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.handlers = handlers
        self.transport: asyncio.Transport | None = None
        self.opened = asyncio.Event()
        self._on_closed = on_closed
        self.frame_bytes_max = frame_bytes_max
        self._ping_s = ping_s
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._next_number = 1
        self._asked: dict[int, _Asked] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._is_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reason = ""

    # Interface for callers.

    @property
    def is_open(self) -> bool:
        """Return whether the other side can be asked."""
        return self.transport is not None and not self.transport.is_closing()

    @property
    def peer(self) -> str:
        """Return the other side's address, for logs."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "an unnamed peer"

    async def ask(
        self,
        kind: str,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
        on_part: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Send a request, and return the answer.

        Args:
            kind: Kind of the request.
            fields: The details.
            body: Bytes.
            timeout_s: Time for the whole answer.
            on_part: Called with each part of the answer, in their order.

        Raises:
            RemoteError: The other side refused.
            Unavailable: It cannot do it now, did not answer in time, or the connection ended.
        """
        number, self._next_number = self._next_number, self._next_number + 1
        future: asyncio.Future[Answer] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait_writable()
                self._asked[number] = _Asked(future, on_part)
                self.send({"ask": number, "kind": kind, "fields": fields or {}}, body)
                return await future
        except TimeoutError:
            raise Unavailable(f"{self.peer} did not answer the request {kind!r} within {timeout_s:g} s.") from None
        finally:
            is_given_up = future.cancelled() or not future.done()
            if self._asked.pop(number, None) is not None and is_given_up:
                self.send({"cancel": number})

    async def wait_writable(self) -> None:
        """Return when less than `WAITING_BYTES_MAX` waits for the peer.

        Raises:
            Unavailable: The connection has ended.
        """
        await self._writable.wait()
        if not self.is_open:
            raise Unavailable(self._reason or "There is no connection.")

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Write a frame.

        Raises:
            LocalError: It is too large.
        """
        if self.transport is None or self.transport.is_closing():
            return
        head = json.dumps(header, separators=(",", ":")).encode()
        size = 4 + len(head) + len(body)
        if size > self.frame_bytes_max:
            raise LocalError(f"A frame of {size} bytes cannot be sent; at most {self.frame_bytes_max} are allowed.")
        start = size.to_bytes(4) + len(head).to_bytes(4) + head
        self.transport.write(start + body)

    def close(self, reason: str = "closed here") -> None:
        """End the connection when what was written has left."""
        self._reason = self._reason or reason
        if self.transport is not None:
            self.transport.close()

    def abort(self, reason: str) -> None:
        """End the connection now."""
        self._reason = self._reason or reason
        if self.transport is not None:
            self.transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports are such by behaviour, not by inheritance.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(self._ping_s / 2, self._check)
        self.opened.set()

    def data_received(self, data: bytes) -> None:
        """Handle each whole frame."""
        self._heard_at = self._loop.time()
        self._buffer += data
        try:
            self._take_frames()
        except HanseError as error:
            _log.warning("connection of %s ended: %s", self.peer, error)
            self.abort(str(error))

    def _take_frames(self) -> None:
        buffer = self._buffer
        at = 0
        while len(buffer) - at >= 8 and self.is_open:
            size = int.from_bytes(buffer[at : at + 4])
            head = int.from_bytes(buffer[at + 4 : at + 8])
            if size > self.frame_bytes_max or head > size - 4:
                raise RemoteError(
                    f"a frame says {size} bytes with a header of {head}; expected at most {self.frame_bytes_max}."
                )
            end = at + 4 + size
            if len(buffer) < end:
                break
            self._take(bytes(buffer[at + 8 : at + 8 + head]), bytes(buffer[at + 8 + head : end]))
            at = end
        del buffer[:at]

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what waits, and cancel what runs (rule 4)."""
        self.transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._reason = self._reason or (f"The connection broke: {error}." if error else "The peer closed it.")
        self._writable.set()
        self.opened.set()
        for asked in self._asked.values():
            if not asked.future.done():
                asked.future.set_exception(Unavailable(self._reason))
                asked.future.exception()  # whoever asked may have been cancelled
        self._asked.clear()
        for task in list(self._serving.values()):
            task.cancel()
        if self._on_closed is not None:
            self._on_closed(self._reason)

    def pause_writing(self) -> None:
        """Let `part` and `ask` wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let them go on."""
        self._writable.set()

    def eof_received(self) -> bool:
        """Close: a half-open channel is of no use."""
        return False

    # Frames.

    def _take(self, head: bytes, body: bytes) -> None:
        try:
            header = json.loads(head)
        except ValueError:
            raise RemoteError("a frame's header is not JSON.") from None
        if not isinstance(header, dict):
            raise RemoteError("a frame's header is no JSON object.")
        fields = header.get("fields", {})
        if not isinstance(fields, dict):
            raise RemoteError("a frame's fields are no JSON object.")
        for word in ("ask", "done", "part", "fail", "cancel"):
            number = header.get(word)
            if number is None:
                continue
            if type(number) is not int:
                raise RemoteError("a frame's number is no number.")
            if word == "ask":
                self._serve(number, str(header.get("kind")), fields, body)
            elif word == "cancel":
                task = self._serving.get(number)
                if task is not None:
                    task.cancel()
            else:
                self._answer(word, number, header, Answer(fields, body))
            return
        if "ping" in header:
            self.send({"pong": 1})

    def _answer(self, word: str, number: int, header: dict[str, Any], answer: Answer) -> None:
        asked = self._asked.get(number)
        if asked is None or asked.future.done():
            return  # it was given up
        if word == "part":
            if asked.on_part is not None:
                asked.on_part(answer)
        elif word == "done":
            asked.future.set_result(answer)
        else:
            text = str(header.get("error"))[:1_000]
            kind = Unavailable if header.get("again") else RemoteError
            asked.future.set_exception(kind(text))

    def _serve(self, number: int, kind: str, fields: dict[str, Any], body: bytes) -> None:
        handler = self.handlers.get(kind)
        if handler is None:
            self.send({"fail": number, "error": f"The request {kind[:60]!r} is not known here."})
            return
        if number in self._serving:
            raise RemoteError("two requests under way have the same number.")
        request = Request(self, number, kind, fields, body)
        task = self._loop.create_task(self._run(handler, request, number))
        self._serving[number] = task
        task.add_done_callback(lambda _: self._served(number))
        if len(self._serving) >= REQUESTS_MAX and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _served(self, number: int) -> None:
        self._serving.pop(number, None)
        if self._is_paused and len(self._serving) < REQUESTS_MAX // 2 and self.transport is not None:
            self._is_paused = False
            self._heard_at = self._loop.time()
            self.transport.resume_reading()

    async def _run(self, handler: Handler, request: Request, number: int) -> None:
        try:
            answer = await handler(request) or Answer()
            self.send({"done": number, "fields": answer.fields}, answer.body)
        except HanseError as error:
            self.send({"fail": number, "error": str(error), "again": isinstance(error, Unavailable)})
        except Exception:  # noqa: BLE001 - the edge of a service: one request must not end the others
            _log.exception("the request %r failed", request.kind)
            self.send({"fail": number, "error": "The request failed; the other side's log says why.", "again": True})

    # Time.

    def _check(self) -> None:
        if self.transport is None:
            return
        silence_s = 0.0 if self._is_paused else self._loop.time() - self._heard_at
        if silence_s >= self._silence_s:
            self.abort(f"Nothing was heard for {silence_s:.1f} s.")
            return
        if silence_s >= self._ping_s / 2:
            self.send({"ping": 1})
        self._timer = self._loop.call_later(self._ping_s / 2, self._check)
