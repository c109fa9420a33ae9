"""The federation protocol of one federator, as a state machine without IO. docs/protocol.md is its specification.

Theory of operation. A federator that has interest in a group and hears of no core for it *claims* the group. Claims
reach every federator as versioned deltas. A core *announces* itself every interval. Announcements spread with a
distance, and the neighbours nearest to a core are the *parents* towards it. A federator that wants a group sends a
*membership* to its parents towards the group's core, and they pass it on. The links that carry a membership are the
group's *mesh*. The data path (`forwarding`) reads the mesh and nothing else.

Each of these has a module: `claimbook`, `ways`, `mesh`, `election`. `hostside` is the host broker's side, and `speaker`
sends the control frames. This module connects them, and handles links, frames and time. Each module asks only those to
its right:

    election -> hostside, mesh -> ways -> claimbook          speaker -> ways -> claimbook

All of them share the neighbours and `changes`. `ClaimWatchers` tells the others of changed claims.

The rules:

- `step` is the only way in for control. The same state, time and event give the same effects. There is no clock and no
  randomness, and everything that can reach the wire is iterated in sorted order.
- A handler notes what changed (`Changes`). `_settle` draws the conclusions until nothing is dirty. `Speaker.flush`
  tells each neighbour its news in one frame.
- Every part of an inbound frame is accepted, ignored (stale or duplicate, counted) or rejected (it breaks a rule,
  counted).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from hanse.protocol.accounts import Accounts
from hanse.protocol.changes import Alarms, Changes, Due
from hanse.protocol.claimbook import ClaimBook, ClaimWatchers
from hanse.protocol.effects import CloseLink, Effect, Emit, SendRuns, StoreEpoch
from hanse.protocol.election import Election
from hanse.protocol.events import (
    Appointed,
    Event,
    Fetched,
    Leave,
    LinkDown,
    LinkUp,
    Ranked,
    Received,
    Stored,
    Subscribed,
    Summarised,
    Tick,
    Unsubscribed,
)
from hanse.protocol.forwarding import Forwarding, Routed
from hanse.protocol.hostside import HostSide
from hanse.protocol.identity import boot_epoch, check_federator_id
from hanse.protocol.mesh import Mesh
from hanse.protocol.messages import BLOCKED, HOST, UNREACHABLE, ControlFrame, Publication, Run, Summary
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.plans import Plan
from hanse.protocol.settings import MANAGEMENT_GROUP, Settings
from hanse.protocol.speaker import Speaker
from hanse.protocol.ways import Ways

# Every so many rounds, drop the interest timestamps of groups that no longer exist.
TIDIED_ROUNDS = 10
# An interest that is earlier than known by less than this is no news (R71).
SINCE_SLACK_S = 0.05


class Machine:
    """One federator."""

    def __init__(self, identity: int, settings: Settings, *, now: float, wall_s: int, stored_epoch: int = 0) -> None:
        check_federator_id(identity)
        self.identity = identity
        self.settings = settings
        self.epoch = boot_epoch(stored_epoch, wall_s)
        self.is_stopped = False

        self._neighbours: dict[int, Neighbour] = {}
        # Larger than any generation of our sets that a forgotten neighbour may remember (R41).
        self._generation = 1
        self._changes = changes = Changes()
        # Events, counted by name. docs/protocol.md lists the names.
        self.counters: Counter[str] = changes.counters
        self._alarms = alarms = Alarms(now, settings.announcement_interval_s)
        # When the next `Tick` is due.
        self.deadline = alarms.next_at

        neighbours = self._neighbours
        self._host = host = HostSide(identity, settings, changes)
        self._claims = claims = ClaimBook(identity, self.epoch, settings, changes)
        self._ways = ways = Ways(identity, settings, neighbours, changes, alarms, claims, self._raise_epoch)
        self._mesh = mesh = Mesh(identity, settings, neighbours, changes, alarms, claims, ways)
        self._election = Election(identity, settings, neighbours, changes, alarms, host, claims, ways, mesh)
        claims.watch(
            ClaimWatchers(
                claimed=mesh.end_fading,
                ended=mesh.begin_fading,
                withdrawn=self._election.on_withdrawn,
                remembered=lambda until, group: alarms.set(until, Due.FORGET, 0, group),
                emptied=ways.forget_core,
                fetched=self._election.on_synchronised,
            )
        )
        self._speaker = Speaker(identity, settings, neighbours, changes, claims, ways, now=now)
        self._forwarding = Forwarding(identity, self.epoch, settings, self, self.counters)
        self._custody = self._forwarding.custody
        # Neighbour that is away to the groups whose mesh ran over its link. Publications of these are kept for it
        # (R75).
        self._absent: dict[int, set[str]] = {}
        # Neighbours whose destination was lost in this step.
        self._lost_ways: set[int] = set()
        # Group to when it was first wanted here (under our id) and behind each neighbour. Nothing older is requested
        # (R69).
        self._since: dict[str, dict[int, float]] = {}
        # Neighbour and group to publications that it named and we lack. If we still lack them in a round, we ask (R72).
        self._lacking: dict[tuple[int, str], Summary] = {}
        # When summaries of new mesh edges were last sent, and when those that wait to travel together will be.
        self._asked_at = -math.inf
        self._ask_at = math.inf
        self._had_link = False
        self._rounds = 0
        # Other federators may remember claims of an earlier run of this one.
        self._had_life = stored_epoch > 0
        self.is_synchronised = False
        # Until then, unknown groups may belong to cores that no neighbour has a route to (R65).
        self._new_until = now + settings.retention_s_max
        # Such groups that came before claims were told.
        self._unheard: set[str] = set()

    # --- entry points ---------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Start the machine. The effects begin with what must be on disk before anything else happens."""
        effects: list[Effect] = [StoreEpoch(self.epoch)]
        return effects + self.step(now, Tick())

    def step(self, now: float, event: Event) -> list[Effect]:
        """Handle one event. Return the effects, in order."""
        effects = self._changes.begin_step()
        if self.is_stopped:
            return effects
        quiet_from: int | None = None
        match event:
            case Received(neighbour, frame):
                self._on_frame(now, neighbour, frame)
                quiet_from = neighbour if frame.is_refresh and self._changes.is_clean else None
            case Tick():
                self._on_tick(now)
            case Subscribed() | Unsubscribed() | Ranked() | Appointed():
                self._on_wish(now, event)
            case LinkUp(neighbour):
                self._on_link_up(now, neighbour)
            case LinkDown(neighbour, is_removed):
                self._on_link_down(now, neighbour, is_removed)
            case Summarised() | Stored() | Fetched():
                self._on_custody(now, event)
            case Leave():
                self._on_leave(now)
                return effects
            case _:
                assert_never(event)
        if quiet_from is None:
            self._settle(now)
        self._speaker.flush(now, quiet_from)
        if self._custody.effects:
            effects += self._custody.take_effects()
        flush_at = self._speaker.flush_at
        self.deadline = min(self._alarms.next_at, self._custody.check_at, self._ask_at)
        if flush_at is not None and flush_at < self.deadline:
            self.deadline = flush_at
        return effects

    def publish(
        self,
        now: float,
        publications: Sequence[Publication],
        receipt: int = 0,
        again: tuple[int, int] | None = None,
        stamp: int = 0,
    ) -> Routed:
        """Route publications of the host broker's clients. An `Acknowledge` names the receipt when all have arrived.

        Args:
            now: The time.
            publications: One batch.
            receipt: The host broker side's name for the batch; 0 if nobody waits.
            again: The (epoch, number) of the first publication, if a former process has numbered them (R58).
            stamp: The stamp of the first publication, if any of them is retained (R79).
        """
        routed = self._forwarding.publish(now, publications, receipt, again, stamp)
        if self._custody.check_at < self.deadline:  # noqa: PLR1730 - two lookups, and no call a message
            self.deadline = self._custody.check_at
        return routed

    def publish_to(self, now: float, group: str, qos: int, packets: list[bytes]) -> Routed:
        """Send packets of the federator's own to a group, whatever their topics."""
        routed = self._forwarding.publish_to(now, group, qos, packets)
        self.deadline = min(self.deadline, self._custody.check_at)
        return routed

    def forward(self, now: float, neighbour: int, runs: Sequence[Run], receipt: int = 0) -> Routed:
        """Route runs that a neighbour sent. Refuse those of a stranger (R4)."""
        known = self._neighbours.get(neighbour)
        if known is None or not known.is_up:
            self.counters["rejected_stranger"] += 1
            return Routed({}, [])
        if self.is_stopped:
            return Routed({}, [])  # unacknowledged: the neighbour hands it to others (R37, R61)
        effects = self._hear_of_groups(now, runs) if now < self._new_until else []
        routed = self._forwarding.forward(now, neighbour, runs, receipt)
        if effects:
            routed = routed._replace(effects=(*effects, *routed.effects))
        if self._custody.check_at < self.deadline:  # noqa: PLR1730 - two lookups, and no call a message
            self.deadline = self._custody.check_at
        return routed

    def _hear_of_groups(self, now: float, runs: Sequence[Run]) -> list[Effect]:
        """Note unknown groups of a neighbour's runs, whose claims nobody could tell a new federator yet (R65).

        Nobody announces a core that it has no route to, or tells a newcomer that core's claims.
        """
        unheard = {group for run in runs if run.qos for group in run.groups if not self.is_known(group)}
        if not unheard:
            return []
        room = max(0, self.settings.groups_max - len(self._unheard))
        self._unheard.update(sorted(unheard)[:room])
        effects = self._changes.begin_step()
        self._settle(now)
        return effects

    def acknowledged(self, now: float, way: int, tokens: Sequence[int]) -> list[Effect]:
        """Record that a neighbour or the host broker (`HOST`) has acknowledged these tokens (R55)."""
        effects = self._forwarding.acknowledged(now, way, tokens)
        self.deadline = min(self.deadline, self._custody.check_at)
        return effects

    def restore(
        self,
        now: float,
        *,
        delivered: Iterable[tuple[int, int, int, int]] = (),
        outbox: Mapping[int, tuple[int, int]] | None = None,
        wanted: Iterable[str] = (),
    ) -> list[Effect]:
        """Take over what the process before this one left on disk. Call this after `start` and before anything else.

        Args:
            now: The time.
            delivered: Ids that the host broker has acknowledged, as `(origin, epoch, first, count)`.
            outbox: Destination to the first position and the end of its records.
            wanted: The groups that others wanted. They hold until claims are told again, or for 10·K·A.
        """
        effects = self._changes.begin_step()
        self._forwarding.restore_delivered(now, delivered)
        for group in sorted(wanted):
            self._claims.remember(group, now + self.settings.retention_s_max)
        self._settle(now)
        self._custody.restore(dict(outbox or {}))
        return effects + self._custody.take_effects()

    # --- views ------------------------------------------------------------------------------------------------------

    def core_of(self, group: str) -> int | None:
        """Return the core that this federator accepts for a group (R8)."""
        return self._election.core_of(group)

    def cores(self) -> dict[str, int | None]:
        """Return the core that this federator accepts for each claimed group."""
        return self._election.cores()

    def core_epoch(self, core: int) -> int | None:
        """Return the epoch in which this federator knows a core."""
        if core == self.identity:
            return self.epoch
        route = self._ways.route(core)
        return None if route is None else route.epoch

    def distance_to(self, core: int) -> int | None:
        """Return the distance to a core in hops, or None if there is no route."""
        if core == self.identity:
            return 0
        route = self._ways.route(core)
        return None if route is None or route.distance == UNREACHABLE else route.distance

    def parents_of(self, core: int) -> tuple[int, ...]:
        """Return the parents towards a core."""
        return self._ways.parents_of(core)

    def is_member(self, group: str) -> bool:
        """Return whether this federator is in a group's mesh: interested, its core, or connecting others (R32, R33)."""
        return self.is_local(group) or group in self._claims.own.groups or self._mesh.has_children(group)

    def has_members(self, group: str) -> bool:
        """Return whether others have joined a group with this federator as its core."""
        return self._mesh.has_members(group)

    def mesh_neighbours(self, group: str) -> tuple[int, ...]:
        """Return the neighbours over whose links the group's mesh runs."""
        return self._mesh.edges(group)

    def groups(self) -> list[str]:
        """Return every group that is claimed or of interest here."""
        return sorted(self._claims.groups() | self._host.interest.keys())

    def host_subscriptions(self) -> frozenset[str]:
        """Return the groups that the federator should be subscribed to at its host broker."""
        return frozenset(self._host.subscriptions)

    def neighbours(self) -> tuple[int, ...]:
        """Return the neighbours whose link is up."""
        return tuple(sorted(n.identity for n in self._neighbours.values() if n.is_up))

    def lost_neighbours(self) -> tuple[int, ...]:
        """Return the known neighbours whose link is down or that are no longer heard (R7, R38)."""
        return tuple(sorted(n.identity for n in self._neighbours.values() if not n.is_usable))

    def plan(self, groups: tuple[str, ...], source: int) -> Plan:
        """Return where publications of these groups would go from here, coming from a source. Probes follow it."""
        return self._forwarding.plan(groups, source)

    @property
    def accounts(self) -> Accounts:
        """Outcomes of publications since the start, by origin, epoch and groups."""
        return self._forwarding.accounts

    @property
    def next_id(self) -> int:
        """Number, in this epoch, of the next publication."""
        return self._forwarding.next_id

    @property
    def flows(self) -> dict[tuple[str, int, tuple[str, ...]], list[int]]:
        """Publications and bytes since the start by (measure, origin, groups), for telemetry."""
        return self._forwarding.accounts.flows()

    def waiting(self) -> list[Run]:
        """Return the runs that wait for a route or for their turn."""
        return self._forwarding.waiting()

    def count_delivered(self, run: Run) -> None:
        """Count a run that was handed to the host broker, under the groups that are of interest here."""
        self.count_here("delivered", run)

    def count_here(self, measure: str, run: Run) -> None:
        """Count another outcome of a run for the host broker, under the groups that are of interest here."""
        interest = self._host.interest
        groups = run[6]
        if len(groups) > 1 or groups[0] not in interest:
            groups = tuple([group for group in groups if group in interest])
        self.accounts.add(measure, (run[0], run[1]), groups, run[3], len(run[7]))

    @property
    def parked_bytes(self) -> int:
        """Size of the QoS 0 publications that wait for a route."""
        return self._forwarding.parked_bytes

    @property
    def in_custody(self) -> int:
        """Publications of QoS 1 and 2 in memory that some destination has yet to acknowledge."""
        return self._custody.waiting

    @property
    def records(self) -> int:
        """Batches that wait in the outbox."""
        return self._custody.records

    @property
    def retained_bytes(self) -> int:
        """Size of the retention buffer."""
        return self._forwarding.retention.bytes

    def retained_since(self, time: float) -> list[tuple[float, Run]]:
        """Return what the retention buffer has since a time, oldest first."""
        return self._forwarding.retention.since(time)

    def pending_at_host(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Return what the host broker has yet to acknowledge: ranges of ids by origin and epoch."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for sources in self._custody.pending(HOST).values():
            for source, ranges in sources.items():
                found.setdefault(source, []).extend(ranges)
        return found

    # --- the view of the data path ----------------------------------------------------------------------------------

    def match(self, topic: str) -> tuple[str, ...]:
        """Return the groups that a topic belongs to (R42)."""
        return self._claims.match(topic)

    def is_known(self, group: str) -> bool:
        """Return whether this federator has heard of a group."""
        return bool(self._claims.claimants(group)) or self.is_local(group) or self._mesh.has_children(group)

    def is_hearsay(self, group: str) -> bool:
        """Return whether a group is known only because neighbours send publications of it."""
        return self._claims.is_hearsay(group)

    def is_contested(self, group: str) -> bool:
        """Return whether a group has several claimants, or no live one, so that meshes may have yet to meet (R68)."""
        return self.is_known(group) and (self.core_of(group) is None or len(self._claims.claimants(group)) > 1)

    def is_local(self, group: str) -> bool:
        """Return whether local clients are interested in a group."""
        return group in self._host.interest

    def hops(self, group: str) -> tuple[tuple[int, ...], bool]:
        """Return the neighbours that a publication of the group goes to, and whether it must wait (R43, R51)."""
        edges = self.mesh_neighbours(group)
        away: tuple[int, ...] = ()
        if self._absent:
            away = tuple(sorted(n for n, groups in self._absent.items() if group in groups and n not in edges))
        core = self.core_of(group)
        if edges and (core is None or self._mesh.is_connected((core, group))):
            return (*edges, *away), False
        if not edges and (self.is_local(group) or group in self._claims.own.groups):
            return away, self._mesh.own_core(group) is not None
        if core is None:
            return away, bool(self._claims.claimants(group))
        parents = self.parents_of(core)
        if self.settings.outsider == "one_parent":
            parents = parents[:1]
        if not edges:  # R44
            return (*parents, *(n for n in away if n not in parents)), not parents
        # The rest of a mesh whose core is out of reach or not joined yet also counts as outside (R45).
        return tuple(sorted({*edges, *parents, *away})), False

    def is_kept_for(self, neighbour: int, group: str) -> bool:
        """Return whether publications of the group are kept for a neighbour that is away (R75)."""
        return group in self._absent.get(neighbour, ())

    def is_claimed_by(self, neighbour: int, group: str) -> bool:
        """Return whether a neighbour claims a group, so that it or federators behind it want the publications."""
        return neighbour in self._claims.claimants(group)

    def former_hops(self, group: str) -> tuple[int, ...]:
        """Return the neighbours that led to a core which has just given the group up (R46)."""
        return self._mesh.former_ways(group)

    def hop_limit(self) -> int:
        """Return the number of hops beyond which a publication is dropped (R50)."""
        return self._ways.hop_limit()

    # --- links --------------------------------------------------------------------------------------------------------

    def _on_link_up(self, now: float, identity: int) -> None:
        if identity == self.identity:
            self._conflict(identity, "a neighbour has our own id")  # R5
            return
        neighbour = self._neighbours.get(identity)
        if neighbour is None:
            if len(self._neighbours) >= self.settings.neighbours_max:
                self._emit(Emit("limit_reached", neighbour=identity, detail="neighbours_max"))
                self._emit(CloseLink(identity, f"more than {self.settings.neighbours_max} neighbours"))
                return
            neighbour = self._neighbours[identity] = Neighbour(identity, self._generation)
        if neighbour.is_up:
            self._conflict(identity, "a second link with the id of a neighbour whose link is up")  # R5
            return
        neighbour.come_up(now)
        self._had_link = True
        self._changes.is_table_changed = True

    def _on_link_down(self, now: float, identity: int, is_removed: bool) -> None:
        neighbour = self._neighbours.get(identity)
        if neighbour is None:
            return
        if neighbour.is_up:
            self._lose_way(neighbour)
            neighbour.go_down(now)
            self._forget_ways(neighbour)
            self._changes.is_table_changed = True
        if is_removed:
            self._forget_neighbour(neighbour)

    def _lose_way(self, neighbour: Neighbour) -> None:
        """Close the destination of a lost neighbour, and keep for it what its meshes get (R61, R75)."""
        self._absent.setdefault(neighbour.identity, set()).update(self._mesh.groups_with(neighbour))
        self._lost_ways.add(neighbour.identity)
        self._changes.is_table_changed = True

    def _open_way(self, now: float, neighbour: Neighbour) -> None:
        """Open a neighbour's destination: send what was kept for it, then summaries of what we have (R69, R75)."""
        identity = neighbour.identity
        if identity in self._lost_ways:
            self._lost_ways.discard(identity)
            self._forwarding.lose_way(now, identity)
        if self._absent.pop(identity, None) is not None:
            self._changes.is_table_changed = True
        self._changes.edges.update((identity, group) for group in self._mesh.groups_with(neighbour))
        self._custody.open_way(now, identity)

    def _forget_ways(self, neighbour: Neighbour) -> None:
        """Drop all routes through this neighbour (R30)."""
        self._ways.forget_neighbour(neighbour.identity)
        self._claims.forget_neighbour(neighbour.identity)
        self._mesh.disconnect(neighbour)

    def _forget_neighbour(self, neighbour: Neighbour) -> None:
        """Forget a neighbour that is gone for good: it left, was removed, or stayed away too long (R37, R38)."""
        self._mesh.forget_neighbour(neighbour)
        for wanted in self._since.values():
            wanted.pop(neighbour.identity, None)
        self._absent.pop(neighbour.identity, None)
        self._lost_ways.add(neighbour.identity)
        del self._neighbours[neighbour.identity]
        self._generation = max(self._generation, neighbour.joining.generation + 1, neighbour.connecting.generation + 1)
        self._changes.is_table_changed = True

    def _conflict(self, identity: int, detail: str) -> None:
        self.counters["identity_conflicts"] += 1
        self._emit(Emit("identity_conflict", neighbour=identity, detail=detail))
        self._emit(CloseLink(identity, f"federator id {identity} is in use: {detail}"))

    def _emit(self, effect: Effect) -> None:
        self._changes.effects.append(effect)

    # --- frames -----------------------------------------------------------------------------------------------------

    def _on_frame(self, now: float, identity: int, frame: ControlFrame) -> None:
        neighbour = self._neighbours.get(identity)
        if neighbour is None or not neighbour.is_up or frame.sender != identity:
            self.counters["rejected_stranger"] += 1  # R4
            return
        if (frame.epoch, frame.number) <= (neighbour.epoch, neighbour.number):
            self.counters["ignored_stale_frame"] += 1  # R3
            return
        if frame.epoch > neighbour.epoch and neighbour.epoch:
            self._on_neighbour_restarted(neighbour)
        neighbour.epoch, neighbour.number = frame.epoch, frame.number
        neighbour.heard_at = now
        self._take_echo(now, neighbour, frame)
        if frame.is_leaving:
            self._on_neighbour_leaving(now, neighbour, frame)
            return
        if not neighbour.is_usable and now - neighbour.echoed_at <= self.settings.expiry_s:
            neighbour.is_usable = True
            self._ways.touch_neighbour(identity)
            if neighbour.has_spoken:
                self._open_way(now, neighbour)
        if frame.echo_epoch == self.epoch:  # otherwise it refers to the sets of an earlier boot of ours
            neighbour.joining.acknowledge(frame.memberships_ack)
            neighbour.connecting.acknowledge(frame.connections_ack)
        self._take_words(now, neighbour, frame)
        if not neighbour.has_spoken:
            neighbour.has_spoken = True
            self._claims.tell_ended(neighbour)
            self._changes.groups.add(MANAGEMENT_GROUP)
            self._election.on_synchronised()
            if neighbour.is_usable:
                self._open_way(now, neighbour)

    def _take_words(self, now: float, neighbour: Neighbour, frame: ControlFrame) -> None:
        """Give each section of a frame to its module, claims first, because announcements refer to them."""
        for delta in frame.claim_deltas:
            self._claims.on_delta(now, neighbour, delta)
        for part in frame.claim_parts:
            self._claims.on_part(now, neighbour, part)
        self._ways.on_announcements(now, neighbour, frame)
        for request in frame.claim_requests:
            self._claims.on_request(neighbour, request)
        for solicit in frame.solicits:
            self._ways.on_solicit(neighbour, solicit)
        if frame.memberships is not None:
            self._mesh.on_memberships(neighbour, frame.memberships)
        if frame.connections is not None:
            self._mesh.on_connections(neighbour, frame.connections)
        for hand_over in frame.hand_overs:
            self._election.on_hand_over(now, neighbour, hand_over)

    def _take_echo(self, now: float, neighbour: Neighbour, frame: ControlFrame) -> None:
        """Compare what the neighbour last heard of us. A later epoch than ours means that we lost ours (R2)."""
        if (frame.echo_epoch, frame.echo_number) > (self.epoch, self._speaker.number):
            self._raise_epoch(frame.echo_epoch)
        elif frame.echo_epoch == self.epoch and frame.echo_number > neighbour.echoed_number:
            neighbour.echoed_number = frame.echo_number
            neighbour.echoed_at = now

    def _raise_epoch(self, heard: int) -> None:
        epoch = boot_epoch(self.epoch, 0, heard)
        if epoch == self.epoch:
            self.counters["rejected_epoch"] += 1  # there is no later one, and ids must not restart in this one
            return
        self.epoch = epoch
        self.counters["epochs_raised"] += 1
        self._emit(StoreEpoch(self.epoch))
        self._emit(Emit("epoch_raised", detail=str(self.epoch)))
        self._claims.begin_epoch(self.epoch)
        self._forwarding.begin_epoch(self.epoch)
        for neighbour in self._neighbours.values():
            neighbour.joining.restart()
            neighbour.connecting.restart()
            neighbour.echoed_number = 0
            neighbour.needs_full = neighbour.is_up

    def _on_neighbour_restarted(self, neighbour: Neighbour) -> None:
        """Handle a neighbour's new epoch: it has lost what we told it, and what it told us no longer counts (R38)."""
        self._lose_way(neighbour)
        self._forget_ways(neighbour)
        neighbour.joined.await_owner()
        neighbour.joining.restart()
        neighbour.connecting.restart()
        neighbour.drop_pending()
        neighbour.told.clear()
        neighbour.needs_full = True
        neighbour.has_spoken = False

    def _on_neighbour_leaving(self, now: float, neighbour: Neighbour, frame: ControlFrame) -> None:
        self._emit(Emit("neighbour_left", neighbour=neighbour.identity))
        for delta in frame.claim_deltas:
            self._claims.on_delta(now, neighbour, delta)
        neighbour.go_down(now)
        self._forget_ways(neighbour)
        self._forget_neighbour(neighbour)

    # --- conclusions --------------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Draw conclusions until nothing is dirty: routes, then elections, then memberships."""
        changes = self._changes
        while changes.is_unsettled:
            if changes.routes:
                for core in changes.take_routes():
                    if self._ways.choose(now, core):
                        self._mesh.touch_core(core)
            elif changes.groups:
                for group in changes.take_groups():
                    self._election.decide(now, group)
            else:
                for key in changes.take_keys():
                    self._mesh.place(key)
        if not self.is_synchronised and not self._claims.is_fetching:
            self.is_synchronised = any(neighbour.has_spoken for neighbour in self._neighbours.values())
            changes.is_table_changed = changes.is_table_changed or self.is_synchronised
        if self._unheard and self.is_synchronised:
            unheard, self._unheard = self._unheard, set()
            for group in sorted(unheard):
                self._claims.remember_hearsay(group, now + self.settings.retention_s_max)
            self._settle(now)
            return
        if changes.is_table_changed:
            changes.is_table_changed = False
            self._change_table(now)
        for group in changes.take_given_up() if changes.given_up else ():
            self._forwarding.pass_to_rival(now, group)
        if changes.edges:
            self._ask_for_missing(now)

    def _change_table(self, now: float) -> None:
        """Tell the data path of changes, and retry what was with lost neighbours or had no route."""
        self._forwarding.invalidate()
        for neighbour in sorted(self._lost_ways):
            is_for_good = neighbour not in self._neighbours
            self._forwarding.lose_way(now, neighbour, is_for_good=is_for_good)
            if is_for_good:
                self.counters["records_orphaned"] += self._custody.forget_way(now, neighbour)
        self._lost_ways.clear()
        if self._custody.has_blocked:
            self._forwarding.retry_blocked(now)
        if self._forwarding.parked_bytes:
            for neighbour, runs in sorted(self._forwarding.retry_parked().items()):
                self._emit(SendRuns(neighbour, tuple(runs)))

    # --- wishes of clients, operators and the manager -----------------------------------------------------------------

    def _on_wish(self, now: float, event: Subscribed | Unsubscribed | Ranked | Appointed) -> None:
        match event:
            case Subscribed(filter_):
                group = self._host.on_subscribed(filter_)
                if group is not None:
                    # Interest that is reported before the first link was there before the restart (R69).
                    since = now if self._had_link else -math.inf
                    self._since.setdefault(group, {}).setdefault(self.identity, since)
            case Unsubscribed(filter_):
                unwanted = self._host.on_unsubscribed(filter_)
                if unwanted is not None:
                    self._since.get(unwanted, {}).pop(self.identity, None)
                    self._election.hand_over(unwanted)
            case Ranked(group, rank):
                self._election.on_ranked(group, rank)
            case Appointed(group, is_appointed):
                self._election.on_appointed(group, is_appointed=is_appointed)
            case _:
                assert_never(event)

    # --- missed publications ------------------------------------------------------------------------------------------

    def _ask_for_missing(self, now: float) -> None:
        """Send summaries over new mesh edges, together in a burst, so that the neighbours send what we lack (R69)."""
        if now < self._asked_at + self.settings.coalescing_s:
            self._ask_at = self._asked_at + self.settings.coalescing_s
            return
        self._ask_at, self._asked_at = math.inf, now
        ages_ms: dict[int, dict[str, int]] = {}
        for neighbour, group in self._changes.take_edges():
            # What the neighbour wants itself, it has or asks us for. Interest that has only just begun asks too: its
            # membership may take long to reach the core, and what is published meanwhile is wanted.
            since = [at for who, at in self._since.get(group, {}).items() if who != neighbour]
            if since:
                age_s = min(self.settings.retention_s_max, now - min(since))
                ages_ms.setdefault(neighbour, {})[group] = math.ceil(age_s * 1000)
        limit = self.settings.items_per_frame_max
        for neighbour in sorted(ages_ms):
            groups = sorted(ages_ms[neighbour])
            for start in range(0, len(groups), limit):
                asked = {group: ages_ms[neighbour][group] for group in groups[start : start + limit]}
                self._custody.summarise(now, neighbour, self._forwarding.retention.summaries(now, asked))

    def _on_custody(self, now: float, event: Summarised | Stored | Fetched) -> None:
        match event:
            case Summarised(neighbour, summaries, receipt):
                self._on_summaries(now, neighbour, summaries, receipt)
            case Stored(way, end):
                self._custody.stored(way, end)
            case Fetched(way, records, end):
                orphans = self._custody.orphans.answered(way, records, end)
                if orphans is not None:
                    self._forwarding.adopt(now, way, orphans)
                elif way == BLOCKED:
                    self._forwarding.fetched_blocked(now, records, end)
                else:
                    self._forwarding.fetched(now, way, records, end)
            case _:
                assert_never(event)

    def _on_summaries(self, now: float, identity: int, summaries: tuple[Summary, ...], receipt: int) -> None:
        """Answer a neighbour's summaries, and ask others on behalf of federators behind it (R70 to R72)."""
        neighbour = self._neighbours.get(identity)
        if neighbour is None or not neighbour.is_up:
            self.counters["rejected_stranger"] += 1
            return
        self._forwarding.supply(now, identity, summaries, receipt)
        for summary in summaries:
            since = now - min(summary.age_ms / 1000, self.settings.retention_s_max)
            if self.is_known(summary.group):
                known = self._since.setdefault(summary.group, {})
                if since < known.get(identity, math.inf) - SINCE_SLACK_S:
                    known[identity] = since
                    self._changes.edges.update(
                        (edge, summary.group)
                        for edge in self._mesh.edges(summary.group)
                        # An edge that we told of another interest as early has sent us all of that.
                        if edge != identity
                        and all(since < at - SINCE_SLACK_S for who, at in known.items() if who not in {identity, edge})
                    )
            # The neighbour may have got them after we asked and before it saw us as an edge. Mostly they are under way.
            if len(self._lacking) < self.settings.items_per_frame_max and self._forwarding.lacks(summary):
                self._lacking[identity, summary.group] = summary

    def _on_leave(self, now: float) -> None:
        """Leave: withdraw the claims and end the memberships with the last frame (R37)."""
        self._forwarding.leave_behind(now, self.neighbours())
        self._changes.effects += self._custody.take_effects()
        for group in sorted(self._claims.own.groups):
            self._claims.change_own(group, None, is_wanted=self._mesh.has_members(group))
        self._speaker.say_goodbye()
        self.is_stopped = True
        self.deadline = math.inf

    # --- time ---------------------------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> None:
        self._on_alarms(now)
        if now >= self._alarms.next_round_at:
            self._on_round(now)
        if now >= self._custody.check_at:
            if self._custody.has_blocked:
                self._forwarding.retry_blocked(now)
            self._custody.check(now)

    def _on_alarms(self, now: float) -> None:
        for due, core, group in self._alarms.ring(now):
            match due:
                case Due.CLAIM:
                    self._changes.groups.add(group)
                case Due.CORE_LOST:
                    self._ways.on_lost(core)
                case Due.FADED:
                    self._mesh.on_faded(now, core, group)
                case Due.FORGET:
                    self._claims.forget_remembered(now, group)
                case _:
                    assert_never(due)

    def _on_round(self, now: float) -> None:
        """Run the round: age what was not refreshed, send again what was not heard, announce (R23, R25)."""
        self._alarms.begin_round(now)
        self._ways.begin_round()
        for neighbour in list(self._neighbours.values()):
            self._age_neighbour(now, neighbour)
        self._ways.age(now)
        self._mesh.age(now)
        self._claims.age(now)
        self._election.age(now)
        self._forwarding.forget(now)
        lacking, self._lacking = self._lacking, {}
        self._changes.edges.update(edge for edge, summary in lacking.items() if self._forwarding.lacks(summary))
        self._rounds += 1
        if self._rounds % self.settings.expiry_factor == 0:
            self._claims.doubt(self._neighbours.values(), self._ways.is_live)
        if self._rounds % TIDIED_ROUNDS == 0:
            self._since = {group: who for group, who in self._since.items() if who and self.is_known(group)}
        for neighbour in self._neighbours.values():
            if neighbour.is_up:
                neighbour.needs_full = True

    def _age_neighbour(self, now: float, neighbour: Neighbour) -> None:
        if neighbour.is_up:
            expiry_s = self.settings.expiry_s
            is_usable = now - neighbour.heard_at <= expiry_s and now - neighbour.echoed_at <= expiry_s
            if neighbour.is_usable and not is_usable:
                neighbour.is_usable = False
                self.counters["neighbours_lost"] += 1
                self._emit(Emit("neighbour_lost", neighbour=neighbour.identity))
                self._lose_way(neighbour)
                self._ways.touch_neighbour(neighbour.identity)
            if now - neighbour.up_at > 2 * self.settings.announcement_interval_s:
                # By now we have joined what we want through this neighbour. If that is nothing, the neighbour must be
                # told, else it keeps what we had with it before a restart (R41).
                neighbour.joining.introduce()
                neighbour.connecting.introduce()
                if self._had_life:
                    self._claims.declare_empty()
            has_steps = neighbour.joining.has_unacknowledged or neighbour.connecting.has_unacknowledged
            if has_steps and neighbour.has_stale_steps:  # R40
                neighbour.joining.rewind()
                neighbour.connecting.rewind()
            neighbour.has_stale_steps = has_steps
        elif neighbour.absent_since is not None and now - neighbour.absent_since > self.settings.absence_s:
            self._forget_neighbour(neighbour)
