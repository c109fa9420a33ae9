"""A worker, which serves the clients of one process and moves them when their broker changes.

It never decides anything about a broker. The supervisor sends it the directory; the worker reports when the connection
of a client ends, so that the supervisor checks the broker at once.

Rules:

1. A client is placed when its CONNECT is complete. While its broker is not judged down, no other is tried: every
   gateway must make the same choice.
2. When a client's connection to its broker ends, the client waits up to `VERDICT_S` for a verdict on the broker. A
   broker that is up, and has not restarted, has ended this client. The client is then closed.
3. A client is moved at most `FAILOVERS_MAX` times per minute. Dials are bounded, which is what paces a failover.
4. Deadlines are checked ten times per second, without a timer per client.
5. A client at the wrong broker, because its broker is drained or because the broker of its hash has returned, is moved
   at the rate of that broker's drain. A broker that is drained loses every client; a broker that has returned gets only
   those that the hash places there.
"""

import asyncio
import ipaddress
import logging
import random
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from hanse.errors import LocalError, Unavailable
from hanse.gateway.addresses import ListenAddress
from hanse.gateway.brokers.connection import BrokerConnection, Place
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.brokers.directory import UP, Directory
from hanse.gateway.brokers.ending import end_session
from hanse.gateway.brokers.lookup import has_session
from hanse.gateway.control import Message
from hanse.gateway.federators import (
    ConnectedClients,
    FederatorLogin,
    Federators,
    Replays,
    SessionRecord,
    SessionRecords,
    WillReports,
)
from hanse.gateway.front.accepting import Acceptor
from hanse.gateway.front.client import Client
from hanse.gateway.front.connect import (
    CLIENT_ID_NOT_VALID,
    CONNECTION_RATE_EXCEEDED,
    MQTT_5,
    NEVER,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    SERVER_MOVED,
    SERVER_UNAVAILABLE,
    USE_ANOTHER_SERVER,
    Connect,
)
from hanse.gateway.front.rates import Rates
from hanse.gateway.placement import HASH, Broker, Query, choose, hash_key, rank, score
from hanse.gateway.redirect.redirector import Redirector
from hanse.gateway.session import BrokerLimits, Session, minimum_of, new_session
from hanse.gateway.session import Settings as SessionSettings
from hanse.gateway.session.events import (
    Accepted,
    BrokerRefused,
    BrokerWanted,
    Close,
    CloseBroker,
    Ended,
    Event,
    MoveAsked,
    ReadyToMove,
    Redial,
    ReplayWanted,
    Settled,
    Subscribed,
    SubscriptionsWanted,
    TopicsAsked,
    Unsubscribed,
)
from hanse.gateway.session.publication import will_delay_of
from hanse.gateway.session.replayed import Replayed
from hanse.gateway.settings import GatewaySettings
from hanse.gateway.share.link import SUFFIX
from hanse.gateway.share.shares import Shares
from hanse.gateway.traffic import Traffic
from hanse.mqtt.refusal import CONNECT_TIMEOUT, SHUTTING_DOWN, UNSUPPORTED_VERSION
from hanse.mqtt.tls import TlsSettings

_log = logging.getLogger(__name__)

VERDICT_S: Final = 0.2
FAILOVERS_MAX: Final = 3
FAILOVERS_S: Final = 60.0
# Connections to brokers that are being made at once. A broker's own backlog is 100 or more.
DIALS_MAX: Final = 100
# Time for which an accepted client waits while no broker takes it.
NO_BROKER_S: Final = 10.0
# How long a client is not placed at a broker that has refused it or sent it away.
AVOID_S: Final = 60.0
TICK_S: Final = 0.1
_ROUNDS: Final = 10
NAME_CHARACTERS_MAX: Final = 200
# Connections beyond the limits that still get a reason; further ones are cut off at once.
REFUSING_MAX: Final = 1_000
_LOOK_AGAIN_S: Final = 0.2
_ASK_AGAIN_S: Final = 0.02
# Clients per tick that are checked for a necessary move: about 3 us each and broker.
_REVIEWED: Final = 500
# Time that clients have to read the last packets when the gateway ends them.
STOP_S: Final = 2.0

Report = Callable[..., None]


