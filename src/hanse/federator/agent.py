"""One federator: the protocol's machine, driven by a host broker, links, interest and a clock.

Rules:

- Everything runs on one event loop. `_step` is the only caller of the machine's control side; effects are carried out
  in order, and the timer follows the machine's deadline.
- The data path is batch in, batch out: one read of the host or of a link becomes at most one frame a neighbour and one
  write to the host. No task, future or log line per message.
- What comes from outside and breaks a rule is counted and dropped here, at the edge, once.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from hanse import __version__
from hanse.errors import HanseError, LocalError, RemoteError
from hanse.federator.accounting import Accounting
from hanse.federator.copies import CopyMerger
from hanse.federator.crossing import Crossing, FilterCounts
from hanse.federator.custodian import Custodian
from hanse.federator.delivery import Delivery
from hanse.federator.dialling import Dialling
from hanse.federator.echoes import EchoMemory
from hanse.federator.entering import Entrance
from hanse.federator.gate import Gate
from hanse.federator.gauges import gauges
from hanse.federator.host import HostSession
from hanse.federator.http import HttpServer
from hanse.federator.links import CONTROL_TOPIC, PROBE_TOPIC, LinkBook
from hanse.federator.links_by_broker import BrokerLinkBook
from hanse.federator.local_interest import LocalInterest
from hanse.federator.management import Management
from hanse.federator.membership import MembershipShell
from hanse.federator.metrics import AgentMetrics
from hanse.federator.naming import exported, local_copies
from hanse.federator.obligations import AckOrder, Obligation
from hanse.federator.pages import Pages
from hanse.federator.private import PrivateGroup
from hanse.federator.reporter import REPORT_EVERY_S, FederatorReporter
from hanse.federator.retained import RetainedFetcher
from hanse.federator.settings import FederatorSettings
from hanse.federator.sources import CLIENT_PREFIX, InterestSources
from hanse.federator.store import StateDirectory
from hanse.federator.tracing import Tracing
from hanse.interest import InterestRegistry
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.link import Frame
from hanse.mqtt.publication import Publication as HostPublication
from hanse.mqtt.publication import encode, payload_of
from hanse.protocol import codec, events
from hanse.protocol.effects import (
    Acknowledge,
    CloseLink,
    Deliver,
    Discard,
    Effect,
    Emit,
    Fetch,
    Send,
    SendRuns,
    SendSummaries,
    Store,
    StoreEpoch,
    SubscribeHost,
    UnsubscribeHost,
)
from hanse.protocol.forwarding import Routed
from hanse.protocol.identity import private_group
from hanse.protocol.machine import Machine
from hanse.protocol.messages import HOST, Publication, Run

_log = logging.getLogger(__name__)

SAVE_EVERY_S = 0.2
# For this long after the start the host may hand in again what a former process has numbered.
COME_AGAIN_S = 30.0
SELF_PROBE_TOPIC = "hanse/probe/self"
_SUMMARIES = bytes((codec.SUMMARIES,))
# Below it a 3.1.1 host is asked what it can do; as all probes, it never crosses.
HOST_PROBE_TOPIC = "hanse/probe/host"


class Agent:
    """One federator, from `start` to `stop`."""

    def __init__(self, settings: FederatorSettings, state: StateDirectory, entrance: Entrance | None = None) -> None:
        identity = settings.id if entrance is None else entrance.entry.membership.word.id
        if identity is None:
            raise LocalError("This federator has no id; give --id N, or --manager URL to be given one.")
        self.settings = settings
        self.identity = identity
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.counters: Counter[str] = Counter()
        self.emitted: Counter[str] = Counter()
        self.machine = Machine(
            self.identity,
            settings.protocol_settings(),
            now=self._loop.time(),
            wall_s=int(time.time()),
            stored_epoch=state.read_epoch(),
        )
        self._accounting = Accounting(self.machine, self._loop.time)
        self._crossing: Crossing = settings.crossing()
        # Names in the federation and names here, where they differ.
        self._asked = FilterCounts(self._crossing.inward_filter)
        self._copies = CopyMerger()
        self._echoes = EchoMemory()
        gate = Gate(self.counters)
        self.custodian = Custodian(
            state.path,
            bytes_max=settings.outbox_bytes_max,
            overflow=settings.outbox_overflow,
            step=self._step,
            counters=self.counters,
        )
        # Batches of the host's that it waits to hear of: what says so, and its packet identifiers.
        self._batches: dict[int, tuple[Callable[[], None], list[int]]] = {}
        self._next_batch = 1
        # While true the host may hand in again what a former process has numbered.
        self._may_come_again = True
        self._armed_at = 0.0
        self._started_at = self._loop.time()
        self._is_wanted_dirty = False
        self._tasks: list[asyncio.Task[None]] = []

        client_settings = self._client_settings()
        self.host = HostSession(
            client_settings,
            on_publications=self._on_host_publications,
            on_internal=self._on_internal,
            on_state=self._on_host_state,
            on_credit=lambda: self.delivery.on_credit(),  # noqa: PLW0108 - it is made after the session
            journal=self.custodian.journal,
            ring=self.custodian.ring,
            counters=self.counters,
        )
        self._acks = AckOrder(self.host.client.ack)
        self.delivery = Delivery(
            self.machine,
            self.host,
            gate=gate,
            crossing=self._crossing,
            echoes=self._echoes,
            ring=self.custodian.ring,
            counters=self.counters,
            clock=self._loop.time,
            carry_out=self._carry_out,
            take_internal=lambda run: self.management.take(run),  # noqa: PLW0108 - it is made last of all
        )
        # By these names the data path calls them itself: not a call more a batch.
        self._deliver = self.delivery.deliver
        self._deliver_own = self.delivery.deliver_own
        self.links = self._make_links(client_settings)
        own = private_group(self.identity)
        private = PrivateGroup(lambda: self._step(events.Subscribed(own)), lambda: self._step(events.Unsubscribed(own)))
        self.retained = RetainedFetcher(
            self.identity,
            client_settings,
            crossing=self._crossing,
            publish=self._publish_to,
            is_known=self.machine.is_known,
            join=lambda _: private.join(),
            part=lambda _: private.part(),
            deliver=self._deliver_own,
            counters=self.counters,
        )
        registry = InterestRegistry()
        self.tracing = Tracing(
            self.machine,
            crossing=self._crossing,
            publish=self._publish_to,
            ask_all=lambda message: self.management.tell_all(message),  # noqa: PLW0108 - the same
            send=self.links.send_probe,
            is_host_up=lambda: self.host.client.is_connected,
            filters=registry.wanted,
            join=private.join,
            part=private.part,
            counters=self.counters,
        )
        self.management = Management(
            self.identity,
            publish=self._publish_to,
            retained=self.retained,
            tracing=self.tracing,
            gate=gate,
            echoes=self._echoes,
            shares=registry.shares,
            counters=self.counters,
        )
        self.interest = LocalInterest(
            self.machine,
            InterestSources(settings),
            state,
            registry=registry,
            crossing=self._crossing,
            poll_interval_s=settings.poll_interval_s,
            step=self._step,
            note=self._note_interest,
            want_retained=self.retained.want,
            on_bridges=self.management.take_reports,
            on_shares=self.management.tell_shares,
            counters=self.counters,
        )
        self.link_url: str | None = None
        self.metrics = AgentMetrics(
            protocol=self.machine.counters,
            agent=self.counters,
            emitted=self.emitted,
            drops=lambda: {**self.links.drops, **self.host.client.counters.drops},
            gauges=gauges(
                self.machine,
                self.host,
                self.custodian.outbox,
                filters=lambda: len(self.interest),
                membership=lambda: self.membership,
            ),
        )
        self.pages = Pages(
            self.machine,
            is_host_up=lambda: self.host.client.is_connected,
            joined=lambda: self._echoes.joined,
            counters=self.counters,
            membership=lambda: None if self.membership is None else self.membership.page(),
            metrics=self.metrics.render,
            accounts=self._accounting.page,
        )
        self.http = HttpServer(self.pages.routes(), posts={"/trace": self.tracing.answer})
        self.reporter = FederatorReporter(
            self.identity,
            is_wanted=lambda topic: bool(self.machine.match(topic)),
            publish=self._publish_telemetry,
            flows=lambda: self.machine.flows,
            links=self.metrics.links,
        )
        self.membership = None if entrance is None else self._make_membership(entrance)

    def _make_membership(self, entrance: Entrance) -> MembershipShell:
        protocol = self.machine.settings
        return MembershipShell(
            entrance.door,
            entrance.entry,
            self._state.path,
            announcement_interval_s=protocol.announcement_interval_s,
            expiry_s=protocol.expiry_s,
            counters=self.counters,
            groups=self.pages.reported_groups,
            is_host_up=lambda: self.host.client.is_connected,
            publish=lambda topic: self.host.client.publish(topic, b""),
            measure=self._measure_host,
        )

    def _measure_host(self, taken: Callable[[], None]) -> None:
        obligation = Obligation(taken)
        topic = f"{SELF_PROBE_TOPIC}/{self.identity}"
        self.host.deliver(encode(topic, b"", qos=1), 1, 1, obligation)
        obligation.settle()

    def _make_links(self, client_settings: ClientSettings) -> LinkBook | BrokerLinkBook:
        def up(neighbour: int) -> None:
            if self.membership is not None:
                self.membership.link_up(neighbour)
            self.reporter.note_link(neighbour, is_up=True)
            self._step(events.LinkUp(neighbour))

        def down(neighbour: int) -> None:
            if self.membership is not None:
                self.membership.link_down(neighbour)
            self.reporter.note_link(neighbour, is_up=False)
            self._step(events.LinkDown(neighbour))

        if self.settings.link == "broker":
            return BrokerLinkBook(
                self.identity,
                client_settings,
                epoch=lambda: self.machine.epoch,
                on_up=up,
                on_down=down,
                on_frames=self._on_link_frames,
                on_taken=self._on_taken,
            )
        return LinkBook(
            self.identity,
            properties=self._link_properties,
            admit=self._admit,
            on_up=up,
            on_down=down,
            on_frames=self._on_link_frames,
            on_taken=self._on_taken,
            tls=self.settings.link_tls(),
        )

    async def _link_up(self) -> None:
        """Listen for neighbours and dial those that the operator named."""
        if isinstance(self.links, BrokerLinkBook):
            self.host.listen(self.links.filters())
            for neighbour in self.settings.neighbours():
                assert neighbour.id is not None, "the settings ask for it"
                await self.links.add(neighbour.id, str(neighbour.address))
            self._follow_manager()
            return
        address = self.settings.listen_address()
        if address is not None:
            self.link_url = await self.links.listen(address)
            _log.info("listening for neighbours on %s", self.link_url)
        for neighbour in self.settings.neighbours():
            self.links.dial(str(neighbour.address))
        self._follow_manager()

    def _follow_manager(self) -> None:
        if self.membership is None:
            return
        if isinstance(self.links, BrokerLinkBook):
            self.links.on_stranger = self.membership.invite
        dialling = Dialling(
            self.identity,
            self.links,
            is_listening=self.settings.link_listen is not None,
            is_insecure=self.settings.insecure,
            forget=lambda neighbour: self._step(events.LinkDown(neighbour, is_removed=True)),
        )
        self.membership.start(dialling)

    def _client_settings(self) -> ClientSettings:
        settings = self.settings
        return ClientSettings(
            settings.broker,
            f"{CLIENT_PREFIX}{self.identity}",
            username=settings.username,
            password=settings.password,
            tls=settings.host_tls(),
            clean_start=False,
            session_expiry_s=3600,
            version=settings.mqtt_version(),
            probe_topic=HOST_PROBE_TOPIC,
        )

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin: epoch on disk, interest of before, host, links, the page for the operator."""
        self._carry_out(self.machine.start(self._loop.time()))
        left = self.machine.restore(
            self._loop.time(),
            delivered=self.custodian.ring.entries(),
            outbox=self.custodian.outbox.ways(),
            wanted=self.custodian.read_wanted(),
        )
        self._carry_out(left)
        # Before the first link: the claims that neighbours hear first should be whole.
        self.interest.restore()
        self.host.listen(self.interest.topics())
        if self.membership is not None:
            self.host.listen(self.membership.topics())
        for wanted in self._crossing.standing_filters:
            self.host.want(wanted)
        self.interest.start()
        await self.host.client.start()
        await self._link_up()
        address = self.settings.metrics_address()
        if address is not None:
            _log.info("metrics on %s", await self.http.start(*address))
        work = [self._save(), self._report_telemetry(), self.management.tell_again(), *self.interest.watch()]
        self._tasks += [asyncio.create_task(one) for one in work]
        self._arm()

    async def stop(self) -> None:
        """Leave the meshes, say so, and end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.retained.stop()
        await self.tracing.stop()
        self._step(events.Leave())
        if self.membership is not None:
            await self.membership.stop(is_leaving=not self.membership.must_restart.is_set())
        await asyncio.sleep(0.05)  # the frames that say so leave with the loop's next turns
        if self._timer is not None:
            self._timer.cancel()
        self.interest.stop()
        await self.links.stop()
        await self.host.client.stop()
        await self.http.stop()
        self.custodian.write_wanted(self.machine.host_subscriptions())
        self.custodian.stop()
        self.interest.save()

    # --- the machine --------------------------------------------------------------------------------------------------

    def _step(self, event: events.Event) -> None:
        self._carry_out(self.machine.step(self._loop.time(), event))
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.machine.is_stopped:
            self._armed_at = self.machine.deadline
            self._timer = self._loop.call_at(self._armed_at, self._step, events.Tick())

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(neighbour, frame):
                    traffic = self.metrics.link(neighbour, "out")
                    traffic.control_frames += 1
                    traffic.control_bytes += self.links.send_control(neighbour, frame)
                case SendRuns(neighbour, runs, token):
                    self._send_runs(neighbour, runs, token)
                case SendSummaries() | Deliver() | Acknowledge() | Store() | Fetch() | Discard():
                    self._carry_out_custody(effect)
                case SubscribeHost(group):
                    self._ask_host([(group, 2)], [])
                    self._is_wanted_dirty = True
                case UnsubscribeHost(group):
                    self._ask_host([], [group])
                    self._is_wanted_dirty = True
                case StoreEpoch(epoch):
                    self._state.write_epoch(epoch)
                case CloseLink(neighbour, reason):
                    _log.warning("link to federator %d closed: %s", neighbour, reason)
                    self.links.close(neighbour, reason)
                case Emit():
                    self._emit(effect)

    def _carry_out_custody(self, effect: SendSummaries | Deliver | Acknowledge | Store | Fetch | Discard) -> None:
        match effect:
            case Acknowledge(giver, receipts):
                for receipt in receipts:
                    if giver == HOST:
                        self._finish_batch(receipt)
                    else:
                        self.links.ack(giver, receipt)
            case SendSummaries(neighbour, summaries, token):
                self.links.send_data(neighbour, codec.encode_summaries(summaries), 0, token)
            case Deliver(runs, token):
                self._deliver(list(runs), token)
            case Store():
                self.custodian.store(effect)
            case Fetch():
                self.custodian.fetch(effect)
            case Discard():
                self.custodian.discard(effect)

    def _ask_host(self, wanted: list[tuple[str, int]], ended: list[str]) -> None:
        asked, released = self._asked.apply(wanted, ended)
        for filter_, _ in asked:
            self.host.want(filter_)
        for filter_ in released:
            self.host.release(filter_)

    def _note_interest(self, group: str, is_added: bool) -> None:
        self.reporter.note_interest(group, is_added=is_added, epoch=self.machine.epoch)
        self._accounting.note_interest(group, is_added=is_added)

    def _emit(self, event: Emit) -> None:
        self.emitted[event.name] += 1
        self.reporter.note(event, self.machine.epoch)
        if isinstance(self.links, BrokerLinkBook):
            if event.name == "neighbour_lost":
                self.links.forgive(event.neighbour)
            elif event.name == "neighbour_left":
                self.links.note_left(event.neighbour)
        if _log.isEnabledFor(logging.INFO):
            words = {"group": event.group, "detail": event.detail}
            numbers = {"core": event.core, "neighbour": event.neighbour}
            extra = {key: value for key, value in words.items() if value}
            extra |= {key: str(value) for key, value in numbers.items() if value >= 0}
            level = logging.WARNING if event.name in {"identity_conflict", "limit_reached"} else logging.INFO
            _log.log(level, "%s %s", event.name, " ".join(f"{key}={value}" for key, value in extra.items()))

    # --- publications from the host broker ----------------------------------------------------------------------------

    def _on_host_publications(self, publications: list[HostPublication]) -> None:
        now = self._loop.time()
        if self._may_come_again:
            publications = self._take_again(now, publications)
        receipts = [publication[5] for publication in publications if publication[5]]
        host = self.host
        batch = self._copies.merge(publications, host.newest_identifier) if host.has_overlaps else publications
        if self._echoes.is_active:
            arrived = len(batch)
            batch = [publication for publication in batch if not self._echoes.is_echo(now, publication[0])]
            self.counters["echoes_cancelled"] += arrived - len(batch)
        outgoing: Sequence[tuple[str, int, bytes]]
        if self._crossing.is_trivial:
            outgoing = [(publication[1], publication[2], publication[0]) for publication in batch]
        else:
            for packet in local_copies(self._crossing, batch):
                self._deliver_own(packet, packet[0] >> 1 & 3)
            outgoing = exported(self._crossing, batch)
        self.counters["host_publications"] += len(batch)
        if not receipts:
            routed = self.machine.publish(now, cast("Sequence[Publication]", outgoing))
        else:
            first = self.machine.next_id
            number = self._begin_batch(receipts)
            self._note_packets(publications, batch, len(outgoing) == len(batch), first)
            routed = self.machine.publish(now, cast("Sequence[Publication]", outgoing), number)
        if self.reporter.is_active:
            self.reporter.trace(_distinct(routed), routed, None)
        self._hand_on(routed)

    def _begin_batch(self, receipts: list[int]) -> int:
        number = self._next_batch
        self._next_batch = number + 1
        self._batches[number] = (self._acks.begin(receipts), receipts)
        return number

    def _finish_batch(self, number: int) -> None:
        """All of a batch of the host's has arrived, or is on disk: the host may forget it (R33)."""
        finish, receipts = self._batches.pop(number)
        self.custodian.slots.clear([receipt & 0xFFFF for receipt in receipts])
        finish()

    def _note_packets(
        self, publications: list[HostPublication], batch: list[HostPublication], is_aligned: bool, first: int
    ) -> None:
        """Keep which id each packet of the host's gets, for the process after this one (R34)."""
        if not is_aligned:
            return  # some may not leave this broker: which ids the others get is not worth the search
        slots, epoch = self.custodian.slots, self.machine.epoch
        if batch is publications:
            owed = [publication for publication in batch if publication[5]]
            if len(owed) == len(batch):
                slots.note([p[5] & 0xFFFF for p in batch], epoch, first, [p[0] for p in batch])
                return
        at = -1
        for publication in publications:
            if at + 1 < len(batch) and publication is batch[at + 1]:
                at += 1
            if publication[5] and at >= 0:  # a copy is of the one before it
                slots.note([publication[5] & 0xFFFF], epoch, first + at, [publication[0]])

    def _take_again(self, now: float, publications: list[HostPublication]) -> list[HostPublication]:
        """What a former process has numbered keeps its id, so that nobody takes it for another (R34)."""
        fresh = []
        for publication in publications:
            known = self.custodian.slots.find(publication.packet_id, publication[0]) if publication[4] else None
            if known is None:
                fresh.append(publication)
                continue
            self.counters["came_again"] += 1
            exported_ones = (
                [(publication[1], publication[2], publication[0])]
                if self._crossing.is_trivial
                else exported(self._crossing, [publication])
            )
            outgoing = cast("Sequence[Publication]", exported_ones)
            self._hand_on(self.machine.publish(now, outgoing, self._begin_batch([publication[5]]), known))
        return fresh

    def _publish_to(self, group: str, packets: list[bytes]) -> None:
        """Send packets of our own to a group, one QoS at a time, in order."""
        for packet in packets:
            qos = packet[0] >> 1 & 3
            self._hand_on(self.machine.publish_to(self._loop.time(), group, qos, [packet]))

    def _publish_telemetry(self, topic: str, packet: bytes) -> None:
        """To whoever collects it, here or elsewhere."""
        self._hand_on(self.machine.publish(self._loop.time(), [Publication(topic, 1, packet)]))
        if any(map(self.machine.is_local, self.machine.match(topic))):
            self._deliver_own(packet, 1)

    def _hand_on(self, routed: Routed) -> None:
        # A batch is a whole read: writing it at once saves a turn of the loop, 0.03 ms a hop on an idle machine.
        frames, deliveries, tokens, effects = routed
        for neighbour, runs in frames.items():
            self._send_runs(neighbour, runs, tokens.get(neighbour, 0))
            self.links.flush(neighbour)
        if deliveries:
            self._deliver(deliveries, tokens.get(HOST, 0))
            self.host.client.flush()
        if effects:
            self._carry_out(effects)
        if self.machine.deadline < self._armed_at:
            self._arm()

    def _send_runs(self, neighbour: int, runs: Sequence[Run], token: int) -> None:
        count = 0
        traffic = self.metrics.link(neighbour, "out")
        for run in runs:
            count += run[3]
            traffic.messages[run[4]] += run[3]
        payload = codec.encode_data(runs)
        traffic.frames += 1
        traffic.bytes += len(payload)
        if self.links.send_data(neighbour, payload, count, token):
            self.counters["forwarded"] += count
        else:
            traffic.dropped_frames += 1
            for run in runs:
                self.machine.accounts.count("dropped:link", run, neighbour=neighbour)

    def _on_taken(self, neighbour: int, tokens: list[int]) -> None:
        """A neighbour has acknowledged frames."""
        self._carry_out(self.machine.acknowledged(self._loop.time(), neighbour, tokens))
        if self.machine.deadline < self._armed_at:
            self._arm()

    # --- frames from neighbours ---------------------------------------------------------------------------------------

    def _on_link_frames(self, neighbour: int, frames: list[Frame]) -> None:
        started = self._loop.time()
        traffic = self.metrics.link(neighbour, "in")
        for topic, payload, receipt in frames:
            try:
                if topic == CONTROL_TOPIC:
                    traffic.control_frames += 1
                    traffic.control_bytes += len(payload)
                    control = codec.decode_control(payload)
                    if isinstance(self.links, BrokerLinkBook):
                        self.links.note_epoch(neighbour, control.epoch)
                    self._step(events.Received(neighbour, control))
                    continue
                if payload[1:2] == _SUMMARIES:
                    self._step(events.Summarised(neighbour, codec.decode_summaries(payload), receipt))
                    continue
                if topic == PROBE_TOPIC:
                    self.tracing.on_probe(neighbour, payload)
                    continue
                runs = codec.decode_data(payload)
            except RemoteError as error:
                self.counters["frames_refused"] += 1
                _log.warning("frame of federator %d refused: %s", neighbour, error)
                self.links.ack(neighbour, receipt)
                continue
            traffic.frames += 1
            traffic.bytes += len(payload)
            for run in runs:
                traffic.messages[run[4]] += run[3]
            routed = self.machine.forward(started, neighbour, runs, receipt)
            if self.reporter.is_active:
                self.reporter.trace(runs, routed, neighbour)
            self._hand_on(routed)
        self.metrics.hop.observe(self._loop.time() - started)

    # --- what the host says to the agent itself -----------------------------------------------------------------------

    def _on_internal(self, publications: list[HostPublication]) -> None:
        """Messages of the host for the agent: what clients subscribe to."""
        for publication in publications:
            if self.membership is not None and self.membership.hear(
                publication.topic, payload_of(publication.packet), is_retained=publication.retain
            ):
                continue
            if isinstance(self.links, BrokerLinkBook):
                try:
                    if self.links.hear(publication):
                        continue
                except RemoteError as error:
                    self.counters["frames_refused"] += 1
                    _log.warning("%s", error)
                    continue
            self.interest.hear(publication)

    async def _report_telemetry(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self.reporter.report()

    async def _save(self) -> None:
        """Keep what is wanted here and elsewhere soon after it changed."""
        pause_s = SAVE_EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            begun = self._loop.time()
            self.interest.save_if_changed()
            if self._is_wanted_dirty:
                self._is_wanted_dirty = False
                self.custodian.write_wanted(self.machine.host_subscriptions())
            # With many clients writing takes its time: it may have a twentieth of it.
            pause_s = max(SAVE_EVERY_S, 20 * (self._loop.time() - begun))
            self._may_come_again = self._may_come_again and begun - self._started_at < COME_AGAIN_S

    def _on_host_state(self, is_connected: bool, error: HanseError | None) -> None:
        if is_connected:
            _log.info("host broker %s: connected", self.settings.broker)
            return
        if error is not None:
            _log.warning("host broker %s: %s", self.settings.broker, error)
        self.interest.lose_host()

    # --- handshake ----------------------------------------------------------------------------------------------------

    def _link_properties(self) -> Mapping[str, str]:
        return {"hanse": __version__, "protocol": str(codec.VERSION)}

    def _admit(self, identity: int, peer: Mapping[str, str]) -> str | None:
        if peer.get("protocol") != str(codec.VERSION):
            return f"federator {identity} speaks protocol {peer.get('protocol')!r}, this one {codec.VERSION}"
        return None if self.membership is None else self.membership.admit(identity)


def _distinct(routed: Routed) -> list[Run]:
    """The runs of a batch of our own, each once, however many neighbours get it."""
    return list({run.first: run for runs in routed.frames.values() for run in runs}.values())
