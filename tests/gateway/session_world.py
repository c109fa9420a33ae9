"""A simulation of clients, one gateway, two or three brokers and their federators, in simulated time.

The sessions are the gateway's own; everything around them is a model that keeps to MQTT and to what Mosquitto and the
federators do. One seed makes one run. Bytes are cut at random places. The checkers state what a failover guarantees.
"""

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.gateway import packets as p

from hanse.gateway.front.connect import read_connect
from hanse.gateway.session import Counters, Session, Settings, new_session
from hanse.gateway.session import events as e
from hanse.gateway.session.publication import read_publish
from hanse.gateway.session.replayed import read_replayed
from hanse.gateway.session.requests import read_request
from hanse.gateway.session.stream import end_of
from hanse.protocol.topics import matches

RETENTION_S = 7.0
WINDOW = 20


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole packets at the start, and the rest."""
    found = []
    i = 0
    while i + 2 <= len(data):
        end = end_of(data, i, len(data))
        if not end or end > len(data):
            break
        found.append(data[i:end])
        i = end
    return found, data[i:]


def body_at(packet: bytes) -> int:
    i = 1
    while packet[i] > 127:
        i += 1
    return i + 1


def id_of(packet: bytes) -> int:
    body = body_at(packet)
    return packet[body] << 8 | packet[body + 1]


class Clock:
    """Simulated time."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, after_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + after_s, next(self._count), do))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, do = heapq.heappop(self._due)
            do()
        self.now = until


class Pipe:
    """Bytes in one direction of one connection: in order, late, and cut at random places."""

    def __init__(
        self, clock: Clock, take: Callable[[bytes], None], ended: Callable[[], None], latency_s: float
    ) -> None:
        self.clock = clock
        self.take = take
        self.ended = ended
        self.latency_s = latency_s
        self.is_open = True
        self.is_blocked = False
        self._queue: deque[bytes | None] = deque()
        self._last = 0.0

    def send(self, data: bytes) -> None:
        if not self.is_open or not data:
            return
        if len(data) > 1 and self.clock.random.random() < 0.3:
            cut = self.clock.random.randrange(1, len(data))
            self._push(data[:cut])
            data = data[cut:]
        self._push(data)

    def finish(self) -> None:
        """Close after the sent bytes."""
        if self.is_open:
            self.is_open = False
            self._push(None)

    def cut(self) -> None:
        """Lose a random part of the bytes on their way, and end."""
        self.is_open = False
        self._queue = deque(
            one for one in itertools.islice(self._queue, self.clock.random.randrange(len(self._queue) + 1))
        )
        self._push(None)

    def vanish(self) -> None:
        """Lose everything without closing."""
        self.is_open = False
        self._queue.clear()

    def _push(self, data: bytes | None) -> None:
        self._queue.append(data)
        latency = self.latency_s * self.clock.random.uniform(0.2, 1.8)
        at = max(self._last, self.clock.now + latency)
        self._last = at
        self.clock.at(at - self.clock.now, self._arrive)

    def _arrive(self) -> None:
        if self.is_blocked or not self._queue:
            return
        data = self._queue.popleft()
        if data is None:
            self.ended()
        else:
            self.take(data)

    def unblock(self) -> None:
        self.is_blocked = False
        for _ in range(len(self._queue)):
            self._arrive()


@dataclass
class BrokerSession:
    """State of one client at a broker."""

    client_id: bytes
    version: int
    is_lasting: bool
    window: int
    will: tuple[bytes, bytes] | None = None
    connection: "Connection | None" = None
    filters: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    queue: deque[tuple[bytes, bytes, int, bytes]] = field(default_factory=deque)
    inflight: dict[int, int] = field(default_factory=dict)
    packets: dict[int, bytes] = field(default_factory=dict)
    incoming: dict[int, tuple[bytes, bytes, int]] = field(default_factory=dict)
    next_id: int = 0


