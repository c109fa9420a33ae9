"""Client of one session at a broker: it connects, stays connected, and reports arrivals and acknowledgements.

Rules:

- One callback per read, with a list. The caller acknowledges (`ack`), unless `auto_ack` is set.
- The wanted subscriptions and the unacknowledged publications survive every reconnect. Requests that the broker's
  session still holds are not repeated, lost ones are (`subscriptions`, `sending`, `receiving` own the details).
- Once started, it never gives up. It backs off, with jitter, which comes in as an argument, and reports each failure.
- Nothing grows without a limit: QoS 0 is dropped and counted if the broker is too slow, QoS 1 and 2 wait for `credit`.
- A 3.1.1 broker gets the same session in other bytes (`v311`). The client first detects the capabilities of such a
  broker (`survey`), and `traits` holds them. With `auto`, MQTT 5 is tried first. A broker that refuses it is older. One
  that closes the connection instead of answering may be older, so MQTT 5 is tried again with each new connection.
"""

import asyncio
import contextlib
import random
import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import mqtt5
from mqtt5 import ConnAckPacket, ConnectPacket, DisconnectPacket, SubAckPacket, UnsubAckPacket

from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.mqtt import codec, v311
from hanse.mqtt.backoff import Backoff, BackoffSettings
from hanse.mqtt.connection import Connection, disconnect_packet
from hanse.mqtt.counters import Counters
from hanse.mqtt.exchange import BY_CLIENT, Exchange
from hanse.mqtt.framing import Splitter
from hanse.mqtt.limits import (
    HELD_BYTES_MAX,
    HELD_PACKETS_MAX,
    PACKET_BYTES_MAX,
    RECEIVE_MAX,
    V311_WINDOW,
    WRITE_BYTES_MAX,
)
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.receiving import Receiving
from hanse.mqtt.refusal import (
    NORMAL,
    QUOTA_EXCEEDED,
    SESSION_TAKEN_OVER,
    UNSUPPORTED_VERSION,
    WITH_WILL,
    Refusal,
    protocol_error,
)
from hanse.mqtt.sending import Sending
from hanse.mqtt.skipping import SkippingSplitter
from hanse.mqtt.subscriptions import Subscription, Subscriptions
from hanse.mqtt.survey import UNKNOWN, Traits, survey
from hanse.mqtt.tls import TlsSettings, client_context
from hanse.mqtt.tls_failures import cannot_connect, what_to_check
from hanse.mqtt.urls import Address, parse
from hanse.mqtt.v311 import V311, Written
from hanse.mqtt.websocket_stream import WebSocketStream

# CONNACK codes for which the operator must change something. The others may succeed later.
_OPERATORS: Final = {
    0x84: "it does not support this version of MQTT",
    0x85: "it refuses this client id",
    0x86: "it refuses this user name and password",
    0x87: "this client is not authorised",
    0x8A: "this client is banned",
    0x8C: "it requires another method of authentication",
}


# Number of surveys of a 3.1.1 broker that accepts the session but does not answer, before the worse traits are assumed.
SURVEYS_MAX: Final = 3

# Protocol levels: 4 is MQTT 3.1.1.
Version = Literal[4, 5, "auto"]


class ConnectRefused(LocalError):  # noqa: N818 - the name is what the broker did
    """Refusal of the session until the operator changes something: CONNACK with `reason_code`."""

    def __init__(self, message: str, reason_code: int) -> None:
        super().__init__(message)
        self.reason_code = reason_code


class SentAway(Unavailable):
    """Refusal or end of the session that may pass: CONNACK or DISCONNECT with `reason_code`.

    `server_reference` is the broker's text, unchecked; `is_connack` tells the two packets apart.
    """

    def __init__(
        self, message: str, reason_code: int, server_reference: str | None = None, *, is_connack: bool = False
    ) -> None:
        super().__init__(message)
        self.reason_code = reason_code
        self.server_reference = server_reference
        self.is_connack = is_connack

    @property
    def is_taken_over(self) -> bool:
        """Return whether another client connected with the same client id. Mosquitto 2.0 only closes the socket."""
        return self.reason_code == SESSION_TAKEN_OVER and not self.is_connack


