"""Both directions of PUBLISH over one stream of packets. Still no sockets: packets in, bytes out by `write`.

Rules: what one read brought is handled in its order and handed on as one list; what was good before a fault is
handed on before the fault is raised; a packet that this side may not receive is a protocol error.
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

# What each side may receive once connected (MQTT 5, table 2-1).
BY_CLIENT: Final = frozenset({codec.SUBACK, codec.UNSUBACK, codec.PINGRESP, codec.DISCONNECT, codec.AUTH})
BY_SERVER: Final = frozenset({codec.SUBSCRIBE, codec.UNSUBSCRIBE, codec.PINGREQ, codec.DISCONNECT, codec.AUTH})

FORGIVEN: Final = {QUOTA_EXCEEDED: "properties"}
FORGIVEN_OLDER: Final = {TOPIC_NAME_INVALID: "topic_name"}

# First bytes of PUBACK, PUBREC, PUBREL and PUBCOMP.
_ANSWERS: Final = frozenset({0x40, 0x50, 0x62, 0x70})


class Exchange:
    """One session's PUBLISH traffic; it outlives connections.

    Args:
        others: the packet types besides PUBLISH and its answers that this side takes: BY_CLIENT or BY_SERVER.
        on_publications: one read's publications, new to the caller.
        on_acknowledged: numbers (see `Sending.publish_run`) that the peer has acknowledged.
        on_refused: numbers that the peer refused, or that could not be sent, with the reason code.
        on_other: every other packet, decoded, in its place among the publications.
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
        auto_ack: bool = False,
    ) -> None:
        self.sending = sending
        self.receiving = receiving
        self._counters = counters
        self._own_reader = Reader()
        self._reader = self._own_reader
        self._decode: Callable[[bytes], Packet] = codec.decode
        # Refusals that cost a publication, not the connection, and the name under which it counts.
        self._forgiven: Mapping[int, str] = FORGIVEN
        self._others = others
        self._on_publications = on_publications
        self._on_acknowledged = on_acknowledged
        self._on_refused = on_refused
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
        """A connection is there, with what the peer said it takes; `older` reads it where it speaks 3.1.1."""
        self._write = write
        self._reader = self._own_reader if older is None else older.reader
        self._decode = codec.decode if older is None else older.decode
        self._forgiven = FORGIVEN if older is None else FORGIVEN_OLDER
        self._reader.forget_aliases()
        # A broker without QoS 2 (RabbitMQ, NATS) does not keep packet identifiers from one connection to the next:
        # what we hold of it comes again under others, and an answer to an old one would answer for a new one.
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
        """The connection is gone."""
        self._write = None
        self.sending.detach()
        self.receiving.detach()

    def ack(self, receipts: Iterable[int]) -> None:
        """Acknowledge publications by their receipts. Without a connection: when the peer sends them again."""
        answer = self.receiving.ack(receipts)
        if answer and self._write is not None:
            self._write(answer)

    def settle(self) -> None:
        """Tell the outcomes that did not need the peer."""
        outcomes = self.sending.take_outcomes()
        if done := [number for number, code in outcomes if not code]:
            self._on_acknowledged(done)
        if refused := [pair for pair in outcomes if pair[1]]:
            self._on_refused(refused)

    def receive(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """One read's packets.

        Raises:
            Refusal: the peer broke a rule; what came before was handed on.
        """
        count = len(offsets)
        self._counters.packets_in += count
        found: list[Publication] = []
        k = 0
        if data[offsets[0][0]] & 0xF0 == PUBLISH:
            k = self._reader.read_from(data, offsets, 0, self.receiving.receipt_base, found)
            if k == count:
                # Ordinary publications and nothing else: a lone one is read and through here in 2.1 us, against 3.0 us.
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
                # Without a reason, as nearly all are: no codec (1.3 us with its guard, against 0.3 us).
                packet_id = data[start + 2] << 8 | data[start + 3]
                if not packet_id:
                    raise protocol_error(f"a packet of type {head >> 4} has packet identifier 0")
                self._answer(head >> 4, packet_id, turn)
            else:
                self._one(self._decode(data[start:end]), head >> 4, turn)

    def _sort_acknowledgements(self, data: bytes, offsets: Sequence[tuple[int, int]], turn: "_Turn") -> int:
        """A read that is PUBACKs and nothing else, as a publisher gets them: 0.06 us each. How many: all or none."""
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
        """An answer of the peer's to a PUBLISH, or its PUBREL."""
        if kind == codec.PUBACK:
            turn.acknowledged.append(packet_id)
        elif kind == codec.PUBREC:
            turn.received.append(packet_id)
        elif kind == codec.PUBCOMP:
            turn.completed.append(packet_id)
        else:
            # A double in this same read comes before its release, a new publication with that identifier after it.
            self._admit(turn)
            turn.answers.append(self.receiving.release((packet_id,)))

    def _read_one(self, data: bytes, start: int, end: int, turn: "_Turn") -> None:
        try:
            turn.publications.append(self._reader.read(data, start, end, self.receiving.receipt_base))
        except Refusal as refusal:
            if refusal.reason_code not in self._forgiven:
                raise
            # Ours to refuse, not the peer's fault: a broker must pass such a publication on, and would again.
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
            self._answer(kind, packet.packet_id, turn)
        elif kind in self._others:
            self._admit(turn)
            self._deliver(turn)
            if kind == codec.PINGREQ:
                turn.answers.append(codec.PONG)
            else:
                self._on_other(packet)
        else:
            raise protocol_error(f"a packet of type {kind} may not come here, or not again")

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
        """Answers of the peer's to what we sent, and ours that are due at once."""
        done = self.sending.acknowledge(turn.acknowledged) if turn.acknowledged else []
        if turn.completed:
            done += self.sending.complete(turn.completed)
        if turn.received:
            turn.answers.append(self.sending.received(turn.received))
        if self._write is not None and (answers := b"".join(turn.answers)):
            self._write(answers)
        if done:
            self._on_acknowledged(done)
        if turn.refused:
            self._on_refused(turn.refused)
        if done or turn.refused:
            self.sending.proceed()


class _Turn:
    """What one read amounts to."""

    __slots__ = ("acknowledged", "answers", "completed", "fresh", "publications", "received", "refused")

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self.fresh: list[Publication] = []
        self.acknowledged: list[int] = []
        self.received: list[int] = []
        self.completed: list[int] = []
        self.refused: list[tuple[int, int]] = []
        self.answers: list[bytes] = []