class Connection:
    """One connection between the gateway and a broker, seen from the broker."""

    def __init__(self, broker: "Broker", take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self.broker = broker
        self.to_gateway = Pipe(broker.world.clock, take, ended, broker.world.latency_s)
        self.to_broker = Pipe(broker.world.clock, self._read, self._ended, broker.world.latency_s)
        self.session: BrokerSession | None = None
        self._have = b""

    def _read(self, data: bytes) -> None:
        if self.broker.is_hung:
            self.broker.held.append(lambda: self._read(data))
            return
        found, self._have = split(self._have + data)
        for packet in found:
            self.broker.world.step("to broker", packet)
            if self.to_gateway.is_open and self.broker.is_up:
                self.broker.packet(self, packet)

    def _ended(self) -> None:
        if self.broker.is_hung:
            self.broker.held.append(self._ended)
            return
        self.broker.closed(self, goodbye=False)

    def send(self, packet: bytes) -> None:
        self.broker.world.step("to gateway", packet)
        self.to_gateway.send(packet)


class Broker:
    """A broker with its federator."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.is_up = True
        self.is_hung = False
        self.held: list[Callable[[], None]] = []
        self.connections: list[Connection] = []
        self.sessions: dict[bytes, BrokerSession] = {}
        self.incarnation = 0
        self._federator_at = 0.0
        # The federator: (time, topic, payload, qos) of what it has seen; it outlives its broker.
        self.retained: deque[tuple[float, bytes, bytes, int]] = deque()
        # All that it ever saw, for the checkers.
        self.seen: list[tuple[float, bytes, bytes, int]] = []
        # What its broker has not been sent yet, and what is on its way there.
        self.outbox: deque[tuple[bytes, bytes, int]] = deque()
        self.in_flight: deque[tuple[bytes, bytes, int]] = deque()

    # --- the broker ---------------------------------------------------------------------------------------------------

    def dial(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> Connection | None:
        if not self.is_up:
            return None
        made = Connection(self, take, ended)
        self.connections.append(made)
        return made

    def kill(self) -> None:
        """End at once: everything in memory is gone."""
        self.is_up = self.is_hung = False
        self.incarnation += 1
        self.held.clear()
        self.sessions.clear()
        for one in self.connections:
            one.to_broker.vanish()
            one.to_gateway.cut()
        self.connections.clear()

    def restart(self) -> None:
        self.is_up = True
        self._hand_over()

    def hang(self) -> None:
        self.is_hung = True

    def go_on(self) -> None:
        self.is_hung = False
        held, self.held = self.held, []
        for do in held:
            do()

    def closed(self, connection: Connection, *, goodbye: bool) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        connection.to_gateway.finish()
        session, connection.session = connection.session, None
        if session is None or session.connection is not connection:
            return
        session.connection = None
        if session.will is not None and not goodbye:
            self.world.wills.append(("broker", session.will))
        if not session.is_lasting:
            del self.sessions[session.client_id]

    def packet(self, connection: Connection, packet: bytes) -> None:
        kind = packet[0] & 0xF0
        session = connection.session
        if kind == 0x10:
            self._connect(connection, packet)
            return
        if session is None:
            connection.to_gateway.finish()
            return
        if kind == 0x30:
            self._publish(connection, session, packet)
        elif kind == 0x40:
            session.inflight.pop(id_of(packet), None)
            self._pump(session)
        elif kind == 0x50:
            assert session.inflight.get(id_of(packet)) == 2, "PUBREC for nothing"
            session.inflight[id_of(packet)] = 3
            connection.send(p.ack(0x62, id_of(packet)))
        elif kind == 0x60:
            found = session.incoming.pop(id_of(packet), None)
            # Mosquitto answers a PUBREL for an unknown identifier with success.
            connection.send(p.ack(0x70, id_of(packet)))
            if found is not None:
                self._route(*found)
        elif kind == 0x70:
            session.inflight.pop(id_of(packet), None)
            self._pump(session)
        elif kind in (0x80, 0xA0):
            self._request(connection, session, packet)
        elif kind == 0xC0:
            connection.send(b"\xd0\x00")
        elif kind == 0xE0:
            if len(packet) > 4:
                session.is_lasting = False
            self.closed(connection, goodbye=True)

    def _connect(self, connection: Connection, packet: bytes) -> None:
        connect = read_connect(packet)
        former = self.sessions.get(connect.client_id)
        if former is not None and former.connection is not None:
            if former.version == 5:
                former.connection.send(p.disconnect(0x8E))
            self.closed(former.connection, goodbye=True)
        if connect.clean_start:
            self.sessions.pop(connect.client_id, None)
        session = self.sessions.get(connect.client_id)
        is_present = session is not None
        if session is None:
            session = BrokerSession(connect.client_id, connect.level, False, WINDOW)
            self.sessions[connect.client_id] = session
        session.is_lasting = connect.session_expiry_s > 0
        session.window = connect.receive_max if connect.level == 5 else WINDOW
        session.will = (connect.will.topic, connect.will.payload) if connect.will else None
        session.connection = connection
        session.incoming.clear()
        connection.session = session
        connection.send(p.connack(connect.level, present=is_present))
        for packet_id, state in session.inflight.items():
            packet = session.packets[packet_id]
            connection.send(p.ack(0x62, packet_id) if state == 3 else bytes((packet[0] | 8,)) + packet[1:])
        self._pump(session)

    def _request(self, connection: Connection, session: BrokerSession, packet: bytes) -> None:
        request = read_request(packet, session.version)
        if not request.is_subscribe:
            for one, _ in request.filters:
                session.filters.pop(one, None)
            connection.send(p.unsuback(request.packet_id, *[0] * len(request.filters), version=session.version))
            return
        for one, options in request.filters:
            session.filters[one] = (options & 3, options, request.identifier)
        codes = [options & 3 for _, options in request.filters]
        connection.send(p.suback(request.packet_id, *codes, version=session.version))

    def _publish(self, connection: Connection, session: BrokerSession, packet: bytes) -> None:
        found = read_publish(packet, session.version)
        if found.payload in self.world.deadly:
            self.world.killed_by[found.payload] += 1
            self.world.kill(self)
            return
        if found.qos == 2:
            session.incoming[found.packet_id] = (found.topic, found.payload, 2)
            connection.send(p.ack(0x50, found.packet_id))
            return
        self._route(found.topic, found.payload, found.qos)
        if found.qos:
            connection.send(p.ack(0x40, found.packet_id))

    def _route(self, topic: bytes, payload: bytes, qos: int, *, is_federated: bool = False) -> None:
        """Deliver to the local clients; the federator gets it a moment later."""
        for session in self.sessions.values():
            granted = [one for name, one in session.filters.items() if matches(name.decode(), topic.decode())]
            if not granted:
                continue
            properties = (
                b"".join(b"\x0b" + bytes((one[2],)) for one in granted if one[2]) if session.version == 5 else b""
            )
            session.queue.append((topic, payload, min(qos, max(one[0] for one in granted)), properties))
            self._pump(session)
        if not is_federated:
            incarnation = self.incarnation
            world, now = self.world, self.world.clock.now
            # In order: the federator has one connection.
            at = max(self._federator_at, now + world.federator_lag_s * world.clock.random.random())
            self._federator_at = at
            world.clock.at(at - now, lambda: self._to_federator(incarnation, topic, payload, qos))

    def _pump(self, session: BrokerSession) -> None:
        connection = session.connection
        while connection is not None and session.queue and len(session.inflight) < session.window:
            topic, payload, qos, properties = session.queue.popleft()
            packet_id = 0
            if qos:
                session.next_id = session.next_id % 65_535 + 1
                while session.next_id in session.inflight:
                    session.next_id = session.next_id % 65_535 + 1
                packet_id = session.next_id
                session.inflight[packet_id] = qos
            packet = p.publish(topic, payload, qos, packet_id, version=session.version, properties=properties)
            session.packets[packet_id] = packet
            connection.send(packet)

    # --- its federator ------------------------------------------------------------------------------------------------

    def _to_federator(self, incarnation: int, topic: bytes, payload: bytes, qos: int) -> None:
        if incarnation != self.incarnation:
            return
        if self.is_hung:
            self.held.append(lambda: self._to_federator(incarnation, topic, payload, qos))
            return
        self._retain(topic, payload, qos)
        for other in self.world.brokers:
            if other is not self:
                lag = self.world.mesh_lag_s
                # In order per pair of federators.
                key = (self.name, other.name)
                at = max(
                    self.world.mesh_at.get(key, 0.0), self.world.clock.now + lag * self.world.clock.random.random()
                )
                self.world.mesh_at[key] = at
                self.world.clock.at(
                    at - self.world.clock.now,
                    lambda other=other: other.from_mesh(topic, payload, qos),  # type: ignore[misc]
                )

    def _retain(self, topic: bytes, payload: bytes, qos: int) -> None:
        now = self.world.clock.now
        while self.retained and self.retained[0][0] < now - RETENTION_S:
            self.retained.popleft()
        self.seen.append((now, topic, payload, qos))
        if qos:
            self.retained.append((now, topic, payload, qos))

    def from_mesh(self, topic: bytes, payload: bytes, qos: int) -> None:
        self._retain(topic, payload, qos)
        self.outbox.append((topic, payload, qos))
        self.world.clock.at(self.world.latency_s * self.world.clock.random.random(), self._hand_over)

    def _hand_over(self) -> None:
        while self.is_up and self.outbox:
            self.in_flight.append(self.outbox.popleft())
            self.world.clock.at(self.world.latency_s, self._handed_over)

    def _handed_over(self) -> None:
        if self.is_hung:
            self.held.append(self._handed_over)
        elif not self.is_up:
            self.outbox.extendleft(reversed(self.in_flight))
            self.in_flight.clear()
        elif self.in_flight:
            self._route(*self.in_flight.popleft(), is_federated=True)

    def replay(
        self, filters: tuple[bytes, ...], age_ms: int, answer: Callable[[list[tuple[int, bytes]]], None]
    ) -> None:
        """Answer with the publications that the federator retains.

        What the broker has not been sent yet will come to the client from there, and is left out. What is on its way to
        the broker may come or not, so the answer waits until it has arrived.
        """
        now = self.world.clock.now
        unsent = Counter(self.outbox)
        found = []
        for at, topic, payload, qos in reversed(self.retained):
            if unsent[(topic, payload, qos)]:
                unsent[(topic, payload, qos)] -= 1
            elif (now - at) * 1000 <= min(age_ms, RETENTION_S * 1000) and any(
                matches(one.decode(), topic.decode()) for one in filters
            ):
                found.append((at, p.publish(topic, payload, qos, 1)))
        found.reverse()
        on_the_way = len(self.in_flight)

        def look() -> None:
            if on_the_way and self.in_flight and self.world.clock.now < now + 1.0 and waits():
                self.world.clock.at(0.001, look)
            else:
                answer([(int((self.world.clock.now - at) * 1000), packet) for at, packet in found])

        last = self.in_flight[-1] if self.in_flight else None

        def waits() -> bool:
            return any(one is last for one in self.in_flight)

        look()


class Driver:
    """The gateway around one session: dials, moves and closes as the worker does."""

    def __init__(self, world: "World", client: "Client") -> None:
        self.world = world
        self.client = client
        self.session: Session = new_session(world.settings, world.counters, world.clock.now)
        self.connection: Connection | None = None
        self.broker: Broker | None = None
        # Where the client's own session is.
        self.home: Broker | None = None
        self.is_client_open = True
        self._is_settling = False
        self._is_placing = False
        self.settled: list[e.Settled] = []
        # Reads that the session does not want yet: of the client (empty at its end), and of the broker.
        self._pending: list[bytes] = []
        self._held: list[bytes] = []
        self.to_client = Pipe(world.clock, client.read, client.closed, world.latency_s)
        self.from_client = Pipe(world.clock, self._client_read, self._client_ended, world.latency_s)

    def begin(self, connect: bytes) -> None:
        self.session.start(read_connect(connect), b"", self.world.clock.now)
        self.place()

    def place(self) -> None:
        if not self._is_placing:
            self._is_placing = True
            self.world.clock.at(self.world.latency_s * self.world.clock.random.random(), self._place_now)

    def _place_now(self) -> None:
        self._is_placing = False
        session = self.session
        if session.is_over or self.connection is not None:
            return
        if not (session.is_moving or not session.is_accepted):
            return
        for broker in self.world.preferred(self.client):
            if not self.world.is_judged_up(broker):
                continue
            self._dial(broker)
            return
        self.world.clock.at(0.2, self.place)

    def _dial(self, broker: Broker) -> None:
        holder: list[Connection] = []
        made = broker.dial(lambda data: self._broker_read(holder[0], data), lambda: self._broker_ended(holder[0]))
        if made is None:
            self.world.clock.at(0.05, self.place)
            return
        holder.append(made)
        if broker in self.world.cut_off:
            made.to_broker.is_blocked = made.to_gateway.is_blocked = True
        self.connection = made
        self.broker = broker
        returns = self.session.is_accepted and broker is self.home and self.session.session_expiry_s > 0
        self.home = self.home or broker
        self.session.attach(self.world.clock.now, clean=False if returns else None)
        self.settle()

    def _client_read(self, data: bytes) -> None:
        if self.session.holds_client:
            # The socket is not read; the bytes wait.
            self._pending.append(data)
            return
        self.session.client_data(data, self.world.clock.now)
        self.settle()

    def _client_ended(self) -> None:
        if self._pending:
            self._pending.append(b"")
            return
        self.is_client_open = False
        self.session.client_lost(self.world.clock.now)
        self.settle()

    def _broker_read(self, connection: Connection, data: bytes) -> None:
        if connection is not self.connection:
            return
        if self.session.holds_broker:
            self._held.append(data)
            return
        self.session.broker_data(data, self.world.clock.now)
        self.settle()

    def _broker_ended(self, connection: Connection) -> None:
        if connection is not self.connection:
            return
        self.connection = None
        broker, self.broker = self.broker, None
        assert broker is not None
        # The verdict takes its time.
        self.world.clock.at(0.05, lambda: self._judge(broker, connection))

    def _judge(self, broker: Broker, connection: Connection) -> None:
        if self.session.is_over or self.connection is not None:
            return
        if not self.world.is_judged_up(broker) or broker.incarnation != self.world.incarnation_at[id(connection)]:
            self.move()
        else:
            self.session.broker_lost(self.world.clock.now)
            self.settle()

    def move(self) -> None:
        """Give up the broker and go to another one."""
        last = self.session.detach(self.world.clock.now)
        self._leave(last)
        self.settle()
        if self.session.is_moving or (not self.session.is_accepted and not self.session.is_over):
            self.place()

    def _leave(self, last: bytes = b"") -> None:
        connection, self.connection = self.connection, None
        self.broker = None
        self._held.clear()
        if connection is not None:
            connection.to_broker.send(last)
            connection.to_broker.finish()

    def settle(self) -> None:
        if self._is_settling:
            return
        self._is_settling = True
        session = self.session
        while True:
            if session.to_broker:
                if self.connection is not None:
                    self.connection.to_broker.send(b"".join(session.to_broker))
                session.to_broker.clear()
            if session.to_client:
                if self.is_client_open:
                    self.to_client.send(b"".join(session.to_client))
                session.to_client.clear()
            if session.events:
                events = session.events[:]
                session.events.clear()
                for event in events:
                    self._handle(event)
                continue
            if self._pending and not session.holds_client:
                data = self._pending.pop(0)
                if data:
                    session.client_data(data, self.world.clock.now)
                else:
                    self.is_client_open = False
                    session.client_lost(self.world.clock.now)
                continue
            if self._held and not session.holds_broker:
                session.broker_data(self._held.pop(0), self.world.clock.now)
                continue
            break
        self._is_settling = False

    def _handle(self, event: e.Event) -> None:
        session, now = self.session, self.world.clock.now
        match event:
            case e.BrokerRefused(_, is_final, _):
                self._leave()
                if not is_final:
                    self.place()
            case e.Redial():
                broker = self.broker
                assert broker is not None
                self._flush_to_broker()
                self._leave()
                self.world.clock.at(self.world.latency_s, partial(self._dial, broker))
            case e.BrokerWanted():
                self.place()
            case e.MoveAsked() | e.ReadyToMove():
                if self.broker is self.home:
                    self.home = None
                self._leave(session.detach(now))
                self.place()
            case e.Close(_, reason):
                self.world.closes[reason] += 1
                self.to_client.finish()
                self.is_client_open = False
                session.client_lost(now)
            case e.CloseBroker():
                self._flush_to_broker()
                self._leave()
            case e.Ended(will):
                self.world.ends[will] += 1
            case e.ReplayWanted(filters, age_ms):
                broker = self.broker
                assert broker is not None
                self.world.clock.at(self.world.latency_s * 3, lambda: self._replay(broker, filters, age_ms))
            case e.SubscriptionsWanted():
                session.known_subscriptions((), now)
            case e.Settled():
                self.settled.append(event)
            case _:
                pass

    def _flush_to_broker(self) -> None:
        if self.connection is not None:
            self.connection.to_broker.send(b"".join(self.session.to_broker))
        self.session.to_broker.clear()

    def _replay(self, broker: Broker, filters: tuple[bytes, ...], age_ms: int) -> None:
        if self.broker is not broker:
            return

        def answer(found: list[tuple[int, bytes]]) -> None:
            self.world.clock.at(self.world.latency_s * 3, lambda: take(found))

        def take(found: list[tuple[int, bytes]]) -> None:
            if self.broker is broker:
                # Ages grow on the way; the gateway reckons from when the answer came.
                now = self.world.clock.now
                items = [read_replayed(packet, now - age_ms / 1000) for age_ms, packet in found]
                self.session.replayed([one for one in items if one is not None], now)
                self.session.replay_ended(self.world.clock.now, True)
                self.settle()

        broker.replay(filters, age_ms, answer)

    def tick(self) -> None:
        if not self.session.is_over:
            self.session.tick(self.world.clock.now)
            self.settle()


@dataclass
class Sent:
    """One publication of a client. `acknowledged_at` is the time of PUBACK or PUBCOMP."""

    payload: bytes
    qos: int
    sent_at: float
    acknowledged_at: float | None = None


class Client:
    """A client that keeps to the rules, and checks that the gateway does."""

    def __init__(
        self,
        world: "World",
        name: bytes,
        version: int,
        *,
        filters: tuple[tuple[bytes, int], ...] = (),
        receive_max: int = 65_535,
        will: tuple[bytes, bytes, int] | None = None,
        answers_after_s: float = 0.0,
        clean: bool = True,
        expiry_s: int = 0,
        first: int = 0,
    ) -> None:
        self.world = world
        self.first = first
        self.name = name
        self.version = version
        self.filters = filters
        self.receive_max = receive_max if version == 5 else WINDOW
        self.answers_after_s = answers_after_s
        self.will_qos = will[2] if will is not None else 0
        self.is_open = True
        self.is_accepted = False
        self.subscribed_at: float | None = None
        self.got: list[tuple[bytes, bytes, int, float]] = []
        self.sent: dict[int, Sent] = {}
        self.all_sent: list[Sent] = []
        self.to_send: deque[tuple[bytes, bytes, int]] = deque()
        self._have = b""
        self._incoming: dict[int, str] = {}
        self._next_id = 0
        self._pings = 0
        self.driver = Driver(world, self)
        properties = b""
        if version == 5:
            if receive_max < 65_535:
                properties += b"\x21" + receive_max.to_bytes(2, "big")
            if expiry_s:
                properties += b"\x11" + expiry_s.to_bytes(4, "big")
        self.driver.begin(p.connect(version, name, clean=clean, properties=properties, will=will).packet)

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, packet: bytes) -> None:
        if self.is_open:
            self.driver.from_client.send(packet)

    def _new_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        while self._next_id in self.sent:
            self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    def publish(self, topic: bytes, payload: bytes, qos: int) -> None:
        if not self.is_accepted or len(self.sent) >= WINDOW:
            self.to_send.append((topic, payload, qos))
            return
        one = Sent(payload, qos, self.world.clock.now)
        self.all_sent.append(one)
        packet_id = self._new_id() if qos else 0
        if qos:
            self.sent[packet_id] = one
        self.send(p.publish(topic, payload, qos, packet_id, version=self.version))

    def die(self) -> None:
        """Close without DISCONNECT."""
        self.is_open = False
        self.driver.from_client.finish()

    def leave(self) -> None:
        self.send(p.disconnect())
        self.die()

    def ping(self) -> None:
        if self.is_open and self.is_accepted:
            self._pings += 1
            self.send(b"\xc0\x00")

    # --- receiving ----------------------------------------------------------------------------------------------------

    def closed(self) -> None:
        self.is_open = False
        self.world.lost.append(self.name)

    def read(self, data: bytes) -> None:
        if not self.is_open:
            return
        found, self._have = split(self._have + data)
        for packet in found:
            self._packet(packet)

    def _answer(self, packet: bytes) -> None:
        if self.answers_after_s:
            self.world.clock.at(self.answers_after_s, lambda: self.send(packet))
        else:
            self.send(packet)

    def _packet(self, packet: bytes) -> None:
        kind = packet[0] & 0xF0
        if kind == 0x20:
            assert not self.is_accepted, "a second CONNACK"
            assert packet[3] == 0, "refused"
            self.is_accepted = True
            if self.filters:
                self.send(p.subscribe(self._new_id(), *self.filters, version=self.version))
        elif kind == 0x90:
            self.subscribed_at = self.world.clock.now
        elif kind == 0x30:
            self._publication(packet)
        elif kind in (0x40, 0x50, 0x70):
            packet_id = id_of(packet)
            one = self.sent.get(packet_id)
            assert one is not None, f"{self.name!r}: {packet!r} for nothing"
            assert (kind == 0x40) == (one.qos == 1), "an acknowledgement of the wrong kind"
            if kind == 0x50:
                self.send(p.ack(0x62, packet_id))
                return
            one.acknowledged_at = self.world.clock.now
            del self.sent[packet_id]
        elif kind == 0x60:
            packet_id = id_of(packet)
            assert self._incoming.get(packet_id) == "received", f"PUBREL for {self._incoming.get(packet_id)}"
            self._incoming[packet_id] = "released"
            self._answer_comp(packet_id)
        elif kind == 0xD0:
            assert self._pings, "PINGRESP for nothing"
            self._pings -= 1
        elif kind == 0xE0:
            self.world.goodbyes.append((self.name, packet[2] if len(packet) > 2 else 0))
        while self.to_send and len(self.sent) < WINDOW and self.is_accepted:
            self.publish(*self.to_send.popleft())

    def _answer_comp(self, packet_id: int) -> None:
        def do() -> None:
            self._incoming.pop(packet_id, None)
            self.send(p.ack(0x70, packet_id))

        if self.answers_after_s:
            self.world.clock.at(self.answers_after_s, do)
        else:
            do()

    def _publication(self, packet: bytes) -> None:
        found = read_publish(packet, self.version)
        if found.qos:
            assert found.packet_id, "a publication without an identifier"
            assert found.packet_id not in self._incoming, f"identifier {found.packet_id} is in use"
            assert len(self._incoming) < self.receive_max, "more than Receive Maximum are outstanding"
        self.got.append((found.topic, found.payload, found.qos, self.world.clock.now))
        if found.qos == 1:
            self._incoming[found.packet_id] = "sent"

            def do() -> None:
                self._incoming.pop(found.packet_id, None)
                self.send(p.ack(0x40, found.packet_id))

            self.world.clock.at(self.answers_after_s * self.world.clock.random.random(), do)
        elif found.qos == 2:
            self._incoming[found.packet_id] = "received"
            self._answer(p.ack(0x50, found.packet_id))


class World:
    """All parts of one run."""

    def __init__(self, seed: int, brokers: int = 2, settings: Settings | None = None) -> None:
        self.clock = Clock(seed)
        self.settings = settings or Settings()
        self.counters = Counters()
        self.latency_s = 0.002
        self.federator_lag_s = 0.004
        self.mesh_lag_s = 0.02
        self.mesh_at: dict[tuple[str, str], float] = {}
        self.brokers = [Broker(self, f"b{k}") for k in range(brokers)]
        self.clients: list[Client] = []
        self.lost: list[bytes] = []
        self.goodbyes: list[tuple[bytes, int]] = []
        self.wills: list[tuple[str, tuple[bytes, bytes]]] = []
        self.closes: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.cut_off: set[Broker] = set()
        self.deadly: set[bytes] = set()
        self.killed_by: Counter[bytes] = Counter()
        self.steps = 0
        self.at_step: tuple[int, Callable[[], None]] | None = None
        self._judged: dict[Broker, bool] = {}
        self.incarnation_at: dict[int, int] = {}
        self._tick()

    def client(self, name: bytes, version: int, **options: object) -> Client:
        made = Client(self, name, version, **options)  # type: ignore[arg-type]
        self.clients.append(made)
        return made

    def step(self, direction: str, packet: bytes) -> None:  # noqa: ARG002 - for a debugger
        """Count a packet between the gateway and a broker; a fault may be due just before it."""
        self.steps += 1
        if self.at_step is not None and self.steps == self.at_step[0]:
            # Not within the broker's own step: at the same time, after it.
            self.clock.at(0.0, self.at_step[1])

    def preferred(self, client: Client) -> list[Broker]:
        """Return the brokers in the order in which this client goes to them."""
        return self.brokers[client.first :] + self.brokers[: client.first]

    def is_judged_up(self, broker: Broker) -> bool:
        return self._judged.get(broker, True)

    def judge(self, broker: Broker, *, is_up: bool) -> None:
        """Publish a verdict to the sessions, as the supervisor does."""
        self._judged[broker] = is_up
        if not is_up:
            for one in self.clients:
                if one.driver.broker is broker:
                    one.driver.move()

    def _tick(self) -> None:
        for one in self.clients:
            one.driver.tick()
        for broker in self.brokers:
            for connection in broker.connections:
                self.incarnation_at.setdefault(id(connection), broker.incarnation)
        self.clock.at(0.1, self._tick)

    # --- faults -------------------------------------------------------------------------------------------------------

    def kill(self, broker: Broker) -> None:
        """kill -9; the health session notices within 100 ms."""
        for connection in broker.connections:
            self.incarnation_at.setdefault(id(connection), broker.incarnation)
        broker.kill()
        self.clock.at(0.1 * self.clock.random.random(), lambda: self.judge(broker, is_up=False))

    def restart(self, broker: Broker) -> None:
        broker.restart()

    def hang(self, broker: Broker, for_s: float) -> None:
        broker.hang()
        self.clock.at(1.0 + 0.5 * self.clock.random.random(), lambda: self.judge(broker, is_up=False))
        self.clock.at(for_s, broker.go_on)

    def cut(self, broker: Broker) -> None:
        """Partition between the gateway and a broker."""
        self.cut_off.add(broker)
        for connection in broker.connections:
            connection.to_broker.is_blocked = connection.to_gateway.is_blocked = True
        self.clock.at(1.0 + 0.5 * self.clock.random.random(), lambda: self.judge(broker, is_up=False))

    def heal(self, broker: Broker) -> None:
        """End a partition: the broker notices that its connections have ended."""
        self.cut_off.discard(broker)
        for connection in list(broker.connections):
            connection.to_gateway.vanish()
            broker.closed(connection, goodbye=False)

    def bring_back(self, broker: Broker, every_s: float) -> None:
        """Let the clients that belong to a returned broker go back, one by one."""
        self._judged[broker] = True
        for k, one in enumerate(one for one in self.clients if self.preferred(one)[0] is broker):

            def do(one: Client = one) -> None:
                one.driver.session.begin_move(self.clock.now)
                one.driver.settle()

            self.clock.at(k * every_s, do)

    def drain(self, broker: Broker, every_s: float) -> None:
        """Move the clients away one by one."""
        self._judged[broker] = False
        for k, one in enumerate(one for one in self.clients if one.driver.broker is broker):

            def do(one: Client = one) -> None:
                one.driver.session.begin_move(self.clock.now)
                one.driver.settle()

            self.clock.at(k * every_s, do)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check(self, *, excluded: set[bytes] = frozenset(), doubled: int | None = None) -> None:  # type: ignore[assignment]
        """Check the guarantees of a run in which every client stays.

        Args:
            excluded: payloads that the table of guarantees excludes.
            doubled: how many publications of QoS 2 may be there twice; None: as many as are counted in doubt.
        """
        assert not self.lost, f"clients were closed: {self.lost}, {self.goodbyes}, {dict(self.closes)}"
        assert not self.wills, f"wills were published: {self.wills}"
        sent = [one for client in self.clients for one in client.all_sent]
        for one in sent:
            assert one.qos == 0 or one.acknowledged_at is not None, f"never acknowledged: {one}"
        doubles = 0
        for client in self.clients:
            if not client.filters:
                continue
            counts = Counter(payload for _, payload, _, _ in client.got)
            granted = client.filters[0][1]
            wanted = Counter(one.payload for one in sent if min(one.qos, granted))
            for payload, count in wanted.items():
                if payload not in excluded:
                    assert counts[payload] >= count, (
                        f"{client.name!r} got {payload!r} {counts[payload]} of {count} times"
                    )
            once = {one.payload for one in sent if min(one.qos, granted) == 2}
            others = {one.payload for one in sent if min(one.qos, granted) < 2}
            doubles += sum(max(0, counts[payload] - wanted[payload]) for payload in once - others)
        allowed = self.counters.moves.get("in_doubt", 0) * sum(1 for one in self.clients if one.filters)
        assert doubles <= (allowed if doubled is None else doubled), f"{doubles} doubled, {self.counters.moves}"

    def check_order(self, publisher: Client) -> None:
        """Check that first occurrences of one publisher's publications come in order."""
        order = {one.payload: k for k, one in enumerate(publisher.all_sent)}
        for client in self.clients:
            if client.filters:
                firsts = list(dict.fromkeys(payload for _, payload, _, _ in client.got if payload in order))
                places = [order[one] for one in firsts]
                assert places == sorted(places), f"{client.name!r}: {firsts}"