@dataclass(frozen=True, slots=True)
class Will:
    """Message that the broker publishes if this client vanishes; a 3.1.1 broker gets it without properties."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    delay_s: int = 0
    expiry_s: int | None = None
    payload_format_indicator: int = 0
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of one session.

    Args:
        url: address of the broker, optionally with user name and password.
        socket_path: the broker's Unix socket, dialled instead, without TLS because nobody can listen in between.
        client_id: client id of this side.
        clean_start: whether the first connection makes the broker forget an old session. A reconnect never does.
            Mosquitto 2.0.11 does not save a session to disk if its CONNECT asked for a clean start.
        session_expiry_s: time for which the broker keeps the session (and its messages) while this side is away.
        receive_max: number of unacknowledged QoS 1 and 2 publications that the broker may send.
        tolerated: number of them that ends the connection; by default twice as many.
        packet_bytes_max: largest accepted packet.
        tells_packet_max: whether CONNECT names this limit, so that the broker sends no larger packet. If not, a larger
            PUBLISH is left out of the stream, acknowledged and counted (`skipping`).
        connect_timeout_s: timeout of a whole attempt: name, TCP, TLS, CONNACK.
        held_packets_max, held_bytes_max: QoS 1 and 2 publications kept for the broker before credit ends.
        write_bytes_max: unsent bytes beyond which QoS 0 is dropped.
        version: MQTT version; `auto` detects it. 3.1.1 has no expiry: a session that lasts at all lasts as long as the
            broker likes, and `delay_s` of a will has no effect.
        probe_topic: prefix of the topics of a survey at a 3.1.1 broker. Without one, or for a session that does not
            last, `assumed` is used.
        probe_client_id: client id of the survey's short session; by default one of its own that nobody knows.
        assumed: traits of a 3.1.1 broker that was not surveyed.
    """

    url: str
    client_id: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsSettings | None = None
    socket_path: Path | None = None
    will: Will | None = None
    keep_alive_s: int = 20
    clean_start: bool = True
    session_expiry_s: int = 0
    receive_max: int = RECEIVE_MAX
    tolerated: int | None = None
    packet_bytes_max: int = PACKET_BYTES_MAX
    tells_packet_max: bool = True
    connect_timeout_s: float = 10.0
    held_packets_max: int = HELD_PACKETS_MAX
    held_bytes_max: int = HELD_BYTES_MAX
    write_bytes_max: int = WRITE_BYTES_MAX
    backoff: BackoffSettings = field(default_factory=BackoffSettings)
    auto_ack: bool = False
    user_properties: tuple[tuple[str, str], ...] = ()
    version: Version = 5
    probe_topic: str | None = None
    probe_client_id: str | None = None
    assumed: Traits = UNKNOWN


class ClientHandler:
    """Callbacks of a client. Override the ones of interest. None may block."""

    def on_connected(self, session_present: bool) -> None:
        """Handle an accepted connection. Subscriptions and retransmissions are on their way."""

    def on_disconnected(self, error: HanseError | None) -> None:
        """Handle the end of a connection or a failed attempt, with its reason; None after `stop`."""

    def on_publications(self, publications: list[Publication]) -> None:
        """Handle the publications of one read. Call `ack` with their receipts (those that are not 0), now or later."""

    def on_acknowledged(self, numbers: list[int]) -> None:
        """Handle publications that the broker has acknowledged (PUBACK, PUBCOMP)."""

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        """Handle publications that the broker refused, with its reason code (0x92: lost with its session)."""

    def on_unmatched(self, unmatched: list[tuple[int, str]]) -> None:
        """Handle number and topic of QoS 1 publications without a subscriber at the broker (acknowledged as well)."""

    def on_writable(self) -> None:
        """Continue writing: the transport has capacity again, after `is_writable` was false."""

    def on_credit(self) -> None:
        """Continue after `publish_run` raised Unavailable: half of the capacity is free again."""

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Handle filters with the reason code of the SUBACK: the granted QoS, or 0x80 and above for a refusal."""

    def on_unsubscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Handle filters with the reason code of the UNSUBACK."""

    def on_assigned(self, first_number: int, first_packet_id: int, count: int) -> None:
        """Handle a batch with QoS 2 that is about to be written for the first time, with these packet identifiers."""

    def on_written(self, written: list[Written]) -> None:
        """Handle topics and payloads that leave for a 3.1.1 broker, which may send them back."""

    def on_received(self, pairs: list[tuple[int, int]]) -> None:
        """Handle (number, packet identifier) of QoS 2 that the broker has. PUBREL is written when this returns."""


