"""Neighbours that this federator should have: the manager's last instruction, and the action without one. Pure.

Rules:

1. A reply, announcement or map with a smaller epoch than one already applied is from an older leader, and is ignored.
2. The manager's neighbours are wanted until it says otherwise, whether they answer or not.
3. If no manager answers, and a neighbour has been unreachable for as long as an announcement takes to expire, this
   federator links to the peers that `relinking` names: *own* links. An own link outlives its reason for a while, so
   that a neighbour that flaps does not make its replacement flap.
4. When the manager answers again, it first gets a report of the own links. Those that its reply does not name are then
   removed.
5. A link from a neighbour is accepted. A link from another federator is accepted only if the map knows it as up, and
   either no manager answers or the map is fresh. Such *guests* are reported to the manager, and are also subject to
   rule
4. A federator that the manager removed is no guest before a newer map names it again, so the neighbours of a revoked
   federator keep its links closed.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hanse.federator.relinking import partners
from hanse.federator.words import Announcement, OverlayMap, Peer, Word

OWN_LINKS_MAX = 8  # more dead parts than this around one federator are a catastrophe beyond links
GUESTS_MAX = 8
FRESH_S = 10.0  # of a map: a longer time admits a revoked federator for longer, a shorter one needs more requests
HOLD_S = 10.0  # time by which an own link outlives its reason
FIRST_TIME_FACTOR = 5  # a neighbour that was never reached may be starting: multiple of the expiry
BELIEVED_DEAD_S = 60.0  # time for which a peer that is no longer dialled counts as dead


@dataclass(slots=True)
class _Contact:
    """State of the link to one federator."""

    is_up: bool = False
    since_s: float = 0.0  # time of the last change of `is_up`, or of the first wish
    was_up: bool = False


class Roster:
    """Neighbours of one federator, by the manager's instruction or its own decision.

    Args:
        expiry_s: time for which a neighbour may be unreachable before it counts as lost.
    """

    def __init__(self, identity: int, expiry_s: float) -> None:
        self.identity = identity
        self.epoch = 0
        self.changed_epoch = 0
        self.neighbours: dict[int, Peer] = {}
        self.map = OverlayMap()
        self.is_away = False
        self.own: dict[int, Peer] = {}
        self.guests: dict[int, Peer] = {}
        self.stale = 0
        self._expiry_s = expiry_s
        self._map_s = float("-inf")
        self._contacts: dict[int, _Contact] = {}
        self._dead_until_s: dict[int, float] = {}
        self._held_until_s: dict[int, float] = {}
        self._taken_away: set[int] = set()

    # --- input from the manager ---------------------------------------------------------------------------------------

    def take(self, now: float, word: Word | Announcement, reported: Collection[int] = ()) -> bool:
        """Apply the manager's instruction; `reported` are the links that it knew of. Return False for a stale one."""
        if word.epoch < self.epoch:
            self.stale += 1
            return False
        changed = word.changed_epoch if isinstance(word, Word) else word.epoch
        self.epoch, self.changed_epoch = word.epoch, max(self.changed_epoch, changed)
        named = {peer.id: peer for peer in word.neighbours if peer.id != self.identity}
        self._taken_away |= self.neighbours.keys() - named.keys()
        self._taken_away -= named.keys()
        fresh = named.keys() - self.neighbours.keys()
        self.neighbours = named
        for mine in (self.own, self.guests):
            for identity in [one for one in mine if one in named or one in reported]:
                del mine[identity]
                self._held_until_s.pop(identity, None)
        for identity in fresh:
            self._watch(now, identity)
        return True

    def take_map(self, now: float, overlay: OverlayMap) -> bool:
        """Apply the manager's map; return False for a stale one."""
        if overlay.epoch < self.map.epoch:
            self.stale += 1
            return False
        if overlay.epoch >= self.epoch:
            self._taken_away -= overlay.peers.keys()
        self.map, self._map_s = overlay, now
        return True

    def lose_manager(self) -> None:
        """Note that no manager answers."""
        self.is_away = True

    def find_manager(self) -> None:
        """Note that a manager answers and knows all links."""
        self.is_away = False

    # --- input from links ---------------------------------------------------------------------------------------------

    def link_up(self, now: float, identity: int) -> None:
        """Note that a link is up."""
        self._contacts[identity] = _Contact(is_up=True, since_s=now, was_up=True)
        self._dead_until_s.pop(identity, None)
        if identity not in self.neighbours and identity not in self.own and identity in self.map.peers:
            self.guests[identity] = self.map.peers[identity]

    def link_down(self, now: float, identity: int) -> None:
        """Note that a link is lost."""
        self._contacts[identity] = _Contact(is_up=False, since_s=now, was_up=True)
        self.guests.pop(identity, None)

    def admit(self, now: float, identity: int) -> str | None:
        """Apply rule 5: return why a federator that dials is refused; None to accept it."""
        if identity in self.neighbours or identity in self.own or identity in self.guests:
            return None
        stranger = f"federator {identity} is not among the neighbours of {self.identity}"
        if identity in self._taken_away or identity not in self.map.peers:
            return stranger
        if not self.is_away and not self.is_map_fresh(now):
            return f"{stranger}, and the map that may know it is being fetched"
        if len(self.guests) >= GUESTS_MAX:
            return f"{stranger}, and {GUESTS_MAX} such are linked already"
        return None

    def invite(self, identity: int) -> bool:
        """Make a known peer a guest before its link is up; return False if it is linked already, or unknown."""
        if identity in self.neighbours or identity in self.own or identity in self.guests:
            return False
        if identity not in self.map.peers:
            return False
        self.guests[identity] = self.map.peers[identity]
        return True

    def is_map_fresh(self, now: float) -> bool:
        """Return whether the map shows the present state."""
        return now - self._map_s <= FRESH_S

    # --- results ------------------------------------------------------------------------------------------------------

    def wanted(self, now: float) -> dict[int, Peer]:
        """Return the federators to link to and to dial: the manager's neighbours and own links (rules 2 and 3)."""
        if self.is_away:
            self._relink(now)
        return {**self.own, **self.neighbours}

    def linked(self) -> list[Peer]:
        """Return the neighbours whose link is up, including own links and guests, for the report to the manager."""
        known = {**self.guests, **self.own, **self.neighbours}
        return [known[one] for one in sorted(known) if (c := self._contacts.get(one)) is not None and c.is_up]

    def lost(self, now: float) -> list[int]:
        """Return the manager's neighbours that have been unreachable for too long."""
        return sorted(identity for identity in self.neighbours if self._is_lost(now, identity))

    def nearest(self, count_max: int) -> OverlayMap:
        """Return the part of the map that is worth keeping: the nearest peers by links, up to a number."""
        around: dict[int, list[int]] = {}
        for a, b in sorted(self.map.links):
            around.setdefault(a, []).append(b)
            around.setdefault(b, []).append(a)
        order = [self.identity, *self.neighbours]
        seen = set(order)
        for one in order:  # grows on the way
            if len(order) > count_max:
                break
            fresh = [other for other in around.get(one, ()) if other not in seen]
            seen.update(fresh)
            order += fresh
        kept = set(order[: count_max + 1])
        peers = {one: peer for one, peer in self.map.peers.items() if one in kept}
        links = frozenset(link for link in self.map.links if kept.issuperset(link))
        return OverlayMap(self.map.epoch, peers, links)

    def _relink(self, now: float) -> None:
        """Apply rule 3."""
        dead = {identity for identity in (*self.neighbours, *self.own) if self._is_lost(now, identity)}
        for identity in dead - self.neighbours.keys():
            # Not dialled from here on: dead for a time, then tried again if it is still useful.
            self._dead_until_s[identity] = now + BELIEVED_DEAD_S
        self._dead_until_s = {one: until_s for one, until_s in self._dead_until_s.items() if until_s > now}
        dead |= self._dead_until_s.keys()
        named = partners(self.identity, self._links(), dead)
        needed = [one for one in named if one in self.map.peers and one not in self.neighbours][:OWN_LINKS_MAX]
        for identity in needed:
            self._held_until_s[identity] = now + HOLD_S
            if identity not in self.own:
                self.guests.pop(identity, None)
                self.own[identity] = self.map.peers[identity]
                self._watch(now, identity)
        for identity in [one for one in self.own if one in dead or self._held_until_s.get(one, now) <= now]:
            del self.own[identity]
            self._held_until_s.pop(identity, None)

    def _links(self) -> Iterable[tuple[int, int]]:
        """Return the map's links, with the own ones from the instruction, which may be newer."""
        mine = self.identity
        return [
            *(link for link in self.map.links if mine not in link),
            *((min(mine, one), max(mine, one)) for one in self.neighbours),
        ]

    def _watch(self, now: float, identity: int) -> None:
        """Restart the wait for a neighbour that was removed and added again, or that is now an own link."""
        known = self._contacts.get(identity)
        if known is None or not known.is_up:
            self._contacts[identity] = _Contact(since_s=now)

    def _is_lost(self, now: float, identity: int) -> bool:
        contact = self._contacts.get(identity)
        if contact is None or contact.is_up:
            return False
        is_known = contact.was_up or identity in self.own
        return now - contact.since_s >= self._expiry_s * (1 if is_known else FIRST_TIME_FACTOR)
