"""How the topology changes: join, leave, loss, return, revocation, and what federators report. Pure.

Each function takes a `Topology` and returns a `Change`: the new topology, which federators' documents to store,
what to announce to whom, and what to tell those who watch. Nothing of it is true before the store has it.

Rules:

1. Whoever is lost, leaves or is revoked has no links; the rest is repaired in the same change.
2. Whoever returns gets its former links back as far as degrees allow; links of repair that are then not needed go.
3. What federators report is believed where the manager knows nothing (its store was lost, or they linked among
   themselves while it was away), and corrected where it knows better: a report that has seen the latest neighbours
   and has one more made it itself; one that has not is merely late.
4. An id belongs to one address. A second claim is refused, and told to those who watch.
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

EPOCH_AHEAD_MAX = 10**8  # how far beyond the clock's seconds a reported epoch may be: three years of a change a second
TRIM_MAX = 64  # links looked at for trimming in one change; the rest waits for the next


class Conflict(RemoteError):  # noqa: N818 - the name is the state, as in "409 Conflict"
    """An id or an address is already another federator's, or its federator may not do this now."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator decides about the overlay."""

    degree_max: int = 5
    strategy: str = "seeds"
    federators_max: int = FEDERATORS_MAX


@dataclass(frozen=True, slots=True)
class Announcement:
    """An instruction to federator `to`: take `neighbor` up, or let it go."""

    to: int
    action: str
    neighbor: int


@dataclass(frozen=True, slots=True)
class Happening:
    """Something to tell those who watch `/events`."""

    kind: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """A new topology, and what follows from it."""

    topology: Topology
    changed: tuple[int, ...] = ()
    forgotten: tuple[int, ...] = ()
    announcements: tuple[Announcement, ...] = ()
    happenings: tuple[Happening, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing needs to be stored."""
        return not self.changed and not self.forgotten


@dataclass(frozen=True, slots=True)
class Peer:
    """A federator as it names itself, or as a neighbour names it."""

    ip: str
    key: str
    id: int | None = None
    link: str | None = None
    probe: Probe = Probe.BROKER
    token: str | None = None


def join(before: Topology, peer: Peer, rules: Rules, now: datetime) -> tuple[Change, int]:
    """Takes a federator in: at its old id if the address is known, else where placement says."""
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
    """Some are gone, left or revoked: their links end, and the rest is repaired."""
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
    """One that was gone answers again."""
    return _return(before, before.federators[node], rules, now, Happening("returned", {"id": node}))


def mend(before: Topology, rules: Rules, avoid: Collection[Link] = ()) -> Change:
    """Brings the overlay into the state that `repair` promises, whatever it was, and trims what is not needed."""
    links = _trimmed(before.living(), dict(before.links))
    return _settle(before, {}, _repaired(before, {}, links, rules, avoid), [])


def forget(before: Topology, now: datetime, after: timedelta) -> Change:
    """Those who were away for longer than `after` are forgotten, and their ids free."""
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
    """Rule 3: believes a report where the manager knows less. `peer.id` is who reports."""
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
    # Of one whom this manager has never told anything, the links were placed by whoever was manager before.
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
        # Another manager, or this one before its store was lost, spoke with a larger epoch: go beyond it.
        return replace(change, topology=replace(change.topology, epoch=epoch + 1), changed=change.changed or (node,))
    return change


def measured(before: Topology, latency_ms: Mapping[int, float], checked: Iterable[int], now: datetime) -> Topology:
    """The topology with what a health round measured. No change of the overlay, so the same epoch."""
    federators = dict(before.federators)
    for node in checked:
        if node in federators:
            latency = latency_ms.get(node, federators[node].latency_ms)
            federators[node] = replace(federators[node], latency_ms=latency, latest_health_check=now)
    return replace(before, federators=federators)


def _return(before: Topology, one: Federator, rules: Rules, now: datetime, happening: Happening) -> Change:
    """Rule 2."""
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
    """Compares with what was: the new epoch, whose documents changed, who is to be told what.

    What was only reported is not this manager's word: nobody is told, and a later report may still add to it.
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
    """Neighbours of one whose link listens elsewhere now are told to take it up again, there."""
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
            f"The federation has {len(before.federators)} federators, the most that this manager takes; "
            "start another federation, or wait until those who left are forgotten."
        )


def _refuse_conflict(before: Topology, peer: Peer) -> None:
    """Rule 4."""
    same_id, same_key = before.federators.get(peer.id or 0), before.by_key(peer.key)
    if same_id is not None and same_id.key != peer.key:
        raise Conflict(f"Id {peer.id} belongs to the broker {same_id.ip}, not to {peer.ip}; join again for another.")
    if same_key is not None and same_key.id != peer.id:
        raise Conflict(f"The broker {peer.ip} is federator {same_key.id}, not {peer.id}; join again to take that id.")
    if same_id is not None and same_id.state in (State.LEFT, State.REVOKED):
        how = "left" if same_id.state is State.LEFT else "been revoked"
        raise Conflict(f"Federator {peer.id} has {how}; join again.")
