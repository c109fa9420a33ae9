"""Changes of the topology: join, leave, loss, return, revocation, and reports of federators. Pure.

Each function takes a `Topology` and returns a `Change`: the new topology, the federators whose documents must be
stored, the announcements, and the events. None of it counts before the store has it.

Rules:

1. A federator that is lost, leaves or is revoked has no links. The same change repairs the overlay of the others.
2. A federator that returns gets its former links back as far as degrees allow. Links of repair that are then
   unnecessary are removed.
3. A report of a federator is believed if the manager knows less (its store was lost, or the federators linked among
   themselves while it was away), and corrected if the manager knows more. A report that has seen the latest neighbours
   and has one more made that link itself. A report that has not seen them is merely late.
4. An id belongs to one address. A second claim is refused, and reported as an event.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hanse.errors import RemoteError, Unavailable
from hanse.topology.model import (
    FEDERATORS_MAX,
    FORMER_MAX,
    ID_MAX,
    Federator,
    Link,
    LinkKind,
    Probe,
    State,
    Topology,
    link_of,
)
from hanse.topology.placement import STRATEGIES, Candidate
from hanse.topology.repair import repair, trim

EPOCH_AHEAD_MAX = 10**8  # how far a reported epoch may exceed the clock's seconds: three years at one change per second
TRIM_MAX = 64  # links considered for trimming in one change; the rest waits for the next


class Conflict(RemoteError):  # noqa: N818 - the name is the state, as in "409 Conflict"
    """An id or an address belongs to another federator, or the federator is not allowed to do this now."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's rules for the overlay."""

    degree_max: int = 5
    strategy: str = "seeds"
    federators_max: int = FEDERATORS_MAX


@dataclass(frozen=True, slots=True)
class Announcement:
    """Instruction to federator `to`: add `neighbor`, or remove it."""

    to: int
    action: str
    neighbor: int


