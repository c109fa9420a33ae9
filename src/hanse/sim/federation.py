"""Simulated federation: machines, host brokers and links, driven by the engine.

Rules:
- The machines are those of `hanse.protocol`, unchanged. This module is their shell, as the agent is in reality: it
  carries out effects in order, calls `step` with `Tick` at the deadline, and reports interest and links.
- A federator that is down has no machine. It restarts with a new machine, the epoch from its disk, and the clock that
  its fault left it.
- A paused federator handles nothing. Whatever reaches it waits in order, as in the buffer of a socket.
- With `is_wire` every frame is encoded and decoded. Without it the frozen objects themselves are passed on.
- The host broker keeps a persistent session for its federator. After a restart it hands over again what was not
  acknowledged, and then what came meanwhile. The disk of the federator (outbox, delivered ids, assigned ids, journal of
  QoS 2) also outlives the process, unless the fault takes the disk.
"""

import heapq
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, assert_never

from hanse.errors import HanseError
from hanse.protocol import codec
from hanse.protocol.effects import (
    Acknowledge,
    CloseLink,
    Deliver,
    Discard,
    Effect,
    Emit,
    Fetch,
    Send,
    SendRuns,
    SendSummaries,
    Store,
    StoreEpoch,
    SubscribeHost,
    UnsubscribeHost,
)
from hanse.protocol.events import (
    Appointed,
    Event,
    Fetched,
    Leave,
    LinkDown,
    LinkUp,
    Ranked,
    Received,
    Stored,
    Subscribed,
    Summarised,
    Tick,
    Unsubscribed,
)
from hanse.protocol.forwarding import Routed
from hanse.protocol.machine import Machine
from hanse.protocol.messages import HOST, ControlFrame, Publication, Run, Summary
from hanse.protocol.settings import Settings
from hanse.sim.disk import Disk
from hanse.sim.engine import Engine
from hanse.sim.host import Client, HostBroker
from hanse.sim.links import REMEMBERED_FRAMES, Direction, Link
from hanse.sim.monitor import Monitor
from hanse.sim.overlay import Overlay, Pair, components, pair
from hanse.sim.packets import publish_packet

# Simulated wall clocks start here, so that epochs look as they do in practice.
WALL_S = 1_700_000_000

# How long an end waits before it gives up a connection through which no frames arrive, in announcement intervals.
SILENCE_A = (1.5, 6.0)
# How long after its loss a connection is tried again, in announcement intervals.
RECONNECT_A = (0.05, 0.5)

# A machine that does not move its deadline when it gets its tick would stop the clock for good.
LATE_TICKS_MAX = 10

# Time that a disk needs to write or read, and that a host broker needs to acknowledge.
DISK_S = 0.003
HOST_S = 0.001

MachineFactory = Callable[..., Machine]


class Data(NamedTuple):
    """Data frame under way: its runs, or the bytes of the frame."""

    token: int
    body: tuple[Run, ...] | bytes


class Summaries(NamedTuple):
    """Frame of summaries under way."""

    token: int
    summaries: tuple[Summary, ...]


class Ack(NamedTuple):
    """Acknowledgement of a frame that bore a token."""

    token: int


class Record(IntEnum):
    """Subject of a record of the trace."""

    CONTROL = 1
    DATA = 2
    TICK = 3
    PUBLISH = 4
    LINK_UP = 5
    LINK_DOWN = 6
    INTEREST = 7
    START = 8
    STOP = 9
    DELIVER = 10
    EMIT = 11
    PAUSE = 12


