"""Redirects of a worker's clients: the choice, and the steps from CONNECT to the reference.

Rules:

1. A client is redirected only if its listener redirects (`mode = redirect`, or `auto` and the client says in CONNECT
   that it follows), it speaks MQTT 5 over TCP or TLS without enhanced authentication, it was not redirected just now
   (`returns`), and a broker has accepted its credentials (`credentials`). Every other client is proxied.
2. CONNACK names the broker if it is known then: for a client with a session, which belongs where the hash places it;
   for a client that names its topic in CONNECT; and if only one broker can be named. Otherwise the gateway accepts the
   client, and names the broker after its SUBSCRIBE or PUBLISH.
3. The code is 0x9D for topics that have moved for good, and for a client that was sent to a broker whose address has
   changed since.
4. All workers learn of each redirect, so that rule 1 holds across them.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from hanse.errors import RemoteError
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.brokers.directory import Directory
from hanse.gateway.front.client import Client
from hanse.gateway.front.connect import MQTT_5, Connect
from hanse.gateway.placement import Broker, Query, choose
from hanse.gateway.redirect.credentials import ACCEPTED, Credentials
from hanse.gateway.redirect.exchange import Redirection
from hanse.gateway.redirect.returns import Returns
from hanse.gateway.redirect.targets import reference_of
from hanse.gateway.session.events import TopicsAsked
from hanse.gateway.session.settings import Settings as SessionSettings
from hanse.gateway.settings import GatewaySettings
from hanse.gateway.traffic import Traffic
from hanse.mqtt.reference import FILTER_NOT_ACCEPTED, FOLLOWS, SERVER_MOVED, USE_ANOTHER_SERVER
from hanse.protocol.topics import check_filter, covers

# User properties of CONNECT: the client follows references; the filter that it is going to subscribe to.
FOLLOWS_PROPERTY: Final = (FOLLOWS[0].encode(), FOLLOWS[1].encode())
TOPIC_PROPERTY: Final = b"server-reference-topic"

# Asks the supervisor; the answer goes to `answered`.
Ask = Callable[..., None]
Proxy = Callable[[Client, Connect, bytes], None]


class Redirector:
    """The redirects of one worker.

    Args:
        ask: sends a question to the supervisor.
        proxy: serves a client the usual way.
        run: starts a coroutine for a client.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        directory: Directory,
        dialler: Dialler,
        *,
        session_settings: SessionSettings,
        traffic: Traffic,
        share: int,
        ask: Ask,
        proxy: Proxy,
        run: Callable[[Any], None],
    ) -> None:
        self.returns = Returns(settings.redirect_return_s)
        self._traffic = traffic
        self._settings = settings
        self._directory = directory
        self._session_settings = session_settings
        self._ask = ask
        self._proxy = proxy
        self._run = run
        self._loop = asyncio.get_running_loop()
        self.credentials = Credentials(
            dialler,
            rate=settings.redirect_check_rate / share,
            timeout_s=settings.dial_timeout_s,
            clock=self._loop.time,
        )
        self._number = 0
        self._asked: dict[int, tuple[Client, Redirection]] = {}

    @staticmethod
    def is_wanted(settings: GatewaySettings) -> bool:
        """Return whether any listener redirects."""
        return any((one.mode or settings.mode) != "proxy" and not one.is_websocket for one in settings.listeners())

    # --- CONNECT ------------------------------------------------------------------------------------------------------

    def take(self, client: Client, connect: Connect, rest: bytes) -> bool:
        """Redirect a client; return False if it must be proxied."""
        mode = client.listener.mode or self._settings.mode
        if mode == "proxy" or client.listener.is_websocket:
            return False
        key = self.returns.key(connect, client.address)
        now = self._loop.time()
        reason = self._why_proxied(mode, connect, key, now)
        if reason:
            self._count_proxied(reason)
            return False
        session = Redirection(
            self._session_settings,
            self._traffic.sessions,
            now,
            is_accepted_filter=self._is_accepted_filter,
            idle_s=self._settings.redirect_idle_s,
        )
        client.session = session
        session.start(connect, rest, now)
        login = self.credentials.key(connect)
        if self.credentials.known(login) == ACCEPTED:
            self._decide(client, session, key)
        else:
            self._run(self._check(client, session, key, login))
        return True

    def _why_proxied(self, mode: str, connect: Connect, key: bytes, now: float) -> str:
        if connect.level != MQTT_5:
            return "version"
        if mode == "auto" and FOLLOWS_PROPERTY not in connect.user_properties:
            return "does_not_follow"
        if connect.auth_method is not None:
            return "authentication"
        if self.returns.is_back(key, now):
            return "came_back"
        if self.credentials.known(self.credentials.key(connect)) not in ("", ACCEPTED):
            return "credentials"
        return ""

    def _count_proxied(self, reason: str) -> None:
        self._traffic.proxied[reason] = self._traffic.proxied.get(reason, 0) + 1

    def _is_accepted_filter(self, filter_: str) -> bool:
        return not any(wide == filter_ or covers(wide, filter_) for wide in self._settings.redirect_deny)

    async def _check(self, client: Client, session: Redirection, key: bytes, login: bytes) -> None:
        connect = session.connect
        broker = choose(Query(session.client_id), self._directory.members)
        verdict = "no_broker" if broker is None else await self.credentials.check(login, connect, broker)
        self._traffic.redirect_checks = self.credentials.checks
        if client.session is not session or session.is_over or not client.is_open:
            return
        if verdict == ACCEPTED:
            self._decide(client, session, key)
        else:
            self._give_up(client, session, "credentials" if verdict == "refused" else f"check_{verdict}")

    def _give_up(self, client: Client, session: Redirection, reason: str) -> None:
        """Proxy a client that has no CONNACK yet."""
        self._count_proxied(reason)
        self._proxy(client, session.connect, session.give_up())

    def _decide(self, client: Client, session: Redirection, key: bytes) -> None:
        """Name the broker now, or accept the client (rule 2)."""
        connect = session.connect
        if not connect.is_transient:
            self._name_by_hash(client, session, key)
            return
        topic = next((value for name, value in connect.user_properties if name == TOPIC_PROPERTY), b"")
        if topic and self._is_good(topic.decode()):
            self._question(client, session, (topic.decode(),), is_publisher=False)
            return
        targets = self._targets(client)
        if not targets:
            self._give_up(client, session, "no_target")
        elif len(targets) == 1 and self._settings.redirect_unknown == "any" and not self._settings.redirect_deny:
            self._name(client, session, key, targets[0], USE_ANOTHER_SERVER)
        else:
            session.accept(self._loop.time())
            client.settle()

    def _is_good(self, filter_: str) -> bool:
        try:
            check_filter(filter_)
        except RemoteError:
            return False
        return self._is_accepted_filter(filter_)

    def _targets(self, client: Client) -> list[Broker]:
        return [
            view.broker
            for view in self._directory.members
            if not view.obstacle and reference_of(view.broker, client.listener)[0]
        ]

    def _name_by_hash(self, client: Client, session: Redirection, key: bytes) -> None:
        connect = session.connect
        hashed = session.client_id
        if self._settings.placement_key == "username":
            hashed = connect.username or hashed
        broker = choose(Query(hashed), self._directory.members)
        if broker is None or not reference_of(broker, client.listener)[0]:
            self._give_up(client, session, "no_target")
        else:
            self._name(client, session, key, broker, USE_ANOTHER_SERVER)

    # --- topics -------------------------------------------------------------------------------------------------------

    def asked(self, client: Client, event: TopicsAsked) -> None:
        """Take the request of an accepted client."""
        session = client.session
        if isinstance(session, Redirection):
            self._traffic.redirect_lost += session.lost
            self._question(client, session, event.filters, is_publisher=event.is_publisher)

    def _question(self, client: Client, session: Redirection, filters: tuple[str, ...], *, is_publisher: bool) -> None:
        self._number += 1
        number = self._number
        self._asked[number] = (client, session)
        last = self.returns.last(self.returns.key(session.connect, client.address), self._loop.time())
        self._ask(
            "where",
            number=number,
            filters=list(filters),
            publisher=is_publisher,
            client=session.client_id.hex(),
            came_from=last.broker_id if last is not None else "",
            listener=client.listener.url(),
        )

    def answered(self, number: int, answer: dict[str, Any]) -> None:
        """Take the supervisor's answer."""
        found = self._asked.pop(number, None)
        if found is None:
            return
        client, session = found
        if client.session is not session or session.is_over or not client.is_open:
            return
        code = answer["code"]
        view = self._directory.view(answer.get("broker", ""))
        if code in (USE_ANOTHER_SERVER, SERVER_MOVED) and view is not None:
            self._name(client, session, self.returns.key(session.connect, client.address), view.broker, code)
            return
        if not session.is_accepted and code == FILTER_NOT_ACCEPTED:
            # CONNACK has no such code: the client learns it when it subscribes.
            session.accept(self._loop.time())
        elif not session.is_accepted:
            self._give_up(client, session, "no_target")
            return
        elif code == FILTER_NOT_ACCEPTED:
            session.not_accepted()
        else:
            session.no_broker(self._loop.time())
        client.settle()

    def _name(self, client: Client, session: Redirection, key: bytes, broker: Broker, code: int) -> None:
        now = self._loop.time()
        # The address is computed here, from this worker's own directory, so nothing that others sent can get into it.
        reference, _ = reference_of(broker, client.listener)
        if not reference:
            session.no_broker(now)
            client.settle()
            return
        last = self.returns.last(key, now)
        if last is not None and last.broker_id == broker.id and last.reference != reference:
            code = SERVER_MOVED
        packet = "disconnect" if session.is_accepted else "connack"
        name = f"{packet}_{code:#04x}"
        self._traffic.redirects[name] = self._traffic.redirects.get(name, 0) + 1
        self.returns.note(key, broker.id, reference, now)
        self._ask("redirected", key=key.hex(), broker=broker.id, reference=reference)
        session.name(code, reference)
        client.settle()

    def heard(self, key: str, broker: str, reference: str) -> None:
        """Take note of another worker's redirect (rule 4)."""
        self.returns.note(bytes.fromhex(key), broker, reference, self._loop.time())

    async def stop(self) -> None:
        """End the checks that are under way."""
        await self.credentials.stop()
