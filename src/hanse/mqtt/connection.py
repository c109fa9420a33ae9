"""One transport: packets in, bytes out, and an orderly end.

Rules:

- Bytes written during the handling of one read, to any connection, leave when the read has been handled, with one
  `transport.write` per connection. If the read was a single packet, they leave at once. All other bytes leave at the
  end of the event loop's turn.
- A connection that is asked to end has `CLOSE_DEADLINE_S` to drain, and is then cut.
- Nothing is delivered after the end.
"""

import asyncio
import fcntl
import os
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast
from weakref import WeakKeyDictionary

from mqtt5 import DisconnectPacket, DisconnectReasonCode

from hanse.errors import HanseError, Unavailable
from hanse.mqtt import codec
from hanse.mqtt.counters import Counters
from hanse.mqtt.framing import Splitter
from hanse.mqtt.gathering import UNIX_FULL_PACKETS, UNIX_LONG_S, Gathering
from hanse.mqtt.keepalive import KeepAlive
from hanse.mqtt.limits import UNIX_SEND_BYTES
from hanse.mqtt.refusal import KEEP_ALIVE_TIMEOUT, NORMAL, UNSPECIFIED, Refusal
from hanse.system_errors import reason

CLOSE_DEADLINE_S: Final = 5.0

# Pieces of one write that are smaller than this in total are joined. Larger ones go to the kernel one by one, which
# saves a copy.
JOIN_BYTES_MAX: Final = 16_384

# Reply of FIONREAD, an int in the machine's byte order, if nothing is unread.
_NO_BYTES: Final = bytes(4)

# Linux's option number, which Python names from 3.12 on. The kernel keeps at most so much unsent data, so urgent frames
# do not wait behind megabytes in a socket buffer.
TCP_NOTSENT_LOWAT: Final = 25


class Owner(Protocol):
    """Handler of a connection's packets. It may change while the connection lasts (handshake, then traffic)."""

    def on_open(self, connection: "Connection") -> None:
        """Handle the new transport."""

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """Handle the packets of one read. A Refusal raised here ends the connection."""

    def on_lost(self, error: HanseError | None) -> None:
        """Handle the loss of the transport: None if this side ended it, otherwise the reason. Called once."""

    def on_writable(self) -> None:
        """Handle new capacity of a transport that was full."""


def disconnect_packet(reason_code: int, reason: str | None = None, server_reference: str | None = None) -> bytes:
    """Return a DISCONNECT. A reason code that MQTT does not allow in it becomes 0x80 (unspecified)."""
    try:
        code = DisconnectReasonCode(reason_code)
    except (ValueError, OverflowError):
        code = DisconnectReasonCode(UNSPECIFIED)
    return DisconnectPacket(
        reason_code=code, reason_str=reason[:1000] if reason else None, server_reference=server_reference
    ).write()


class _Handling:
    """State of one event loop: whether it handles a read now, and the connections written to meanwhile.

    A callback at the end of the loop's turn would do the same, but costs one callback and one more turn per message.
    """

    __slots__ = ("is_lone", "is_under_way", "written")

    def __init__(self) -> None:
        self.is_under_way = False
        # Whether the read is a single packet: its replies need not wait for those of others.
        self.is_lone = False
        self.written: list[Connection] = []


_handlings: WeakKeyDictionary[asyncio.AbstractEventLoop, _Handling] = WeakKeyDictionary()


