"""An MQTT client for applications: messages as async iterators, publications that return when they are acknowledged.

Rules:

- It stays connected. After the first connection it never gives up: it backs off, connects again, subscribes again, and
  repeats publications that the broker has not acknowledged.
- Everything waits in bounded queues. `publish` waits if a queue is full. Received QoS 0 is dropped and counted.
  Received QoS 1 and 2 is acknowledged only after the application has handled it.
- It connects where `route` says: to its own address, or to a server that a broker names and the application allows.
- The session below is `hanse.mqtt.Client`, the same that federators use.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Literal, Self

from hanse.client.errors import Closed, PublishInDoubt, PublishRefused, SubscribeRefused
from hanse.client.events import Connected, Disconnected, Event, Redirected
from hanse.client.inbox import Inbox, Stream
from hanse.client.message import Message
from hanse.client.route import HOPS_MAX, REMEMBERED_MAX, AllowList, Move, Route, Server, normal
from hanse.errors import HanseError, LocalError, Unavailable
from hanse.mqtt.backoff import BackoffSettings
from hanse.mqtt.client import Client as Session
from hanse.mqtt.client import ClientHandler, ClientSettings, SentAway, Version, Will
from hanse.mqtt.counters import Counters
from hanse.mqtt.limits import HELD_BYTES_MAX, PACKET_BYTES_MAX
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.reference import FOLLOWS
from hanse.mqtt.refusal import ID_NOT_FOUND
from hanse.mqtt.subscriptions import Subscription
from hanse.mqtt.survey import Traits
from hanse.mqtt.tls import TlsSettings
from hanse.protocol.topics import matches

log = logging.getLogger("hanse.client")

# A fleet that lost its broker must not return in one second; a lone client should be back soon.
BACKOFF: Final = BackoffSettings(first_s=0.1, max_s=30.0)

# QoS 1 and 2 messages that the broker may send before the application has handled them.
RECEIVE_MAX: Final = 1_000
# Messages accepted from a broker that sends more. Mosquitto 2.0.11 obeys Receive Maximum only until its queue is
# longer: after one acknowledgement it sends the whole queue (19,447 of 20,000 were seen at once, for 1,000). Ending the
# connection would lose them. There are no more packet identifiers than this.
TOLERATED_MAX: Final = 65_535
# Reason codes with which a broker may end the connection after a SUBSCRIBE: malformed (Mosquitto, for more than 200
# levels), protocol error, filter not accepted or invalid, shared or wildcard subscriptions or ids not supported.
_SUBSCRIBE_ENDINGS: Final = frozenset({0x81, 0x82, 0x8F, 0x9E, 0xA1, 0xA2})
# QoS 0 messages that one stream holds. A larger value hides a slow reader longer.
QUEUE_MAX: Final = 10_000
# QoS 1 and 2 publications that wait for the broker before `publish` waits.
UNACKNOWLEDGED_MAX: Final = 10_000
# Largest subscription identifier (MQTT 5, 3.8.2.1.2).
IDENTIFIER_MAX: Final = 268_435_455


class Client:
    """A client of one broker: `async with Client("mqtt://localhost") as client`.

    Args:
        url: `mqtt://` or `mqtts://`, host and port, or `ws://` or `wss://`, host, port and path (`/mqtt` by default);
            user name and password may stand in it.
        client_id: Name of the client at the broker, and of its session. By default a random one.
        username, password: The login, instead of one in the address.
        tls: Certificates, if the system's authorities are not enough.
        will: The message that the broker publishes if this client vanishes.
        session_expiry_s: Seconds for which the broker keeps the session, and queues messages, while the client is away.
        clean_start: Whether the first connection makes the broker forget an old session. By default it does so unless
            `session_expiry_s` is set.
        version: 5, or 4 for MQTT 3.1.1, or `auto`.
        keep_alive_s: Longest silence of the broker. The client pings after half of it; a broker that does not answer
            for the other half has lost the connection.
        connect_timeout_s: Time for each attempt, and for all attempts before the `async with` block begins.
        receive_max: Messages of QoS 1 and 2 that the broker may send before earlier ones are acknowledged.
        packet_bytes_max: The largest accepted packet; CONNECT tells the broker this limit.
        queue_max: Messages of QoS 0 that one stream may hold. More are dropped and counted.
        unacknowledged_max: Publications that may wait for acknowledgement before `publish` waits.
        backoff: Delays between attempts.
        user_properties: Names and values for the CONNECT packet.
        follow: Servers to which a broker may redirect this client by a Server Reference: host names, `*.` and a domain,
            addresses, networks such as `10.0.0.0/8`, each with or without `:PORT`. They also get the login. Without it
            no reference is followed; with it the CONNECT packet says so (user property `server-reference`).
        hops_max: Number of references that are followed in a row.
        on_event: Called with `Connected`, `Disconnected` and `Redirected`. It must not block.

    Raises:
        LocalError: A setting is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        client_id: str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: TlsSettings | None = None,
        will: Will | None = None,
        session_expiry_s: int = 0,
        clean_start: bool | None = None,
        version: Version = 5,
        keep_alive_s: int = 20,
        connect_timeout_s: float = 10.0,
        receive_max: int = RECEIVE_MAX,
        packet_bytes_max: int = PACKET_BYTES_MAX,
        queue_max: int = QUEUE_MAX,
        unacknowledged_max: int = UNACKNOWLEDGED_MAX,
        backoff: BackoffSettings = BACKOFF,
        user_properties: Iterable[tuple[str, str]] = (),
        follow: Iterable[str] = (),
        hops_max: int = HOPS_MAX,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if session_expiry_s and client_id is None:
            raise LocalError("session_expiry_s is set without a client_id; a session is found again by its client_id.")
        if queue_max < 1 or unacknowledged_max < 1:
            raise LocalError(
                f"queue_max is {queue_max} and unacknowledged_max {unacknowledged_max}; expected at least 1."
            )
        allowed = AllowList([follow] if isinstance(follow, str) else follow)
        said = (*user_properties, FOLLOWS) if allowed else tuple(user_properties)
        self.settings = ClientSettings(
            url,
            # `hanse-` names belong to federators.
            client_id if client_id is not None else f"py-{os.urandom(8).hex()}",
            username=username,
            password=password,
            tls=tls,
            will=will,
            keep_alive_s=keep_alive_s,
            clean_start=not session_expiry_s if clean_start is None else clean_start,
            session_expiry_s=session_expiry_s,
            receive_max=receive_max,
            tolerated=TOLERATED_MAX,
            packet_bytes_max=packet_bytes_max,
            connect_timeout_s=connect_timeout_s,
            held_packets_max=unacknowledged_max,
            held_bytes_max=HELD_BYTES_MAX,
            backoff=backoff,
            user_properties=said,
            version=version,
            # An application requests QoS 2 if it knows that its broker supports it.
            assumed=Traits(version=4, has_no_local=False),
        )
        # Counts of passed and dropped messages, by reason.
        self.counters = Counters()
        self._on_event = on_event
        # Streams and explicit subscriptions by filter, and the filter's subscription identifier.
        self._uses: dict[str, int] = {}
        self._identifiers: dict[str, int] = {}
        self._next_identifier = 1
        self._explicit: set[str] = set()
        self._answers: dict[str, list[asyncio.Future[int]]] = {}
        self._outcomes: dict[int, tuple[asyncio.Future[None], str]] = {}
        self._first: asyncio.Future[None] | None = None
        self._last_error: HanseError | None = None
        self._has_credit = asyncio.Event()
        self._can_write = asyncio.Event()
        self._session = Session(self.settings, _Handler(self), counters=self.counters)
        self._home = home = self._session.address
        self._route = Route(Server(home.host, home.port), home.default_port, allowed, hops_max=hops_max)
        # Brokers that have accepted this client, the last one at the end, and when the connection began.
        self._visited: dict[Server, None] = {}
        self._connected_at: float | None = None
        self._inbox = Inbox(self.counters, queue_max=queue_max, ack=self._session.ack, keeps=self._keeps)
        self._is_open = False

    # Opening and closing.

    async def __aenter__(self) -> Self:
        if self._first is not None:
            raise LocalError("The client was opened before; make a new Client for another `async with` block.")
        self._first = asyncio.get_running_loop().create_future()
        await self._session.start()
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                await self._first
        except TimeoutError:
            await self._session.stop()
            seen = f": {self._last_error}" if self._last_error else "."
            raise Unavailable(
                f"There was no connection to {self._session.where} within {self.settings.connect_timeout_s:g} s{seen}"
            ) from None
        except BaseException:
            await self._session.stop()
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        await self._session.stop()
        for stream in self._inbox.streams:
            stream.queue.clear()
            stream.end()
        left: list[asyncio.Future[Any]] = [future for future, _ in self._outcomes.values()]
        left += [future for futures in self._answers.values() for future in futures]
        for future in left:
            if not future.done():
                future.set_exception(Unavailable("The client was closed before the broker answered."))
                future.exception()  # the waiting task may have been cancelled
        self._outcomes.clear()
        self._answers.clear()
        self._has_credit.set()
        self._can_write.set()

    @property
    def client_id(self) -> str:
        """Name of the client at the broker."""
        return self.settings.client_id

    @property
    def address(self) -> str:
        """Address of the broker that the client uses now, without a login."""
        return self._session.where

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection now."""
        return self._session.is_connected

    @property
    def unacknowledged(self) -> int:
        """Publications of QoS 1 and 2 that the broker has not acknowledged."""
        return self._session.unacknowledged

    async def wait_connected(self, timeout_s: float) -> None:
        """Return when there is a connection.

        Raises:
            Unavailable: There was none in time.
        """
        await self._session.wait_connected(timeout_s)

    # Publishing.

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: int | None = None,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        payload_format_indicator: int | None = None,
        user_properties: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Publish a message, and return when the broker has acknowledged it (QoS 1 and 2).

        At QoS 0 it returns when the message has been handed to the transport. Without a connection QoS 0 is dropped and
        counted (`disconnected`), and QoS 1 and 2 wait for one. A caller that is cancelled takes nothing back.

        Args:
            topic: A topic name, without wildcards.
            payload: Bytes, or text, which is sent as UTF-8.
            qos: 0, 1 or 2.
            retain: Whether the broker keeps the message for later subscribers.
            expiry_s: Seconds after which it is not delivered any more.
            content_type: Type of the payload.
            response_topic: Topic for an answer.
            correlation_data: Data that an answer must repeat.
            payload_format_indicator: 1 for UTF-8, which is the default for text.
            user_properties: Names and values.

        Raises:
            LocalError: It cannot be a publication.
            PublishRefused: The broker refused it.
            PublishInDoubt: QoS 2: it is unknown whether it was delivered.
            Unavailable: The client was closed before the broker answered.
        """
        self._require_open()
        if qos not in {0, 1, 2}:
            raise LocalError(f"QoS {qos} was given; expected 0, 1 or 2.")
        is_text = isinstance(payload, str)
        packet = encode(
            topic,
            payload.encode() if isinstance(payload, str) else bytes(payload),
            qos=qos,
            retain=retain,
            expiry_s=expiry_s,
            payload_format_indicator=int(is_text) if payload_format_indicator is None else payload_format_indicator,
            content_type=content_type,
            response_topic=response_topic,
            correlation_data=correlation_data,
            user_properties=user_properties,
        )
        if not qos:
            await self._publish_at_most_once(packet)
            return
        number = await self._hand_over(packet, qos)
        outcome = asyncio.get_running_loop().create_future()
        self._outcomes[number] = (outcome, topic)
        await outcome

    async def _publish_at_most_once(self, packet: bytes) -> None:
        session = self._session
        while session.is_connected and not session.is_writable:
            self._can_write.clear()
            await self._can_write.wait()
            self._require_open()
        session.publish_run(packet, qos=0, count=1)

    async def _hand_over(self, packet: bytes, qos: int) -> int:
        while True:
            try:
                return self._session.publish_run(packet, qos=qos, count=1)
            except Unavailable:
                self._has_credit.clear()
                await self._has_credit.wait()
                self._require_open()

    # Subscribing.

    def messages(
        self,
        *filters: str,
        qos: int = 1,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: Literal[0, 1, 2] = 0,
        manual_ack: bool = False,
    ) -> "Messages":
        """Return an async iterator over the messages that match the filters.

        It subscribes when `async with` or `async for` begins, and unsubscribes when it is closed, unless another
        stream, or `subscribe`, wants the same filter. Without filters it yields every message that the client receives.

        A message is acknowledged when the next one is requested: a program that dies while it handles a message gets it
        again, if its session lasts.

        Args:
            filters: Topic filters; `$share/NAME/FILTER` for a shared subscription.
            qos: The highest QoS that the broker uses for them.
            no_local: Whether the broker leaves out what this client publishes itself.
            retain_as_published: Whether `retain` of a message is that of the publisher.
            retain_handling: 0: the broker sends retained messages at every subscription; 1: at a new one; 2: never.
            manual_ack: Whether the application calls `ack` of the stream for each message. Several tasks may then read
                one stream.
        """
        wanted = [
            _subscription(pattern, qos, no_local, retain_as_published, retain_handling)
            for pattern in dict.fromkeys(filters)
        ]
        return Messages(self, wanted, manual_ack=manual_ack)

    async def subscribe(
        self,
        *filters: str,
        qos: int = 1,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: Literal[0, 1, 2] = 0,
    ) -> None:
        """Subscribe without a stream, and return when the broker has agreed.

        The messages wait for a stream that matches them: `messages()` reads all of them. The subscription lasts until
        `unsubscribe`, over all reconnects.

        Raises:
            LocalError: A filter is malformed.
            SubscribeRefused: The broker refused a filter.
        """
        self._require_open()
        wanted = [
            _subscription(pattern, qos, no_local, retain_as_published, retain_handling)
            for pattern in dict.fromkeys(filters)
        ]
        for item in wanted:
            if item.filter not in self._explicit:
                self._explicit.add(item.filter)
                self._uses[item.filter] = self._uses.get(item.filter, 0) + 1
        try:
            await self._ask(wanted)
        except SubscribeRefused as error:
            self._explicit.discard(error.filter)
            raise

    async def unsubscribe(self, *filters: str) -> None:
        """End what `subscribe` began. A stream with the same filter keeps it alive.

        A filter of a session that an earlier process left at the broker can also be given.
        """
        self._require_open()
        for pattern in dict.fromkeys(filters):
            if pattern in self._explicit:
                self._explicit.remove(pattern)
                self._release_filter(pattern)
            elif not self._uses.get(pattern):
                self._session.unsubscribe([pattern])

    async def _ask(self, wanted: Sequence[Subscription]) -> None:
        """Subscribe to filters that the session does not hold in this form, and wait for the answers."""
        wanted = [replace(item, identifier=self._identifier(item.filter)) for item in wanted]
        known = self._session.wanted
        # Requested again for its retained messages, which a new stream lacks; older streams get them again.
        new = [
            item
            for item in wanted
            if known(item.filter) != item or item.filter in self._answers or not item.retain_handling
        ]
        if not new:
            return
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[int]] = []
        for item in new:
            future = loop.create_future()
            self._answers.setdefault(item.filter, []).append(future)
            futures.append(future)
        self._session.subscribe(new, repeats=True)
        refused: SubscribeRefused | None = None
        for item, code in zip(new, await asyncio.gather(*futures), strict=True):
            if code >= 0x80:
                refused = refused or SubscribeRefused(item.filter, code)
        if refused is not None:
            raise refused

    def _identifier(self, pattern: str) -> int:
        found = self._identifiers.get(pattern)
        if found is None:
            found = self._identifiers[pattern] = self._next_identifier
            self._next_identifier = found % IDENTIFIER_MAX + 1
            self._inbox.filter_of_identifier[found] = pattern
        return found

    def _release_filter(self, pattern: str) -> None:
        left = self._uses.get(pattern, 0) - 1
        if left > 0:
            self._uses[pattern] = left
            return
        self._uses.pop(pattern, None)
        identifier = self._identifiers.pop(pattern, None)
        if identifier is not None:
            del self._inbox.filter_of_identifier[identifier]
        if self._is_open and self._session.wanted(pattern) is not None:
            self._session.unsubscribe([pattern])

    async def _open_stream(self, stream: Stream, wanted: Sequence[Subscription]) -> None:
        self._require_open()
        # Before the SUBSCRIBE, because retained messages arrive before its answer.
        self._inbox.open(stream)
        for item in wanted:
            self._uses[item.filter] = self._uses.get(item.filter, 0) + 1
        try:
            await self._ask(wanted)
        except BaseException:
            self._close_stream(stream, wanted, None)
            raise

    def _close_stream(self, stream: Stream, wanted: Sequence[Subscription], undone: Message | None) -> None:
        for item in wanted:
            self._release_filter(item.filter)
        self._inbox.close(stream, undone)

    def _keeps(self, topic: str) -> bool:
        return self.settings.session_expiry_s > 0 or any(matches(pattern, topic) for pattern in self._explicit)

    def _require_open(self) -> None:
        if not self._is_open:
            raise Closed

    # Callbacks of the session.

    def _tell(self, event: Event) -> None:
        log.debug("%s", event)
        if self._on_event is not None:
            self._on_event(event)

    def _connected(self, session_present: bool) -> None:
        server = self._route.current
        self._route.on_accepted()
        self._connected_at = asyncio.get_running_loop().time()
        self._visited.pop(server, None)
        if len(self._visited) >= REMEMBERED_MAX:
            del self._visited[next(iter(self._visited))]
        self._visited[server] = None
        self._tell(Connected(self._session.where, session_present))
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def _disconnected(self, error: HanseError | None) -> None:
        self._last_error = error
        self._can_write.set()
        self._tell(Disconnected(self._session.where, error))
        if isinstance(error, SentAway) and not error.is_connack and error.reason_code in _SUBSCRIBE_ENDINGS:
            # Repeated at the next connection, the SUBSCRIBE would end that one as well.
            self._answer([(item, error.reason_code) for item in self._session.withdraw_oldest()])
        self._find_way(error)
        is_first = self._first is not None and not self._first.done()
        if is_first and isinstance(error, LocalError):
            assert self._first is not None, "tested above"
            self._first.set_exception(error)
        elif isinstance(error, LocalError):
            log.warning("%s", error)

    def _find_way(self, error: HanseError | None) -> None:
        """Choose the server of the next attempt."""
        now = asyncio.get_running_loop().time()
        held_s = 0.0 if self._connected_at is None else now - self._connected_at
        self._connected_at = None
        sent = error if isinstance(error, SentAway) else None
        left = self._session.where
        move = self._route.on_ended(sent.reason_code if sent else 0, sent.server_reference if sent else None, held_s)
        if self._route.refusal:
            self.counters.refuse("server_reference")
            self._last_error = Unavailable(f"{error} {self._route.refusal}")
            log.warning("%s", self._last_error)
        if move is None:
            return
        self._retarget(move)
        if move.reason_code:
            self._tell(Redirected(left, self._session.where, move.reason_code))

    def _retarget(self, move: Move) -> None:
        server = move.server
        last = next(reversed(self._visited), None)
        home = self._home
        self._session.retarget(
            # In the words of the settings: `tls.server_name` belongs to them.
            home.host if server == normal(home.host, home.port) else server.host,
            server.port,
            clean_start=self.settings.clean_start and server not in self._visited,
            is_same_session=server == last,
            at_once=move.at_once,
        )

    def _subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        # A refused filter stays unwanted until somebody asks again: at every reconnect it would be refused again.
        refused = [item.filter for item, code in answers if code >= 0x80]
        if refused:
            self._session.unsubscribe(refused)
        self._answer(answers)

    def _answer(self, answers: list[tuple[Subscription, int]]) -> None:
        for item, code in answers:
            futures = self._answers.pop(item.filter, [])
            for future in futures:
                if not future.done():
                    future.set_result(code)
            if code < 0x80:
                continue
            if not futures:
                self._end_streams(item.filter, SubscribeRefused(item.filter, code))

    def _end_streams(self, pattern: str, error: SubscribeRefused) -> None:
        log.warning("%s", error)
        for stream in self._inbox.streams:
            if pattern in stream.filters:
                stream.end(error)

    def _settle(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            found = self._outcomes.pop(number, None)
            if found is not None and not found[0].done():
                found[0].set_result(None)

    def _refused(self, refused: list[tuple[int, int]]) -> None:
        for number, code in refused:
            found = self._outcomes.pop(number, None)
            if found is None or found[0].done():
                continue
            future, topic = found
            future.set_exception(PublishInDoubt(topic) if code == ID_NOT_FOUND else PublishRefused(topic, code))

    def _received(self, publications: list[Publication]) -> None:
        self._inbox.deliver(publications)


class Messages:
    """Async iterator over received messages; see `Client.messages`."""

    def __init__(self, client: Client, wanted: Sequence[Subscription], *, manual_ack: bool) -> None:
        self._client = client
        self._wanted = wanted
        self._manual_ack = manual_ack
        self._stream: Stream | None = None
        self._is_closed = False
        self._is_reading = False
        self._current: Message | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A message whose handling failed is not acknowledged.
        self._finish(is_done=error is None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._is_reading and not self._manual_ack:
            raise LocalError("Two tasks read one stream of messages; give each its own, or use manual_ack=True.")
        self._is_reading = True
        try:
            self._release_current()
            if self._stream is None:
                await self._open()
            assert self._stream is not None, "it was opened"
            message = await self._stream.pop()
        finally:
            self._is_reading = False
        if not self._manual_ack:
            self._current = message
        return message

    def ack(self, message: Message) -> None:
        """Acknowledge a message, with `manual_ack`; the broker then forgets it."""
        self._client._inbox.release(message)  # noqa: SLF001 - the stream is a part of the client

    async def aclose(self) -> None:
        """Acknowledge the message at hand and unsubscribe."""
        self._finish(is_done=True)

    def __del__(self) -> None:
        # `break` leaves an `async for` without a call to its iterator.
        if self._stream is not None and not self._is_closed:
            with contextlib.suppress(RuntimeError):  # no loop runs any more
                asyncio.get_running_loop()
                self._finish(is_done=True)

    def _release_current(self) -> None:
        message, self._current = self._current, None
        if message is not None:
            self._client._inbox.release(message)  # noqa: SLF001

    async def _open(self) -> None:
        if self._is_closed:
            raise LocalError("This stream of messages is closed; call `messages` again.")
        if self._stream is None:
            self._stream = Stream([item.filter for item in self._wanted])
            try:
                await self._client._open_stream(self._stream, self._wanted)  # noqa: SLF001
            except BaseException:
                self._is_closed = True
                raise

    def _finish(self, *, is_done: bool) -> None:
        if self._is_closed or self._stream is None:
            self._is_closed = True
            return
        self._is_closed = True
        if is_done:
            self._release_current()
        undone, self._current = self._current, None
        self._client._close_stream(self._stream, self._wanted, undone)  # noqa: SLF001


class _Handler(ClientHandler):
    """Handler that passes the session's callbacks on."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def on_connected(self, session_present: bool) -> None:
        self._client._connected(session_present)  # noqa: SLF001 - the handler is a part of the client

    def on_disconnected(self, error: HanseError | None) -> None:
        self._client._disconnected(error)  # noqa: SLF001

    def on_publications(self, publications: list[Publication]) -> None:
        self._client._received(publications)  # noqa: SLF001

    def on_acknowledged(self, numbers: list[int]) -> None:
        self._client._settle(numbers)  # noqa: SLF001

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        self._client._refused(refused)  # noqa: SLF001

    def on_credit(self) -> None:
        self._client._has_credit.set()  # noqa: SLF001

    def on_writable(self) -> None:
        self._client._can_write.set()  # noqa: SLF001

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self._client._subscribed(answers)  # noqa: SLF001


def _subscription(
    pattern: str, qos: int, no_local: bool, retain_as_published: bool, retain_handling: int
) -> Subscription:
    return Subscription(
        pattern,
        qos=qos,
        no_local=no_local,
        retain_as_published=retain_as_published,
        retain_handling=retain_handling,
    )
