"""One client's session from CONNECT to the end, for both variants.

`PassThrough` and `Keeping` add the handling of packets in between.

Rules:

1. No sockets, no clock. Reads and times come in; bytes to write, and rare events, wait in lists for the driver.
2. A client that breaks a rule is closed, and nothing else is. Its packets before that in the same read still pass.
3. The bytes of one read are written at once, in one piece where nothing in them changes.
"""

from collections.abc import Sequence
from typing import Final

from hanse.errors import LocalError
from hanse.gateway.front.connect import Connect, refuse
from hanse.gateway.session.contract import NO_LIMITS, BrokerLimits, Connack, read_connack
from hanse.gateway.session.counters import Counters
from hanse.gateway.session.events import (
    BrokerRefused,
    Close,
    CloseBroker,
    Ended,
    Event,
    Subscribed,
    Subscription,
)
from hanse.gateway.session.replayed import Replayed
from hanse.gateway.session.requests import Requests, read_request
from hanse.gateway.session.settings import Settings
from hanse.gateway.session.stream import Stream, end_of
from hanse.mqtt.limits import CONNECT_BYTES_MAX
from hanse.mqtt.properties import read_varint, varint, walk
from hanse.mqtt.refusal import PACKET_TOO_LARGE, Refusal, protocol_error

# Phases. NEW: before `start`. WAITING: no broker yet. CONNECTING: CONNECT is at the first broker. LIVE: CONNACK has
# gone to the client. DETACHED: the client has no broker now. RECONNECTING: CONNECT is at the next broker. RESTORING:
# subscriptions and unacknowledged publications are on their way to it. CLOSED: the client has been ended. PARTING: the
# client is gone, its will is not published yet. OVER: nothing is left to do.
NEW: Final = 0
WAITING: Final = 1
CONNECTING: Final = 2
LIVE: Final = 3
DETACHED: Final = 4
RECONNECTING: Final = 5
RESTORING: Final = 6
CLOSED: Final = 7
PARTING: Final = 8
OVER: Final = 9

# A broker that answers CONNECT with one of these may be replaced by another broker: it cannot take the client now, or
# does not speak its version of MQTT (0x84).
_NOT_FINAL: Final = frozenset({0x84, 0x88, 0x89, 0x8B, 0x97, 0x9C, 0x9D, 0x9F})

TAKEN_OVER: Final = 0x8E

# Reason codes that a server may send in DISCONNECT (MQTT 5, 3.14.2.1).
_OF_DISCONNECT: Final = frozenset({0x00, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)})

CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x60
PUBCOMP: Final = 0x70
SUBSCRIBE: Final = 0x80
SUBACK: Final = 0x90
UNSUBSCRIBE: Final = 0xA0
UNSUBACK: Final = 0xB0
PINGREQ: Final = 0xC0
PINGRESP: Final = 0xD0
DISCONNECT: Final = 0xE0
AUTH: Final = 0xF0

_SESSION_EXPIRY: Final = 0x11


