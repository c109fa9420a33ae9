"""Schedules of faults. A schedule is data, drawn from the seed before the run.

| kind | event | restless |
| --- | --- | --- |
| crash | a federator is killed, perhaps during a delivery, and restarted, perhaps without its disk or its clock | |
| core | the present core of a busy group is killed and restarted | |
| leave | a federator stops in good order and is restarted | |
| restart-all | all federators restart at once | yes |
| pause | a federator is suspended for 2KA | yes |
| cut | a link is cut, with a reset or in silence | |
| partition | the overlay falls into halves, thirds or single federators | |
| one-way | one direction of a link loses everything, and nobody is told | |
| flap | a link goes up and down with a period of 0.5A to 2A | yes |
| noise | frames are lost (1 to 30 %), late and repeated; those with only QoS 0 are only late and repeated | yes |
| churn | up to 30 % of the federators stop and restart again and again | yes |
| host | a host broker dies and comes back, while its federator runs on | |

A restless fault keeps changing things, so the bound begins only at its end. Each of the others is one change, and after
the bound everything must work again *while the fault lasts*.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from hanse.sim.disk import Disk
from hanse.sim.federation import WALL_S, Federation
from hanse.sim.links import Noise
from hanse.sim.overlay import Overlay, Pair

RESTLESS = frozenset({"restart-all", "pause", "flap", "noise", "churn"})
KINDS = (
    "crash",
    "leave",
    "restart-all",
    "pause",
    "cut",
    "partition",
    "one-way",
    "flap",
    "noise",
    "churn",
    "host",
    "core",
)
# Weights of the draw. A fault that is frequent in practice is frequent here.
WEIGHTS = (5, 2, 1, 2, 3, 3, 2, 2, 2, 1, 1, 3)
# The core is chosen among those of this many groups, the ones with the most interested brokers.
BUSY_GROUPS = 3
# Minimum number of faults of a run, and of different kinds among them.
FAULTS_MIN = 5
KINDS_MIN = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times are in seconds since the start of the run."""

    kind: str
    at_s: float
    until_s: float
    brokers: tuple[int, ...] = ()
    links: tuple[Pair, ...] = ()
    is_silent: bool = False
    noise: Noise | None = None
    # State after a crash: the epoch on disk, and a correct clock.
    has_disk: bool = True
    has_clock: bool = True
    # Wait until the host broker has a publication from the federator that it has not acknowledged.
    is_amid: bool = False
    period_s: float = 0.0


def schedule(
    overlay: Overlay, random: Random, *, start_s: float, end_s: float, interval_s: float, expiry_factor: int
) -> list[Fault]:
    """Return faults that begin at `start_s` and end by `end_s`, with calm between most of them."""
    while True:
        found: list[Fault] = []
        now = start_s
        while True:
            kind = random.choices(KINDS, WEIGHTS)[0]
            fault = _draw(kind, overlay, random, now, interval_s, expiry_factor)
            if fault.until_s > end_s:
                break
            found.append(fault)
            # One in five begins while the previous one lasts. The others leave time to prove that all is well.
            if random.random() < 0.2:
                now = random.uniform(fault.at_s, fault.until_s)
            else:
                now = fault.until_s + random.uniform(6.0, 16.0) * interval_s
        if len(found) >= FAULTS_MIN and len({fault.kind for fault in found}) >= KINDS_MIN:
            return found


