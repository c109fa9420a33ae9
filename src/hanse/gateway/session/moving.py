"""Moves of a client from broker to broker (`failover = on`). `keeping` handles the packets in between.

Rules:

1. Promises to the client hold: it sees one CONNACK, and an acknowledgement only when a broker has given one.
2. Another broker gets first CONNECT, then the subscriptions, then the publications without an acknowledgement in their
   order, then what the client has sent since. The client's new packets wait until the gateway's own packet identifiers
   are free again, so the client's identifiers are the broker's identifiers.
3. Publications of the new broker wait until the replay of its federator has ended, so that nothing newer comes before
   it.
4. No broker gets the will. The gateway publishes it through the client's session when the client is gone without
   DISCONNECT.
5. A publication that was outstanding while two brokers died goes to no third one: it may be the cause.
6. A lasting session that was left behind at a lost broker is resumed when the client returns there (`attach` with
   `clean=False`). The publications in its queue are delivered if the client lacks them: per content the larger count.
7. A client that cannot be moved without a loss is closed, so that it notices: in the middle of a large packet, with a
   large publication that was not kept, with an Authentication Method, with a resumed session whose filters nobody
   knows, and if another broker refuses it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from hanse.errors import LocalError
from hanse.gateway.session import deliveries, outgoing
from hanse.gateway.session.comparison import Comparison
from hanse.gateway.session.contract import NO_LIMITS, BrokerLimits, Connack, minimum_of
from hanse.gateway.session.counters import Counters
from hanse.gateway.session.deliveries import Deliveries
from hanse.gateway.session.events import (
    Accepted,
    BrokerRefused,
    BrokerWanted,
    CloseBroker,
    Event,
    ReadyToMove,
    Redial,
    ReplayWanted,
    Settled,
    Subscribed,
    Subscription,
    SubscriptionsWanted,
    Unsubscribed,
)
from hanse.gateway.session.outgoing import Outgoing, Publication
from hanse.gateway.session.publication import (
    body_of,
    identifiers,
    read_publish,
    will_delay_of,
    with_id,
    without,
    write_publish,
)
from hanse.gateway.session.received import Received, digest
from hanse.gateway.session.replayed import Replayed
from hanse.gateway.session.requests import codes_of, write_subscribe, write_unsubscribe
from hanse.gateway.session.session import (
    CONNACK,
    CONNECTING,
    DETACHED,
    DISCONNECT,
    LIVE,
    OVER,
    PARTING,
    PUBACK,
    PUBCOMP,
    PUBREC,
    RECONNECTING,
    RESTORING,
    WAITING,
    Session,
)
from hanse.gateway.session.settings import (
    ATTACHED_S,
    DRAIN_S,
    REPLAY_BYTES_MAX,
    RESTORE_TIMEOUT_S,
    WILL_TIMEOUT_S,
    WINDOW_BEFORE_MQTT_5,
    Settings,
)
from hanse.gateway.session.stream import end_of
from hanse.gateway.session.table import AS_PUBLISHED, NO_LOCAL, Table
from hanse.mqtt.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS
from hanse.mqtt.refusal import Refusal

_PINGREQ: Final = b"\xc0\x00"
_PINGRESP: Final = b"\xd0\x00"
# DISCONNECT with reason 0, without and with an end of the session.
_GOODBYE: Final = b"\xe0\x00"
_GOODBYE_AND_END: Final = b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00"
# Refusals for reasons that another broker may not have.
_ELSEWHERE: Final = frozenset({0x88, 0x89, 0x8B, 0x97, 0x9C, 0x9D, 0x9F})
_WILL_DELAY: Final = frozenset({0x18})
_OF_ONE_BROKER: Final = frozenset({SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS})
# Number of brokers to try for one will.
_WILL_TRIES_MAX: Final = 3


class Late:
    """One publication that waits before the client gets it. `broker_id` is 0 if the gateway itself sends it."""

    __slots__ = ("broker_id", "packet", "qos")

    def __init__(self, packet: bytes, qos: int, broker_id: int) -> None:
        self.packet = packet
        self.qos = qos
        self.broker_id = broker_id


class Moving(Session):
    """A client that can be moved from broker to broker."""

    def __init__(self, settings: Settings, counters: Counters, now: float) -> None:
        super().__init__(settings, counters, now)
        self._table = Table()
        self._out = Outgoing()
        self._in = Deliveries()
        self._received = Received(settings.hashes_max)
        # The client's own publications, if a filter of it has No Local.
        self._published = Received(settings.hashes_max)
        # Packets of the client that wait for a broker, and large publications that the gateway could not keep.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._unkept: set[int] = set()
        # Publications for the client that wait for a place in its Receive Maximum; behind them, those of the new broker
        # that wait for the replay.
        self._late: deque[Late] = deque()
        self._late_live: list[Late] = []
        self._late_bytes = 0
        # Whether nothing but counting and remembering has to be done with the broker's packets.
        self._is_plain = True
        # Whether CONNECT, and whether CONNACK, has passed the connection to the broker that is open now.
        self._is_connected = False
        self._is_attached = False
        # Whether the session at the current broker is the one that the client itself began.
        self._is_home = True
        self._receive_max = 65_535
        self._keep_alive_s = 0
        self._broker_keep_alive_s = 0
        self._broker_at = now
        self._to_broker_at = now
        # For each PINGREQ that the broker has not answered: whether it is the client's.
        self._pings: deque[bool] = deque()
        # When a lasting session was left behind at a lost broker, and whether it is being emptied.
        self._away_since: float | None = None
        self._was_moved = False
        # Whether all filters of the session are in the table. Otherwise the client would lose some by a move.
        self._is_table_known = True
        self._is_draining = False
        # The move: its start, and everything on its way.
        self._moved_at: float | None = None
        self._is_cleansing = False
        self._restore_until = 0.0
        self._own_requests: dict[int, list[Subscription]] = {}
        # The next one is the last. A list: an empty deque takes 760 bytes, and most clients never need it.
        self._resends: list[int] = []
        self._is_replay_due = False
        self._replay: Comparison[bytes, Late] | None = None
        self._replay_bytes = 0
        self._is_replay_cut = False
        self._replay_until = 0.0
        self._subscribed_at = now
        self._resent = self._replayed = self._removed = 0
        # Publications that the client has and the new broker has not sent yet (`Comparison.expected`), until a time.
        self._expected: dict[int, int] = {}
        # Publications that it has and may get again at QoS 1, which is only counted.
        self._repeatable: set[int] = set()
        self._watch_until: float | None = None
        # An orderly move: the client's new packets wait, until what is outstanding has been acknowledged.
        self._is_settling = False
        self._is_orderly = False
        self._settle_until = 0.0
        # The end: the client's own DISCONNECT, and the progress of its will.
        self._goodbye = b""
        self._was_accepted = False
        self._is_taken_over = False
        self._will_at = 0.0
        self._will_until = 0.0
        self._will_id = 0
        self._will_tries = 0

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        """Return whether the client is between two brokers, or its will needs one."""
        return DETACHED <= self._phase <= RESTORING or self._is_settling or self._phase == PARTING

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """Return the client's subscriptions."""
        return list(self._table.subscriptions.values())

    def _window(self) -> int:
        """Return how many publications may be outstanding at the client."""
        return min(self.connect.receive_max, deliveries.IDS - 1) if self._version == 5 else WINDOW_BEFORE_MQTT_5

    def _update_plain(self) -> None:
        self._is_plain = (
            self._phase == LIVE
            and self._in.is_plain
            and not self._late
            and not self._late_live
            and self._watch_until is None
        )

    # --- attaching ----------------------------------------------------------------------------------------------------

    def attach(
        self,
        now: float,
        limits: BrokerLimits = NO_LIMITS,
        clean: bool | None = None,
        known: Sequence[Subscription] = (),
    ) -> None:
        """Send CONNECT to a broker whose connection is open."""
        if known:
            self.known_subscriptions(known, now)
        self._is_connected = True
        self._to_broker_at = self._broker_at = now
        strip = self.settings.will == "gateway"
        if self._phase == WAITING:
            self._attach_first(limits, self._first_connect(strip_will=strip, clean=clean, topic_alias_max=0))
            return
        if self._phase not in (DETACHED, PARTING):
            raise LocalError(f"attach was called in phase {self._phase}; detach or broker_lost must come before it.")
        self._from_broker.clear()
        self._pings.clear()
        self._is_home = clean is False
        self._is_draining = False
        is_parting = self._phase == PARTING
        if not is_parting:
            self._phase = RECONNECTING
            self._restore_until = now + RESTORE_TIMEOUT_S
        # MQTT 3 ends a clean session with its connection. A session that must last therefore begins without the flag,
        # and is emptied first if a former one still exists.
        lasts = self._version < 5 and self.connect.session_expiry_s > 0
        # A will is published in passing: the session that may be here stays as it is.
        is_guest = is_parting and self.connect.session_expiry_s > 0
        self.to_broker.append(
            self.connect.encode(
                client_id=self.client_id,
                clean_start=not (self._is_home or is_guest) and (not lasts or self._is_cleansing),
                session_expiry_s=0 if is_parting and not is_guest else None,
                strip_will=strip or is_parting,
                topic_alias_max=0,
            )
        )

    def _take_connack(self, packet: bytes, now: float) -> None:
        connack = self._read_connack(packet)
        self._broker_at = now
        if self._phase == CONNECTING:
            self._take_first_connack(connack, packet, now)
            return
        if connack.code:
            if connack.code in _ELSEWHERE:
                self._refused(connack.code, connack.reason or "its CONNACK says so")
            else:
                self._say_disconnect(connack.code)
                self._end_client(connack.code, "refused_after_move")
            return
        lack = self.limits.met_by(connack.limits) if self._version == 5 else ""
        if lack:
            self._refused(0x9B, lack)
            return
        if self._is_cleansing or (connack.session_present and not self._is_home):
            # A session that this client left here earlier has filters that nobody knows. It ends with this connection.
            self._is_cleansing = not self._is_cleansing
            self._phase = DETACHED
            self._is_connected = False
            self.to_broker.append(_GOODBYE)
            self.events.append(Redial())
            return
        self._begin(connack)
        if self._is_home:
            self._take_up(connack, now)
        self._restore(connack, now)

    def _take_up(self, connack: Connack, now: float) -> None:
        """Prepare to remove from the queue of a former session what the client has received since."""
        since, self._away_since = self._away_since, None
        if connack.session_present and since is not None:
            self._is_draining = True
            since -= self.settings.retention_s
            for content, times in self._received.by_content().items():
                self._expected[content] = sum(1 for time in times if time >= since)
            self._watch_until = now + self.settings.replay_timeout_s + DRAIN_S

    def _refused(self, code: int, text: str) -> None:
        self._is_connected = False
        super()._refused(code, text)

    def _begin(self, connack: Connack) -> None:
        self._is_attached = True
        self._receive_max = connack.limits.receive_max if self._version == 5 else WINDOW_BEFORE_MQTT_5
        self._broker_keep_alive_s = connack.limits.keep_alive_s or self.connect.keep_alive_s

    def _take_first_connack(self, connack: Connack, packet: bytes, now: float) -> None:
        if connack.code:
            self._refused_first(connack, packet)
            return
        self._begin(connack)
        if self._version == 5:
            self.limits = minimum_of((self.limits, connack.limits))
            self.to_client.append(connack.write(self.limits, b"" if self.connect.client_id else self.client_id))
        else:
            self.to_client.append(packet)
        self._keep_alive_s = self.limits.keep_alive_s or self.connect.keep_alive_s
        self._was_accepted = True
        self._phase = LIVE
        self.events.append(Accepted(connack.session_present))
        if connack.session_present and not self._table.subscriptions:
            self._is_table_known = False
            self.events.append(SubscriptionsWanted())
        self.client_data(b"", now)

    # --- restoring ----------------------------------------------------------------------------------------------------

    def _restore(self, connack: Connack, now: float) -> None:
        """Bring a new broker to the state of the lost one."""
        self._phase = RESTORING
        self._was_moved = True
        if self._moved_at is not None and now - self._moved_at > ATTACHED_S:
            self.counters.move("attached_late")
        self._restore_until = now + RESTORE_TIMEOUT_S
        self._is_replay_due = True
        for identifier, filters in self._table.to_repeat(self._version):
            packet_id = self._own_id()
            self._own_requests[packet_id] = [self._table.subscriptions[one] for one, _ in filters]
            self.to_broker.append(write_subscribe(packet_id, filters, self._version, identifier))
            if self._version < 5:
                self._table.quiet.update(one for one, _ in filters)
        if connack.session_present and self._table.removed:
            packet_id = self._own_id()
            self._own_requests[packet_id] = []
            self.to_broker.append(write_unsubscribe(packet_id, sorted(self._table.removed), self._version))
        self._table.removed.clear()
        self.to_broker += [one.packet for one in self._requests.waiting.values()]
        self._plan_resends()
        if self._phase == RESTORING:
            self._pump_resends()
            self._to_broker_at = now
            self._go_on(now)

    def _own_id(self) -> int:
        """Return a packet identifier towards the broker that the client does not use."""
        kept, waiting, own = self._out.kept, self._requests.waiting, self._own_requests
        one = 65_535
        while one in kept or one in waiting or one in own:
            one -= 1
        return one

    def _plan_resends(self) -> None:
        """Decide which publications go to the new broker again; the oldest goes first."""
        out = self._out
        older = dict(out.kept)
        recent = out.take_recent()
        out.kept.clear()
        out.kept_bytes = 0
        for packet, sendings in recent:
            if sendings >= outgoing.SENDINGS_MAX:
                # It was sent shortly before two brokers died. It has been acknowledged, so the client goes on without
                # it.
                self.counters.drop("suspect")
                continue
            packet_id = 65_535
            while (
                packet_id in older
                or packet_id in out.kept
                or packet_id in self._requests.waiting
                or packet_id in self._own_requests
            ):
                packet_id -= 1
            out.keep(packet_id, Publication(with_id(packet, packet_id), 1, is_own=True, sendings=sendings))
        for packet_id, publication in older.items():
            out.keep(packet_id, publication)
        for publication in out.kept.values():
            if publication.sendings >= outgoing.SENDINGS_MAX:
                self.counters.drop("suspect")
                self._say_disconnect(0x80)
                self._end_client(0x80, "suspect_publication")
                return
            if publication.at_client == outgoing.RELEASED:
                self.counters.move("in_doubt")
                if self.settings.qos2_in_doubt == "close":
                    self._say_disconnect(0x8B)
                    self._end_client(0x8B, "in_doubt")
                    return
            publication.at_broker = outgoing.UNSENT
        self._resends = list(reversed(out.kept))

    def _pump_resends(self) -> None:
        """Send as many publications again as the broker's Receive Maximum allows."""
        if not self._resends:
            return
        kept = self._out.kept
        outstanding = sum(1 for one in kept.values() if one.at_broker != outgoing.UNSENT)
        while self._resends and outstanding < self._receive_max:
            publication = kept.get(self._resends.pop())
            if publication is None or publication.at_broker != outgoing.UNSENT:
                continue
            publication.at_broker = outgoing.SENT
            publication.sendings += 1
            # Another broker has never seen it: DUP would be wrong.
            self.to_broker.append(bytes((publication.packet[0] & 0xF7,)) + publication.packet[1:])
            outstanding += 1
            self._resent += 1

    def _go_on(self, now: float) -> None:
        """Take the next step of a move, if its time has come."""
        if self._phase != RESTORING:
            return
        self._pump_resends()
        if self._own_requests:
            return
        if self._is_replay_due and self._replay is None:
            filters = self._table.replayable()
            if filters:
                settings = self.settings
                self._replay = Comparison(
                    self._received.by_content(), settings.overlap_s, settings.lag_s, is_draining=self._is_draining
                )
                for late in self._late_live:
                    if late.qos:
                        self._replay.came_live(self._digest_of(late.packet), now, late)
                self._replay_bytes = 0
                self._is_replay_cut = False
                self._subscribed_at = now
                self._replay_until = now + settings.replay_timeout_s
                since = min(self._table.since[one] for one in filters)
                self.events.append(ReplayWanted(filters, int((now - since + settings.overlap_s) * 1000) + 1))
            else:
                self._end_replay()
        if self._is_replay_due or self._resends or any(one.is_own for one in self._out.kept.values()):
            return
        self._settle(now)

    def _settle(self, now: float) -> None:
        """End a move: from now on packets go through as they come."""
        self._phase = LIVE
        counters = self.counters
        counters.move("settled")
        counters.move("resent", self._resent)
        counters.move("replayed", self._replayed)
        counters.move("removed", self._removed)
        began = now if self._moved_at is None else self._moved_at
        self.events.append(Settled(now - began, self._resent, self._replayed, self._removed))
        self._moved_at = None
        self._resent = self._replayed = self._removed = 0
        self._update_plain()
        self._release_client(now)

    def _release_client(self, now: float) -> None:
        """Release the client's packets that have waited for a broker."""
        waiting = self._waiting
        waiting += self._from_client.pieces
        self._waiting = []
        self._waiting_bytes = 0
        self._from_client.clear()
        self._hold()
        if waiting:
            self.client_data(b"".join(waiting), now)

    def _hold(self) -> None:
        """Decide which side is read."""
        raise NotImplementedError

    def _flush_late(self, now: float) -> None:
        raise NotImplementedError

    def _granted(self, event: Event) -> None:
        if isinstance(event, Unsubscribed):
            self._table.remove(event.filters)
        elif isinstance(event, Subscribed):
            try:
                self._table.add(event.subscriptions, self._broker_at)
            except Refusal as refusal:
                self._offended(refusal)

    def _own_answer(self, packet: bytes, packet_id: int, now: float) -> None:
        """Take the SUBACK or UNSUBACK of a request that the gateway itself sent."""
        wanted = self._own_requests.pop(packet_id)
        codes = codes_of(packet, self._version)[1]
        for subscription, code in zip(wanted, codes, strict=False):
            if code >= 0x80:
                # Without the filter the client would miss messages and not notice.
                self._say_disconnect(0x87)
                self._end_client(0x87, "filter_refused_after_move")
                return
            if code < subscription.qos:
                self.counters.move("lower_qos")
        self._go_on(now)

    # --- the replay ---------------------------------------------------------------------------------------------------

    def _digest_of(self, packet: bytes) -> int:
        found = read_publish(packet, self._version)
        return digest(found.topic, found.payload)

    def replayed(self, publications: Sequence[Replayed], now: float) -> None:  # noqa: ARG002 - times are in them
        """Take publications that federators replay, oldest first."""
        replay = self._replay
        if replay is None:
            return
        for one in publications:
            if self._replay_bytes + len(one.packet) > REPLAY_BYTES_MAX:
                self.counters.drop("replay_overflow")
                self._is_replay_cut = True
                continue
            self._replay_bytes += len(one.packet)
            replay.add(one.time, one.content, one.packet, is_once=one.qos == 2, is_at_host=one.is_at_host)

    def replay_ended(self, now: float, complete: bool) -> None:
        """Take note that the replay is over, or that there is none."""
        replay = self._replay
        if replay is None:
            return
        complete = complete and not self._is_replay_cut
        if not complete:
            self.counters.move("replay_incomplete")
        missing, known = replay.missing()
        # The client already has the publications that overtook the replay.
        waiting = {id(one) for one in self._late_live}
        self._swallow_known([one for one in known if id(one) in waiting])
        own = set(self._published.by_content()) if self._table.has_no_local else set()
        digests = []
        for entry in missing:
            late = entry.live
            if late is None and entry.item is not None:
                late = self._late_of_replay(entry.time, entry.item, entry.content in own)
                if late is None:
                    continue
                self._late_bytes += len(late.packet)
                self._replayed += 1
            elif id(late) not in waiting:
                continue
            if late is not None:
                digests.append(entry.content)
                self._late.append(late)
        # Publications of QoS 0 are in no comparison.
        self._late += [one for one in self._late_live if not one.qos]
        self._late_live = []
        self._received.add(digests, now)
        self._removed += replay.removed
        if self._is_draining:
            self._watch_until = now + DRAIN_S
        elif complete:
            self._expected = replay.expected(now - self.settings.lag_s)
            for entry in replay.may_come(self._subscribed_at - self.settings.overlap_s):
                if entry.is_once:
                    self._expected[entry.content] = self._expected.get(entry.content, 0) + 1
                else:
                    self._repeatable.add(entry.content)
            self._watch_until = now + self.settings.watch_s
        elif self._table.has_no_local or self._table.quiet:
            self._watch_until = now + self.settings.watch_s
        self._end_replay()
        self._flush_late(now)
        self._go_on(now)

    def _swallow_known(self, known: list[Late]) -> None:
        """Acknowledge publications of the new broker that the client already has."""
        for one in known:
            self._late_bytes -= len(one.packet)
            self._swallow(one.qos, one.broker_id)

    def _swallow(self, qos: int, broker_id: int) -> None:
        """Acknowledge a publication that the client does not get."""
        if qos == 1:
            self.to_broker.append(b"\x40\x02" + broker_id.to_bytes(2, "big"))
        elif qos == 2:
            self._in.swallowed.add(broker_id)
            self.to_broker.append(b"\x50\x02" + broker_id.to_bytes(2, "big"))

    def _end_replay(self) -> None:
        self._replay = None
        self._is_replay_due = False
        self._release_live(self._broker_at)

    def _release_live(self, now: float) -> None:
        """Release the new broker's publications that have waited for the replay."""
        live, self._late_live = self._late_live, []
        self._received.add([self._digest_of(one.packet) for one in live if one.qos], now)
        self._late += live

    def _late_of_replay(self, time: float, packet: bytes, is_own: bool) -> Late | None:
        """Return a replayed publication in the form for this client; None if it does not get it."""
        found = read_publish(packet, 5)
        since = self._table.since
        wanting = [
            one
            for one in self._table.matching(found.topic)
            if one.qos
            and since[one.filter] <= time + self.settings.overlap_s
            and not (is_own and one.options & NO_LOCAL)
        ]
        if not wanting:
            return None
        qos = min(found.qos, max(one.qos for one in wanting))
        properties = without(found.properties, _OF_ONE_BROKER)
        properties += identifiers(sorted({one.identifier for one in wanting if one.identifier}))
        retain = found.retain and any(one.options & AS_PUBLISHED for one in wanting)
        made = write_publish(self._version, found.topic, found.payload, qos, 1, properties, retain=retain)
        packet_bytes_max = self.connect.packet_bytes_max
        if packet_bytes_max is not None and len(made) > packet_bytes_max:
            self.counters.drop("packet_too_large")
            return None
        return Late(made, qos, 0)

    def known_subscriptions(self, subscriptions: Sequence[Subscription] | None, now: float) -> None:
        """Take the filters of a session that was resumed; those that the client has named since are newer."""
        if subscriptions is None:
            return
        self._is_table_known = True
        known = self._table.subscriptions
        new = tuple(one for one in subscriptions if one.filter not in known and one.filter not in self._table.removed)
        if new:
            try:
                self._table.add(new, now)
            except Refusal as refusal:
                self._offended(refusal)

    # --- leaving a broker ---------------------------------------------------------------------------------------------

    def begin_move(self, now: float) -> None:
        """Prepare an orderly move: wait until what is outstanding has been acknowledged."""
        if self._phase == LIVE and not self._is_settling:
            self._is_settling = True
            self._settle_until = now + self.settings.settle_s
            self._look_settled(now)

    def _look_settled(self, now: float) -> None:
        is_quiet = not (
            self._out.kept or self._requests.waiting or self._unkept or self._from_client.passing or self._barred
        )
        if self._phase == LIVE and not self._is_orderly and (is_quiet or now >= self._settle_until):
            self._is_orderly = True
            if not is_quiet:
                self.counters.move("not_settled")
            self.events.append(ReadyToMove())

    def detach(self, now: float) -> bytes:
        """Give up the broker; return the bytes for the old connection."""
        if self._phase == CONNECTING:
            self._refused(0x88, "the connection was given up")
            return b""
        is_attached, self._is_attached = self._is_attached, False
        is_connected, self._is_connected = self._is_connected, False
        is_orderly = self._is_orderly
        # A DISCONNECT inside a packet would be a part of it.
        is_clean_cut = not self._from_client.passing
        self.to_broker.clear()
        self._will_id = 0
        if self.is_accepted:
            self._leave(now)
        if not is_connected or not is_attached or not is_clean_cut:
            return b""
        ends = self._version == 5 and self.connect.session_expiry_s > 0
        return _GOODBYE_AND_END if ends and (is_orderly or self.settings.drain_old == "discard") else _GOODBYE

    def _leave(self, now: float) -> None:
        """Keep everything that the next broker must get."""
        if self._moved_at is None:
            self._moved_at = now
        is_cut = bool(self._from_broker.passing)
        is_lost = bool(self._unkept) or self.connect.auth_method is not None or not self._is_table_known
        if self._is_orderly:
            self._out.forget_recent()
        else:
            self._out.forget_before(self._broker_at - self.settings.replay_window_s)
            if self._away_since is None and self.session_expiry_s and self.settings.drain_old == "missing":
                self._away_since = now
        self._is_settling = self._is_orderly = False
        self._drop_half_sent()
        self._phase = DETACHED
        self._from_broker.clear()
        self._own_requests.clear()
        self._resends.clear()
        self._replay = None
        self._end_watch()
        self.to_client += [b"\x62\x02" + one.to_bytes(2, "big") for one in self._in.orphan()]
        self._end_replay()
        for late in self._late:
            late.broker_id = 0
        self.to_client += [_PINGRESP for is_client in self._pings if is_client]
        self._pings.clear()
        self.holds_broker = False
        self._is_plain = False
        if is_cut:
            # The client waits for the rest of a packet: nothing else can be sent to it.
            self.to_client.clear()
            self._end_client(0x8B, "cut_packet")
        elif is_lost:
            self._say_disconnect(0x8B)
            self._end_client(0x8B, "not_movable")
        else:
            self._hold()

    def _drop_half_sent(self) -> None:
        """Forget the rest of a packet of which the lost broker has the beginning."""
        raise NotImplementedError

    def broker_lost(self, now: float) -> None:
        """End the client, because the connection to a broker that is not dead has ended."""
        self._is_attached = self._is_connected = False
        self.to_broker.clear()
        if self._phase in (CONNECTING, RECONNECTING):
            self._refused(0x88, "it closed the connection before CONNACK")
        elif self.is_accepted:
            self._end_client(0x88, "closed_by_broker")
        elif self._phase == PARTING:
            self._seek_broker(now)

    # --- the end ------------------------------------------------------------------------------------------------------

    def taken_over(self) -> None:
        """End the client without its will, and its session at this broker."""
        if self.is_accepted:
            self._is_taken_over = True
            if not self._from_client.passing:
                ends = self._version == 5 and self.connect.session_expiry_s > 0
                self._goodbye = _GOODBYE_AND_END if ends else _GOODBYE
                if ends and self._is_attached:
                    self.session_expiry_s = 0
                # The DISCONNECT keeps the broker from publishing a will that it has.
                self._is_goodbye_said = self.settings.will == "broker"
        super().taken_over()

    def _part(self, now: float) -> None:
        """Finish the session when the client is gone."""
        if self._phase == OVER:
            return
        will = self.connect.will if self._connect is not None else None
        if will is None or self._is_goodbye_said or not self._was_accepted:
            self._over("none")
        elif self.settings.will == "broker":
            self._over("broker")
        elif self._is_taken_over:
            self._over("cancelled")
        else:
            self._phase = PARTING
            if self._from_client.passing and self._is_connected:
                # The client has died inside a large packet. Nothing else fits into that connection.
                self._is_attached = self._is_connected = False
                self.events.append(CloseBroker())
            self._from_client.clear()
            self._waiting.clear()
            self._late.clear()
            self._late_live.clear()
            self.holds_broker = False
            delay_s = min(will_delay_of(will.properties), self.connect.session_expiry_s) if self._version == 5 else 0
            self._will_at = now + delay_s
            self._will_until = self._will_at + WILL_TIMEOUT_S
            if self._is_attached:
                self._publish_will(now)
            elif not self._is_connected:
                self._seek_broker(now)

    def _seek_broker(self, now: float) -> None:
        """Ask for a broker that publishes the will."""
        self._will_id = 0
        self._will_tries += 1
        if self._will_tries > _WILL_TRIES_MAX or now > self._will_until:
            self._over("lost")
        else:
            self.events.append(BrokerWanted())

    def _publish_will(self, now: float) -> None:
        will = self.connect.will
        if will is None or self._will_id or now < self._will_at:
            return
        qos = min(will.qos, self.limits.qos_max)
        packet_id = self._own_id()
        retain = will.retain and self.limits.has_retain
        properties = without(will.properties, _WILL_DELAY)
        self.to_broker.append(
            write_publish(self._version, will.topic, will.payload, qos, packet_id, properties, retain=retain)
        )
        self._will_id = packet_id
        if not qos:
            self._end_parting()

    def _end_parting(self) -> None:
        goodbye = self._goodbye or _GOODBYE
        # The client's own DISCONNECT asked for its will. The broker has none, so it gets a normal DISCONNECT.
        self.to_broker.append(goodbye[:2] + b"\0" + goodbye[3:] if len(goodbye) > 2 else goodbye)
        self._over("published")

    def _take_parting(self, data: bytes, now: float) -> None:
        """Read only the packets that the will waits for."""
        stream = self._from_broker
        if stream.passing:
            gone = min(stream.passing, len(data))
            stream.passing -= gone
            data = data[gone:]
        data = stream.take(data)
        size = len(data)
        i = 0
        while i + 2 <= size and self._phase == PARTING:
            end = end_of(data, i, size)
            if not end or end > size:
                break
            self._parting_packet(data[i:end], now)
            i = end
        if i < size and self._phase == PARTING:
            end = end_of(data, i, size) if i + 2 <= size else 0
            if end and data[i] & 0xF0 == 0x30:
                stream.passing = end - size
            else:
                stream.keep(data[i:], (end or size + 1) - i)

    def _parting_packet(self, packet: bytes, now: float) -> None:
        kind = packet[0] & 0xF0
        body = body_of(packet, 0)
        if kind == CONNACK:
            connack = self._read_connack(packet)
            if connack.code:
                self._is_connected = False
                self._over("lost")
            else:
                self._begin(connack)
                self._publish_will(now)
        elif kind == DISCONNECT:
            if self._version == 5 and len(packet) > 2 and packet[2] == 0x8E:
                self._over("cancelled")
        elif kind in (PUBACK, PUBREC, PUBCOMP) and len(packet) >= body + 2:
            if not self._will_id or packet[body] << 8 | packet[body + 1] != self._will_id:
                return
            is_refused = len(packet) > body + 2 and packet[body + 2] >= 0x80
            if is_refused and kind != PUBCOMP:
                self.counters.drop("will_refused")
                self._over("lost")
            elif kind == PUBREC:
                self.to_broker.append(b"\x62\x02" + self._will_id.to_bytes(2, "big"))
            else:
                self._end_parting()

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Handle everything that depends on time."""
        phase = self._phase
        if phase == LIVE:
            self._out.forget_before(self._broker_at - self.settings.replay_window_s)
            away = now if self._away_since is None else self._away_since
            self._received.forget_before(away - self.settings.retention_s)
            if self._table.has_no_local:
                self._published.forget_before(now - self.settings.retention_s)
            if self._watch_until is not None and now > self._watch_until:
                self._end_watch()
                self._update_plain()
            if self._is_settling:
                self._look_settled(now)
        elif phase in (RECONNECTING, RESTORING):
            self._look_restored(now)
        elif phase == PARTING:
            if now > self._will_until:
                self._over("lost")
            elif self._is_attached:
                self._publish_will(now)
        if self.is_accepted or phase == PARTING:
            self._mind_keep_alive(now)

    def _look_restored(self, now: float) -> None:
        if self._replay is not None:
            if now > self._replay_until:
                self.replay_ended(now, False)
        elif now > self._restore_until and (self._phase == RECONNECTING or self._own_requests):
            self.detach(now)
            self.events.append(BrokerRefused(0x88, False, f"it has not answered for {RESTORE_TIMEOUT_S:g} s"))

    def _end_watch(self) -> None:
        """Compare no more publications with what the client has."""
        self._watch_until = None
        self._expected = {}
        self._repeatable = set()

    def _mind_keep_alive(self, now: float) -> None:
        if self.is_accepted and self._keep_alive_s and now - self._client_at > 1.5 * self._keep_alive_s:
            self._say_disconnect(0x8D)
            self._end_client(0x8D, "keep_alive")
        elif (
            self._is_attached and self._broker_keep_alive_s and now - self._to_broker_at > self._broker_keep_alive_s / 2
        ):
            self._to_broker_at = now
            self._pings.append(False)
            self.to_broker.append(_PINGREQ)

    def _over(self, will: str) -> None:
        if self._goodbye and self._is_attached and will != "published":
            self.to_broker.append(self._goodbye)
        super()._over(will)
