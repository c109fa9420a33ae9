"""What a connection tells of its transport."""

import asyncio
import socket
from collections.abc import Sequence

import uvloop

from hanse.errors import HanseError
from hanse.mqtt.connection import Connection
from hanse.mqtt.counters import Counters
from hanse.mqtt.framing import Splitter
from hanse.mqtt.limits import UNIX_SEND_BYTES

PING = b"\xc0\x00"


class Owner:
    """Tells of the first packets that it is handed."""

    def __init__(self) -> None:
        self.has_read = asyncio.Event()

    def on_open(self, connection: Connection) -> None:
        """The transport is there."""

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:  # noqa: ARG002
        """One read's packets."""
        self.has_read.set()

    def on_lost(self, error: HanseError | None) -> None:
        """The transport is gone."""

    def on_writable(self) -> None:
        """The transport has room again."""


def test_what_the_kernel_holds_unread_is_told_until_it_is_read_or_the_connection_closes() -> None:
    async def steps() -> None:
        here, there = socket.socketpair()
        owner = Owner()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(owner, Splitter(1_000), Counters()), sock=here)
        told = [connection.has_unread]
        there.sendall(PING)
        told.append(connection.has_unread)  # nobody has had a turn to read it
        async with asyncio.timeout(5.0):
            await owner.has_read.wait()
        told.append(connection.has_unread)
        there.sendall(PING)
        connection.abort()
        told.append(connection.has_unread)  # its number may be another's by now
        there.close()
        assert told == [False, True, False, False]

    uvloop.run(steps())


def test_a_unix_socket_may_hold_more_than_its_default() -> None:
    async def steps() -> tuple[int, int]:
        here, there = socket.socketpair()
        default = here.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        # Its number is closed with the transport; this one stays.
        with there, here.dup() as same:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(
                lambda: Connection(Owner(), Splitter(1_000), Counters()), sock=here
            )
            held = same.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            connection.abort()
        return default, held

    default, held = uvloop.run(steps())
    # Linux doubles what it is asked for, as far as it allows it: at least twice what it gives by default.
    assert held >= min(2 * default, UNIX_SEND_BYTES)
