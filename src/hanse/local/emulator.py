"""The link emulator: a TCP proxy between two federators whose link can be made slow, narrow, or dead, at run time.

Rules:
1. It carries bytes, so what it does to them is what TCP lets happen: they come later, or not yet; never in another
   order, never twice, never altered.
2. A cut is silent, as when a cable is pulled: nobody gets a reset, bytes wait in buffers, and after `restore` they
   come, if both ends still wait. `reset` is the other kind: connections break at once, and new ones are refused.
3. `forward` is from who dials the emulator to the target, `backward` the other way; a cut may be of one of them.
4. Memory is bounded: `BUFFER_BYTES_MAX` a direction and connection; beyond it the sender is not read. Fewer, where a
   narrow link is emulated: what stands in a buffer there is late by its size over the bandwidth.
"""

import asyncio
import contextlib
import enum
import random
import socket
from collections import deque
from dataclasses import dataclass, replace
from typing import Self

from hanse.errors import LocalError
from hanse.local.ports import LOOPBACK

# What a link holds under way. Smaller caps throughput at this many bytes a round trip; 4 MiB is 40 MB/s at 100 ms.
BUFFER_BYTES_MAX = 4 * 1024 * 1024
# Bytes that share one due time; small enough that a narrow link is smooth, large enough that a fast one is cheap.
_CHUNK_BYTES_MAX = 64 * 1024
_CHUNK_S = 0.02
CONNECTIONS_MAX = 1_000


class Direction(enum.Enum):
    """Of a link, as seen from who dialled the emulator."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Conditions:
    """What one direction of a link is like.

    Attributes:
        delay_s: added to every byte's way.
        jitter_s: up to so much more, drawn for each chunk; order is kept, so a late chunk delays those behind it.
        bytes_per_s: the bandwidth; None is no limit.
        is_cut: nothing passes.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    is_cut: bool = False

    def __post_init__(self) -> None:
        if self.delay_s < 0 or self.jitter_s < 0 or (self.bytes_per_s is not None and self.bytes_per_s <= 0):
            raise LocalError(
                f"A link with delay {self.delay_s} s, jitter {self.jitter_s} s and {self.bytes_per_s} bytes/s was "
                "asked for; delay and jitter are at least 0, the bandwidth is above 0."
            )


class Line:
    """One direction of all connections of an emulator: its conditions, and what passed."""

    def __init__(self) -> None:
        self.conditions = Conditions()
        self.bytes_passed = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    def set(self, conditions: Conditions) -> None:
        """New conditions from now on; bytes under way keep the time that they were given."""
        self.conditions = conditions
        if conditions.is_cut:
            self.is_open.clear()
        else:
            self.is_open.set()


