"""The claim sets of all cores, the claimants of each group, and how claims are fetched and passed on.

The rules (docs/protocol.md R18 to R22):

- A change is told to all neighbours at once and passed on once. What each neighbour has is noted with the neighbour.
- A federator that is behind asks the neighbour that named the newer version, one request at a time.
- The claimants of a group and the index that matches topics always agree with the claim sets.
- What a change of claims means for elections, routes and meshes is decided there. They are told at once, through
  `ClaimWatchers`.
"""

import math
from collections.abc import Callable, Iterable, KeysView
from dataclasses import dataclass

from hanse.protocol.changes import Changes
from hanse.protocol.claims import ClaimSet, Fetch
from hanse.protocol.effects import Emit
from hanse.protocol.messages import ClaimChange, ClaimDelta, ClaimPart, ClaimRequest
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.settings import MANAGEMENT_GROUP, Settings
from hanse.protocol.trie import FilterIndex, MatchCache

# In the place of a core: some federator claimed the group before this one restarted, or will claim it soon. Never live.
REMEMBERED = -1
# In the place of a grouping, in a withdrawal: others want the group, and one of them claims it or will.
LEFT_TO_OTHERS = "left"


@dataclass(frozen=True, slots=True)
class ClaimWatchers:
    """Callbacks that run while claims change.

    Attributes:
        claimed: A core's claim of a group stands.
        ended: A core's claim of a group is gone.
        withdrawn: A core has just said that it gives a group up.
        remembered: A group counts as claimed until the given time, although no claimant is known.
        emptied: A core other than this federator claims nothing any longer.
        fetched: A claim set that was being fetched has arrived, or is no longer waited for.
    """

    claimed: Callable[[int, str], None]
    ended: Callable[[int, str], None]
    withdrawn: Callable[[float, str], None]
    remembered: Callable[[float, str], None]
    emptied: Callable[[int], None]
    fetched: Callable[[], None]


