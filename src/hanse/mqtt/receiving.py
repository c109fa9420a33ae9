"""The other direction of a session: publications from the peer, until this side has acknowledged them.

Rules:

- The caller acknowledges (`ack`), because custody acknowledges upstream only after downstream did. At QoS 1 the PUBACK
  is withheld, at QoS 2 the PUBREC. PUBREL and PUBCOMP then follow without the caller.
- If the peer sends a publication again after a reconnect while the caller still holds it, the caller does not get it a
  second time. The later `ack` acknowledges both.
- At QoS 2, a publication whose identifier was PUBRECed and not yet released is a duplicate: it is acknowledged again
  and dropped (4.3.3). The exception is a different publication under that identifier. A broker that was killed comes
  back with its last saved state, has forgotten the old publication, and gives its identifier to the next. Treated as a
  duplicate, the new publication would be lost. A PUBREC for a new one of QoS 1 would end the connection, every time.
  The `ack` of the old publication then sends nothing.
- A *receipt* names the session as well as the packet identifier. An `ack` that comes after the session was lost cannot
  acknowledge another publication with the same identifier.
- The peer may have `receive_max` publications outstanding. One more ends the connection (3.3.4), unless `tolerated`
  allows it: Mosquitto 2.0.11 sends some more if it gets acknowledgements out of order (65,539 were seen for 65,534).
- At QoS 1, a publication without DUP under an identifier that is held is *another* publication. It is handed over and
  acknowledged by itself. MQTT forbids such reuse (2.2.1), but Mosquitto numbers its queued messages without regard to
  those under way. With a full window, an acknowledgement out of order or a queue overflow gives two publications one
  identifier. Ending the session for that would lose all that the broker still holds for us.
"""

from array import array
from collections.abc import Iterable
from sys import byteorder

from hanse.mqtt.counters import Counters
from hanse.mqtt.likeness import checksum_of
from hanse.mqtt.limits import RECEIVE_MAX
from hanse.mqtt.publication import Publication
from hanse.mqtt.refusal import ID_NOT_FOUND, RECEIVE_MAX_EXCEEDED, Refusal

_SESSION: int = 1 << 16


