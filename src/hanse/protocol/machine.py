"""The federation protocol of one federator, as a state machine without IO. docs/protocol.md is its specification.

Theory of operation. A federator that has interest in a group and hears of no core for it *claims* the group. Claims
reach everybody as versioned deltas. A core *announces* itself every interval; announcements spread with a distance,
and the neighbours nearest to a core are the *parents* towards it. Whoever wants a group sends a *membership* to its
parents towards the group's core, they pass it on, and the links that carry one are the group's *mesh*. The data path
(`forwarding`) reads the mesh and nothing else.

The rules that keep this honest:

- `step` is the only way in for control: same state, time and event give the same effects. No clock, no randomness;
  what can reach the wire is iterated in sorted order.
- A handler notes what changed (`_dirty_…`); `_settle` draws the conclusions until nothing is dirty; `_flush` says what
  is new to whom it concerns, one frame a neighbour.
- Inbound words are accepted, ignored (stale, duplicate: counted) or rejected (they break a rule: counted).
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import assert_never

from hanse.errors import RemoteError
from hanse.protocol.claims import ClaimSet, Fetch
from hanse.protocol.effects import (
    CloseLink,
    Effect,
    Emit,
    Send,
    SendRuns,
    StoreEpoch,
    SubscribeHost,
    UnsubscribeHost,
)
from hanse.protocol.events import (
    Appointed,
    Event,
    Leave,
    LinkDown,
    LinkUp,
    Ranked,
    Received,
    Subscribed,
    Tick,
    Unsubscribed,
)
from hanse.protocol.forwarding import Forwarding, Routed
from hanse.protocol.identity import boot_epoch, check_federator_id, claim_delay_s, election_key, private_group
from hanse.protocol.messages import (
    HOPS_LIMIT_MIN,
    HOPS_MAX,
    UNREACHABLE,
    Announcement,
    ClaimChange,
    ClaimDelta,
    ClaimPart,
    ClaimRequest,
    ControlFrame,
    HandOver,
    Key,
    Publication,
    Run,
    SetDelta,
    Solicit,
)
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.routes import ADVANCED_AT, DISTANCE, SEQUENCE, Route
from hanse.protocol.settings import MANAGEMENT_GROUP, RANK_DEFAULT, Settings
from hanse.protocol.topics import check_filter, filter_may_cross
from hanse.protocol.trie import FilterIndex, MatchCache

# What an alarm is for.
_CORE_LOST, _CLAIM_DUE, _FADED = 0, 1, 2


class Machine:
    """One federator."""

    def __init__(self, identity: int, settings: Settings, *, now: float, wall_s: int, stored_epoch: int = 0) -> None:
        check_federator_id(identity)
        self.identity = identity
        self.settings = settings
        self.epoch = boot_epoch(stored_epoch, wall_s)
        # What happened, by name; docs/protocol.md lists the names.
        self.counters: Counter[str] = Counter()
        self.is_stopped = False

        self._interval_s = settings.announcement_interval_s
        self._neighbours: dict[int, Neighbour] = {}
        # Larger than any that a neighbour which we have forgotten may remember of our sets (R24).
        self._generation = 1
        self._number = 0  # of our control frames
        self._sequence = 0  # of our announcements
        self._routes: dict[int, Route] = {}
        # Cores that count in elections: reachable, or lost for less than an interval.
        self._live: set[int] = {identity}

        self._claims = ClaimSet(identity, self.epoch, settings.claim_log_max)
        self._claim_sets: dict[int, ClaimSet] = {identity: self._claims}
        self._fetches: dict[int, Fetch] = {}
        # Group to the cores that claim it, sorted; and the same groups for matching topics.
        self._claimants: dict[str, tuple[int, ...]] = {}
        self._index = FilterIndex()
        self._matches = MatchCache(self._index)

        # Group to the number of local filters in it.
        self._interest: dict[str, int] = {MANAGEMENT_GROUP: 1}
        self._filters: set[str] = set()
        self._ranks: dict[str, int] = {}
        self._appointments: set[str] = set()
        # Group to the core under which we belong to its mesh for our own sake.
        self._own_core: dict[str, int] = {}
        # Group to core to neighbours: who joined through us, and through whom we joined.
        self._children: dict[str, dict[int, set[int]]] = {}
        self._holders: dict[str, dict[int, set[int]]] = {}
        # Core to the groups for which we hold or want a membership towards it.
        self._joined_under: dict[int, set[str]] = {}
        # Groups claimed at a core's request to take over from it: that core, and until when it is to withdraw.
        self._inherited: dict[str, tuple[int, float]] = {}
        self._hand_over_turn = -1
        # Groups that wait to be claimed: when, and those that wait for synchronised claims.
        self._claim_due: dict[str, float] = {}
        self._unclaimed: set[str] = set()
        # Keys whose core gave the group up: the memberships of others count for them until then.
        self._fading: dict[Key, float] = {}
        self._host_subscriptions: set[str] = set()

        self._dirty_routes: set[int] = set()
        self._dirty_groups: set[str] = {MANAGEMENT_GROUP}
        self._dirty_keys: set[Key] = set()
        self._dirty_cores: set[int] = set()
        self._dirty_claims: set[int] = set()
        self._is_table_changed = False
        self._effects: list[Effect] = []

        self._alarms: list[tuple[float, int, int, str]] = []
        self._next_tick = now + self._interval_s
        self._flush_at: float | None = None
        self._flushed_at = now - settings.coalescing_s
        self.deadline = self._next_tick
        self._forwarding = Forwarding(identity, self.epoch, settings, self, self.counters)

    # --- the way in -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """The first call: what must be on disk before anything else happens."""
        effects: list[Effect] = [StoreEpoch(self.epoch)]
        return effects + self.step(now, Tick())

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event; what is to be done, in order."""
        effects = self._effects = []
        if self.is_stopped:
            return effects
        match event:
            case Received(neighbour, frame):
                self._on_frame(now, neighbour, frame)
            case Tick():
                self._on_alarms(now)
                if now >= self._next_tick:
                    self._on_round(now)
            case Subscribed(filter_):
                self._on_subscribed(filter_)
            case Unsubscribed(filter_):
                self._on_unsubscribed(filter_)
            case LinkUp(neighbour):
                self._on_link_up(now, neighbour)
            case LinkDown(neighbour, is_removed):
                self._on_link_down(now, neighbour, is_removed)
            case Ranked(group, rank):
                self._on_ranked(group, rank)
            case Appointed(group, is_appointed):
                (self._appointments.add if is_appointed else self._appointments.discard)(group)
                self._dirty_groups.add(group)
            case Leave():
                self._on_leave()
            case _:
                assert_never(event)
        self._settle(now)
        self._flush(now)
        self._set_deadline()
        return effects

    def publish(self, now: float, publications: Sequence[Publication]) -> Routed:
        """Route publications of the host broker's clients."""
        return self._forwarding.publish(now, publications)

    def publish_to(self, now: float, group: str, qos: int, packets: list[bytes]) -> Routed:
        """Send packets of the federator's own to a group, whatever their topics."""
        return self._forwarding.publish_to(now, group, qos, packets)

    def forward(self, now: float, neighbour: int, runs: Sequence[Run]) -> Routed:
        """Route runs that a neighbour sent; from a stranger they are refused (R3)."""
        known = self._neighbours.get(neighbour)
        if known is None or not known.is_up:
            self.counters["rejected_stranger"] += 1
            return Routed({}, [])
        return self._forwarding.forward(now, neighbour, runs)

    # --- views ------------------------------------------------------------------------------------------------------

    def core_of(self, group: str) -> int | None:
        """The core that this federator accepts for a group (R5)."""
        best: tuple[tuple[int, int], int] | None = None
        for core in self._claimants.get(group, ()):
            if core not in self._live:
                continue
            rank = self._claim_sets[core].groups[group].rank
            assert rank is not None, "a claim that stands has a rank"
            key = election_key(rank, core, self.settings.election)
            if best is None or key < best[0]:
                best = (key, core)
        return None if best is None else best[1]

    def core_epoch(self, core: int) -> int | None:
        """The epoch in which this federator knows a core."""
        if core == self.identity:
            return self.epoch
        route = self._routes.get(core)
        return None if route is None else route.epoch

    def distance_to(self, core: int) -> int | None:
        """Hops to a core, None where there is no way."""
        if core == self.identity:
            return 0
        route = self._routes.get(core)
        return None if route is None or route.distance == UNREACHABLE else route.distance

    def parents_of(self, core: int) -> tuple[int, ...]:
        """The neighbours that lead to a core."""
        route = self._routes.get(core)
        return () if route is None else route.parents

    def is_member(self, group: str) -> bool:
        """Whether this federator is in a group's mesh: interested, its core, or connecting others (R19, R20)."""
        return group in self._interest or group in self._claims.groups or bool(self._children.get(group))

    def mesh_neighbours(self, group: str) -> tuple[int, ...]:
        """The neighbours over whose links the group's mesh runs."""
        edges: set[int] = set()
        for by_core in (self._children.get(group), self._holders.get(group)):
            if by_core:
                edges.update(*by_core.values())
        return tuple(sorted(edge for edge in edges if self._neighbours[edge].is_up))

    def groups(self) -> list[str]:
        """Every group that anybody claims, or that is of interest here."""
        return sorted(self._claimants.keys() | self._interest.keys())

    def host_subscriptions(self) -> frozenset[str]:
        """What the federator should be subscribed to at its host broker."""
        return frozenset(self._host_subscriptions)

    def neighbours(self) -> tuple[int, ...]:
        """The neighbours whose link is up."""
        return tuple(sorted(n.identity for n in self._neighbours.values() if n.is_up))

    @property
    def flows(self) -> dict[tuple[str, int, tuple[str, ...]], list[int]]:
        """Publications and bytes by (measure, origin, groups), since the start."""
        return self._forwarding.flows

    def count_delivered(self, run: Run) -> None:
        """The host broker was handed a run: account for it under the groups that are of interest here."""
        groups = tuple([group for group in run.groups if group in self._interest])
        self._forwarding.count_flow("delivered", run.origin, groups, run.length, len(run.body))

    @property
    def parked_bytes(self) -> int:
        """How much data waits for a way."""
        return self._forwarding.parked_bytes

    # --- what the data path reads -----------------------------------------------------------------------------------

    def match(self, topic: str) -> tuple[str, ...]:
        """The groups that a topic belongs to (R25)."""
        return self._matches.match(topic)

    def is_known(self, group: str) -> bool:
        """Whether this federator has heard of a group."""
        return group in self._claimants or group in self._interest or group in self._children

    def is_local(self, group: str) -> bool:
        """Whether local clients are interested in a group."""
        return group in self._interest

    def hops(self, group: str) -> tuple[tuple[int, ...], bool]:
        """The neighbours that a publication of the group goes to, and whether it has to wait for a way (R26, R30)."""
        edges = self.mesh_neighbours(group)
        if edges:
            return edges, False
        if group in self._interest or group in self._claims.groups:
            own_core = self._own_core.get(group)
            return (), own_core is not None and own_core != self.identity
        core = self.core_of(group)
        if core is None:
            return (), group in self._claimants
        parents = self.parents_of(core)
        return (parents[:1] if self.settings.outsider == "one_parent" else parents), not parents

    def hop_limit(self) -> int:
        """Twice the largest known distance, and four; at least 64, and what a frame can say (R29)."""
        distances = [route.distance for route in self._routes.values() if route.distance != UNREACHABLE]
        return min(max(2 * max(distances, default=0) + 4, HOPS_LIMIT_MIN), HOPS_MAX - 1)

    # --- links --------------------------------------------------------------------------------------------------------

    def _on_link_up(self, now: float, identity: int) -> None:
        if identity == self.identity:
            self._conflict(identity, "a neighbour has our own id")
            return
        neighbour = self._neighbours.get(identity)
        if neighbour is None:
            if len(self._neighbours) >= self.settings.neighbours_max:
                self._effects.append(Emit("limit_reached", neighbour=identity, detail="neighbours_max"))
                self._effects.append(CloseLink(identity, f"more than {self.settings.neighbours_max} neighbours"))
                return
            neighbour = self._neighbours[identity] = Neighbour(identity, self._generation)
        if neighbour.is_up:
            self._conflict(identity, "a second link with the id of a neighbour whose link is up")
            return
        neighbour.come_up(now)
        self._is_table_changed = True

    def _on_link_down(self, now: float, identity: int, is_removed: bool) -> None:
        neighbour = self._neighbours.get(identity)
        if neighbour is None:
            return
        if neighbour.is_up:
            neighbour.go_down(now)
            self._forget_ways(neighbour)
            self._is_table_changed = True
        if is_removed:
            self._forget_neighbour(neighbour)

    def _forget_ways(self, neighbour: Neighbour) -> None:
        """Nothing leads through this neighbour any longer (R18)."""
        for core, route in self._routes.items():
            if route.entries.pop(neighbour.identity, None) is not None:
                self._dirty_routes.add(core)
            route.waiting.discard(neighbour.identity)
        for core in [core for core, fetch in self._fetches.items() if fetch.neighbour == neighbour.identity]:
            del self._fetches[core]
        self._dirty_keys.update(neighbour.connected.clear())

    def _forget_neighbour(self, neighbour: Neighbour) -> None:
        """The neighbour is gone for good: it left, was removed, or stayed away too long (R22)."""
        for key in sorted(neighbour.joining.keys):
            self._drop_holder(key, neighbour)
            self._dirty_keys.add(key)
        for key in neighbour.joined.clear():
            self._drop_child(key, neighbour.identity)
        del self._neighbours[neighbour.identity]
        self._generation = max(self._generation, neighbour.joining.generation + 1, neighbour.connecting.generation + 1)
        self._is_table_changed = True

    def _conflict(self, identity: int, detail: str) -> None:
        self.counters["identity_conflicts"] += 1
        self._effects.append(Emit("identity_conflict", neighbour=identity, detail=detail))
        self._effects.append(CloseLink(identity, f"federator id {identity} is in use: {detail}"))

    # --- frames -----------------------------------------------------------------------------------------------------

    def _on_frame(self, now: float, identity: int, frame: ControlFrame) -> None:
        neighbour = self._neighbours.get(identity)
        if neighbour is None or not neighbour.is_up or frame.sender != identity:
            self.counters["rejected_stranger"] += 1  # R3
            return
        if (frame.epoch, frame.number) <= (neighbour.epoch, neighbour.number):
            self.counters["ignored_stale_frame"] += 1  # R2
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
            self._dirty_routes.update(core for core, route in self._routes.items() if identity in route.entries)
        if frame.echo_epoch == self.epoch:  # else it speaks of the sets of a boot before this one
            neighbour.joining.acknowledge(frame.memberships_ack)
            neighbour.connecting.acknowledge(frame.connections_ack)
        for delta in frame.claim_deltas:
            self._on_claim_delta(now, neighbour, delta)
        for part in frame.claim_parts:
            self._on_claim_part(now, neighbour, part)
        self._on_announcements(now, neighbour, frame)
        for request in frame.claim_requests:
            self._on_claim_request(neighbour, request)
        for solicit in frame.solicits:
            self._on_solicit(neighbour, solicit)
        if frame.memberships is not None:
            self._on_memberships(neighbour, frame.memberships)
        if frame.connections is not None:
            added, removed = neighbour.connected.apply(frame.epoch, frame.connections)
            self._dirty_keys.update(added, removed)
        for hand_over in frame.hand_overs:
            self._on_hand_over(now, neighbour, hand_over)
        if not neighbour.has_spoken:
            neighbour.has_spoken = True
            self._dirty_groups.add(MANAGEMENT_GROUP)
            self._dirty_groups.update(self._unclaimed)

    def _take_echo(self, now: float, neighbour: Neighbour, frame: ControlFrame) -> None:
        """What the neighbour last heard of us: a later epoch than ours means that we lost ours (R1)."""
        if (frame.echo_epoch, frame.echo_number) > (self.epoch, self._number):
            self._raise_epoch(frame.echo_epoch)
        elif frame.echo_epoch == self.epoch and frame.echo_number > neighbour.echoed_number:
            neighbour.echoed_number = frame.echo_number
            neighbour.echoed_at = now

    def _raise_epoch(self, heard: int) -> None:
        epoch = boot_epoch(self.epoch, 0, heard)
        if epoch == self.epoch:
            self.counters["rejected_epoch"] += 1  # there is no later one, and ids must not begin anew in this one
            return
        self.epoch = epoch
        self.counters["epochs_raised"] += 1
        self._effects.append(StoreEpoch(self.epoch))
        self._effects.append(Emit("epoch_raised", detail=str(self.epoch)))
        self._claims.reset_epoch(self.epoch)
        self._forwarding.begin_epoch(self.epoch)
        self._dirty_cores.add(self.identity)
        for neighbour in self._neighbours.values():
            neighbour.joining.restart()
            neighbour.connecting.restart()
            neighbour.echoed_number = 0
            neighbour.needs_full = neighbour.is_up

    def _on_neighbour_restarted(self, neighbour: Neighbour) -> None:
        """A new epoch: the neighbour has forgotten what we told it, and what it told us counts no more (R22)."""
        self._forget_ways(neighbour)
        neighbour.joined.await_owner()
        neighbour.joining.restart()
        neighbour.connecting.restart()
        neighbour.drop_pending()
        neighbour.told.clear()
        neighbour.needs_full = True
        neighbour.has_spoken = False

    def _on_neighbour_leaving(self, now: float, neighbour: Neighbour, frame: ControlFrame) -> None:
        self._effects.append(Emit("neighbour_left", neighbour=neighbour.identity))
        for delta in frame.claim_deltas:
            self._on_claim_delta(now, neighbour, delta)
        neighbour.go_down(now)
        self._forget_ways(neighbour)
        self._forget_neighbour(neighbour)

    # --- announcements and ways ---------------------------------------------------------------------------------------

    def _on_announcements(self, now: float, neighbour: Neighbour, frame: ControlFrame) -> None:
        identity = neighbour.identity
        routes, claim_sets = self._routes, self._claim_sets
        told = neighbour.told
        for core, epoch, sequence, distance, version, _ in frame.announcements:
            if version and told.get(core) != (epoch, version):
                neighbour.note_told(core, epoch, version)
            route = routes.get(core)
            # The quiet round: nothing but the sequence number has moved. 100 cores on 1,000 brokers make half a
            # million of these a round, so this path does two look-ups and no calls.
            if route is not None and route.epoch == epoch:
                entry = route.entries.get(identity)
                if entry is not None and entry[DISTANCE] == distance and sequence >= entry[SEQUENCE]:
                    if sequence > entry[SEQUENCE]:
                        entry[SEQUENCE] = sequence
                        entry[ADVANCED_AT] = now
                    if identity in route.parents:
                        if sequence > route.sequence:
                            route.sequence = sequence
                            if route.waiting and sequence >= route.wanted:
                                self._answer_solicits(route)
                    elif distance < route.distance and (
                        distance + 1 < route.distance or len(route.parents) < self.settings.redundancy
                    ):
                        self._dirty_routes.add(core)
                    claims = claim_sets.get(core)
                    if version and (claims is None or (claims.epoch, claims.version) < (epoch, version)):
                        self._ask(now, core, neighbour)
                    continue
            self._on_new_word(now, neighbour, core, epoch, sequence, distance, version)
        if frame.is_full:
            listed = {announcement.core for announcement in frame.announcements}
            for core, route in routes.items():
                if core not in listed and route.entries.pop(identity, None) is not None:
                    self._dirty_routes.add(core)

    def _on_new_word(
        self, now: float, neighbour: Neighbour, core: int, epoch: int, sequence: int, distance: int, version: int
    ) -> None:
        """An announcement that is more than a refresh."""
        if core == self.identity:
            if (epoch, sequence) > (self.epoch, self._sequence):
                # We cannot have said that: a lost epoch, or an impostor. Either way a newer epoch is ours (R1).
                self._effects.append(Emit("identity_conflict", core=core, neighbour=neighbour.identity))
                self.counters["identity_conflicts"] += 1
                self._raise_epoch(epoch)
            return
        # One hop more than the largest distance would read as "no way" (R3).
        if (distance == 0) != (core == neighbour.identity) or distance == UNREACHABLE - 1:
            self.counters["rejected_distance"] += 1
            return
        route = self._routes.get(core)
        if route is not None and epoch < route.epoch:
            self.counters["ignored_stale_announcement"] += 1
            return
        if distance == UNREACHABLE:
            if route is not None and epoch == route.epoch and route.entries.pop(neighbour.identity, None) is not None:
                self._dirty_routes.add(core)
            return
        claims = self._claim_sets.get(core)
        if claims is not None and claims.epoch == epoch and not claims.groups and version <= claims.version:
            return  # it has given everything up; the word is merely late
        if route is None or epoch > route.epoch:
            if route is None and len(self._routes) >= self.settings.cores_max:
                self.counters["rejected_cores_max"] += 1
                return
            if route is not None and route.distance == 0xFFFF and route.lost_at is not None:
                self.counters["cores_returned"] += 1
            route = self._routes[core] = self._renew_route(route, core, epoch)
        entry = route.entries.get(neighbour.identity)
        if entry is None:
            route.entries[neighbour.identity] = [sequence, distance, now]
        else:
            if sequence > entry[SEQUENCE]:
                entry[ADVANCED_AT] = now
            entry[SEQUENCE], entry[DISTANCE] = sequence, distance
        # Only a parent, or a neighbour that is nearer than we are, can change our own way.
        if distance < route.distance or neighbour.identity in route.parents:
            self._dirty_routes.add(core)
        if version and (claims is None or (claims.epoch, claims.version) < (epoch, version)):
            self._ask(now, core, neighbour)

    def _renew_route(self, old: Route | None, core: int, epoch: int) -> Route:
        route = Route(core, epoch)
        if old is not None:
            # The core restarted: its old distance stays our word until the new epoch gives another.
            route.distance, route.parents, route.lost_at = old.distance, old.parents, old.lost_at
        return route

    def _choose_parents(self, now: float, core: int) -> None:
        route = self._routes.get(core)
        if route is None:
            return
        distance, parents = route.distance, route.parents
        if not route.choose(self._is_usable, self.settings.redundancy):
            return
        self._is_table_changed = True
        if route.distance != distance:
            self._dirty_cores.add(core)  # another parent at the same distance is no news to anybody
        if route.parents != parents:
            detail = ",".join(map(str, route.parents))
            self._effects.append(Emit("parents_changed", core=core, detail=detail))
            self._dirty_keys.update((core, group) for group in self._joined_under.get(core, ()))
        if route.distance == UNREACHABLE:
            route.lost_at = now
            self._alarm(now + self._interval_s, _CORE_LOST, core)
            self._solicit(route)
        else:
            route.lost_at = None
            if route.waiting and route.sequence >= route.wanted:
                self._answer_solicits(route)
            elif route.waiting:
                for parent in route.parents:
                    self._neighbours[parent].solicits[core] = Solicit(core, route.epoch, route.wanted)
            if core not in self._live:
                self._live.add(core)
                self._touch_groups_of(core)

    def _is_usable(self, identity: int) -> bool:
        neighbour = self._neighbours.get(identity)
        return neighbour is not None and neighbour.is_usable

    def _touch_groups_of(self, core: int) -> None:
        claims = self._claim_sets.get(core)
        if claims is not None:
            self._dirty_groups.update(claims.groups)
            self._is_table_changed = True

    def _forget_core(self, core: int) -> None:
        """The core claims nothing any longer, or has been gone for too long."""
        self._routes.pop(core, None)
        self._live.discard(core)
        self._dirty_cores.discard(core)

    def _solicit(self, route: Route) -> None:
        """Ask all neighbours for a way that is newer than what we have passed on (R18)."""
        wanted = Solicit(route.core, route.epoch, route.next_sequence)
        for neighbour in self._neighbours.values():
            if neighbour.is_up:
                neighbour.solicits[route.core] = wanted

    def _on_solicit(self, neighbour: Neighbour, solicit: Solicit) -> None:
        core, epoch, wanted = solicit
        if core == self.identity:
            # Nobody can have passed on more than our last number: a larger wish is not honoured (R18).
            if epoch == self.epoch and self._claims.groups:
                if wanted == self._sequence + 1:
                    self._sequence = wanted
                self._dirty_cores.add(core)
            return
        route = self._routes.get(core)
        if route is None or route.epoch != epoch:
            return
        if route.distance == UNREACHABLE:
            route.waiting.add(neighbour.identity)
            route.wanted = max(route.wanted, wanted)
            return
        neighbour.needs_full = True
        if route.sequence >= wanted:
            return
        is_new = not route.waiting or wanted > route.wanted
        route.waiting.add(neighbour.identity)
        route.wanted = max(route.wanted, wanted)
        if is_new:
            for parent in route.parents:
                self._neighbours[parent].solicits[core] = Solicit(core, epoch, wanted)

    def _answer_solicits(self, route: Route) -> None:
        """The number that neighbours wait for has come: it goes out at once."""
        self._dirty_cores.add(route.core)
        route.waiting.clear()

    # --- claims -------------------------------------------------------------------------------------------------------

    def _on_claim_delta(self, now: float, neighbour: Neighbour, delta: ClaimDelta) -> None:
        core, epoch, start, changes = delta
        if core == self.identity:
            return
        neighbour.note_told(core, epoch, start + len(changes))
        claims = self._claim_sets.get(core)
        if claims is None or epoch > claims.epoch:
            if start > 0 or (claims is None and len(self._claim_sets) > self.settings.cores_max):
                return  # the announcement that names the version makes us ask
            before = set(claims.groups) if claims is not None else set()
            claims = self._claim_sets[core] = ClaimSet(core, epoch, self.settings.claim_log_max)
            for group in sorted(before):
                self._index_claim(core, group, is_claimed=False)
        if epoch < claims.epoch or not start <= claims.version < start + len(changes):
            self.counters["ignored_claim_delta"] += 1
            return
        for change in changes[claims.version - start :]:
            self._apply_change(now, claims, change)
        self._dirty_claims.add(core)
        self._end_fetch(core)

    def _apply_change(self, now: float, claims: ClaimSet, change: ClaimChange) -> None:
        claims.change(change)
        if not self._index_claim(claims.core, change.group, is_claimed=change.rank is not None):
            del claims.groups[change.group]
        if change.rank is None and self._wants(change.group) and change.group not in self._claim_due:
            self._wait_to_claim(now, change.group)
        if not claims.groups and claims.core != self.identity:
            self._forget_core(claims.core)

    def _index_claim(self, core: int, group: str, *, is_claimed: bool) -> bool:
        """Keep the group's claimants, and the index for matching, in step with the claim sets.

        False for one group too many: the caller must not keep it either.
        """
        cores = self._claimants.get(group, ())
        if is_claimed and self._fading.pop((core, group), None) is not None:
            self._dirty_keys.add((core, group))
        if is_claimed and core not in cores:
            if not cores:
                if len(self._claimants) >= self.settings.groups_max:
                    self.counters["rejected_groups_max"] += 1
                    self._effects.append(Emit("limit_reached", group=group, detail="groups_max"))
                    return False
                self._index.add(group)
            self._claimants[group] = tuple(sorted((*cores, core)))
        elif not is_claimed and core in cores:
            rest = tuple(other for other in cores if other != core)
            if rest:
                self._claimants[group] = rest
            else:
                del self._claimants[group]
                self._index.discard(group)
            if self._joined_under.get(core) and group in self._joined_under[core]:
                due = self._fading.setdefault((core, group), self._next_tick + 2 * self.settings.expiry_s)
                self._alarm(due, _FADED, core, group)
                self._dirty_keys.add((core, group))
        self._dirty_groups.add(group)
        self._is_table_changed = True
        return True

    def _ask(self, now: float, core: int, neighbour: Neighbour) -> None:
        """Fetch the claims that we lack from the neighbour that named them, one request at a time (R12)."""
        fetch = self._fetches.get(core)
        if fetch is not None and now - fetch.asked_at < self._interval_s:
            return
        claims = self._claim_sets.get(core)
        epoch, version = (claims.epoch, claims.version) if claims is not None else (0, 0)
        self._fetches[core] = Fetch(neighbour.identity, epoch, now)
        neighbour.claim_requests.append(ClaimRequest(core, epoch, version, -1, 0))

    def _on_claim_request(self, neighbour: Neighbour, request: ClaimRequest) -> None:
        claims = self._claim_sets.get(request.core)
        if claims is None or (request.epoch, request.version) >= (claims.epoch, claims.version):
            return
        limit = self.settings.items_per_frame_max
        is_delta_enough = request.offset == 0 and request.epoch == claims.epoch
        if is_delta_enough and claims.delta_since(request.version, limit) is not None:
            neighbour.claim_resends[request.core] = request.version
            return
        neighbour.claim_parts.append(claims.part(request.snapshot_version, request.offset, limit))

    def _on_claim_part(self, now: float, neighbour: Neighbour, part: ClaimPart) -> None:
        fetch = self._fetches.get(part.core)
        if fetch is None or fetch.neighbour != neighbour.identity or part.total > self.settings.groups_max:
            self.counters["ignored_claim_part"] += 1
            return
        claims = self._claim_sets.get(part.core)
        if not fetch.accept(part):
            fetch.asked_at = now
            epoch, version = (claims.epoch, claims.version) if claims is not None else (0, 0)
            request = ClaimRequest(part.core, epoch, version, fetch.version, len(fetch.claims))
            neighbour.claim_requests.append(request)
            return
        if claims is None:
            claims = self._claim_sets[part.core] = ClaimSet(part.core, part.epoch, self.settings.claim_log_max)
        elif (part.epoch, part.version) <= (claims.epoch, claims.version):
            self._end_fetch(part.core)
            return
        for group in sorted(claims.replace(part.epoch, fetch.version, tuple(fetch.claims))):
            if not self._index_claim(part.core, group, is_claimed=group in claims.groups):
                del claims.groups[group]
        if not claims.groups:
            self._forget_core(part.core)
        self._dirty_claims.add(part.core)
        self._dirty_cores.add(part.core)
        self._end_fetch(part.core)

    def _end_fetch(self, core: int) -> None:
        if self._fetches.pop(core, None) is not None:
            self._dirty_groups.update(self._unclaimed)

    def _change_own_claim(self, group: str, rank: int | None) -> None:
        grouping = str(self.settings.grouping) if group == MANAGEMENT_GROUP and rank is not None else ""
        if not self._claims.groups:
            self._dirty_cores.add(self.identity)
        if not self._index_claim(self.identity, group, is_claimed=rank is not None):
            return
        self._claims.change(ClaimChange(group, rank, grouping))
        self._dirty_claims.add(self.identity)
        self.counters["claims_made" if rank is not None else "claims_withdrawn"] += 1
        name = "core_elected" if rank is not None else "core_withdrawn"
        self._effects.append(Emit(name, group=group, core=self.identity))

    # --- election -----------------------------------------------------------------------------------------------------

    def _wants(self, group: str) -> bool:
        return group in self._interest

    def _decide(self, now: float, group: str) -> None:
        """Who anchors the group, as far as we can see, and what that makes of us (R5 to R11)."""
        core = self.core_of(group)
        others = [c for c in self._claimants.get(group, ()) if c != self.identity and c in self._live]
        if group in self._claims.groups:
            self._decide_as_claimant(group, core, others)
        elif group in self._appointments and others:
            self._change_own_claim(group, self._ranks.get(group, RANK_DEFAULT))  # R10
        elif core is None and self._wants(group):
            self._decide_to_claim(now, group)
        else:
            self._claim_due.pop(group, None)
            self._unclaimed.discard(group)
        self._choose_own_core(group)
        self._decide_host_subscription(group)
        if group == MANAGEMENT_GROUP:
            self._compare_grouping(core)

    def _decide_as_claimant(self, group: str, core: int | None, others: list[int]) -> None:
        has_members = bool(self._children.get(group, {}).get(self.identity))
        if group in self._appointments:
            if not others and not has_members and not self._wants(group):
                self._change_own_claim(group, None)
        elif not self._wants(group):
            if others or not has_members:
                self._change_own_claim(group, None)  # R9
        elif core != self.identity and core is not None:
            if group in self._inherited and self._inherited[group][0] in others:
                return  # R9: the old core withdraws, not its heir
            if self._is_connected((core, group)):
                self._change_own_claim(group, None)  # R8
        else:
            self._inherited.pop(group, None)

    def _decide_to_claim(self, now: float, group: str) -> None:
        due = self._claim_due.get(group)
        if group == MANAGEMENT_GROUP and not self._is_smallest_around():
            return  # R11; asked again every round
        if due is not None and now < due:
            return
        if due is None and (group in self._claimants or group == MANAGEMENT_GROUP):
            self._wait_to_claim(now, group)  # R7
            if now < self._claim_due[group]:
                return
        if not self._is_synchronised(now):
            self._unclaimed.add(group)
            return
        self._claim_due.pop(group, None)
        self._unclaimed.discard(group)
        self._change_own_claim(group, self._ranks.get(group, RANK_DEFAULT))  # R6

    def _wait_to_claim(self, now: float, group: str) -> None:
        key = election_key(RANK_DEFAULT, self.identity, self.settings.election)
        self._claim_due[group] = now + claim_delay_s(key, self._interval_s)
        self._alarm(self._claim_due[group], _CLAIM_DUE, 0, group)

    def _is_smallest_around(self) -> bool:
        sign = 1 if self.settings.election == "smallest" else -1
        return all(sign * self.identity < sign * n.identity for n in self._neighbours.values() if n.is_usable)

    def _is_synchronised(self, now: float) -> bool:
        """Every neighbour that is up has told us its claims, or has had an interval to do so."""
        if self._fetches:
            return False
        waiting = (n for n in self._neighbours.values() if n.is_up and not n.has_spoken)
        return all(now - n.up_at > self._interval_s for n in waiting)

    def _choose_own_core(self, group: str) -> None:
        """Under which core we belong to the group's mesh for our own sake (R19)."""
        core = self.core_of(group)
        before = self._own_core.get(group)
        # A former core holds its members together until they have found the new one.
        has_members = bool(self._children.get(group, {}).get(self.identity))
        if not self._wants(group) and not has_members:
            core = None
        elif core is None and before is not None:
            return  # nobody to turn to yet: what we have stays
        if core == self.identity:
            core = None
        if core == before:
            return
        if core is None:
            del self._own_core[group]
        else:
            self._own_core[group] = core
            self._dirty_keys.add((core, group))
        if before is not None:
            self._dirty_keys.add((before, group))
        self._dirty_keys.update((old, group) for old in self._holders.get(group, ()))
        self._is_table_changed = True

    def _decide_host_subscription(self, group: str) -> None:
        """Subscribe at the host only for what someone elsewhere wants (R32)."""
        claimants = self._claimants.get(group, ())
        is_wanted = bool(claimants and claimants != (self.identity,)) or group in self._children
        if is_wanted == (group in self._host_subscriptions):
            return
        if not is_wanted:
            self._host_subscriptions.remove(group)
            self._effects.append(UnsubscribeHost(group))
        elif filter_may_cross(group):
            self._host_subscriptions.add(group)
            self._effects.append(SubscribeHost(group))

    def _compare_grouping(self, core: int | None) -> None:
        """The management group's core advertises the grouping; another one is worth a word (R23)."""
        if core is None:
            return
        advertised = self._claim_sets[core].groups[MANAGEMENT_GROUP].grouping
        if advertised and advertised != str(self.settings.grouping):
            self._effects.append(Emit("grouping_differs", core=core, detail=advertised))

    def _on_hand_over(self, now: float, neighbour: Neighbour, hand_over: HandOver) -> None:
        """A core without interest looks for an heir among its members (R9)."""
        core, group = hand_over
        if core == self.identity or core not in self._claimants.get(group, ()):
            self.counters["ignored_hand_over"] += 1
            return
        if self._wants(group):
            if group not in self._claims.groups:
                self._inherited[group] = (core, now + self.settings.expiry_s)
                self._change_own_claim(group, self._ranks.get(group, RANK_DEFAULT))
            return
        self._pass_hand_over(core, group, neighbour.identity)

    def _pass_hand_over(self, core: int, group: str, source: int) -> None:
        children = [
            child
            for child in sorted(self._children.get(group, {}).get(core, ()))
            if child != source and self._neighbours[child].is_up
        ]
        if children:
            # Another child each time: the first may lead to nobody who wants the group.
            self._hand_over_turn += 1
            neighbour = self._neighbours[children[self._hand_over_turn % len(children)]]
            neighbour.hand_overs.append(HandOver(core, group))

    # --- interest -----------------------------------------------------------------------------------------------------

    def _on_subscribed(self, filter_: str) -> None:
        if filter_ in self._filters:
            return
        try:
            check_filter(filter_)
        except RemoteError:
            self.counters["rejected_filter"] += 1
            return
        if not filter_may_cross(filter_) and filter_ != private_group(self.identity):
            self.counters["ignored_closed_filter"] += 1  # R32
            return
        if len(self._filters) >= self.settings.groups_max:
            self.counters["rejected_groups_max"] += 1
            self._effects.append(Emit("limit_reached", group=filter_, detail="groups_max"))
            return
        self._filters.add(filter_)
        group = self.settings.grouping.group_of(filter_)
        self._interest[group] = self._interest.get(group, 0) + 1
        self._dirty_groups.add(group)
        self._is_table_changed = True

    def _on_unsubscribed(self, filter_: str) -> None:
        if filter_ not in self._filters:
            return
        self._filters.remove(filter_)
        group = self.settings.grouping.group_of(filter_)
        self._interest[group] -= 1
        if not self._interest[group]:
            del self._interest[group]
            self._hand_over(group)
        self._dirty_groups.add(group)
        self._is_table_changed = True

    def _hand_over(self, group: str) -> None:
        if group in self._claims.groups and group not in self._appointments:
            self._pass_hand_over(self.identity, group, -1)

    def _on_ranked(self, group: str, rank: int) -> None:
        self._ranks[group] = rank
        if group in self._claims.groups and self._claims.groups[group].rank != rank:
            self._change_own_claim(group, rank)
        self._dirty_groups.add(group)

    # --- the mesh -----------------------------------------------------------------------------------------------------

    def _on_memberships(self, neighbour: Neighbour, delta: SetDelta) -> None:
        added, removed = neighbour.joined.apply(neighbour.epoch, delta)
        for core, group in added:
            self._children.setdefault(group, {}).setdefault(core, set()).add(neighbour.identity)
            self._effects.append(Emit("member_joined", group=group, core=core, neighbour=neighbour.identity))
            self._touch_key((core, group))
        for key in removed:
            self._drop_child(key, neighbour.identity)

    def _drop_child(self, key: Key, identity: int) -> None:
        core, group = key
        _discard(self._children, key, identity)
        self._neighbours[identity].connecting.discard(key)
        self._effects.append(Emit("member_left", group=group, core=core, neighbour=identity))
        self._touch_key(key)

    def _touch_key(self, key: Key) -> None:
        self._dirty_keys.add(key)
        self._dirty_groups.add(key[1])
        self._is_table_changed = True

    def _place(self, key: Key) -> None:
        """Which parents hold our membership for the key; old ones until a new one is connected (R19 to R21)."""
        core, group = key
        children = self._children.get(group, {}).get(core, set())
        is_own = self._own_core.get(group) == core
        if key in self._fading and self._fading[key] <= 0:
            children = set()
        wanted: list[int] = []
        if core != self.identity and (is_own or children):
            # Never through a parent for that parent's own sake.
            wanted = [p for p in self.parents_of(core) if is_own or children - {p}]
            # Also without a parent: the first that comes is to be asked.
            self._joined_under.setdefault(core, set()).add(group)
        elif core in self._joined_under and core not in self._holders.get(group, {}):
            self._joined_under[core].discard(group)
        holders = self._holders.get(group, {}).get(core, set())
        for parent in wanted:
            if parent not in holders:
                self._neighbours[parent].joining.add(key)
                self._holders.setdefault(group, {}).setdefault(core, set()).add(parent)
                self._joined_under.setdefault(core, set()).add(group)
                self._is_table_changed = True
        former = sorted(set(self._holders.get(group, {}).get(core, ())) - set(wanted))
        if former and not self._must_keep_former(key, wanted, has_need=bool(is_own or children)):
            for holder in former:
                self._drop_holder(key, self._neighbours[holder])
        self._tell_connection(key)

    def _must_keep_former(self, key: Key, wanted: list[int], *, has_need: bool) -> bool:
        """Make before break: an old edge stays until another is known to reach the core (R21)."""
        core, group = key
        if has_need:
            return not any(key in self._neighbours[parent].connected.keys for parent in wanted)
        own_core = self._own_core.get(group)
        return own_core is not None and own_core != core and not self._is_connected((own_core, group))

    def _drop_holder(self, key: Key, neighbour: Neighbour) -> None:
        core, group = key
        neighbour.joining.discard(key)
        _discard(self._holders, key, neighbour.identity)
        if core not in self._holders.get(group, {}):
            self._joined_under.get(core, set()).discard(group)
        self._is_table_changed = True

    def _is_connected(self, key: Key) -> bool:
        """Whether our membership reaches its core, as the parents say."""
        core, group = key
        if core == self.identity:
            if group in self._claims.groups:
                return True
            own_core = self._own_core.get(group)
            return own_core is not None and self._is_connected((own_core, group))
        return any(key in self._neighbours[parent].connected.keys for parent in self.parents_of(core))

    def _tell_connection(self, key: Key) -> None:
        """Tell the children whether their membership now reaches the core."""
        core, group = key
        is_connected = self._is_connected(key)
        is_changed = False
        for child in sorted(self._children.get(group, {}).get(core, ())):
            connecting = self._neighbours[child].connecting
            is_changed |= connecting.add(key) if is_connected else connecting.discard(key)
        if self._own_core.get(group) == core and is_connected:
            # We have arrived: claims and memberships under other cores can go (R8, R21).
            if group in self._claims.groups:
                self._dirty_groups.add(group)
            others = [old for old in self._holders.get(group, ()) if old != core]
            self._dirty_keys.update((old, group) for old in others)
            if self.identity in self._children.get(group, ()):
                self._dirty_keys.add((self.identity, group))

    # --- conclusions --------------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Draw conclusions until nothing is dirty: ways, then elections, then memberships."""
        while self._dirty_routes or self._dirty_groups or self._dirty_keys:
            if self._dirty_routes:
                routes, self._dirty_routes = self._dirty_routes, set()
                for core in sorted(routes):
                    self._choose_parents(now, core)
            elif self._dirty_groups:
                groups, self._dirty_groups = self._dirty_groups, set()
                for group in sorted(groups):
                    self._decide(now, group)
            else:
                keys, self._dirty_keys = self._dirty_keys, set()
                for key in sorted(keys):
                    self._place(key)
        if self._is_table_changed:
            self._is_table_changed = False
            self._forwarding.invalidate()
            if self._forwarding.parked_bytes:
                for neighbour, runs in sorted(self._forwarding.retry_parked().items()):
                    self._effects.append(SendRuns(neighbour, tuple(runs)))

    # --- time ---------------------------------------------------------------------------------------------------------

    def _alarm(self, due: float, kind: int, core: int, group: str = "") -> None:
        heapq.heappush(self._alarms, (due, kind, core, group))

    def _on_alarms(self, now: float) -> None:
        while self._alarms and self._alarms[0][0] <= now:
            _, kind, core, group = heapq.heappop(self._alarms)
            if kind == _CLAIM_DUE:
                self._dirty_groups.add(group)
            elif kind == _CORE_LOST:
                route = self._routes.get(core)
                if route is not None and route.distance == UNREACHABLE and core in self._live:
                    self._live.discard(core)
                    self.counters["cores_lost"] += 1
                    self._effects.append(Emit("core_lost", core=core))
                    self._touch_groups_of(core)
            elif core not in self._claimants.get(group, ()) and self._fading.get((core, group), now + 1) <= now:
                self._fading[core, group] = 0.0
                self._dirty_keys.add((core, group))
            else:
                self._fading.pop((core, group), None)

    def _on_round(self, now: float) -> None:
        """Once an interval: age what was not refreshed, send again what was not heard, announce (R13, R14)."""
        self._next_tick += self._interval_s
        if self._next_tick <= now:  # we were stopped for a while: one round is enough
            self._next_tick = now + self._interval_s
        if self._claims.groups:
            self._sequence += 1
        expiry_s = self.settings.expiry_s
        for neighbour in list(self._neighbours.values()):
            self._age_neighbour(now, neighbour, expiry_s)
        for core, route in list(self._routes.items()):
            self._age_route(now, core, route, expiry_s)
        for core, fetch in list(self._fetches.items()):
            if now - fetch.asked_at >= self._interval_s:
                del self._fetches[core]
                self._dirty_groups.update(self._unclaimed)
        for group, claim in self._claims.groups.items():
            if group not in self._interest and claim is not None:
                self._hand_over(group)
        for group in [group for group, (_, until) in self._inherited.items() if until <= now]:
            del self._inherited[group]  # the core has interest again, and keeps the group
            self._dirty_groups.add(group)
        self._dirty_groups.update(self._unclaimed)
        if self.core_of(MANAGEMENT_GROUP) is None:
            self._dirty_groups.add(MANAGEMENT_GROUP)
        self._forwarding.forget(now)
        for neighbour in self._neighbours.values():
            if neighbour.is_up:
                neighbour.needs_full = True

    def _age_neighbour(self, now: float, neighbour: Neighbour, expiry_s: float) -> None:
        if neighbour.is_up:
            is_usable = now - neighbour.heard_at <= expiry_s and now - neighbour.echoed_at <= expiry_s
            if neighbour.is_usable and not is_usable:
                neighbour.is_usable = False
                self.counters["neighbours_lost"] += 1
                self._effects.append(Emit("neighbour_lost", neighbour=neighbour.identity))
                identity = neighbour.identity
                self._dirty_routes.update(c for c, route in self._routes.items() if identity in route.entries)
            if now - neighbour.up_at > 2 * self._interval_s:
                # By now we have joined what we want through this neighbour; if that is nothing, it must hear so,
                # else it keeps what we had with it before a restart (R22).
                neighbour.joining.introduce()
                neighbour.connecting.introduce()
            has_steps = neighbour.joining.has_unacknowledged or neighbour.connecting.has_unacknowledged
            if has_steps and neighbour.has_stale_steps:
                neighbour.joining.rewind()
                neighbour.connecting.rewind()
            neighbour.has_stale_steps = has_steps
        elif neighbour.absent_since is not None and now - neighbour.absent_since > self.settings.absence_s:
            self._forget_neighbour(neighbour)

    def _age_route(self, now: float, core: int, route: Route, expiry_s: float) -> None:
        # A refresh takes up to an interval a hop, so the core's own neighbours miss it first; the others hear it
        # from them (R18), and their own patience grows with the distance only in case they do not.
        stale = [
            neighbour
            for neighbour, entry in route.entries.items()
            if now - entry[ADVANCED_AT] > expiry_s + entry[DISTANCE] * self._interval_s
        ]
        for neighbour in stale:
            del route.entries[neighbour]
            self._dirty_routes.add(core)
        if route.distance == UNREACHABLE and route.lost_at is not None:
            away_s = now - route.lost_at
            if away_s <= expiry_s:
                self._solicit(route)
            elif away_s > self.settings.absence_s:
                claims = self._claim_sets.pop(core, None)
                self._forget_core(core)
                if claims is not None:
                    for group in sorted(claims.groups):
                        self._index_claim(core, group, is_claimed=False)

    def _set_deadline(self) -> None:
        deadline = self._next_tick
        if self._alarms and self._alarms[0][0] < deadline:
            deadline = self._alarms[0][0]
        if self._flush_at is not None and self._flush_at < deadline:
            deadline = self._flush_at
        self.deadline = deadline

    # --- saying it ----------------------------------------------------------------------------------------------------

    def _on_leave(self) -> None:
        """Say goodbye: claims are withdrawn and memberships end with the same frame (R22)."""
        for group in sorted(self._claims.groups):
            self._change_own_claim(group, None)
        for neighbour in self._up_neighbours():
            deltas = self._deltas_for(neighbour, (self.identity,))
            self._send(neighbour, (), deltas, is_leaving=True)
        self._dirty_groups.clear()
        self._dirty_keys.clear()
        self._is_table_changed = False
        self.is_stopped = True

    def _up_neighbours(self) -> list[Neighbour]:
        return [self._neighbours[n] for n in sorted(self._neighbours) if self._neighbours[n].is_up]

    def _flush(self, now: float) -> None:
        """One frame to each neighbour that has something to hear; a burst of changes travels together (R17)."""
        if self.is_stopped:
            return
        neighbours = self._up_neighbours()
        is_urgent = self._dirty_cores or self._dirty_claims
        if not is_urgent and not any(n.has_pending for n in neighbours):
            self._flush_at = None
            return
        if now < self._flushed_at + self.settings.coalescing_s:
            self._flush_at = self._flushed_at + self.settings.coalescing_s
            return
        self._flush_at, self._flushed_at = None, now
        changed = self._announcements(sorted(self._dirty_cores), with_retractions=True) if self._dirty_cores else ()
        full: tuple[Announcement, ...] | None = None
        for neighbour in neighbours:
            deltas = self._deltas_for(neighbour, self._dirty_claims)
            if neighbour.needs_full:
                if full is None:
                    full = self._announcements(sorted((*self._routes, self.identity)), with_retractions=False)
                self._send(neighbour, full, deltas, is_full=True)
            elif changed or deltas or neighbour.has_pending:
                self._send(neighbour, changed, deltas)
        self._dirty_cores.clear()
        self._dirty_claims.clear()

    def _announcements(self, cores: Iterable[int], *, with_retractions: bool) -> tuple[Announcement, ...]:
        out = []
        for core in cores:
            claims = self._claim_sets.get(core)
            version = claims.version if claims is not None else 0
            if core == self.identity:
                if self._claims.groups:
                    out.append(Announcement(core, self.epoch, self._sequence, 0, version))
                continue
            route = self._routes.get(core)
            if route is None:
                continue
            if route.distance == UNREACHABLE:
                if with_retractions:
                    out.append(Announcement(core, route.epoch, route.next_sequence, UNREACHABLE, 0))
                continue
            route.note_announced()
            if claims is None or claims.epoch != route.epoch:
                version = 0  # nobody should ask us for what we do not have
            out.append(Announcement(core, route.epoch, route.sequence, route.distance, version))
        return tuple(out)

    def _deltas_for(self, neighbour: Neighbour, cores: Iterable[int]) -> tuple[ClaimDelta, ...]:
        """The claim changes that the neighbour has not been told, as far as they are remembered."""
        deltas = []
        limit = self.settings.items_per_frame_max
        for core in sorted(neighbour.claim_resends.keys() | set(cores)):
            claims = self._claim_sets[core]
            version = neighbour.claim_resends.get(core)
            if version is None:
                version = neighbour.told_version(core, claims.epoch)
            delta = claims.delta_since(version, limit)
            if delta is not None:
                deltas.append(delta)
                neighbour.note_told(core, claims.epoch, version + len(delta.changes))
        neighbour.claim_resends.clear()
        return tuple(deltas)

    def _send(
        self,
        neighbour: Neighbour,
        announcements: tuple[Announcement, ...],
        deltas: tuple[ClaimDelta, ...],
        *,
        is_full: bool = False,
        is_leaving: bool = False,
    ) -> None:
        if self.settings.announcements == "per_group":
            announcements = self._send_per_group(neighbour, announcements)
            is_full = False
        self._number += 1
        limit = self.settings.items_per_frame_max
        frame = ControlFrame(
            self.identity,
            self.epoch,
            self._number,
            neighbour.epoch,
            neighbour.number,
            is_full,
            is_leaving,
            announcements,
            deltas,
            tuple(neighbour.claim_requests),
            tuple(neighbour.claim_parts),
            tuple(neighbour.solicits[core] for core in sorted(neighbour.solicits)),
            tuple(neighbour.hand_overs),
            neighbour.joining.delta(limit),
            neighbour.connecting.delta(limit),
            neighbour.joined.ack,
            neighbour.connected.ack,
        )
        neighbour.needs_full = False
        neighbour.drop_pending()
        self._effects.append(Send(neighbour.identity, frame))
        self.counters["control_frames"] += 1
        self.counters["announcements"] += len(announcements)

    def _send_per_group(
        self, neighbour: Neighbour, announcements: tuple[Announcement, ...]
    ) -> tuple[Announcement, ...]:
        """The papers' form: a frame of its own for each group's announcement. The last one is left to the caller."""
        expanded = []
        for announcement in announcements:
            claims = self._claim_sets.get(announcement.core)
            groups = sorted(claims.groups) if claims is not None and claims.groups else [""]
            expanded += [announcement._replace(group=group) for group in groups]
        for announcement in expanded[:-1]:
            self._number += 1
            frame = ControlFrame(
                self.identity,
                self.epoch,
                self._number,
                neighbour.epoch,
                neighbour.number,
                announcements=(announcement,),
                memberships_ack=neighbour.joined.ack,
                connections_ack=neighbour.connected.ack,
            )
            self._effects.append(Send(neighbour.identity, frame))
            self.counters["control_frames"] += 1
            self.counters["announcements"] += 1
        return tuple(expanded[-1:])


def _discard(table: dict[str, dict[int, set[int]]], key: Key, identity: int) -> None:
    """Take a neighbour out of group -> core -> neighbours, and what is empty with it."""
    core, group = key
    by_core = table[group]
    by_core[core].remove(identity)
    if not by_core[core]:
        del by_core[core]
    if not by_core:
        del table[group]
