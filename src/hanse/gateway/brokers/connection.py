"""One client's connection to its broker.

Rules:

1. Later data of a former connection is dropped.
2. An end is orderly: pending data is written first. `Closing` cuts off a broker that does not accept it.
"""

import asyncio
from typing import Protocol, cast

from hanse.gateway.session import Session


class Place:
    """One broker as the clients of this process use it.

    Attributes:
        heard_at: when any client's connection last received something from it.
        clients: how many are attached to it.
    """

    __slots__ = ("broker_id", "clients", "heard_at")

    def __init__(self, broker_id: str) -> None:
        self.broker_id = broker_id
        self.heard_at = float("-inf")
        self.clients = 0


class Owner(Protocol):
    """The client of a connection, as the connection needs it."""

    session: Session | None
    broker: "BrokerConnection | None"
    holds_client: bool
    holds_broker: bool

    def pass_on(self, out: list[bytes]) -> None:
        """Write to the client, and clear the list."""

    def settle(self) -> None:
        """Carry out the session's requests."""

    def broker_made(self, connection: "BrokerConnection") -> None:
        """Take note that the connection is open."""

    def broker_ended(self, connection: "BrokerConnection") -> None:
        """Take note that the connection is closed."""

    def broker_full(self, *, is_full: bool) -> None:
        """Note that the broker stops accepting data, or accepts it again."""


class BrokerConnection:
    """The broker's side of one client: a protocol of asyncio by its methods, because a subclass would not be compiled.

    Args:
        incarnation: of the broker; a later one means that it has restarted since.
        buffer_bytes: how much may wait for the broker before the client is no longer read.
    """

    __slots__ = ("_buffer_bytes", "_is_reading", "_loop", "incarnation", "is_open", "owner", "place", "transport")

    def __init__(self, owner: Owner, place: Place, incarnation: int, buffer_bytes: int) -> None:
        self.owner = owner
        self.place = place
        self.incarnation = incarnation
        self.is_open = False
        self.transport: asyncio.Transport | None = None
        self._buffer_bytes = buffer_bytes
        self._is_reading = True
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bound the bytes that wait for the broker."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(self._buffer_bytes)
        self.is_open = True
        self.owner.broker_made(self)

    def data_received(self, data: bytes) -> None:
        """Hand one read to the session, and its output to the client."""
        owner = self.owner
        session = owner.session
        if owner.broker is not self or session is None:
            return
        now = self._loop.time()
        self.place.heard_at = now
        session.broker_data(data, now)
        if session.to_client:
            owner.pass_on(session.to_client)
        if (
            session.to_broker
            or session.events
            or session.holds_client is not owner.holds_client
            or session.holds_broker is not owner.holds_broker
        ):
            owner.settle()

    def write(self, out: list[bytes]) -> None:
        """Write to the broker, and clear the list."""
        transport = self.transport
        if self.is_open and transport is not None:
            if len(out) == 1:
                transport.write(out[0])
            else:
                transport.writelines(out)
        out.clear()

    def set_reading(self, is_wanted: bool) -> None:
        """Start or stop reading."""
        transport = self.transport
        if is_wanted == self._is_reading or transport is None or not self.is_open:
            return
        self._is_reading = is_wanted
        if is_wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def close(self, last: bytes = b"") -> None:
        """End the connection after pending data and `last` have been written."""
        transport = self.transport
        if self.is_open and transport is not None:
            self.is_open = False
            if last:
                transport.write(last)
            transport.close()

    def cut(self) -> bool:
        """End the connection if it is still there; return whether the other side did not accept everything."""
        transport = self.transport
        if transport is None:
            return False
        is_late = transport.get_write_buffer_size() > 0
        self.abort()
        return is_late

    def abort(self) -> None:
        """End the connection now."""
        self.is_open = False
        if self.transport is not None:
            self.transport.abort()

    def eof_received(self) -> bool:
        """Close the other half as well: MQTT has no half-open connections."""
        return False

    def pause_writing(self) -> None:
        """Stop reading the client."""
        if self.owner.broker is self:
            self.owner.broker_full(is_full=True)

    def resume_writing(self) -> None:
        """Read the client again."""
        if self.owner.broker is self:
            self.owner.broker_full(is_full=False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the verdict on the broker decides
        """Tell the client."""
        self.is_open = False
        self.transport = None
        self.owner.broker_ended(self)