@dataclass(frozen=True, slots=True)
class Happening:
    """Event for the watchers of `/events`."""

    kind: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """New topology, and its consequences."""

    topology: Topology
    changed: tuple[int, ...] = ()
    forgotten: tuple[int, ...] = ()
    announcements: tuple[Announcement, ...] = ()
    happenings: tuple[Happening, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing needs to be stored."""
        return not self.changed and not self.forgotten


@dataclass(frozen=True, slots=True)
class Peer:
    """Federator as it names itself, or as a neighbour names it."""

    ip: str
    key: str
    id: int | None = None
    link: str | None = None
    probe: Probe = Probe.BROKER
    token: str | None = None


def join(before: Topology, peer: Peer, rules: Rules, now: datetime) -> tuple[Change, int]:
    """Add a federator: at its old id if the address is known, otherwise where placement puts it."""
    known = before.by_key(peer.key)
    if known is not None:
        renewed = replace(
            known,
            ip=peer.ip,
            link=peer.link or known.link,
            probe=peer.probe,
            token=peer.token or known.token,
        )
        if known.state is State.UP:
            change = _settle(before, {known.id: renewed}, dict(before.links), [])
            return _tell_of_new_address(change, known, renewed), known.id
        return _return(before, renewed, rules, now, Happening("returned", {"id": known.id})), known.id
    _refuse_more(before, rules)
    node = _free_id(before, peer.id)
    degrees = before.neighbor_map()
    candidates = [Candidate(i, before.federators[i].latency_ms, len(degrees[i])) for i in before.living()]
    placed = STRATEGIES[rules.strategy](candidates, before.links, rules.degree_max)
    links = dict(before.links)
    if placed.split is not None:
        del links[placed.split]
    links.update({link_of(node, other): LinkKind.PLACED for other in placed.neighbors})
    return _settle(
        before, {node: _new(node, peer, now)}, links, [Happening("joined", {"id": node, "ip": peer.ip})]
    ), node


def lose(
    before: Topology,
    nodes: Iterable[int],
    state: State,
    rules: Rules,
    now: datetime,
    *,
    causes: Mapping[int, str] | None = None,
    avoid: Collection[Link] = (),
) -> Change:
    """Mark federators as gone, left or revoked: remove their links, and repair the rest."""
    lost = sorted(node for node in nodes if before.federators[node].state is not state)
    around = before.neighbor_map()
    federators, happenings = {}, []
    for node in lost:
        one = before.federators[node]
        former = tuple(around[node][:FORMER_MAX]) if one.state is State.UP else one.former
        federators[node] = replace(one, state=state, since=now, former=former)
        happenings.append(Happening(state.value, {"id": node, "cause": (causes or {}).get(node)}))
    gone = set(lost)
    links = {link: kind for link, kind in before.links.items() if not gone.intersection(link)}
    links = _repaired(before, federators, links, rules, avoid)
    return _settle(before, federators, links, happenings)


def come_back(before: Topology, node: int, rules: Rules, now: datetime) -> Change:
    """Take back a federator that was gone and answers again."""
    return _return(before, before.federators[node], rules, now, Happening("returned", {"id": node}))


def mend(before: Topology, rules: Rules, avoid: Collection[Link] = ()) -> Change:
    """Bring any overlay into the state that `repair` promises, and trim unnecessary links."""
    links = _trimmed(before.living(), dict(before.links))
    return _settle(before, {}, _repaired(before, {}, links, rules, avoid), [])


def forget(before: Topology, now: datetime, after: timedelta) -> Change:
    """Forget federators that were away for longer than `after`, and free their ids."""
    old = [
        one.id
        for one in before.federators.values()
        if one.state is not State.UP and one.since is not None and now - one.since > after
    ]
    if not old:
        return Change(before)
    federators = {node: one for node, one in before.federators.items() if node not in set(old)}
    happenings = tuple(Happening("forgotten", {"id": node}) for node in sorted(old))
    return Change(
        replace(before, epoch=before.epoch + 1, federators=federators), (), tuple(sorted(old)), (), happenings
    )


def adopt(before: Topology, peer: Peer, epoch: int, neighbors: Iterable[Peer], rules: Rules, now: datetime) -> Change:
    """Apply rule 3: believe a report if the manager knows less. `peer.id` is the reporting federator."""
    assert peer.id is not None
    if epoch > now.timestamp() + EPOCH_AHEAD_MAX:
        raise Conflict(f"The report's epoch is {epoch}, far ahead of the clock; expected one that a manager gave out.")
    node, known = peer.id, before.federators.get(peer.id)
    _refuse_conflict(before, peer)
    federators: dict[int, Federator] = {}
    happenings: list[Happening] = []
    if known is None:
        _refuse_more(before, rules)
        federators[node] = _new(node, peer, now)
        happenings.append(Happening("adopted", {"id": node, "ip": peer.ip}))
    elif known.state is not State.UP:
        return Change(before)
    has_seen_the_latest = known is None or epoch >= known.changed_epoch
    # If this manager has never told a federator anything, an earlier manager placed its links.
    kind = LinkKind.PLACED if known is None or known.changed_epoch == 0 else LinkKind.SELF
    links = dict(before.links)
    for other in neighbors if has_seen_the_latest else ():
        assert other.id is not None
        here = before.federators.get(other.id)
        if here is None and before.by_key(other.key) is None and len(before.federators) < rules.federators_max:
            here = _new(other.id, other, now)
            federators[other.id] = here
            happenings.append(Happening("adopted", {"id": other.id, "ip": other.ip, "reported_by": node}))
        if here is not None and here.key == other.key and here.state is State.UP:
            links.setdefault(link_of(node, other.id), kind)
    change = _settle(before, federators, links, happenings, is_our_word=False)
    if epoch > change.topology.epoch:
        # Another manager, or this one before its store was lost, used a larger epoch: exceed it.
        return replace(change, topology=replace(change.topology, epoch=epoch + 1), changed=change.changed or (node,))
    return change


def measured(before: Topology, latency_ms: Mapping[int, float], checked: Iterable[int], now: datetime) -> Topology:
    """Return the topology with the measurements of a health round. The overlay is the same, and so is the epoch."""
    federators = dict(before.federators)
    for node in checked:
        if node in federators:
            latency = latency_ms.get(node, federators[node].latency_ms)
            federators[node] = replace(federators[node], latency_ms=latency, latest_health_check=now)
    return replace(before, federators=federators)


def _return(before: Topology, one: Federator, rules: Rules, now: datetime, happening: Happening) -> Change:
    """Apply rule 2."""
    federators = {one.id: replace(one, state=State.UP, since=now, former=())}
    living = sorted({*before.living(), one.id})
    links = dict(before.links)
    links.update({link_of(one.id, other): LinkKind.PLACED for other in one.former if other in living})
    links = _repaired(before, federators, _trimmed(living, links), rules, ())
    return _settle(before, federators, links, [happening])


def _trimmed(living: list[int], links: dict[Link, LinkKind]) -> dict[Link, LinkKind]:
    extra = [link for link, kind in sorted(links.items()) if kind is not LinkKind.PLACED]
    gone = set(trim(living, links, extra[:TRIM_MAX])) if extra else set()
    return {link: kind for link, kind in links.items() if link not in gone}


def _repaired(
    before: Topology,
    federators: Mapping[int, Federator],
    links: dict[Link, LinkKind],
    rules: Rules,
    avoid: Collection[Link],
) -> dict[Link, LinkKind]:
    after = {**before.federators, **federators}
    living = [node for node, one in after.items() if one.state is State.UP]
    latency = {node: after[node].latency_ms for node in living}
    plan = repair(living, links, rules.degree_max, latency_ms=latency, avoid=avoid)
    links = {link: kind for link, kind in links.items() if link not in plan.remove}
    links.update(dict.fromkeys(plan.add, LinkKind.REPAIR))
    return links


def _settle(
    before: Topology,
    federators: Mapping[int, Federator],
    links: dict[Link, LinkKind],
    happenings: list[Happening],
    *,
    is_our_word: bool = True,
) -> Change:
    """Compare with the topology before: set the new epoch, and find changed documents and announcements.

    A neighbour that was only reported is not an instruction of this manager. It is not announced, and a later report
    may still add to it.
    """
    added = sorted(links.keys() - before.links.keys())
    removed = sorted(before.links.keys() - links.keys())
    touched = {node for link in (*added, *removed) for node in link}
    rekinded = {n for link in links.keys() & before.links.keys() if links[link] != before.links[link] for n in link}
    changed = sorted({n for n, one in federators.items() if before.federators.get(n) != one} | touched | rekinded)
    if not changed:
        return Change(before)
    epoch = before.epoch + 1
    after = {**before.federators, **federators}
    announcements: list[Announcement] = []
    if is_our_word:
        for node in touched | (federators.keys() - before.federators.keys()):
            after[node] = replace(after[node], changed_epoch=epoch)
        announcements = _announce(after, removed, "remove") + _announce(after, added, "add")
    happenings = happenings + [Happening("unlinked", {"a": a, "b": b}) for a, b in removed]
    happenings = happenings + [Happening("linked", {"a": a, "b": b, "kind": links[a, b].value}) for a, b in added]
    return Change(Topology(epoch, after, links), tuple(changed), (), tuple(announcements), tuple(happenings))


def _tell_of_new_address(change: Change, known: Federator, renewed: Federator) -> Change:
    """Tell the neighbours of a federator whose link has a new address to connect there again."""
    if (known.ip, known.link) == (renewed.ip, renewed.link):
        return change
    around = change.topology.neighbors(known.id)
    federators = dict(change.topology.federators)
    for node in around:
        federators[node] = replace(federators[node], changed_epoch=change.topology.epoch)
    return replace(
        change,
        topology=replace(change.topology, federators=federators),
        changed=tuple(sorted({*change.changed, *around})),
        announcements=tuple(Announcement(node, "add", known.id) for node in around),
    )


def _announce(federators: Mapping[int, Federator], links: Iterable[Link], action: str) -> list[Announcement]:
    ends = [(a, b) for link in links for a, b in (link, link[::-1])]
    return [Announcement(a, action, b) for a, b in ends if federators[a].state is State.UP]


def _new(node: int, peer: Peer, now: datetime) -> Federator:
    return Federator(node, peer.ip, peer.key, peer.link, State.UP, peer.probe, token=peer.token, since=now)


def _free_id(before: Topology, claimed: int | None) -> int:
    if claimed is not None and claimed not in before.federators:
        return claimed
    node = 0
    while node in before.federators:
        node += 1
    assert node <= ID_MAX
    return node


def _refuse_more(before: Topology, rules: Rules) -> None:
    if len(before.federators) >= rules.federators_max:
        raise Unavailable(
            f"The federation has {len(before.federators)} federators, the most that this manager accepts; "
            "start another federation, or wait until those who left are forgotten."
        )


def _refuse_conflict(before: Topology, peer: Peer) -> None:
    """Apply rule 4."""
    same_id, same_key = before.federators.get(peer.id or 0), before.by_key(peer.key)
    if same_id is not None and same_id.key != peer.key:
        raise Conflict(f"Id {peer.id} belongs to the broker {same_id.ip}, not to {peer.ip}; join again for another.")
    if same_key is not None and same_key.id != peer.id:
        raise Conflict(f"The broker {peer.ip} is federator {same_key.id}, not {peer.id}; join again to take that id.")
    if same_id is not None and same_id.state in (State.LEFT, State.REVOKED):
        how = "left" if same_id.state is State.LEFT else "been revoked"
        raise Conflict(f"Federator {peer.id} has {how}; join again.")
