"""Checks of a simulated federation: after every step, and once the bound after a fault has passed.

After every step of a machine, about that machine only:
- Its parents are neighbours that it has a link to. There are at most `redundancy` of them. Each is one hop nearer to
  the core, by the distance that the parent announced last. A loop of parents lasts an interval at most.
- It never gives up a group that has members and no other core.
- It sends nothing back to the neighbour that it came from. Hop counts stay within the limit.
- Deliveries are a subset of publications, unchanged, and each is made once per run of a federator. An id always means
  the same message.

Once per simulated A, about all federators: when the bound after the last fault has passed, the federation has converged
(`convergence`), and each publication since then has reached every entitled subscriber.

A broken rule raises `InvariantError` at once. The run stops while the trace still shows the cause.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from hanse.errors import HanseError, LocalError
from hanse.protocol.effects import Emit
from hanse.protocol.events import Event
from hanse.protocol.forwarding import Routed
from hanse.protocol.machine import Machine
from hanse.protocol.messages import UNREACHABLE, ControlFrame, Publication, Run
from hanse.sim.convergence import why_not_converged
from hanse.sim.federation import Federation, Node
from hanse.sim.host import Client, matches
from hanse.sim.ledger import ENTITLED_AFTER_A, Ledger, Message
from hanse.sim.monitor import Monitor
from hanse.sim.packets import read_packets

# B: simulated clients report their interest at once. The bound allows for a source that reports it only by beacons.
BEACON_A = 1.0
# A change of one of these kinds may take (K+1)A + B to repair. The other kinds bring something back and may take 2A.
LOSSES = frozenset({"stop", "pause", "cut", "deaf", "link down"})
# After a change of interest, a group may look for its core for this long, in announcement intervals.
INTEREST_BOUND_A = 2.0
# Messages that must cross the overlay one after the other before a mesh is complete.
WORDS = 3
# Interval between checks for convergence, in announcement intervals. It is the precision of the reported times.
POLL_A = 0.1
# Redundant parents may appear this much later than the first, in announcement intervals. A route that is as short now
# but was longer a moment ago becomes feasible only with the core's next announcements.
REDUNDANCY_BOUND_A = 4.0
# A core knows no distance but its own, so no federator may use a smaller limit than this (R50).
HOPS_FLOOR = 64
# A change this soon after a publication explains its loss, in announcement intervals.
EXCUSED_AFTER_A = 2.0


class InvariantError(HanseError):
    """Violation of something that the protocol promises."""

    def __init__(self, name: str, at_s: float, text: str) -> None:
        super().__init__(f"{name}: {text} (at {at_s:.3f} s)")
        self.name = name
        self.at_s = at_s


class Way:
    """Route of one federator to one core, as of the last check."""

    __slots__ = ("core", "distance", "parents")

    def __init__(self, core: int, distance: int | None, parents: tuple[int, ...]) -> None:
        self.core = core
        self.distance = distance
        self.parents = parents


class Checkers(Monitor):
    """Monitor that keeps the ledger of a federation and raises on the first broken rule."""

    def __init__(self, *, is_eager: bool = True) -> None:
        # Without eagerness only messages and convergence are checked. That is for overlays of thousands.
        self.is_eager = is_eager
        self.faults: Counter[str] = Counter()
        self.reconvergence_a: defaultdict[str, list[float]] = defaultdict(list)
        self.route_changes = 0
        self.core_changes: Counter[str] = Counter()
        self.hops_largest = 0
        self.is_frozen = False

    def attach(self, federation: Federation) -> None:
        """Begin to watch a federation."""
        self._federation = federation
        self._settings = federation.settings
        self._a = federation.interval_s
        self.ledger = Ledger(self.refuse, self._a)
        self._edges: list[float] = []
        self._restless = 0
        self._due_s = 0.0
        self._travel_s: float | None = None
        self._edge_kind = "start"
        self._is_polling = False
        self._interest_s: dict[str, float] = {}
        self._parts: dict[int, int] | None = None
        self._heard: dict[tuple[int, int], dict[int, int]] = {}
        self._last_frame: dict[tuple[int, int], tuple[int, int]] = {}
        # Federator to its routes, in the order of `_cores`.
        self._ways: dict[int, list[Way]] = {identity: [] for identity in federation.nodes}
        self._distance_largest = 1
        # All federators that have ever been a core, in that order. Nobody can have a route to any other.
        self._cores: dict[int, None] = {}
        # Group to the time when it last got or lost a core.
        self._handed_s: dict[str, float] = {}
        self._sweep_s = 0.0
        # Times of partitions, each with the component of every federator.
        self._partitions: list[tuple[float, dict[int, int]]] = []
        # Federator to the times when it left on purpose. Nothing is kept for a federator that leaves.
        self._left_s: defaultdict[int, list[float]] = defaultdict(list)
        # Federator to the time when it lost its disk. It may deliver again what it delivered before.
        self._disk_lost_s: dict[int, float] = {}

    def refuse(self, name: str, text: str) -> None:
        """End the run, because a rule is broken."""
        raise InvariantError(name, self._federation.engine.now, text)

    # --- faults and the bound after them ---

    def edge(self, kind: str) -> None:
        """Restart the bound, because something changed that the protocol has to repair."""
        now = self._federation.engine.now
        self._edges.append(now)
        self._parts = self._travel_s = None
        factor = self._settings.expiry_factor
        bound_a = factor + 1 + BEACON_A if kind in LOSSES else 2.0
        if kind == "deaf":
            # Nobody is told. Both ends notice when a round finds KA of silence, and only then does the repair begin.
            bound_a += 2.0
        due_s = now + bound_a * self._a
        self._due_s = max(due_s, self._due_s)
        self._edge_kind = kind
        self._watch()

    def fault_began(self, kind: str, *, is_restless: bool) -> None:
        """Count a fault. While a restless one lasts, the bound does not run."""
        self.faults[kind] += 1
        if kind == "partition":
            now = self._federation.engine.now
            self._federation.engine.after(0.3 * self._a, self._note_partition, now)
        self._restless += is_restless
        if is_restless:
            self.edge(kind)
        self._edge_kind = kind
        self._watch()

    def fault_ended(self, kind: str, *, is_restless: bool) -> None:
        """Start the bound, because a fault is over."""
        self._restless -= is_restless
        if is_restless:
            self.edge(kind)

    @property
    def is_calm(self) -> bool:
        """True if no fault changes anything now and the bound after the last one has passed."""
        return not self._restless and self._federation.engine.now > self.settled_at_s

    @property
    def settled_at_s(self) -> float:
        """Time at which the bound after the last change will have passed.

        The bounds assume that a message crosses the overlay in much less than A. In a ring of 20 with links of 100 ms
        it does not, so the travel time is added: of an announcement, a membership back, and its answer.
        """
        if self._federation.engine.now <= self._due_s:
            return self._due_s
        return self._due_s + self._words_s()

    def _words_s(self) -> float:
        """Return the travel time of the messages of a repair, in the overlay as it is now."""
        if self._travel_s is None:
            self._travel_s = self._federation.longest_way_s() if self.is_eager else 0.0
        return WORDS * self._travel_s

    def _watch(self) -> None:
        if not self._is_polling:
            self._is_polling = True
            self._federation.engine.after(POLL_A * self._a, self._poll)

    def _poll(self) -> None:
        federation, now = self._federation, self._federation.engine.now
        # While a restless fault is on, nothing is promised, so there is nothing to check.
        if not self._restless:
            trouble = why_not_converged(federation, self._excused(now), needs_redundancy=False)
            if trouble is None:
                self._is_polling = False
                self.reconvergence_a[self._edge_kind].append((now - self._edges[-1]) / self._a if self._edges else 0.0)
                return
            if self.is_calm:
                self.refuse("not converged", f"{trouble}; the last change was {self._edge_kind!r}")
        federation.engine.after(POLL_A * self._a, self._poll)

    def _excused(self, now: float) -> list[str]:
        """Return the groups whose interest changed just now, or whose core changed because of that.

        An heir that loses its interest in the moment of the hand-over keeps the group for K·A and hands it on a round
        later (R14, R15). The time until that is known everywhere is excused, and nothing in between.
        """
        words_s = self._words_s()
        bound_s = INTEREST_BOUND_A * self._a + words_s
        heir_s = (self._settings.expiry_factor + 1) * self._a + words_s
        return [
            group
            for group, changed_s in self._interest_s.items()
            if now - changed_s < bound_s or now - words_s < self._handed_s.get(group, -math.inf) < changed_s + heir_s
        ]

    def sweep(self) -> None:
        """Check the whole federation. The caller does this once per simulated A."""
        federation = self._federation
        now = federation.engine.now
        self.ledger.judge(now, self._reason)
        if self.is_calm and not self._is_polling:
            is_late = now > self.settled_at_s + REDUNDANCY_BOUND_A * self._a
            trouble = why_not_converged(federation, self._excused(now), needs_redundancy=is_late)
            if trouble is not None:
                self.refuse("not converged", f"{trouble}; no fault is on")

    def _reason(self, message: Message, client: Client) -> str | None:
        """Return why a message may be missing at a client, or None if nothing excuses it."""
        federation = self._federation
        origin, target = federation.nodes[message.origin], federation.nodes[client.broker]
        if origin.starts == 0 or target.starts == 0:
            return "not started"
        if message.qos and message.is_told:
            # The message is in custody. Only a loss that no federator can prevent is excused. R75: nothing is kept for
            # a federator that leaves. A publication under way is given up with what comes later, for as long as it may
            # wait for a route (R64).
            left = [left_s - message.published_s for left_s in self._left_s.get(client.broker, ())]
            if any(-self._a < after_s < self._settings.retention_s_max for after_s in left):
                return "its federator took its leave"
            if self._was_parted(message, client):
                return "a partition came between"
            if client.name in message.unheard and not message.is_calm:
                return "its interest had not reached the origin"
            return message.excuse or None
        published_s = message.published_s
        k = bisect_right(self._edges, published_s)
        is_excused = k < len(self._edges) and self._edges[k] <= published_s + EXCUSED_AFTER_A * self._a
        if message.is_calm and not is_excused:
            return None
        if message.is_lost_in_flight:
            return "in flight on a link that broke"
        if not message.is_told:
            return "not taken from the host"
        return "while a fault was on"

    def _was_parted(self, message: Message, client: Client) -> bool:
        """Return True if a partition began while the message was under way. Each side is lossless within itself."""
        for begun_s, sides in self._partitions:
            if -self._a < begun_s - message.published_s < EXCUSED_AFTER_A * self._a:
                there = sides.get(client.broker)
                # If the origin is gone as well, its neighbours have what it published.
                near = (
                    (message.origin,)
                    if message.origin in sides
                    else self._federation.overlay.neighbours(message.origin)
                )
                here = {sides[k] for k in near if k in sides}
                if here and there is not None and there not in here:
                    return True
        return False

    def _note_partition(self, begun_s: float) -> None:
        self._partitions.append((begun_s, dict(self._components())))

    # --- control plane ---

    def started(self, node: Node) -> None:
        """Forget the routes and frames of the previous run of a federator."""
        self._ways[node.identity] = []
        for neighbour in node.ways:
            self._last_frame.pop((node.identity, neighbour), None)

    def leaving(self, node: Node) -> None:
        """Note that a federator leaves: nothing is kept for it from now on."""
        now = self._federation.engine.now
        self._left_s[node.identity].append(now)
        # The federator may have been the only connection between others.
        self._federation.engine.after(0.3 * self._a, self._note_partition, now)

    def heard(self, node: Node, neighbour: int, frame: ControlFrame) -> None:
        """Remember the distances that a neighbour announces."""
        if not self.is_eager:
            return
        # A machine must ignore late and repeated frames, so they do not count here, either.
        if (frame.epoch, frame.number) <= self._last_frame.get((node.identity, neighbour), (0, 0)):
            return
        self._last_frame[node.identity, neighbour] = (frame.epoch, frame.number)
        said = self._heard.setdefault((node.identity, neighbour), {})
        for announcement in frame.announcements:
            said[announcement.core] = announcement.distance

    def stepped(self, node: Node, event: Event) -> None:
        """Check the machine that has just taken a step."""
        machine = node.machine
        if not self.is_eager or machine is None:
            return
        ways = self._ways[node.identity]
        # Each step of a run checks each core here, and nearly always finds nothing new.
        for way in ways:
            core = way.core
            distance, parents = machine.distance_to(core), machine.parents_of(core)
            if distance != way.distance or (parents is not way.parents and parents != way.parents):
                way.distance, way.parents = distance, parents
                self._note_change(node, event, way)
        if len(ways) < len(self._cores):
            for core in [*self._cores][len(ways) :]:
                way = Way(core, machine.distance_to(core), machine.parents_of(core))
                ways.append(way)
                self._note_change(node, event, way)

    def _note_change(self, node: Node, event: Event, way: Way) -> None:
        self.route_changes += 1
        if self.is_frozen:
            self.refuse(
                "route changed in a quiet round",
                f"{node.identity} now has distance {way.distance} and parents {way.parents} to {way.core} "
                f"after {event}",
            )
        self._check_route(node, way.core, way.distance, way.parents)

    def _check_route(self, node: Node, core: int, distance: int | None, parents: tuple[int, ...]) -> None:
        where = f"{node.identity} towards core {core}"
        if core == node.identity:
            if parents or distance not in {0, None}:
                self.refuse("core with parents", f"{where}: distance {distance}, parents {parents}")
            return
        if len(parents) > self._settings.redundancy:
            self.refuse("too many parents", f"{where}: {parents}")
        if not parents:
            return
        assert distance is not None
        self._distance_largest = max(self._distance_largest, distance)
        for parent in parents:
            way = node.ways.get(parent)
            if way is None or not way.link.direction_to(node.identity).is_known:
                self.refuse("parent without a link", f"{where}: {parent}")
            said = self._heard.get((node.identity, parent), {}).get(core)
            if said is None or said == UNREACHABLE or said + 1 != distance:
                self.refuse("parent distance", f"{where}: own distance {distance}, parent {parent} said {said}")
        self._check_loop(node.identity, core)

    def _check_loop(self, identity: int, core: int, *, is_second_look: bool = False) -> None:
        """Check that following parents does not lead back.

        Frames cross on the wire, so two federators may for a moment rely on each other's former announcement. Such a
        loop is counted, and checked again an interval later, when both have long heard the news.
        """
        machine = self._federation.nodes[identity].machine
        if machine is None or not self._leads_back(machine, core):
            return
        if is_second_look:
            self.refuse("lasting loop", f"parents towards core {core} lead from {identity} back to it, for an interval")
        self.ledger.counters["loops"] += 1
        self._federation.engine.after(self._a, self._look_again, identity, core, len(self._edges))

    def _look_again(self, identity: int, core: int, edges: int) -> None:
        # If something changed meanwhile, this may be another loop, which gets its own interval.
        if not self._restless:
            self._check_loop(identity, core, is_second_look=len(self._edges) == edges)

    def _leads_back(self, machine: Machine, core: int) -> bool:
        # Follow only links that pass frames. Behind a cut nobody can have heard the news, and nothing can circulate.
        live_neighbours = self._federation.live_neighbours
        pending, seen = [machine], set[int]()
        while pending:
            other = pending.pop()
            live = live_neighbours(other.identity)
            for parent in other.parents_of(core):
                if parent == machine.identity and parent in live:
                    return True
                if parent in live and parent not in seen:
                    seen.add(parent)
                    pending.append(self._federation.nodes[parent].running)
        return False

    def emitted(self, node: Node, effect: Emit) -> None:
        """Count elections. A core must stay while it has members, unless another federator claims the group."""
        if effect.name in {"core_elected", "core_withdrawn"}:
            self._handed_s[effect.group] = self._federation.engine.now
        if effect.name == "core_elected":
            self._cores.setdefault(node.identity)
            self.core_changes[effect.group] += 1
        elif effect.name == "core_withdrawn" and not node.is_leaving:
            machine = node.running
            if machine.has_members(effect.group) and machine.core_of(effect.group) is None:
                text = f"{node.identity} gave {effect.group} up, which has members and no other core"
                self.refuse("resigned", text)

    def closed(self, node: Node, neighbour: int, reason: str) -> None:
        """Refuse that a machine closes a link. No simulated federator breaks the rules that lead to it."""
        self.refuse("link closed", f"{node.identity} closed its link to {neighbour}: {reason}")

    def interest_changed(self, node: Node, topic_filter: str) -> None:
        """Note the change: the group may need another core, or a larger mesh."""
        del node
        group = self._settings.grouping.group_of(topic_filter)
        self._interest_s[group] = self._federation.engine.now

    # --- data plane ---

    def published(self, node: Node, number: int, topic: str, qos: int, packet: bytes, *, is_told: bool) -> None:
        """Open the ledger for a message: who is entitled to it, and whether the federation is calm."""
        now = self._federation.engine.now
        message = Message(number, node.identity, topic, qos, packet, now, is_told, self.is_calm)
        message.arrived_s[node.identity] = now
        entitled = self._entitled(node, topic, now)
        if qos and not message.is_calm:
            message.unheard = frozenset(client.name for client in entitled if not self._has_heard(node, client, topic))
        self.ledger.publish(message, entitled)

    def _has_heard(self, node: Node, client: Client, topic: str) -> bool:
        """Return True if the origin knows a group that leads to the client.

        Before that, nothing can be kept for the client.
        """
        group_of = self._settings.grouping.group_of
        groups = [group_of(topic_filter) for topic_filter in client.since_s if matches(topic_filter, topic)]
        return node.machine is not None and any(map(node.machine.is_known, groups))

    def _entitled(self, node: Node, topic: str, now: float) -> list[Client]:
        parts = self._components()
        here = parts.get(node.identity)
        found = []
        for identity, other in self._federation.nodes_here.items():
            if identity == node.identity or not other.host.is_up or here is None or parts.get(identity) != here:
                continue
            for client in other.host.clients.values():
                since_s = client.wants_since(topic)
                if since_s is not None and since_s <= now - ENTITLED_AFTER_A * self._a:
                    found.append(client)
        return found

    def _components(self) -> dict[int, int]:
        """Map each federator to the smallest id that it can reach.

        A client that is cut off from the origin is entitled to nothing. Without custody nobody keeps anything for it.
        """
        if self._parts is None:
            self._parts = {k: part[0] for part in self._federation.components() for k in part}
        return self._parts

    def unsubscribing(self, client: Client, topic_filter: str) -> None:
        """End the entitlement of a client that did not stay."""
        self.ledger.release(client, topic_filter)

    def host_stopped(self, node: Node) -> None:
        """End the entitlement of all clients at a dead broker."""
        for client in node.host.clients.values():
            self.ledger.release(client, None)

    def routed(self, node: Node, publications: Sequence[Publication], routed: Routed) -> None:
        """Check that nothing of a host's publications goes straight back to that host."""
        del publications
        if routed.deliveries:
            self.refuse("echo", f"{node.identity} delivers to its host what its host published")

    def forwarded(self, node: Node, neighbour: int, runs: Sequence[Run], routed: Routed) -> None:
        """Check that nothing goes back to the neighbour that it came from."""
        now = self._federation.engine.now
        for run in runs:
            self.hops_largest = max(self.hops_largest, run.hops)
            for message in self.ledger.read(run, f"at {node.identity} from {neighbour}"):
                message.arrived_s.setdefault(node.identity, now)
        back = routed.frames.get(neighbour)
        if back:
            came = {(run.origin, run.epoch, run.first + k): run.groups for run in runs for k in range(run.length)}
            for run in back:
                for k in range(run.length):
                    named = came.get((run.origin, run.epoch, run.first + k), ())
                    # A hop that knows more groups than the sender may serve those back, but never the groups it came
                    # for.
                    if not set(named).isdisjoint(run.groups):
                        text = f"{node.identity} sends to {neighbour} what came from there, for {run.groups}"
                        self.refuse("back to the sender", text)

    def sending(self, node: Node, neighbour: int, runs: Sequence[Run]) -> None:
        """Check the hop count of each run, and count the links that its messages cross."""
        limit = max(HOPS_FLOOR, 2 * self._distance_largest + 4)
        for run in runs:
            if self.is_eager and run.hops > limit:
                self.refuse("hops", f"{node.identity} sends a run with {run.hops} hops; the limit is {limit}")
            for message in self.ledger.read(run, f"from {node.identity} to {neighbour}"):
                message.forwards += 1
                message.path.append((node.identity, neighbour))
                self.ledger.counters["forwards"] += 1

    def delivered(self, node: Node, runs: Sequence[Run]) -> None:
        """Enter in the ledger the publications that a machine hands to its host broker."""
        for run in runs:
            for message in self.ledger.read(run, f"delivered at {node.identity}"):
                first_start = message.first_start.setdefault(node.identity, node.starts)
                self.ledger.deliver(
                    node.identity,
                    message,
                    node.host.receivers(message.topic),
                    may_repeat=self._may_repeat(node, message, first_start),
                )
                message.first_start[node.identity] = node.starts

    def _may_repeat(self, node: Node, message: Message, first_start: int) -> bool:
        """Return True if a federator was killed before it could know that its host broker has the message.

        QoS 0 has no acknowledgement. A repeated QoS 2 delivery is recognised by its packet identifier.
        """
        if message.is_renumbered or message.published_s <= self._disk_lost_s.get(node.identity, -1.0):
            return True
        is_in_flight = message.qos == 0 or (message.qos == 1 and node.identity not in message.taken_at)
        return is_in_flight and node.starts > first_start

    def taken(self, node: Node, runs: Sequence[Run]) -> None:
        """Note the acknowledgement of the host broker. From now on a repeat is a duplicate."""
        for message in self._messages(runs):
            message.taken_at.add(node.identity)

    def lost_in_flight(self, runs: Sequence[Run]) -> None:
        """Note why a message may be missing somewhere."""
        for message in self._messages(runs):
            message.is_lost_in_flight = True

    def lost_with_host(self, publications: Sequence[Publication]) -> None:
        """Excuse what a broker had not handed over when it died. No federator has seen it."""
        for publication in publications:
            for number, _, _ in read_packets(publication.packet):
                self.ledger.messages[number].excuse = "the broker that had it died"

    def lost_with_disk(self, node: Node) -> None:
        """Excuse what was on a lost disk. Messages that are handed in again get new ids."""
        self._disk_lost_s[node.identity] = self._federation.engine.now
        for publication in node.host.in_session():
            for number, _, _ in read_packets(publication.packet):
                self.ledger.messages[number].is_renumbered = True
        for log in node.disk.outbox.values():
            for runs in log.values():
                for message in self._messages(runs):
                    message.excuse = "the disk that had it is gone"

    def _messages(self, runs: Sequence[Run]) -> Iterator[Message]:
        for run in runs:
            for number, _, _ in read_packets(run.body):
                message = self.ledger.messages.get(number)
                if message is not None:
                    yield message

    # --- the end of a run ---

    def freeze(self) -> None:
        """Refuse any further change of a distance or a parent."""
        if not self.is_calm:
            raise LocalError("A run can be frozen only when the bound after the last fault has passed.")
        self.is_frozen = True

    def custody(self) -> str:
        """Return the first federator with QoS 1 or 2 in custody and how much it has, or an empty text."""
        for node in self._federation.nodes.values():
            machine = node.machine
            if machine is not None and (machine.in_custody or machine.records or node.host.unacknowledged):
                return (
                    f"{node.identity} still has {machine.in_custody} publications, {machine.records} records and "
                    f"{node.host.unacknowledged} that its host broker waits for"
                )
        return ""

    def close(self) -> None:
        """End the run: check that no QoS 1 or 2 is missing and that nothing is in custody any more."""
        self.ledger.judge_kept(self._reason)
        custody = self.custody()
        if custody:
            self.refuse("custody for ever", custody)
