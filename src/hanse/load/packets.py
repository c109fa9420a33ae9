"""Packets of the load generator, encoded once and stamped many times, and read without decoding.

Pure. A payload begins with a stamp: run, publisher, number, send time in ns. Rules that make it fast:

1. A block holds many PUBLISH packets. Only numbers, times and packet ids are written for each message (about 0.2 us).
2. Consecutive packets of one shape (same length, same topic length, same properties length) are found by comparing
   columns of the buffer, and unpacked in one call. No Python code runs per packet except the unpacking.
3. Acknowledgements for such a row are written by columns as well.
"""

import struct
from dataclasses import dataclass, field

from hanse.errors import RemoteError

# run, publisher, number, send time
_STAMP = struct.Struct(">IIQQ")
_NUMBER_AND_TIME = struct.Struct(">QQ")
_PACKET_ID = struct.Struct(">H")
STAMP_BYTES = _STAMP.size
PACKET_IDS = 65_535
# A block of this many messages costs one system call. Beyond this many bytes, the call copies for too long.
BLOCK_MESSAGES_MAX = 256
BLOCK_BYTES_MAX = 256 * 1024
# A shorter row is not worth a comparison.
_ROW_MIN = 4

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


def filler(size_bytes: int) -> bytes:
    """Return the bytes behind the stamp of a payload: a pattern that reveals a shifted or cut payload."""
    return (bytes(range(1, 252)) * (size_bytes // 251 + 1))[: size_bytes - STAMP_BYTES]


def variable_length(value: int) -> bytes:
    """Return MQTT's variable byte integer (section 1.5.5)."""
    encoded = bytearray()
    while True:
        value, byte = divmod(value, 128)
        encoded.append(byte | 0x80 if value else byte)
        if not value:
            return bytes(encoded)


class Block:
    """Row of PUBLISH packets, ready to be stamped and sent."""

    def __init__(self, run: int, publisher: int, topics: list[str], size_bytes: int, qos: int) -> None:
        """Use the topics in turn. The row is a multiple of their number, or one turn if there are more topics."""
        self._qos = qos
        parts: list[bytes] = []
        self._stamps: list[int] = []
        self._packet_ids: list[int] = []
        self.ends: list[int] = []
        rest = filler(size_bytes)
        length = 0
        rounds = max(1, BLOCK_MESSAGES_MAX // len(topics))
        for topic in topics * rounds:
            encoded = topic.encode()
            head = struct.pack(">H", len(encoded)) + encoded
            body_bytes = len(head) + (2 if qos else 0) + 1 + size_bytes
            fixed = bytes([0x30 | qos << 1]) + variable_length(body_bytes)
            if parts and length + len(fixed) + body_bytes > BLOCK_BYTES_MAX and len(self.ends) % len(topics) == 0:
                break
            self._packet_ids.append(length + len(fixed) + len(head))
            payload_at = self._packet_ids[-1] + (2 if qos else 0) + 1
            self._stamps.append(payload_at + 8)
            stamp = _STAMP.pack(run, publisher, 0, 0)
            parts += [fixed, head, b"\0\0" if qos else b"", b"\0", stamp, rest]
            length += len(fixed) + body_bytes
            self.ends.append(length)
        self.bytes = bytearray(b"".join(parts))
        self.messages = len(self.ends)
        self._at = 0

    def take(self, first: int, send_times_ns: list[int]) -> memoryview:
        """Stamp the messages `first`, `first` + 1, ... with these send times, and return their bytes.

        The number of messages is at most `room()`. The bytes are valid until the next call.
        """
        count = len(send_times_ns)
        at, buffer, stamps = self._at, self.bytes, self._stamps
        pack = _NUMBER_AND_TIME.pack_into
        for k in range(count):
            pack(buffer, stamps[at + k], first + k, send_times_ns[k])
        if self._qos:
            pack_id = _PACKET_ID.pack_into
            places = self._packet_ids
            for k in range(count):
                pack_id(buffer, places[at + k], (first + k) % PACKET_IDS + 1)
        start = self.ends[at - 1] if at else 0
        end = self.ends[at + count - 1]
        self._at = (at + count) % self.messages
        return memoryview(buffer)[start:end]

    def room(self) -> int:
        """Return how many messages fit before the row starts again."""
        return self.messages - self._at


@dataclass(slots=True)
class Row:
    """Consecutive PUBLISH packets of one shape."""

    records: list[tuple[int, int, int, int]]
    payload_bytes: int
    corrupted: int = 0


@dataclass(slots=True)
class Arrivals:
    """Contents of one read."""

    rows: list[Row] = field(default_factory=list)
    answers: bytearray = field(default_factory=bytearray)
    acknowledged: int = 0
    refused: int = 0
    subscribed: bytes | None = None
    connected: bytes | None = None
    disconnect_reason: int | None = None


class Reader:
    """Parser of one connection's bytes. It keeps an incomplete packet for the next read."""

    def __init__(self, size_bytes: int, *, verify: bool = False) -> None:
        """Expect payloads of `size_bytes`. With `verify`, compare all their bytes."""
        self._rest = b""
        self._size_bytes = size_bytes
        self._filler = filler(size_bytes) if verify else None
        self._structs: dict[tuple[int, int], struct.Struct] = {}

    def feed(self, chunk: bytes) -> Arrivals:
        """Parse the next bytes.

        Raises:
            RemoteError: the bytes are not MQTT.
        """
        buffer = self._rest + chunk if self._rest else chunk
        arrivals = Arrivals()
        at, end = 0, len(buffer)
        while end - at >= 2:
            head, length = _fixed_header(buffer, at, end)
            size = head + length
            if not head or at + size > end:
                break
            kind = buffer[at] & 0xF0
            if kind == 0x30:
                at = self._row(buffer, at, head, size, arrivals)
            elif kind in {PUBACK, PUBREC, PUBREL & 0xF0, PUBCOMP}:
                at = _acknowledgements(buffer, at, head, size, arrivals)
            else:
                _control(buffer, at, head, size, arrivals)
                at += size
        self._rest = buffer[at:]
        return arrivals

    def _row(self, buffer: bytes, at: int, head: int, size: int, arrivals: Arrivals) -> int:
        qos = buffer[at] >> 1 & 3
        id_at = head + 2 + (buffer[at + head] << 8 | buffer[at + head + 1])
        properties_at = id_at + (2 if qos else 0)
        if properties_at >= size:
            raise RemoteError("The broker sent a PUBLISH whose topic is longer than the packet.")
        properties, properties_bytes = 0, 0
        while True:
            byte = buffer[at + properties_at + properties_bytes]
            properties |= (byte & 0x7F) << 7 * properties_bytes
            properties_bytes += 1
            if byte < 0x80 or properties_bytes == 4:
                break
        payload_at = properties_at + properties_bytes + properties
        payload_bytes = size - payload_at
        count = 1
        if properties_bytes == 1 and (available := (len(buffer) - at) // size) >= _ROW_MIN:
            columns = (*range(head), head, head + 1, properties_at)
            count = _same(buffer, at, size, available, columns)
        stop = at + count * size
        row = Row([], payload_bytes)
        if payload_bytes < STAMP_BYTES:
            row.corrupted = count
        else:
            if payload_bytes != self._size_bytes:
                row.corrupted = count
            elif self._filler is not None:
                first = at + payload_at + STAMP_BYTES
                row.corrupted = sum(
                    buffer[place : place + len(self._filler)] != self._filler for place in range(first, stop, size)
                )
            shape = self._structs.get((payload_at, size))
            if shape is None:
                after = size - payload_at - STAMP_BYTES
                shape = struct.Struct(f">{payload_at}xIIQQ{after}x")
                if len(self._structs) < 1_000:
                    self._structs[payload_at, size] = shape
            row.records = list(shape.iter_unpack(memoryview(buffer)[at:stop]))
        arrivals.rows.append(row)
        if qos:
            answer = bytearray(bytes([PUBACK if qos == 1 else PUBREC, 2, 0, 0]) * count)
            answer[2::4] = buffer[at + id_at : stop : size]
            answer[3::4] = buffer[at + id_at + 1 : stop : size]
            arrivals.answers += answer
        return stop


def _fixed_header(buffer: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the bytes of the fixed header, 0 while it is incomplete, and the remaining length (section 2.1.4)."""
    byte = buffer[at + 1]
    if byte < 0x80:
        return 2, byte
    length = byte & 0x7F
    for place in range(1, 4):
        if at + 1 + place >= end:
            return 0, 0
        byte = buffer[at + 1 + place]
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return 2 + place, length
    raise RemoteError("The broker sent a remaining length of more than four bytes: this is not MQTT.")


def _same(buffer: bytes, at: int, size: int, available: int, columns: tuple[int, ...]) -> int:
    """Return how many packets from `at` on surely have the same bytes in these columns (at least one).

    With equal headers, the second packet has the length of the first, so the third begins at the expected offset, and
    so on.
    """
    count = available
    for column in columns:
        first = buffer[at + column : at + column + 1]
        while count > 1 and buffer[at + column : at + count * size : size] != first * count:
            count //= 2
    return max(1, count)


def _acknowledgements(buffer: bytes, at: int, head: int, size: int, arrivals: Arrivals) -> int:
    kind = buffer[at]
    count = 1
    if size == 4:
        available = (len(buffer) - at) // 4
        count = _same(buffer, at, 4, available, (0, 1)) if available >= _ROW_MIN else 1
    reason = buffer[at + head + 2] if size - head > 2 else 0
    stop = at + count * size
    answer_kind = {PUBREC: PUBREL, PUBREL: PUBCOMP}.get(kind)
    if reason >= 0x80:
        # MQTT 5, section 4.3: a PUBREC with an error ends the exchange.
        arrivals.refused += count
        arrivals.acknowledged += count if kind in {PUBACK, PUBREC} else 0
        return stop
    if kind in {PUBACK, PUBCOMP}:
        arrivals.acknowledged += count
    elif answer_kind is not None:
        answer = bytearray(bytes([answer_kind, 2, 0, 0]) * count)
        answer[2::4] = buffer[at + head : stop : size]
        answer[3::4] = buffer[at + head + 1 : stop : size]
        arrivals.answers += answer
    return stop


def _control(buffer: bytes, at: int, head: int, size: int, arrivals: Arrivals) -> None:
    kind = buffer[at] & 0xF0
    packet = buffer[at : at + size]
    if kind == 0x20:
        arrivals.connected = packet
    elif kind == 0x90:
        arrivals.subscribed = packet
    elif kind == 0xE0:
        arrivals.disconnect_reason = packet[head] if size > head else 0
    elif kind != 0xD0:
        raise RemoteError(f"The broker sent a packet of type {kind >> 4}, which a client does not expect.")
