"""Two connections joined in memory, for tests and for a federation inside one process.

Rules: bytes arrive in a later turn of the loop, in order, as over a network. `chunk_bytes` cuts them into pieces.
Closing drains first, aborting does not.
"""

import asyncio


class MemoryTransport(asyncio.Transport):
    """One end of a connection. Make two with `join`."""

    def __init__(self, protocol: asyncio.Protocol, chunk_bytes: int) -> None:
        super().__init__()
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._chunk_bytes = chunk_bytes
        self._other: MemoryTransport | None = None
        self._waiting: list[bytes] = []
        self._is_closing = False
        self._is_lost = False
        # Lets a test stop the wire: while held, nothing arrives.
        self.is_held = False
        self.is_paused = False
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes for the other end, which gets them in a later turn."""
        if self._is_closing:
            return
        self.written += data
        self._waiting.append(bytes(data))
        self._loop.call_soon(self.deliver)

    def deliver(self) -> None:
        """Deliver the bytes that wait."""
        if self.is_held or not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        other = self._other
        for at in range(0, len(data), self._chunk_bytes):
            if other is None or other._is_lost:  # noqa: SLF001 - the other half of the same connection
                return
            if other.is_paused:
                self._waiting.append(data[at:])
                return
            other._protocol.data_received(data[at : at + self._chunk_bytes])  # noqa: SLF001
        if self._is_closing:
            self._lose(None)

    def pause_reading(self) -> None:
        """Let arriving bytes wait at the other end."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Deliver the bytes that waited."""
        self.is_paused = False
        if self._other is not None:
            self._loop.call_soon(self._other.deliver)

    def get_write_buffer_size(self) -> int:
        """Count the bytes that the other end has not received."""
        return sum(map(len, self._waiting))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: a connection in memory never pauses."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the default, because there is no socket."""
        return ("memory", 0) if name == "peername" else default

    def is_closing(self) -> bool:
        """Return whether the end was requested."""
        return self._is_closing

    def close(self) -> None:
        """Drain, then end both sides."""
        if not self._is_closing:
            self._is_closing = True
            if not self._waiting:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """End both sides. Bytes that wait are lost."""
        self._is_closing = True
        self._waiting.clear()
        self._loop.call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._is_closing = True
        self._protocol.connection_lost(error)
        if self._other is not None:
            self._loop.call_soon(self._other._lose, None)  # noqa: SLF001


def join(
    left: asyncio.Protocol, right: asyncio.Protocol, *, chunk_bytes: int = 65_536
) -> tuple[MemoryTransport, MemoryTransport]:
    """Connect two protocols. The right one, the listener's, is told first."""
    here, there = MemoryTransport(left, chunk_bytes), MemoryTransport(right, chunk_bytes)
    here._other, there._other = there, here  # noqa: SLF001
    right.connection_made(there)
    left.connection_made(here)
    return here, there