class Schedule:
    """When each chunk of one connection's direction is due. Pure: time and chance come in."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._free_at_s = 0.0
        self._last_due_s = 0.0

    def due_s(self, now_s: float, size: int, conditions: Conditions) -> float:
        """The time at which a chunk that came now leaves at the other end."""
        began_s = max(now_s, self._free_at_s)
        self._free_at_s = began_s + (size / conditions.bytes_per_s if conditions.bytes_per_s else 0.0)
        jitter_s = self._chance.uniform(0, conditions.jitter_s) if conditions.jitter_s else 0.0
        self._last_due_s = max(self._last_due_s, self._free_at_s + conditions.delay_s + jitter_s)
        return self._last_due_s


class _Pipe:
    """One direction of one connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        line: Line,
        chance: random.Random,
        buffer_bytes_max: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._line = line
        self._schedule = Schedule(chance)
        self._buffer_bytes_max = buffer_bytes_max
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queue_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Carry until the source ends, and then say so to the other side."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take())
            tasks.create_task(self._give())

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            conditions = self._line.conditions
            size = _CHUNK_BYTES_MAX
            if conditions.bytes_per_s:
                size = max(1, min(size, int(conditions.bytes_per_s * _CHUNK_S)))
            chunk = await self._reader.read(size)
            due_s = self._schedule.due_s(loop.time(), len(chunk), self._line.conditions)
            self._queue.append((due_s, chunk))
            self._queue_bytes += len(chunk)
            self._wake.set()
            if not chunk:
                return
            while self._queue_bytes >= self._buffer_bytes_max:
                self._room.clear()
                await self._room.wait()

    async def _give(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            due_s, chunk = self._queue[0]
            if (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            # Rule 2: a cut holds what is under way, too.
            await self._line.is_open.wait()
            self._queue.popleft()
            self._queue_bytes -= len(chunk)
            self._room.set()
            if not chunk:
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                return
            self._writer.write(chunk)
            self._line.bytes_passed += len(chunk)
            await self._writer.drain()


class LinkEmulator:
    """Listens on the loopback and passes on to a target, under conditions."""

    def __init__(self, target_host: str, target_port: int, *, seed: int = 0) -> None:
        """The same seed draws the same jitter."""
        self._buffer_bytes_max = BUFFER_BYTES_MAX
        self._target = (target_host, target_port)
        self._chance = random.Random(seed)  # noqa: S311 - an emulation has to be repeatable, not secret
        self._lines = {Direction.FORWARD: Line(), Direction.BACKWARD: Line()}
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._refuses = False
        self.connections_refused = 0

    @property
    def port(self) -> int:
        """Where to dial instead of the target."""
        if self._server is None:
            raise LocalError("The link emulator does not listen yet; start it first.")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many connections pass through it now."""
        return len(self._connections)

    def conditions(self, direction: Direction) -> Conditions:
        """What a direction is like now."""
        return self._lines[direction].conditions

    def bytes_passed(self, direction: Direction) -> int:
        """How many bytes left at the far end."""
        return self._lines[direction].bytes_passed

    async def start(self, port: int = 0) -> None:
        """Listen; 0 lets the kernel choose.

        Raises:
            LocalError: the port is taken.
        """
        try:
            self._server = await asyncio.start_server(self._accept, LOOPBACK, port)
        except OSError as error:
            raise LocalError(
                f"The link emulator cannot listen on {LOOPBACK}:{port} ({error.strerror}); choose another port."
            ) from error

    async def stop(self) -> None:
        """Close everything."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._break_all()
        if server is not None:
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def shape(
        self,
        direction: Direction | None = None,
        *,
        delay_s: float | None = None,
        jitter_s: float | None = None,
        bytes_per_s: float | None = None,
    ) -> None:
        """Change what is named, of one direction or of both. A bandwidth of 0 takes its limit away."""
        for one in _of(direction):
            now = self._lines[one].conditions
            self._lines[one].set(
                replace(
                    now,
                    delay_s=now.delay_s if delay_s is None else delay_s,
                    jitter_s=now.jitter_s if jitter_s is None else jitter_s,
                    bytes_per_s=now.bytes_per_s if bytes_per_s is None else bytes_per_s or None,
                )
            )

    def set_buffer(self, bytes_max: int) -> None:
        """Hold at most so much under way, in connections that are made from now on; the kernel's buffer follows."""
        if self._server is None or bytes_max < 1:
            raise LocalError(f"A buffer of {bytes_max} bytes was asked for; start the emulator, and ask for 1 or more.")
        self._buffer_bytes_max = bytes_max
        for listening in self._server.sockets:
            # What is accepted inherits it; a size once set is the kernel's to adapt no more.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, bytes_max)

    def cut(self, direction: Direction | None = None) -> None:
        """Let nothing pass, in silence, in one direction or in both."""
        for one in _of(direction):
            self._lines[one].set(replace(self._lines[one].conditions, is_cut=True))

    def restore(self) -> None:
        """Undo cuts and resets; delay, jitter and bandwidth stay."""
        self._refuses = False
        for one in self._lines.values():
            one.set(replace(one.conditions, is_cut=False))

    async def reset(self) -> None:
        """Break all connections, and refuse new ones until `restore`."""
        self._refuses = True
        await self._break_all()

    async def _break_all(self) -> None:
        connections = list(self._connections.items())
        for task, writers in connections:
            for writer in writers:
                writer.transport.abort()
            task.cancel()
        await asyncio.gather(*(task for task, _ in connections), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._refuses or len(self._connections) >= CONNECTIONS_MAX:
            self.connections_refused += 1
            writer.transport.abort()
            return
        self._connections[task] = [writer]
        try:
            # The first packet of a connection needs both directions.
            for line in self._lines.values():
                await line.is_open.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            self._connections[task].append(far_writer)
            forward = _Pipe(reader, far_writer, self._lines[Direction.FORWARD], self._chance, self._buffer_bytes_max)
            backward = _Pipe(far_reader, writer, self._lines[Direction.BACKWARD], self._chance, self._buffer_bytes_max)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(forward.run())
                tasks.create_task(backward.run())
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            # One end is gone: so is the link, for the other. A cancellation is our own `reset` or `stop`.
            for one in self._connections[task]:
                one.transport.abort()
        finally:
            writers = self._connections.pop(task)
            # All are closed before any is waited for: the waiting may be cancelled.
            for one in writers:
                one.close()
            for one in writers:
                with contextlib.suppress(OSError):
                    await one.wait_closed()


def _of(direction: Direction | None) -> list[Direction]:
    return list(Direction) if direction is None else [direction]
