"""Hosts that retain: federators' keepers of retained state, their host brokers, and all of their faults.

A world has a few brokers, topics and filters, and draws all from its seed. Clients write, delete and change their
subscriptions. Links fail, federators crash or lose their disk, brokers come back with old files, publications of QoS 0
are lost, acknowledgements overtake deliveries, clocks differ. Then the faults end, everybody subscribes, and after a
quiet time the checkers look:

- *converged*: all host brokers with interest in a topic retain the same value, or none does;
- *heard last write wins*: a last write that its federator heard, a second after all others, is the retained one. A
  deletion is judged only while its tombstone is remembered;
- *at rest*: nothing is published at a host broker any more;
- *copies removed*: after interest has ended for good, no copy is left.

The network is any to any, because routes and meshes are not tested here. Publications of QoS 1 wait for an absent
federator, in any order; those of QoS 0 and all messages about retained state are lost.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from hanse.protocol.retained import codec, effects, events
from hanse.protocol.retained.codec import decode_entry
from hanse.protocol.retained.keeper import DUPLICATE, Keeper
from hanse.protocol.retained.messages import Change, Message, Push
from hanse.protocol.retained.settings import RetainedSettings
from hanse.protocol.retained.values import digest_of
from hanse.protocol.retained.versions import Version
from hanse.sim.engine import Engine
from hanse.sim.host import matches
from hanse.sim.packets import retained_packet

WALL_S = 1_700_000_000
TOPICS = ("a/0", "a/1", "b")
FILTERS = ("a/0", "a/+", "a/#", "b", "#")
KINDS = ("interest", "partition", "crash", "lost disk", "restored", "restarted")
WEIGHTS = (18, 8, 7, 2, 2, 1)
# A last write is judged if all others were this much earlier: the differences of the clocks, and the waiting times.
APART_S = 1.5

# A publication on its way: topic, version, packet, and whether a look found it.
_Passed = tuple[str, Version, bytes, bool]
KeeperFactory = Callable[..., Keeper]


@dataclass(frozen=True, slots=True)
class RetainedProfile:
    """Settings that all worlds of a campaign have in common."""

    duration_s: float = 60.0
    writes_per_s: float = 1.2
    has_faults: bool = True
    # PUBACKs overtake deliveries, because the federator's receive window is full.
    has_overtaking: bool = True
    has_disk_loss: bool = True
    # Everybody subscribes at the end; otherwise interest stays as it is.
    all_subscribe: bool = True
    # Every federator watches all topics (`retained_watch`).
    has_watch: bool = False
    skew_s: float = 0.05
    loss: float = 0.15
    # Times that last minutes in the field, shortened to the length of a run.
    settings: RetainedSettings = field(
        default_factory=lambda: RetainedSettings(
            fetch_interval_s=8.0,
            fetch_s=1.0,
            linger_s=3.0,
            recent_s=6.0,
            look_retry_s=0.5,
            look_gap_s=0.02,
            sweep_s=3.0,
        )
    )


@dataclass(slots=True)
class RetainedResult:
    """Counts of one world. `failure` is empty if every promise held."""

    seed: int
    failure: str = ""
    brokers: int = 0
    writes: int = 0
    heard: int = 0
    judged: int = 0
    injected: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    trace_hash: str = ""


@dataclass(slots=True)
class _Write:
    at_s: float
    broker: int
    digest: int
    is_heard: bool = False
    version: Version | None = None


class _Host:
    """One host broker: its retained messages, and the session of its federator."""

    def __init__(self) -> None:
        self.store: dict[str, bytes] = {}
        self.backup: dict[str, bytes] = {}
        self.subscribed: set[str] = set()
        self.interest: set[str] = set()
        # Raised by a restart: messages under way to and from the broker are lost.
        self.generation = 0
        # Deliveries to an absent federator.
        self.queue: list[tuple[str, bytes, _Write]] = []
        self.delivered_until = 0.0
        self.received_until = 0.0
        self.restored_s = -math.inf


class _Node:
    """One broker with its federator."""

    def __init__(self, identity: int, skew_s: float) -> None:
        self.identity = identity
        self.skew_s = skew_s
        self.host = _Host()
        self.disk: dict[bytes, bytes] = {}
        self.keeper: Keeper | None = None
        self.boot = 0
        # Interest of others, as far as this node knows: federator to filters.
        self.others: dict[int, set[str]] = {}
        # Interest that this node has told others; it lingers.
        self.claimed: set[str] = set()
        self.tick_at = math.inf
        self.subscribed: set[str] = set()
        self.lost_disk_s = -math.inf
        # Start of the host broker that the federator knows of; it is on its disk.
        self.known_generation = 0

    def version_of(self, topic: str) -> Version | None:
        """Return the version of the winner on disk."""
        record = self.disk.get(b"t" + topic.encode())
        return decode_entry(record).version if record else None


class RetainedWorld:
    """One run."""

    def __init__(self, seed: int, profile: RetainedProfile, keeper: KeeperFactory = Keeper) -> None:
        self.profile = profile
        self.engine = Engine(seed)
        self.random = self.engine.random
        self.keeper_factory = keeper
        self.cut: Counter[tuple[int, int]] = Counter()
        # Publications for absent federators: (from, to) to publications.
        self.waiting: dict[tuple[int, int], list[_Passed]] = {}
        self.writes: dict[str, list[_Write]] = {topic: [] for topic in TOPICS}
        # When a broker lost the only copy of a topic with its files, or the last memory of its version was lost.
        self.lost_s: dict[str, float] = dict.fromkeys(TOPICS, -math.inf)
        self.counters: Counter[str] = Counter()
        self.last_command_s = 0.0
        count = self.random.choice((3, 4, 5))
        self.nodes = [_Node(k, self.random.uniform(-profile.skew_s, profile.skew_s)) for k in range(count)]
        for node in self.nodes:
            self._boot(node)

    # --- federators ---------------------------------------------------------------------------------------------------

    def _wall_ms(self, node: _Node) -> int:
        return round((WALL_S + self.engine.now + node.skew_s) * 1000)

    def _boot(self, node: _Node) -> None:
        if node.keeper is not None:
            return
        node.boot += 1
        keeper = node.keeper = self.keeper_factory(
            node.identity, self.profile.settings, epoch=round(self.engine.now * 1000) + 1
        )
        keeper.restore(sorted(node.disk.items()))
        keeper.start(self.engine.now, self._wall_ms(node))
        node.tick_at = math.inf
        self._carry_out(node, keeper)
        if node.known_generation != node.host.generation:
            node.known_generation = node.host.generation
            self._step(node, events.HostRestarted())
        for filter_ in sorted(node.host.subscribed):
            self._step(node, events.Granted(filter_))
        queue, node.host.queue = node.host.queue, []
        for topic, packet, write in queue:
            self._hear(node, topic, packet, write, has_waited=True)
        self._step(node, events.HostUp())
        # A former process may have told others of interest that has ended by now.
        for filter_ in sorted(node.claimed - node.host.interest):
            self._claim(node, filter_, is_on=False)
        self._step(node, events.Wanted(tuple(sorted(node.host.interest))))
        self._follow_others(node)
        self._deliver_waiting(node.identity)

    def _crash(self, node: _Node, *, is_disk_lost: bool = False) -> None:
        if node.keeper is None:
            return
        self.counters.update(node.keeper.counters)
        node.keeper = None
        if is_disk_lost:
            self._forget(node)
        self.engine.after(self.random.uniform(0.3, 3.0), self._boot, node)

    def _forget(self, node: _Node) -> None:
        """Lose the disk of a federator. Topics that only it knew are excused."""
        for topic in TOPICS:
            known = {other.identity: other.version_of(topic) for other in self.nodes}
            mine = known.pop(node.identity)
            if mine is not None and not any(version is not None and version >= mine for version in known.values()):
                self.lost_s[topic] = self.engine.now
        node.disk = {}
        node.lost_disk_s = self.engine.now

    def _step(self, node: _Node, event: events.Event) -> None:
        keeper = node.keeper
        if keeper is not None:
            keeper.step(self.engine.now, self._wall_ms(node), event)
            self._carry_out(node, keeper)

    def _tick(self, node: _Node, at_s: float) -> None:
        if node.keeper is None or at_s != node.tick_at:
            return
        node.tick_at = math.inf
        self._step(node, events.Tick())

    def _carry_out(self, node: _Node, keeper: Keeper) -> None:
        for effect in keeper.take_effects():
            match effect:
                case effects.Keep(records):
                    for key, value in records:
                        if value:
                            node.disk[key] = value
                        else:
                            node.disk.pop(key, None)
                case effects.Inject(number, topic, packet):
                    assert keeper.book.get(topic) is not None or b"t" + topic.encode() not in node.disk
                    self._command(node, self._host_publish, topic, packet, number)
                case effects.Look(number, filters):
                    self._command(node, self._host_look, number, filters, delay_s=self.random.uniform(0.002, 0.1))
                case effects.Spread(topic, packet, stamp):
                    self._spread(node, topic, Version(stamp, node.identity), packet, is_found=True)
                case effects.Tell(receiver, message):
                    for other in self.nodes:
                        if other is not node and receiver in (effects.EVERYBODY, other.identity):
                            self._tell(node, other, message)
                case effects.Release(filter_):
                    self._claim(node, filter_, is_on=False)
                case _:
                    assert_never(effect)
        if node.keeper is keeper and keeper.deadline < node.tick_at:
            node.tick_at = max(self.engine.now, keeper.deadline)
            self.engine.at(node.tick_at, self._tick, node, node.tick_at)

    # --- the host broker ----------------------------------------------------------------------------------------------

    def _command(self, node: _Node, handler: Callable[..., None], *arguments: object, delay_s: float = 0.0) -> None:
        """Send a command of the federator to its broker, in order. It is lost if either ends."""
        at_s = max(node.host.received_until + 1e-6, self.engine.now + self.random.uniform(0.001, 0.05) + delay_s)
        if not delay_s:
            node.host.received_until = at_s
        self.engine.at(at_s, self._if_same, node, node.boot, node.host.generation, handler, arguments)

    def _if_same(
        self, node: _Node, boot: int, generation: int, handler: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        if node.boot == boot and node.keeper is not None and node.host.generation == generation:
            handler(node, *arguments)

    def _reply(self, node: _Node, event: events.Event, delay_s: float) -> None:
        self.engine.after(delay_s, self._if_same, node, node.boot, node.host.generation, self._step, (event,))

    def _host_publish(self, node: _Node, topic: str, packet: bytes, number: int | None) -> None:
        if packet[0] & 1:
            if digest_of(packet):
                node.host.store[topic] = packet
            else:
                node.host.store.pop(topic, None)
            self.last_command_s = self.engine.now
            self.counters["injected"] += 1
        if number is None:
            return
        if self.profile.has_overtaking:
            self._reply(node, events.Injected((number,)), self.random.uniform(0.001, 0.02))
        else:
            self._deliver(node, lambda: self._step(node, events.Injected((number,))))

    def _host_look(self, node: _Node, number: int, filters: tuple[str, ...]) -> None:
        if self.profile.has_faults and self.random.random() < 0.02:
            self._reply(node, events.LookFailed(number), 0.05)
            return
        found = {
            topic: packet
            for topic, packet in node.host.store.items()
            if any(matches(filter_, topic) for filter_ in filters)
        }
        self._reply(node, events.Looked(number, found), self.random.uniform(0.002, 0.15))

    def _host_subscribe(self, node: _Node, filter_: str, is_on: bool) -> None:
        if is_on:
            node.host.subscribed.add(filter_)
            self._deliver(node, lambda: self._step(node, events.Granted(filter_)))
        else:
            node.host.subscribed.discard(filter_)
            self._deliver(node, lambda: self._step(node, events.Ended(filter_)))

    def _deliver(self, node: _Node, act: Callable[[], None], *, is_slow: bool = False) -> None:
        """Send a message of the broker to its federator, in order."""
        host = node.host
        if is_slow and self.profile.has_overtaking and self.random.random() < 0.3:
            # The federator's receive window is full.
            host.delivered_until = max(host.delivered_until, self.engine.now + self.random.uniform(0.1, 1.0))
        at_s = max(host.delivered_until + 1e-6, self.engine.now + self.random.uniform(0.001, 0.05))
        host.delivered_until = at_s
        self.engine.at(at_s, self._if_same_host, node, host.generation, act)

    def _if_same_host(self, node: _Node, generation: int, act: Callable[[], None]) -> None:
        if node.host.generation == generation:
            act()

    def _write(self, node: _Node, topic: str, packet: bytes) -> None:
        """Write or delete a topic as a client at its broker."""
        host = node.host
        digest = digest_of(packet)
        if digest:
            host.store[topic] = packet
        else:
            host.store.pop(topic, None)
        write = _Write(self.engine.now, node.identity, digest)
        self.writes[topic].append(write)
        self.engine.note(1, node.identity, digest)
        if any(matches(filter_, topic) for filter_ in host.subscribed):
            self._deliver(node, lambda: self._hand_over(node, topic, packet, write), is_slow=True)

    def _hand_over(self, node: _Node, topic: str, packet: bytes, write: _Write) -> None:
        if node.keeper is None:
            node.host.queue.append((topic, packet, write))
        else:
            self._hear(node, topic, packet, write, has_waited=False)

    def _hear(self, node: _Node, topic: str, packet: bytes, write: _Write, *, has_waited: bool) -> None:
        keeper = node.keeper
        assert keeper is not None
        write.is_heard = True
        since_ms = None
        if has_waited:  # the tick before it
            since_ms = round((WALL_S + math.floor(write.at_s) + node.skew_s) * 1000)
        stamp = keeper.heard(self.engine.now, self._wall_ms(node), [(0, topic, packet)], 1, since_ms)
        self._carry_out(node, keeper)
        write.version = Version(stamp, node.identity)
        self._spread(node, topic, write.version, packet)

    # --- the network --------------------------------------------------------------------------------------------------

    def _is_cut(self, one: int, other: int) -> bool:
        return self.cut[min(one, other), max(one, other)] > 0

    def _spread(self, node: _Node, topic: str, version: Version, packet: bytes, *, is_found: bool = False) -> None:
        """Send a publication to everybody who wants it, as far as this node knows."""
        for other in self.nodes:
            if other is node or not any(matches(filter_, topic) for filter_ in node.others.get(other.identity, ())):
                continue
            is_kept = self.random.random() >= self.profile.loss
            delay_s = self.random.uniform(0.005, 0.3)
            self.engine.after(delay_s, self._pass, node.identity, other, (topic, version, packet, is_found), is_kept)

    def _pass(self, sender: int, node: _Node, publication: _Passed, is_kept: bool) -> None:
        if self._is_cut(sender, node.identity) or node.keeper is None:
            if is_kept:
                self.waiting.setdefault((sender, node.identity), []).append(publication)
            return
        topic, version, packet, is_found = publication
        keeper = node.keeper
        if is_found:
            value = packet if digest_of(packet) else b""
            self._step(node, events.Received(version.federator, Push((Change(topic, version, value),))))
            return
        number = keeper.arrive(self.engine.now, self._wall_ms(node), topic, version, packet)
        self._carry_out(node, keeper)
        if number == DUPLICATE:
            return
        first = packet[0] | 1 if number is not None else packet[0] & 0xFE
        self._command(node, self._host_publish, topic, bytes((first,)) + packet[1:], number)

    def _deliver_waiting(self, identity: int) -> None:
        for (sender, receiver), publications in sorted(self.waiting.items()):
            node = self.nodes[receiver]
            if identity in (sender, receiver) and node.keeper is not None and not self._is_cut(sender, receiver):
                del self.waiting[sender, receiver]
                for publication in publications:
                    delay_s = self.random.uniform(0.01, 0.3)
                    self.engine.after(delay_s, self._pass, sender, node, publication, True)

    def _tell(self, node: _Node, other: _Node, message: Message) -> None:
        body = codec.encode(message)
        delay_s = self.random.uniform(0.005, 0.3)
        self.engine.after(delay_s, self._hear_message, node.identity, other, body)

    def _hear_message(self, sender: int, node: _Node, body: bytes) -> None:
        if node.keeper is not None and not self._is_cut(sender, node.identity):
            self._step(node, events.Received(sender, codec.decode(body)))

    def _claim(self, node: _Node, filter_: str, *, is_on: bool) -> None:
        """Announce interest to the others, sooner or later."""
        if is_on == (filter_ in node.claimed):
            return
        (node.claimed.add if is_on else node.claimed.discard)(filter_)
        for other in self.nodes:
            if other is not node:
                self.engine.after(self.random.uniform(0.005, 0.3), self._learn, node, other)

    def _learn(self, node: _Node, other: _Node) -> None:
        if self._is_cut(node.identity, other.identity):
            self.engine.after(0.5, self._learn, node, other)
            return
        other.others[node.identity] = set(node.claimed)
        self._follow_others(other)

    def _follow_others(self, node: _Node) -> None:
        """Subscribe at the host broker to the filters that others want."""
        if node.keeper is None:
            return
        wanted = {filter_ for filters in node.others.values() for filter_ in filters}
        if self.profile.has_watch:
            wanted.add("#")
        for filter_ in sorted(wanted - node.subscribed):
            self._command(node, self._host_subscribe, filter_, True)
        for filter_ in sorted(node.subscribed - wanted):
            self._command(node, self._host_subscribe, filter_, False)
        node.subscribed = wanted

    # --- clients and faults -------------------------------------------------------------------------------------------

    def _set_interest(self, node: _Node, filter_: str, *, is_on: bool) -> None:
        if is_on == (filter_ in node.host.interest):
            return
        (node.host.interest.add if is_on else node.host.interest.discard)(filter_)
        if node.keeper is None:
            return  # it learns of it when it starts
        if is_on:
            self._claim(node, filter_, is_on=True)
            self._step(node, events.Wanted((filter_,)))
        else:
            self._step(node, events.Unwanted(filter_))

    def _part(self, links: list[tuple[int, int]]) -> None:
        self.cut.update(links)
        for link in links:
            self.engine.after(self.random.uniform(1.0, 8.0), self._heal, link)

    def _heal(self, link: tuple[int, int]) -> None:
        self.cut[link] -= 1
        if self.cut[link] > 0:
            return
        for one, other in (link, link[::-1]):
            self._deliver_waiting(one)
            self._step(self.nodes[one], events.LinkRestored(other))

    def _restart_host(self, node: _Node, *, is_restored: bool) -> None:
        """Restart the broker, perhaps with older files, and without its sessions."""
        host = node.host
        if is_restored:
            for topic in TOPICS:
                held = host.store.get(topic)
                if held != host.backup.get(topic) and not any(
                    other.host.store.get(topic) == held for other in self.nodes if other is not node
                ):
                    self.lost_s[topic] = self.engine.now
            host.store = dict(host.backup)
            host.restored_s = self.engine.now
        host.generation += 1
        host.subscribed.clear()
        host.queue.clear()
        host.delivered_until = host.received_until = self.engine.now
        node.subscribed = set()
        self.counters["restored" if is_restored else "restarted"] += 1
        self.engine.after(0.1, self._reconnect, node, host.generation)

    def _reconnect(self, node: _Node, generation: int) -> None:
        if node.host.generation != generation or node.known_generation == generation or node.keeper is None:
            return
        node.known_generation = generation
        self._step(node, events.HostUp(is_up=False))
        # Writes under way are lost with the session, and the client hands them in again.
        keeper = node.keeper
        self._step(node, events.SessionLost(self._wall_ms(node)))
        self._step(node, events.HostRestarted())
        self._step(node, events.Injected(keeper.injections_under_way()))
        self._step(node, events.HostUp())
        self._follow_others(node)

    def _fault(self, kind: str) -> None:
        random = self.random
        node = random.choice(self.nodes)
        self.engine.note(2, KINDS.index(kind), node.identity)
        match kind:
            case "interest":
                self._set_interest(node, random.choice(FILTERS), is_on=random.random() < 0.5)
            case "partition":
                pairs = [(a, b) for a in range(len(self.nodes)) for b in range(a + 1, len(self.nodes))]
                if random.random() < 0.6:
                    self._part([link for link in pairs if node.identity in link])
                else:
                    self._part([random.choice(pairs)])
            case "crash":
                self._crash(node)
            case "lost disk":
                self._crash(node, is_disk_lost=self.profile.has_disk_loss)
            case "restored":
                if random.random() < 0.5:
                    node.host.backup = dict(node.host.store)
                else:
                    self._restart_host(node, is_restored=True)
            case _:
                self._restart_host(node, is_restored=False)

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end."""
        random, engine, profile = self.random, self.engine, self.profile
        for node in self.nodes:
            if random.random() < 0.3:
                engine.after(0.01, self._write, node, TOPICS[0], retained_packet(TOPICS[0], f"before {node.identity}"))
            if random.random() < 0.5:
                engine.after(random.uniform(0.02, 1.0), self._begin_interest, node, random.choice(FILTERS))
            if profile.has_watch:
                self._follow_others(node)
        at_s, number = 0.1, 0
        while at_s < profile.duration_s:
            at_s += random.expovariate(profile.writes_per_s)
            number += 1
            if random.random() < 0.6:
                topic = random.choice(TOPICS)
                text = f"w{number}" if random.random() < 0.75 else ""
                engine.at(at_s, self._write, random.choice(self.nodes), topic, retained_packet(topic, text))
            elif profile.has_faults:
                engine.at(at_s, self._fault, random.choices(KINDS, WEIGHTS)[0])
        engine.run_until(profile.duration_s + 10.0)
        for link in list(self.cut):
            while self.cut[link] > 0:
                self._heal(link)
        for node in self.nodes:
            self._boot(node)
        engine.run_until(profile.duration_s + 24.0)
        if profile.all_subscribe:
            for node in self.nodes:
                self._set_interest(node, "#", is_on=True)
        engine.run_until(profile.duration_s + 60.0)

    def _begin_interest(self, node: _Node, filter_: str) -> None:
        self._set_interest(node, filter_, is_on=True)

    # --- the checkers -------------------------------------------------------------------------------------------------

    def why_not(self) -> str:
        """Return the promise that was broken; empty if none."""
        for topic in TOPICS:
            wanting = [node for node in self.nodes if any(matches(filter_, topic) for filter_ in node.host.interest)]
            held = {node.identity: digest_of(node.host.store.get(topic, b"")) for node in wanting}
            if len(set(held.values())) > 1:
                return f"not converged: {topic} is {held}"
            last = self._judged(topic)
            if last is not None and wanting:
                self.counters["judged"] += 1
                if set(held.values()) != {last.digest}:
                    what = "write lost" if last.digest else "deletion undone"
                    return f"last heard {what}: {topic} is {held}, expected {last.digest:x}"
        if self.last_command_s > self.profile.duration_s + 50.0:
            return f"restless: a value was injected at {self.last_command_s:.1f} s"
        return self._copy_left()

    def _judged(self, topic: str) -> _Write | None:
        """Return the last write if its federator heard it well apart from everything that could excuse its loss."""
        writes = self.writes[topic]
        if not writes or not writes[-1].is_heard:
            return None
        last = writes[-1]
        if len(writes) > 1 and last.at_s - writes[-2].at_s <= APART_S:
            return None
        if self.lost_s[topic] >= last.at_s - 1.0:
            return None
        if self.nodes[last.broker].lost_disk_s > last.at_s and last.version is not None:
            # Copies remember its version, until interest in them has ended everywhere.
            known = [version for node in self.nodes if (version := node.version_of(topic)) is not None]
            if not known or max(known) < last.version:
                return None
        if not last.digest and self.engine.now - last.at_s > self.profile.settings.tombstone_s:
            return None
        if any(last.at_s - 3.0 < node.host.restored_s < last.at_s + 1.0 for node in self.nodes):
            return None
        return last

    def _copy_left(self) -> str:
        for node in self.nodes:
            if node.lost_disk_s > -math.inf:
                continue  # it cannot know any more what is a copy
            for topic, packet in sorted(node.host.store.items()):
                if any(matches(filter_, topic) for filter_ in node.claimed | node.host.interest):
                    continue
                digest = digest_of(packet)
                if not any(write.broker == node.identity and write.digest == digest for write in self.writes[topic]):
                    return f"copy left: {topic} at broker {node.identity}"
        return ""


def run_world(seed: int, profile: RetainedProfile | None = None, *, keeper: KeeperFactory = Keeper) -> RetainedResult:
    """Run one world to its end, and judge it."""
    world = RetainedWorld(seed, profile or RetainedProfile(), keeper)
    world.run()
    failure = world.why_not()
    for node in world.nodes:
        assert node.keeper is not None
        world.counters.update(node.keeper.counters)
    writes = [write for found in world.writes.values() for write in found]
    return RetainedResult(
        seed,
        failure,
        len(world.nodes),
        len(writes),
        sum(write.is_heard for write in writes),
        world.counters["judged"],
        world.counters["injected"],
        dict(sorted(world.counters.items())),
        world.engine.trace_hash(),
    )
