"""Link: one MQTT 5 connection between two federators, the same for the dialler and the listener.

After CONNECT and CONNACK both sides PUBLISH *frames* (a topic and opaque bytes) at QoS 1 of the link.

Rules:

- A link lasts as long as its connection. When it ends, the fate of unacknowledged frames is unknown. `on_closed` names
  them, and custody decides what to send again over which link.
- The caller acknowledges received frames (`ack`), in any order.
- Control overtakes data. It has its own queue, which is written first, and a part of the window that data may not use.
  At most `transport_bytes` of data lie in the transport in front of it.
- Both queues are bounded in bytes. Beyond the bound, `send` raises Unavailable, and `on_credit` reports when half of
  the data queue is free.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from mqtt5 import DisconnectPacket

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.mqtt import codec
from hanse.mqtt.connection import Connection
from hanse.mqtt.limits import (
    LINK_CONTROL_BYTES_MAX,
    LINK_CONTROL_WINDOW,
    LINK_DATA_BYTES_MAX,
    LINK_TRANSPORT_BYTES,
    LINK_WINDOW,
    PUBLISH_ID_MAX,
)
from hanse.mqtt.publication import HEADS, check_name, long_head
from hanse.mqtt.refusal import NORMAL, RECEIVE_MAX_EXCEEDED, Refusal, malformed, protocol_error

_AT_LEAST_ONCE: Final = 0x32
_AT_MOST_ONCE: Final = 0x30
# Cached topics of frames. A federator uses a handful.
_TOPICS_MAX: Final = 64
# Payloads up to this size are copied behind their header, because a second piece in a write costs more than the copy.
_SMALL_BYTES: Final = 1_024
_new: Final = tuple.__new__  # Frame(...) goes through keyword handling: 0.28 us instead of 0.12 us


class Frame(NamedTuple):
    """One PUBLISH of the link. `receipt` is the argument for `ack`, 0 if no acknowledgement is due.

    The payload lies in `data` between `start` and `end`. A frame of many large publications is most of a read, and the
    decoder copies only the parts that are kept.
    """

    topic: str
    data: bytes
    start: int
    end: int
    receipt: int

    @classmethod
    def of(cls, topic: str, payload: bytes, receipt: int = 0) -> "Frame":
        """Return a frame whose payload stands alone."""
        return cls(topic, payload, 0, len(payload), receipt)

    @property
    def payload(self) -> bytes:
        """Opaque bytes, copied on each access."""
        return self.data[self.start : self.end]


class LinkHandler:
    """Callbacks of a link. Override the ones of interest. None may block."""

    def on_link(self, link: "Link") -> None:
        """Handle a new link. `link.peer_id` and `link.peer` are the statements of the peer."""

    def on_frames(self, link: "Link", frames: list[Frame]) -> None:
        """Handle the frames of one read, in order. Acknowledge them with `link.ack`, now or later."""

    def on_acknowledged(self, link: "Link", numbers: list[int]) -> None:
        """Handle the acknowledgement of frames by the peer."""

    def on_credit(self, link: "Link") -> None:
        """Continue after `send` raised Unavailable: half of the data queue is free again."""

    def on_closed(self, link: "Link", error: HanseError | None, unacknowledged: list[int]) -> None:
        """Handle the end: its reason (None: in order), and the frames that the peer may or may not have received."""


class Link:
    """One connection to one neighbour after both sides have agreed. It is the owner of its `Connection`.

    Args:
        peer_id: the peer's MQTT client id (if it dialled), or the id in its CONNACK (if it listened).
        peer: user properties of the peer's CONNECT or CONNACK.
        is_dialled: whether this side dialled. The dialler also pings.
        receive_max: Receive Maximum of the peer.
        packet_bytes_max: Maximum Packet Size of the peer.
    """

    def __init__(
        self,
        handler: LinkHandler,
        peer_id: str,
        peer: Mapping[str, str],
        *,
        is_dialled: bool,
        keep_alive_s: float,
        receive_max: int,
        packet_bytes_max: int | None,
        window: int = LINK_WINDOW,
        data_bytes_max: int = LINK_DATA_BYTES_MAX,
        transport_bytes: int = LINK_TRANSPORT_BYTES,
    ) -> None:
        self.peer_id = peer_id
        self.peer = dict(peer)
        self.is_dialled = is_dialled
        self.goodbye: DisconnectPacket | None = None
        self._handler = handler
        self._keep_alive_s = keep_alive_s
        self._packet_bytes_max = sys.maxsize if packet_bytes_max is None else packet_bytes_max
        self._window = min(window, receive_max, PUBLISH_ID_MAX)
        self._data_window = max(1, self._window - LINK_CONTROL_WINDOW)
        self._data_bytes_max = data_bytes_max
        self._transport_bytes = transport_bytes
        self._connection: Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._control: deque[tuple[int, bytes, bytes]] = deque()  # number (0: QoS 0), topic with length, payload
        self._data: deque[tuple[int, bytes, bytes]] = deque()
        self._control_bytes = 0
        self._data_bytes = 0
        self._in_flight: dict[int, int] = {}  # packet identifier to number
        self._held: set[int] = set()  # receipts handed to the caller
        self._next_number = 1
        self._next_id = 1
        self._is_pumping = False
        self._is_starved = False
        self._names_out: dict[str, bytes] = {}
        self._names_in: dict[bytes, str] = {}

    # Methods for callers.

    @property
    def is_open(self) -> bool:
        """Return whether frames can still be sent."""
        return self._connection is not None and self._connection.is_open

    @property
    def has_unread(self) -> bool:
        """Return whether the peer has sent data that nobody has read yet."""
        return self._connection is not None and self._connection.has_unread

    @property
    def credit_bytes(self) -> int:
        """Bytes of data that may be queued now."""
        return max(0, self._data_bytes_max - self._data_bytes) if self.is_open else 0

    @property
    def queued_bytes(self) -> int:
        """Bytes of data that wait for the window or for the transport."""
        return self._data_bytes

    @property
    def unacknowledged(self) -> int:
        """Number of QoS 1 frames, sent or queued, that the peer has not acknowledged."""
        waiting = sum(1 for number, _, _ in (*self._control, *self._data) if number)
        return len(self._in_flight) + waiting

    @property
    def peer_address(self) -> str:
        """Host and port of the peer, for logs."""
        return self._connection.peer_address if self._connection else "a closed link"

    @property
    def peer_certificate(self) -> dict[str, object] | None:
        """The peer's certificate, if TLS requested one."""
        return self._connection.peer_certificate if self._connection else None

    def send(self, topic: str, payload: bytes, *, control: bool = False, qos: int = 1, body: bytes = b"") -> int:
        """Send one frame at the end of this turn of the loop, or as soon as window and transport allow.

        Args:
            topic: a plain name, passed to the peer's handler.
            payload: opaque bytes.
            control: whether the frame overtakes all data.
            qos: 1, or 0 for a frame whose loss with the link does not matter.
            body: bytes behind the payload, if they are so large that joining both should be avoided.

        Returns:
            The number by which `on_acknowledged` will name the frame; 0 at QoS 0.

        Raises:
            Unavailable: the link has ended, or its queue is full. The frame was not queued.
            LocalError: the peer does not accept a packet of this size.
        """
        name = self._names_out.get(topic) or self._name(topic)
        size = len(name) + len(payload) + len(body)
        if size + 8 > self._packet_bytes_max:
            raise LocalError(
                f"a frame of {size + 8} bytes exceeds the peer's limit of {self._packet_bytes_max}. Split it."
            )
        connection = self._connection
        if connection is None or not connection.is_open:
            raise Unavailable(f"the link to {self.peer_id} has ended; wait for the next one.")
        number = 0
        if (
            not self._data
            and not self._control
            and len(self._in_flight) < self._data_window
            and connection.is_writable
            and connection.waiting_bytes() < self._transport_bytes
        ):
            # Nothing waits, as on all links but one at its limits: no queue, and no turn of the loop to empty it.
            if qos:
                number = self._next_number
                self._next_number += 1
            self._write(connection, number, name, payload, body)
            return number
        if body:
            payload += body
        if control:
            if self._control_bytes and self._control_bytes + size > LINK_CONTROL_BYTES_MAX:
                self._refuse_full("control", self._control_bytes, LINK_CONTROL_BYTES_MAX)
        elif self._data_bytes and self._data_bytes + size > self._data_bytes_max:
            self._is_starved = True
            self._refuse_full("data", self._data_bytes, self._data_bytes_max)
        if qos:
            number = self._next_number
            self._next_number += 1
        if control:
            self._control.append((number, name, payload))
            self._control_bytes += size
        else:
            self._data.append((number, name, payload))
            self._data_bytes += size
        if not self._is_pumping:
            self._is_pumping = True
            self._loop.call_soon(self._pump)
        return number

    def ack(self, receipts: Iterable[int]) -> None:
        """Acknowledge frames, in any order. The peer then forgets them."""
        if self._connection is None:
            return
        answers: list[bytes] = []
        for receipt in receipts:
            if receipt in self._held:
                self._held.remove(receipt)
                answers.append(b"\x40\x02" + receipt.to_bytes(2))
            elif receipt:
                self._connection.counters.refuse("stale_receipt")
        self._connection.write(b"".join(answers))

    def close(self, reason_code: int = NORMAL, reason: str | None = None) -> None:
        """Send DISCONNECT and end. Queued frames are dropped and named in `on_closed`."""
        if self._connection is not None:
            self._connection.close(reason_code, reason)

    def abort(self) -> None:
        """Cut the connection, as a network would."""
        if self._connection is not None:
            self._connection.abort(Unavailable("the link was cut off on purpose."))

    # Callbacks of the connection.

    def on_open(self, connection: Connection) -> None:
        """Begin after both sides have agreed."""
        self._connection = connection
        connection.keep_alive(self._keep_alive_s, pings=self.is_dialled)
        self._handler.on_link(self)

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """Handle one read: frames, acknowledgements, pings."""
        assert self._connection is not None
        self._connection.counters.packets_in += len(offsets)
        frames: list[Frame] = []
        done: list[int] = []
        refusal: Refusal | None = None
        try:
            for start, end in offsets:
                head = data[start]
                if head in (_AT_MOST_ONCE, _AT_LEAST_ONCE):
                    frames.append(self._read(data, start, end))
                else:
                    self._answer(data[start:end], done)
        except Refusal as error:
            refusal = error
        if frames:
            self._connection.counters.publications_in += len(frames)
            self._handler.on_frames(self, frames)
        if done:
            self._connection.counters.acknowledged += len(done)
            self._handler.on_acknowledged(self, done)
            if self._control or self._data or self._is_starved:
                self._pump()
        if refusal is not None:
            raise refusal

    def on_lost(self, error: HanseError | None) -> None:
        """Name all unacknowledged frames, in order."""
        self._connection = None
        waiting = [number for number, _, _ in (*self._control, *self._data) if number]
        unacknowledged = sorted([*self._in_flight.values(), *waiting])
        self._control.clear()
        self._data.clear()
        self._in_flight.clear()
        self._held.clear()
        self._handler.on_closed(self, error, unacknowledged)

    def on_writable(self) -> None:
        """Send more, because the transport has capacity again."""
        self._pump()

    # Private parts.

    def _name(self, topic: str) -> bytes:
        try:
            check_name(topic)
        except Refusal as refusal:
            raise LocalError(f"{refusal}; a frame's topic is a plain name.") from None
        text = topic.encode()
        name = len(text).to_bytes(2) + text
        if len(self._names_out) < _TOPICS_MAX:
            self._names_out[topic] = name
        return name

    def _refuse_full(self, queue: str, queued_bytes: int, bytes_max: int) -> None:
        assert self._connection is not None
        self._connection.counters.refuse(f"link_{queue}_full")
        raise Unavailable(
            f"{queued_bytes} bytes of {queue} wait for {self.peer_id}; the limit is {bytes_max}. Wait for credit."
        )

    def _pump(self) -> None:
        """Write control, then data, as far as window and transport allow."""
        self._is_pumping = False
        connection = self._connection
        if connection is None or not connection.is_open:
            return
        while self._control and len(self._in_flight) < self._window:
            number, name, payload = self._control.popleft()
            self._control_bytes -= len(name) + len(payload)
            self._write(connection, number, name, payload)
        while (
            self._data
            and len(self._in_flight) < self._data_window
            and connection.is_writable
            and connection.waiting_bytes() < self._transport_bytes
        ):
            number, name, payload = self._data.popleft()
            self._data_bytes -= len(name) + len(payload)
            self._write(connection, number, name, payload)
        connection.flush()
        if self._data and connection.is_writable and len(self._in_flight) < self._data_window:
            # The transport is below the level at which it reports capacity, so look again after its next turn.
            self._is_pumping = True
            self._loop.call_soon(self._pump)
        if self._is_starved and self._data_bytes * 2 <= self._data_bytes_max:
            self._is_starved = False
            self._handler.on_credit(self)

    def _write(self, connection: Connection, number: int, name: bytes, payload: bytes, body: bytes = b"") -> None:
        if number:
            packet_id = self._next_id
            while packet_id in self._in_flight:
                packet_id = packet_id % PUBLISH_ID_MAX + 1
            self._next_id = packet_id % PUBLISH_ID_MAX + 1
            self._in_flight[packet_id] = number
            size = len(name) + 3 + len(payload) + len(body)
            front = (HEADS[2][size] if size < 128 else long_head(2, size)) + name + packet_id.to_bytes(2) + b"\0"
        else:
            size = len(name) + 1 + len(payload) + len(body)
            front = (HEADS[0][size] if size < 128 else long_head(0, size)) + name + b"\0"
        connection.counters.publications_out += 1
        if len(payload) <= _SMALL_BYTES:
            connection.write(front + payload)
        else:
            connection.write(front)
            connection.write(payload)
        if body:
            connection.write(body)

    def _read(self, data: bytes, start: int, end: int) -> Frame:
        i = start + 1
        while data[i] >= 128:
            i += 1
        i += 1
        stop = i + 2 + (data[i] << 8 | data[i + 1]) if i + 2 <= end else end
        is_sure = data[start] == _AT_LEAST_ONCE
        at = stop + 2 if is_sure else stop
        if at >= end:
            raise malformed("a frame ends before its properties")
        if data[at]:
            raise protocol_error("a frame has properties; links use none")
        name = data[i:stop]
        topic = self._names_in.get(name) or self._learn(name)
        receipt = 0
        if is_sure:
            receipt = data[stop] << 8 | data[stop + 1]
            if not receipt or receipt in self._held:
                raise protocol_error(f"packet identifier {receipt} is 0, or in use by a frame not yet acknowledged")
            self._held.add(receipt)
            if len(self._held) > LINK_WINDOW:
                raise Refusal(RECEIVE_MAX_EXCEEDED, f"more than {LINK_WINDOW} frames are unacknowledged")
        return _new(Frame, (topic, data, at + 1, end, receipt))

    def _learn(self, name: bytes) -> str:
        try:
            topic = name[2:].decode()
        except UnicodeDecodeError as error:
            raise malformed(f"a topic is not UTF-8: {error.reason} at byte {error.start}") from None
        check_name(topic)
        if len(self._names_in) < _TOPICS_MAX:
            self._names_in[name] = topic
        return topic

    def _answer(self, packet: bytes, done: list[int]) -> None:
        """Handle every packet except a frame."""
        assert self._connection is not None
        head = packet[0]
        if head == 0x40 and len(packet) == 4:
            number = self._in_flight.pop(packet[2] << 8 | packet[3], 0)
            if number:
                done.append(number)
            else:
                self._connection.counters.refuse("unknown_acknowledgement")
        elif packet == codec.PING and not self.is_dialled:
            self._connection.write(codec.PONG)
        elif packet == codec.PONG and self.is_dialled:
            pass
        elif head >> 4 == codec.DISCONNECT:
            goodbye = codec.decode(packet)
            assert isinstance(goodbye, DisconnectPacket)
            self.goodbye = goodbye
            self._connection.end(None if int(goodbye.reason_code) == NORMAL else _told(self.peer_id, goodbye), b"")
        else:
            raise protocol_error(f"a packet of type {head >> 4} (first byte {head:#04x}) is not allowed on a link")


def _told(peer_id: str, goodbye: DisconnectPacket) -> Unavailable:
    reason = goodbye.reason_str or goodbye.reason_code.name.lower().replace("_", " ")
    return Unavailable(f"{peer_id} ended the link: {reason}.")
