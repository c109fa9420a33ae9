"""The meshes of all groups at one federator: which neighbours joined through it, and through which it joined.

The rules (docs/protocol.md R32 to R38):

- A membership goes to all parents towards a core, for our own sake or for that of others who joined through us. It
  never goes to a parent for that parent's own sake.
- Make before break: an old edge is left only when another is known to reach the core.
- When a core gives a group up, the memberships of others towards it *fade*: they count a while longer. Meanwhile its
  successor stays in its mesh, and the route there is remembered, because some still take it for the core.
"""

from hanse.protocol.changes import Alarms, Changes, Due
from hanse.protocol.claimbook import ClaimBook
from hanse.protocol.effects import Emit
from hanse.protocol.messages import Key, SetDelta
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.settings import Settings
from hanse.protocol.ways import Ways

# A membership whose fading is over. It has only to be placed without the others.
_FADED = 0.0


class Mesh:
    """The mesh edges of one federator, and the memberships that make them."""

    def __init__(
        self,
        identity: int,
        settings: Settings,
        neighbours: dict[int, Neighbour],
        changes: Changes,
        alarms: Alarms,
        claims: ClaimBook,
        ways: Ways,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._neighbours = neighbours
        self._changes = changes
        self._alarms = alarms
        self._claims = claims
        self._ways = ways
        # Group to the core under which we belong to its mesh for our own sake.
        self._own_core: dict[str, int] = {}
        # Group to core to neighbours: those that joined through us, and those through which we joined.
        self._children: dict[str, dict[int, set[int]]] = {}
        self._holders: dict[str, dict[int, set[int]]] = {}
        # Core to the groups for which we hold or want a membership towards it.
        self._joined_under: dict[int, set[str]] = {}
        # Keys whose core gave the group up, and until when the memberships of others count for them.
        self._fading: dict[Key, float] = {}
        # Groups that we are the core of now, and until when we stay in the meshes of former cores.
        self._parting: dict[str, float] = {}
        # Groups that a core gave up: until when the parents that led to it are used, and those parents.
        self._former_ways: dict[str, tuple[float, tuple[int, ...]]] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    def has_children(self, group: str) -> bool:
        """Return whether any neighbour joined the group through us, under whichever core."""
        return group in self._children

    def children(self, core: int, group: str) -> list[int]:
        """Return the neighbours that joined the group under this core through us, smaller ids first."""
        return sorted(self._children.get(group, {}).get(core, ()))

    def has_members(self, group: str) -> bool:
        """Return whether any neighbour joined the group with us as its core."""
        by_core = self._children.get(group)
        return by_core is not None and bool(by_core.get(self._identity))

    def own_core(self, group: str) -> int | None:
        """Return the other core under which we belong to the group's mesh for our own sake."""
        return self._own_core.get(group)

    def edges(self, group: str) -> tuple[int, ...]:
        """Return the neighbours over whose links the group's mesh runs."""
        return tuple(sorted(edge for edge in self._all_edges(group) if self._neighbours[edge].is_up))

    def _all_edges(self, group: str) -> set[int]:
        edges: set[int] = set()
        for by_core in (self._children.get(group), self._holders.get(group)):
            if by_core:
                edges.update(*by_core.values())
        return edges

    def groups_with(self, neighbour: Neighbour) -> set[str]:
        """Return the groups whose mesh runs over the link to a neighbour, or did until the link was lost."""
        return {group for _, group in neighbour.joined.keys} | {group for _, group in neighbour.joining.keys}

    def former_ways(self, group: str) -> tuple[int, ...]:
        """Return the neighbours that led to a core which has just given the group up (R46)."""
        _, ways = self._former_ways.get(group, (0.0, ()))
        return tuple([way for way in ways if way in self._neighbours and self._neighbours[way].is_up])

    def is_connected(self, key: Key) -> bool:
        """Return whether our membership reaches its core, as the parents say."""
        core, group = key
        if core == self._identity:
            if group in self._claims.own.groups:
                return True
            own_core = self._own_core.get(group)
            return own_core is not None and self.is_connected((own_core, group))
        return any(key in self._neighbours[parent].connected.keys for parent in self._ways.parents_of(core))

    # --- from neighbours ----------------------------------------------------------------------------------------------

    def on_memberships(self, neighbour: Neighbour, delta: SetDelta) -> None:
        """Apply memberships of a neighbour, which joins or leaves meshes through us."""
        added, removed = neighbour.joined.apply(neighbour.epoch, delta)
        for core, group in added:
            self._children.setdefault(group, {}).setdefault(core, set()).add(neighbour.identity)
            self._changes.effects.append(Emit("member_joined", group=group, core=core, neighbour=neighbour.identity))
            self._changes.edges.add((neighbour.identity, group))
            self._touch((core, group))
        for key in removed:
            self._drop_child(key, neighbour)

    def on_connections(self, neighbour: Neighbour, delta: SetDelta) -> None:
        """Apply a neighbour's connections: which of our memberships with it reach their core."""
        added, removed = neighbour.connected.apply(neighbour.epoch, delta)
        self._changes.keys.update(added, removed)

    def disconnect(self, neighbour: Neighbour) -> None:
        """Drop all connections through a neighbour whose link or state is gone."""
        self._changes.keys.update(neighbour.connected.clear())

    def forget_neighbour(self, neighbour: Neighbour) -> None:
        """Drop all memberships with a neighbour that is gone for good (R37, R38)."""
        for key in sorted(neighbour.joining.keys):
            self._drop_holder(key, neighbour)
            self._changes.keys.add(key)
        for key in neighbour.joined.clear():
            self._drop_child(key, neighbour)

    # --- from elections and routes ------------------------------------------------------------------------------------

    def choose_own_core(self, group: str, core: int | None, *, has_interest: bool) -> None:
        """Choose the core under which we join the group for our own sake, now that `core` is elected (R32)."""
        before = self._own_core.get(group)
        # A former core holds its members together until they have found the new one.
        if not has_interest and not self.has_members(group):
            core = None
        elif core is None and before is not None:
            return  # there is no core to turn to yet, so what we have stays
        if core == self._identity:
            core = None
            if before is not None:
                # The others of that mesh have yet to find us (R36).
                self._parting[group] = self._alarms.next_round_at + self._settings.expiry_s
                self._alarms.set(self._parting[group], Due.FADED, before, group)
        if core == before:
            return
        if core is None:
            del self._own_core[group]
        else:
            self._own_core[group] = core
            self._changes.keys.add((core, group))
        if before is not None:
            self._changes.keys.add((before, group))
        self._changes.keys.update((old, group) for old in self._holders.get(group, ()))
        self._changes.is_table_changed = True

    def touch_core(self, core: int) -> None:
        """Place all memberships towards a core again, because the parents towards it have changed."""
        self._changes.keys.update((core, group) for group in self._joined_under.get(core, ()))

    def begin_fading(self, core: int, group: str) -> None:
        """Let the memberships of others under a core that gave the group up count for 2·K·A more (R36)."""
        parents = self._ways.parents_of(core)
        if parents:
            # Federators that have not heard of it yet send towards that core, perhaps through us (R46).
            until = self._alarms.next_round_at + self._settings.expiry_s
            self._former_ways[group] = (until, tuple(sorted({*parents, *self.former_ways(group)})))
        if group in self._joined_under.get(core, ()):
            until = self._alarms.next_round_at + 2 * self._settings.expiry_s
            self._alarms.set(self._fading.setdefault((core, group), until), Due.FADED, core, group)
            self._changes.keys.add((core, group))

    def end_fading(self, core: int, group: str) -> None:
        """Stop fading, because the core claims the group again."""
        if self._fading and self._fading.pop((core, group), None) is not None:
            self._changes.keys.add((core, group))

    def on_faded(self, now: float, core: int, group: str) -> None:
        """End the time of `begin_fading`, or of a new core in the former mesh, unless it restarted since."""
        if self._parting.get(group, now + 1) <= now:
            del self._parting[group]
            self._changes.keys.update((old, group) for old in self._holders.get(group, ()))
        if self._fading.get((core, group), now + 1) <= now:
            self._fading[core, group] = _FADED
            self._changes.keys.add((core, group))

    def age(self, now: float) -> None:
        """Age by one round: forget the routes to cores that have long withdrawn."""
        for group in [group for group, (until, _) in self._former_ways.items() if until <= now]:
            del self._former_ways[group]
            self._changes.is_table_changed = True

    # --- placing memberships ------------------------------------------------------------------------------------------

    def place(self, key: Key) -> None:
        """Choose the parents that hold our membership for the key.

        Old ones stay until a new one is connected (R32 to R35).
        """
        core, group = key
        children = self._children.get(group, {}).get(core, set())
        is_own = self._own_core.get(group) == core
        if key in self._fading and self._fading[key] <= _FADED:
            if not children:
                del self._fading[key]
            children = set()
        wanted: list[int] = []
        if core != self._identity and (is_own or children):
            # Never through a parent for that parent's own sake.
            wanted = [p for p in self._ways.parents_of(core) if is_own or children - {p}]
            # This holds without a parent, too: the first one that comes must get the membership.
            self._joined_under.setdefault(core, set()).add(group)
        elif core in self._joined_under and core not in self._holders.get(group, {}):
            self._joined_under[core].discard(group)
        holders = self._holders.get(group, {}).get(core, set())
        for parent in wanted:
            if parent not in holders:
                self._neighbours[parent].joining.add(key)
                self._holders.setdefault(group, {}).setdefault(core, set()).add(parent)
                self._joined_under.setdefault(core, set()).add(group)
                self._changes.edges.add((parent, group))
                self._changes.is_table_changed = True
        former = sorted(set(self._holders.get(group, {}).get(core, ())) - set(wanted))
        if former and not self._must_keep_former(key, wanted, has_need=bool(is_own or children)):
            for holder in former:
                self._drop_holder(key, self._neighbours[holder])
        self._tell_connection(key)

    def _must_keep_former(self, key: Key, wanted: list[int], *, has_need: bool) -> bool:
        """Return whether old edges must stay until another is known to reach the core (R35)."""
        core, group = key
        if has_need:
            return not any(key in self._neighbours[parent].connected.keys for parent in wanted)
        own_core = self._own_core.get(group)
        if own_core is None:
            return group in self._parting
        return own_core != core and not self.is_connected((own_core, group))

    def _tell_connection(self, key: Key) -> None:
        """Tell the children whether their membership now reaches the core (R34)."""
        core, group = key
        is_connected = self.is_connected(key)
        for child in self.children(core, group):
            connecting = self._neighbours[child].connecting
            (connecting.add if is_connected else connecting.discard)(key)
        if self._own_core.get(group) == core and is_connected:
            # We are connected: claims and memberships under other cores can go (R12, R35).
            if group in self._claims.own.groups:
                self._changes.groups.add(group)
            others = [old for old in self._holders.get(group, ()) if old != core]
            self._changes.keys.update((old, group) for old in others)
            if self._identity in self._children.get(group, ()):
                self._changes.keys.add((self._identity, group))

    def _drop_child(self, key: Key, neighbour: Neighbour) -> None:
        core, group = key
        _discard(self._children, key, neighbour.identity)
        neighbour.connecting.discard(key)
        self._changes.effects.append(Emit("member_left", group=group, core=core, neighbour=neighbour.identity))
        self._touch(key)

    def _drop_holder(self, key: Key, neighbour: Neighbour) -> None:
        core, group = key
        neighbour.joining.discard(key)
        _discard(self._holders, key, neighbour.identity)
        if core not in self._holders.get(group, {}):
            self._joined_under.get(core, set()).discard(group)
        self._changes.is_table_changed = True

    def _touch(self, key: Key) -> None:
        self._changes.keys.add(key)
        self._changes.groups.add(key[1])
        self._changes.is_table_changed = True


def _discard(table: dict[str, dict[int, set[int]]], key: Key, identity: int) -> None:
    """Remove a neighbour from a table of group, core and neighbours, together with entries that become empty."""
    core, group = key
    by_core = table[group]
    by_core[core].remove(identity)
    if not by_core[core]:
        del by_core[core]
    if not by_core:
        del table[group]