class Node:
    """One broker and its federator."""

    __slots__ = (
        "clock_s",
        "disk",
        "doom",
        "host",
        "identity",
        "inbox",
        "is_leaving",
        "is_paused",
        "late_ticks",
        "machine",
        "ranks",
        "receipts",
        "starts",
        "tick_at",
        "untaken",
        "ways",
    )

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.machine: Machine | None = None
        self.host = HostBroker()
        # Neighbour to the direction of the link that leads there.
        self.ways: dict[int, Direction] = {}
        self.tick_at = float("inf")
        self.is_paused = False
        self.is_leaving = False
        self.late_ticks = 0
        self.inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.disk = Disk()
        # Receipt that the machine has, to (neighbour, connection, token).
        self.receipts: dict[int, tuple[int, int, int]] = {}
        # Deliveries that wait for a host broker that is down: (runs, token).
        self.untaken: list[tuple[Sequence[Run], int]] = []
        # Called when the host broker has a publication from the federator that it has not acknowledged. It kills the
        # federator.
        self.doom: Callable[[], None] | None = None
        # Wall clock at simulated time 0.
        self.clock_s = WALL_S
        self.starts = 0
        # Orders of the manager, repeated after a restart.
        self.ranks: dict[str, Event] = {}

    @property
    def is_running(self) -> bool:
        """True if the federator is up and has not announced that it leaves."""
        return self.machine is not None and not self.is_leaving

    @property
    def running(self) -> Machine:
        """Machine of a federator that is known to run."""
        assert self.machine is not None, f"federator {self.identity} is down"
        return self.machine