class Connection(asyncio.Protocol):
    """The asyncio protocol under every session and link.

    Args:
        owner: handler of the packets.
        transport_bytes: bytes that may wait in the transport before `on_writable` is used; see `is_writable`.
        says_disconnect: whether a refusal sends DISCONNECT. Not before CONNECT was answered (MQTT 5, 4.13).
    """

    def __init__(
        self,
        owner: Owner,
        splitter: Splitter,
        counters: Counters,
        *,
        transport_bytes: int | None = None,
        says_disconnect: bool = True,
    ) -> None:
        self.owner = owner
        self.counters = counters
        self.splitter = splitter
        self.says_disconnect = says_disconnect
        self.is_writable = True
        # Whether a write can still reach the peer.
        self.is_open = False
        self.received_at = 0.0
        self.sent_at = 0.0
        self._transport_bytes = transport_bytes
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._handling = _handlings.get(self._loop) or _handlings.setdefault(self._loop, _Handling())
        self._out: list[bytes | bytearray] = []
        self._out_bytes = 0
        self._end: HanseError | None = None
        self._is_ending = False
        self._keep_alive: KeepAlive | None = None
        self._gathering = Gathering()
        self._fileno = -1
        # Whether written bytes reach the kernel unchanged. Over TLS they do not.
        self._is_plain = False
        self._timers: list[asyncio.TimerHandle] = []

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send small messages without delay, and bound the unsent bytes."""
        # uvloop's transports are not subclasses of asyncio's. They only have the same methods.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = not self._is_ending
        self.received_at = self.sent_at = self._loop.time()
        wire = transport.get_extra_info("socket")
        self._fileno = -1 if wire is None else wire.fileno()
        self._is_plain = wire is not None and transport.get_extra_info("sslcontext") is None
        if wire is not None and wire.family == socket.AF_UNIX:
            self._gathering = Gathering(UNIX_LONG_S, UNIX_FULL_PACKETS)
            if wire.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < UNIX_SEND_BYTES:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BYTES)
        elif wire is not None:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._transport_bytes is not None and sys.platform == "linux":
                wire.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, self._transport_bytes)
        if self._transport_bytes is not None:
            self._transport.set_write_buffer_limits(high=self._transport_bytes, low=self._transport_bytes // 4)
        self.owner.on_open(self)

    def data_received(self, data: bytes) -> None:
        """Hand all complete packets of one read to the owner as one list."""
        if self._is_ending:
            return
        self.received_at = now = self._loop.time()
        counters = self.counters
        counters.reads += 1
        counters.bytes_in += len(data)
        found, offsets = self.splitter.feed(data)
        pause_s = self._gathering.pause_s(now, len(data), len(offsets))
        if pause_s:
            self._pause_briefly(pause_s)
        handling = self._handling
        handling.is_under_way = True
        handling.is_lone = len(offsets) == 1
        try:
            if offsets:
                self.owner.on_packets(found, offsets)
            if self.splitter.refusal is not None:
                raise self.splitter.refusal
        except Refusal as refusal:
            self.refuse(refusal)
        finally:
            handling.is_under_way = handling.is_lone = False
            if handling.written:
                written, handling.written = handling.written, []
                for connection in written:
                    connection._flush()  # noqa: SLF001 - a connection like this one

    def _pause_briefly(self, pause_s: float) -> None:
        """Let the kernel gather data for a short time, and take it in one read (see `gathering`)."""
        assert self._transport is not None, "data came over it"
        self._transport.pause_reading()
        self._loop.call_later(pause_s, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Close a half-open connection, because it is of no use here."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the owner of the end. No other place does."""
        for timer in self._timers:
            timer.cancel()
        self._transport = None
        self.is_open = False
        self._out.clear()
        if not self._is_ending:
            self._is_ending = True
            why = f": {reason(error)}" if error else ""
            self._end = Unavailable(f"the peer closed the connection{why}.")
        self.owner.on_lost(self._end)

    def pause_writing(self) -> None:
        """Note that the transport holds more than its limit."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Note that the transport has capacity again."""
        self.is_writable = True
        self.owner.on_writable()

    # Methods for owners.

    @property
    def peer_certificate(self) -> dict[str, object] | None:
        """The peer's certificate in the form of `ssl`, if TLS requested one."""
        return self._transport.get_extra_info("peercert") if self._transport else None

    @property
    def peer_address(self) -> str:
        """Host and port of the peer, for logs."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "an unnamed peer"

    @property
    def has_unread(self) -> bool:
        """Return whether the kernel holds data from the peer that nobody has read yet."""
        # While the connection closes, its descriptor number may already belong to another socket.
        if self._transport is None or self._fileno < 0 or self._transport.is_closing():
            return False
        return fcntl.ioctl(self._fileno, termios.FIONREAD, _NO_BYTES) != _NO_BYTES

    def know_window(self, window: int) -> None:
        """Note how many unacknowledged publications the peer accepts. A wide window makes acks less urgent."""
        self._gathering.know_window(window)

    def waiting_bytes(self) -> int:
        """Count the written bytes that have not reached the kernel."""
        return self._out_bytes + (self._transport.get_write_buffer_size() if self._transport else 0)

    def write(self, data: bytes | bytearray) -> None:
        """Queue bytes for the peer, in order. They leave after the current read or at the end of the loop's turn."""
        if self._is_ending or not data:
            return
        if not self._out:
            if self._handling.is_lone and self._write_at_once(data):
                return
            if self._handling.is_under_way:
                self._handling.written.append(self)
            else:
                self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)

    def _write_at_once(self, data: bytes | bytearray) -> bool:
        """Hand a few bytes to the kernel, if it accepts them all and nothing waits before them. Return whether it did.

        The transport itself would do so only after everything that is ready has been handled. The receiving process
        wakes earlier by the time of the accounting that follows here: over three hops, a lone message takes 5 to 10 %
        less (`hanse bench bridge`, latency).
        """
        transport = self._transport
        if not self._is_plain or transport is None or len(data) > JOIN_BYTES_MAX:
            return False
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        try:
            sent = os.write(self._fileno, data)
        except OSError:
            return False  # full or broken: the transport will find out
        if sent < len(data):
            transport.write(data[sent:])
        self.sent_at = self._loop.time()
        self.counters.writes += 1
        self.counters.bytes_out += len(data)
        return True

    def flush(self) -> None:
        """Write without waiting for the end of the loop's turn. Within a read, all leaves together at its end."""
        if not self._handling.is_under_way:
            self._flush()

    def _flush(self) -> None:
        """Hand everything written since the last flush to the transport, in one call."""
        if not self._out:
            return
        out, size = self._out, self._out_bytes
        self._out = []
        self._out_bytes = 0
        if self._transport is None:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        elif size < JOIN_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        self.sent_at = self._loop.time()
        self.counters.writes += 1
        self.counters.bytes_out += size

    def keep_alive(self, interval_s: float, *, pings: bool) -> None:
        """Ping (client side), and give the peer up if it stays silent."""
        if interval_s > 0:
            self._keep_alive = KeepAlive(interval_s, self._loop.time(), pings=pings)
            self._check_alive()

    def _check_alive(self) -> None:
        assert self._keep_alive is not None
        if self._is_ending:
            return
        verdict = self._keep_alive.check(self._loop.time(), self.received_at, self.sent_at)
        if verdict == "ping":
            self.write(codec.PING)
        elif verdict == "dead":
            interval_s = self._keep_alive.interval_s
            self.refuse(Refusal(KEEP_ALIVE_TIMEOUT, f"nothing came within the keep-alive of {interval_s} s."))
            return
        self.after(self._keep_alive.check_every_s, self._check_alive)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function later, unless the connection has ended by then."""
        self._timers = [timer for timer in self._timers if timer.when() > self._loop.time() and not timer.cancelled()]
        self._timers.append(self._loop.call_later(seconds, call))

    def refuse(self, refusal: Refusal) -> None:
        """End the connection because of the peer: count it, send its reason code, and report it to the owner."""
        if self._is_ending:
            return
        self.counters.refuse(refusal.counted_as)
        last = disconnect_packet(refusal.reason_code, str(refusal)) if self.says_disconnect else b""
        self.end(refusal, last)

    def close(self, reason_code: int = NORMAL, reason: str | None = None, server_reference: str | None = None) -> None:
        """End the connection on purpose."""
        last = disconnect_packet(reason_code, reason, server_reference) if self.says_disconnect else b""
        self.end(None, last)

    def end(self, error: HanseError | None, last: bytes) -> None:
        """Write everything pending and then `last`, and close. Cut the connection if it does not drain."""
        if self._is_ending:
            return
        self.write(last)
        self._flush()
        self._is_ending = True
        self.is_open = False
        self._end = error
        if self._transport is not None:
            self._transport.close()
            self._timers.append(self._loop.call_later(CLOSE_DEADLINE_S, self._transport.abort))

    def abort(self, error: HanseError | None = None) -> None:
        """Cut the connection, as a crash would."""
        if not self._is_ending:
            self._is_ending = True
            self.is_open = False
            self._end = error
        if self._transport is not None:
            self._transport.abort()
