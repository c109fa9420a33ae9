"""Check of publications from neighbours before the host broker gets them.

A hop forwards bodies unread, and only the last hop knows what it is about to publish. A broker ends the session for one
packet that breaks a rule. At QoS 1 and 2, the packet would then be sent again after each reconnect, for ever.

Rules:

1. The host broker gets only canonical packets. Their topics may cross (R54), and every broker accepts them, as well as
   the texts in the properties: Mosquitto ends the session for a control character in any of them.
2. An invalid packet is dropped alone and counted by reason. The others of its run go on.
3. The common case costs next to nothing: a topic is checked once, and packets of one size and topic are compared as
   bytes. This takes 0.09 us per publication in runs of 64 of one size and topic, 0.8 us if they are mixed, 1.1 us for a
   single one, 7 us with properties, each of which is checked (CPU time, CPython 3.11, the project's two-core machine).
"""

from collections import Counter
from itertools import repeat

from hanse.errors import RemoteError
from hanse.mqtt.limits import REMEMBERED_BYTES_MAX, REMEMBERED_MAX
from hanse.mqtt.properties import BYTE, KINDS, PAIR, STRING, read_varint, walk
from hanse.mqtt.publication import Reader, is_portable
from hanse.mqtt.refusal import Refusal
from hanse.protocol.messages import Run
from hanse.protocol.packets import packet_end, split
from hanse.protocol.topics import check_name, may_cross

_FORMAT_INDICATOR = 0x01
_RESPONSE_TOPIC = 0x08


class Gate:
    """Gate of one host broker.

    Args:
        counters: counters of `gate_malformed`, `gate_closed_topic`, `gate_unportable`.
    """

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._reader = Reader(is_canonical=True)
        # Packet heads that were valid before, from the length of the topic to the empty length of the properties.
        self._good: set[bytes] = set()

    def admit(self, body: bytes, count: int) -> tuple[bytes, int]:
        """Return the part of a run that may be published at the host broker, and its number of publications.

        Args:
            body: whole PUBLISH packets of one QoS, as checked by `codec.decode_data`.
            count: their number.
        """
        size = len(body)
        at, stride = (2, body[1] + 2) if body[1] < 128 else packet_end(body, 0)
        # Packets of one size with the same beginning need only one check.
        if stride * count == size and at + 3 <= stride:
            stop = at + (body[at] << 8 | body[at + 1]) + (5 if body[0] & 0x06 else 3)
            if body[at:stop] in self._good and (
                count == 1 or all(map(body.startswith, repeat(body[:stop]), range(0, size, stride)))
            ):
                return body, count
        spans = split(body)
        bad = [span for span in spans if not self._is_good(body, *span)]
        if not bad:
            return body, count
        refused = set(bad)
        kept = [body[start:end] for start, end in spans if (start, end) not in refused]
        return b"".join(kept), len(kept)

    def admit_run(self, run: Run) -> Run:
        """Return a neighbour's run without the packets that no broker should get."""
        body, length = self.admit(run[7], run[3])
        return run if length == run[3] else run._replace(body=body, length=length)

    def _is_good(self, body: bytes, start: int, end: int) -> bool:
        at = start + 1
        while body[at] > 127:
            at += 1
        at += 1
        if at + 2 < end:
            stop = at + (body[at] << 8 | body[at + 1]) + (5 if body[start] & 0x06 else 3)
            if stop <= end and body[at:stop] in self._good:
                return True
        reason = self._judge(body, start, end)
        if reason is not None:
            self._counters[reason] += 1
            return False
        front = body[at:stop]
        if front[-1] == 0 and len(front) <= REMEMBERED_BYTES_MAX:
            if len(self._good) >= REMEMBERED_MAX:
                self._good.clear()
            self._good.add(front)
        return True

    def _judge(self, body: bytes, start: int, end: int) -> str | None:
        """Return the reason for which the packet is refused; None if it is valid."""
        try:
            publication = self._reader.read(body, start, end)
            check_name(publication.topic)
        except RemoteError:
            return "gate_malformed"
        if not may_cross(publication.topic):
            return "gate_closed_topic"
        if not is_portable(publication.topic):
            return "gate_unportable"
        return _judge_properties(publication.packet, len(publication.topic.encode()))


def _judge_properties(packet: bytes, topic_bytes: int) -> str | None:
    """Return the same for the properties of a canonical packet, which are well-formed here."""
    at = 1
    while packet[at] > 127:
        at += 1
    at += 3 + topic_bytes + (2 if packet[0] & 0x06 else 0)
    if not packet[at]:
        return None
    try:
        length, first = read_varint(packet, at, len(packet))
        for identifier, start, stop in walk(packet, first, first + length):
            kind = KINDS[identifier]
            if identifier == _FORMAT_INDICATOR and kind == BYTE and packet[start + 1] > 1:
                return "gate_malformed"  # MQTT 5, 3.3.2.3.2
            if kind not in (STRING, PAIR):
                continue
            texts = _texts(packet, start + 1, stop)
            if identifier == _RESPONSE_TOPIC and (not texts[0] or "+" in texts[0] or "#" in texts[0]):
                return "gate_malformed"  # 3.3.2.3.5
            if not all(map(is_portable, texts)):
                return "gate_unportable"
    except Refusal:
        return "gate_malformed"
    return None


def _texts(packet: bytes, start: int, stop: int) -> list[str]:
    found = []
    while start < stop:
        end = start + 2 + (packet[start] << 8 | packet[start + 1])
        found.append(packet[start + 2 : end].decode())
        start = end
    return found