class Federation:
    """All nodes and links of a run, and its counters."""

    def __init__(
        self,
        overlay: Overlay,
        settings: Settings,
        *,
        seed: int,
        latency_s: tuple[float, float] = (0.010, 0.010),
        is_wire: bool = True,
        machine: MachineFactory = Machine,
        monitor: Monitor | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.overlay = overlay
        self.settings = settings
        self.engine = engine or Engine(seed)
        self.random = self.engine.random
        self.interval_s = settings.announcement_interval_s
        self.is_wire = is_wire
        # Counting the bytes of frames that pass as objects takes the encoder, so it is done only on request.
        self.is_weighing = is_wire
        self.monitor = monitor
        self.machine_factory = machine
        self.nodes: dict[int, Node] = {identity: Node(identity) for identity in overlay.identities}
        # Nodes whose machines run in this process: all, unless another process simulates the others (`halves`).
        self.nodes_here = self.nodes
        self.links: dict[Pair, Link] = {}
        low, high = latency_s
        for ends in overlay.links:
            link = Link(ends, low if low == high else self.random.uniform(low, high))
            self.links[ends] = link
            for way in link.directions:
                self.nodes[way.source].ways[way.target] = way
        self._receipts = itertools.count(1)
        # Node to the neighbours that it can exchange frames with. None means that it must be computed again.
        self._live: dict[int, list[int]] | None = None
        self.counters: Counter[str] = Counter()
        self.emitted: Counter[str] = Counter()
        self.control_frames = 0
        self.control_bytes = 0
        self.control_bytes_largest = 0
        self.announcements = 0
        self.data_frames = 0
        if monitor is not None:
            monitor.attach(self)

    # --- starts and stops of a federator ---

    def start_all(self, within_s: float) -> None:
        """Start every federator at a random moment of the first `within_s` seconds."""
        for identity in self.nodes:
            self.engine.at(self.engine.now + self.random.random() * within_s, self.start, identity)

    def start(self, identity: int) -> None:
        """Start a federator that is down, with the state of its disk and its clock."""
        node = self.nodes[identity]
        if node.machine is not None:
            return
        now = self.engine.now
        wall_s = max(0, int(node.clock_s + now))
        node.machine = self.machine_factory(
            identity, self.settings, now=now, wall_s=wall_s, stored_epoch=node.disk.epoch
        )
        node.starts += 1
        node.tick_at = float("inf")
        self.engine.note(Record.START, identity, node.machine.epoch)
        self._edge("start")
        self._carry_out(node, node.machine.start(now))
        disk = node.disk
        left = node.machine.restore(
            now, delivered=disk.delivered_ranges(), outbox=disk.outbox_ranges(), wanted=sorted(disk.wanted)
        )
        self._carry_out(node, left)
        for event in node.ranks.values():
            self._step(node, event)
        # First comes what was known before the end, then what has changed since, as an agent's store and sources tell
        # it.
        for topic_filter in sorted(disk.interest):
            self._step(node, Subscribed(topic_filter))
        self._change_interest(node, sorted(node.host.interest.keys() - disk.interest), Subscribed)
        self._change_interest(node, sorted(disk.interest - node.host.interest.keys()), Unsubscribed)
        for way in node.ways.values():
            link = way.link
            link.direction_to(identity).is_known = False
            if link.is_up:
                # The other end still holds the connection of the federator that was killed.
                self._break(link)
            else:
                # A federator that starts dials at once. Only a lost connection is tried again after a delay.
                self.engine.after(0.0, self._connect, link)
        if self.monitor is not None:
            self.monitor.started(node)
        self._hand_over_again(node)

    def _hand_over_again(self, node: Node) -> None:
        """Hand over again what is above QoS 0 in the host broker's session, one by one, with the ids assigned to it."""
        for receipt, batch in node.host.take_session().items():
            given = node.disk.given.pop(receipt, None)
            for k, publication in enumerate(batch):
                if publication.qos:
                    one = next(self._receipts)
                    node.host.keep(one, [publication])
                    if given is not None:
                        node.disk.given[one] = (given[0], given[1] + k)
                    self._publish(node, [publication], one)

    def _change_interest(self, node: Node, filters: list[str], event: type[Subscribed] | type[Unsubscribed]) -> None:
        for topic_filter in filters:
            (node.disk.interest.add if event is Subscribed else node.disk.interest.discard)(topic_filter)
            self._step(node, event(topic_filter))

    def stop(self, identity: int, *, is_silent: bool = False) -> None:
        """Kill a federator. Its neighbours see a reset, or nothing at all if the whole host went dark."""
        node = self.nodes[identity]
        if node.machine is None:
            return
        self.engine.note(Record.STOP, identity)
        if self.monitor is not None:
            self.monitor.stopped(node)
        # The disk has had this all the time. It is copied only here because it is read only after a restart.
        node.disk.wanted = node.machine.host_subscriptions()
        node.machine = None
        node.is_paused = node.is_leaving = False
        node.inbox.clear()
        node.receipts.clear()
        node.untaken.clear()
        self._edge("stop")
        for way in node.ways.values():
            link = way.link
            if link.is_up and is_silent:
                low, high = SILENCE_A
                delay_s = self.random.uniform(low, high) * self.interval_s
                self.engine.after(delay_s, self._give_up_dead, link, link.generation)
            elif link.is_up:
                self._break(link)

    def leave(self, identity: int) -> None:
        """Stop a federator in good order, after it has told its neighbours."""
        node = self.nodes[identity]
        if not node.is_running or node.is_paused:
            return
        node.is_leaving = True
        if self.monitor is not None:
            self.monitor.leaving(node)
        self._edge("stop")
        self._step(node, Leave())
        # The last frames are on the wire before the connections close.
        self.engine.after(0.15, self.stop, identity)

    def pause(self, identity: int) -> None:
        """Suspend the process of a federator, as SIGSTOP does."""
        node = self.nodes[identity]
        if node.machine is not None and not node.is_paused:
            node.is_paused = True
            self.engine.note(Record.PAUSE, identity, 1)
            self._edge("pause")

    def resume(self, identity: int) -> None:
        """Let a paused federator continue, with late timers and full sockets."""
        node = self.nodes[identity]
        if node.machine is None or not node.is_paused:
            return
        node.is_paused = False
        self.engine.note(Record.PAUSE, identity, 0)
        self._edge("resume")
        inbox, node.inbox = node.inbox, []
        # An event loop may handle its timers first, or its sockets first. Both must work.
        if self.random.random() < 0.5:
            self._tick(node, node.tick_at)
        for handler, arguments in inbox:
            handler(*arguments)
        if node.machine is not None:
            self._tick(node, node.tick_at)

    # --- links ---

    def close_link(self, ends: Pair, *, is_silent: bool) -> None:
        """Cut a link, with a reset or in silence. Cuts nest: each must be undone."""
        link = self.links[ends]
        if is_silent:
            for way in link.directions:
                way.silent += 1
                way.settle()
            if link.is_up:
                low, high = SILENCE_A
                delay_s = self.random.uniform(low, high) * self.interval_s
                self.engine.after(delay_s, self._give_up, link, link.generation)
        else:
            link.closed += 1
            if link.is_up:
                self._break(link)
        self._edge("cut")

    def open_link(self, ends: Pair, *, is_silent: bool) -> None:
        """Undo one cut of a link."""
        link = self.links[ends]
        if is_silent:
            for way in link.directions:
                way.silent -= 1
                way.settle()
                if link.is_up and not way.silent:
                    self._release(way)
        else:
            link.closed -= 1
        self._edge("open")
        self._dial(link)

    def deafen(self, source: int, target: int, *, is_deaf: bool) -> None:
        """Begin or cease to drop everything from `source` to `target`, without telling either."""
        way = self.nodes[source].ways[target]
        way.deaf += 1 if is_deaf else -1
        way.settle()
        self._edge("deaf" if is_deaf else "hearing")

    def can_pass(self, ends: Pair) -> bool:
        """Return True if frames pass a link in both directions now."""
        link = self.links[ends]
        return link.is_up and link.can_connect and not any(way.deaf for way in link.directions)

    def live_neighbours(self, identity: int) -> list[int]:
        """Return the neighbours with which a running federator can exchange frames."""
        live = self._live
        if live is None:
            live = self._live = {k: [] for k in self.nodes}
            for (one, other), link in self.links.items():
                if link.is_up and self.can_pass((one, other)):
                    if self.nodes[other].is_running:
                        live[one].append(other)
                    if self.nodes[one].is_running:
                        live[other].append(one)
        return live[identity]

    def components(self) -> list[list[int]]:
        """Return the running federators, grouped by which of them can reach each other."""
        running = [identity for identity, node in self.nodes.items() if node.is_running]
        return components(running, self.live_neighbours)

    def longest_way_s(self) -> float:
        """Return the travel time between the two federators that are furthest apart now. Meant for small overlays."""
        longest = 0.0
        for start in self.nodes:
            found = {start: 0.0}
            edge = [(0.0, start)]
            while edge:
                so_far_s, identity = heapq.heappop(edge)
                if so_far_s > found[identity]:
                    continue
                for other in self.live_neighbours(identity):
                    time_s = so_far_s + self.nodes[identity].ways[other].latency_s
                    if time_s < found.get(other, float("inf")):
                        found[other] = time_s
                        heapq.heappush(edge, (time_s, other))
            longest = max(longest, *found.values())
        return longest

    def _dial(self, link: Link) -> None:
        low, high = RECONNECT_A
        delay_s = self.random.uniform(low, high) * self.interval_s
        self.engine.after(delay_s, self._connect, link)

    def _connect(self, link: Link) -> None:
        one, other = (self.nodes[end] for end in link.ends)
        if link.is_up or not link.can_connect or one.machine is None or other.machine is None:
            return
        if one.is_paused or other.is_paused:
            self._dial(link)
            return
        link.is_up = True
        link.generation += 1
        self.engine.note(Record.LINK_UP, *link.ends)
        self._edge("link up")
        for way in link.directions:
            way.stalled.clear()
            self.engine.after(way.latency_s, self._link_up, way, link.generation)

    def _link_up(self, way: Direction, generation: int) -> None:
        node = self.nodes[way.target]
        if way.link.generation == generation and way.link.is_up and node.machine is not None:
            # Noticing that a new link is deaf in one direction takes as long as noticing that an old one became so.
            self._edge("deaf" if any(side.deaf for side in way.link.directions) else "link up")
            self._tell_link(node, way, LinkUp(way.source))

    def _break(self, link: Link) -> None:
        """Tell both ends that the connection is gone. Everything in flight is lost."""
        link.is_up = False
        link.generation += 1
        self.engine.note(Record.LINK_DOWN, *link.ends)
        for way in link.directions:
            for frame in way.stalled:
                self._lost(frame)
            way.stalled.clear()
            # Noise may repeat old control frames over a new connection, but not data. A connection is not a carrier of
            # datagrams, and a federator that restarted in between knows only what the host broker took of the data.
            way.remembered = [frame for frame in way.remembered if not isinstance(frame, tuple)]
            self.engine.after(way.latency_s, self._link_down, way)
        self._edge("link down")
        self._dial(link)

    def _link_down(self, way: Direction) -> None:
        node = self.nodes[way.target]
        if node.machine is not None and (way.is_known or node.is_paused):
            self._edge("link down")
            self._tell_link(node, way, LinkDown(way.source))

    def _tell_link(self, node: Node, way: Direction, event: LinkUp | LinkDown) -> None:
        """Tell a federator of its link. A paused one hears it in order, after what its sockets hold."""
        if node.is_paused:
            node.inbox.append((self._tell_link, (node, way, event)))
            return
        is_up = isinstance(event, LinkUp)
        if is_up or way.is_known:
            way.is_known = is_up
            self._step(node, event)

    def _give_up(self, link: Link, generation: int) -> None:
        """Break a connection through which nothing came for too long, unless it is open again."""
        if link.is_up and link.generation == generation and any(way.silent for way in link.directions):
            self._break(link)

    def _give_up_dead(self, link: Link, generation: int) -> None:
        """Break the connection of an end that was killed in silence.

        A restart makes a new one, which also ends the old one.
        """
        if link.is_up and link.generation == generation:
            self._break(link)

    def _release(self, way: Direction) -> None:
        """Deliver the frames that were held back, in order, because the direction is open again in time."""
        stalled, way.stalled = way.stalled, []
        for frame in stalled:
            self.engine.after(way.latency_s, self._arrive, way, way.link.generation, frame)

    # --- frames ---

    def _send(self, node: Node, neighbour: int, frame: object) -> None:
        way = node.ways.get(neighbour)
        if way is None or not way.link.is_up:
            self._lost(frame)
            return
        if way.is_plain:
            self.engine.after(way.latency_s, self._arrive, way, way.link.generation, frame)
        else:
            self._send_oddly(way, frame)

    def _send_oddly(self, way: Direction, frame: object) -> None:
        """Send a frame over a direction that has a fault."""
        engine, random, noise = self.engine, self.random, way.link.noise
        if way.deaf:
            self._lost(frame)
            return
        if way.silent:
            way.stalled.append(frame)
            return
        if noise is None:
            engine.after(way.latency_s, self._arrive, way, way.link.generation, frame)
            return
        # Data without a token is of QoS 0. Nobody has custody of it, so nobody would send it again.
        if (not isinstance(frame, tuple) or frame[0]) and random.random() < noise.loss:
            self._lost(frame)
            return
        delay_s = way.latency_s
        if random.random() < noise.reorder:
            delay_s += random.random() * noise.delay_s_max
        engine.after(delay_s, self._arrive, way, way.link.generation, frame)
        remembered = way.remembered
        remembered.append(frame)
        if len(remembered) > REMEMBERED_FRAMES:
            del remembered[0]
        if random.random() < noise.replay:
            delay_s += random.random() * noise.delay_s_max
            again = random.choice(remembered)
            self.counters["frames_replayed"] += 1
            engine.after(delay_s, self._arrive, way, way.link.generation, again)

    def _arrive(self, way: Direction, generation: int, frame: object) -> None:
        node = self.nodes[way.target]
        if way.link.generation != generation or node.machine is None:
            self._lost(frame)
            return
        self._take(node, way.source, frame)

    def _take(self, node: Node, source: int, frame: object) -> None:
        if node.is_paused:
            # The frame is in the buffer of the socket. It will be read even if the connection ends meanwhile.
            node.inbox.append((self._take, (node, source, frame)))
            return
        if isinstance(frame, tuple):
            self._take_data(node, source, frame)
            return
        ends = source << 32 | node.identity
        if isinstance(frame, bytes):
            self.engine.note(Record.CONTROL, ends, zlib.crc32(frame))
            frame = codec.decode_control(frame)
        else:
            assert isinstance(frame, ControlFrame)
            self.engine.note(Record.CONTROL, ends, frame.number, len(frame.announcements))
        if self.monitor is not None:
            self.monitor.heard(node, source, frame)
        self._step(node, Received(source, frame))

    def _lost(self, frame: object) -> None:
        if isinstance(frame, Data):
            self.counters["data_frames_lost"] += 1
            if self.monitor is not None:
                self.monitor.lost_in_flight(self.runs_of(frame))
        elif isinstance(frame, tuple):
            self.counters["acks_lost"] += 1
        else:
            self.counters["control_frames_lost"] += 1

    def _take_data(self, node: Node, neighbour: int, frame: tuple[Any, ...]) -> None:
        """Handle a data frame, summaries, or the acknowledgement of one of them."""
        now = self.engine.now
        if isinstance(frame, Ack):
            self._carry_out(node, node.running.acknowledged(now, neighbour, (frame.token,)))
            return
        receipt = 0
        if frame[0]:
            receipt = next(self._receipts)
            node.receipts[receipt] = (neighbour, self.link_between(node.identity, neighbour).generation, frame[0])
        if isinstance(frame, Summaries):
            self.engine.note(Record.DATA, neighbour << 32 | node.identity, len(frame.summaries))
            self._step(node, Summarised(neighbour, frame.summaries, receipt))
        else:
            assert isinstance(frame, Data)
            self._forward(node, neighbour, frame, receipt)

    def _forward(self, node: Node, neighbour: int, frame: Data, receipt: int) -> None:
        runs = self.runs_of(frame)
        ends = neighbour << 32 | node.identity
        if isinstance(frame.body, bytes):
            self.engine.note(Record.DATA, ends, zlib.crc32(frame.body))
        else:
            self.engine.note(Record.DATA, ends, runs[0].origin, runs[0].first, len(runs))
        routed = node.running.forward(self.engine.now, neighbour, runs, receipt)
        if self.monitor is not None:
            self.monitor.forwarded(node, neighbour, runs, routed)
        self._route(node, routed)

    def runs_of(self, frame: Data) -> tuple[Run, ...]:
        """Return the runs of a data frame. Decode them if frames are bytes."""
        return tuple(codec.decode_data(frame.body)) if isinstance(frame.body, bytes) else frame.body

    def _route(self, node: Node, routed: Routed) -> None:
        for neighbour, runs in routed.frames.items():
            self._send_runs(node, neighbour, runs, routed.tokens.get(neighbour, 0))
        if routed.deliveries:
            self._deliver(node, routed.deliveries, routed.tokens.get(HOST, 0))
        if routed.effects:
            self._carry_out(node, routed.effects)
        self._watch_deadline(node)

    def _deliver(self, node: Node, runs: Sequence[Run], token: int) -> None:
        """Publish runs at the host broker, which acknowledges those of QoS 1 and 2 a moment later."""
        if not node.host.is_up:
            if token:
                node.untaken.append((runs, token))
            return
        self.engine.note(Record.DELIVER, node.identity, sum(run.length for run in runs))
        # The broker recognises a publication of QoS 2 by the packet identifier that the journal kept for it.
        fresh = [new for run in runs for new in (node.disk.assign(run) if run.qos == 2 else (run,))]
        if self.monitor is not None and fresh:
            self.monitor.delivered(node, fresh)
        if token:
            self.engine.after(HOST_S, self._taken, node, node.machine, runs, token)
            if node.doom is not None:
                doom, node.doom = node.doom, None
                self.engine.after(HOST_S / 2, doom)

    def _taken(self, node: Node, machine: Machine, runs: Sequence[Run], token: int) -> None:
        if node.machine is not machine:
            return
        if node.is_paused:
            node.inbox.append((self._taken, (node, machine, runs, token)))
            return
        for run in runs:
            node.disk.deliver(run)
        if self.monitor is not None:
            self.monitor.taken(node, runs)
        self._carry_out(node, machine.acknowledged(self.engine.now, HOST, (token,)))

    def _send_runs(self, node: Node, neighbour: int, runs: Sequence[Run], token: int) -> None:
        self.data_frames += 1
        if self.monitor is not None:
            self.monitor.sending(node, neighbour, runs)
        # Data, summaries and acknowledgements under way are tuples and a control frame is not. That tells them apart.
        self._send(node, neighbour, Data(token, codec.encode_data(tuple(runs)) if self.is_wire else tuple(runs)))

    # --- steps of a machine ---

    def _step(self, node: Node, event: Event) -> None:
        if node.is_paused:
            node.inbox.append((self._step, (node, event)))
            return
        machine = node.machine
        if machine is None:
            return
        self._carry_out(node, machine.step(self.engine.now, event))
        if self.monitor is not None:
            self.monitor.stepped(node, event)

    def _watch_deadline(self, node: Node) -> None:
        machine = node.machine
        if machine is not None and machine.deadline < node.tick_at:
            node.tick_at = max(machine.deadline, self.engine.now)
            self.engine.at(node.tick_at, self._tick, node, node.tick_at)

    def _tick(self, node: Node, tick_at: float) -> None:
        machine = node.machine
        if machine is None or node.is_paused or node.is_leaving or tick_at != node.tick_at:
            return
        node.tick_at = float("inf")
        if machine.deadline <= self.engine.now:
            self.engine.note(Record.TICK, node.identity)
            self._step(node, Tick())
            is_late = node.machine is not None and node.machine.deadline <= self.engine.now
            node.late_ticks = node.late_ticks + 1 if is_late else 0
            if node.late_ticks > LATE_TICKS_MAX:
                text = (
                    f"federator {node.identity} has had {node.late_ticks} ticks in a row and still has a past deadline"
                )
                raise HanseError(f"deadline: {text} (at {self.engine.now:.3f} s)")
        self._watch_deadline(node)

    def _carry_out(self, node: Node, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(neighbour, frame):
                    self._send_control(node, neighbour, frame)
                case SubscribeHost(group):
                    node.host.federator_filters.add(group)
                case SendRuns(neighbour, runs, token):
                    self._send_runs(node, neighbour, runs, token)
                case SendSummaries() | Deliver() | Acknowledge() | Store() | Fetch() | Discard():
                    self._carry_out_custody(node, effect)
                case UnsubscribeHost(group):
                    node.host.federator_filters.discard(group)
                case StoreEpoch(epoch):
                    node.disk.epoch = epoch
                case CloseLink(neighbour, reason):
                    self._close_by_federator(node, neighbour, reason)
                case Emit():
                    self._emit(node, effect)
                case _:
                    assert_never(effect)
        self._watch_deadline(node)

    def _carry_out_custody(
        self, node: Node, effect: SendSummaries | Deliver | Acknowledge | Store | Fetch | Discard
    ) -> None:
        match effect:
            case SendSummaries(neighbour, summaries, token):
                if self.is_wire:
                    summaries = codec.decode_summaries(codec.encode_summaries(summaries))
                self._send(node, neighbour, Summaries(token, summaries))
            case Deliver(runs, token):
                self._deliver(node, runs, token)
            case Acknowledge(giver, receipts):
                for receipt in receipts:
                    self._acknowledge(node, giver, receipt)
            case Store(way, position, records):
                node.disk.store(way, position, records)
                self.counters["records_stored"] += len(records)
                self.engine.after(DISK_S, self._disk_done, node, node.machine, Stored(way, position + len(records)))
            case Fetch(way, start, end):
                fetched = Fetched(way, node.disk.fetch(way, start, end), end)
                self.engine.after(DISK_S, self._disk_done, node, node.machine, fetched)
            case Discard(way, positions):
                node.disk.discard(way, positions)
            case _:
                assert_never(effect)

    def _disk_done(self, node: Node, machine: Machine, event: Event) -> None:
        if node.machine is machine:
            self._step(node, event)

    def _acknowledge(self, node: Node, giver: int, receipt: int) -> None:
        if giver == HOST:
            node.host.acknowledge(receipt)
            return
        neighbour, generation, token = node.receipts.pop(receipt)
        assert neighbour == giver, "an acknowledgement goes to the neighbour that sent the frame"
        way = node.ways[neighbour]
        if way.link.is_up and way.link.generation == generation:
            self._send(node, neighbour, Ack(token))

    def _send_control(self, node: Node, neighbour: int, frame: ControlFrame) -> None:
        self.control_frames += 1
        self.announcements += len(frame.announcements)
        if self.is_weighing:
            body = codec.encode_control(frame)
            self.control_bytes += len(body)
            self.control_bytes_largest = max(self.control_bytes_largest, len(body))
            if self.is_wire:
                self._send(node, neighbour, body)
                return
        self._send(node, neighbour, frame)

    def _close_by_federator(self, node: Node, neighbour: int, reason: str) -> None:
        self.counters["links_closed_by_federator"] += 1
        if self.monitor is not None:
            self.monitor.closed(node, neighbour, reason)
        way = node.ways.get(neighbour)
        if way is not None and way.link.is_up:
            self._break(way.link)

    def _emit(self, node: Node, effect: Emit) -> None:
        self.emitted[effect.name] += 1
        self.engine.note(Record.EMIT, node.identity, zlib.crc32(effect.name.encode()), effect.core)
        if self.monitor is not None:
            self.monitor.emitted(node, effect)

    # --- clients ---

    def subscribe(self, client: Client, topic_filter: str) -> None:
        """Subscribe a client at its broker. The federator hears of it at once."""
        node = self.nodes[client.broker]
        if node.host.subscribe(client, topic_filter, self.engine.now):
            self.engine.note(Record.INTEREST, client.broker, 1, zlib.crc32(topic_filter.encode()))
            if self.monitor is not None:
                self.monitor.interest_changed(node, topic_filter)
            if node.machine is not None:
                self._change_interest(node, [topic_filter], Subscribed)

    def unsubscribe(self, client: Client, topic_filter: str) -> None:
        """Unsubscribe a client at its broker."""
        node = self.nodes[client.broker]
        if self.monitor is not None:
            self.monitor.unsubscribing(client, topic_filter)
        if node.host.unsubscribe(client, topic_filter):
            self.engine.note(Record.INTEREST, client.broker, 0, zlib.crc32(topic_filter.encode()))
            if self.monitor is not None:
                self.monitor.interest_changed(node, topic_filter)
            if node.machine is not None:
                self._change_interest(node, [topic_filter], Unsubscribed)

    def rank(self, identity: int, group: str, rank: int) -> None:
        """Give a federator a rank for a group, as the manager does."""
        event = Ranked(group, rank)
        self.nodes[identity].ranks[f"rank {group}"] = event
        self._step(self.nodes[identity], event)

    def appoint(self, identity: int, group: str, *, is_appointed: bool = True) -> None:
        """Appoint or dismiss a federator as core of a group, as the manager does."""
        event = Appointed(group, is_appointed)
        self.nodes[identity].ranks[f"appointed {group}"] = event
        self._step(self.nodes[identity], event)

    def publish(self, identity: int, messages: Sequence[tuple[int, str, int]], text: bytes = b"") -> None:
        """Publish `(number, topic, qos)` as clients of a broker. Its federator reads them as one batch."""
        node = self.nodes[identity]
        if not node.host.is_up:
            return
        self.engine.note(Record.PUBLISH, identity, *(number for number, _, _ in messages))
        taken = []
        for number, topic, qos in messages:
            packet = publish_packet(topic, qos, number, text)
            is_told = node.host.tells_federator(topic)
            if self.monitor is not None:
                self.monitor.published(node, number, topic, qos, packet, is_told=is_told)
            if is_told:
                taken.append(Publication(topic, qos, packet))
        if taken:
            receipt = next(self._receipts)
            node.host.keep(receipt, taken)
            if node.machine is not None:
                self._publish(node, taken, receipt)

    def _publish(self, node: Node, publications: list[Publication], receipt: int) -> None:
        machine = node.machine
        if machine is None:
            return  # the session keeps what is above QoS 0
        if node.is_paused:
            node.inbox.append((self._publish, (node, publications, receipt)))
            return
        again = node.disk.given.get(receipt)
        if again is None:
            node.disk.given[receipt] = (machine.epoch, machine.next_id)
        if all(publication.qos == 0 for publication in publications):
            node.host.acknowledge(receipt)
        routed = machine.publish(self.engine.now, publications, receipt, again)
        if self.monitor is not None:
            self.monitor.routed(node, publications, routed)
        self._route(node, routed)

    def stop_host(self, identity: int) -> None:
        """Kill a host broker. Its federator lives on and subscribes again when the broker is back."""
        node = self.nodes[identity]
        node.host.is_up = False
        node.host.federator_filters.clear()
        lost = node.host.take_session()
        if self.monitor is not None:
            self.monitor.lost_with_host([publication for batch in lost.values() for publication in batch])
        if self.monitor is not None:
            self.monitor.host_stopped(node)

    def start_host(self, identity: int) -> None:
        """Restart a host broker with its clients' persistent sessions. The shell subscribes again."""
        node = self.nodes[identity]
        node.host.is_up = True
        if node.machine is not None:
            node.host.federator_filters = set(node.machine.host_subscriptions())
            untaken, node.untaken = node.untaken, []
            for runs, token in untaken:
                self._deliver(node, runs, token)
        if self.monitor is not None:
            self.monitor.host_started(node)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.engine.run_until(self.engine.now + seconds)

    def link_between(self, one: int, other: int) -> Link:
        """Return the link with these ends."""
        return self.links[pair(one, other)]

    def _edge(self, kind: str) -> None:
        self._live = None
        if self.monitor is not None:
            self.monitor.edge(kind)
