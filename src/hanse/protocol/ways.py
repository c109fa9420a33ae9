"""The routes to all cores: what neighbours announce, which cores are live, and what we announce in turn.

`routes` has the route to one core. This module has all of them, and the announcements that keep them fresh. The rules
(docs/protocol.md R23 to R31):

- Distance 0 counts only from the core itself (R6), and only a core makes its sequence numbers.
- What is not refreshed ages. A federator that loses the last parent says so at once and asks for a newer route.
- A core is live while there is a route to it, and for an interval after (R9).
"""

from collections.abc import Callable, Iterable

from hanse.protocol.changes import Alarms, Changes, Due
from hanse.protocol.claimbook import ClaimBook
from hanse.protocol.effects import Emit
from hanse.protocol.messages import HOPS_LIMIT_MIN, HOPS_MAX, UNREACHABLE, Announcement, ControlFrame, Solicit
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.routes import ADVANCED_AT, CLAIMS_VERSION, DISTANCE, SEQUENCE, Entry, Route
from hanse.protocol.settings import Settings


class Ways:
    """The routes that one federator knows.

    Attributes:
        sequence: The number of our own last announcement.
    """

    def __init__(
        self,
        identity: int,
        settings: Settings,
        neighbours: dict[int, Neighbour],
        changes: Changes,
        alarms: Alarms,
        claims: ClaimBook,
        raise_epoch: Callable[[int], None],
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._neighbours = neighbours
        self._changes = changes
        self._alarms = alarms
        self._claims = claims
        # Called with an epoch of ours that we have heard of and cannot have used (R2).
        self._raise_epoch = raise_epoch
        self.sequence = 0
        self._routes: dict[int, Route] = {}
        # Cores that count in elections: reachable, or lost for less than an interval. Other modules only read it.
        self.live: set[int] = {identity}

    # --- reading ------------------------------------------------------------------------------------------------------

    def is_live(self, core: int) -> bool:
        """Return whether a core counts in elections (R9)."""
        return core in self.live

    def route(self, core: int) -> Route | None:
        """Return the route to another core, or None if none was ever announced."""
        return self._routes.get(core)

    def parents_of(self, core: int) -> tuple[int, ...]:
        """Return the parents towards a core."""
        route = self._routes.get(core)
        return () if route is None else route.parents

    def hop_limit(self) -> int:
        """Return twice the largest known distance + 4, at least 64 and at most what a frame can say (R50)."""
        distances = [route.distance for route in self._routes.values() if route.distance != UNREACHABLE]
        return min(max(2 * max(distances, default=0) + 4, HOPS_LIMIT_MIN), HOPS_MAX - 1)

    # --- what neighbours announce -------------------------------------------------------------------------------------

    def on_announcements(self, now: float, neighbour: Neighbour, frame: ControlFrame) -> None:
        """Apply a neighbour's announcements. A full frame withdraws those that it does not list (R29)."""
        identity = neighbour.identity
        routes = self._routes
        for core, epoch, sequence, distance, version, _ in frame.announcements:
            route = routes.get(core)
            # The quiet round: nothing but the sequence number has moved. 100 cores on 1,000 brokers make half a million
            # of these per round, so this path does two look-ups and no calls.
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
                        distance + 1 < route.distance or len(route.parents) < self._settings.redundancy
                    ):
                        self._changes.routes.add(core)
                    if version != entry[CLAIMS_VERSION]:
                        self._compare_claims(now, neighbour, core, epoch, version, entry)
                    continue
            self._on_new_word(now, neighbour, core, epoch, sequence, distance, version)
        if frame.is_full:
            for core in routes.keys() - {announcement[0] for announcement in frame.announcements}:
                if routes[core].entries.pop(identity, None) is not None:
                    self._changes.routes.add(core)

    def _on_new_word(
        self, now: float, neighbour: Neighbour, core: int, epoch: int, sequence: int, distance: int, version: int
    ) -> None:
        """Apply an announcement that is more than a refresh."""
        counters = self._changes.counters
        if core == self._identity:
            self._on_word_of_us(neighbour, epoch, sequence, version)
            return
        # One hop more than the largest distance would read as "no route" (R6).
        if (distance == 0) != (core == neighbour.identity) or distance == UNREACHABLE - 1:
            counters["rejected_distance"] += 1
            return
        route = self._routes.get(core)
        if route is not None and epoch < route.epoch:
            counters["ignored_stale_announcement"] += 1
            return
        if distance == UNREACHABLE:
            if route is not None and epoch == route.epoch and route.entries.pop(neighbour.identity, None) is not None:
                self._changes.routes.add(core)
            return
        claims = self._claims.sets.get(core)
        if claims is not None and not claims.groups and (epoch, version) <= (claims.epoch, claims.version):
            return  # it has given everything up, in this epoch or a later one, and the announcement is merely late
        if route is None or epoch > route.epoch:
            if route is None and len(self._routes) >= self._settings.cores_max:
                counters["rejected_cores_max"] += 1
                return
            if route is not None and route.distance == UNREACHABLE and route.lost_at is not None:
                counters["cores_returned"] += 1
            route = self._routes[core] = self._renew(route, core, epoch)
            # A route that was carried over may lead through a lost neighbour. The new epoch's announcements decide.
            self._changes.routes.add(core)
        entry = route.entries.get(neighbour.identity)
        if entry is None:
            entry = route.entries[neighbour.identity] = [sequence, distance, now, -1]
        else:
            if sequence > entry[SEQUENCE]:
                entry[ADVANCED_AT] = now
            entry[SEQUENCE], entry[DISTANCE] = sequence, distance
        # Only a parent, or a neighbour that is nearer than we are, can change our own route.
        if distance < route.distance or neighbour.identity in route.parents:
            self._changes.routes.add(core)
        if route.distance == UNREACHABLE and not route.is_feasible(sequence, distance):
            neighbour.solicits[core] = self._wish(route)  # it has a route, and is too far behind for us to take it
        self._compare_claims(now, neighbour, core, epoch, version, entry)

    def _on_word_of_us(self, neighbour: Neighbour, epoch: int, sequence: int, version: int) -> None:
        if version:
            neighbour.note_told(self._identity, epoch, version)
        if (epoch, sequence) > (self._claims.own.epoch, self.sequence):
            # We cannot have sent that: our epoch was lost, or there is an impostor. Either way we need a newer epoch
            # (R2).
            conflict = Emit("identity_conflict", core=self._identity, neighbour=neighbour.identity)
            self._changes.effects.append(conflict)
            self._changes.counters["identity_conflicts"] += 1
            self._raise_epoch(epoch)

    def _compare_claims(
        self, now: float, neighbour: Neighbour, core: int, epoch: int, version: int, entry: Entry
    ) -> None:
        """Request a core's claims if the neighbour names another version than last time that is newer than ours."""
        claims = self._claims.sets.get(core)
        if version:
            neighbour.note_told(core, epoch, version)
            if claims is None or (claims.epoch, claims.version) < (epoch, version):
                self._claims.ask(now, core, neighbour)
                return
        entry[CLAIMS_VERSION] = version

    def _renew(self, old: Route | None, core: int, epoch: int) -> Route:
        route = Route(core, epoch)
        if old is not None:
            # The core restarted. Its old distance stays what we announce until the new epoch gives another.
            route.distance, route.parents, route.lost_at = old.distance, old.parents, old.lost_at
        return route

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, now: float, core: int) -> bool:
        """Choose the parents towards a core again. Return True if they changed (R27)."""
        route = self._routes.get(core)
        if route is None:
            return False
        changes = self._changes
        distance, parents = route.distance, route.parents
        if not route.choose(self._is_usable, self._settings.redundancy):
            return False
        changes.is_table_changed = True
        if route.distance != distance:
            changes.cores.add(core)  # another parent at the same distance is no news to anybody
        if route.parents != parents:
            detail = ",".join(map(str, route.parents))
            changes.effects.append(Emit("parents_changed", core=core, detail=detail))
        if route.distance == UNREACHABLE:
            route.lost_at = now
            self._alarms.set(now + self._settings.announcement_interval_s, Due.CORE_LOST, core)
            self._solicit(route)
        else:
            route.lost_at = None
            if route.waiting and route.sequence >= route.wanted:
                self._answer_solicits(route)
            elif route.waiting:
                self._pass_solicit(route, route.wanted)
            if core not in self.live:
                self.live.add(core)
                self._touch_groups_of(core)
        return route.parents != parents

    def on_lost(self, core: int) -> None:
        """Stop counting a core as live if no route to it was found within an interval (R9)."""
        route = self._routes.get(core)
        if route is not None and route.distance == UNREACHABLE and core in self.live:
            self.live.discard(core)
            self._changes.counters["cores_lost"] += 1
            self._changes.effects.append(Emit("core_lost", core=core))
            self._touch_groups_of(core)

    def _is_usable(self, identity: int) -> bool:
        neighbour = self._neighbours.get(identity)
        return neighbour is not None and neighbour.is_usable

    def _touch_groups_of(self, core: int) -> None:
        claims = self._claims.sets.get(core)
        if claims is not None:
            self._changes.groups.update(claims.groups)
            self._changes.is_table_changed = True

    # --- soliciting ---------------------------------------------------------------------------------------------------

    def on_solicit(self, neighbour: Neighbour, solicit: Solicit) -> None:
        """Answer a neighbour that asks for a route at least as new as a number, or pass the request on (R31)."""
        core, epoch, wanted = solicit
        if core == self._identity:
            # No federator can have announced more than our last number, so a larger wish is not honoured (R31).
            own = self._claims.own
            if epoch == own.epoch and own.groups:
                if wanted == self.sequence + 1:
                    self.sequence = wanted
                self._changes.cores.add(core)
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
            self._pass_solicit(route, wanted)

    def _solicit(self, route: Route) -> None:
        """Ask all neighbours for a newer route than we, and the neighbours waiting for us, have announced (R30)."""
        wish = self._wish(route)
        for neighbour in self._neighbours.values():
            if neighbour.is_up:
                neighbour.solicits[route.core] = wish

    def _wish(self, route: Route) -> Solicit:
        return Solicit(route.core, route.epoch, max(route.next_sequence, route.wanted if route.waiting else 0))

    def _pass_solicit(self, route: Route, wanted: int) -> None:
        for parent in route.parents:
            self._neighbours[parent].solicits[route.core] = Solicit(route.core, route.epoch, wanted)

    def _answer_solicits(self, route: Route) -> None:
        """Announce at once the number that neighbours wait for."""
        self._changes.cores.add(route.core)
        route.waiting.clear()

    # --- forgetting ---------------------------------------------------------------------------------------------------

    def touch_neighbour(self, identity: int) -> None:
        """Choose routes again that may lead through a neighbour which can be a parent now, or no longer can (R7)."""
        self._changes.routes.update(core for core, route in self._routes.items() if identity in route.entries)

    def forget_neighbour(self, identity: int) -> None:
        """Drop all routes through this neighbour (R30)."""
        for core, route in self._routes.items():
            if route.entries.pop(identity, None) is not None:
                self._changes.routes.add(core)
            route.waiting.discard(identity)

    def forget_core(self, core: int) -> None:
        """Forget a core that claims nothing any longer, or has been gone for too long."""
        self._routes.pop(core, None)
        self.live.discard(core)
        self._changes.cores.discard(core)

    def age(self, now: float) -> None:
        """Age by one round: drop what was not refreshed, solicit lost routes, forget cores long gone (R25, R30)."""
        expiry_s = self._settings.expiry_s
        for core, route in list(self._routes.items()):
            self._age_route(now, core, route, expiry_s)

    def _age_route(self, now: float, core: int, route: Route, expiry_s: float) -> None:
        # A refresh takes up to an interval per hop, so the core's own neighbours miss it first. The others hear of the
        # loss from them (R30). Their own patience grows with the distance only in case they do not.
        interval_s = self._settings.announcement_interval_s
        stale = [
            neighbour
            for neighbour, entry in route.entries.items()
            if now - entry[ADVANCED_AT] > expiry_s + entry[DISTANCE] * interval_s
        ]
        for neighbour in stale:
            del route.entries[neighbour]
            self._changes.routes.add(core)
        if route.distance == UNREACHABLE and route.lost_at is not None:
            away_s = now - route.lost_at
            if away_s <= expiry_s or route.entries:
                self._solicit(route)
            elif away_s > self._settings.absence_s:
                self.forget_core(core)
                self._claims.forget_core(core)

    # --- our announcements --------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Raise our own sequence number, because a core announces itself with the next one every interval (R23)."""
        if self._claims.is_announced:
            self.sequence += 1

    def announce_all(self) -> tuple[Announcement, ...]:
        """Return the announcements of a full frame: us, if we are a core, and every core that we have a route to."""
        return self.announce((*self._routes, self._identity), with_retractions=False)

    def announce(self, cores: Iterable[int], *, with_retractions: bool) -> tuple[Announcement, ...]:
        """Return announcements of these cores for sending. They bound the choice of parents from now on (R26)."""
        out = []
        for core in sorted(cores):
            claims = self._claims.sets.get(core)
            version = claims.version if claims is not None else 0
            if core == self._identity:
                own = self._claims.own
                if self._claims.is_announced:
                    out.append(Announcement(core, own.epoch, self.sequence, 0, version))
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
