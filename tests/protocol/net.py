"""A federation in memory: real machines, a heap of events, and links that carry bytes.

Every frame is encoded and decoded on its way, so each test exercises the wire as well. Each machine has a host broker
that implements No Local and the host subscriptions: publications that the federator is not subscribed to never reach
it.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hanse.protocol import codec, topics
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
    Event,
    Fetched,
    Leave,
    LinkDown,
    LinkUp,
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
from hanse.protocol.packets import split, topic_of
from hanse.protocol.settings import Settings

Link = tuple[int, int]


def packet(topic: str, payload: bytes = b"", qos: int = 0) -> bytes:
    """Return a PUBLISH packet as it travels: DUP 0, packet identifier 0, no properties."""
    name = topic.encode()
    rest = len(name).to_bytes(2, "big") + name + (b"\0\0" if qos else b"") + b"\0" + payload
    size = len(rest)
    length = bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes((0x30 | qos << 1,)) + bytes(length) + rest


def publication(topic: str, payload: bytes = b"", qos: int = 0) -> Publication:
    return Publication(topic, qos, packet(topic, payload, qos))


class Sent(NamedTuple):
    """One frame that went over a link."""

    at: float
    source: int
    target: int
    control: ControlFrame | None
    runs: tuple[Run, ...]
    size_bytes: int
    summaries: tuple[Summary, ...] = ()


class Delivered(NamedTuple):
    """One publication that a federator handed to its host broker."""

    at: float
    broker: int
    topic: str
    packet: bytes


class Emitted(NamedTuple):
    """One reported event."""

    at: float
    broker: int
    emit: Emit


@dataclass(slots=True)
class Host:
    """The parts beside a federator that outlive it: the host broker with its clients, and the disk."""

    interest: set[str]
    subscriptions: set[str]
    epoch: int = 0
    # The federator's disk: the outbox by destination and position, and what the host broker has acknowledged.
    outbox: dict[int, dict[int, bytes]] = field(default_factory=dict)
    delivered: list[tuple[int, int, int, int]] = field(default_factory=list)
    # Receipts that the host broker gave and has not got back.
    unacknowledged: set[int] = field(default_factory=set)
    is_taking: bool = True


class Network:
    """Federators 0 to `size` - 1 (or those named), and the links between them."""

    def __init__(
        self,
        brokers: int | Iterable[int],
        links: Iterable[Link] = (),
        *,
        latency_s: float | dict[Link, float] = 0.01,
        wall_s: int = 1_000,
        interest: Mapping[int, Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        self.now = 0.0
        self.latency_s = latency_s
        self.settings = Settings(**settings)
        self.hosts: dict[int, Host] = {}
        self.machines: dict[int, Machine] = {}
        self.sent: list[Sent] = []
        self.deliveries: list[Delivered] = []
        self.emitted: list[Emitted] = []
        self.closed: list[tuple[int, CloseLink]] = []
        # Directions that lose everything silently.
        self.deaf: set[Link] = set()
        self._links: dict[Link, int] = {}
        self._incarnations = itertools.count(1)
        self._order = itertools.count()
        self._receipts = itertools.count(1)
        # Receipt of a frame to its sender, its token and its connection.
        self._frames: dict[int, tuple[int, int, int, int]] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._ticks: dict[int, float] = {}
        for identity in range(brokers) if isinstance(brokers, int) else brokers:
            self.hosts[identity] = Host(set((interest or {}).get(identity, ())), set())
            self.start(identity, wall_s=wall_s)
        for one, other in links:
            self.link(one, other)

    # --- actions ----------------------------------------------------------------------------------------------

    def start(self, identity: int, *, wall_s: int = 1_000, stored_epoch: int | None = None) -> None:
        """Boot a federator with what its disk holds. Interest that is known is reported before any link."""
        host = self.hosts[identity]
        stored = host.epoch if stored_epoch is None else stored_epoch
        machine = Machine(identity, self.settings, now=self.now, wall_s=wall_s, stored_epoch=stored)
        self.machines[identity] = machine
        host.subscriptions.clear()
        self._carry_out(identity, machine.start(self.now))
        if host.outbox or host.delivered:
            outbox = {
                way: (min(records, default=0), max(records, default=-1) + 1) for way, records in host.outbox.items()
            }
            self._carry_out(identity, machine.restore(self.now, delivered=host.delivered, outbox=outbox))
        for filter_ in sorted(host.interest):
            self.step(identity, Subscribed(filter_))

    def crash(self, identity: int) -> None:
        """Crash a federator: it sends no goodbye, and its links are gone."""
        self._ticks.pop(identity, None)
        del self.machines[identity]
        for one, other in [link for link in self._links if identity in link and link[0] < link[1]]:
            self.cut(one, other)

    def restart(self, identity: int, links: Iterable[int], **boot: int) -> None:
        """Boot a federator that crashed, and link it to its neighbours again."""
        self.start(identity, **boot)
        for neighbour in links:
            self.link(identity, neighbour)

    def leave(self, identity: int) -> None:
        """Let a federator say goodbye, and then end its links."""
        self.step(identity, Leave())
        self.run(0.1)
        self.crash(identity)

    def link(self, one: int, other: int) -> None:
        self._links[one, other] = self._links[other, one] = next(self._incarnations)
        self.step(one, LinkUp(other))
        self.step(other, LinkUp(one))

    def cut(self, one: int, other: int, *, is_removed: bool = False) -> None:
        """End a link. What is under way on it is lost."""
        del self._links[one, other], self._links[other, one]
        for here, there in ((one, other), (other, one)):
            if here in self.machines:
                self.step(here, LinkDown(there, is_removed))

    def subscribe(self, broker: int, *filters: str) -> None:
        for filter_ in filters:
            self.hosts[broker].interest.add(filter_)
            self.step(broker, Subscribed(filter_))

    def unsubscribe(self, broker: int, filter_: str) -> None:
        self.hosts[broker].interest.discard(filter_)
        self.step(broker, Unsubscribed(filter_))

    def publish(self, broker: int, topic: str, payload: bytes = b"", qos: int = 0) -> bool:
        """Publish at a host broker. Return whether its federator is subscribed and so gets the publication."""
        if not any(topics.matches(group, topic) for group in self.hosts[broker].subscriptions):
            return False
        receipt = next(self._receipts) if qos else 0
        if receipt:
            self.hosts[broker].unacknowledged.add(receipt)
        routed = self.machines[broker].publish(self.now, [publication(topic, payload, qos)], receipt)
        self._route(broker, routed)
        return True

    def step(self, broker: int, event: Event) -> list[Effect]:
        effects = self.machines[broker].step(self.now, event)
        self._carry_out(broker, effects)
        return effects

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, happen = heapq.heappop(self._queue)
            happen()
        self.now = end

    # --- questions --------------------------------------------------------------------------------------------

    def cores(self, group: str) -> set[int | None]:
        """Return the cores that the federators accept for a group."""
        return {machine.core_of(group) for machine in self.machines.values()}

    def claimants(self, group: str) -> list[int]:
        return sorted(i for i, machine in self.machines.items() if group in machine._claims.own.groups)

    def got(self, broker: int) -> list[str]:
        """Return the topics that the federator handed to its host broker, in order."""
        return [delivered.topic for delivered in self.deliveries if delivered.broker == broker]

    def mesh_links(self, group: str) -> set[Link]:
        """Return the links of a group's mesh, as both ends see them."""
        ends = {(i, n) for i, machine in self.machines.items() for n in machine.mesh_neighbours(group)}
        return {(one, other) for one, other in ends if one < other and (other, one) in ends}

    def control_since(self, at: float) -> list[Sent]:
        return [sent for sent in self.sent if sent.at > at and sent.control is not None]

    def names_emitted(self, broker: int) -> list[str]:
        return [emitted.emit.name for emitted in self.emitted if emitted.broker == broker]

    # --- internals --------------------------------------------------------------------------------------------

    def _carry_out(self, broker: int, effects: Iterable[Effect]) -> None:
        host = self.hosts[broker]
        for effect in effects:
            match effect:
                case Send(neighbour, frame):
                    self._transmit(broker, neighbour, codec.encode_control(frame))
                case SendRuns(neighbour, runs, token):
                    self._transmit(broker, neighbour, codec.encode_data(runs), token)
                case SendSummaries() | Deliver() | Acknowledge() | Store() | Fetch() | Discard():
                    self._carry_out_custody(broker, effect)
                case SubscribeHost(group):
                    assert group not in host.subscriptions
                    host.subscriptions.add(group)
                case UnsubscribeHost(group):
                    host.subscriptions.remove(group)
                case StoreEpoch(epoch):
                    assert epoch > host.epoch, "an epoch is used once"
                    host.epoch = epoch
                case CloseLink():
                    self.closed.append((broker, effect))
                case Emit():
                    self.emitted.append(Emitted(self.now, broker, effect))
        machine = self.machines[broker]
        assert host.subscriptions == machine.host_subscriptions()
        self._watch(broker, machine)

    def _carry_out_custody(
        self, broker: int, effect: SendSummaries | Deliver | Acknowledge | Store | Fetch | Discard
    ) -> None:
        host = self.hosts[broker]
        match effect:
            case SendSummaries(neighbour, summaries, token):
                self._transmit(broker, neighbour, codec.encode_summaries(summaries), token)
            case Deliver(runs, token):
                self._deliver(broker, runs, token)
            case Acknowledge(giver, receipts):
                self._acknowledge(broker, giver, receipts)
            case Store(way, position, records):
                for offset, runs in enumerate(records):
                    host.outbox.setdefault(way, {})[position + offset] = codec.encode_data(runs)
                self._after(broker, 0.002, Stored(way, position + len(records)))
            case Fetch(way, start, end):
                found = [(k, host.outbox[way][k]) for k in sorted(host.outbox[way]) if start <= k < end]
                runs_of = tuple((k, tuple(codec.decode_data(data, is_record=True))) for k, data in found)
                self._after(broker, 0.002, Fetched(way, runs_of, end))
            case Discard(way, positions):
                for position in positions:
                    host.outbox[way].pop(position, None)

    def _watch(self, broker: int, machine: Machine) -> None:
        if machine.is_stopped:
            return
        if self._ticks.get(broker) != machine.deadline:
            deadline = self._ticks[broker] = machine.deadline
            self._at(deadline, lambda: self._tick(broker, machine, deadline))

    def _after(self, broker: int, seconds: float, event: Event) -> None:
        machine = self.machines[broker]

        def happen() -> None:
            if self.machines.get(broker) is machine:
                self.step(broker, event)

        self._at(self.now + seconds, happen)

    def _route(self, broker: int, routed: Routed) -> None:
        for neighbour, runs in routed.frames.items():
            self._transmit(broker, neighbour, codec.encode_data(runs), routed.tokens.get(neighbour, 0))
        if routed.deliveries:
            self._deliver(broker, routed.deliveries, routed.tokens.get(HOST, 0))
        self._carry_out(broker, routed.effects)

    def _deliver(self, broker: int, runs: Sequence[Run], token: int) -> None:
        host, machine = self.hosts[broker], self.machines[broker]
        if not host.is_taking:
            return
        for run in runs:
            for start, end in split(run.body):
                publish = run.body[start:end]
                self.deliveries.append(Delivered(self.now, broker, topic_of(publish), publish))

        def taken() -> None:
            if self.machines.get(broker) is machine:
                host.delivered.extend((run.origin, run.epoch, run.first, run.length) for run in runs if run.qos)
                self._carry_out(broker, machine.acknowledged(self.now, HOST, [token]))

        if token:
            self._at(self.now + 0.001, taken)

    def _acknowledge(self, broker: int, giver: int, receipts: Sequence[int]) -> None:
        for receipt in receipts:
            if giver == HOST:
                self.hosts[broker].unacknowledged.discard(receipt)
                continue
            source, target, incarnation, token = self._frames[receipt]
            assert (source, target) == (giver, broker)
            if self._links.get((source, target)) != incarnation or (target, source) in self.deaf:
                continue

            def taken(
                source: int = source, target: int = target, incarnation: int = incarnation, token: int = token
            ) -> None:
                if self._links.get((source, target)) == incarnation:
                    self._carry_out(source, self.machines[source].acknowledged(self.now, target, [token]))

            self._at(self.now + self._latency_s(target, source), taken)

    def _latency_s(self, source: int, target: int) -> float:
        return self.latency_s if isinstance(self.latency_s, float) else self.latency_s[source, target]

    def _transmit(self, source: int, target: int, data: bytes, token: int = 0) -> None:
        kind = codec.kind_of(data)
        control = codec.decode_control(data) if kind == codec.CONTROL else None
        runs = tuple(codec.decode_data(data)) if kind == codec.DATA else ()
        summaries = codec.decode_summaries(data) if kind == codec.SUMMARIES else ()
        sent = Sent(self.now, source, target, control, runs, len(data), summaries)
        self.sent.append(sent)
        incarnation = self._links.get((source, target))
        if incarnation is None or (source, target) in self.deaf:
            return
        self._at(self.now + self._latency_s(source, target), lambda: self._arrive(sent, incarnation, token))

    def _arrive(self, sent: Sent, incarnation: int, token: int) -> None:
        source, target = sent.source, sent.target
        if self._links.get((source, target)) != incarnation:
            return
        receipt = 0
        if token:
            receipt = next(self._receipts)
            self._frames[receipt] = (source, target, incarnation, token)
        if sent.control is not None:
            self.step(target, Received(source, sent.control))
        elif sent.summaries:
            self.step(target, Summarised(source, sent.summaries, receipt))
        else:
            self._route(target, self.machines[target].forward(self.now, source, sent.runs, receipt))

    def _tick(self, broker: int, machine: Machine, deadline: float) -> None:
        if self._ticks.get(broker) == deadline and self.machines.get(broker) is machine:
            del self._ticks[broker]
            self.step(broker, Tick())

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), happen))