# Connects a protocol factory to a transport. Tests join two ends in memory.
Dial = Callable[[Callable[[], Connection]], Awaitable[object]]


class Client:
    """Client of one broker.

    Args:
        jitter: function that gives numbers from 0 to 1 for the back-off.
        dial: function that makes the transport; by default a Unix socket, TCP or TLS, as the settings say.
        counters: counters to share with others.

    Raises:
        LocalError: a setting is wrong.
    """

    def __init__(
        self,
        settings: ClientSettings,
        handler: ClientHandler,
        *,
        jitter: Callable[[], float] = random.random,
        dial: Dial | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.settings = settings
        self.address: Address = parse(settings.url, may_be_websocket=True)
        # Address for messages, without a login.
        self.where = f"unix:{settings.socket_path}" if settings.socket_path else str(self.address)
        self.handler = handler
        self.counters = counters or Counters()
        self._tls = self._tls_context()
        # Version that the broker has accepted, or beyond which it refused to go; None while either is possible.
        self._version: int | None = None if settings.version == "auto" else settings.version
        self.traits = settings.assumed if self._version == v311.LEVEL else Traits()
        self._is_clean = settings.clean_start
        # The client id of the next CONNECT.
        self._client_id = settings.client_id
        # This side of the last attempt's connection: address and port, another text without TCP, None without any.
        self.local_address: str | None = None
        # Whether the session at the broker is the one that the unacknowledged publications here belong to.
        self._is_same_session = True
        # Set by `retarget` and `rename`: the next attempt does not wait.
        self._is_hurried = False
        self._home = self.address
        self._is_surveyed = False
        self._unanswered = 0
        self._connect_packet(self._version or 5)  # so that wrong settings are reported at once
        self._backoff = Backoff(settings.backoff, jitter)
        self._dial = dial or self._dial_network
        self._subscriptions = Subscriptions()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._attempt: _Attempt | None = None
        self._connected = asyncio.Event()
        self._sending = Sending(
            self.counters,
            packets_max=settings.held_packets_max,
            bytes_max=settings.held_bytes_max,
            write_bytes_max=settings.write_bytes_max,
            on_assigned=handler.on_assigned,
            on_received=handler.on_received,
            on_credit=handler.on_credit,
            on_outcomes=self._settle_soon,
        )
        # Sends a run of canonical packets; see there for result and exceptions.
        self.publish_run = self._sending.publish_run
        self._exchange = Exchange(
            self.counters,
            self._sending,
            Receiving(
                self.counters,
                receive_max=settings.receive_max,
                tolerated=settings.tolerated or 2 * settings.receive_max,
            ),
            others=BY_CLIENT,
            on_publications=handler.on_publications,
            on_acknowledged=handler.on_acknowledged,
            on_refused=handler.on_refused,
            on_other=self._on_other,
            on_unmatched=handler.on_unmatched,
            auto_ack=settings.auto_ack,
        )

    # Start and end.

    async def start(self, *, must_connect: bool = False) -> None:
        """Start.

        With `must_connect`, the first attempt must succeed; otherwise its error is raised and nothing runs.
        """
        assert self._task is None, "the client was started already"
        self._loop = asyncio.get_running_loop()
        if must_connect:
            await self._connect()
        self._task = asyncio.create_task(self._stay_connected(), name=f"mqtt client {self.settings.client_id}")

    async def wait_connected(self, timeout_s: float | None) -> None:
        """Wait until the client is connected. Raise Unavailable after the timeout (None: there is none)."""
        try:
            await asyncio.wait_for(self._connected.wait(), timeout_s)
        except TimeoutError:
            raise Unavailable(f"{self.where} did not accept the session within {timeout_s} s.") from None

    async def stop(self, *, with_will: bool = False) -> None:
        """Send DISCONNECT and end. With `with_will`, the broker publishes the will."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # Only now, because the last turn of the task may have been accepted.
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.leave(WITH_WILL if with_will else NORMAL)
            await attempt.closed.wait()

    @property
    def is_connected(self) -> bool:
        """Return whether the broker has accepted the session and the connection is up."""
        return self._connected.is_set()

    @property
    def is_writable(self) -> bool:
        """Return whether the transport accepts more without keeping it in memory."""
        attempt = self._attempt
        return attempt is not None and attempt.connection is not None and attempt.connection.is_writable

    def retarget(self, host: str, port: int, *, clean_start: bool, is_same_session: bool, at_once: bool) -> None:
        """Dial this server from the next attempt on; subscriptions and unacknowledged publications go along.

        The transport, the login and the files stay. The certificate of a server other than that of the settings must
        hold its own name, whatever `tls.server_name` says.

        Args:
            host: the server's name or address, as its certificate must name it.
            port: the server's port.
            clean_start: whether the next CONNECT makes that broker forget an old session.
            is_same_session: whether that broker's session is the one that was left. If not, what is unacknowledged
                goes out as new, because packet identifiers mean nothing to another session.
            at_once: whether the next attempt is made without a delay.
        """
        self.address = replace(self.address, host=host, port=port)
        self.where = str(self.address)
        self._is_clean = clean_start
        self._is_same_session = is_same_session
        self._is_hurried = at_once
        if self.settings.version == "auto":
            self._version = None
        self._is_surveyed = False

    def rename(self, client_id: str) -> None:
        """Leave the session to the broker, and connect at once with another client id.

        Subscriptions and unacknowledged publications go along. There must be no session of that name, except one that
        a former process began. The CONNECT asks for no clean start, because Mosquitto 2.0 would then not save the new
        session to disk.
        """
        self._client_id = client_id
        self._is_same_session = False
        self._is_hurried = True
        if self._attempt is not None:
            self._attempt.leave(NORMAL)

    # Outgoing.

    @property
    def credit(self) -> int:
        """Number of QoS 1 and 2 publications that may be handed over now."""
        return self._sending.credit

    @property
    def unacknowledged(self) -> int:
        """Number of QoS 1 and 2 publications that the broker has not acknowledged."""
        return self._sending.held

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> int:
        """Send a single publication."""
        return self.publish_run(encode(topic, payload, qos=qos, retain=retain), qos=qos, count=1)

    @property
    def next_number(self) -> int:
        """Number that the next publication above QoS 0 will get."""
        return self._sending.next_number

    def reserve(self, packet_ids: Iterable[int]) -> None:
        """Keep identifiers of a former process for `publish_again`; see `Sending.reserve`."""
        self._sending.reserve(packet_ids)

    def publish_again(self, run: bytes, packet_ids: Sequence[int]) -> int:
        """Send packets of QoS 2, some under reserved identifiers; see `Sending.publish_again`."""
        return self._sending.publish_again(run, packet_ids)

    def resume(self, entries: Sequence[tuple[int, bytes | None]]) -> list[int]:
        """Resume a former process's unfinished publications before `start`; see `Sending.resume`."""
        return self._sending.resume(entries)

    # Incoming.

    def ack(self, receipts: Iterable[int]) -> None:
        """Acknowledge publications; the broker then forgets them."""
        self._exchange.ack(receipts)

    def subscribe(self, items: Iterable[Subscription], *, repeats: bool = False) -> None:
        """Add wanted filters, also over reconnects; `on_subscribed` reports the broker's answers.

        With `repeats`, the broker also gets those that are wanted already, and sends its retained messages again.
        """
        self._write(self._subscriptions.subscribe(items, repeats=repeats))

    def withdraw_oldest(self) -> list[Subscription]:
        """Remove the filters of the oldest unanswered SUBSCRIBE, and return them; see `Subscriptions`."""
        return self._subscriptions.withdraw_oldest()

    def unsubscribe(self, patterns: Iterable[str]) -> None:
        """Remove wanted filters, whether this process subscribed to them or a former one."""
        self._write(self._subscriptions.unsubscribe(patterns))

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        """Return the wanted filters."""
        return dict(self._subscriptions.wanted)

    def wanted(self, pattern: str) -> Subscription | None:
        """Return the subscription wanted for a filter, if there is one."""
        return self._subscriptions.wanted.get(pattern)

    def is_granted(self, pattern: str) -> bool:
        """Return whether the broker has granted a filter, as far as it has answered."""
        return self._subscriptions.is_granted(pattern)

    @property
    def is_subscribed(self) -> bool:
        """Return whether the broker has answered for every filter wanted."""
        return self._subscriptions.is_settled

    def abort(self) -> None:
        """Cut the connection as a network would; the client reconnects. For tests, and on suspicion of a dead peer."""
        if self._attempt is not None and self._attempt.connection is not None:
            self._attempt.connection.abort(Unavailable("the connection was cut off on purpose."))

    # Private parts.

    def _on_skipped(self, qos: int, packet_id: int) -> None:
        """Acknowledge a PUBLISH beyond our limit that was left out: otherwise the broker would send it again."""
        self.counters.drop("packet_too_large")
        if qos in (1, 2) and packet_id:
            self._write(self._exchange.receiving.reject(packet_id, qos, QUOTA_EXCEEDED))

    def _write(self, data: bytes) -> None:
        if data and self._attempt is not None:
            self._attempt.write(data)

    def _settle_soon(self) -> None:
        assert self._loop is not None, "publish after `start`"
        self._loop.call_soon(self._exchange.settle)

    def _tls_context(self) -> ssl.SSLContext | None:
        if self.settings.socket_path is not None:
            return None
        if self.address.is_tls:
            return client_context(self.settings.tls or TlsSettings())
        if self.settings.tls is not None:
            raise LocalError(f"TLS files were given for {self.where}, which is plain; write mqtts:// or wss://.")
        return None

    @property
    def tls_settings(self) -> TlsSettings | None:
        """Files of TLS; None without TLS."""
        return (self.settings.tls or TlsSettings()) if self._tls is not None else None

    @property
    def login(self) -> tuple[str | None, str | None]:
        """User name and password of the settings, or else of the address."""
        settings, address = self.settings, self.address
        username = settings.username if settings.username is not None else address.username
        return username, settings.password if settings.password is not None else address.password

    def _will(self) -> mqtt5.Will | None:
        will = self.settings.will
        if will is None:
            return None
        return mqtt5.Will(
            will.topic,
            payload=will.payload,
            qos=mqtt5.QoS(will.qos),
            retain=will.retain,
            will_delay_interval=will.delay_s,
            message_expiry_interval=will.expiry_s,
            payload_format_indicator=will.payload_format_indicator,
            content_type=will.content_type,
            response_topic=will.response_topic,
            correlation_data=will.correlation_data,
            user_properties=list(will.user_properties),
        )

    def _connect_packet_311(self, client_id: str, *, clean_session: bool) -> bytes:
        username, password = self.login
        return v311.connect(
            client_id,
            clean_session=clean_session,
            keep_alive_s=self.settings.keep_alive_s,
            username=username,
            password=password,
            will=None if client_id != self._client_id else self._will(),
        )

    def _connect_packet(self, version: int) -> bytes:
        settings = self.settings
        username, password = self.login
        if not 1 <= settings.receive_max <= 65_535 or not 0 <= settings.keep_alive_s <= 65_535:
            raise LocalError("receive_max must be 1 to 65535 and keep_alive_s 0 to 65535.")
        try:
            if version == v311.LEVEL:
                return self._connect_packet_311(self._client_id, clean_session=not settings.session_expiry_s)
            return ConnectPacket(
                self._client_id,
                username=username,
                password=None if password is None else password.encode(),
                clean_start=self._is_clean,
                keep_alive=settings.keep_alive_s,
                session_expiry_interval=settings.session_expiry_s,
                receive_max=settings.receive_max,
                max_packet_size=settings.packet_bytes_max if settings.tells_packet_max else None,
                user_properties=list(settings.user_properties),
                will=self._will(),
            ).write()
        except (ValueError, OverflowError) as error:
            raise LocalError(f"the session settings do not make a CONNECT packet: {error}.") from error

    async def _dial_network(self, make: Callable[[], Connection]) -> None:
        loop = asyncio.get_running_loop()
        if self.settings.socket_path is not None:
            await loop.create_unix_connection(make, str(self.settings.socket_path))
            return
        is_home = (self.address.host, self.address.port) == (self._home.host, self._home.port)
        name = self.settings.tls.server_name if self.settings.tls and is_home else None
        address = self.address
        stream = WebSocketStream(make, address.host, address.port, address.path) if address.path else None
        await loop.create_connection(
            make if stream is None else lambda: stream,
            address.host,
            address.port,
            ssl=self._tls,
            server_hostname=(name or address.host) if self._tls else None,
        )
        if stream is not None:
            await stream.wait_open()

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                if self._attempt is None:
                    await self._connect()
                assert self._attempt is not None
                since = loop.time()
                await self._attempt.closed.wait()
                self._attempt = None
                self._backoff.held(loop.time() - since)
            except HanseError as error:
                self.handler.on_disconnected(error)
            if self._is_hurried:
                self._is_hurried = False
                continue
            await asyncio.sleep(self._backoff.next_s())

    async def _connect(self) -> None:
        """Make one attempt, up to an accepting CONNACK.

        If the version is open, perhaps make a second one with the older.
        """
        if self._version == v311.LEVEL:
            await self._connect_older()
            return
        attempt = _Attempt(self, 5)
        await self._try(attempt)
        if attempt.failure is None:
            self._version = 5
            return
        if self._version is not None or not attempt.may_be_older:
            raise attempt.failure
        if attempt.is_older:
            self._version = v311.LEVEL
        try:
            await self._connect_older()
        except HanseError as error:
            # A broker that answers neither version is not an older one: its first reaction says more.
            raise (error if attempt.is_older else attempt.failure) from None

    async def _connect_older(self) -> None:
        """Connect to a 3.1.1 broker. Before the first lasting session, survey it and make it forget an old session."""
        settings = self.settings
        if settings.session_expiry_s and not self._is_surveyed:
            if settings.probe_topic is not None:
                # Anyone may subscribe to this topic, so it must not name the session.
                token = secrets.token_hex(16)
                name = settings.probe_client_id or f"hanse-probe-{token}"
                self.traits = await self._survey(name, f"{settings.probe_topic}/{token}")
            if self._is_clean:
                await self._survey(self._client_id, None)
            self._is_surveyed = True
        if self.traits.version != v311.LEVEL:
            self.traits = settings.assumed
        attempt = _Attempt(self, v311.LEVEL)
        await self._try(attempt)
        if attempt.failure is not None:
            raise attempt.failure

    async def _survey(self, client_id: str, topic: str | None) -> Traits:
        connect = self._connect_packet_311(client_id, clean_session=True)
        with self._told_plainly():
            asked = await survey(self._dial, connect, topic, self.settings.connect_timeout_s)
        if asked.failure is not None:
            why = _OPERATORS.get(asked.refusal_code)
            if why is not None:
                raise LocalError(f"{self.where} refused the session: {why}; check the settings.")
            raise Unavailable(f"{self.where} could not be surveyed: {asked.failure}")
        if not asked.is_answered and self._unanswered < SURVEYS_MAX - 1:
            self._unanswered += 1
            raise Unavailable(f"{self.where} did not answer the survey of its capabilities; it is tried again.")
        return asked.found

    async def _try(self, attempt: "_Attempt") -> None:
        self.local_address = None
        try:
            with self._told_plainly():
                async with asyncio.timeout(self.settings.connect_timeout_s):
                    await self._dial(attempt.make)
                    await attempt.answered.wait()
        except TimeoutError:
            attempt.give_up()
            raise Unavailable(
                f"{self.where} did not answer CONNECT within {self.settings.connect_timeout_s} s."
            ) from None
        except asyncio.CancelledError:
            attempt.give_up()
            raise

    @contextlib.contextmanager
    def _told_plainly(self) -> Iterator[None]:
        """Convert errors of the network into our own."""
        try:
            yield
        except TimeoutError:
            raise
        except OSError as error:  # ssl.SSLError is one
            raise cannot_connect(self.where, error, self.tls_settings) from error

    def _on_connack(self, attempt: "_Attempt", connack: ConnAckPacket) -> None:
        connection = attempt.connection
        assert connection is not None
        self._attempt = attempt
        self.counters.connects += 1
        self._is_clean = False
        if attempt.older is None:
            self.traits = Traits(qos_max=int(connack.max_qos))
        self._connected.set()
        keep_alive_s = connack.server_keep_alive
        connection.keep_alive(self.settings.keep_alive_s if keep_alive_s is None else keep_alive_s, pings=True)
        receive_max = connack.receive_max if attempt.older is None else V311_WINDOW
        connection.know_window(receive_max)
        is_present = connack.session_present and self._is_same_session
        self._is_same_session = True
        self.handler.on_connected(connack.session_present)
        self._exchange.attach(
            connection.write if attempt.older is None else attempt.write,
            connection.waiting_bytes,
            session_present=is_present,
            receive_max=receive_max,
            packet_bytes_max=connack.max_packet_size,
            qos_max=self.traits.qos_max,
            retain_available=connack.retain_available,
            older=attempt.older,
        )
        attempt.write(
            self._subscriptions.attach(session_present=is_present, has_identifiers=connack.subscription_id_available)
        )

    def _on_lost(self, error: HanseError | None) -> None:
        self._connected.clear()
        self._exchange.detach()
        self._subscriptions.detach()
        self.counters.disconnects += 1
        self.handler.on_disconnected(error)

    def _on_other(self, packet: mqtt5.Packet) -> None:
        if isinstance(packet, SubAckPacket):
            codes = [int(code) for code in packet.reason_codes]
            self.handler.on_subscribed(self._subscriptions.answer(packet.packet_id, True, codes))
            self._write(self._subscriptions.proceed())
        elif isinstance(packet, UnsubAckPacket):
            codes = [int(code) for code in packet.reason_codes]
            self.handler.on_unsubscribed(self._subscriptions.answer(packet.packet_id, False, codes))
            self._write(self._subscriptions.proceed())
        elif isinstance(packet, DisconnectPacket):
            assert self._attempt is not None
            self._attempt.told(packet)
        elif not isinstance(packet, mqtt5.PingRespPacket):
            raise protocol_error(f"a {type(packet).__name__} came without a request")


class _Attempt:
    """One connection of a client, from dialling to its end; the owner of its `Connection`."""

    def __init__(self, client: Client, version: int) -> None:
        self._client = client
        self.version = version
        # The translation, if the broker speaks 3.1.1.
        self.older = V311(client.counters, client.handler.on_written) if version == v311.LEVEL else None
        # Whether the broker has shown that it does not support MQTT 5, or has at least not answered.
        self.is_older = False
        self.may_be_older = False
        self.connection: Connection | None = None
        self.answered = asyncio.Event()
        self.closed = asyncio.Event()
        self.failure: HanseError | None = None
        self._is_accepted = False
        self._client_id = client._client_id  # noqa: SLF001 - the attempt is a part of the client
        self.on_packets = self._on_first
        self._told: HanseError | None = None

    def make(self) -> Connection:
        """Return the protocol for the transport."""
        settings = self._client.settings
        splitter = (
            Splitter(settings.packet_bytes_max, first_kind=codec.CONNACK)
            if settings.tells_packet_max
            else SkippingSplitter(
                settings.packet_bytes_max,
                first_kind=codec.CONNACK,
                on_skipped=self._client._on_skipped,  # noqa: SLF001
            )
        )
        self.connection = Connection(self, splitter, self._client.counters, says_disconnect=False)
        return self.connection

    def give_up(self) -> None:
        """Abort, because nobody waits for the attempt any more."""
        if self.connection is not None:
            self.connection.abort()

    def write(self, data: bytes | bytearray) -> None:
        """Write packets of the session, in the broker's version."""
        if data and self.connection is not None and self.connection.is_open:
            self.connection.write(data if self.older is None else self.older.outward(data))

    def leave(self, reason_code: int) -> None:
        """Send DISCONNECT, which always cancels the will in 3.1.1."""
        if self.connection is None:
            return
        if self.older is None:
            self.connection.end(None, disconnect_packet(reason_code))
        else:
            self.connection.end(None, b"" if reason_code == WITH_WILL else v311.DISCONNECT)

    def told(self, packet: DisconnectPacket) -> None:
        """Handle the broker's DISCONNECT: keep the reason for the end of the connection."""
        reason = packet.reason_str or packet.reason_code.name.lower().replace("_", " ")
        elsewhere = f" (use {packet.server_reference})" if packet.server_reference else ""
        self._told = SentAway(
            f"{self._client.where} ended the connection: {reason}{elsewhere}.",
            int(packet.reason_code),
            packet.server_reference,
        )
        assert self.connection is not None
        self.connection.end(self._told, b"")

    def on_open(self, connection: Connection) -> None:
        """Send CONNECT on the new transport."""
        transport = connection._transport  # noqa: SLF001 - the same
        name = None if transport is None else transport.get_extra_info("sockname")
        self._client.local_address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "no address"
        connection.write(self._client._connect_packet(self.version))  # noqa: SLF001 - the attempt is a part of the client
        connection.flush()

    def _on_first(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """Handle CONNACK. Later packets are the session's traffic, and go there without another call here."""
        start, end = offsets[0]
        packet = data[start:end]
        # A broker that refuses MQTT 5 may know no other form of CONNACK than its own.
        is_short = v311.is_connack(packet) and packet[3] != 0
        connack = v311.connack(packet) if self.older is not None or is_short else codec.decode(packet)
        assert isinstance(connack, ConnAckPacket), "the splitter allows no other first packet"
        if int(connack.reason_code):
            self._refused(connack)
            return
        if self._client_id != self._client._client_id:  # noqa: SLF001
            self.failure = Unavailable(f"{self._client.where} accepted a client id that was given up meanwhile.")
            self.leave(NORMAL)
            return
        self._is_accepted = True
        self.on_packets = self._client._exchange.receive  # noqa: SLF001
        assert self.connection is not None
        self.connection.says_disconnect = self.older is None
        self._client._on_connack(self, connack)  # noqa: SLF001
        self.answered.set()
        if len(offsets) > 1:
            self.on_packets(data, offsets[1:])

    def _refused(self, connack: ConnAckPacket) -> None:
        code = int(connack.reason_code)
        name = connack.reason_str or connack.reason_code.name.lower().replace("_", " ")
        where = self._client.where
        self.is_older = self.may_be_older = self.older is None and code == UNSUPPORTED_VERSION
        if code in _OPERATORS:
            self.failure = ConnectRefused(
                f"{where} refused the session: {_OPERATORS[code]} ({name}); check the settings.", code
            )
        else:
            elsewhere = f"; it names {connack.server_reference}" if connack.server_reference else ""
            self.failure = SentAway(
                f"{where} refused the session for now: {name}{elsewhere}.",
                code,
                connack.server_reference,
                is_connack=True,
            )
        assert self.connection is not None
        self.connection.end(self.failure, b"")

    def on_lost(self, error: HanseError | None) -> None:
        """Handle the end of an attempt or of an accepted connection."""
        if self._is_accepted:
            self._client._on_lost(error)  # noqa: SLF001
        elif self.failure is None:
            where = self._client.where
            spoken = "MQTT 5" if self.older is None else "MQTT 3.1.1"
            if isinstance(error, Refusal):
                self.failure = RemoteError(f"{where} does not answer as an {spoken} broker: {error}.")
            else:
                self.may_be_older = self.older is None
                self.failure = Unavailable(
                    f"{where} closed the connection before CONNACK; "
                    f"{what_to_check(f'an {spoken} port', self._client.tls_settings)}"
                )
        self.closed.set()
        self.answered.set()

    def on_writable(self) -> None:
        """Tell other waiters; `Sending` checks by itself how much waits."""
        self._client.handler.on_writable()