def _draw(kind: str, overlay: Overlay, random: Random, now: float, interval_s: float, factor: int) -> Fault:
    identities, links = overlay.identities, overlay.links
    lasting_s = random.uniform(2.0, 14.0) * interval_s
    one = (random.choice(identities),)
    is_silent = random.random() < 0.5
    match kind:
        case "crash":
            has_disk, has_clock = random.random() < 0.7, random.random() < 0.7
            is_amid = random.random() < 0.5
            return Fault(kind, now, now + lasting_s, one, (), is_silent, None, has_disk, has_clock, is_amid)
        case "core":
            return Fault(kind, now, now + lasting_s, is_silent=is_silent, is_amid=random.random() < 0.5)
        case "leave" | "host":
            return Fault(kind, now, now + lasting_s, one)
        case "restart-all":
            return Fault(kind, now, now + random.uniform(2.5, 4.0) * interval_s, identities)
        case "pause":
            return Fault(kind, now, now + 2 * factor * interval_s, one)
        case "cut":
            return Fault(kind, now, now + lasting_s, links=(random.choice(links),), is_silent=is_silent)
        case "partition":
            cut = _between(overlay, _sides(overlay, random))
            return Fault(kind, now, now + 6.0 * interval_s + lasting_s, links=cut, is_silent=is_silent)
        case "one-way":
            first, second = random.choice(links)
            ends = (first, second) if random.random() < 0.5 else (second, first)
            return Fault(kind, now, now + 6.0 * interval_s + lasting_s, brokers=ends)
        case "flap":
            period_s = random.uniform(0.5, 2.0) * interval_s
            until_s = now + random.uniform(8.0, 16.0) * interval_s
            return Fault(kind, now, until_s, links=(random.choice(links),), period_s=period_s)
        case "noise":
            noise = Noise(random.uniform(0.01, 0.30), random.uniform(0.0, 0.3), random.uniform(0.0, 0.3))
            return Fault(kind, now, now + random.uniform(8.0, 16.0) * interval_s, links=links, noise=noise)
        case _:
            share = random.sample(identities, max(1, len(identities) * 3 // 10))
            return Fault("churn", now, now + random.uniform(15.0, 25.0) * interval_s, tuple(share))


def _sides(overlay: Overlay, random: Random) -> list[set[int]]:
    """Return halves, thirds or single federators.

    Halves and thirds grow from random brokers, so each side is connected.
    """
    count = random.choice((2, 2, 3, len(overlay.identities)))
    if count == len(overlay.identities):
        return [{identity} for identity in overlay.identities]
    sides = [{identity} for identity in random.sample(overlay.identities, count)]
    left = set(overlay.identities).difference(*sides)
    while left:
        for side in sides:
            beside = sorted({other for k in side for other in overlay.neighbours(k)} & left)
            if beside:
                taken = random.choice(beside)
                side.add(taken)
                left.remove(taken)
    return sides


def _between(overlay: Overlay, sides: list[set[int]]) -> tuple[Pair, ...]:
    side_of = {identity: k for k, side in enumerate(sides) for identity in side}
    return tuple(link for link in overlay.links if side_of[link[0]] != side_of[link[1]])


def arm(federation: Federation, fault: Fault) -> None:
    """Schedule the beginning and the end of a fault."""
    engine = federation.engine
    engine.at(fault.at_s, _begin, federation, fault)
    engine.at(fault.until_s, _end, federation, fault)


def _begin(federation: Federation, fault: Fault) -> None:
    if federation.monitor is not None:
        federation.monitor.fault_began(fault.kind, is_restless=fault.kind in RESTLESS)
    _BEGINNINGS[fault.kind](federation, fault)


def _end(federation: Federation, fault: Fault) -> None:
    _ENDS[fault.kind](federation, fault)
    if federation.monitor is not None:
        federation.monitor.fault_ended(fault.kind, is_restless=fault.kind in RESTLESS)


def _start_all(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        _start_again(federation, identity)


def _start_again(federation: Federation, identity: int) -> None:
    federation.nodes[identity].doom = None
    federation.start(identity)


def _leave(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        federation.leave(identity)


def _restart_all(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        federation.stop(identity)
        down_s = federation.random.uniform(0.3, 0.9) * (fault.until_s - fault.at_s)
        federation.engine.after(down_s, federation.start, identity)


def _pause(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        federation.pause(identity)


def _resume(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        federation.resume(identity)


def _close(federation: Federation, fault: Fault) -> None:
    for ends in fault.links:
        federation.close_link(ends, is_silent=fault.is_silent)


def _open(federation: Federation, fault: Fault) -> None:
    for ends in fault.links:
        federation.open_link(ends, is_silent=fault.is_silent)


def _deafen(federation: Federation, fault: Fault) -> None:
    federation.deafen(fault.brokers[0], fault.brokers[1], is_deaf=True)


def _undeafen(federation: Federation, fault: Fault) -> None:
    federation.deafen(fault.brokers[0], fault.brokers[1], is_deaf=False)


def _make_noise(federation: Federation, fault: Fault) -> None:
    for ends in fault.links:
        federation.links[ends].set_noise(fault.noise)


def _end_noise(federation: Federation, fault: Fault) -> None:
    for ends in fault.links:
        federation.links[ends].set_noise(None)


def _begin_churn(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        delay_s = federation.random.uniform(0.0, 5.0) * federation.interval_s
        federation.engine.after(delay_s, _churn, federation, fault, identity)


def _stop_host(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        federation.stop_host(identity)


def _start_host(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        federation.start_host(identity)


def _crash_all(federation: Federation, fault: Fault) -> None:
    for identity in fault.brokers:
        _doom(federation, fault, identity)


def _doom(federation: Federation, fault: Fault, identity: int) -> None:
    """Kill a federator at once, or in the middle of a delivery if the fault says so."""
    if fault.is_amid:
        federation.nodes[identity].doom = partial(_crash, federation, fault, identity)
    else:
        _crash(federation, fault, identity)


def _crash(federation: Federation, fault: Fault, identity: int) -> None:
    """Kill a federator, and remove its disk or its clock if the fault says so. Its next epoch must still be new.

    If the fault ended between the delivery and now, do nothing, because nobody would start the federator again.
    """
    if federation.engine.now >= fault.until_s:
        return
    node = federation.nodes[identity]
    node.doom = None
    federation.stop(identity, is_silent=fault.is_silent)
    if not fault.has_disk:
        if federation.monitor is not None:
            federation.monitor.lost_with_disk(node)
        node.disk = Disk()
    # A clock that lost its battery starts in 1970. The next restart finds it corrected.
    node.clock_s = WALL_S if fault.has_clock else 0


def _kill_core(federation: Federation, fault: Fault) -> None:
    """Kill the core of one of the busiest groups. Only the run knows which federator that is."""
    identity = _busy_core(federation)
    if identity is not None:
        _doom(federation, fault, identity)
        federation.engine.at(fault.until_s, _start_again, federation, identity)


def _busy_core(federation: Federation) -> int | None:
    """Return the core of a group that many brokers are interested in, or None if no group has a running core."""
    interested: Counter[str] = Counter()
    for node in federation.nodes.values():
        interested.update(node.host.interest)
    busy = []
    for topic_filter, _ in sorted(interested.items(), key=lambda item: (-item[1], item[0])):
        group = federation.settings.grouping.group_of(topic_filter)
        cores = [k for k, node in federation.nodes.items() if node.is_running and node.running.core_of(group) == k]
        if cores:
            busy.append(cores[0])
        if len(busy) == BUSY_GROUPS:
            break
    return federation.random.choice(busy) if busy else None


def _begin_flap(federation: Federation, fault: Fault) -> None:
    _flap(federation, fault, 1)


def _flap(federation: Federation, fault: Fault, closing: int) -> None:
    """Close the link or open it, and schedule the next call half a period later."""
    engine = federation.engine
    for ends in fault.links:
        if closing:
            federation.close_link(ends, is_silent=False)
        else:
            federation.open_link(ends, is_silent=False)
    following_s = engine.now + fault.period_s / 2
    if closing:
        # The last opening comes at the end of the fault at the latest, whatever the period.
        engine.at(min(following_s, fault.until_s), _flap, federation, fault, 0)
    elif following_s + fault.period_s / 2 <= fault.until_s:
        engine.at(following_s, _flap, federation, fault, 1)


def _churn(federation: Federation, fault: Fault, identity: int) -> None:
    """Stop one federator, in good order or not, restart it, and repeat this until the fault is over."""
    engine, random = federation.engine, federation.random
    interval_s = federation.interval_s
    if engine.now + 4.0 * interval_s >= fault.until_s:
        return
    if random.random() < 0.5:
        federation.leave(identity)
    else:
        federation.stop(identity, is_silent=random.random() < 0.5)
    back_s = min(engine.now + random.uniform(1.5, 6.0) * interval_s, fault.until_s)
    engine.at(back_s, federation.start, identity)
    engine.at(back_s + random.uniform(1.0, 6.0) * interval_s, _churn, federation, fault, identity)


def _nothing(federation: Federation, fault: Fault) -> None:
    """Do nothing: a flap ends with its own last opening, and a killed core schedules its own restart."""
    del federation, fault


_Act = Callable[[Federation, Fault], None]
_BEGINNINGS: dict[str, _Act] = {
    "crash": _crash_all,
    "leave": _leave,
    "restart-all": _restart_all,
    "pause": _pause,
    "cut": _close,
    "partition": _close,
    "one-way": _deafen,
    "flap": _begin_flap,
    "noise": _make_noise,
    "churn": _begin_churn,
    "host": _stop_host,
    "core": _kill_core,
}
_ENDS: dict[str, _Act] = {
    "crash": _start_all,
    "leave": _start_all,
    "restart-all": _start_all,
    "pause": _resume,
    "cut": _open,
    "partition": _open,
    "one-way": _undeafen,
    "flap": _nothing,
    "noise": _end_noise,
    "churn": _start_all,
    "host": _start_host,
    "core": _nothing,
}