class Desk:
    """One machine whose neighbours are played by the test. They send what the test says, right or wrong."""

    def __init__(
        self, identity: int = 5, peers: Sequence[int] = (1, 2), *, wall_s: int = 1_000, **settings: Any
    ) -> None:
        self.now = 0.0
        settings.setdefault("coalescing_s", 0.0)  # a frame is answered in the same step
        self.machine = Machine(identity, Settings(**settings), now=0.0, wall_s=wall_s)
        self.frames: dict[int, list[ControlFrame]] = {}
        self.effects: list[Effect] = []
        self._numbers: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self._take(self.machine.start(0.0))
        for peer in peers:
            self.up(peer)

    def up(self, peer: int) -> list[Effect]:
        self.epochs.setdefault(peer, 1_000)
        return self.step(LinkUp(peer))

    def step(self, event: Event) -> list[Effect]:
        return self._take(self.machine.step(self.now, event))

    def frame(self, peer: int, **parts: Any) -> ControlFrame:
        """Return the peer's next frame, which echoes the last that it was sent, unless given otherwise."""
        self._numbers[peer] = self._numbers.get(peer, 0) + 1
        heard = self.frames.get(peer, [])
        parts.setdefault("echo_epoch", heard[-1].epoch if heard else 0)
        parts.setdefault("echo_number", heard[-1].number if heard else 0)
        parts.setdefault("epoch", self.epochs[peer])
        parts.setdefault("number", self._numbers[peer])
        frame = ControlFrame(sender=parts.pop("sender", peer), **parts)
        return codec.decode_control(codec.encode_control(frame))

    def say(self, peer: int, **parts: Any) -> list[Effect]:
        """Send a frame of the peer. Return the effects of the machine at once."""
        return self.step(Received(peer, self.frame(peer, **parts)))

    def wait(self, seconds: float, *, talking: Sequence[int] = ()) -> list[Effect]:
        """Let time pass. The peers in `talking` send an empty frame, with its echo, after each round."""
        end = self.now + seconds
        before = len(self.effects)
        while self.machine.deadline <= end:
            is_round = self.machine.deadline == self.machine._alarms.next_round_at
            self.now = max(self.now, self.machine.deadline)
            self.step(Tick())
            for peer in talking if is_round else ():
                self.say(peer)
        self.now = end
        return self.effects[before:]

    def last_to(self, peer: int) -> ControlFrame:
        return self.frames[peer][-1]

    def emitted(self, name: str) -> list[Emit]:
        return [effect for effect in self.effects if isinstance(effect, Emit) and effect.name == name]

    def _take(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Send):
                self.frames.setdefault(effect.neighbour, []).append(
                    codec.decode_control(codec.encode_control(effect.frame))
                )
        return effects
