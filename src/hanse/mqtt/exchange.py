"""PUBLISH traffic of both directions over one stream of packets. No sockets: packets come in, `write` sends bytes.

Rules: the packets of one read are handled in order and handed on as one list. Valid packets before a fault are handed
on before the fault is raised. A packet that this side may not receive is a protocol error.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import byteorder
from typing import Final

from mqtt5 import Packet, PubAckPacket, PubCompPacket, PubRecPacket, PubRelPacket

from hanse.mqtt import codec
from hanse.mqtt.counters import Counters
from hanse.mqtt.framing import ROW_MIN
from hanse.mqtt.publication import PUBLISH, Publication, Reader
from hanse.mqtt.receiving import Receiving
from hanse.mqtt.refusal import QUOTA_EXCEEDED, TOPIC_NAME_INVALID, Refusal, protocol_error
from hanse.mqtt.sending import Sending
from hanse.mqtt.v311 import V311

# Packet types that each side may receive once connected (MQTT 5, table 2-1).
BY_CLIENT: Final = frozenset({codec.SUBACK, codec.UNSUBACK, codec.PINGRESP, codec.DISCONNECT, codec.AUTH})
BY_SERVER: Final = frozenset({codec.SUBSCRIBE, codec.UNSUBSCRIBE, codec.PINGREQ, codec.DISCONNECT, codec.AUTH})

FORGIVEN: Final = {QUOTA_EXCEEDED: "properties"}
FORGIVEN_OLDER: Final = {TOPIC_NAME_INVALID: "topic_name"}

# Reason code of a PUBACK: nobody subscribes to the topic (MQTT 5, 3.4.2.1).
NO_SUBSCRIBERS: Final = 0x10

# First bytes of PUBACK, PUBREC, PUBREL and PUBCOMP.
_ANSWERS: Final = frozenset({0x40, 0x50, 0x62, 0x70})


class Exchange:
    """PUBLISH traffic of one session. It outlives connections.

    Args:
        others: packet types besides PUBLISH and its acknowledgements that this side accepts: BY_CLIENT or BY_SERVER.
        on_publications: receives the publications of one read that are new to the caller.
        on_acknowledged: receives the numbers (see `Sending.publish_run`) that the peer has acknowledged.
        on_refused: receives the numbers that the peer refused, or that could not be sent, with the reason code.
        on_unmatched: receives number and topic of publications of QoS 1 that nobody at the peer subscribes to.
        on_other: receives every other packet, decoded, in order with the publications.
        auto_ack: acknowledge when `on_publications` has returned.
    """

    def __init__(
        self,
        counters: Counters,
        sending: Sending,
        receiving: Receiving,
        *,
        others: frozenset[int],
        on_publications: Callable[[list[Publication]], None],
        on_acknowledged: Callable[[list[int]], None],
        on_refused: Callable[[list[tuple[int, int]]], None],
        on_other: Callable[[Packet], None],
        on_unmatched: Callable[[list[tuple[int, str]]], None] | None = None,
        auto_ack: bool = False,
    ) -> None:
        self.sending = sending
        self.receiving = receiving
        self._counters = counters
        self._own_reader = Reader()
        self._reader = self._own_reader
        self._decode: Callable[[bytes], Packet] = codec.decode
        # Refusals that cost a publication, not the connection, and the counter of each.
        self._forgiven: Mapping[int, str] = FORGIVEN
        self._others = others
        self._on_publications = on_publications
        self._on_acknowledged = on_acknowledged
        self._on_refused = on_refused
        self._on_unmatched = on_unmatched
        self._on_other = on_other
        self._auto_ack = auto_ack
        self._write: Callable[[bytes | bytearray], None] | None = None

    def attach(
        self,
        write: Callable[[bytes | bytearray], None],
        waiting_bytes: Callable[[], int],
        *,
        session_present: bool,
        receive_max: int,
        packet_bytes_max: int | None,
        qos_max: int = 2,
        retain_available: bool = True,
        older: V311 | None = None,
    ) -> None:
        """Begin a connection with the limits of the peer. `older` translates if the peer speaks 3.1.1."""
        self._write = write
        self._reader = self._own_reader if older is None else older.reader
        self._decode = codec.decode if older is None else older.decode
        self._forgiven = FORGIVEN if older is None else FORGIVEN_OLDER
        self._reader.forget_aliases()
        # A broker without QoS 2 (RabbitMQ, NATS) does not keep packet identifiers over connections. It sends the
        # publications that we hold again under other identifiers, so an acknowledgement of an old one would hit a new
        # one.
        self.receiving.attach(session_present=session_present and (older is None or qos_max == 2))
        self.sending.attach(
            write,
            waiting_bytes,
            receive_max=receive_max,
            packet_bytes_max=packet_bytes_max,
            session_present=session_present,
            qos_max=qos_max,
            retain_available=retain_available,
        )
        self.settle()

    def detach(self) -> None:
        """Note that the connection is gone."""
        self._write = None
        self.sending.detach()
        self.receiving.detach()

    def ack(self, receipts: Iterable[int]) -> None:
        """Acknowledge publications by their receipts. Without a connection, wait until the peer sends them again."""
        answer = self.receiving.ack(receipts)
        if answer and self._write is not None:
            self._write(answer)

    def settle(self) -> None:
        """Report the outcomes that did not need the peer."""
        outcomes = self.sending.take_outcomes()
        if done := [number for number, code in outcomes if not code]:
            self._on_acknowledged(done)
        if refused := [pair for pair in outcomes if pair[1]]:
            self._on_refused(refused)

    def receive(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """Handle the packets of one read.

        Raises:
            Refusal: the peer broke a rule. The packets before that were handed on.
        """
        count = len(offsets)
        self._counters.packets_in += count
        found: list[Publication] = []
        k = 0
        if data[offsets[0][0]] & 0xF0 == PUBLISH:
            k = self._reader.read_from(data, offsets, 0, self.receiving.receipt_base, found)
            if k == count:
                # Only ordinary publications: parsing and this shortcut take 2.1 us for a lone one, otherwise 3.0 us.
                fresh, answers = self.receiving.admit(found)
                if fresh:
                    self._hand_over(fresh)
                if answers and self._write is not None:
                    self._write(answers)
                return
        turn = _Turn()
        turn.publications = found
        refusal: Refusal | None = None
        try:
            self._sort(data, offsets, turn, k)
        except Refusal as error:
            refusal = error
        try:
            self._admit(turn)
        except Refusal as error:
            refusal = refusal or error
        self._deliver(turn)
        self._conclude(turn)
        if refusal is not None:
            raise refusal

    def _sort(self, data: bytes, offsets: Sequence[tuple[int, int]], turn: "_Turn", k: int) -> None:
        count = len(offsets)
        if data[offsets[0][0]] == 0x40:
            k = self._sort_acknowledgements(data, offsets, turn)
        while k < count:
            start, end = offsets[k]
            head = data[start]
            if head & 0xF0 == PUBLISH:
                k = self._reader.read_from(data, offsets, k, self.receiving.receipt_base, turn.publications)
                if k < count and data[offsets[k][0]] & 0xF0 == PUBLISH:
                    self._read_one(data, *offsets[k], turn)
                    k += 1
                continue
            k += 1
            if end - start == 4 and head in _ANSWERS:
                # Without a reason code, as nearly all are: no codec (0.3 us instead of 1.3 us with the guard).
                packet_id = data[start + 2] << 8 | data[start + 3]
                if not packet_id:
                    raise protocol_error(f"a packet of type {head >> 4} has packet identifier 0")
                self._answer(head >> 4, packet_id, turn)
            else:
                self._one(self._decode(data[start:end]), head >> 4, turn)

    def _sort_acknowledgements(self, data: bytes, offsets: Sequence[tuple[int, int]], turn: "_Turn") -> int:
        """Handle a read that is only PUBACKs, as a publisher gets them: 0.06 us each. Return how many: all or none."""
        count = len(offsets)
        start, stop = offsets[0][0], offsets[-1][1]
        if count < ROW_MIN or stop - start != 4 * count or data[start:stop:4] != b"\x40" * count:
            return 0
        if data[start + 1 : stop : 4] != b"\x02" * count:
            return 0
        words = array("I", data[start:stop])
        if byteorder == "little":
            words.byteswap()
        packet_ids = [word & 0xFFFF for word in words]
        if 0 in packet_ids:
            return 0
        turn.acknowledged += packet_ids
        return count

    def _answer(self, kind: int, packet_id: int, turn: "_Turn") -> None:
        """Handle the peer's acknowledgement of a PUBLISH, or its PUBREL."""
        if kind == codec.PUBACK:
            turn.acknowledged.append(packet_id)
        elif kind == codec.PUBREC:
            turn.received.append(packet_id)
        elif kind == codec.PUBCOMP:
            turn.completed.append(packet_id)
        else:
            # A duplicate in this same read comes before its release, a new publication with that identifier after it.
            self._admit(turn)
            turn.answers.append(self.receiving.release((packet_id,)))

    def _read_one(self, data: bytes, start: int, end: int, turn: "_Turn") -> None:
        try:
            turn.publications.append(self._reader.read(data, start, end, self.receiving.receipt_base))
        except Refusal as refusal:
            if refusal.reason_code not in self._forgiven:
                raise
            # This side refuses, without a fault of the peer: a broker must forward such a publication, and would do so
            # again.
            self._counters.drop(self._forgiven[refusal.reason_code])
            qos = data[start] >> 1 & 3
            if qos:
                i = start + 1
                while data[i] >= 128:
                    i += 1
                at = i + 3 + (data[i + 1] << 8 | data[i + 2])
                turn.answers.append(
                    self.receiving.reject(data[at] << 8 | data[at + 1], qos, refusal.reason_code),
                )

    def _one(self, packet: Packet, kind: int, turn: "_Turn") -> None:
        if isinstance(packet, PubAckPacket | PubRecPacket) and int(packet.reason_code) >= 0x80:
            number = self.sending.refuse(packet.packet_id, qos=1 if kind == codec.PUBACK else 2)
            if number:
                turn.refused.append((number, int(packet.reason_code)))
        elif isinstance(packet, PubAckPacket | PubRecPacket | PubRelPacket | PubCompPacket):
            if (
                isinstance(packet, PubAckPacket)
                and self._on_unmatched is not None
                and int(packet.reason_code) == NO_SUBSCRIBERS
            ):
                turn.unmatched += self.sending.in_flight_of(packet.packet_id)
            self._answer(kind, packet.packet_id, turn)
        elif kind in self._others:
            self._admit(turn)
            self._deliver(turn)
            if kind == codec.PINGREQ:
                turn.answers.append(codec.PONG)
            else:
                self._on_other(packet)
        else:
            raise protocol_error(f"a packet of type {kind} is not allowed here, or not again")

    def _admit(self, turn: "_Turn") -> None:
        if turn.publications:
            publications, turn.publications = turn.publications, []
            fresh, answers = self.receiving.admit(publications)
            turn.fresh.extend(fresh)
            turn.answers.append(answers)

    def _deliver(self, turn: "_Turn") -> None:
        if turn.fresh:
            fresh, turn.fresh = turn.fresh, []
            self._hand_over(fresh)

    def _hand_over(self, fresh: list[Publication]) -> None:
        self._counters.publications_in += len(fresh)
        self._on_publications(fresh)
        if self._auto_ack:
            self.ack([publication[5] for publication in fresh if publication[5]])

    def _conclude(self, turn: "_Turn") -> None:
        """Handle the peer's acknowledgements of our publications, and send those that are due at once."""
        done = self.sending.acknowledge(turn.acknowledged) if turn.acknowledged else []
        if turn.completed:
            done += self.sending.complete(turn.completed)
        if turn.received:
            turn.answers.append(self.sending.received(turn.received))
        if self._write is not None and (answers := b"".join(turn.answers)):
            self._write(answers)
        if turn.unmatched and self._on_unmatched is not None:
            self._on_unmatched(turn.unmatched)
        if done:
            self._on_acknowledged(done)
        if turn.refused:
            self._on_refused(turn.refused)
        if done or turn.refused:
            self.sending.proceed()


class _Turn:
    """Results of one read."""

    __slots__ = ("acknowledged", "answers", "completed", "fresh", "publications", "received", "refused", "unmatched")

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self.fresh: list[Publication] = []
        self.acknowledged: list[int] = []
        self.received: list[int] = []
        self.completed: list[int] = []
        self.refused: list[tuple[int, int]] = []
        self.unmatched: list[tuple[int, str]] = []
        self.answers: list[bytes] = []