class Session:
    """Common part of both variants; `hanse.gateway.session` describes every method for the driver."""

    def __init__(self, settings: Settings, counters: Counters, now: float) -> None:
        self.settings = settings
        self.counters = counters
        self.to_client: list[bytes] = []
        self.to_broker: list[bytes] = []
        self.events: list[Event] = []
        self.holds_client = True
        self.holds_broker = False
        self.client_id = b""
        self.limits = NO_LIMITS
        self._connect: Connect | None = None
        self._version = 0
        self._phase = NEW
        self._from_client = Stream()
        self._from_broker = Stream()
        self._requests = Requests()
        # SUBACKs that wait for `barrier_passed`, by token.
        self._barred: dict[int, bytes] = {}
        self._client_at = now
        self._is_client_lost = False
        # Whether DISCONNECT has gone from the client to the broker, or from the broker to the client.
        self._is_goodbye_said = False
        # Whether the same id has connected at another broker.
        self.is_taken_over = False
        # Seconds for which the broker keeps the session after the connection. `NEVER` of `front.connect`: without end.
        self.session_expiry_s = 0

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        """Return whether the client is between two brokers."""
        return DETACHED <= self._phase <= RESTORING

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """Return the client's subscriptions, if this variant knows them."""
        return ()

    @property
    def is_over(self) -> bool:
        """Return whether the object can be dropped."""
        return self._phase == OVER

    @property
    def is_accepted(self) -> bool:
        """Return whether the client has its CONNACK."""
        return LIVE <= self._phase <= RESTORING

    @property
    def connect(self) -> Connect:
        """Return the client's CONNECT."""
        assert self._connect is not None
        return self._connect

    # --- the beginning ------------------------------------------------------------------------------------------------

    def start(self, connect: Connect, rest: bytes, now: float) -> None:
        """Take the client's CONNECT and the bytes that came behind it."""
        if self._phase != NEW:
            raise LocalError("The session has been started before; make a new one per client connection.")
        self._connect = connect
        self._version = connect.level
        self.session_expiry_s = connect.session_expiry_s
        self.client_id = connect.client_id or self.settings.make_client_id()
        self._client_at = now
        self._phase = WAITING
        if rest:
            self._from_client.keep(rest, 0)

    def attach(
        self,
        now: float,
        limits: BrokerLimits = NO_LIMITS,
        clean: bool | None = None,
        known: Sequence[Subscription] = (),
    ) -> None:
        """Send CONNECT to a broker whose connection is open."""
        raise NotImplementedError

    def _attach_first(self, limits: BrokerLimits, packet: bytes) -> None:
        if self._phase != WAITING:
            raise LocalError(f"attach was called in phase {self._phase}; detach or broker_lost must come before it.")
        self.limits = limits
        self._from_broker.clear()
        self.to_broker.append(packet)
        self._phase = CONNECTING
        # Enhanced authentication: AUTH packets come from the client before CONNACK.
        self.holds_client = self.connect.auth_method is None

    def _take_first_packets(self, data: bytes, now: float) -> None:
        """Read the broker's packets up to and including its CONNACK."""
        stream = self._from_broker
        data = stream.take(data)
        size = len(data)
        i = 0
        while i + 2 <= size and self._phase in {CONNECTING, RECONNECTING}:
            end = end_of(data, i, size)
            if end - i > CONNECT_BYTES_MAX:
                raise Refusal(PACKET_TOO_LARGE, f"the broker's answer to CONNECT has {end - i} bytes")
            if not end or end > size:
                break
            kind = data[i] & 0xF0
            if kind == AUTH and self._phase == CONNECTING:
                self.to_client.append(data[i:end])
            elif kind == CONNACK:
                self._take_connack(data[i:end], now)
            elif kind == DISCONNECT:
                self._refused(0x88, "it sent DISCONNECT instead of CONNACK")
            else:
                raise protocol_error(f"the broker sent a packet of type {kind >> 4} before CONNACK")
            i = end
        if i < size:
            rest = data[i:]
            if self._phase in {CONNECTING, RECONNECTING}:
                stream.keep(rest, (end_of(data, i, size) or i + len(rest) + 1) - i)
            else:
                self.broker_data(rest, now)

    def _take_connack(self, packet: bytes, now: float) -> None:
        raise NotImplementedError

    def _accept(self, packet: bytes, session_present: bool, now: float) -> None:
        raise NotImplementedError

    def _refused_first(self, connack: Connack, packet: bytes) -> None:
        """Handle the refusal of a client that has no CONNACK yet."""
        if connack.code in _NOT_FINAL:
            self._refused(connack.code, connack.reason or "its CONNACK says so")
            return
        # A broker that does not speak MQTT 5 refuses in the form of 3.1.1.
        is_older = self._version == 5 and len(packet) == 4
        self.to_client.append(refuse(5, connack.code) if is_older else packet)
        self.events.append(BrokerRefused(connack.code, True, connack.reason))
        self._end_client(connack.code, "refused_by_broker")

    def _refused(self, code: int, text: str) -> None:
        self.events.append(BrokerRefused(code, False, text))
        self._phase = WAITING if self._phase == CONNECTING else DETACHED
        self._from_broker.clear()
        self.to_broker.clear()
        self.holds_client = True

    # --- data ---------------------------------------------------------------------------------------------------------

    def client_data(self, data: bytes, now: float) -> None:
        """Take one read from the client."""
        self._client_at = now
        if self._phase in (WAITING, CONNECTING):
            self._take_early(data)
            return
        if self._phase > RESTORING:
            return
        try:
            self._take_client(data, now)
        except Refusal as refusal:
            self._offended(refusal)

    def _take_early(self, data: bytes) -> None:
        """Keep what a client sends before its CONNACK; only AUTH goes on."""
        stream = self._from_client
        if stream.pieces:
            data = b"".join((*stream.pieces, data))
        if self._phase == CONNECTING and self.connect.auth_method is not None:
            i = 0
            while i + 2 <= len(data) and data[i] & 0xF0 == AUTH:
                end = end_of(data, i, len(data))
                if not end or end > len(data):
                    break
                self.to_broker.append(data[i:end])
                i = end
            data = data[i:]
        if len(data) > CONNECT_BYTES_MAX:
            self._end_client(PACKET_TOO_LARGE, "early_bytes")
            return
        stream.clear()
        if data:
            stream.keep(data, 0)

    def _take_client(self, data: bytes, now: float) -> None:
        raise NotImplementedError

    def broker_data(self, data: bytes, now: float) -> None:
        """Take one read from the current broker."""
        try:
            if self._phase in (CONNECTING, RECONNECTING):
                self._take_first_packets(data, now)
            else:
                self._take_broker(data, now)
        except Refusal as refusal:
            self._broker_offended(refusal, now)

    def _take_broker(self, data: bytes, now: float) -> None:
        raise NotImplementedError

    def _take_request(self, packet: bytes) -> None:
        self._requests.add(read_request(packet, self._version))

    def _take_answer(self, packet: bytes) -> bool:
        """Take SUBACK or UNSUBACK; return False if it is held back for the barrier."""
        event = self._requests.answer(packet, self._version)
        if event is None:
            return True
        self.events.append(event)
        self._granted(event)
        if self.settings.subscribe_barrier and isinstance(event, Subscribed):
            self._barred[event.token] = packet
            return False
        return True

    def _granted(self, event: Event) -> None:
        """Let a variant remember what was granted."""

    def barrier_passed(self, token: int, now: float) -> None:  # noqa: ARG002 - the same shape as the other inputs
        """Release a SUBACK that was held back."""
        packet = self._barred.pop(token, b"")
        if packet and self._phase <= RESTORING:
            self.to_client.append(packet)

    # --- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, code: int, now: float, reference: str = "") -> None:  # noqa: ARG002 - as above
        """Answer CONNECT with a refusal of the gateway's own, and end the client."""
        if self._phase <= CONNECTING and self._phase != NEW:
            answer = refuse(self._version, code, server_reference=reference.encode())
            if answer:
                self.to_client.append(answer)
            self._end_client(code, "refused")

    def disconnect(self, code: int, now: float, reference: str = "") -> None:  # noqa: ARG002 - as above
        """End an accepted client with DISCONNECT, or without one before MQTT 5."""
        if self.is_accepted:
            self._say_disconnect(code, reference)
            self._end_client(code, "disconnected")

    def taken_over(self) -> None:
        """End an accepted client, because the same id has connected at another broker."""
        if self.is_accepted:
            self.is_taken_over = True
            if not self._from_broker.passing:
                self._say_disconnect(TAKEN_OVER)
            self._end_client(TAKEN_OVER, "taken_over")

    def _say_disconnect(self, code: int, reference: str = "") -> None:
        if self._version < 5:
            return
        if code not in _OF_DISCONNECT:
            # A reason of CONNACK alone. Unavailable comes nearest to busy.
            code = 0x89 if code == 0x88 else 0x80
        told = b""
        if reference:
            text = reference.encode()
            told = b"\x1c" + len(text).to_bytes(2, "big") + text
        body = bytes((code,)) + varint(len(told)) + told if told else bytes((code,))
        self.to_client.append(b"\xe0" + varint(len(body)) + body)

    def _offended(self, refusal: Refusal) -> None:
        """End a client that broke a rule."""
        self.counters.refuse(refusal)
        self._say_disconnect(refusal.reason_code)
        self._end_client(refusal.reason_code, refusal.counted_as, is_counted=True)

    def _broker_offended(self, refusal: Refusal, now: float) -> None:  # noqa: ARG002 - as above
        """End the client because its broker broke a rule. No other broker gets the client for that."""
        if self.is_accepted:
            self._say_disconnect(0x80)
        self._end_client(refusal.reason_code, f"broker_{refusal.counted_as}")

    def _end_client(self, code: int, reason: str, *, is_counted: bool = False) -> None:
        if self._phase >= CLOSED:
            return
        self._phase = CLOSED
        self.holds_client = True
        self._from_client.clear()
        if not is_counted:
            self.counters.close(reason)
        self.events.append(Close(code, reason))

    def client_lost(self, now: float) -> None:
        """Take note that the client's connection is closed."""
        if self._is_client_lost:
            return
        self._is_client_lost = True
        self._part(now)

    def _part(self, now: float) -> None:  # noqa: ARG002 - as above
        """Finish the session when the client is gone."""
        has_will = self._connect is not None and self._connect.will is not None
        self._over("broker" if has_will and not self._is_goodbye_said else "none")

    def _over(self, will: str) -> None:
        if self._phase != OVER:
            self._phase = OVER
            self.events.append(CloseBroker())
            self.events.append(Ended(will))

    # --- moves; a variant that keeps nothing cannot move --------------------------------------------------------------

    def detach(self, now: float) -> bytes:  # noqa: ARG002 - as above
        """Give up the broker. This variant ends the client."""
        if self._phase == CONNECTING:
            self._refused(0x88, "the connection was given up")
        elif self.is_accepted:
            self._say_disconnect(0x8B)
            self._end_client(0x8B, "broker_down")
        return b""

    def broker_lost(self, now: float) -> None:  # noqa: ARG002 - as above
        """End the client, because the connection to a broker that is not dead has ended."""
        if self._phase == CONNECTING:
            self._refused(0x88, "it closed the connection before CONNACK")
        elif self.is_accepted:
            self._end_client(0x88, "closed_by_broker")

    def begin_move(self, now: float) -> None:
        """Prepare an orderly move. This variant ends the client, which connects again elsewhere."""
        self.detach(now)

    def replayed(self, publications: Sequence[Replayed], now: float) -> None:
        """Take publications that a federator replays."""

    def replay_ended(self, now: float, complete: bool) -> None:
        """Take note that the replay is over."""

    def known_subscriptions(self, subscriptions: Sequence[Subscription] | None, now: float) -> None:
        """Take the filters of a session that was resumed; None if nobody knows them."""

    def tick(self, now: float) -> None:
        """Do nothing: the broker watches a client of this variant."""

    # --- for the variants ---------------------------------------------------------------------------------------------

    def _first_connect(self, *, strip_will: bool, clean: bool | None, topic_alias_max: int | None) -> bytes:
        connect = self.connect
        if connect.client_id and not strip_will and clean is None and topic_alias_max is None:
            return connect.packet
        return connect.encode(
            client_id=self.client_id, strip_will=strip_will, clean_start=clean, topic_alias_max=topic_alias_max
        )

    def _read_connack(self, packet: bytes) -> Connack:
        connack = read_connack(packet, self._version)
        if self._version == 5 and not connack.code:
            # The broker may keep the session for another time than the client requested (MQTT 5, 3.2.2.3.2).
            self._note_expiry(connack.rest, 0, len(connack.rest))
        return connack

    def _note_goodbye(self, packet: bytes) -> None:
        """Take note of the client's DISCONNECT, which may change the expiry of its session (MQTT 5, 3.14.2.2.2)."""
        end = len(packet)
        i = read_varint(packet, 1, end)[1]
        # 0x04: the client wants its will published.
        self._is_goodbye_said = not (i < end and packet[i] == 0x04)
        if self._version == 5 and i + 1 < end:
            length, i = read_varint(packet, i + 1, end)
            self._note_expiry(packet, i, min(i + length, end))

    def _note_expiry(self, data: bytes, start: int, end: int) -> None:
        for kind, first, last in walk(data, start, end):
            if kind == _SESSION_EXPIRY:
                self.session_expiry_s = int.from_bytes(data[first + 1 : last], "big")
