"""A byte stream split into MQTT packets.

Rules:

- The length of a packet is checked when its header is known, before any of it is kept.
- Bytes of an incomplete packet are kept as the pieces that arrived, and joined once. A packet of 16 MiB in pieces of 1
  KiB then costs 16 MiB of copying, not 128 GiB.
- Complete packets before a fault are handed out before the fault is.
"""

from collections.abc import Iterator, Sequence
from typing import Final, overload

from hanse.mqtt.limits import CONNECT_BYTES_MAX
from hanse.mqtt.refusal import PACKET_TOO_LARGE, Refusal, malformed, protocol_error

# Fewer packets of one size are found as fast one by one.
ROW_MIN: Final = 8


def row_of(data: bytes) -> int:
    """Return how many whole packets `data` holds if all have one size below 130 bytes, otherwise 0. Few also give 0.

    Packets of one stream mostly have one size. One call then compares all their length bytes: 0.002 us per packet
    instead of 0.14 us.
    """
    if len(data) < 2:
        return 0
    stride = data[1] + 2
    count = len(data) // stride
    if stride < 130 and count >= ROW_MIN and data[1 : count * stride : stride] == data[1:2] * count:
        return count
    return 0


class Row(Sequence[tuple[int, int]]):
    """Start and end of each packet of a row, computed on demand because hardly any caller needs them."""

    __slots__ = ("_count", "stride")

    def __init__(self, count: int, stride: int) -> None:
        self._count = count
        self.stride = stride

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        end = self._count * self.stride
        return zip(range(0, end, self.stride), range(self.stride, end + 1, self.stride), strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(self._count))]
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(f"there are {self._count} packets, and none is number {index}")
        start = index * self.stride
        return start, start + self.stride


class Splitter:
    """Splitter of one connection's bytes.

    Args:
        packet_bytes_max: longest accepted packet, header included.
        first_kind: packet type that must come first: CONNECT at a server, CONNACK at a client. The first byte
            decides, so a peer of another protocol does not keep this side waiting. None: any type.
        first_bytes_max: longest accepted first packet. It is lower because the peer is not known yet.
    """

    __slots__ = (
        "_first_bytes_max",
        "_first_kind",
        "_have",
        "_is_between",
        "_need",
        "_pieces",
        "packet_bytes_max",
        "refusal",
    )

    def __init__(
        self, packet_bytes_max: int, *, first_kind: int | None = None, first_bytes_max: int = CONNECT_BYTES_MAX
    ) -> None:
        self.packet_bytes_max = packet_bytes_max
        # Set when the stream cannot be read any further. The packets that `feed` returned with it are valid.
        self.refusal: Refusal | None = None
        self._first_kind = first_kind
        self._first_bytes_max = first_bytes_max
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = 0
        # Whether the next byte begins a packet, and a packet of any type may come.
        self._is_between = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes kept for an incomplete packet."""
        return self._have

    def feed(self, data: bytes) -> tuple[bytes, Sequence[tuple[int, int]]]:
        """Return all complete packets: a buffer, and the start and end of each packet in it."""
        size = len(data)
        # One packet below 16 KiB, as in a quiet stream: 0.3 us instead of 1.6 us.
        if self._is_between and 1 < size <= self.packet_bytes_max:
            length = data[1]
            if length == size - 2 < 128:
                return data, [(0, size)]
            if length > 127 and size > 130 and 0 < data[2] < 128 and (length & 0x7F | data[2] << 7) == size - 3:
                return data, [(0, size)]
        found = self._feed(data)
        self._is_between = self._is_at_start()
        return found

    def _is_at_start(self) -> bool:
        return not self._pieces and self._first_kind is None and self.refusal is None

    def _feed(self, data: bytes) -> tuple[bytes, Sequence[tuple[int, int]]]:
        if self.refusal is not None or not data:
            return b"", []
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return b"", []
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._have = 0
        try:
            return data, self._split(data)
        except Refusal as refusal:  # only for the first packet, so no packet waits before it
            self.refusal = refusal
            return b"", []

    def _split(self, data: bytes) -> Sequence[tuple[int, int]]:
        # Measured with 64-byte payloads, 1,000 packets per read: 0.14 us per packet on the project's two-core machine.
        found: list[tuple[int, int]] = []
        size = len(data)
        largest = self.packet_bytes_max
        if self._first_kind is not None:
            if data[0] >> 4 != self._first_kind:
                names = {1: "CONNECT", 2: "CONNACK"}
                kind = f"{names.get(self._first_kind, 'another')} (type {self._first_kind})"
                raise protocol_error(f"the first packet has type {data[0] >> 4}; {kind} was expected")
            largest = min(largest, self._first_bytes_max)
        i = 0
        need = 2
        if self._first_kind is None and (count := row_of(data)) and data[1] + 2 <= largest:
            row = Row(count, data[1] + 2)
            i = row[-1][1]
            if i == size:
                return row
            found.extend(row)
        append = found.append
        while i + 2 <= size:
            length = data[i + 1]
            if length < 128:
                end = i + 2 + length
            elif i + 2 < size and 0 < data[i + 2] < 128:
                end = i + 3 + (length & 0x7F | data[i + 2] << 7)
            else:
                end = self._long_end(data, i, size)
                if end <= 0:  # the header itself is incomplete or malformed
                    need = 1 - end
                    break
            if end - i > largest:
                self.refusal = Refusal(
                    PACKET_TOO_LARGE, f"a packet of {end - i} bytes was announced; at most {largest} are accepted here"
                )
                break
            if end > size:
                need = end - i
                break
            append((i, end))
            i = end
            if self._first_kind is not None:
                self._first_kind = None
                largest = self.packet_bytes_max
        if i < size and self.refusal is None:
            rest = data[i:] if i else data
            self._pieces.append(rest)
            self._have = len(rest)
            self._need = need
        return found

    def _long_end(self, data: bytes, start: int, size: int) -> int:
        """Return the end of a packet whose length takes two to four bytes; minus the header bytes here if cut off."""
        length = shift = 0
        for i in range(start + 1, min(start + 5, size)):
            byte = data[i]
            length |= (byte & 0x7F) << shift
            if byte < 128:
                if byte == 0:
                    self.refusal = malformed("a remaining length is longer than it needs to be")
                    return 0
                return i + 1 + length
            shift += 7
        if size - start >= 5:
            self.refusal = malformed("a remaining length has five bytes or more; MQTT 5 allows four")
            return 0
        return start - size
