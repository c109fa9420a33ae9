"""One direction of a session: publications to the peer, until the peer has acknowledged them.

No sockets: bytes leave by `write`. Theory of operation:

- A run comes in by `publish_run`. Its QoS 0 packets are written now or dropped and counted, never kept. Its QoS 1 and 2
  packets get consecutive *numbers* (they only grow, also over reconnects) and are kept until acknowledged.
- Kept packets form *batches*, in order. A batch in flight has consecutive packet identifiers. Number and identifier
  then differ by a constant, and a packet costs no more memory than one dictionary entry. Packets beyond the peer's
  Receive Maximum wait in a queue.
- After a reconnect, everything unacknowledged goes out again in the original order, with DUP. For publications that
  were PUBRECed, only PUBREL goes out (MQTT 5, 4.4). If the peer lost the session, all of it goes out as new.
- `credit` is the number of publications that the caller may hand over now. At 0, `publish_run` refuses QoS 1 and 2, and
  `on_credit` reports when half is free again. Reading never pauses, because acknowledgements come that way.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

from hanse.errors import LocalError, Unavailable
from hanse.mqtt.counters import Counters
from hanse.mqtt.limits import HELD_BYTES_MAX, HELD_PACKETS_MAX, PUBLISH_ID_MAX, WRITE_BYTES_MAX
from hanse.mqtt.publication import split, topic_of, with_packet_ids, with_qos, without_retain
from hanse.mqtt.refusal import ID_NOT_FOUND, PACKET_TOO_LARGE, protocol_error


class _Batch:
    """Packets with consecutive numbers, and also consecutive identifiers once in flight."""

    __slots__ = ("first_id", "first_number", "has_qos2", "left", "offsets", "run")

    def __init__(self, first_number: int, run: bytes, offsets: Sequence[tuple[int, int]], has_qos2: bool) -> None:
        self.first_number = first_number
        self.first_id = 0
        self.run = run
        self.offsets = offsets
        self.left = len(offsets)
        self.has_qos2 = has_qos2


class Sending:
    """Publications to one peer, over all connections of a session.

    Args:
        counters: counters of drops and acknowledgements.
        packets_max, bytes_max: QoS 1 and 2 publications kept. One run may exceed the limit, the next is refused.
        write_bytes_max: bytes waiting in the transport beyond which QoS 0 is dropped.
        on_assigned: called before QoS 2 packets are first written, with the first number, the first packet identifier
            and their count. A journal needs it.
        on_received: called with (number, packet identifier) pairs of QoS 2 that the peer has received (PUBREC), before
            PUBREL is written. A journal writes "released" here.
        on_credit: called when half of the credit is back after a run was refused for lack of it.
        on_outcomes: called within `publish_run` when `take_outcomes` has results. Call that soon, not now.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        packets_max: int = HELD_PACKETS_MAX,
        bytes_max: int = HELD_BYTES_MAX,
        write_bytes_max: int = WRITE_BYTES_MAX,
        on_assigned: Callable[[int, int, int], None] | None = None,
        on_received: Callable[[list[tuple[int, int]]], None] | None = None,
        on_credit: Callable[[], None] | None = None,
        on_outcomes: Callable[[], None] | None = None,
    ) -> None:
        self._counters = counters
        self._packets_max = packets_max
        self._bytes_max = bytes_max
        self._write_bytes_max = write_bytes_max
        self._on_assigned = on_assigned
        self._on_received = on_received
        self._on_credit = on_credit
        self._on_outcomes = on_outcomes
        self._write: Callable[[bytes | bytearray], None] | None = None
        self._waiting_bytes: Callable[[], int] = _nothing_waits
        self._receive_max = 0
        self._packet_bytes_max: int | None = None
        # A run of QoS 0 up to this size is written unchanged.
        self._plain_bytes_max = sys.maxsize
        self._qos_max = 2
        self._retain_available = True
        self._in_flight: dict[int, _Batch] = {}  # packet identifier, PUBLISH sent
        self._released: dict[int, int] = {}  # packet identifier to number, PUBREL sent
        self._reserved: set[int] = set()  # packet identifiers of a former process
        self._sent: deque[_Batch] = deque()
        self._queue: deque[_Batch] = deque()
        self._next_id = 1
        self._next_number = 1
        self._held = 0
        self._held_bytes = 0
        self._is_starved = False
        self._outcomes: list[tuple[int, int]] = []

    @property
    def credit(self) -> int:
        """Number of QoS 1 and 2 publications that may be handed over now."""
        if self._held_bytes >= self._bytes_max:
            return 0
        return max(0, self._packets_max - self._held)

    @property
    def held(self) -> int:
        """Number of QoS 1 and 2 publications that the peer has not acknowledged."""
        return self._held

    @property
    def held_bytes(self) -> int:
        """Bytes of the batches with unacknowledged publications."""
        return self._held_bytes

    @property
    def in_flight(self) -> int:
        """Number of publications that count against the peer's Receive Maximum."""
        return len(self._in_flight) + len(self._released)

    def attach(
        self,
        write: Callable[[bytes | bytearray], None],
        waiting_bytes: Callable[[], int],
        *,
        receive_max: int,
        packet_bytes_max: int | None = None,
        session_present: bool = True,
        qos_max: int = 2,
        retain_available: bool = True,
    ) -> None:
        """Begin a connection: send unacknowledged publications again, then those that wait.

        `take_outcomes` returns the publications that this peer cannot accept, or may have lost with the session.
        """
        self._write = write
        self._waiting_bytes = waiting_bytes
        self._receive_max = min(receive_max, PUBLISH_ID_MAX)
        self._packet_bytes_max = packet_bytes_max
        self._qos_max = qos_max
        self._retain_available = retain_available
        self._plain_bytes_max = (packet_bytes_max or sys.maxsize) if retain_available else -1
        if not session_present:
            self._start_over()
        self._refit()
        self._send_again()
        self._pump()

    def detach(self) -> None:
        """End the connection. Unacknowledged publications are kept."""
        self._write = None

    def resume(self, entries: Sequence[tuple[int, bytes | None]]) -> list[int]:
        """Resume the publications of a former process, before the first `attach`, and return their numbers.

        Args:
            entries: packet identifier and canonical packet; None for a released one (only PUBREL is sent).
        """
        if self._next_number != 1:
            raise LocalError("`resume` was called after publications were sent; call it first.")
        numbers = []
        for packet_id, packet in entries:
            if not 1 <= packet_id <= PUBLISH_ID_MAX or packet_id in self._in_flight or packet_id in self._released:
                raise LocalError(
                    f"packet identifier {packet_id} cannot be resumed; expected 1 to {PUBLISH_ID_MAX}, each once."
                )
            number = self._next_number
            self._next_number += 1
            self._held += 1
            if packet is None:
                self._released[packet_id] = number
            else:
                offsets = [(0, len(packet))]
                batch = _Batch(number, packet, offsets, True)
                batch.first_id = packet_id
                self._held_bytes += len(packet)
                self._in_flight[packet_id] = batch
                self._sent.append(batch)
            numbers.append(number)
            self._next_id = max(self._next_id, packet_id % PUBLISH_ID_MAX + 1)
        return numbers

    @property
    def next_number(self) -> int:
        """Number that the next publication above QoS 0 will get."""
        return self._next_number

    def reserve(self, packet_ids: Iterable[int]) -> None:
        """Reserve identifiers of a former process, whose publications may be repeated by `publish_again`."""
        self._reserved.update(packet_ids)

    def publish_again(self, run: bytes, packet_ids: Sequence[int]) -> int:
        """Send a run of canonical QoS 2 packets, some of which the peer may know from a former process (4.3.3).

        Args:
            run: the packets.
            packet_ids: the reserved identifier of each packet, under which it goes out with DUP; 0 for a new packet.

        Returns:
            The number of the first packet; the others follow one by one.

        Raises:
            Unavailable: There is no credit. No packet was queued; wait for `on_credit`.
        """
        self._check_credit()
        first = self._next_number
        for (start, end), packet_id in zip(split(run), packet_ids, strict=True):
            packet = run[start:end]
            if packet_id:
                self._put_again(packet, packet_id)
            else:
                self._take_fitted(self._fitted(packet))
        if self._outcomes and self._on_outcomes is not None:
            self._on_outcomes()
        return first

    def _put_again(self, packet: bytes, packet_id: int) -> None:
        self._reserved.discard(packet_id)
        number = self._next_number
        self._next_number += 1
        self._held += 1
        self._held_bytes += len(packet)
        batch = _Batch(number, packet, [(0, len(packet))], True)
        batch.first_id = packet_id
        self._in_flight[packet_id] = batch
        self._sent.append(batch)
        if self._on_assigned is not None:
            self._on_assigned(number, packet_id, 1)
        if self._write is not None:
            self._write(with_packet_ids(packet, batch.offsets, packet_id, dup=True))

    def _check_credit(self) -> None:
        if not self.credit:
            self._is_starved = True
            raise Unavailable(
                f"{self._held} publications ({self._held_bytes} bytes) wait for this peer's acknowledgement; the "
                f"limit is {self._packets_max} ({self._bytes_max} bytes). Wait for credit."
            )

    def publish_run(self, run: bytes, *, qos: int | None = None, count: int | None = None) -> int:
        """Send a run of canonical packets.

        Args:
            run: the packets.
            qos: the QoS of all packets, if the caller knows it. A run of QoS 0 is then written unchanged.
            count: number of packets, if the caller knows it.

        Returns:
            The number of the first packet of QoS 1 or 2; the others follow one by one. 0 if there is none.

        Raises:
            Unavailable: The run holds QoS 1 or 2, and there is no credit. No packet was queued; wait for `on_credit`.
        """
        if qos == 0 and len(run) <= self._plain_bytes_max:
            self._publish_at_most_once(run, len(split(run)) if count is None else count)
            return 0
        offsets = split(run)
        # A caller that knows the QoS knows it of every packet.
        sure = offsets if qos else [pair for pair in offsets if run[pair[0]] & 0x06]
        if sure:
            self._check_credit()
        if not offsets:
            return 0
        if not self._is_plain(run, qos):
            return self._publish_adapted(run, offsets)
        if len(sure) < len(offsets):
            rest = [run[start:end] for start, end in offsets if not run[start] & 0x06]
            if not sure:
                self._publish_at_most_once(run, len(rest))
                return 0
            if self._can_send_now(len(sure)):
                # The common case of a mixed run: it leaves in its order, QoS 0 included.
                return self._send_mixed(run, offsets, sure)
            self._publish_at_most_once(b"".join(rest), len(rest))
            run, sure = _joined([run[start:end] for start, end in sure])
        return self._take(run, sure, qos)

    def _take(self, run: bytes, offsets: Sequence[tuple[int, int]], qos: int | None = None) -> int:
        number = self._next_number
        self._next_number += len(offsets)
        self._held += len(offsets)
        self._held_bytes += len(run)
        has_qos2 = any(run[start] & 0x04 for start, _ in offsets) if qos is None else qos == 2
        self._queue.append(_Batch(number, run, offsets, has_qos2))
        self._pump()
        return number

    def _publish_at_most_once(self, run: bytes, count: int) -> None:
        if self._write is None:
            self._counters.drop("disconnected", count)
        elif self._waiting_bytes() > self._write_bytes_max:
            self._counters.drop("slow_peer", count)
        else:
            self._write(run)
            self._counters.publications_out += count

    def _can_send_now(self, count: int) -> bool:
        return (
            self._write is not None
            and not self._queue
            and self.in_flight + count <= self._receive_max
            and self._waiting_bytes() <= self._write_bytes_max
            and self._next_id + count - 1 <= PUBLISH_ID_MAX
            and self._free_from(self._next_id, count) == count
        )

    def _send_mixed(self, run: bytes, offsets: Sequence[tuple[int, int]], sure: Sequence[tuple[int, int]]) -> int:
        assert self._write is not None
        kept, kept_offsets = _joined([run[start:end] for start, end in sure])
        first_id = self._next_id
        number = self._next_number
        batch = _Batch(number, kept, kept_offsets, any(run[start] & 0x04 for start, _ in sure))
        self._next_number += len(sure)
        self._held += len(sure)
        self._held_bytes += len(kept)
        self._launch(batch, first_id)
        self._write(with_packet_ids(run, offsets, first_id))
        self._counters.publications_out += len(offsets)
        return number

    def _launch(self, batch: _Batch, first_id: int) -> None:
        count = len(batch.offsets)
        batch.first_id = first_id
        self._in_flight.update(dict.fromkeys(range(first_id, first_id + count), batch))
        self._sent.append(batch)
        self._next_id = first_id + count if first_id + count <= PUBLISH_ID_MAX else 1
        if batch.has_qos2 and self._on_assigned is not None:
            self._on_assigned(batch.first_number, first_id, count)

    def _free_from(self, first_id: int, count: int) -> int:
        """Return how many identifiers from `first_id` on are free, at most `count`."""
        in_flight, released, reserved = self._in_flight, self._released, self._reserved
        if not in_flight and not released and not reserved:
            return count
        for packet_id in range(first_id, first_id + count):
            if packet_id in in_flight or packet_id in released or packet_id in reserved:
                return packet_id - first_id
        return count

    def _pump(self) -> None:
        """Send from the queue as much as the peer's Receive Maximum allows."""
        write = self._write
        if write is None:
            return
        while self._queue:
            # Reserved identifiers are not available. With too many of them, no identifier is left before the window
            # ends.
            room = min(self._receive_max, PUBLISH_ID_MAX - len(self._reserved)) - self.in_flight
            if room <= 0:
                return
            batch = self._queue[0]
            first_id = self._next_id
            count = self._free_from(first_id, min(room, len(batch.offsets), PUBLISH_ID_MAX + 1 - first_id))
            if count == 0:
                self._next_id = first_id % PUBLISH_ID_MAX + 1
                continue
            if count == len(batch.offsets):
                self._queue.popleft()
            else:
                batch = self._split_head(count)
            self._launch(batch, first_id)
            write(with_packet_ids(batch.run, batch.offsets, first_id))
            self._counters.publications_out += count

    def _split_head(self, count: int) -> _Batch:
        """Split the first `count` packets off the queue's first batch."""
        whole = self._queue[0]
        cut = whole.offsets[count][0]
        head = _Batch(whole.first_number, whole.run[:cut], whole.offsets[:count], whole.has_qos2)
        rest = [(start - cut, end - cut) for start, end in whole.offsets[count:]]
        self._queue[0] = _Batch(whole.first_number + count, whole.run[cut:], rest, whole.has_qos2)
        return head

    def _send_again(self) -> None:
        write = self._write
        assert write is not None
        again: list[bytes] = []
        for batch in self._sent:
            run = batch.run
            packet_id = batch.first_id
            for start, end in batch.offsets:
                if self._in_flight.get(packet_id) is batch:
                    packet = with_packet_ids(run[start:end], ((0, end - start),), packet_id, dup=True)
                    again.append(bytes(packet))
                packet_id += 1
        again.extend(map(_pubrel, self._released))
        if again:
            self._counters.retransmitted += len(again)
            write(b"".join(again))

    def _start_over(self) -> None:
        """Treat batches in flight as new, because the peer has no session, and send them before those that wait.

        The fate of released publications is unknown: the peer had them, and may or may not have forwarded them before
        it lost the session. Sending them again could duplicate them, so they are reported as "packet identifier not
        found" and left to the caller.
        """
        for number in self._released.values():
            self._outcomes.append((number, ID_NOT_FOUND))
            self._held -= 1
        self._released.clear()
        fresh: list[_Batch] = []
        for batch in self._sent:
            if not batch.left:
                continue
            self._held_bytes -= len(batch.run)
            for index, (start, end) in enumerate(batch.offsets):
                if self._in_flight.get(batch.first_id + index) is batch:
                    packet = batch.run[start:end]
                    fresh.append(_Batch(batch.first_number + index, packet, [(0, end - start)], batch.has_qos2))
                    self._held_bytes += len(packet)
        self._sent.clear()
        self._in_flight.clear()
        self._queue.extendleft(reversed(fresh))

    # Packets that the peer cannot accept: larger than its Maximum Packet Size, a QoS above its Maximum QoS, RETAIN if
    # it retains nothing (MQTT 5, 3.2.2.3). These are rare, so they are handled packet by packet.

    def _is_plain(self, run: bytes, qos: int | None = None) -> bool:
        largest = self._packet_bytes_max
        fits = self._qos_max == 2 or (qos is not None and qos <= self._qos_max)
        return fits and (largest is None or len(run) <= largest) and self._retain_available

    def _fitted(self, packet: bytes) -> bytes | None:
        if not self._retain_available:
            packet = without_retain(packet)
        if packet[0] >> 1 & 3 > self._qos_max:
            packet = with_qos(packet, self._qos_max)
        if self._packet_bytes_max is not None and len(packet) > self._packet_bytes_max:
            return None
        return packet

    def _publish_adapted(self, run: bytes, offsets: Sequence[tuple[int, int]]) -> int:
        first = 0
        fitted = [self._fitted(run[start:end]) for start, end in offsets]
        sure = [packet for packet in fitted if packet is not None and packet[0] & 0x06]
        if len(sure) == len(fitted):
            return self._take(*_joined(sure))
        for (start, _), packet in zip(offsets, fitted, strict=True):
            if run[start] & 0x06:
                number = self._take_fitted(packet)
                first = first or number
            elif packet is None:
                self._counters.drop("too_large_for_peer")
            else:
                self._publish_at_most_once(packet, 1)
        if self._outcomes and self._on_outcomes is not None:
            self._on_outcomes()
        return first

    def _take_fitted(self, packet: bytes | None) -> int:
        if packet is not None and packet[0] & 0x06:
            return self._take(packet, [(0, len(packet))])
        number = self._next_number
        self._next_number += 1
        if packet is None:
            self._counters.drop("too_large_for_peer")
            self._outcomes.append((number, PACKET_TOO_LARGE))
        else:
            # The peer supports only QoS 0. All that can be known is that the packet was written.
            self._publish_at_most_once(packet, 1)
            self._outcomes.append((number, 0))
        return number

    def _refit(self) -> None:
        """Check publications that were queued for another connection against this one's limits."""
        if all(self._is_plain(batch.run) for batch in (*self._sent, *self._queue)):
            return
        for batch in self._sent:
            for index, (start, end) in enumerate(batch.offsets):
                packet_id = batch.first_id + index
                if self._in_flight.get(packet_id) is batch and self._fitted(batch.run[start:end]) is None:
                    del self._in_flight[packet_id]
                    self._counters.drop("too_large_for_peer")
                    self._outcomes.append((batch.first_number + index, PACKET_TOO_LARGE))
                    self._settle(batch)
        waiting, self._queue = self._queue, deque()
        for batch in waiting:
            self._held -= len(batch.offsets)
            self._held_bytes -= len(batch.run)
            for index, (start, end) in enumerate(batch.offsets):
                self._requeue(batch.first_number + index, self._fitted(batch.run[start:end]))

    def _requeue(self, number: int, packet: bytes | None) -> None:
        if packet is not None and packet[0] & 0x06:
            self._queue.append(_Batch(number, packet, [(0, len(packet))], packet[0] & 0x04 == 0x04))
            self._held += 1
            self._held_bytes += len(packet)
        elif packet is None:
            self._counters.drop("too_large_for_peer")
            self._outcomes.append((number, PACKET_TOO_LARGE))
        else:
            self._publish_at_most_once(packet, 1)
            self._outcomes.append((number, 0))

    def take_outcomes(self) -> list[tuple[int, int]]:
        """Return (number, reason code) of all decided without the peer since the last call; 0 is success."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # Acknowledgements of the peer. Those of one read come as lists.

    def acknowledge(self, packet_ids: Sequence[int]) -> list[int]:
        """Handle PUBACKs without a reason code, and return the numbers that are done. 0.2 us each."""
        numbers: list[int] = []
        # All of a read at once, then segments of one batch each.
        found = list(map(self._in_flight.pop, packet_ids, repeat(None)))
        count = len(found)
        k = 0
        while k < count:
            batch = found[k]
            begin = k
            k += 1
            if batch is None:
                self._counters.refuse("unknown_acknowledgement")
                continue
            while k < count and found[k] is batch:
                k += 1
            if batch.has_qos2:
                self._require_qos1(batch, packet_ids, begin, k, found)
            offset = batch.first_number - batch.first_id
            numbers += [packet_id + offset for packet_id in packet_ids[begin:k]]
            batch.left -= k - begin
            if not batch.left:
                self._finish(batch)
        self._held -= len(numbers)
        self._counters.acknowledged += len(numbers)
        return numbers

    def _require_qos1(
        self, batch: _Batch, packet_ids: Sequence[int], begin: int, end: int, found: list[_Batch | None]
    ) -> None:
        for k in range(begin, end):
            packet_id = packet_ids[k]
            if batch.run[batch.offsets[packet_id - batch.first_id][0]] & 0x04:
                # Later acknowledgements of the read were not handled: the peer has to send them again.
                self._in_flight.update((packet_ids[i], later) for i in range(k, len(found)) if (later := found[i]))
                raise protocol_error(
                    f"PUBACK for packet identifier {packet_id}, which is of QoS 2; PUBREC was expected"
                )

    def refuse(self, packet_id: int, *, qos: int) -> int:
        """Handle PUBACK or PUBREC with a reason code of 0x80 or more. Return the number given up; 0 if unknown."""
        batch = self._in_flight.get(packet_id)
        if batch is None:
            self._counters.refuse("unknown_acknowledgement")
            return 0
        index = packet_id - batch.first_id
        if batch.run[batch.offsets[index][0]] >> 1 & 3 != qos:
            raise protocol_error(
                f"packet identifier {packet_id} is refused with the acknowledgement of QoS {qos}, not its own"
            )
        del self._in_flight[packet_id]
        self._settle(batch)
        self._counters.drop("refused_by_peer")
        return batch.first_number + index

    def in_flight_of(self, packet_id: int) -> list[tuple[int, str]]:
        """Return number and topic of the publication with this packet identifier; nothing if it is unknown."""
        batch = self._in_flight.get(packet_id)
        if batch is None:
            return []
        index = packet_id - batch.first_id
        return [(batch.first_number + index, topic_of(batch.run, batch.offsets[index][0]))]

    def received(self, packet_ids: Sequence[int]) -> bytes:
        """Handle PUBRECs: the peer has the packets. Return the PUBRELs to write. The journal is told first."""
        answers: list[bytes] = []
        pairs: list[tuple[int, int]] = []
        for packet_id in packet_ids:
            batch = self._in_flight.get(packet_id)
            if batch is None:
                known = packet_id in self._released
                # Section 4.3.3: an unknown identifier gets a reason code, a released one is released again.
                answers.append(_pubrel(packet_id) if known else b"\x62\x03" + packet_id.to_bytes(2) + b"\x92")
                if not known:
                    self._counters.refuse("unknown_acknowledgement")
                continue
            index = packet_id - batch.first_id
            if not batch.run[batch.offsets[index][0]] & 0x04:
                raise protocol_error(
                    f"PUBREC for packet identifier {packet_id}, which is of QoS 1; PUBACK was expected"
                )
            del self._in_flight[packet_id]
            number = batch.first_number + index
            self._released[packet_id] = number
            batch.left -= 1
            if not batch.left:
                self._finish(batch)
            pairs.append((number, packet_id))
            answers.append(_pubrel(packet_id))
        if pairs and self._on_received is not None:
            self._on_received(pairs)
        return b"".join(answers)

    def complete(self, packet_ids: Sequence[int]) -> list[int]:
        """Handle PUBCOMPs, and return the numbers that are done."""
        numbers: list[int] = []
        for packet_id in packet_ids:
            number = self._released.pop(packet_id, None)
            if number is None:
                self._counters.refuse("unknown_acknowledgement")
                continue
            numbers.append(number)
        self._held -= len(numbers)
        self._counters.acknowledged += len(numbers)
        return numbers

    def proceed(self) -> None:
        """Send what waited, and announce credit, after the acknowledgements of one read."""
        if self._queue:
            self._pump()
        if self._is_starved and self._held * 2 <= self._packets_max and self._held_bytes * 2 <= self._bytes_max:
            self._is_starved = False
            if self._on_credit is not None:
                self._on_credit()

    def _settle(self, batch: _Batch) -> None:
        self._held -= 1
        batch.left -= 1
        if not batch.left:
            self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        """End a batch whose packets are all acknowledged: free its bytes now, and its place once it is the oldest."""
        self._held_bytes -= len(batch.run)
        batch.run = b""
        batch.offsets = ()
        sent = self._sent
        while sent and not sent[0].left:
            sent.popleft()


def _pubrel(packet_id: int) -> bytes:
    return b"\x62\x02" + packet_id.to_bytes(2)


def _nothing_waits() -> int:
    return 0


def _joined(packets: list[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    offsets: list[tuple[int, int]] = []
    at = 0
    for packet in packets:
        offsets.append((at, at + len(packet)))
        at += len(packet)
    return b"".join(packets), offsets
