"""One federation without faults, simulated by one process or by two, with the same result.

Each process has all nodes and all links, and draws the same random numbers. Starts, connections, subscriptions and
publications happen in both. A node that belongs to the other process has no machine here, only an `Elsewhere` that does
nothing. Frames to such a node go to the other process. No frame arrives sooner than the smallest latency among the
crossing links. Therefore both processes run alone for that long (a *window*) and then exchange the crossing frames.
This is conservative parallel simulation, after Chandy and Misra.

Rules:
- The number of processes does not change the result. Events of a node at the same time run in this order: first those
  that it or the whole federation scheduled, in the order of scheduling; then frames, by sender, in the order of
  sending. That order depends neither on what other nodes do at the same time nor on which process runs them.
- Each node has its own trace. The trace hash is a hash over those of all nodes.
- Nothing may break a link, because that would happen in one process only.
"""

import heapq
import math
from array import array
from collections import defaultdict
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from hanse.errors import HanseError
from hanse.protocol.machine import Machine
from hanse.protocol.settings import Settings
from hanse.sim.convergence import (
    groups_with_interest,
    interest_by_group,
    why_no_mesh,
    why_no_way,
    why_not_converged,
)
from hanse.sim.cut import halves
from hanse.sim.elsewhere import Elsewhere, Told
from hanse.sim.engine import Engine, Handler
from hanse.sim.federation import Federation, Node
from hanse.sim.links import Direction, Link
from hanse.sim.overlay import Overlay, distances
from hanse.sim.peer import Peer

# Frames come after all other events of the same time. No engine schedules as many events as this.
SENDER_SHIFT = 40
# A node's records are hashed in blocks of this many integers. Larger blocks cost memory, a kilobyte per node.
NODE_TRACE_BLOCK = 128
# The subject of a record of the trace is a node, or `source << 32 | target`.
NODE_MASK = 0xFFFFFFFF

T = TypeVar("T")


class PartEngine(Engine):
    """Engine that keeps an order and a trace per node."""

    __slots__ = ("_blocks", "_hashes")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._blocks: defaultdict[int, array[int]] = defaultdict(partial(array, "q"))
        self._hashes: defaultdict[int, Any] = defaultdict(partial(blake2b, digest_size=16))

    def frame_at(self, time_s: float, sender: int, handler: Handler, *arguments: object) -> None:
        """Call `handler(*arguments)`, which receives a frame, at a time that is not in the past."""
        self._order += 1
        heapq.heappush(self._heap, (time_s, sender + 1 << SENDER_SHIFT | self._order, handler, arguments))

    @property
    def next_s(self) -> float:
        """Time of the next event."""
        return self._heap[0][0] if self._heap else math.inf

    def note(self, *record: int) -> None:
        """Append a record to the trace of its node."""
        identity = record[1] & NODE_MASK
        block = self._blocks[identity]
        block.append(round(self.now * 1e6))
        block.extend(record)
        if len(block) >= NODE_TRACE_BLOCK:
            self._hashes[identity].update(block)
            del block[:]

    def trace_of(self, identity: int) -> bytes:
        """Return the hash of all records of a node so far."""
        digest = self._hashes[identity].copy()
        digest.update(self._blocks[identity])
        return bytes(digest.digest())


