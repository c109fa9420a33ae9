"""Test of whether a federation has converged, which names the first thing that is missing.

A federation has converged if this holds in each component, for the management group and each group with interest there:
- All federators name the same core. The core is in the component, and they know its present epoch.
- The distance of each federator is the length of a shortest route.
- Each interested federator has a route of parents to the core, and the mesh along that route is complete.
"""

from collections.abc import Callable, Collection, Iterable

from hanse.protocol.machine import Machine
from hanse.protocol.settings import MANAGEMENT_GROUP
from hanse.sim.federation import Federation
from hanse.sim.overlay import distances


def groups_with_interest(federation: Federation, component: Iterable[int]) -> list[str]:
    """Return the groups of interest to a component, sorted, with the management group first."""
    group_of = federation.settings.grouping.group_of
    wanted = {group_of(wanted) for identity in component for wanted in federation.nodes[identity].host.interest}
    return [MANAGEMENT_GROUP, *sorted(wanted)]


def why_not_converged(
    federation: Federation, excused: Collection[str] = (), *, needs_redundancy: bool = True
) -> str | None:
    """Return a sentence on the first thing that is missing, or None if the federation has converged.

    Groups in `excused` are skipped, because their interest has just changed. The protocol promises one route to the
    core. With `needs_redundancy` all parents that the settings ask for must be there, and the mesh must be complete
    over each.
    """
    for component in federation.components():
        trouble = _why_not(federation, component, excused, needs_redundancy=needs_redundancy)
        if trouble is not None:
            return trouble
    return None


def _why_not(
    federation: Federation, component: list[int], excused: Collection[str], *, needs_redundancy: bool
) -> str | None:
    machines = [federation.nodes[identity].running for identity in component]
    ways: dict[int, dict[int, int]] = {}
    interested = interest_by_group(federation, component)
    cores = [machine.cores() for machine in machines]
    # They nearly always agree. Then it is enough to look at one of them.
    are_agreed = all(named == cores[0] for named in cores)
    for group in groups_with_interest(federation, component):
        if group in excused:
            continue
        core = cores[0].get(group)
        if not are_agreed:
            for identity, named in zip(component, cores, strict=True):
                if named.get(group) != core:
                    return f"{group}: {identity} names core {named.get(group)}, {component[0]} names {core}"
        if core is None:
            return f"{group}: {component[0]} knows no core"
        if core not in ways:
            if core not in federation.nodes or federation.nodes[core].machine is None or core not in component:
                return f"{group}: core {core} is not in the component of {component[0]}"
            ways[core] = distances(core, federation.live_neighbours)
            trouble = why_no_way(federation, machines, core, ways[core], needs_redundancy=needs_redundancy)
            if trouble is not None:
                return trouble
        trouble = why_no_mesh(federation, interested[group], group, core, needs_redundancy=needs_redundancy)
        if trouble is not None:
            return trouble
    return None


def why_no_way(
    federation: Federation, machines: list[Machine], core: int, hops: dict[int, int], *, needs_redundancy: bool
) -> str | None:
    """Return what is missing of the routes of these machines to a core. `hops` has the distance of each."""
    epoch = federation.nodes[core].running.epoch
    for machine in machines:
        if machine.core_epoch(core) != epoch:
            return f"core {core} has epoch {epoch}, but {machine.identity} holds {machine.core_epoch(core)}"
        if machine.distance_to(core) != hops[machine.identity]:
            seen = machine.distance_to(core)
            return f"core {core} is {hops[machine.identity]} hops from {machine.identity}, which says {seen}"
        parents = machine.parents_of(core)
        nearest = [k for k in federation.live_neighbours(machine.identity) if hops[k] == hops[machine.identity] - 1]
        enough = min(len(nearest), federation.settings.redundancy if needs_redundancy else 1)
        if machine.identity != core and (len(parents) < enough or not set(parents) <= set(nearest)):
            return f"core {core}: {machine.identity} has parents {parents}, expected {enough} of {sorted(nearest)}"
    return None


def why_no_mesh(
    federation: Federation,
    interested: list[int],
    group: str,
    core: int,
    *,
    needs_redundancy: bool,
    seen: set[int] | None = None,
    beyond: list[tuple[str, int, int]] | None = None,
) -> str | None:
    """Return what is missing of a mesh, or None.

    Each interested member, and each parent of a member, must be in the mesh, and both ends of each link must know it.

    Members in `seen` have been checked already. With `beyond`, only machines of this process are checked. Each parent
    in the other process adds a tuple to it: the group, the parent, and the member whose link the parent must also know.
    """
    nodes, here = federation.nodes, federation.nodes_here
    seen = set() if seen is None else seen
    pending = [k for k in dict.fromkeys(interested) if k not in seen]
    seen.update(pending)
    while pending:
        identity = pending.pop()
        machine = nodes[identity].running
        if not machine.is_member(group):
            return f"{group}: {identity} should be a member of the mesh, and is not"
        if identity == core:
            continue
        mesh = machine.mesh_neighbours(group)
        parents = machine.parents_of(core)
        far = [] if beyond is None else [k for k in parents if k in mesh and k not in here]
        near = [
            k for k in parents if k in mesh and k not in far and identity in nodes[k].running.mesh_neighbours(group)
        ]
        if len(far) + len(near) < (len(parents) if needs_redundancy else 1):
            missing = sorted(set(parents) - {*far, *near})
            return f"{group}: the mesh link from {identity} to its parent {missing[0]} is not complete"
        if beyond is not None:
            beyond += [(group, parent, identity) for parent in far]
        for parent in near:
            if parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return None


def interest_by_group(federation: Federation, component: list[int]) -> dict[str, list[int]]:
    """Map each group to the federators whose clients want it, in one walk over all of them instead of one per group."""
    group_of: Callable[[str], str] = federation.settings.grouping.group_of
    found: dict[str, list[int]] = {MANAGEMENT_GROUP: list(component)}
    for identity in component:
        for group in {group_of(wanted) for wanted in federation.nodes[identity].host.interest}:
            found.setdefault(group, []).append(identity)
    return found