class ClaimBook:
    """The claims of all cores, as known to one federator.

    Attributes:
        own: This federator's claims, in its present epoch.
        sets: Core to its claims. Other modules only read it.
    """

    def __init__(self, identity: int, epoch: int, settings: Settings, changes: Changes) -> None:
        self._identity = identity
        self._settings = settings
        self._changes = changes
        self.own = ClaimSet(identity, epoch, settings.claim_log_max)
        self.sets: dict[int, ClaimSet] = {identity: self.own}
        self._fetches: dict[int, Fetch] = {}
        # Rounds for which this federator still announces itself although it claims nothing any longer.
        self._empty_rounds = 0
        # Group to the cores that claim it, sorted. Other modules only read it. The index has the same groups for
        # matching.
        self.cores_by_group: dict[str, tuple[int, ...]] = {}
        self._index = FilterIndex()
        self._matches = MatchCache(self._index)
        # Groups that count as claimed, and until when.
        self._remembered: dict[str, float] = {}
        # Those of them for which no claimant was ever known.
        self._hearsay: set[str] = set()
        self._tell: ClaimWatchers

    def watch(self, watchers: ClaimWatchers) -> None:
        """Set the callbacks. Call this before the first change."""
        self._tell = watchers

    # --- reading ------------------------------------------------------------------------------------------------------

    def claimants(self, group: str) -> tuple[int, ...]:
        """Return the cores that claim a group, smaller ids first."""
        return self.cores_by_group.get(group, ())

    def groups(self) -> KeysView[str]:
        """Return the groups that at least one core claims."""
        return self.cores_by_group.keys()

    def match(self, topic: str) -> tuple[str, ...]:
        """Return the claimed groups that a topic belongs to (R42)."""
        return self._matches.match(topic)

    @property
    def is_fetching(self) -> bool:
        """True while claims are known to be missing and have been requested."""
        return bool(self._fetches)

    # --- our own claims -----------------------------------------------------------------------------------------------

    def change_own(self, group: str, rank: int | None, *, is_wanted: bool = False) -> None:
        """Claim a group with a rank, or withdraw the claim (None) and say whether others want the group (R18, R21)."""
        changes = self._changes
        grouping = str(self._settings.grouping) if group == MANAGEMENT_GROUP and rank is not None else ""
        if is_wanted:
            grouping = LEFT_TO_OTHERS
        if not self.own.groups:
            changes.cores.add(self._identity)
        if not self._record(self._identity, group, is_claimed=rank is not None):
            return
        self.own.change(ClaimChange(group, rank, grouping))
        if not self.own.groups:
            self._empty_rounds = self._settings.expiry_factor + 2
        changes.claims.add(self._identity)
        changes.counters["claims_made" if rank is not None else "claims_withdrawn"] += 1
        name = "core_elected" if rank is not None else "core_withdrawn"
        changes.effects.append(Emit(name, group=group, core=self._identity))

    def declare_empty(self) -> None:
        """Tell neighbours that remember claims of this federator's former run that it claims nothing now (R22)."""
        if not self.own.version:
            self.own.change(ClaimChange(MANAGEMENT_GROUP, None))
            self._changes.claims.add(self._identity)
            self._changes.cores.add(self._identity)
            self._empty_rounds = self._settings.expiry_factor + 2

    def tell_ended(self, neighbour: Neighbour) -> None:
        """Tell a new neighbour which cores claim nothing any longer, because no announcement will (R22)."""
        for core in sorted(self.sets):
            claims = self.sets[core]
            if claims.version and not claims.groups and len(neighbour.claim_parts) < self._settings.items_per_frame_max:
                neighbour.claim_parts.append(claims.part(-1, 0, 1))

    @property
    def is_announced(self) -> bool:
        """True if this federator is a core, or was one until so recently that others may not know (R23, R24)."""
        return bool(self.own.groups) or self._empty_rounds > 0

    def begin_epoch(self, epoch: int) -> None:
        """Move our own claims, unchanged, to a new epoch (R2)."""
        self.own.reset_epoch(epoch)
        self._changes.cores.add(self._identity)

    # --- what was claimed before a restart ----------------------------------------------------------------------------

    def remember(self, group: str, until: float) -> None:
        """Count the group as claimed by somebody unknown, before our restart or very soon (R64)."""
        if group != MANAGEMENT_GROUP and self._record(REMEMBERED, group, is_claimed=True):
            self._remembered[group] = until
            self._tell.remembered(until, group)

    def remember_hearsay(self, group: str, until: float) -> None:
        """Count an unknown group as claimed, because a neighbour has sent publications of it (R65)."""
        if not self.claimants(group):
            self._hearsay.add(group)
            self.remember(group, until)

    def is_hearsay(self, group: str) -> bool:
        """Return whether a group counts as claimed only because a neighbour has sent publications of it."""
        return group in self._hearsay and self.claimants(group) == (REMEMBERED,)

    def forget_remembered(self, now: float, group: str) -> None:
        """Stop counting a group as claimed when its time is over, unless it was given up once more since."""
        if self._remembered.get(group, math.inf) <= now:
            self._hearsay.discard(group)
            del self._remembered[group]
            self._record(REMEMBERED, group, is_claimed=False)

    # --- the claims of others -----------------------------------------------------------------------------------------

    def on_delta(self, now: float, neighbour: Neighbour, delta: ClaimDelta) -> None:
        """Apply the changes of a core's claims that a neighbour tells, and pass them on."""
        core, epoch, start, changes = delta
        if core == self._identity:
            return
        neighbour.note_told(core, epoch, start + len(changes))
        claims = self.sets.get(core)
        if claims is None or epoch > claims.epoch:
            if start > 0 or (claims is None and len(self.sets) > self._settings.cores_max):
                return  # the announcement that names the version makes us ask
            before = set(claims.groups) if claims is not None else set()
            claims = self.sets[core] = ClaimSet(core, epoch, self._settings.claim_log_max)
            for group in sorted(before):
                self._outlive(now, core, group)
        if epoch < claims.epoch or not start <= claims.version < start + len(changes):
            self._changes.counters["ignored_claim_delta"] += 1
            return
        for change in changes[claims.version - start :]:
            self._apply(now, claims, change)
        self._changes.claims.add(core)
        self._end_fetch(core)

    def ask(self, now: float, core: int, neighbour: Neighbour) -> None:
        """Request the claims that we lack from the neighbour that named them, one request at a time (R19)."""
        fetch = self._fetches.get(core)
        if fetch is not None and now - fetch.asked_at < self._settings.announcement_interval_s:
            return
        epoch, version = self._standing(core)
        self._fetches[core] = Fetch(neighbour.identity, epoch, now)
        neighbour.claim_requests.append(ClaimRequest(core, epoch, version, -1, 0))

    def on_request(self, neighbour: Neighbour, request: ClaimRequest) -> None:
        """Send a neighbour the claims it lacks: the changes if they are remembered, else the set in parts (R19)."""
        claims = self.sets.get(request.core)
        if claims is None or (request.epoch, request.version) >= (claims.epoch, claims.version):
            return
        limit = self._settings.items_per_frame_max
        is_delta_enough = request.offset == 0 and request.epoch == claims.epoch
        if is_delta_enough and claims.delta_since(request.version, limit) is not None:
            neighbour.claim_resends[request.core] = request.version
            return
        neighbour.claim_parts.append(claims.part(request.snapshot_version, request.offset, limit))

    def on_part(self, now: float, neighbour: Neighbour, part: ClaimPart) -> None:
        """Accept a requested part of a claim set, or a whole set that came unasked.

        The old set holds until the new is whole.
        """
        fetch = self._fetches.get(part.core)
        is_asked = fetch is not None and fetch.neighbour == neighbour.identity
        is_whole = part.offset == 0 and len(part.claims) == part.total and part.core != self._identity
        if not (is_asked or is_whole) or part.total > self._settings.groups_max:
            self._changes.counters["ignored_claim_part"] += 1
            return
        neighbour.note_told(part.core, part.epoch, part.version)
        whole = part.claims
        if fetch is not None and is_asked:
            if not fetch.accept(part):
                fetch.asked_at = now
                request = ClaimRequest(part.core, *self._standing(part.core), fetch.version, len(fetch.claims))
                neighbour.claim_requests.append(request)
                return
            whole = tuple(fetch.claims)
        claims = self.sets.get(part.core)
        if claims is None:
            if len(self.sets) > self._settings.cores_max:
                self._changes.counters["ignored_claim_part"] += 1
                return
            claims = self.sets[part.core] = ClaimSet(part.core, part.epoch, self._settings.claim_log_max)
        elif (part.epoch, part.version) <= (claims.epoch, claims.version):
            if is_asked:
                self._end_fetch(part.core)
            return
        for group in sorted(claims.replace(part.epoch, part.version, whole)):
            if group not in claims.groups:
                self._outlive(now, part.core, group)
            elif not self._record(part.core, group, is_claimed=True):
                del claims.groups[group]
        if is_whole and len(claims.groups) == part.total:
            claims.pass_on(part)
        if not claims.groups:
            self._tell.emptied(part.core)
        self._changes.claims.add(part.core)
        self._changes.cores.add(part.core)
        self._end_fetch(part.core)

    def deltas_for(self, neighbour: Neighbour, cores: Iterable[int]) -> tuple[ClaimDelta, ...]:
        """Return the claim changes that the neighbour has not been told, as far as they are remembered.

        If we fetched the whole set ourselves, we do not have the changes. Then the neighbour gets the whole set unasked
        if it fits one frame (R19), which saves two of three frames in a cold start.
        """
        deltas = []
        limit = self._settings.items_per_frame_max
        for core in sorted(neighbour.claim_resends.keys() | set(cores)):
            claims = self.sets[core]
            version = neighbour.claim_resends.get(core)
            if version is None:
                version = neighbour.told_version(core, claims.epoch)
            delta = claims.delta_since(version, limit)
            if delta is not None:
                deltas.append(delta)
                neighbour.note_told(core, claims.epoch, version + len(delta.changes))
            elif version < claims.version and len(claims.groups) <= limit:
                neighbour.claim_parts.append(claims.part(-1, 0, limit))
                neighbour.note_told(core, claims.epoch, claims.version)
        neighbour.claim_resends.clear()
        return tuple(deltas)

    def doubt(self, neighbours: Iterable[Neighbour], is_live: Callable[[int], bool]) -> None:
        """Ask all neighbours for the claims of cores that nobody announces: they may have ended unheard (R22)."""
        doubted = [
            ClaimRequest(core, claims.epoch, claims.version, -1, 0)
            for core, claims in sorted(self.sets.items())
            if core != self._identity and claims.groups and not is_live(core)
        ]
        for neighbour in neighbours:
            if neighbour.is_up and doubted:
                room = max(0, self._settings.items_per_frame_max - len(neighbour.claim_requests))
                neighbour.claim_requests += doubted[:room]

    # --- forgetting ---------------------------------------------------------------------------------------------------

    def forget_core(self, core: int) -> None:
        """Drop the claims of a core that has been gone for too long."""
        claims = self.sets.pop(core, None)
        if claims is not None:
            for group in sorted(claims.groups):
                self._record(core, group, is_claimed=False)

    def forget_neighbour(self, identity: int) -> None:
        """Drop the requests to this neighbour, so that the next neighbour that names a version is asked."""
        for core in [core for core, fetch in self._fetches.items() if fetch.neighbour == identity]:
            del self._fetches[core]

    def age(self, now: float) -> None:
        """Age by one round: stop waiting for neighbours that do not answer."""
        self._empty_rounds = max(0, self._empty_rounds - 1)
        for core, fetch in list(self._fetches.items()):
            if now - fetch.asked_at >= self._settings.announcement_interval_s:
                self._end_fetch(core)

    # --- keeping in step ----------------------------------------------------------------------------------------------

    def _standing(self, core: int) -> tuple[int, int]:
        """Return the epoch and version that we have of a core's claims."""
        claims = self.sets.get(core)
        return (claims.epoch, claims.version) if claims is not None else (0, 0)

    def _apply(self, now: float, claims: ClaimSet, change: ClaimChange) -> None:
        claims.change(change)
        if not self._record(claims.core, change.group, is_claimed=change.rank is not None):
            del claims.groups[change.group]
        if change.rank is None:
            if change.grouping == LEFT_TO_OTHERS and not self.claimants(change.group):
                self.remember(change.group, now + self._settings.retention_s_max)
            self._tell.withdrawn(now, change.group)
        if not claims.groups:
            self._tell.emptied(claims.core)

    def _outlive(self, now: float, core: int, group: str) -> None:
        """End a claim, and count the group as claimed for a while if it has no other claimant (R21).

        The core has begun a new epoch or has told its whole set at once, so nobody has said whether others want the
        group. Its successor's claim may arrive later, by another route.
        """
        if self.claimants(group) == (core,):
            self.remember(group, now + self._settings.retention_s_max)
        self._record(core, group, is_claimed=False)

    def _record(self, core: int, group: str, *, is_claimed: bool) -> bool:
        """Keep the claimants of a group and the matching index consistent with the claim sets.

        Return False if the group exceeds `groups_max`. The caller must not keep it either.
        """
        cores = self.cores_by_group.get(group, ())
        if is_claimed:
            self._tell.claimed(core, group)
        if is_claimed and core not in cores:
            if not cores:
                if len(self.cores_by_group) >= self._settings.groups_max:
                    self._changes.counters["rejected_groups_max"] += 1
                    self._changes.effects.append(Emit("limit_reached", group=group, detail="groups_max"))
                    return False
                self._index.add(group)
                self.cores_by_group[group] = (core,)
            else:
                others = [other for other in cores if other != REMEMBERED or core == self._identity]
                self.cores_by_group[group] = tuple(sorted((*others, core)))
        elif not is_claimed and core in cores:
            rest = tuple(other for other in cores if other != core)
            if rest:
                self.cores_by_group[group] = rest
            else:
                del self.cores_by_group[group]
                self._index.discard(group)
            self._tell.ended(core, group)
        self._changes.groups.add(group)
        self._changes.is_table_changed = True
        return True

    def _end_fetch(self, core: int) -> None:
        if self._fetches.pop(core, None) is not None:
            self._tell.fetched()
