"""One federator: the protocol's machine, driven by a host broker, links, interest and a clock.

Rules:

- Everything runs on one event loop. `_step` is the only caller of the machine's control side. Effects are carried out
  in order, and the timer follows the machine's deadline.
- The data path works in batches: one read of the host broker or of a link becomes at most one frame per neighbour and
  one write to the host broker. There is no task, future or log line per message.
- Input from outside that breaks a rule is counted and dropped here, at the edge, once.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hanse.errors import HanseError, LocalError, RemoteError
from hanse.federator import log_exposure
from hanse.federator.accounting import Accounting
from hanse.federator.batches import HostBatches
from hanse.federator.copies import CopyMerger
from hanse.federator.crossing import Crossing
from hanse.federator.custodian import Custodian
from hanse.federator.delivery import Delivery
from hanse.federator.drops import drops_by_reason
from hanse.federator.echoes import EchoMemory
from hanse.federator.effects import Effects
from hanse.federator.entering import Entrance
from hanse.federator.gaps import GapBook
from hanse.federator.gate import Gate
from hanse.federator.gateway_clients import GatewayClients
from hanse.federator.gateway_interest import GatewayInterest
from hanse.federator.gateway_sessions import GatewaySessions
from hanse.federator.gateway_wills import GatewayWills, WillPublisher
from hanse.federator.gateways import Gateways
from hanse.federator.gauges import gauges
from hanse.federator.host import HostSession, client_settings
from hanse.federator.http import HttpServer
from hanse.federator.linking import Links, follow_manager, link_up, make_links, unlinked
from hanse.federator.links import CONTROL_TOPIC, PROBE_TOPIC
from hanse.federator.links_by_broker import BrokerLinkBook
from hanse.federator.local_interest import LocalInterest
from hanse.federator.management import Management
from hanse.federator.membership import MembershipShell
from hanse.federator.metrics import AgentMetrics
from hanse.federator.naming import exported, local_copies
from hanse.federator.notices import Notices
from hanse.federator.onward import Onward
from hanse.federator.pages import Pages
from hanse.federator.private import PrivateGroup
from hanse.federator.replay import Replay
from hanse.federator.reporter import FederatorReporter
from hanse.federator.retained import BookFile, RetainedState
from hanse.federator.session_renewal import SessionRenewal
from hanse.federator.session_watch import UPTIME, SessionWatch
from hanse.federator.sessions import Sessions
from hanse.federator.settings import FederatorSettings
from hanse.federator.share_gaps import ShareGaps
from hanse.federator.sources import InterestSources
from hanse.federator.store import NO_EPOCH, StateDirectory, save_again
from hanse.federator.takeovers import Takeovers, uptime_of
from hanse.federator.tracing import Tracing
from hanse.federator.turns import Turns
from hanse.federator.unknown import Learning, UnknownInterest, broker_output
from hanse.federator.wanted import Wanted
from hanse.interest import InterestRegistry
from hanse.logs import RepeatLimit
from hanse.mqtt.client import SentAway
from hanse.mqtt.client_ids import prefix_of
from hanse.mqtt.link import Frame
from hanse.mqtt.publication import Publication as HostPublication
from hanse.mqtt.publication import payload_of
from hanse.protocol import codec, events
from hanse.protocol.effects import Emit
from hanse.protocol.forwarding import Routed
from hanse.protocol.identity import private_group
from hanse.protocol.machine import Machine
from hanse.protocol.messages import HOST, Publication, Run

_log = logging.getLogger(__name__)

# Time after the start in which the host broker may hand in again publications that a former process has numbered.
COME_AGAIN_S = 30.0


class Agent:
    """One federator, from `start` to `stop`."""

    def __init__(self, settings: FederatorSettings, state: StateDirectory, entrance: Entrance | None = None) -> None:
        identity = settings.id if entrance is None else entrance.entry.membership.word.id
        if identity is None:
            raise LocalError("This federator has no id; give --id N, or --manager URL to get one.")
        self.settings = settings
        self.identity = identity
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.counters: Counter[str] = Counter()
        self._host_failures = RepeatLimit()
        self._notices = Notices(self._loop.call_later)
        self.machine = Machine(
            identity,
            settings.protocol_settings(),
            now=self._loop.time(),
            wall_s=int(time.time()),
            stored_epoch=state.read_epoch(),
        )
        self._gaps = GapBook()
        self._accounting = Accounting(self.machine, self._loop.time, self._gaps)
        self._crossing: Crossing = settings.crossing()
        self._copies = CopyMerger()
        self._echoes = EchoMemory()
        gate = Gate(self.counters)
        self.custodian = Custodian(
            state.path,
            bytes_max=settings.outbox_bytes_max,
            overflow=settings.outbox_overflow,
            step=self._step,
            counters=self.counters,
            gaps=self._gaps,
        )
        # While true, the host broker may hand in again publications that a former process has numbered.
        self._may_come_again = True
        self._armed_at = 0.0
        # Neighbours whose link was up before.
        self._lost_links: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

        self.sessions = Sessions(state.path, settings.client_id, identity, is_upgraded=state.read_epoch() != NO_EPOCH)
        session = client_settings(settings, self.sessions)
        self.takeovers = Takeovers(
            state.path / "tick",
            gaps=self._gaps,
            counters=self.counters,
            on_taken_over=lambda: self._renewal.taken_over(),  # noqa: PLW0108 - it is created after the session
        )
        # Only Mosquitto's log tells of takeovers, and only Mosquitto publishes its uptime in this form.
        self._session_watch = (
            SessionWatch(
                session,
                self.sessions.of("watch"),
                lambda: self.sessions.host_id,
                [self.sessions.of(role) for role in ("lane", "probe", "retained", "stranger")],
                self.takeovers,
            )
            if any(one.kind == "mosquitto-log" for one in settings.adapters())
            else None
        )
        self.host = HostSession(
            session,
            on_publications=self._on_host_publications,
            on_internal=self._on_internal,
            on_state=self._on_host_state,
            on_credit=lambda: self.delivery.on_credit(),  # noqa: PLW0108 - it is created after the session
            on_unmatched=lambda unmatched: self.unknown.unmatched(unmatched),  # noqa: PLW0108 - the same
            journal=self.custodian.journal,
            ring=self.custodian.ring,
            counters=self.counters,
            on_forgotten=lambda: batches.forget(),  # noqa: PLW0108 - they are also created after the session
            # Under names other than its group's, a publication may match any subscription.
            lane=settings.lane() if self._crossing.is_trivial else None,
            lane_id=self.sessions.of("lane"),
            on_granted=lambda filter_: self.retained.granted(filter_),  # noqa: PLW0108 - the same
            on_ended=lambda filter_: self.retained.ended(filter_),  # noqa: PLW0108 - the same
        )
        client = self.host.client
        self._renewal = SessionRenewal(self.sessions, session, rename=client.rename, is_up=lambda: client.is_connected)
        self._wanted = Wanted(
            self.host,
            crossing=self._crossing,
            groups=self.machine.host_subscriptions,
            write=self.custodian.write_wanted,
            watched=settings.retained_watch,
        )
        batches = HostBatches(self.machine, self.custodian.slots, self.host.client.ack)
        self.delivery = Delivery(
            self.machine,
            self.host,
            gate=gate,
            crossing=self._crossing,
            echoes=self._echoes,
            ring=self.custodian.ring,
            counters=self.counters,
            clock=self._loop.time,
            on_taken=self._on_taken,
            take_internal=lambda run: self.management.take(run),  # noqa: PLW0108 - it is created last of all
            retained=lambda: self.retained,
        )
        # Collectors, which are not part of the manager's overlay. It neither names nor ends their links.
        self._leaves = settings.leaves()
        self.links: Links = make_links(
            identity,
            settings,
            session,
            epoch=lambda: self.machine.epoch,
            admit=self._admit,
            on_link=self._on_link,
            on_frames=self._on_link_frames,
            on_taken=self._on_taken,
            on_double=self._on_double,
            client_id_at=lambda neighbour: self.sessions.of(f"at-{neighbour}"),
        )
        self._turns = Turns(self.links.has_unread, self._on_link_frames)
        own = private_group(identity)
        private = PrivateGroup(lambda: self._step(events.Subscribed(own)), lambda: self._step(events.Unsubscribed(own)))
        self.retained = RetainedState(
            identity,
            settings.retained_settings(),
            replace(session, client_id=self.sessions.of("retained")),
            book=BookFile(state.path / "retained.db", self.counters),
            crossing=self._crossing,
            gate=gate,
            publish=self._publish_found,
            publish_to=self._publish_to,
            is_known=self.machine.is_known,
            join=private.join,
            inject=self.delivery.inject,
            release=lambda filter_: self.interest.release(filter_),  # noqa: PLW0108 - it is created later
            hold=self.host.hold,
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
            identity,
            publish=self._publish_to,
            retained=self.retained.hear,
            tracing=self.tracing,
            echoes=self._echoes,
            shares=registry.shares,
            counters=self.counters,
        )
        sources = InterestSources(settings)
        self.interest = LocalInterest(
            self.machine,
            sources,
            state,
            registry=registry,
            crossing=self._crossing,
            poll_interval_s=settings.poll_interval_s,
            step=self._step,
            note=self._note_interest,
            want_retained=self.retained.want,
            unwant_retained=self.retained.unwant,
            on_bridges=self.management.take_reports,
            on_shares=self.management.tell_shares,
            counters=self.counters,
        )
        self.unknown = UnknownInterest(
            sources.counted,
            output=broker_output(settings),
            log=settings.broker_log,
            database=settings.broker_database,
            own_prefix=prefix_of(settings.client_id),
            is_host_up=lambda: self.host.client.is_connected,
            is_listening=lambda: self.host.client.is_connected and self.host.client.is_subscribed,
            prompt=self.host.prompt_log,
            take=self.interest.take,
            held=registry.held_of,
        )
        if settings.unknown_interest == "learn":
            self.unknown.learning = self.host.learner = Learning(
                settings.learn_for_s,
                unknown=self.unknown.unknown,
                claim=self.interest.claim,
                is_known=registry.matches,
                is_own=self.host.subscribes_to,
                take=self.interest.take,
                held=registry.held_of,
                counters=self.counters,
            )
        self.metrics = AgentMetrics(
            protocol=self.machine.counters,
            agent=self.counters,
            emitted=self._notices.counts,
            drops=lambda: drops_by_reason(
                protocol=self.machine.counters,
                agent=self.counters,
                sessions=(self.links.drops, self.host.client.counters.drops),
            ),
            properties_lost=lambda: self.host.client.counters.properties_lost,
            security=self.links.events.counts,
            gauges=gauges(
                self.machine,
                self.host,
                self.custodian.outbox,
                filters=lambda: len(self.interest),
                unknown=self.unknown.state,
                membership=lambda: self.membership,
                retained=lambda: self.retained,
            ),
            certificates=settings.certificates(),
        )
        self.onward = Onward(self.links, sent=self.metrics.sent, accounts=self.machine.accounts, counters=self.counters)
        effects = Effects(
            links=self.links,
            custodian=self.custodian,
            wanted=self._wanted,
            state=state,
            sent=self.metrics.sent,
            send_runs=self.onward.send,
            deliver=self.delivery.deliver,
            finish_batch=batches.finish,
            tell=self._tell,
        )
        self.pages = Pages(
            self.machine,
            is_host_up=lambda: self.host.client.is_connected,
            joined=lambda: self._echoes.joined,
            unlinked=self._unlinked,
            counters=self.counters,
            interest=self.unknown.page,
            membership=lambda: None if self.membership is None else self.membership.page(),
            metrics=self.metrics.render,
            accounts=self._accounting.page,
        )
        self.http = HttpServer(self.pages.routes(), posts={"/trace": self.tracing.answer})
        self.reporter = FederatorReporter(
            identity,
            is_wanted=lambda topic: bool(self.machine.match(topic)),
            publish=self._publish_telemetry,
            flows=lambda: self.machine.flows,
            links=self.metrics.links,
        )
        self.membership = None if entrance is None else self._make_membership(entrance)
        # Where gateways reach this federator, once it listens.
        self._gateway_address: str | None = None
        self.gateways = Gateways(identity, tls=settings.gateway_tls(), token=settings.gateway_token)
        self._gateway_interest = GatewayInterest(
            sources.gateway,
            self.gateways,
            self.interest.take,
            self.machine,
            self.host,
            self._crossing,
            self.counters,
        )
        self._gateway_sessions = GatewaySessions(state.path / "gateway-sessions.db", self.gateways, self.counters)
        GatewayClients(self.gateways, self.counters)
        self._gateway_wills = GatewayWills(
            self.gateways,
            WillPublisher(session, self.sessions.of("will")).publish,
            lambda: self.host.client.is_connected,
            self.counters,
            self._loop.time,
        )
        self._replay = Replay(self.gateways, self.machine, self._crossing, self.counters, self._loop.time)
        ShareGaps(self.gateways, self.counters)
        # Bound methods, cached to save an attribute lookup per batch.
        self._begin_batch, self._note_packets, self._former_id = batches.begin, batches.note, batches.former_id
        self._deliver, self._deliver_own = self.delivery.deliver, self.delivery.deliver_own
        self._carry_out = effects.carry_out

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
            publish=self.host.client.publish,
            measure=lambda taken: self.host.measure(self.identity, taken),
            gateway_listener=lambda: self._gateway_address,
        )

    # --- start and end ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start: epoch on disk, stored interest, host broker, links, the page for the operator."""
        self._carry_out(self.machine.start(self._loop.time()))
        left = self.machine.restore(
            self._loop.time(),
            delivered=self.custodian.ring.entries(),
            outbox=self.custodian.outbox.ways(),
            wanted=self.custodian.read_wanted(),
        )
        self._carry_out(left)
        # Before the session begins, which may bring messages that waited at a restarted broker.
        await self.retained.start()
        # Before the first link: the first claims that neighbours get should be complete.
        self.interest.restore()
        self.host.listen(self.interest.topics())
        if self.membership is not None:
            self.host.listen(self.membership.topics())
        self._wanted.start()
        self.interest.start()
        await self.host.client.start()
        await link_up(self.links, self.settings, self.host.listen)
        endpoint = self.settings.gateway_endpoint()
        if endpoint is not None:
            listening = str(await self.gateways.listen(endpoint))
            self._gateway_address = self.settings.gateway_advertised or listening
            _log.info("listening for gateways on %s", listening)
        if self.membership is not None:
            follow_manager(self.membership, self.identity, self.links, self.settings, self._forget)
        address = self.settings.metrics_address()
        if address is not None:
            _log.info("metrics on %s", await self.http.start(*address))
        saving = save_again(self.interest.save_if_changed, self._wanted.save_if_changed)
        work = [saving, self.reporter.report_again(), self.management.tell_again(), self._end_coming_again()]
        work += [self._gateway_interest.watch(), self._check_session_again(), self._renewal.end_former_sessions()]
        work += [*self.unknown.watch(), *self.interest.watch(), self._gateway_wills.watch()]
        self._tasks += [asyncio.create_task(one) for one in work]
        self._arm()

    async def stop(self) -> None:
        """Leave the meshes, tell the neighbours, and end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.retained.stop()
        await self.tracing.stop()
        await self.gateways.stop()
        self._gateway_sessions.close()
        self._step(events.Leave())
        if self.membership is not None:
            await self.membership.stop(is_leaving=not self.membership.must_restart.is_set())
        await asyncio.sleep(0.05)  # the leave messages go out with the loop's next turns
        if self._timer is not None:
            self._timer.cancel()
        self.interest.stop()
        await self.links.stop()
        if self._session_watch is not None:
            await self._session_watch.stop()
        await self.host.client.stop()
        await self.http.stop()
        self._wanted.save()
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

    def _note_interest(self, group: str, is_added: bool) -> None:
        self.reporter.note_interest(group, is_added=is_added, epoch=self.machine.epoch)
        self._accounting.note_interest(group, is_added=is_added)

    def _on_double(self, identity: int, detail: str) -> None:
        """Note that two processes use a neighbour's id."""
        self.counters["identity_conflicts"] += 1
        self._tell(Emit("identity_conflict", neighbour=identity, detail=detail))

    def _unlinked(self) -> list[str]:
        """Return the neighbours that the manager, or else the settings name, and whose link is not up."""
        if self.membership is not None:
            return self.membership.unlinked()
        return unlinked(self.links, self.settings, self.machine.lost_neighbours())

    def _admit(self, identity: int) -> str | None:
        if self.membership is None or identity in self._leaves:
            return None
        return self.membership.admit(identity)

    def _on_link(self, neighbour: int, is_up: bool) -> None:
        if self.membership is not None and neighbour not in self._leaves:
            (self.membership.link_up if is_up else self.membership.link_down)(neighbour)
        self.reporter.note_link(neighbour, is_up=is_up)
        if not is_up:
            self._turns.release()
        self._step(events.LinkUp(neighbour) if is_up else events.LinkDown(neighbour))
        if not is_up:
            self._lost_links.add(neighbour)
        elif neighbour in self._lost_links:
            self._lost_links.discard(neighbour)
            self.retained.link_restored(neighbour)

    def _forget(self, neighbour: int) -> None:
        self._step(events.LinkDown(neighbour, is_removed=True))

    def _tell(self, event: Emit) -> None:
        self._notices.take(event)
        self.reporter.note(event, self.machine.epoch)

    # --- publications from the host broker ----------------------------------------------------------------------------

    def _on_host_publications(self, publications: list[HostPublication]) -> None:
        now = self._loop.time()
        if self._may_come_again and any(publication[4] for publication in publications):  # DUP: sent before
            publications = self._take_again(now, publications)
        receipts = [publication[5] for publication in publications if publication[5]]
        host = self.host
        batch = publications
        if host.has_overlaps:
            batch = self._copies.merge(publications, host.newest_identifier)
            self.counters["host_copies"] += len(publications) - len(batch)
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
        self.takeovers.received(len(batch))
        stamp = 0
        if self.host.tells_retain:
            for publication in batch:
                if publication[3]:
                    stamp = self.retained.heard(outgoing)
                    break
        elif outgoing:
            self.retained.touched(outgoing)
        if not receipts:
            routed = self.machine.publish(now, outgoing, 0, None, stamp)  # type: ignore[arg-type]  # plain tuples do
        else:
            first = self.machine.next_id
            number = self._begin_batch(receipts)
            self._note_packets(publications, batch, len(outgoing) == len(batch), first)
            routed = self.machine.publish(now, outgoing, number, None, stamp)  # type: ignore[arg-type]
        if self.reporter.is_active:
            self.reporter.trace(_distinct(routed), routed, None)
        self._hand_on(routed)

    def _take_again(self, now: float, publications: list[HostPublication]) -> list[HostPublication]:
        """Keep the ids that a former process gave to publications, so that nobody takes them for others (R58)."""
        fresh = []
        for publication in publications:
            known = self._former_id(publication)
            if known is None:
                fresh.append(publication)
                continue
            self.counters["came_again"] += 1
            outgoing = (
                [Publication(publication[1], publication[2], publication[0])]
                if self._crossing.is_trivial
                else exported(self._crossing, [publication])
            )
            stamp = self.retained.heard(outgoing) if publication.retain and outgoing else 0
            self._hand_on(self.machine.publish(now, outgoing, self._begin_batch([publication[5]]), known, stamp))
        return fresh

    def _publish_found(self, publication: Publication, stamp: int) -> None:
        """Publish a retained message that no federator had heard."""
        self._hand_on(self.machine.publish(self._loop.time(), [publication], 0, None, stamp))

    def _publish_to(self, group: str, packets: list[bytes]) -> None:
        """Send packets of our own to a group, one QoS at a time, in order."""
        for packet in packets:
            qos = packet[0] >> 1 & 3
            self._hand_on(self.machine.publish_to(self._loop.time(), group, qos, [packet]))

    def _publish_telemetry(self, topic: str, packet: bytes) -> None:
        """Publish a telemetry packet for any collector, here or elsewhere."""
        self._hand_on(self.machine.publish(self._loop.time(), [Publication(topic, 1, packet)]))
        if any(map(self.machine.is_local, self.machine.match(topic))):
            self._deliver_own(packet, 1)

    def _hand_on(self, routed: Routed) -> None:
        frames, deliveries, tokens, effects = routed
        for neighbour, runs in frames.items():
            self.onward.send(neighbour, runs, tokens.get(neighbour, 0))
        if deliveries:
            self._deliver(deliveries, tokens.get(HOST, 0))
        if effects:
            self._carry_out(effects)
        if self.machine.deadline < self._armed_at:
            self._arm()

    def _on_taken(self, neighbour: int, tokens: Sequence[int]) -> None:
        """Note that a neighbour, or the host broker, has acknowledged everything with these tokens."""
        self._carry_out(self.machine.acknowledged(self._loop.time(), neighbour, tokens))
        if self.machine.deadline < self._armed_at:
            self._arm()

    # --- frames from neighbours ---------------------------------------------------------------------------------------

    def _on_link_frames(self, neighbour: int, frames: list[Frame]) -> None:
        turns, came_by = self._turns, self._turns.came_by
        if neighbour in turns.held:
            turns.join(neighbour, frames)
            return
        now, begun = self._loop.time(), time.perf_counter()  # the loop's clock stands still within a turn
        traffic = self.metrics.received[neighbour]
        for position, (topic, data, start, end, receipt) in enumerate(frames):
            try:
                if topic == CONTROL_TOPIC:
                    traffic.control_frames += 1
                    traffic.control_bytes += end - start
                    control = codec.decode_control(data[start:end])
                    if isinstance(self.links, BrokerLinkBook):
                        self.links.note_epoch(neighbour, control.epoch)
                    self._step(events.Received(neighbour, control))
                    continue
                if end - start > 1 and data[start + 1] == codec.SUMMARIES:
                    self._step(events.Summarised(neighbour, codec.decode_summaries(data[start:end]), receipt))
                    continue
                if topic == PROBE_TOPIC:
                    self.tracing.on_probe(neighbour, data[start:end])
                    continue
                runs = codec.decode_data(data, start, end)
            except RemoteError as error:
                self.counters["frames_refused"] += 1
                _log.warning("frame of federator %d refused: %s", neighbour, error)
                self.links.ack(neighbour, receipt)
                continue
            origin = runs[0][0] if runs else neighbour
            is_usual = came_by.get(origin) == neighbour
            if not is_usual and turns.is_early(neighbour, origin):
                turns.hold(neighbour, origin, frames[position:])
                break
            traffic.frames += 1
            traffic.bytes += end - start
            for run in runs:
                traffic.messages[run[4]] += run[3]
            routed = self.machine.forward(now, neighbour, runs, receipt)
            if not is_usual and (routed[0] or routed[1]):
                turns.note_new(origin, neighbour)
            if self.reporter.is_active:
                self.reporter.trace(runs, routed, neighbour)
            self._hand_on(routed)
        if turns.held:
            turns.note_read(neighbour)
        self.metrics.hop.observe(time.perf_counter() - begun)

    # --- messages of the host broker for the agent
    # ---------------------------------------------------------------------

    def _on_internal(self, publications: list[HostPublication]) -> None:
        """Handle messages of the host broker for the agent: subscriptions of its clients, probes and others."""
        for_interest = []
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
            if publication.topic == UPTIME:
                self.takeovers.tick(payload_of(publication.packet))
                self.retained.tick(uptime_of(payload_of(publication.packet)), is_retained=publication.retain)
            for_interest.append(publication)
        if for_interest:
            self.interest.hear(for_interest)

    async def _check_session_again(self) -> None:
        if self._session_watch is None:
            return
        # The host session listens first, so that it learns of the subscriptions of the second one.
        await self.host.client.wait_connected(None)
        await self._session_watch.start()
        session = client_settings(self.settings, self.sessions)
        self._tasks.append(
            asyncio.create_task(log_exposure.report(session, self.sessions.of("stranger"), self.identity))
        )
        while True:
            await asyncio.sleep(1.0)
            self.takeovers.check(self._loop.time())

    async def _end_coming_again(self) -> None:
        await asyncio.sleep(COME_AGAIN_S)
        self._may_come_again = False

    def _on_host_state(self, is_connected: bool, error: HanseError | None) -> None:
        if is_connected:
            self.takeovers.connected(
                self._loop.time(),
                session_present=self.host.session_present,
                address=self.host.client.local_address,
            )
        else:
            self.takeovers.disconnected(
                self._loop.time(),
                is_taken_over=isinstance(error, SentAway) and error.is_taken_over,
                address=self.host.client.local_address,
            )
        if is_connected:
            self._host_failures.end()
            self._renewal.connected(session_present=self.host.session_present)
            _log.info("host broker %s: connected", self.settings.broker)
            self.retained.host_up(session_present=self.host.session_present)
            return
        self.delivery.lose_host()
        self.retained.host_down()
        if error is not None and (again := self._host_failures.take(str(error), self._loop.time())) is not None:
            _log.warning("host broker %s: %s%s", self.settings.broker, error, again)
        self.interest.lose_host()


def _distinct(routed: Routed) -> list[Run]:
    """Return the runs of a batch of our own, each once, however many neighbours get it."""
    return list({run.first: run for runs in routed.frames.values() for run in runs}.values())
