"""Splitter that leaves a PUBLISH beyond the limit out of the stream, instead of ending the connection.

It serves a session that cannot announce its limit to its peer. Mosquitto 2.0.11 logs each packet that it drops for a
Maximum Packet Size. If that log goes to the same session as a message (`log_dest topic`), it drops and logs for ever,
and dies. At such a host, this side must keep the limit.

Rules: of an omitted packet, only topic and identifier are kept, to count and acknowledge it. Every other packet beyond
the limit still ends the connection.
"""

from collections.abc import Callable, Sequence
from typing import Final

from hanse.mqtt.framing import Splitter
from hanse.mqtt.properties import read_varint
from hanse.mqtt.publication import PUBLISH
from hanse.mqtt.refusal import PACKET_TOO_LARGE

# Fixed header, the longest topic with its length, a packet identifier.
_FRONT_BYTES: Final = 5 + 2 + 65_535 + 2


class SkippingSplitter(Splitter):
    """Splitter that skips large publications. Arguments are those of `Splitter`, and one more.

    Args:
        on_skipped: called for each omitted PUBLISH with its QoS and its packet identifier (0 at QoS 0).
    """

    __slots__ = ("_front", "_on_skipped", "_to_skip")

    def __init__(
        self, packet_bytes_max: int, *, first_kind: int | None = None, on_skipped: Callable[[int, int], None]
    ) -> None:
        super().__init__(packet_bytes_max, first_kind=first_kind)
        self._on_skipped = on_skipped
        self._to_skip = 0
        self._front = bytearray()

    def _is_at_start(self) -> bool:
        return not self._to_skip and super()._is_at_start()

    def _feed(self, data: bytes) -> tuple[bytes, Sequence[tuple[int, int]]]:
        """Return all complete packets, except the omitted ones."""
        if self._to_skip:
            data = self._skip(data)
        found, offsets = super()._feed(data)
        if self.refusal is None or self.refusal.reason_code != PACKET_TOO_LARGE or not found:
            return found, offsets
        start = offsets[-1][1] if offsets else 0
        if found[start] & 0xF0 != PUBLISH:
            return found, offsets
        length, body = read_varint(found, start + 1, len(found))
        self.refusal = None
        self._to_skip = body - start + length
        rest = self._skip(found[start:])
        if not rest:
            return found, offsets
        more, more_offsets = self._feed(rest)
        return found[:start] + more, [*offsets, *[(start + one, start + other) for one, other in more_offsets]]

    def _skip(self, data: bytes) -> bytes:
        """Return the data behind the omitted packet."""
        if len(self._front) < _FRONT_BYTES:
            self._front += data[: min(self._to_skip, _FRONT_BYTES - len(self._front))]
        if len(data) < self._to_skip:
            self._to_skip -= len(data)
            return b""
        rest = data[self._to_skip :]
        self._to_skip = 0
        front, self._front = bytes(self._front), bytearray()
        qos = front[0] >> 1 & 3
        _, at = read_varint(front, 1, len(front))
        at += 2 + (front[at] << 8 | front[at + 1])
        self._on_skipped(qos, front[at] << 8 | front[at + 1] if qos and at + 2 <= len(front) else 0)
        return rest
