"""Link emulator: a TCP proxy between two federators that can delay, limit or interrupt a link at run time.

Rules:
1. The emulator carries a byte stream, so it can only delay bytes or hold them back. It never reorders, duplicates or
   alters them.
2. A cut is silent, as if a cable were pulled: nobody gets a reset, bytes wait in buffers, and they continue after
   `restore` if both ends still wait. `reset` breaks connections at once and refuses new ones.
3. `forward` is the direction from the client of the emulator to the target, `backward` the reverse. A cut may affect
   one direction only.
4. Memory is bounded to `BUFFER_BYTES_MAX` per direction and connection; beyond it the emulator stops reading from the
   sender. Use a smaller buffer for a narrow link, because buffered bytes are delayed by their size divided by the
   bandwidth.
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

# Bytes in flight on a link. A smaller value limits throughput to this many bytes per round trip; 4 MiB is 40 MB/s at
# 100 ms.
BUFFER_BYTES_MAX = 4 * 1024 * 1024
# Bytes that share one due time: few enough to keep a narrow link smooth, enough to keep a fast link cheap.
_CHUNK_BYTES_MAX = 64 * 1024
_CHUNK_S = 0.02
CONNECTIONS_MAX = 1_000


class Direction(enum.Enum):
    """Direction of a link, as seen by the client of the emulator."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of one direction of a link.

    Attributes:
        delay_s: added to every byte's transit time.
        jitter_s: maximum additional delay, drawn for each chunk; order is kept, so a late chunk delays later ones.
        bytes_per_s: the bandwidth; None means no limit.
        is_cut: nothing passes.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    is_cut: bool = False

    def __post_init__(self) -> None:
        if self.delay_s < 0 or self.jitter_s < 0 or (self.bytes_per_s is not None and self.bytes_per_s <= 0):
            raise LocalError(
                f"A link cannot have delay {self.delay_s} s, jitter {self.jitter_s} s and {self.bytes_per_s} bytes/s: "
                "delay and jitter must be at least 0, the bandwidth above 0."
            )


class Line:
    """One direction of all connections of an emulator: its conditions, and the bytes passed."""

    def __init__(self) -> None:
        self.conditions = Conditions()
        self.bytes_passed = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    def set(self, conditions: Conditions) -> None:
        """Set new conditions; bytes in flight keep their due times."""
        self.conditions = conditions
        if conditions.is_cut:
            self.is_open.clear()
        else:
            self.is_open.set()


class Schedule:
    """Due times of the chunks in one direction of a connection. Pure: time and randomness are arguments."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._free_at_s = 0.0
        self._last_due_s = 0.0

    def due_s(self, now_s: float, size: int, conditions: Conditions) -> float:
        """Return the time at which a chunk that arrives now leaves the far end."""
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
        """Carry bytes until the source ends, then pass the end of the stream on."""
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
            # Rule 2: a cut also holds bytes in flight.
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
    """Proxy that listens on the loopback and forwards to a target under given conditions."""

    def __init__(self, target_host: str, target_port: int, *, seed: int = 0) -> None:
        """Create an emulator for a target; equal seeds give equal jitter."""
        self._buffer_bytes_max = BUFFER_BYTES_MAX
        self._target = (target_host, target_port)
        self._chance = random.Random(seed)  # noqa: S311 - an emulation must be repeatable, not secret
        self._lines = {Direction.FORWARD: Line(), Direction.BACKWARD: Line()}
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._refuses = False
        self.connections_refused = 0

    @property
    def port(self) -> int:
        """Port to use instead of the target's."""
        if self._server is None:
            raise LocalError("The link emulator is not listening yet; start it first.")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Number of connections that pass through it now."""
        return len(self._connections)

    def conditions(self, direction: Direction) -> Conditions:
        """Return the current conditions of a direction."""
        return self._lines[direction].conditions

    def bytes_passed(self, direction: Direction) -> int:
        """Return the number of bytes that left the far end."""
        return self._lines[direction].bytes_passed

    async def start(self, port: int = 0) -> None:
        """Listen on `port`; with 0 the kernel chooses one.

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
        """Close all connections and stop listening."""
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
        """Change the given conditions of one direction or of both; a bandwidth of 0 removes the limit."""
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
        """Limit the bytes in flight of future connections; the kernel's buffer gets the same size."""
        if self._server is None or bytes_max < 1:
            raise LocalError(f"Cannot set a buffer of {bytes_max} bytes; start the emulator, and give 1 or more.")
        self._buffer_bytes_max = bytes_max
        for listening in self._server.sockets:
            # Accepted connections inherit the size, and the kernel no longer adapts a size that was set.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, bytes_max)

    def cut(self, direction: Direction | None = None) -> None:
        """Silently block one direction or both."""
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
            # One end closed, so the emulator closes the other end too. A cancellation comes from `reset` or `stop`.
            for one in self._connections[task]:
                one.transport.abort()
        finally:
            writers = self._connections.pop(task)
            # Close all writers before waiting for any, because the waiting may be cancelled.
            for one in writers:
                one.close()
            for one in writers:
                with contextlib.suppress(OSError):
                    await one.wait_closed()


def _of(direction: Direction | None) -> list[Direction]:
    return list(Direction) if direction is None else [direction]
