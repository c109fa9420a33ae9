"""What a connection tells of its transport."""

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


class Answering(Owner):
    """Answers what it is handed, and looks what the peer has by then."""

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
    """What the peer had after each answer, while its packets were handled, and all that it got."""
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


def test_the_answer_to_a_lone_packet_is_there_before_its_handling_ends() -> None:
    meanwhile, got = uvloop.run(answered(PING, [b"first", b"second"]))
    assert meanwhile == [b"first", b"second"]
    assert got == b"firstsecond"


def test_answers_to_several_packets_leave_together_when_all_are_handled() -> None:
    meanwhile, got = uvloop.run(answered(2 * PING, [b"first", b"second"]))
    assert meanwhile == [b"", b""]
    assert got == b"firstsecond"


def test_a_long_answer_waits_for_the_transport_and_nothing_overtakes_it() -> None:
    long = bytes(JOIN_BYTES_MAX + 1)
    meanwhile, got = uvloop.run(answered(PING, [long, b"second"]))
    assert meanwhile == [b"", b""]
    assert got == long + b"second"


def test_what_the_kernel_has_no_room_for_arrives_behind_the_rest() -> None:
    # The peer reads nothing while they are written: some go at once, one in part, the others by the transport.
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
    """Writes all its answers when the first packet comes."""

    def __init__(self, answers: list[bytes]) -> None:
        super().__init__()
        self._answers = answers

    def on_open(self, connection: Connection) -> None:
        self._connection = connection

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        for answer in self._answers:
            self._connection.write(answer)
        super().on_packets(data, offsets)
