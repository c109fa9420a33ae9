"""The broker that a redirected client is sent to, as a pure function that gives its reasons.

Rules:

1. Only a broker that takes clients, and has an address that the client can use, is a candidate.
2. A subscriber goes to a broker that has its topics: the core or a member of the mesh of each filter's group, or, among
   brokers without federators, the home of the matching topics. The more of its filters, the better.
3. A publisher goes to a broker within two hops of the core of its topic's group (the paper's two-hop rule), or to the
   home of its topic. All brokers within two hops are equal, so that the publisher may stay near.
4. These criteria follow: the round trip in EMMA's groups; a broker that reports little memory or battery comes behind
   one that does not; the reported load in tenths; free memory and battery in tenths; the clients sent there recently;
   the hash.
5. A client that has come back from a broker is sent there again only if no other broker has its topics.
6. A topic that has moved for good goes to the broker that the operator named, whatever else is known.
7. The members of a share group all go to one broker, the first of the hash of the share name and filter, so that it
   delivers each message once.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from hanse.gateway.discovery.topics import Presence
from hanse.gateway.placement import BrokerView, Entry, Ranking, latency_group, score
from hanse.gateway.redirect.groups import CORE, MEMBER, Standing
from hanse.protocol.topics import SHARE_PREFIX

TOPIC: Final = "topic"
HOPS_MAX: Final = 2
# Below these a broker is spared: a tenth of its memory, a fifth of its battery.
MEMORY_LOW: Final = 0.1
BATTERY_LOW: Final = 0.2


class Vitals(NamedTuple):
    """A broker's report about itself; None for each value that it does not report.

    Attributes:
        load: 0 idle to 1 saturated.
        memory_free: 0 to 1.
        battery: 0 empty to 1 full.
    """

    load: float | None = None
    memory_free: float | None = None
    battery: float | None = None

    @property
    def is_low(self) -> bool:
        """Return whether the broker should be spared."""
        memory, battery = self.memory_free, self.battery
        return (memory is not None and memory < MEMORY_LOW) or (battery is not None and battery < BATTERY_LOW)


class Place:
    """A broker, and its properties for one client.

    Attributes:
        view: from the directory.
        reference: the address for the client.
        obstacle: why there is no address for the client; empty if there is one.
        standings: per filter, the federator's relation to the filter's group; None if it knows no such group.
        presences: per filter, the broker's topics that discovery has seen; None if there are none.
        vitals: what it reports.
        sent: clients that were sent there recently.
    """

    __slots__ = ("obstacle", "presences", "reference", "sent", "standings", "view", "vitals")

    def __init__(
        self,
        view: BrokerView,
        reference: str,
        obstacle: str = "",
        *,
        standings: Sequence[Standing | None] = (),
        presences: Sequence[Presence | None] = (),
        vitals: Vitals = Vitals(),  # noqa: B008 - immutable
        sent: int = 0,
    ) -> None:
        self.view = view
        self.reference = reference
        self.obstacle = view.obstacle or obstacle
        self.standings = standings
        self.presences = presences
        self.vitals = vitals
        self.sent = sent


class Wish(NamedTuple):
    """Request of a client.

    Attributes:
        key: the bytes to hash.
        filters: filters of its SUBSCRIBE, or the topic of its PUBLISH.
        is_publisher: the request was a PUBLISH.
        came_from: id of the broker that it was sent to before and has come back from.
        moved_to: id of the broker that its topics have moved to for good.
    """

    key: bytes
    filters: tuple[str, ...]
    is_publisher: bool = False
    came_from: str = ""
    moved_to: str = ""


def rank(wish: Wish, places: Sequence[Place]) -> Ranking:
    """Rank the brokers for a client's topics."""
    good: list[tuple[tuple[object, ...], Entry]] = []
    bad: list[tuple[int, Entry]] = []
    shares = [one for one in wish.filters if one.startswith(SHARE_PREFIX)]
    share = shares[0].encode() if shares else b""
    for place in places:
        broker = place.view.broker
        by_hash = score(broker.key, share or wish.key)
        if place.obstacle:
            bad.append((-by_hash, Entry(broker, by_hash, False, place.obstacle)))
            continue
        order, reasons = _judge(wish, place, share, by_hash)
        good.append(((*order, -by_hash, broker.id), Entry(broker, by_hash, True, "; ".join(reasons))))
    good.sort(key=_first)
    bad.sort(key=_second)
    why = "two hops from the core of the topic's group" if wish.is_publisher else "where the client's topics are"
    return Ranking(TOPIC, why, [entry for _, entry in good] + [entry for _, entry in bad])


