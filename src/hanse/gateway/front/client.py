"""One client's connection: its CONNECT, then its session, until both sides are closed.

Rules:

1. Before CONNECT is complete, a client has a deadline and a bound on its bytes. No byte of it reaches a broker.
2. The result of one read is written at once: no task, no future and no log line per packet.
3. A slow side stops the other one: beyond `buffer_bytes` that wait for the broker, the client is not read, and the
   reverse.
4. A refused client gets the reason before its connection closes. Its further data is read and dropped for a
   moment, because closing on unread bytes would reset the answer away.
5. A closed client has a deadline to accept pending data. Then it is cut off.
"""

import asyncio
from typing import Final, Protocol, cast

from hanse.gateway.addresses import ListenAddress
from hanse.gateway.brokers.connection import BrokerConnection, Place
from hanse.gateway.federators.sessions import SessionRecord
from hanse.gateway.front.connect import Connect, ConnectReader, refuse
from hanse.gateway.session import Session
from hanse.gateway.session.events import Event
from hanse.gateway.share.tap import ShareTap
from hanse.mqtt.refusal import Refusal

# Bytes of a refused client that are read and dropped.
_DROPPED_BYTES_MAX: Final = 1 << 20


class Front(Protocol):
    """A client connection's access to the worker that serves it."""

    buffer_bytes: int
    connect_bytes_max: int
    client_bytes_rate: int

    def opened(self, client: "Client") -> int:
        """Take note of a connection; return the reason code with which it must be refused, or 0."""

    def connected(self, client: "Client", connect: Connect, rest: bytes) -> None:
        """Take a client whose CONNECT is complete."""

    def refused(self, client: "Client", reason: str) -> None:
        """Count a client that got no session."""

    def handle(self, client: "Client", event: Event) -> None:
        """Carry out a session's event."""

    def closing(self, connection: "Client | BrokerConnection", after_s: float) -> None:
        """Cut the connection off unless it has ended by then."""

    def broker_gone(self, client: "Client", connection: BrokerConnection) -> None:
        """Find out why a client's connection to its broker has ended."""

    def tap_flushed(self, client: "Client") -> None:
        """Hold or resume the second sessions of a client with shared subscriptions."""

    def left(self, client: "Client") -> None:
        """Take note that a client's connection to its broker ends."""

    def closed(self, client: "Client") -> None:
        """Take note that a client's connection has ended."""

    def throttled(self, client: "Client", until: float) -> None:
        """Read the client again at that time."""


LINGER_S: Final = 1.0
FLUSH_S: Final = 5.0


