"""Changes by shared subscriptions on a client's own connection, between the client and its session. No IO.

Rules:

1. SUBSCRIBE and UNSUBSCRIBE are split: `$share` filters go to the serving brokers, the others to the session. The
   client gets one SUBACK with all codes, in its order.
2. A delivery of a serving broker gets a packet identifier that nothing else uses at this client, from the top of the
   range down. Brokers count from below.
3. A publication of the session whose identifier is in use by a delivery waits for the acknowledgement, and so does
   everything behind it. Meanwhile the client's broker is not read.
4. The client's Receive Maximum limits both together. Deliveries beyond it wait in a queue, which is bounded by the
   Receive Maximum of the second session.
5. Nothing is put between the pieces of a large packet.
6. The client's acknowledgements of deliveries do not reach the session. QoS 2 ends here on both sides.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from hanse.gateway.session.publication import body_of, with_id
from hanse.gateway.session.requests import Request, codes_of, read_request, write_subscribe, write_unsubscribe
from hanse.gateway.session.stream import end_of
from hanse.mqtt.properties import varint
from hanse.mqtt.refusal import Refusal

SHARE: Final = b"$share/"
# SUBSCRIBE and UNSUBSCRIBE above this size are left to the session, which refuses them.
REQUEST_BYTES_MAX: Final = 64 * 1024
# Requests of one client that wait for answers of serving brokers.
REQUESTS_MAX: Final = 1_000

PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x30, 0x40, 0x50, 0x60, 0x70
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = 0x80, 0x90, 0xA0, 0xB0
_ACKS: Final = frozenset({PUBACK, PUBREC, PUBCOMP})


class Link(Protocol):
    """The second session of a delivery, as the tap needs it."""

    def acknowledge(self, kind: int, broker_id: int, code: int) -> None:
        """Send PUBACK or PUBREC for a publication."""


class Delivery:
    """One publication of QoS 1 or 2 for this client.

    Attributes:
        link: source of the publication; None if that session is gone, or if it is a repetition.
        packet: PUBLISH as it arrived.
        is_released: the client has answered PUBREC.
    """

    __slots__ = ("broker_id", "is_released", "link", "packet", "qos")

    def __init__(self, link: Link | None, packet: bytes, qos: int, broker_id: int) -> None:
        self.link = link
        self.packet = packet
        self.qos = qos
        self.broker_id = broker_id
        self.is_released = False


class Owner(Protocol):
    """Carrier of requests to serving brokers."""

    def share_requested(self, tap: "ShareTap", request: "Asked") -> None:
        """Subscribe or unsubscribe; answer with `tap.answered`."""


class Asked:
    """A request with `$share` filters.

    Attributes:
        shares: these filters with their options, and their positions in the client's request.
    """

    __slots__ = ("codes", "identifier", "is_subscribe", "packet_id", "shares", "waits")

    def __init__(self, request: Request, shares: list[tuple[int, bytes, int]]) -> None:
        self.is_subscribe = request.is_subscribe
        self.packet_id = request.packet_id
        self.identifier = request.identifier
        self.shares = shares
        self.codes: list[int | None] = [None] * len(request.filters)
        # Answers that are missing: that of the serving brokers, and that of the client's own broker.
        self.waits = 1


class ShareTap:
    """One client's tap.

    A message of QoS 0 costs 0.5 us on its way through, and one of QoS 1 with its PUBACK 1.8 us (sources, not compiled).

    Attributes:
        to_client: bytes for the client, in order; the owner clears it.
        holds_broker: the client's broker must not be read (rule 3).
    """

    def __init__(self, version: int, receive_max: int, owner: Owner) -> None:
        self.to_client: list[bytes] = []
        self.holds_broker = False
        self._version = version
        self._receive_max = receive_max or 65_535
        self._owner = owner
        self._is_off = False
        # Of the client's stream.
        self._in_rest = b""
        self._in_passing = 0
        # Of the session's stream to the client.
        self._out_rest = b""
        self._out_passing = 0
        self._held: list[bytes] = []
        # Own packets that wait for the end of a large one.
        self._later: list[bytes] = []
        self._primary: set[int] = set()
        self._own: dict[int, Delivery] = {}
        self._queue: deque[Delivery] = deque()
        self._next_id = 65_535
        self._asked: dict[int, Asked] = {}

    @property
    def waiting(self) -> int:
        """Return how many deliveries wait or are unacknowledged."""
        return len(self._queue) + len(self._own)

    # --- from the client ----------------------------------------------------------------------------------------------

    def from_client(self, data: bytes) -> bytes:
        """Take one read of the client; return the bytes for the session."""
        if self._is_off:
            return data
        if self._in_passing:
            if len(data) <= self._in_passing:
                self._in_passing -= len(data)
                return data
            first, data = data[: self._in_passing], data[self._in_passing :]
            self._in_passing = 0
            return first + self.from_client(data)
        if self._in_rest:
            data, self._in_rest = self._in_rest + data, b""
        try:
            return self._walk_client(data)
        except Refusal:
            # The session finds the same fault, and ends the client.
            self._is_off = True
            return data

    def _walk_client(self, data: bytes) -> bytes:
        out: list[bytes] = []
        size = len(data)
        i = passed = 0
        while i < size:
            end = end_of(data, i, size) if i + 2 <= size else 0
            kind = data[i] & 0xF0
            is_read = kind in _ACKS or kind in (SUBSCRIBE, UNSUBSCRIBE)
            if not end or end > size:
                if is_read and (not end or end - i <= REQUEST_BYTES_MAX):
                    break
                if not end:
                    break
                self._in_passing = end - size
                i = size
                continue
            if is_read:
                packet = data[i:end]
                replaced = self._ack(kind, packet) if kind in _ACKS else self._request(packet)
                if replaced is not None:
                    out += (data[passed:i], replaced)
                    passed = end
            i = end
        self._in_rest = data[i:]
        if passed == 0 and i == size:
            return data
        out.append(data[passed:i])
        return b"".join(out)

    def _ack(self, kind: int, packet: bytes) -> bytes | None:
        """Take an acknowledgement; return None if it is the session's, else nothing in its place."""
        body = body_of(packet, 0)
        if len(packet) < body + 2:
            return None
        packet_id = packet[body] << 8 | packet[body + 1]
        code = packet[body + 2] if len(packet) > body + 2 else 0
        delivery = self._own.get(packet_id)
        if delivery is None:
            if kind != PUBREC or code >= 0x80:
                self._primary.discard(packet_id)
                self._go_on()
            return None
        is_done = kind != PUBREC or code >= 0x80
        if not delivery.is_released and delivery.link is not None:
            # QoS 2: with its PUBREC the client has it for good, and the serving broker may forget it.
            delivery.link.acknowledge(PUBACK if delivery.qos == 1 else PUBREC, delivery.broker_id, code)
        if is_done:
            del self._own[packet_id]
            self._go_on()
        else:
            delivery.is_released = True
            self._write([b"\x62\x02" + packet_id.to_bytes(2, "big")])
        return b""

    def _request(self, packet: bytes) -> bytes | None:
        """Split a request; return None if there is nothing to split, else the bytes for the session."""
        request = read_request(packet, self._version)
        shares = [(k, one, options) for k, (one, options) in enumerate(request.filters) if is_share(one)]
        if not shares or request.packet_id in self._asked or len(self._asked) >= REQUESTS_MAX:
            return None
        asked = self._asked[request.packet_id] = Asked(request, shares)
        rest = [one for one in request.filters if not is_share(one[0])]
        asked.waits += bool(rest)
        self._owner.share_requested(self, asked)
        if not rest:
            return b""
        if request.is_subscribe:
            return write_subscribe(request.packet_id, rest, self._version, request.identifier)
        return write_unsubscribe(request.packet_id, [one for one, _ in rest], self._version)

    # --- from the serving brokers -------------------------------------------------------------------------------------

    def answered(self, asked: Asked, codes: Iterable[int]) -> None:
        """Take the codes of the `$share` filters of a request, in the order of `shares`."""
        for (k, _, _), code in zip(asked.shares, codes, strict=True):
            asked.codes[k] = code
        self._answer(asked)

    def _answer(self, asked: Asked) -> None:
        asked.waits -= 1
        if asked.waits:
            return
        self._asked.pop(asked.packet_id, None)
        told = b"\0" if self._version == 5 else b""
        codes = bytes(code if code is not None else 0x80 for code in asked.codes)
        if self._version < 5:
            codes = bytes(min(code, 0x80) for code in codes) if asked.is_subscribe else b""
        body = asked.packet_id.to_bytes(2, "big") + told + codes
        self._write([bytes((SUBACK if asked.is_subscribe else UNSUBACK,)) + varint(len(body)) + body])

    def deliver(self, link: Link | None, packet: bytes, qos: int, broker_id: int) -> None:
        """Take a publication for the client."""
        if not qos:
            self._write([packet])
            return
        self._queue.append(Delivery(link, packet, qos, broker_id))
        self._pump()

    def give_up(self) -> list[bytes]:
        """Return the held bytes, because the connection ends now."""
        held, self._held = self._held, []
        return held

    def link_lost(self, link: Link) -> None:
        """Take note that a second session is gone. Its deliveries that the client has not got yet still go there."""
        for delivery in (*self._queue, *self._own.values()):
            if delivery.link is link:
                delivery.link = None

    def undelivered(self) -> list[Delivery]:
        """Return the unacknowledged publications of a client that is gone."""
        left = [one for one in self._own.values() if not one.is_released] + list(self._queue)
        self._own.clear()
        self._queue.clear()
        return left

    # --- to the client ------------------------------------------------------------------------------------------------

    def from_session(self, out: list[bytes]) -> None:
        """Take the session's bytes for the client."""
        for data in out:
            if self._held:
                self._held.append(data)
            else:
                self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        if self._out_passing:
            if len(data) < self._out_passing:
                self._out_passing -= len(data)
                self.to_client.append(data)
                return
            first, data = data[: self._out_passing], data[self._out_passing :]
            self._out_passing = 0
            self.to_client.append(first)
            self._flush_later()
            if not data:
                return
        if self._out_rest:
            data, self._out_rest = self._out_rest + data, b""
        size = len(data)
        i = passed = 0
        while i + 2 <= size:
            end = end_of(data, i, size)
            if not end:
                break
            kind = data[i] & 0xF0
            if kind == PUBLISH and data[i] & 6:
                at = body_of(data, i)
                at += 2 + (data[at] << 8 | data[at + 1]) if at + 2 <= size else size
                if at + 2 > min(size, end):
                    if end > size:
                        break
                elif not self._may_pass(data[at] << 8 | data[at + 1]):
                    self._emit(data[passed:i])
                    self._held.append(data[i:])
                    self.holds_broker = True
                    return
            elif kind in (SUBACK, UNSUBACK) and self._asked:
                if end > size:
                    break
                if self._take_answer(data[i:end], data[passed:i]):
                    passed = end
            if end > size:
                self._out_passing = end - size
                end = size
            i = end
        self._emit(data[passed:i])
        self._out_rest = data[i:]

    def _may_pass(self, packet_id: int) -> bool:
        if packet_id in self._primary:
            return True
        # Without deliveries the broker keeps to the limit by itself.
        is_full = bool(self._own) and len(self._primary) + len(self._own) >= self._receive_max
        if is_full or packet_id in self._own:
            return False
        self._primary.add(packet_id)
        return True

    def _take_answer(self, packet: bytes, before: bytes) -> bool:
        """Take the session's answer to a request that was split; return whether it was one."""
        packet_id, codes = codes_of(packet, self._version)
        asked = self._asked.get(packet_id)
        if asked is None or asked.is_subscribe != (packet[0] & 0xF0 == SUBACK):
            return False
        own = {k for k, _, _ in asked.shares}
        rest = [k for k in range(len(asked.codes)) if k not in own]
        for k, code in zip(rest, codes, strict=False):
            asked.codes[k] = code
        self._emit(before)
        self._answer(asked)
        return True

    def _emit(self, data: bytes) -> None:
        if data:
            self.to_client.append(data)

    def _write(self, packets: list[bytes]) -> None:
        if self._out_passing:
            self._later += packets
        else:
            self.to_client += packets

    def _flush_later(self) -> None:
        self.to_client += self._later
        self._later.clear()
        self._pump()

    def _pump(self) -> None:
        """Send queued deliveries as far as the Receive Maximum allows."""
        while self._queue and not self._out_passing and len(self._primary) + len(self._own) < self._receive_max:
            delivery = self._queue.popleft()
            packet_id = self._free_id()
            self._own[packet_id] = delivery
            self.to_client.append(with_id(delivery.packet, packet_id))

    def _free_id(self) -> int:
        while True:
            packet_id = self._next_id
            self._next_id = packet_id - 1 or 65_535
            if packet_id not in self._own and packet_id not in self._primary:
                return packet_id

    def _go_on(self) -> None:
        """Use the room that an acknowledgement has made: first for earlier packets of the session."""
        if self._held:
            held, self._held = self._held, []
            for k, data in enumerate(held):
                self._pass_on(data)
                if self._held:
                    self._held += held[k + 1 :]
                    break
            self.holds_broker = bool(self._held)
        if not self._held:
            self._pump()


def is_share(pattern: bytes) -> bool:
    """Return whether a filter is a well-formed shared subscription. A malformed one is the broker's to refuse."""
    if not pattern.startswith(SHARE):
        return False
    name, slash, wanted = pattern[len(SHARE) :].partition(b"/")
    return bool(name and slash and wanted) and b"+" not in name and b"#" not in name