def _first(row: tuple[tuple[object, ...], Entry]) -> tuple[object, ...]:
    return row[0]


def _second(row: tuple[int, Entry]) -> int:
    return row[0]


def _judge(wish: Wish, place: Place, share: bytes, by_hash: int) -> tuple[tuple[object, ...], list[str]]:
    """Return the sort key of a broker, the best first, and the reasons in words."""
    broker_id = place.view.broker.id
    reasons: list[str] = []
    is_named = bool(wish.moved_to) and broker_id == wish.moved_to
    if is_named:
        reasons.append("the topics have moved here for good")
    if share:
        reasons.append("by the hash of the share group")
    has, said = _publisher(place) if wish.is_publisher else _subscriber(place)
    came_back = bool(wish.came_from) and broker_id == wish.came_from
    if came_back:
        reasons.append("the client has come back from here")
    reasons += said
    group = latency_group(place.view.rtt_ms)
    rtt = "round trip not measured" if place.view.rtt_ms is None else f"round trip {place.view.rtt_ms:.2f} ms"
    reasons.append(f"{rtt} (group {group + 1})")
    vitals = place.vitals
    for name, value in zip(("load", "free memory", "battery"), vitals, strict=True):
        if value is not None:
            reasons.append(f"{name} {value:.0%}")
    if vitals.is_low:
        reasons.append("spared: little memory or battery")
    reasons.append(f"{place.sent} clients sent recently")
    if came_back:
        # Rule 5: behind others that have the topics, and in front of those that do not.
        has = -0.5 if has < 0 else has + 0.5
    order = (
        not is_named,
        -by_hash if share else 0,
        has,
        group,
        vitals.is_low,
        _tenth(vitals.load),
        -_tenth(vitals.memory_free, missing=10),
        -_tenth(vitals.battery, missing=10),
        place.sent,
    )
    return order, reasons


def _tenth(value: float | None, missing: int = 0) -> int:
    return missing if value is None else int(value * 10)


def _subscriber(place: Place) -> tuple[float, list[str]]:
    """Return a number that is smaller the more of a subscriber's topics a broker has, and the reasons (rule 2)."""
    matched = 0
    reasons: list[str] = []
    for standing in place.standings:
        if standing is not None and standing.role in (CORE, MEMBER):
            matched += 1
            of = "core of the group" if standing.role == CORE else "in the mesh of the group"
            reasons.append(f"{of} {standing.group}")
    for standing, presence in zip_longest(place.standings, place.presences):
        in_mesh = standing is not None and standing.role in (CORE, MEMBER)
        if presence is not None and presence.topics and not in_mesh:
            matched += 1 if presence.homes else 0
            reasons.append(f"home of {presence.homes} of {presence.topics} topics seen there")
    if not reasons:
        reasons.append("none of the topics is known to be here")
    return -matched, reasons


def _publisher(place: Place) -> tuple[float, list[str]]:
    """Return how far a broker is from a publisher's topic, beyond two hops, and the reasons (rule 3)."""
    known = [standing for standing in place.standings if standing is not None and standing.hops is not None]
    if known:
        hops = max(standing.hops or 0 for standing in known)
        return max(0, hops - HOPS_MAX), [f"{hops} hops from the core of {known[0].group}"]
    homes = sum(1 for presence in place.presences if presence is not None and presence.homes)
    if homes:
        return -homes, ["home of the topic"]
    return 0, ["the topic's group is not known"]
