"""The election of each group's core, as one federator sees it, and what follows: claim, wait, withdraw or hand over.

The rules (docs/protocol.md R8 to R17):

- The live claimant with the best key is the core. The loser withdraws when it is connected to the winner's mesh.
- A group with interest and no core is claimed: at once if nobody ever claimed it, else after a delay that grows with
  the id.
- A core without interest of its own looks for an heir, and keeps its claim until another claim lives.
- Nothing is claimed before the neighbours have told their claims.
"""

from hanse.protocol.changes import Alarms, Changes, Due
from hanse.protocol.claimbook import ClaimBook
from hanse.protocol.effects import Emit
from hanse.protocol.hostside import HostSide
from hanse.protocol.identity import ElectionKey, claim_delay_s, election_key
from hanse.protocol.mesh import Mesh
from hanse.protocol.messages import HandOver
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.settings import MANAGEMENT_GROUP, RANK_DEFAULT, Settings
from hanse.protocol.ways import Ways


class Election:
    """The elections of all groups at one federator."""

    def __init__(
        self,
        identity: int,
        settings: Settings,
        neighbours: dict[int, Neighbour],
        changes: Changes,
        alarms: Alarms,
        host: HostSide,
        claims: ClaimBook,
        ways: Ways,
        mesh: Mesh,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._neighbours = neighbours
        self._changes = changes
        self._alarms = alarms
        self._host = host
        self._claims = claims
        self._ways = ways
        self._mesh = mesh
        self._ranks: dict[str, int] = {}
        self._appointments: set[str] = set()
        # Groups claimed at a core's request to take over from it: that core, and until when it should withdraw.
        self._inherited: dict[str, tuple[int, float]] = {}
        self._hand_over_turn = -1
        # Groups for which a member was asked since the last round. Two heirs would only have to find each other.
        self._asked: set[str] = set()
        # Groups that wait to be claimed, and when; and those that wait until claims are synchronised.
        self._claim_due: dict[str, float] = {}
        self._unclaimed: set[str] = set()
        # Groups of our own that had members at the last look.
        self._joined_by_others: set[str] = set()

    def core_of(self, group: str) -> int | None:
        """Return the core that this federator accepts for a group (R8)."""
        claimants = self._claims.cores_by_group.get(group, ())
        if len(claimants) == 1:  # nearly always, and called a million times in a large simulation
            return claimants[0] if claimants[0] in self._ways.live else None
        best: tuple[ElectionKey, int] | None = None
        for core in claimants:
            if not self._ways.is_live(core):
                continue
            rank = self._claims.sets[core].groups[group].rank
            assert rank is not None, "a claim that stands has a rank"
            key = election_key(rank, core, self._settings.election)
            if best is None or key < best[0]:
                best = (key, core)
        return None if best is None else best[1]

    def cores(self) -> dict[str, int | None]:
        """Return the accepted core of every claimed group."""
        live = self._ways.live
        return {
            group: claimants[0] if len(claimants) == 1 and claimants[0] in live else self.core_of(group)
            for group, claimants in self._claims.cores_by_group.items()
        }

    # --- orders of the manager ----------------------------------------------------------------------------------------

    def on_ranked(self, group: str, rank: int) -> None:
        """Set the rank of our claim for a group (R8)."""
        self._ranks[group] = rank
        own = self._claims.own.groups
        if group in own and own[group].rank != rank:
            self._claims.change_own(group, rank)
        self._changes.groups.add(group)

    def on_appointed(self, group: str, *, is_appointed: bool) -> None:
        """Set whether we claim a group even without interest, because the manager has appointed us (R16)."""
        (self._appointments.add if is_appointed else self._appointments.discard)(group)
        self._changes.groups.add(group)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, now: float, group: str) -> None:
        """Elect the group's core from what we know, and claim or withdraw accordingly (R8 to R17)."""
        own = self._claims.own.groups
        core = self.core_of(group)
        was_ours = group in own
        has_interest = group in self._host.interest
        if was_ours:
            self._decide_as_claimant(group, core, self._others(group))
        elif group in self._appointments and self._others(group):
            self._claim(group)  # R16
        elif core is None and has_interest:
            self._decide_to_claim(now, group)
        else:
            self._claim_due.pop(group, None)
            self._unclaimed.discard(group)
        if (group in own) != was_ours:
            core = self.core_of(group)
        self._mesh.choose_own_core(group, core, has_interest=has_interest)
        is_claimed_elsewhere = self._claims.claimants(group) not in ((), (self._identity,))
        self._host.subscribe(group, is_wanted=is_claimed_elsewhere or self._mesh.has_children(group))  # R53
        if group == MANAGEMENT_GROUP:
            self._compare_grouping(core)

    def _others(self, group: str) -> list[int]:
        """Return the live claimants other than us."""
        return [
            other for other in self._claims.claimants(group) if other != self._identity and self._ways.is_live(other)
        ]

    def _decide_as_claimant(self, group: str, core: int | None, others: list[int]) -> None:
        has_members = self._mesh.has_members(group)
        if group in self._appointments:
            if not others and not has_members and not self._wants(group):
                self._withdraw(group)
        elif not self._wants(group):
            if group not in self._inherited and (others or not has_members):
                # R13, R15; others rely on an heir, so it keeps the claim and looks for an heir in turn
                self._withdraw(group)
                if others and not has_members:
                    self._changes.given_up.add(group)
        elif core != self._identity and core is not None:
            if group in self._inherited and self._inherited[group][0] in others:
                return  # R15: the old core withdraws, not its heir
            if self._mesh.is_connected((core, group)):
                self._withdraw(group)  # R12
        else:
            self._inherited.pop(group, None)
        (self._joined_by_others.add if has_members else self._joined_by_others.discard)(group)

    def _decide_to_claim(self, now: float, group: str) -> None:
        due = self._claim_due.get(group)
        if group == MANAGEMENT_GROUP and not self._is_smallest_around():
            return  # R17; decided again in every round
        if due is not None and now < due:
            return
        if due is None and (self._claims.claimants(group) or group == MANAGEMENT_GROUP):
            self._wait_to_claim(now, group)  # R11
            if now < self._claim_due[group]:
                return
        if not self._is_synchronised(now):
            self._unclaimed.add(group)
            return
        self._claim_due.pop(group, None)
        self._unclaimed.discard(group)
        self._claim(group)  # R10

    def _claim(self, group: str) -> None:
        self._claims.change_own(group, self._ranks.get(group, RANK_DEFAULT))

    def _withdraw(self, group: str) -> None:
        # The last member to leave may have been cut off by a restart on the route, and will be back.
        has_had_members = self._mesh.has_members(group) or group in self._joined_by_others
        self._claims.change_own(group, None, is_wanted=has_had_members or len(self._claims.claimants(group)) > 1)

    def _wants(self, group: str) -> bool:
        return group in self._host.interest

    def _is_smallest_around(self) -> bool:
        sign = 1 if self._settings.election == "smallest" else -1
        return all(sign * self._identity < sign * n.identity for n in self._neighbours.values() if n.is_usable)

    def _is_synchronised(self, now: float) -> bool:
        """Return whether each neighbour that is up has told its claims, or has had an interval to do so."""
        if self._claims.is_fetching:
            return False
        waiting = (n for n in self._neighbours.values() if n.is_up and not n.has_spoken)
        return all(now - n.up_at > self._settings.announcement_interval_s for n in waiting)

    def _compare_grouping(self, core: int | None) -> None:
        """Report a grouping of ours that differs from the one that the management group's core advertises (R39)."""
        if core is None:
            return
        advertised = self._claims.sets[core].groups[MANAGEMENT_GROUP].grouping
        if advertised and advertised != str(self._settings.grouping):
            self._changes.effects.append(Emit("grouping_differs", core=core, detail=advertised))

    # --- waiting ------------------------------------------------------------------------------------------------------

    def on_withdrawn(self, now: float, group: str) -> None:
        """Wait before claiming a group that its core gave up, if we want it (R11)."""
        if self._wants(group) and group not in self._claim_due:
            self._wait_to_claim(now, group)

    def on_synchronised(self) -> None:
        """Decide again about the groups that waited for missing claims, which are here now (R10)."""
        self._changes.groups.update(self._unclaimed)

    def _wait_to_claim(self, now: float, group: str) -> None:
        key = election_key(RANK_DEFAULT, self._identity, self._settings.election)
        self._claim_due[group] = now + claim_delay_s(key, self._settings.announcement_interval_s)
        self._alarms.set(self._claim_due[group], Due.CLAIM, 0, group)

    def age(self, now: float) -> None:
        """Age by one round: ask again for heirs, stop waiting for cores to withdraw, and retry groups that wait."""
        for group in self._claims.own.groups:
            if not self._wants(group) and group not in self._asked:
                self.hand_over(group)
        self._asked.clear()
        self._joined_by_others.intersection_update(self._claims.own.groups)
        for group in [group for group, (_, until) in self._inherited.items() if until <= now]:
            del self._inherited[group]  # the core has interest again, and keeps the group
            self._changes.groups.add(group)
        self._changes.groups.update(self._unclaimed)
        if self.core_of(MANAGEMENT_GROUP) is None:
            self._changes.groups.add(MANAGEMENT_GROUP)

    # --- handing over -------------------------------------------------------------------------------------------------

    def hand_over(self, group: str) -> None:
        """Look for an heir of a group that we claim and have no interest in (R14, R16)."""
        if group in self._claims.own.groups and group not in self._appointments:
            self._pass_hand_over(self._identity, group, -1)
            self._asked.add(group)

    def on_hand_over(self, now: float, neighbour: Neighbour, hand_over: HandOver) -> None:
        """Take over a group from a core without interest, or pass its request to a member (R14, R15)."""
        core, group = hand_over
        if core == self._identity or core not in self._claims.claimants(group):
            self._changes.counters["ignored_hand_over"] += 1
            return
        if self._wants(group):
            if group not in self._claims.own.groups:
                self._inherited[group] = (core, now + self._settings.expiry_s)
                self._claim(group)
            return
        self._pass_hand_over(core, group, neighbour.identity)

    def _pass_hand_over(self, core: int, group: str, source: int) -> None:
        children = [
            child for child in self._mesh.children(core, group) if child != source and self._neighbours[child].is_up
        ]
        if children:
            # Another child each time: the first may lead to no federator that wants the group.
            self._hand_over_turn += 1
            neighbour = self._neighbours[children[self._hand_over_turn % len(children)]]
            neighbour.hand_overs.append(HandOver(core, group))