class Client:
    """A client over TCP or TLS; `WebSocketClient` puts frames around it.

    It is a protocol of asyncio by its methods, because a subclass would not be compiled.

    Attributes:
        address: of the client, or of what a balancer says about it.
        session: from its CONNECT on.
        tap: between client and session where shared subscriptions are served once across brokers; else None.
        broker: the connection that the session uses now.
        place: the broker of that connection.
        former: the id of the broker that it had before.
        record: what federators knew of its session.
        home: the id of the broker where its own session is.
        holds_client, holds_broker: the session's wishes when they were last checked.
        is_lingering: the end has been written; what the client still sends is read and dropped.
        is_held: nothing is read until the broker has been judged.
    """

    __slots__ = (
        "_allowance",
        "_allowed_at",
        "_dropped_bytes",
        "_is_broker_full",
        "_is_full",
        "_is_reading",
        "_is_settling",
        "_is_throttled",
        "_loop",
        "_must_refuse",
        "_reader",
        "_transport",
        "address",
        "avoids",
        "broker",
        "deadline",
        "failovers",
        "former",
        "front",
        "holds_broker",
        "holds_client",
        "home",
        "is_held",
        "is_lingering",
        "is_open",
        "is_placing",
        "listener",
        "place",
        "record",
        "session",
        "tap",
    )

    def __init__(self, front: Front, listener: ListenAddress, address: str = "") -> None:
        self.front = front
        self.listener = listener
        self.address = address
        self.session: Session | None = None
        self.broker: BrokerConnection | None = None
        self.place: Place | None = None
        self.former = ""
        self.home = ""
        self.record: SessionRecord | None = None
        self.tap: ShareTap | None = None
        self.deadline = 0.0
        # Brokers that have sent this client away, and when its failovers began.
        self.avoids: set[str] = set()
        self.failovers: list[float] = []
        self.holds_client = True
        self.holds_broker = False
        self.is_open = False
        self.is_held = False
        self.is_placing = False
        self._reader: ConnectReader | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._must_refuse = 0
        self._dropped_bytes = 0
        self._is_full = False
        self._is_broker_full = False
        self._is_reading = True
        self._is_throttled = False
        self._is_settling = False
        self.is_lingering = False
        self._allowance = 0.0
        self._allowed_at = 0.0

    # --- the client's socket ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the client, or prepare to refuse it."""
        # uvloop's transports are such by behaviour, not by inheritance.
        self._transport = cast("asyncio.Transport", transport)
        if not self.address:
            peer = transport.get_extra_info("peername")
            self.address = str(peer[0]) if peer else ""
        self._transport.set_write_buffer_limits(self.front.buffer_bytes)
        self.is_open = True
        self._reader = ConnectReader(self.front.connect_bytes_max)
        self._allowed_at = self._loop.time()
        self._allowance = float(self.front.client_bytes_rate)
        self._must_refuse = self.front.opened(self)

    def data_received(self, data: bytes) -> None:
        """Take one read."""
        self.take(data)

    def take(self, data: bytes) -> None:
        """Take MQTT bytes of the client."""
        session = self.session
        if session is None or self.is_lingering:
            self._greet(data)
            return
        if self.tap is not None:
            data = self.tap.from_client(data)
            self.flush_tap()
            if not data:
                return
        session.client_data(data, self._loop.time())
        if session.to_broker and self.broker is not None:
            self.broker.write(session.to_broker)
        if (
            session.to_client
            or session.events
            or session.holds_client is not self.holds_client
            or session.holds_broker is not self.holds_broker
        ):
            self.settle()
        if self.front.client_bytes_rate:
            self._throttle(len(data))

    def _throttle(self, size: int) -> None:
        """Stop reading a client that has sent more than its rate and one second's worth allow."""
        rate = self.front.client_bytes_rate
        now = self._loop.time()
        self._allowance = min(float(rate), self._allowance + (now - self._allowed_at) * rate) - size
        self._allowed_at = now
        if self._allowance < 0:
            self._is_throttled = True
            self.front.throttled(self, now - self._allowance / rate)
            self._set_reading()

    def unthrottle(self) -> None:
        """Read again."""
        self._is_throttled = False
        self._set_reading()

    def accepted(self) -> None:
        """Take note that a broker has accepted the client."""

    def eof_received(self) -> bool:
        """Close the other half as well: MQTT has no half-open connections."""
        return False

    def pause_writing(self) -> None:
        """Stop reading the broker."""
        self._is_full = True
        self._set_broker_reading()
        self.flush_tap()

    def resume_writing(self) -> None:
        """Read the broker again."""
        self._is_full = False
        self._set_broker_reading()
        self.flush_tap()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a client may go as it likes
        """Tell the session, which then ends its part at the broker."""
        self.is_open = False
        self._transport = None
        self.front.closed(self)
        if self.session is not None:
            self.session.client_lost(self._loop.time())
            self.settle()

    def write(self, out: list[bytes]) -> None:
        """Write to the client, unless its end has been written, and clear the list."""
        transport = self._transport
        if self.is_open and transport is not None and not self.is_lingering:
            if len(out) == 1:
                transport.write(out[0])
            else:
                transport.writelines(out)
        out.clear()

    def pass_on(self, out: list[bytes]) -> None:
        """Write the session's data for the client, and clear the list."""
        if self.tap is None:
            self.write(out)
            return
        self.tap.from_session(out)
        out.clear()
        self.flush_tap()

    def flush_tap(self) -> None:
        """Write the tap's data for the client, and hold or resume its senders."""
        tap = self.tap
        if tap is None:
            return
        if tap.to_client:
            self.write(tap.to_client)
        self._set_broker_reading()
        self.front.tap_flushed(self)

    @property
    def is_full(self) -> bool:
        """Return whether the client accepts no more bytes now."""
        return self._is_full or not self.is_open

    def close(self) -> None:
        """Close after pending data has left, and give the client a deadline for that."""
        if not self.is_open or self._transport is None or self.is_lingering:
            return
        if self.tap is not None:
            self.write(self.tap.give_up())
        self.is_lingering = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            if not self._is_reading:
                self._is_reading = True
                self._transport.resume_reading()
            self.front.closing(self, LINGER_S)
        else:
            self.is_open = False
            self._transport.close()
            self.front.closing(self, FLUSH_S)

    def cut(self) -> bool:
        """End the connection if it is still there; return whether the other side did not accept everything."""
        transport = self._transport
        if transport is None:
            return False
        is_late = transport.get_write_buffer_size() > 0
        self.abort()
        return is_late

    def abort(self) -> None:
        """End the connection now."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # --- before the session -------------------------------------------------------------------------------------------

    def _greet(self, data: bytes) -> None:
        reader = self._reader
        if self.is_lingering or reader is None:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > _DROPPED_BYTES_MAX:
                self.abort()
            return
        try:
            connect = reader.feed(data)
        except Refusal as refusal:
            self.turn_away(refusal.reason_code, refusal.counted_as, str(refusal))
            return
        if connect is None:
            return
        self._reader = None
        if self._must_refuse:
            answer = refuse(connect.level, self._must_refuse)
            self._say_last(answer)
            return
        self.front.connected(self, connect, reader.rest)

    def turn_away(self, code: int, counted_as: str, reason: str) -> None:
        """Refuse a client that has no session: in its own version, if that is known."""
        level = self._reader.level if self._reader is not None else 0
        self.front.refused(self, counted_as)
        self._say_last(refuse(level, code, reason))

    def _say_last(self, answer: bytes) -> None:
        self._reader = None
        if answer:
            self.write([answer])
        self.close()

    # --- the session's wishes -----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write the session's data, set which side is read, and handle its events, until there are none."""
        session = self.session
        if session is None or self._is_settling:
            return
        self._is_settling = True
        try:
            while True:
                if session.to_broker:
                    if self.broker is not None:
                        self.broker.write(session.to_broker)
                    else:
                        session.to_broker.clear()
                if session.to_client:
                    self.pass_on(session.to_client)
                if not session.events:
                    break
                events = session.events[:]
                session.events.clear()
                for event in events:
                    self.front.handle(self, event)
        finally:
            self._is_settling = False
        self.holds_client = session.holds_client
        self.holds_broker = session.holds_broker
        self._set_reading()
        self._set_broker_reading()

    def _set_reading(self) -> None:
        session, transport = self.session, self._transport
        if transport is None or not self.is_open or self.is_lingering or session is None:
            return
        is_wanted = not (session.holds_client or self._is_broker_full or self.is_held or self._is_throttled)
        if is_wanted == self._is_reading:
            return
        self._is_reading = is_wanted
        if is_wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _set_broker_reading(self) -> None:
        if self.broker is not None and self.session is not None:
            is_held = self.session.holds_broker or (self.tap is not None and self.tap.holds_broker)
            self.broker.set_reading(not (is_held or self._is_full))

    def hold(self, *, is_held: bool) -> None:
        """Stop reading the client until the broker has been judged, or go on."""
        self.is_held = is_held
        self._set_reading()

    # --- the broker's side --------------------------------------------------------------------------------------------

    def broker_made(self, connection: BrokerConnection) -> None:
        """Take note that the connection is open; the dialling coroutine attaches it."""

    def broker_full(self, *, is_full: bool) -> None:
        """Stop reading the client, or read it again."""
        self._is_broker_full = is_full
        self._set_reading()

    def attach(self, connection: BrokerConnection) -> None:
        """Use this connection from now on."""
        self.broker = connection
        self.place = connection.place
        self.place.clients += 1
        self._is_broker_full = False
        self.is_held = False

    def leave_broker(self, last: bytes = b"") -> None:
        """Close the connection to the broker; drop its later data."""
        connection = self.broker
        if connection is None:
            return
        self.front.left(self)
        self.broker = None
        connection.place.clients -= 1
        self.place = None
        self._is_broker_full = False
        connection.close(last)
        self.front.closing(connection, FLUSH_S)

    def broker_ended(self, connection: BrokerConnection) -> None:
        """Take note that a connection to a broker has ended."""
        if self.broker is not connection:
            return
        self.front.left(self)
        self.broker = None
        connection.place.clients -= 1
        self.place = None
        self._is_broker_full = False
        self.front.broker_gone(self, connection)
