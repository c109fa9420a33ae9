"""The session at the host broker: one client that both publishes and subscribes, because No Local is per client.

Rules:

- It subscribes to a group only while the protocol says that a federator elsewhere wants it, and no wider group is
  wanted as well (`covering`). Each subscription has an identifier of its own, No Local, Retain As Published and Retain
  Handling 2, because a covering subscription must never replay.
- Publications for identifier 1 are for the agent itself (interest, probes); the others are for the federation.
- The session outlives the process. QoS 2 is journaled: the packet identifier of a message before it goes out, and its
  release and delivery before PUBREL. The next process sends only PUBREL for released messages, and uses the same packet
  identifier for unreleased ones that are sent again (R58).
- A host broker that speaks 3.1.1 has none of these. `older_host` stands between it and the agent, which sees no
  difference.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from hanse.errors import HanseError, Unavailable
from hanse.federator.covering import Change, Covering
from hanse.federator.journal import DeliveryJournal, MessageId
from hanse.federator.lane import Groups, Lane
from hanse.federator.obligations import DeliveryBook, Obligation
from hanse.federator.older_host import OlderHost
from hanse.federator.ring import DeliveredRing
from hanse.federator.sessions import Sessions
from hanse.federator.settings import FederatorSettings
from hanse.federator.unknown.learning import Learning
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.limits import PUBLISH_ID_MAX
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.subscriptions import Subscription
from hanse.mqtt.urls import Address
from hanse.mqtt.v311 import Written
from hanse.mqtt.websocket_publisher import connect_packet
from hanse.protocol.messages import Run
from hanse.protocol.topics import matches

INTERNAL_IDENTIFIER = 1
# Reads of the host session that wait while a look finds out whether the broker has restarted.
HELD_MAX = 1_000
# Below these the federator tries its own host; as all probes, they never cross.
# Six lines of Mosquitto's log, of at most 999 bytes each; its output buffer has 4,096.
_NEVER_SUBSCRIBED = [f"hanse/tree/{number}/{'-' * 850}" for number in range(6)]
_HOST_PROBE_TOPIC = "hanse/probe/host"
_SELF_PROBE_TOPIC = "hanse/probe/self"
_SESSION_EXPIRY_S = 3600


def client_settings(settings: FederatorSettings, sessions: Sessions) -> ClientSettings:
    """Return the settings of the session, which outlives the process for a time."""
    return ClientSettings(
        settings.broker,
        sessions.host_id,
        username=settings.username,
        password=settings.password,
        tls=settings.host_tls(),
        socket_path=settings.broker_socket,
        clean_start=False,
        session_expiry_s=_SESSION_EXPIRY_S,
        version=settings.mqtt_version(),
        probe_topic=_HOST_PROBE_TOPIC,
        probe_client_id=sessions.of("probe"),
    )


class HostSession(ClientHandler):
    """The agent's access to its host broker."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        on_publications: Callable[[list[Publication]], None],
        on_internal: Callable[[list[Publication]], None],
        on_state: Callable[[bool, HanseError | None], None],
        on_credit: Callable[[], None],
        journal: DeliveryJournal,
        ring: DeliveredRing,
        counters: Counter[str] | None = None,
        on_forgotten: Callable[[], None] | None = None,
        on_unmatched: Callable[[list[tuple[int, str]]], None] = lambda _: None,
        lane: Address | None = None,
        lane_id: str = "",
        on_granted: Callable[[str], None] | None = None,
        on_ended: Callable[[str], None] | None = None,
    ) -> None:
        # A broker that sends us its log must not be told a limit: see `hanse.mqtt.skipping`.
        self.client = Client(replace(settings, tells_packet_max=False), self)
        self._journal = journal
        self._ring = ring
        # Number of a QoS 2 publication that the host broker has not completed, to its id and packet identifier.
        self._exact: dict[int, tuple[MessageId, int]] = {}
        self._reserved: set[int] = set()
        self._resume()
        # While publications are held, they go to `_held`.
        self._take_publications = self._pass_on = on_publications
        self._held: list[list[Publication]] = []
        # While the host broker refuses deliveries.
        self.is_refusing = False
        # Called for the federation's subscriptions when the host broker grants and ends them.
        self._tell_granted = on_granted or (lambda _: None)
        self._tell_ended = on_ended or (lambda _: None)
        self._take_internal = on_internal
        self._tell_state = on_state
        self._tell_credit = on_credit
        self._tell_unmatched = on_unmatched
        # Told of deliveries of QoS 1 while it learns from their acknowledgements.
        self.learner: Learning | None = None
        # Called when the host broker has lost the session: its packet identifiers restart.
        self._tell_forgotten = on_forgotten or (lambda: None)
        self._covering = Covering()
        # Identifiers of the subscriptions that it holds, or has requested.
        self._identifiers: dict[str, int] = {}
        self._next_identifier = INTERNAL_IDENTIFIER + 1
        # Whether duplicates can arrive. It outlives the overlap, because the broker may have queued some.
        self.has_overlaps = False
        self._deliveries = DeliveryBook()
        self.refused_subscriptions = 0
        # Whether the broker still had the session when it last accepted the connection.
        self.session_present = False
        self._counters: Counter[str] = Counter() if counters is None else counters
        self._listened: list[str] = []
        self._older: OlderHost | None = None
        # Whether the host says of each publication whether it is retained. MQTT 3.1.1 cannot.
        self.tells_retain = True
        self._left_at: float | None = None
        self._lane_address = lane
        self._lane_id = lane_id
        self._lane: Lane | None = None
        # Whether the session holds only subscriptions of this process.
        self._knows_session = False
        # Subscription requests to send once the bulk connection is no longer used.
        self._unsaid: list[Change] = []

    # --- outgoing -----------------------------------------------------------------------------------------------------

    def listen(self, topics: Iterable[str]) -> None:
        """Subscribe for the agent itself; at QoS 1, because a duplicate report does no harm.

        The broker retains its own publications. Without Retain As Published, RETAIN distinguishes a value from before
        the subscription from a new one.
        """
        topics = list(topics)
        self._listened += topics
        if self._older is not None:
            self._older.listen(topics)
        self.client.subscribe(
            Subscription(
                topic,
                qos=1,
                identifier=INTERNAL_IDENTIFIER,
                retain_handling=0,
                retain_as_published=not topic.startswith("$SYS/"),
            )
            for topic in topics
        )

    def prompt_log(self) -> None:
        """Make the broker log more than a block of its output buffer.

        Mosquitto logs each unsubscription, even for a filter without a subscription.
        """
        self.client.unsubscribe(_NEVER_SUBSCRIBED)

    def subscribes_to(self, topic: str) -> bool:
        """Return whether a subscription of the session for the federation matches a topic."""
        return any(matches(filter_, topic) for filter_ in self._identifiers)

    def want(self, group: str) -> None:
        """Subscribe to a group that a federator elsewhere wants, unless an existing subscription covers it."""
        self._say(self._covering.want(group))

    def release(self, group: str) -> None:
        """Unsubscribe from a group that no federator elsewhere wants any longer."""
        self._say(self._covering.release(group))

    def holds(self, filter_: str) -> bool:
        """Return whether the host broker has granted a filter, or one that covers it."""
        if not self.client.is_connected:
            return False
        return self.client.is_granted(filter_) or self._covering.is_covered(filter_)

    def _say(self, change: Change) -> None:
        if self._lane is not None and (self._unsaid or self._lane.meets(change.subscribe)):
            self._unsaid.append(change)
            if len(self._unsaid) == 1:
                self._lane.leave(self._say_the_rest)
            return
        self._say_now(change)

    def _say_the_rest(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for change in unsaid:
            self._say_now(change)

    def _say_now(self, change: Change) -> None:
        for filter_ in change.subscribe:
            identifier = self._identifiers[filter_] = self._next_identifier
            self._next_identifier += 1
            self.has_overlaps = self.has_overlaps or len(self._identifiers) > 1
            if self._older is not None:
                self._older.asked(filter_)
            self.client.subscribe([Subscription(filter_, qos=2, identifier=identifier)])
        for filter_ in change.unsubscribe:
            del self._identifiers[filter_]
            if self._older is not None:
                self._older.released(filter_)
        if change.unsubscribe:
            self.client.unsubscribe(change.unsubscribe)

    @property
    def newest_identifier(self) -> int:
        """Identifier of the last requested subscription."""
        return self._next_identifier - 1

    def deliver(self, body: bytes, qos: int, count: int, obligation: Obligation | None) -> None:
        """Publish a run at the host broker; its acknowledgement settles the obligation."""
        if self._older is not None:
            body, count = self._older.carried(body, count)
            if not count:
                return
        number = self.client.publish_run(body, qos=qos, count=count)
        if number and obligation is not None:
            self._deliveries.add(number, count, obligation)
        if qos == 1 and self.learner is not None and self.learner.is_active:
            self.learner.sent(number, body)

    def deliver_loose(self, body: bytes, count: int, groups: list[Groups]) -> None:
        """Publish the federation's QoS 0 publications of these groups."""
        if self.learner is not None and self.learner.is_active and self._older is None:
            # Without capacity for QoS 1 they are published as they are, and dropped if they must be.
            with contextlib.suppress(Unavailable):
                self.deliver(self.learner.raised(body), 1, count, None)
                return
        if self._lane is None:
            self.deliver(body, 0, count, None)
        else:
            self._lane.deliver(body, count, groups)

    def deliver_run(self, run: Run, obligation: Obligation) -> None:
        """Publish a QoS 1 or 2 run of the federation.

        Raises:
            Unavailable: The host broker has no capacity for it now.
        """
        if run.qos == 1:
            self.deliver(run.body, 1, run.length, obligation)
            return
        first = self.client.next_number
        messages = [(run.origin, run.epoch, run.first + offset) for offset in range(run.length)]
        former = [self._former_id(message) for message in messages] if self._reserved else []
        self._exact.update((first + offset, (message, 0)) for offset, message in enumerate(messages))
        try:
            if any(former):
                self._deliveries.add(self.client.publish_again(run.body, former), run.length, obligation)
            else:
                self.deliver(run.body, 2, run.length, obligation)
        except Unavailable:
            for number in range(first, first + run.length):
                del self._exact[number]
            raise
        self._reserved.difference_update(former)

    def measure(self, identity: int, taken: Callable[[], None]) -> None:
        """Publish a probe at QoS 1, and call `taken` when the host broker has acknowledged it."""
        self._probe(str(identity), taken)

    def fence(self, name: str, passed: Callable[[], None]) -> None:
        """Call `passed` when the host broker has read everything published until now."""
        self._probe(name, passed)

    def hold(self, is_held: bool) -> None:
        """Let publications for the federation wait, or hand on those that waited."""
        if is_held:
            self._take_publications = self._keep
            return
        self._take_publications = self._pass_on
        held, self._held = self._held, []
        for publications in held:
            self._pass_on(publications)

    def _keep(self, publications: list[Publication]) -> None:
        self._held.append(publications)
        if len(self._held) > HELD_MAX:
            self._counters["held_too_long"] += 1
            self.hold(False)

    def _probe(self, name: str, taken: Callable[[], None]) -> None:
        obligation = Obligation(taken)
        self.deliver(encode(f"{_SELF_PROBE_TOPIC}/{name}", b"", qos=1), 1, 1, obligation)
        obligation.settle()

    def _former_id(self, message: MessageId) -> int:
        """Return the packet identifier under which the host broker may know a former process's message, or 0."""
        packet_id = self._journal.packet_id_of(*message) or 0
        return packet_id if packet_id in self._reserved else 0

    def _resume(self) -> None:
        """Resume the QoS 2 messages of the former process."""
        left = self._journal.open()
        released = [(packet_id, message) for packet_id, message, is_released in left if is_released]
        # Messages that the host broker holds for lost identifiers would fill its window for ever. A released one may be
        # delivered twice.
        known = {packet_id for packet_id, _, _ in left}
        lost = [packet_id for packet_id in self._journal.lost if packet_id <= PUBLISH_ID_MAX and packet_id not in known]
        numbers = self.client.resume([(packet_id, None) for packet_id in [*[one for one, _ in released], *lost]])
        for number, (packet_id, message) in zip(numbers, released, strict=False):
            self._exact[number] = (message, packet_id)
            self._ring.add(*message, 1)
        self._reserved = {packet_id for packet_id, _, is_released in left if not is_released}
        self.client.reserve(self._reserved)

    def on_assigned(self, first_number: int, first_packet_id: int, count: int) -> None:
        """Note packet identifiers of QoS 2 publications before they are written."""
        for offset in range(count):
            known = self._exact.get(first_number + offset)
            if known is not None:
                message = known[0]
                self._exact[first_number + offset] = (message, first_packet_id + offset)
                self._journal.assign(first_packet_id + offset, *message)

    def on_received(self, pairs: list[tuple[int, int]]) -> None:
        """Note that the host broker has the messages, before PUBREL is written: from here on they are delivered."""
        for number, packet_id in pairs:
            known = self._exact.get(number)
            if known is not None:
                # A kill between the two leaves it released, and `_resume` adds it. In the other order it would count as
                # delivered, and PUBREL would never be sent.
                self._journal.release(packet_id)
                self._ring.add(*known[0], 1)

    def _complete(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            known = self._exact.pop(number, None)
            if known is not None and known[1]:
                self._journal.complete(known[1])

    # --- callbacks of the client --------------------------------------------------------------------------------------

    def on_publications(self, publications: list[Publication]) -> None:
        """Handle one read: separate the agent's own messages from those for the federation."""
        if self._older is not None:
            self._sift(self._older, publications)
            return
        identifiers = publications[0][6]
        if len(publications) > 1 or (identifiers and identifiers[0] == INTERNAL_IDENTIFIER):
            publications = self._without_own(publications)
        if publications:
            self._take_publications(publications)

    def _without_own(self, publications: list[Publication]) -> list[Publication]:
        own = [p for p in publications if p[6] and p[6][0] == INTERNAL_IDENTIFIER]
        if not own:
            return publications
        self._take_internal(own)
        self.client.ack([p[5] for p in own if p[5]])
        return [p for p in publications if not p[6] or p[6][0] != INTERNAL_IDENTIFIER]

    def _sift(self, older: OlderHost, publications: list[Publication]) -> None:
        own, fresh, rest = older.sift(asyncio.get_running_loop().time(), publications)
        if own:
            self._take_internal(own)
        if done := [p[5] for p in (*own, *rest) if p[5]]:
            self.client.ack(done)
        if fresh:
            self._take_publications(fresh)

    def on_written(self, written: list[Written]) -> None:
        """Note publications that leave for a 3.1.1 broker, which may send them back."""
        if self._older is not None:
            self._older.written(asyncio.get_running_loop().time(), written)

    def on_acknowledged(self, numbers: list[int]) -> None:
        """Note publications that the host broker has acknowledged."""
        if self._exact:
            self._complete(numbers)
        if self.learner is not None:
            self.learner.acknowledged(numbers)
        self._deliveries.settle(numbers)

    def on_unmatched(self, unmatched: list[tuple[int, str]]) -> None:
        """Note publications without a subscriber at the host broker."""
        self._tell_unmatched(unmatched)

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        """Settle publications that the host broker refused for good; the client has counted them."""
        self._complete([number for number, _ in refused])
        self.is_refusing = True
        self._deliveries.settle([number for number, _ in refused])
        self.is_refusing = False

    def on_credit(self) -> None:
        """Tell the delivery that there is capacity again."""
        self._tell_credit()

    def on_connected(self, session_present: bool) -> None:
        """Handle an accepted connection. A new session has nothing of the old one's queue."""
        self.session_present = session_present
        self._know_host(session_present)
        if not session_present:
            self.has_overlaps = len(self._identifiers) > 1
            self._tell_forgotten()
        self._knows_session = self._knows_session or not session_present
        if self._lane_address is not None and self._older is None and self._knows_session:
            self._lane = self._lane or self._make_lane(self._lane_address)
            self._lane.start()
        self._tell_state(True, None)

    def _make_lane(self, address: Address) -> Lane:
        return Lane(
            address,
            connect_packet(self._lane_id, *self.client.login),
            publish=lambda body, count: self.deliver(body, 0, count, None),
            fence=lambda passed: self._probe("lane", passed),
            held=lambda: self._covering.held,
            is_settled=lambda: self.client.is_subscribed,
            counters=self.client.counters,
        )

    @property
    def uses_lane(self) -> bool:
        """Return whether QoS 0 uses the bulk connection now."""
        return self._lane is not None and self._lane.is_used

    def _know_host(self, session_present: bool) -> None:
        now = asyncio.get_running_loop().time()
        away_s = 0.0 if self._left_at is None else now - self._left_at
        self._left_at = None
        traits = self.client.traits
        self.tells_retain = traits.has_no_local
        if traits.has_no_local:
            self._older = None
            return
        if self._older is None:
            self._older = OlderHost(self._identifiers, self._listened, self._counters)
        self._older.connected(traits, session_present=session_present, away_s=away_s)

    def on_disconnected(self, error: HanseError | None) -> None:
        """Handle the loss of the connection."""
        if self._left_at is None:
            self._left_at = asyncio.get_running_loop().time()
        if self._lane is not None:
            self._lane.stop()
        self._tell_state(False, error)

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Handle granted filters, which may cover others, and count those refused by an ACL or a limit."""
        for subscription, code in answers:
            if code >= 0x80:
                self.refused_subscriptions += 1
                self._say(self._covering.refused(subscription.filter))
                continue
            if self._older is not None:
                self._older.granted(subscription.filter)
            self._say(self._covering.granted(subscription.filter))
            if subscription.filter in self._identifiers:
                self._tell_granted(subscription.filter)

    def on_unsubscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Note filters that the host broker has ended."""
        for subscription, _ in answers:
            if subscription.filter not in self._identifiers:
                self._tell_ended(subscription.filter)
        if self._older is not None:
            for subscription, _ in answers:
                self._older.ended(subscription.filter)