class Part(Federation):
    """Part of a federation that one process simulates. Without a peer it is the whole federation."""

    def __init__(
        self,
        overlay: Overlay,
        settings: Settings,
        peer: Peer | None,
        *,
        seed: int,
        latency_s: tuple[float, float],
        is_wire: bool,
    ) -> None:
        self._part_engine = PartEngine(seed)
        super().__init__(
            overlay,
            settings,
            seed=seed,
            latency_s=latency_s,
            is_wire=is_wire,
            machine=self._machine,
            engine=self._part_engine,
        )
        self._peer = peer
        here = halves(overlay)[peer.number] if peer else frozenset(overlay.identities)
        self.nodes_here = {identity: node for identity, node in self.nodes.items() if identity in here}
        # Smallest latency of a crossing link.
        self.window_s = min(
            (
                link.directions[0].latency_s
                for (one, other), link in self.links.items()
                if (one in here) != (other in here)
            ),
            default=math.inf,
        )
        # Frames for the other process: time, sender, receiver, frame.
        self._crossing: list[tuple[float, int, int, object]] = []
        # Events that happen in both processes.
        self._common_events = 0

    def _machine(self, identity: int, settings: Settings, *, now: float, wall_s: int, stored_epoch: int) -> Machine:
        kind = Machine if identity in self.nodes_here else Elsewhere
        return kind(identity, settings, now=now, wall_s=wall_s, stored_epoch=stored_epoch)

    def gather(self, mine: T) -> tuple[T, ...]:
        """Return the values of all processes at this point, in the same order in each of them."""
        return (mine,) if self._peer is None else self._peer.share(mine)

    # --- time ---

    def run(self, seconds: float) -> None:
        """Let time pass, window by window."""
        engine = self.engine
        end_s = engine.now + seconds
        if self._peer is not None:
            while (next_s := self._exchange()) <= end_s:
                # Run all events before the end of the window. The first frame of the other process may arrive then.
                engine.run_until(min(end_s, math.nextafter(next_s + self.window_s, 0.0)))
        engine.run_until(end_s)

    def _exchange(self) -> float:
        """Exchange the crossing frames. Return the time of the next event in either process."""
        crossing, self._crossing = self._crossing, []
        next_s = min(self._part_engine.next_s, min((frame[0] for frame in crossing), default=math.inf))
        shared = self.gather((next_s, crossing))
        for number, (_, frames) in enumerate(shared):
            if self._peer is not None and number != self._peer.number:
                for time_s, source, target, frame in frames:
                    assert time_s >= self.engine.now, f"a frame for {time_s} came when it was {self.engine.now} here"
                    way = self.nodes[source].ways[target]
                    self._part_engine.frame_at(time_s, source, self._arrive, way, way.link.generation, frame)
        return min(due_s for due_s, _ in shared)

    def events(self) -> int:
        """Return how many events were handled, common ones counted once. Both processes must call this."""
        own = self.engine.handled - self._common_events
        return self._common_events + sum(self.gather(own))

    def start(self, identity: int) -> None:
        """Start a federator, in both processes."""
        self._common_events += 1
        super().start(identity)

    def _connect(self, link: Link) -> None:
        self._common_events += 1
        super()._connect(link)

    def _link_up(self, way: Direction, generation: int) -> None:
        self._common_events += 1
        super()._link_up(way, generation)

    # --- frames ---

    def _send(self, node: Node, neighbour: int, frame: object) -> None:
        way = node.ways.get(neighbour)
        if way is None or not way.link.is_up:
            self._lost(frame)
            return
        engine, source = self._part_engine, node.identity
        time_s = engine.now + way.latency_s
        if neighbour in self.nodes_here:
            engine.frame_at(time_s, source, self._arrive, way, way.link.generation, frame)
        else:
            self._crossing.append((time_s, source, neighbour, frame))

    def _close_by_federator(self, node: Node, neighbour: int, reason: str) -> None:
        raise HanseError(
            f"Federator {node.identity} closed its link to {neighbour}: {reason}. In a run without faults no federator "
            "may break the rules that lead to it."
        )

    # --- joint results ---

    def trace_hash(self) -> str:
        """Return the hash over the traces of all nodes. Both processes must call this."""
        traces = {k: self._part_engine.trace_of(k) for k in self.nodes_here}
        found = {k: trace for part in self.gather(traces) for k, trace in part.items()}
        return blake2b(b"".join(found[k] for k in sorted(found)), digest_size=16).hexdigest()

    def why_not_converged(self) -> str | None:
        """Return the first thing that is missing, or None if the federation has converged.

        Both processes must call this. First each process checks its own machines. Only if one of them finds something,
        the first process searches for it: the second one sends the state of its machines.
        """
        if self._peer is None:
            return why_not_converged(self)
        if _is_converged(self, self._peer):
            return None
        is_judge = self._peer.number == 0
        for told in self.gather([] if is_judge else self._tell())[-1]:
            stand_in = self.nodes[told.identity].machine
            if isinstance(stand_in, Elsewhere):
                stand_in.tell(told)
        return self.gather(why_not_converged(self) if is_judge else None)[0]

    def _tell(self) -> list[Told]:
        machines = [node.machine for node in self.nodes_here.values() if node.machine is not None]
        told: list[Told] = []
        groups = groups_with_interest(self, self.nodes)
        for machine in machines:
            named = machine.cores()
            if told and named == told[0].cores:
                # They nearly always agree. Then the cores are pickled once.
                named = told[0].cores
            ways = {
                core: (machine.core_epoch(core), machine.distance_to(core), machine.parents_of(core))
                for core in sorted({core for core in named.values() if core is not None})
            }
            meshes = {group: machine.mesh_neighbours(group) for group in groups if machine.is_member(group)}
            told.append(Told(machine.identity, machine.epoch, named, ways, meshes))
        return told


def _is_converged(part: Part, peer: Peer) -> bool:
    """Return True if each process finds nothing missing at its own machines. Both judge alike what they share."""
    components = part.components()
    if len(components) != 1 or len(components[0]) < len(part.nodes):
        return False
    machines = [node.running for node in part.nodes_here.values()]
    cores = [machine.cores() for machine in machines]
    are_agreed = all(named == cores[0] for named in cores)
    epochs = {machine.identity: machine.epoch for machine in machines}
    (first, epochs_first), (second, epochs_second) = peer.share((cores[0] if cores and are_agreed else None, epochs))
    if first is None or first != second:
        return False
    for identity, epoch in {**epochs_first, **epochs_second}.items():
        part.nodes[identity].running.epoch = epoch
    seen: defaultdict[str, set[int]] = defaultdict(set)
    beyond: list[tuple[str, int, int]] = []
    is_well = _are_ways_well(part, machines, first)
    interested = interest_by_group(part, list(part.nodes_here))
    while True:
        is_well = is_well and all(
            why_no_mesh(part, members, group, first[group], needs_redundancy=True, seen=seen[group], beyond=beyond)
            is None
            for group, members in interested.items()
        )
        shared = peer.share((is_well, beyond))
        if not all(word for word, _ in shared):
            return False
        if not any(asked for _, asked in shared):
            return True
        # Continue where the other process came to our machines.
        asked, beyond, interested = shared[1 - peer.number][1], [], {}
        for group, parent, member in asked:
            is_well = is_well and member in part.nodes[parent].running.mesh_neighbours(group)
            interested.setdefault(group, []).append(parent)


def _are_ways_well(part: Part, machines: list[Machine], named: dict[str, int | None]) -> bool:
    """Return True if each group has a core and these machines have their routes to it."""
    cores = {named.get(group) for group in groups_with_interest(part, part.nodes)}
    for core in cores:
        if core is None or core not in part.nodes:
            return False
        hops = distances(core, part.live_neighbours)
        if why_no_way(part, machines, core, hops, needs_redundancy=True) is not None:
            return False
    return True