class Receiving:
    """Publications from one peer, over all connections of a session."""

    def __init__(self, counters: Counters, *, receive_max: int = RECEIVE_MAX, tolerated: int | None = None) -> None:
        self._counters = counters
        self._receive_max = receive_max if tolerated is None else tolerated
        # Added to a packet identifier to make a receipt. It changes with the session.
        self.receipt_base = _SESSION
        self._held: dict[int, int] = {}  # receipt to QoS: handed to the caller
        self._reused: dict[int, int] = {}  # receipt of QoS 1 to the number of further publications under it
        self._unreleased: set[int] = set()  # receipts of QoS 2: PUBREC sent
        # Receipts of QoS 2, held or unreleased: a checksum of the publication, and the connection over which it last
        # came.
        self._prints: dict[int, tuple[int, int]] = {}
        self._forgotten: dict[int, int] = {}  # receipt to the number of its acks that the peer has forgotten
        self._connection = 0
        self._answered: set[int] = set()  # receipts of QoS 1 whose `ack` came without a connection
        self._is_attached = False

    @property
    def held(self) -> int:
        """Number of publications that the caller has not acknowledged."""
        return len(self._held) + sum(self._reused.values())

    def attach(self, *, session_present: bool) -> None:
        """Begin a connection. Without the old session, its receipts are void."""
        if not session_present:
            self.receipt_base += _SESSION
            self._held.clear()
            self._reused.clear()
            self._unreleased.clear()
            self._answered.clear()
            self._prints.clear()
            self._forgotten.clear()
        self._connection += 1
        self._is_attached = True

    def detach(self) -> None:
        """End the connection. Acknowledgements of the caller now wait until the peer sends the publication again."""
        self._is_attached = False

    def admit(self, publications: list[Publication]) -> tuple[list[Publication], bytes]:
        """Return the publications that are new to the caller, and immediate acknowledgements for the others."""
        if len(publications) == 1 and not publications[0][5]:
            return publications, b""  # QoS 0, as nearly all that arrive alone
        held = self._held
        receipts = [publication[5] for publication in publications]
        if not any(receipts):
            return publications, b""
        if not self._unreleased and not self._answered and held.keys().isdisjoint(receipts):
            # The usual read: all are new and none waits for a release. 0.11 us each instead of 0.13 us.
            taken = {publication[5]: publication[2] for publication in publications if publication[5]}
            if len(taken) + receipts.count(0) == len(receipts):
                held.update(taken)
                if 2 in taken.values():
                    self._print([publication for publication in publications if publication[2] == 2])
                self._check_window()
                return publications, b""
        answers: list[int] = []
        late: list[int] = []
        fresh = [one for one in publications if not one[5] or self._is_fresh(one, answers, late)]
        self._check_window()
        return fresh, _packets(0x40020000, late) + _packets(0x50020000, answers)

    def _is_fresh(self, publication: Publication, answers: list[int], late: list[int]) -> bool:
        """Return whether the publication is new. If not, acknowledge it at once, or leave that to the caller."""
        receipt, qos, is_again = publication[5], publication[2], publication[4]
        held = self._held
        if receipt in self._unreleased:
            if self._is_the_same(publication):
                answers.append(receipt)
                self._counters.drop("double_qos2")
                return False
            self._unreleased.remove(receipt)
            del self._prints[receipt]
            self._counters.refuse("identifier_reused")
        if receipt in self._answered:
            self._answered.remove(receipt)
            if is_again and qos == 1:
                late.append(receipt)
                self._counters.drop("answered_already")
                return False
        if receipt in held:
            if self._is_held_already(publication):
                self._counters.drop("held_already")
                return False
            reused = self._reused if held[receipt] == qos == 1 else self._forgotten
            reused[receipt] = reused.get(receipt, 0) + 1
            self._counters.refuse("identifier_reused")
        held[receipt] = qos
        if qos == 2:
            self._print([publication])
        return True

    def _is_held_already(self, publication: Publication) -> bool:
        """Return whether the caller already holds this publication under its identifier."""
        receipt, qos = publication[5], publication[2]
        if self._held[receipt] == 1:
            return qos == 1 and publication[4]
        # Two on one connection: the peer holds both, and the first acknowledgement is for the first.
        return self._is_the_same(publication) or self._prints[receipt][1] == self._connection

    def _is_the_same(self, publication: Publication) -> bool:
        """Return whether a QoS 2 identifier still names the same publication, and note its connection if so."""
        receipt = publication[5]
        is_same = publication[2] == 2 and self._prints[receipt][0] == _print_of(publication[0])
        if is_same:
            self._prints[receipt] = (self._prints[receipt][0], self._connection)
        return is_same

    def _print(self, publications: list[Publication]) -> None:
        for publication in publications:
            self._prints[publication[5]] = (_print_of(publication[0]), self._connection)

    def _check_window(self) -> None:
        outstanding = len(self._held) + len(self._unreleased)
        if self._reused:
            outstanding += sum(self._reused.values())
        if outstanding > self._receive_max:
            raise Refusal(
                RECEIVE_MAX_EXCEEDED,
                f"{outstanding} publications are unacknowledged; at most {self._receive_max} are allowed",
            )

    def ack(self, receipts: Iterable[int]) -> bytes:
        """Return the acknowledgements: PUBACK at QoS 1, PUBREC at QoS 2, in the order given."""
        words: list[int] = []
        for receipt in receipts:
            if self._forgotten and _count_down(self._forgotten, receipt):
                continue
            qos = 1 if self._reused and _count_down(self._reused, receipt) else self._held.pop(receipt, None)
            if qos is None:
                if receipt:
                    self._counters.refuse("stale_receipt")
            elif qos == 1 and not self._is_attached:
                self._answered.add(receipt)
            elif qos == 1:
                words.append(0x40020000 | receipt & 0xFFFF)
            else:
                self._unreleased.add(receipt)
                words.append(0x50020000 | receipt & 0xFFFF)
        return _packets(0, words) if self._is_attached else b""

    def reject(self, receipt: int, qos: int, reason_code: int) -> bytes:
        """Return the acknowledgement that refuses a publication with a reason code. The peer will not send it again."""
        kind = 0x40 if qos == 1 else 0x50
        return bytes((kind, 3)) + (receipt & 0xFFFF).to_bytes(2) + bytes((reason_code,))

    def release(self, packet_ids: Iterable[int]) -> bytes:
        """Return the PUBCOMPs that answer PUBRELs."""
        answers: list[bytes] = []
        for packet_id in packet_ids:
            receipt = self.receipt_base + packet_id
            if receipt in self._unreleased:
                self._unreleased.remove(receipt)
                self._prints.pop(receipt, None)
                answers.append(b"\x70\x02" + packet_id.to_bytes(2))
            else:
                # The release of a former process, or one whose PUBCOMP was lost. Without an answer, the peer repeats it
                # for ever.
                answers.append(b"\x70\x03" + packet_id.to_bytes(2) + bytes((ID_NOT_FOUND,)))
        return b"".join(answers)


def _packets(kind: int, numbers: list[int]) -> bytes:
    """Return packets of four bytes: type, length 2, packet identifier. 0.05 us each instead of 0.25 us by the codec."""
    if not numbers:
        return b""
    words = array("I", [kind | number & 0xFFFF for number in numbers] if kind else numbers)
    if byteorder == "little":
        words.byteswap()
    return words.tobytes()


def _count_down(counts: dict[int, int], receipt: int) -> bool:
    """Reduce the count of a receipt by one, and return whether there was one."""
    more = counts.pop(receipt, 0)
    if more > 1:
        counts[receipt] = more - 1
    return more > 0


def _print_of(packet: bytes) -> int:
    return len(packet) << 32 | checksum_of(packet)
