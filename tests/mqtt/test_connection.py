"""Reports of a connection about its transport."""

import asyncio
import socket
from collections.abc import Sequence

import uvloop

from hanse.errors import HanseError
from hanse.mqtt.connection import JOIN_BYTES_MAX, Connection
from hanse.mqtt.counters import Counters
from hanse.mqtt.framing import Splitter
from hanse.mqtt.limits import UNIX_SEND_BYTES

PING = b"\xc0\x00"


class Owner:
    """Owner that reports the first packets that it receives."""

    def __init__(self) -> None:
        self.has_read = asyncio.Event()

    def on_open(self, connection: Connection) -> None:
        """Do nothing."""

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:  # noqa: ARG002
        """Report the packets of one read."""
        self.has_read.set()

    def on_lost(self, error: HanseError | None) -> None:
        """Do nothing."""

    def on_writable(self) -> None:
        """Do nothing."""


def test_unread_data_in_the_kernel_is_reported_until_it_is_read_or_the_connection_closes() -> None:
    async def steps() -> None:
        here, there = socket.socketpair()
        owner = Owner()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(owner, Splitter(1_000), Counters()), sock=here)
        told = [connection.has_unread]
        there.sendall(PING)
        told.append(connection.has_unread)  # the event loop has had no turn to read it
        async with asyncio.timeout(5.0):
            await owner.has_read.wait()
        told.append(connection.has_unread)
        there.sendall(PING)
        connection.abort()
        told.append(connection.has_unread)  # its descriptor number may belong to another socket by now
        there.close()
        assert told == [False, True, False, False]

    uvloop.run(steps())


def test_a_unix_socket_may_buffer_more_than_its_default() -> None:
    async def steps() -> tuple[int, int]:
        here, there = socket.socketpair()
        default = here.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        # Closing the transport closes its descriptor. This duplicate stays open.
        with there, here.dup() as same:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(
                lambda: Connection(Owner(), Splitter(1_000), Counters()), sock=here
            )
            held = same.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            connection.abort()
        return default, held

    default, held = uvloop.run(steps())
    # Linux doubles the requested size, up to its limit: at least twice the default.
    assert held >= min(2 * default, UNIX_SEND_BYTES)


class Answering(Owner):
    """Owner that replies to its packets, and looks at once how much the peer has received."""

    def __init__(self, answers: list[bytes], peer: socket.socket) -> None:
        super().__init__()
        self.there_meanwhile: list[bytes] = []
        self._answers = answers
        self._peer = peer
        self._connection: Connection | None = None

    def on_open(self, connection: Connection) -> None:
        self._connection = connection

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        assert self._connection is not None
        for answer in self._answers:
            self._connection.write(answer)
            try:
                self.there_meanwhile.append(self._peer.recv(1 << 20))
            except BlockingIOError:
                self.there_meanwhile.append(b"")
        super().on_packets(data, offsets)


async def answered(asked: bytes, answers: list[bytes]) -> tuple[list[bytes], bytes]:
    """Return what the peer had received after each reply while packets were handled, and all that it received."""
    here, there = socket.socketpair()
    there.setblocking(False)
    owner = Answering(answers, there)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(owner, Splitter(1_000), Counters()), sock=here)
    await loop.sock_sendall(there, asked)
    async with asyncio.timeout(5.0):
        await owner.has_read.wait()
        got = b"".join(owner.there_meanwhile)
        while len(got) < sum(map(len, answers)):
            got += await loop.sock_recv(there, 1 << 20)
    assert connection.counters.bytes_out == len(got)
    connection.abort()
    there.close()
    return owner.there_meanwhile, got


def test_the_reply_to_a_lone_packet_arrives_before_its_handling_ends() -> None:
    meanwhile, got = uvloop.run(answered(PING, [b"first", b"second"]))
    assert meanwhile == [b"first", b"second"]
    assert got == b"firstsecond"


def test_replies_to_several_packets_leave_together_when_all_are_handled() -> None:
    meanwhile, got = uvloop.run(answered(2 * PING, [b"first", b"second"]))
    assert meanwhile == [b"", b""]
    assert got == b"firstsecond"


def test_a_long_reply_waits_for_the_transport_and_nothing_overtakes_it() -> None:
    long = bytes(JOIN_BYTES_MAX + 1)
    meanwhile, got = uvloop.run(answered(PING, [long, b"second"]))
    assert meanwhile == [b"", b""]
    assert got == long + b"second"


def test_bytes_beyond_the_capacity_of_the_kernel_arrive_behind_the_rest() -> None:
    # The peer reads nothing during the writes: some leave at once, one leaves in part, and the transport keeps the
    # others.
    answers = [bytes((k,)) * JOIN_BYTES_MAX for k in range(250)]

    async def steps() -> bytes:
        here, there = socket.socketpair()
        there.setblocking(False)
        loop = asyncio.get_running_loop()
        owner = Writing(answers)
        _, connection = await loop.create_connection(lambda: Connection(owner, Splitter(1_000), Counters()), sock=here)
        await loop.sock_sendall(there, PING)
        got = bytearray()
        async with asyncio.timeout(5.0):
            await owner.has_read.wait()
            while len(got) < len(answers) * JOIN_BYTES_MAX:
                got += await loop.sock_recv(there, 1 << 20)
        connection.abort()
        there.close()
        return bytes(got)

    assert uvloop.run(steps()) == b"".join(answers)


class Writing(Owner):
    """Owner that writes all its replies when the first packet arrives."""

    def __init__(self, answers: list[bytes]) -> None:
        super().__init__()
        self._answers = answers

    def on_open(self, connection: Connection) -> None:
        self._connection = connection

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        for answer in self._answers:
            self._connection.write(answer)
        super().on_packets(data, offsets)