class Worker:
    """Serves clients.

    Args:
        report: sends a message to the supervisor.
        share: this worker's part of each limit and rate.
        number: number of this worker, the same over restarts.
    """

    def __init__(self, settings: GatewaySettings, report: Report, share: int = 1, number: int = 0) -> None:
        self.settings = settings
        self.directory = Directory(settings.site)
        self.traffic = Traffic()
        self.buffer_bytes = settings.buffer_bytes
        self.connect_bytes_max = settings.connect_bytes_max
        self.client_bytes_rate = settings.client_bytes_rate
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._session_settings = session_settings(settings)
        self._connections_max = max(1, settings.connections_max // share)
        self._rates = Rates(
            settings.connect_rate / share,
            settings.connect_rate_per_address / share,
            settings.connections_per_address_max,
            is_shared=share > 1,
        )
        broker_tls = TlsSettings(settings.broker_ca_file, settings.broker_cert_file, settings.broker_key_file)
        self._dialler = Dialler(broker_tls, settings.source_address, settings.dial_timeout_s)
        self.federators = Federators(
            federator_login(settings, number),
            barrier_timeout_s=settings.barrier_timeout_s,
            clock=self._loop.time,
            may_change=bool(settings.manager),
            is_insecure=settings.insecure,
        )
        self._records = SessionRecords(self.federators, self.federators.counters)
        self._connected = ConnectedClients(self.federators, self.federators.counters, self._taken_over)
        self._wills = WillReports(
            self.federators,
            self.federators.counters,
            self._loop.time,
            grace_s=settings.will_grace_s,
            is_on=settings.will_backup and settings.failover and settings.will == "gateway",
        )
        self._replays = Replays(self.federators, self._loop.time, self.federators.counters)
        self._shares = self._make_shares() if settings.share == "once" else None
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._servers: list[asyncio.Server | Acceptor] = []
        self._clients: dict[Client, None] = {}
        # Clients between two brokers, and clients that are gone and whose will must be published.
        self._moving: dict[Client, None] = {}
        # Clients that have not sent their CONNECT, in the order of their deadlines.
        self._waiting: dict[Client, None] = {}
        self._places: dict[str, Place] = {}
        self._incarnations: dict[str, int] = {}
        self._limits: dict[str, BrokerLimits] = {}
        self._asked: dict[str, float] = {}
        self._contract = BrokerLimits()
        self._changed = asyncio.Event()
        self._is_empty = asyncio.Event()
        # Connections that are cut off at a time, by the delay: in the order of their times.
        self._closing: dict[float, dict[Client | BrokerConnection, float]] = {}
        self._throttled: list[tuple[float, Client]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # Clients that may have to move, and per broker the number that may be moved now and per second (rule 5).
        self._review: deque[Client] = deque()
        self._drain_rates: dict[str, float] = {}
        self._allowances: dict[str, float] = {}
        self._share = share
        self._redirector = None
        if Redirector.is_wanted(settings):
            self._redirector = Redirector(
                settings,
                self.directory,
                self._dialler,
                session_settings=self._session_settings,
                traffic=self.traffic,
                share=share,
                ask=report,
                proxy=self._proxy,
                run=self._run,
            )
        self._turn = random.randrange(1 << 16)  # noqa: S311 - spreads the first clients of several workers
        self._round: list[Client] = []
        self._tick_number = 0
        self._ticking: asyncio.TimerHandle | None = None

    def _make_shares(self) -> Shares:
        return Shares(
            self.directory,
            self._dialler,
            self.federators,
            look_at=self._look_at,
            replay=self._share_replay,
            hang_s=self.settings.health_timeout_s + self.settings.health_interval_s + 0.5,
            holds_suback=self.settings.subscribe_barrier,
            clock=self._loop.time,
        )

    async def _share_replay(self, broker_id: str, lost_id: str, wanted: str, age_ms: int) -> list[Replayed]:
        """Return what federators retain for a share group that has another serving broker."""
        if not self.federators.broker_ids:
            return []
        return (await self._replays.ask(broker_id, lost_id, [wanted], age_ms)).matching([wanted])

    # --- beginning and end --------------------------------------------------------------------------------------------

    async def start(self, listeners: list[tuple[ListenAddress, socket.socket]], tls: ssl.SSLContext | None) -> None:
        """Accept clients on these sockets."""
        trusted = [ipaddress.ip_network(text) for text in self.settings.proxy_from]
        for address, listening in listeners:
            make = self._factory(address)
            if address.is_tls or trusted:
                context = tls if address.is_tls else None
                timeout_s = self.settings.connect_timeout_s
                self._servers.append(Acceptor(listening, make, context, trusted, timeout_s, self.traffic.refuse))
            else:
                self._servers.append(await self._loop.create_server(make, sock=listening, backlog=4096))
        self._tick()
        if self._shares is not None:
            self._shares.start()

    def _factory(self, listener: ListenAddress) -> Callable[..., asyncio.Protocol]:
        if not listener.is_websocket:
            return lambda address="": cast("asyncio.Protocol", Client(self, listener, address))
        try:
            from hanse.gateway.front.websocket import WebSocketClient  # noqa: PLC0415 - not in the base install
        except ImportError as error:
            raise LocalError(
                f"The listener {listener.url()} needs the package {error.name}; install hanse[gateway]."
            ) from error
        origins, packet_bytes_max = self.settings.websocket_origin, self.settings.packet_bytes_max
        return lambda address="": cast(
            "asyncio.Protocol",
            WebSocketClient(self, listener, address, origins=origins, packet_bytes_max=packet_bytes_max),
        )

    def stop_listening(self) -> None:
        """Accept no more clients."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def stop(self) -> None:
        """End all clients: they learn that the server shuts down."""
        self.stop_listening()
        now = self._loop.time()
        for client in list(self._clients):
            if client.session is None:
                client.abort()
                continue
            client.session.disconnect(SHUTTING_DOWN, now)
            client.session.refuse(SERVER_UNAVAILABLE, now)
            client.settle()
        self._is_empty.clear()
        if self._clients:
            try:
                async with asyncio.timeout(STOP_S):
                    await self._is_empty.wait()
            except TimeoutError:
                pass
        for client in list(self._clients):
            client.abort()
        if self._redirector is not None:
            await self._redirector.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ticking is not None:
            self._ticking.cancel()
        if self._shares is not None:
            await self._shares.stop()
        await self._records.stop()
        await self._connected.stop()
        await self._wills.stop()
        await self.federators.stop()

    # --- the supervisor -----------------------------------------------------------------------------------------------

    def on_message(self, message: Message) -> None:
        """Take a message of the supervisor's."""
        if message["kind"] == "directory":
            self._take_directory(message)
        elif message["kind"] == "measured":
            for broker_id, rtt_ms in message["rtt_ms"].items():
                view = self.directory.view(broker_id)
                if view is not None:
                    view.rtt_ms = rtt_ms
        elif message["kind"] == "there" and self._redirector is not None:
            self._redirector.answered(message["number"], message["answer"])
        elif message["kind"] == "redirected" and self._redirector is not None:
            self._redirector.heard(message["key"], message["broker"], message["reference"])
        elif message["kind"] == "elsewhere":
            self._rates.set_elsewhere(message["opened"])

    def _take_directory(self, message: Message) -> None:
        self.directory.restore(message["snapshot"])
        self.federators.update(view.broker for view in self.directory.views)
        if self._shares is not None:
            self._shares.review()
        self._incarnations = message["incarnations"]
        self._limits = {broker_id: BrokerLimits(*row) for broker_id, row in message["limits"].items()}
        members = [view.broker.id for view in self.directory.members]
        self._contract = minimum_of([self._limits[one] for one in members if one in self._limits])
        self._drain_rates = {broker_id: rate / self._share for broker_id, rate in message["rates"].items()}
        self._review = deque(self._clients)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        down = {view.broker.id for view in self.directory.views if view.verdict != "up"}
        for client in list(self._clients):
            if client.place is not None and client.place.broker_id in down and not client.is_held:
                self.fail_over(client, "broker_down")

    def heard(self) -> dict[str, float]:
        """Return when this machine last heard each broker, on its clock."""
        return {broker_id: place.heard_at for broker_id, place in self._places.items()}

    def count(self) -> dict[str, Any]:
        """Return what this worker counted."""
        self.traffic.clients = len(self._clients)
        self.traffic.at_brokers = {place.broker_id: place.clients for place in self._places.values()}
        self.traffic.federators = dict(self.federators.counters)
        self.traffic.shares = dict(self._shares.counters) if self._shares is not None else {}
        return self.traffic.as_dict()

    def report(self) -> dict[str, Any]:
        """Return what a supervisor in another process needs again and again."""
        return {"counts": self.count(), "heard": self.heard(), "addresses": self._rates.changes()}

    # --- clients ------------------------------------------------------------------------------------------------------

    def opened(self, client: Client) -> int:
        """Take note of a connection; return the reason code with which it must be refused, or 0."""
        traffic = self.traffic
        traffic.connections += 1
        self._clients[client] = None
        now = self._loop.time()
        client.deadline = now + self.settings.connect_timeout_s
        self._waiting[client] = None
        code = 0
        reason = self._rates.admit(client.address, now)
        if len(self._clients) > self._connections_max:
            reason, code = "connections", QUOTA_EXCEEDED
        elif reason:
            code = QUOTA_EXCEEDED if reason == "connections_per_address" else CONNECTION_RATE_EXCEEDED
        if code:
            traffic.refuse(reason)
            if len(self._clients) > self._connections_max + REFUSING_MAX:
                # Not at once: uvloop does not expect it within `connection_made`.
                self._loop.call_soon(client.abort)
        return code

    def connected(self, client: Client, connect: Connect, rest: bytes) -> None:
        """Place a client whose CONNECT is complete."""
        now = self._loop.time()
        client.deadline = now + self.settings.connect_timeout_s
        # Behind the others: the deadline of its CONNACK is later than theirs.
        self._waiting.pop(client, None)
        self._waiting[client] = None
        if self._redirector is None or not self._redirector.take(client, connect, rest):
            self._proxy(client, connect, rest)

    def _proxy(self, client: Client, connect: Connect, rest: bytes) -> None:
        now = self._loop.time()
        session = new_session(self._session_settings, self.traffic.sessions, now)
        client.session = session
        session.start(connect, b"" if self._shares is not None else rest, now)
        if self._shares is not None:
            if session.client_id.endswith(SUFFIX):
                # It would end the second session of another client.
                self.traffic.refuse("reserved_id")
                session.refuse(CLIENT_ID_NOT_VALID, now)
                client.settle()
                return
            if connect.auth_method is None:
                rest = self._shares.begin(client, connect, session.client_id).from_client(rest)
            session.client_data(rest, now)
        client.settle()
        self._place(client)

    def refused(self, client: Client, reason: str) -> None:
        """Count a client that got no session."""
        self._waiting.pop(client, None)
        self.traffic.refuse(reason)
        _log.debug("client refused", extra={"address": client.address, "reason": reason})

    def closed(self, client: Client) -> None:
        """Take note that a client's connection has ended."""
        self._waiting.pop(client, None)
        if client in self._clients:
            del self._clients[client]
            self._rates.release(client.address)
        # A client that is gone must not be kept: a thousand redirects per second would leave much garbage to trace.
        for closing in self._closing.values():
            closing.pop(client, None)
        if self._shares is not None:
            self._shares.end(client, 0 if client.session is None else _expiry_s(client.session))
        if client.session is not None:
            self._connected.gone(client, client.session.client_id)
            # A client that is gone is served until its will is published.
            self._moving[client] = None
            self._part_with_will(client)
        if not self._clients:
            self._is_empty.set()

    def closing(self, connection: Client | BrokerConnection, after_s: float) -> None:
        """Cut the connection off unless it has ended by then."""
        self._closing.setdefault(after_s, {}).setdefault(connection, self._loop.time() + after_s)

    def throttled(self, client: Client, until: float) -> None:
        """Read the client again at that time."""
        self._throttled.append((until, client))

    # --- events of sessions -------------------------------------------------------------------------------------------

    def handle(self, client: Client, event: Event) -> None:  # noqa: C901 - one case per event
        """Do what a session's event requests."""
        session = client.session
        assert session is not None
        now = self._loop.time()
        match event:
            case Accepted(session_present):
                self._waiting.pop(client, None)
                self.traffic.accepted += 1
                client.home = self._at(client)
                self.federators.accepted(
                    client,
                    self._at(client),
                    session.client_id,
                    is_complete=not session_present,
                    expiry_s=_expiry_s(session),
                )
                self._wills.accepted(
                    client, session.client_id, session.connect.will, _will_delay_s(session), self._will_places(client)
                )
                if self._shares is not None:
                    self._shares.accepted(client, session_present=session_present)
                self._connected.accepted(client, session.client_id, self._at(client), self._stores(client))
                self._note_session(client)
                if client.record is not None:
                    # It may be where its session was left, and belong to another broker (rule 5).
                    self._review.append(client)
                client.accepted()
            case BrokerRefused(code, is_final, text):
                _log.info(
                    "a broker refused a client",
                    extra={"client": session.client_id, "broker": self._at(client), "code": code, "reason": text},
                )
                if not is_final:
                    self._refused_by_broker(client, code)
            case MoveAsked():
                self._avoid(client, self._at(client))
                self.fail_over(client, "broker_asked")
            case ReadyToMove():
                self._leave_orderly(client)
            case Redial():
                self._redial(client)
            case BrokerWanted():
                self._moving[client] = None
                self._place(client)
            case Close():
                self._part_with_will(client)
                client.close()
                session.client_lost(now)
            case CloseBroker():
                client.leave_broker(b"".join(session.to_broker))
                session.to_broker.clear()
            case Ended(will):
                self.federators.forget(client, _expiry_s(session))
                self._wills.forget(client)
                self._note_session(client, is_connected=False)
                self.traffic.wills[will] = self.traffic.wills.get(will, 0) + 1
                client.leave_broker()
                client.close()
            case ReplayWanted(filters, age_ms):
                self._run(self._replay(client, filters, age_ms))
            case SubscriptionsWanted():
                session.known_subscriptions(None if client.record is None else client.record.subscriptions, now)
            case TopicsAsked() if self._redirector is not None:
                self._redirector.asked(client, event)
            case Subscribed() | Unsubscribed():
                self._note_interest(client, event)
                self._note_session(client)
            case Settled():
                self._note_session(client)
            case _:
                pass

    def tap_flushed(self, client: Client) -> None:
        """Hold or resume the second sessions of a client with shared subscriptions."""
        if self._shares is not None:
            self._shares.flushed(client)

    def _note_interest(self, client: Client, event: Subscribed | Unsubscribed) -> None:
        if isinstance(event, Unsubscribed):
            self.federators.unsubscribed(client, event.filters)
            return
        filters = self.federators.subscribed(client, [(one.filter, one.qos) for one in event.subscriptions])
        if self.settings.subscribe_barrier:
            self._run(self._hold_suback(client, event.token, filters))

    def _stores(self, client: Client) -> list[str]:
        """Return the first two brokers of a client that have a federator; the same at every gateway."""
        key = self._key(client)
        known = [view.broker for view in self.directory.views if view.broker.federator]
        return [one.id for one in sorted(known, key=lambda one: score(hash_key(one.id), key), reverse=True)[:2]]

    def _will_places(self, client: Client) -> list[str]:
        """Return the brokers whose federators may have the client's will, the preferred one first."""
        return [self._at(client), *self._stores(client)]

    def _part_with_will(self, client: Client) -> None:
        """Take the will back from the federator before the session publishes it."""
        session = client.session
        if session is not None and not session.is_over:
            self._wills.part(client)

    def _note_session(self, client: Client, *, is_connected: bool = True) -> None:
        """Record at federators where the session of this client is, if it lasts."""
        session = client.session
        assert session is not None
        lasts = session.connect.session_expiry_s or session.session_expiry_s
        broker_id = self._at(client) or client.former
        if not (self.settings.failover and lasts and broker_id and session.client_id) or session.is_taken_over:
            # The session of a client that has connected elsewhere is there.
            return
        record = SessionRecord(broker_id, tuple(session.subscriptions), _expiry_s(session), is_connected)
        self._records.note(session.client_id, self._stores(client), record)

    async def _recorded_home(self, client: Client) -> str:
        """Return the broker at which the session of a client is according to federators; empty if they know none."""
        session = client.session
        assert session is not None
        connect = session.connect
        if not self.settings.failover or connect.clean_start or not connect.client_id:
            return ""
        stores = self._stores(client)
        if not stores:
            return ""
        client.record = await self._records.find(session.client_id, stores)
        return "" if client.record is None else client.record.broker_id

    def left(self, client: Client) -> None:
        """Take note that a client's connection to its broker ends."""
        client.former = self._at(client)
        session = client.session
        if session is not None:
            is_moving = self.settings.failover and session.is_accepted
            self.federators.left(client, _expiry_s(session), is_moving=is_moving)

    async def _replay(self, client: Client, filters: tuple[bytes, ...], age_ms: int) -> None:
        """Get the publications of the meantime for a client that has moved."""
        session, connection = client.session, client.broker
        assert session is not None
        texts = [one.decode("utf-8", "replace") for one in filters]
        replay = None
        if self.federators.broker_ids and connection is not None:
            replay = await self._replays.ask(self._at(client), client.former, texts, age_ms)
        if client.broker is not connection or session.is_over:
            return
        now = self._loop.time()
        if replay is not None:
            session.replayed(replay.matching(texts), now)
        session.replay_ended(now, replay is not None and replay.is_complete)
        client.settle()

    async def _hold_suback(self, client: Client, token: int, filters: list[str]) -> None:
        await self.federators.barrier(self._at(client), filters)
        if client.session is not None:
            client.session.barrier_passed(token, self._loop.time())
            client.settle()

    def _at(self, client: Client) -> str:
        return client.place.broker_id if client.place is not None else ""

    def broker_gone(self, client: Client, connection: BrokerConnection) -> None:
        """Find out why a client's connection to its broker has ended (rule 2)."""
        session = client.session
        if session is None or session.is_over:
            return
        broker_id = connection.place.broker_id
        self._look_at(broker_id)
        if not session.is_accepted:
            session.broker_lost(self._loop.time())
            client.settle()
            return
        client.hold(is_held=True)
        self._run(self._judge(client, broker_id, connection.incarnation))

    def _look_at(self, broker_id: str) -> None:
        """Ask the supervisor to check a broker now: once, even if thousands of clients end together."""
        now = self._loop.time()
        if broker_id and now - self._asked.get(broker_id, float("-inf")) > _ASK_AGAIN_S:
            self._asked[broker_id] = now
            self._report("ended", broker=broker_id)

    async def _judge(self, client: Client, broker_id: str, incarnation: int) -> None:
        is_down = await self._verdict(broker_id, incarnation, VERDICT_S)
        session = client.session
        if session is None or session.is_over:
            return
        client.hold(is_held=False)
        if is_down:
            self.fail_over(client, "broker_down")
        else:
            session.broker_lost(self._loop.time())
            client.settle()

    async def _verdict(self, broker_id: str, incarnation: int, timeout_s: float) -> bool:
        """Return whether the broker is down or has restarted, within a time."""
        until = self._loop.time() + timeout_s
        while True:
            view = self.directory.view(broker_id)
            if view is None or view.verdict != "up" or self._incarnations.get(broker_id, 0) != incarnation:
                return True
            left_s = until - self._loop.time()
            if left_s <= 0:
                return False
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                return False

    # --- placing and moving -------------------------------------------------------------------------------------------

    def fail_over(self, client: Client, reason: str) -> None:
        """Attach a client to another broker, because its own is lost."""
        session = client.session
        if session is None or session.is_over:
            return
        now = self._loop.time()
        client.failovers = [at for at in client.failovers if now - at < FAILOVERS_S]
        if session.is_accepted and len(client.failovers) >= FAILOVERS_MAX:
            _log.warning("a client was moved too often and is closed", extra={"client": session.client_id})
            session.disconnect(SHUTTING_DOWN, now)
            client.settle()
            return
        client.failovers.append(now)
        self.traffic.move(reason)
        self._detach(client)

    def _detach(self, client: Client) -> None:
        session = client.session
        assert session is not None
        client.leave_broker(session.detach(self._loop.time()))
        client.settle()
        if session.is_moving and not session.is_over:
            self._moving[client] = None
            self._place(client)

    def _leave_orderly(self, client: Client) -> None:
        """Move a client that has nothing outstanding. Its session at this broker ends."""
        session, place = client.session, client.place
        assert session is not None
        self._detach(client)
        if place is None:
            return
        if client.home == place.broker_id:
            client.home = ""
        view = self.directory.view(place.broker_id)
        if view is not None and session.session_expiry_s and session.connect.level < MQTT_5:
            self._run(self._end_session(client, view.broker))

    async def _end_session(self, client: Client, broker: Broker) -> None:
        session = client.session
        assert session is not None
        try:
            await end_session(self._dialler, broker, session.connect, session.client_id)
        except Unavailable as error:
            self.traffic.move("session_left_behind")
            _log.warning(
                "the session of a client that has moved stays at a broker",
                extra={"client": session.client_id, "broker": broker.id, "reason": str(error)},
            )

    def _taken_over(self, client: Client) -> None:
        """End a client whose id has connected again, at another broker. Its session here ends as well."""
        session, place = client.session, client.place
        if session is None or not session.is_accepted:
            return
        view = self.directory.view(place.broker_id) if place is not None else None
        is_left = session.connect.level < MQTT_5 and session.session_expiry_s
        if view is not None and is_left:
            session.session_expiry_s = 0
        session.taken_over()
        client.settle()
        if view is not None and is_left:
            self._run(self._end_session(client, view.broker))

    def _redial(self, client: Client) -> None:
        """Connect to the same broker again."""
        session, place = client.session, client.place
        assert session is not None
        client.leave_broker(b"".join(session.to_broker))
        session.to_broker.clear()
        self._place(client, place.broker_id if place is not None else "")

    def _avoid(self, client: Client, broker_id: str) -> None:
        """Place a client elsewhere for a while. A broker that shuts down comes back, and its clients with it."""
        client.avoids.add(broker_id)
        self._loop.call_later(AVOID_S, client.avoids.discard, broker_id)

    def _refused_by_broker(self, client: Client, code: int) -> None:
        connection = client.broker
        broker_id = self._at(client)
        incarnation = connection.incarnation if connection is not None else 0
        client.leave_broker()
        if code in (USE_ANOTHER_SERVER, SERVER_MOVED, UNSUPPORTED_VERSION) and broker_id:
            self._avoid(client, broker_id)
            if code == UNSUPPORTED_VERSION and self.choose(client) is None:
                # No broker speaks the client's version. It may try an older one.
                self._give_up(client, code)
            else:
                self._place(client)
        else:
            self._run(self._retry(client, broker_id, incarnation, code))

    async def _retry(self, client: Client, broker_id: str, incarnation: int, code: int) -> None:
        """Place a client anew if it moves or its broker turns out to be down; refuse it otherwise."""
        self._look_at(broker_id)
        session = client.session
        if session is not None and session.is_moving:
            # Another broker may take it. If none does, this one is asked again.
            self._avoid(client, broker_id)
            await asyncio.sleep(_LOOK_AGAIN_S)
            self._place(client)
            return
        if broker_id and not await self._verdict(broker_id, incarnation, VERDICT_S):
            self._give_up(client, code)
        else:
            self._place(client)

    def _place(self, client: Client, again_at: str = "") -> None:
        if not client.is_placing:
            client.is_placing = True
            self._run(self._place_now(client, again_at))

    async def _place_now(self, client: Client, again_at: str) -> None:
        """Dial the broker of a client: the given one first, if there is one and it is up."""
        session = client.session
        assert session is not None
        until = self._loop.time() + NO_BROKER_S
        try:
            if not again_at and not session.is_accepted:
                again_at = await self._recorded_home(client)
            if not again_at and not session.is_accepted and self.directory.former_set:
                again_at = await self._former_home(client)
            while not session.is_over and (client.is_open or session.is_moving):
                view = self.directory.view(again_at) if again_at else None
                broker = view.broker if view is not None and view.verdict == UP else self.choose(client)
                again_at = ""
                if broker is None:
                    client.avoids.clear()
                    if not session.is_moving or self._loop.time() > until:
                        self._give_up(client, SERVER_UNAVAILABLE)
                        return
                    await self._wait_for_change(_LOOK_AGAIN_S)
                    continue
                incarnation = self._incarnations.get(broker.id, 0)
                async with self._dials:
                    connection = BrokerConnection(client, self._place_of(broker), incarnation, self.buffer_bytes)
                    is_open = await self._dial(broker, connection)
                if is_open:
                    self._attach(client, connection)
                    return
                self._look_at(broker.id)
                if not await self._verdict(broker.id, incarnation, VERDICT_S) and not session.is_moving:
                    self._give_up(client, SERVER_UNAVAILABLE)
                    return
                if self._loop.time() > until:
                    self._give_up(client, SERVER_UNAVAILABLE)
                    return
        finally:
            client.is_placing = False

    async def _former_home(self, client: Client) -> str:
        """Return the broker of the former set that has the client's session; empty if none has."""
        session = client.session
        assert session is not None
        connect = session.connect
        former = self.directory.former_choice(self._key(client))
        chosen = self.choose(client)
        if connect.clean_start or not connect.client_id or former is None or chosen is None or former.id == chosen.id:
            return ""
        async with self._dials:
            if not await has_session(self._dialler, former.url, connect, session.client_id):
                return ""
        self.traffic.move("found_at_former")
        return former.id

    async def _dial(self, broker: Broker, connection: BrokerConnection) -> bool:
        try:
            await self._dialler.dial(broker.url, lambda: cast("asyncio.Protocol", connection))
        except Unavailable as error:
            self.traffic.broker_failures += 1
            _log.info("a broker could not be dialled", extra={"broker": broker.id, "reason": str(error)})
            return False
        return connection.is_open

    def _attach(self, client: Client, connection: BrokerConnection) -> None:
        session = client.session
        assert session is not None
        if session.is_over or not (client.is_open or session.is_moving) or client.broker is not None:
            connection.abort()
            return
        client.attach(connection)
        clean = None
        if session.is_accepted:
            broker_id = connection.place.broker_id
            self.federators.arrived(client, broker_id)
            self._wills.arrived(client, self._will_places(client))
            if not self._connected.moved(client, session.client_id, broker_id, self._stores(client)):
                return
            if client.home == broker_id and session.session_expiry_s and self.settings.drain_old == "missing":
                clean = False
            client.home = client.home or broker_id
        session.attach(self._loop.time(), self._contract, clean=clean)
        client.settle()

    def _give_up(self, client: Client, code: int) -> None:
        session = client.session
        if session is None or session.is_over:
            return
        now = self._loop.time()
        if session.is_accepted:
            session.disconnect(code, now)
        else:
            self.traffic.refuse("no_broker" if code == SERVER_UNAVAILABLE else "broker")
            session.refuse(code, now)
        client.settle()

    async def _wait_for_change(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def choose(self, client: Client) -> Broker | None:
        """Return the broker for a client; None if no broker takes it."""
        session = client.session
        assert session is not None
        connect = session.connect
        key = self._key(client)
        members = self.directory.members
        policy = self.settings.policy
        self._turn += 1
        if policy == HASH and not client.avoids and not session.is_moving and not session.is_accepted:
            return choose(Query(key), members)
        draw = random.random()  # noqa: S311 - spreads load
        for view in members:
            place = self._places.get(view.broker.id)
            view.connections = place.clients if place is not None else 0
        ranking = rank(Query(key, is_transient=connect.is_transient, turn=self._turn, draw=draw), members, policy)
        for broker in ranking.candidates:
            if broker.id in client.avoids:
                continue
            if session.is_accepted and broker.id in self._limits and session.limits.met_by(self._limits[broker.id]):
                continue
            return broker
        return None

    def _key(self, client: Client) -> bytes:
        """Return the bytes that are hashed for a client."""
        session = client.session
        assert session is not None
        if self.settings.placement_key == "username":
            return session.connect.username or session.client_id
        return session.client_id

    def _place_of(self, broker: Broker) -> Place:
        place = self._places.get(broker.id)
        if place is None:
            place = self._places[broker.id] = Place(broker.id)
        return place

    # --- time ---------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._loop.time()
        self._ticking = self._loop.call_later(TICK_S, self._tick)
        while self._waiting:
            client = next(iter(self._waiting))
            if client.deadline > now:
                break
            del self._waiting[client]
            self._expire(client, now)
        for closing in self._closing.values():
            while closing:
                connection, until = next(iter(closing.items()))
                if until > now:
                    break
                del closing[connection]
                if connection.cut():
                    self.traffic.late += 1
        if self._throttled:
            ready = [client for until, client in self._throttled if until <= now]
            self._throttled = [one for one in self._throttled if one[0] > now]
            for client in ready:
                client.unthrottle()
        if self._review:
            self._move_some(now)
        self._tick_sessions(now)

    def _move_some(self, now: float) -> None:
        """Check some clients, and move those at the wrong broker (rule 5)."""
        rates = self._drain_rates
        default = self.settings.drain_rate / self._share
        allowances = self._allowances
        for broker_id in self._places:
            rate = rates.get(broker_id, default)
            # One tick's worth, or one client where that is less.
            allowances[broker_id] = min(allowances.get(broker_id, 0.0) + rate * TICK_S, max(rate * TICK_S, 1.0))
        for _ in range(min(len(self._review), _REVIEWED)):
            client = self._review.popleft()
            session = client.session
            if session is None or session.is_over or not client.is_open:
                continue
            place = client.place
            if place is None or not session.is_accepted or session.is_moving or client.is_placing:
                self._review.append(client)
            elif self._is_misplaced(client, place.broker_id):
                if allowances[place.broker_id] >= 1:
                    allowances[place.broker_id] -= 1
                    self.traffic.move("moved")
                    self._moving[client] = None
                    session.begin_move(now)
                    client.settle()
                else:
                    self._review.append(client)

    def _is_misplaced(self, client: Client, broker_id: str) -> bool:
        """Return whether a client belongs to another broker that takes it."""
        session = client.session
        assert session is not None
        view = self.directory.view(broker_id)
        is_drained = view is None or view.is_drained or view not in self.directory.members
        if not is_drained and self.settings.policy != HASH and session.connect.is_transient:
            return False
        chosen = self.choose(client)
        return chosen is not None and chosen.id != broker_id

    def _expire(self, client: Client, now: float) -> None:
        session = client.session
        if session is None:
            client.turn_away(CONNECT_TIMEOUT, "connect_timeout", "")
        elif not session.is_accepted and not session.is_over:
            self.traffic.refuse("broker_silent")
            session.refuse(SERVER_BUSY, now)
            client.settle()

    def _tick_sessions(self, now: float) -> None:
        """Tick each session once per second, a tenth of them at a time, and those that move every time."""
        if not self._round:
            self._round = list(self._clients)
            self._tick_number = 0
        step = len(self._round) // _ROUNDS + 1
        start = self._tick_number * step
        for client in self._round[start : start + step]:
            session = client.session
            if session is not None and not session.is_over:
                session.tick(now)
                client.settle()
        self._tick_number += 1
        if self._tick_number >= _ROUNDS:
            self._round = []
        for client in list(self._moving):
            session = client.session
            if session is None or session.is_over or not session.is_moving:
                del self._moving[client]
            else:
                session.tick(now)
                client.settle()

    def _run(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a client could not be served", exc_info=error)


def session_settings(settings: GatewaySettings) -> SessionSettings:
    """Return the part of the settings that concerns sessions."""
    return SessionSettings(
        failover=settings.failover,
        packet_bytes_max=settings.packet_bytes_max,
        replay_window_s=settings.replay_window_s,
        will="broker" if settings.will == "broker" else "gateway",
        qos2_in_doubt="close" if settings.qos2_in_doubt == "close" else "resend",
        subscribe_barrier=settings.subscribe_barrier,
        drain_old="discard" if settings.drain_old == "discard" else "missing",
    )


def federator_login(settings: GatewaySettings, number: int) -> FederatorLogin:
    """Return the identity of a worker for federators."""
    return FederatorLogin(
        # The same over restarts, so that federators know what a new incarnation replaces.
        settings.gateway_id or f"{socket.gethostname()}:{settings.state_dir.resolve()}"[:NAME_CHARACTERS_MAX],
        secrets.token_hex(8),
        number,
        settings.federator_token,
        TlsSettings(settings.federator_ca_file, settings.federator_cert_file, settings.federator_key_file),
    )


def _will_delay_s(session: Session) -> int:
    will = session.connect.will
    if will is None or session.connect.level < MQTT_5:
        return 0
    return min(will_delay_of(will.properties), session.connect.session_expiry_s)


def _expiry_s(session: Session) -> int | None:
    return None if session.session_expiry_s == NEVER else session.session_expiry_s
