"""The lane: a second connection to the host broker, over WebSocket, for streams of QoS 0 that cannot come back.

Mosquitto reads a packet of a plain connection by three calls of the kernel, and many packets of a WebSocket by one: it
spends 4.6 us on a message of such a stream instead of 7.0, and one hop carries 1.3 times as much. A lone message takes
40 us longer that way. And No Local is per client: what the lane publishes comes back by any subscription of the session
that matches it.

Rules:

1. The session is where everything goes by default. The lane is entered while more than `ENTER_PER_S` publications a
   second are delivered, all of groups that no subscription of the session meets, and left when these are fewer than
   `LEAVE_PER_S`, or when one comes that may meet.
2. Nothing is overtaken: at each change what comes waits until the broker has answered on the way that is left (a
   *fence*), and has therefore taken all that went there before.
3. A subscription that meets what the lane carries is said to the broker after the lane was left. Until the broker has
   answered all that was said about subscriptions, no new groups are taken in.
4. A session that a former process left may have subscriptions that nobody knows of: with such a one the lane rests.
5. A lane that cannot be had, or that does not answer, is done without; it is dialled again, ever more rarely.
"""

import asyncio
import base64
import logging
import os
import random
from collections.abc import Callable, Iterable

from mqtt5 import ConnAckPacket, ConnectPacket

from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.mqtt import codec, websocket
from hanse.mqtt.backoff import Backoff, BackoffSettings
from hanse.mqtt.counters import Counters
from hanse.mqtt.limits import WRITE_BYTES_MAX
from hanse.mqtt.urls import Address
from hanse.protocol.topics import meet

_log = logging.getLogger(__name__)

ENTER_PER_S = 10_000
LEAVE_PER_S = 2_000
WINDOW_S = 0.1
# After groups that meet came by: they will again.
REST_S = 10.0
# For an answer of the broker's. A subscription waits for it.
ANSWER_S = 5.0
KEEP_ALIVE_S = 60
# Sets of groups that are known to meet nothing, or something.
GROUPS_MAX = 1_024
# Held back at a fence: what comes within some milliseconds.
HELD_BYTES_MAX = WRITE_BYTES_MAX

Groups = tuple[str, ...]


class Lane:
    """One for a host session.

    Args:
        address: the broker's WebSocket listener.
        connect: the CONNECT to begin with.
        publish: the session's way for a run of QoS 0.
        fence: calls back when the broker has taken all that the session has sent; Unavailable where it cannot now.
        held: the filters of the session, those asked for among them.
        is_settled: whether the broker has answered all that was said about subscriptions.
        counters: the session's, for what is dropped.
    """

    def __init__(
        self,
        address: Address,
        connect: bytes,
        *,
        publish: Callable[[bytes, int], None],
        fence: Callable[[Callable[[], None]], None],
        held: Callable[[], Iterable[str]],
        is_settled: Callable[[], bool],
        counters: Counters,
    ) -> None:
        self._address = address
        self._connect = connect
        self._publish = publish
        self._fence = fence
        self._held_filters = held
        self._is_settled = is_settled
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(BackoffSettings(), random.random)
        self._dialling: asyncio.Task[None] | None = None
        self._wire: _Wire | None = None
        # Where deliveries go: by the lane, by the session, or, between the two, nowhere yet.
        self.is_used = False
        self._is_between = False
        # A fence that was asked for before the session or the lane ended is nobody's.
        self._fence_number = 0
        # The ping of the lane that was sent last before it was left.
        self._awaited = 0
        self._answer_timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[bytes, int, list[Groups]]] = []
        self._waiting_bytes = 0
        self._after: list[Callable[[], None]] = []
        self._apart: dict[Groups, bool] = {}
        self._packets = 0
        self._since = 0.0
        self._rests_until = 0.0

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The session stands: have the lane ready."""
        if self._dialling is None:
            self._dialling = self._loop.create_task(self._keep())

    def stop(self) -> None:
        """The session is gone, or about to go."""
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self._wire is not None:
            self._wire.abort()
            self._wire = None
        self._settle()

    async def _keep(self) -> None:
        while True:
            began = self._loop.time()
            wire = _Wire(self._address, self._connect, self._on_answer)
            try:
                await wire.open()
                self._wire = wire
                await wire.closed.wait()
            except (HanseError, OSError) as error:
                _log.info("the lane to %s cannot be had, so the session carries all: %s", self._address, error)
            finally:
                wire.abort()
                if self._wire is wire:
                    self._wire = None
                    if self.is_used or self._answer_timer is not None:
                        self._settle()
            self._backoff.held(self._loop.time() - began)
            await asyncio.sleep(self._backoff.next_s())

    # --- deliveries ---------------------------------------------------------------------------------------------------

    def deliver(self, run: bytes, count: int, groups: list[Groups]) -> None:
        """Publish a run of QoS 0 of these groups by the way that is right now."""
        self._packets += count
        now = self._loop.time()
        elapsed_s = now - self._since
        if elapsed_s >= WINDOW_S:
            rate = self._packets / elapsed_s
            self._packets, self._since = 0, now
            if self.is_used and rate < LEAVE_PER_S:
                self.leave()
            elif rate >= ENTER_PER_S and now >= self._rests_until:
                self._enter(groups)
        if self.is_used and not self._are_apart(groups):
            self._rests_until = now + REST_S
            self.leave()
        if self._is_between:
            self._hold(run, count, groups)
        elif self.is_used:
            self._send(run, count)
        else:
            self._publish(run, count)

    def meets(self, filters: Iterable[str]) -> bool:
        """Whether a subscription to one of these may bring back what the lane carries, or is about to."""
        if not self.is_used and not self._is_between:
            return False
        return any(meet(filter_, group) for filter_ in filters for groups in self._apart for group in groups)

    def leave(self, then: Callable[[], None] | None = None) -> None:
        """Let the session carry all again; call `then` when the broker has taken all that went by the lane."""
        if then is not None:
            self._after.append(then)
        if self.is_used and self._wire is not None:
            self.is_used = False
            self._is_between = True
            self._awaited = self._wire.ping()
            self._answer_timer = self._loop.call_later(ANSWER_S, self._wire.abort)
        elif not self._is_between:
            self._settle()

    def _enter(self, groups: list[Groups]) -> None:
        if self.is_used or self._is_between or self._wire is None:
            return
        self._apart.clear()
        if not self._are_apart(groups):
            return
        self._fence_number += 1
        number = self._fence_number
        self._is_between = True
        try:
            self._fence(lambda: self._on_fence(number))
        except Unavailable:
            self._is_between = False

    def _on_fence(self, number: int) -> None:
        """The broker has taken all that the session sent: the lane is free, if it still may be used."""
        if number != self._fence_number or not self._is_between:
            return
        if self._wire is None or self._after or not all(self._are_apart(groups) for _, _, groups in self._waiting):
            self._settle()
            return
        self._is_between = False
        self.is_used = True
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for run, count, _ in waiting:
            self._send(run, count)

    def _on_answer(self, number: int) -> None:
        """The broker has answered a ping of the lane: it has taken all that went there before."""
        if self._answer_timer is not None and number >= self._awaited:
            self._settle()

    def _settle(self) -> None:
        """From here on the session carries all, what waited first."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
        self._fence_number += 1
        self.is_used = self._is_between = False
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for run, count, _ in waiting:
            self._publish(run, count)
        after, self._after = self._after, []
        for then in after:
            then()

    def _hold(self, run: bytes, count: int, groups: list[Groups]) -> None:
        if self._waiting_bytes + len(run) > HELD_BYTES_MAX:
            self._counters.drop("slow_peer", count)
            return
        self._waiting.append((run, count, groups))
        self._waiting_bytes += len(run)

    def _send(self, run: bytes, count: int) -> None:
        assert self._wire is not None, "it is used"
        if self._wire.waiting_bytes() > WRITE_BYTES_MAX:
            self._counters.drop("slow_peer", count)
            return
        self._wire.write(run)
        self._counters.publications_out += count

    def _are_apart(self, groups: list[Groups]) -> bool:
        """Whether no subscription of the session meets any of these, as far as can be told now."""
        for one in groups:
            known = self._apart.get(one)
            if known is None:
                if not self._is_settled():
                    return False
                if len(self._apart) >= GROUPS_MAX:
                    return False
                known = not any(meet(filter_, group) for filter_ in self._held_filters() for group in one)
                self._apart[one] = known
            if not known:
                return False
        return True


class _Wire(asyncio.Protocol):
    """One connection, from the dialling to its end."""

    def __init__(self, address: Address, connect: bytes, on_answer: Callable[[int], None]) -> None:
        self.closed = asyncio.Event()
        self._address = address
        self._connect = connect
        self._on_answer = on_answer
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._transport: asyncio.Transport | None = None
        self._reader = websocket.Reader()
        self._head: bytes | None = b""
        self._is_let_in = asyncio.get_running_loop().create_future()
        self._pinging: asyncio.TimerHandle | None = None
        self._pings = self._answers = 0

    async def open(self) -> None:
        """Dial, shake hands, and be let in.

        Raises:
            RemoteError: The other side is no broker's WebSocket, or its broker lets us in only with limits.
            Unavailable: It does not answer.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S):
                await loop.create_connection(lambda: self, self._address.host, self._address.port)
                await self._is_let_in
        except TimeoutError:
            raise Unavailable(f"no answer came within {ANSWER_S:g} s.") from None
        self._keep_alive()

    def abort(self) -> None:
        """Cut it off."""
        if self._transport is not None:
            self._transport.abort()

    def waiting_bytes(self) -> int:
        """Written, and not with the kernel."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def write(self, packets: bytes) -> None:
        """MQTT packets, as one frame."""
        if self._transport is not None:
            self._transport.write(websocket.header(len(packets)) + packets)

    def ping(self) -> int:
        """Ask for an answer; its number, from 1 on."""
        self.write(codec.PING)
        self._pings += 1
        return self._pings

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's are of the same shape, and no subclass
        assert self._transport is not None
        self._transport.write(websocket.request(self._address.host, self._address.port, self._key))

    def connection_lost(self, error: Exception | None) -> None:
        """The end."""
        self._transport = None
        if self._pinging is not None:
            self._pinging.cancel()
        self._fail(Unavailable(f"the broker closed the connection{f': {error}' if error else ''}."))
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        """The answer to the handshake, CONNACK, and answers to pings."""
        try:
            if self._head is not None:
                data = self._read_head(data)
            for frame in self._reader.feed(data):
                self._take(frame)
        except HanseError as error:
            self._fail(error)
            self.abort()

    def _read_head(self, data: bytes) -> bytes:
        assert self._head is not None
        head, mark, rest = (self._head + data).partition(b"\r\n\r\n")
        if not mark:
            if len(head) > websocket.HEAD_BYTES_MAX:
                raise RemoteError(f"the answer to a WebSocket's handshake has more than {len(head)} bytes.")
            self._head = head
            return b""
        websocket.check_answer(head, self._key)
        self._head = None
        self.write(self._connect)
        return rest

    def _take(self, frame: websocket.Frame) -> None:
        if frame.kind == websocket.PING:
            assert self._transport is not None
            self._transport.write(websocket.header(len(frame.payload), websocket.PONG) + frame.payload)
        elif frame.kind == websocket.CLOSE:
            raise Unavailable("the broker closed the WebSocket.")
        elif frame.kind == websocket.BINARY:
            if frame.payload == codec.PONG:
                self._answers += 1
                self._on_answer(self._answers)
            elif not self._is_let_in.done():
                check_connack(frame.payload)
                self._is_let_in.set_result(None)
            else:
                raise RemoteError(f"the broker sent {frame.payload[:8].hex()}, which a publisher has no use for.")

    def _fail(self, error: HanseError) -> None:
        if not self._is_let_in.done():
            self._is_let_in.set_exception(error)

    def _keep_alive(self) -> None:
        self.ping()
        self._pinging = asyncio.get_running_loop().call_later(KEEP_ALIVE_S / 2, self._keep_alive)


def check_connack(data: bytes) -> None:
    """Raise RemoteError unless this is a CONNACK that lets us in, to all that a session may do."""
    packet = codec.decode(data) if len(data) > 1 else None
    if not isinstance(packet, ConnAckPacket) or int(packet.reason_code):
        raise RemoteError(f"the broker did not let the lane in; its answer is {data[:8].hex()}.")
    if packet.max_packet_size is not None or not packet.retain_available:
        raise RemoteError("the broker has limits of packets or of retained messages, which the session minds.")


def connect_packet(client_id: str, username: str | None, password: str | None) -> bytes:
    """The CONNECT of a lane: it has no session, and takes nothing."""
    return ConnectPacket(
        client_id,
        username=username,
        password=None if password is None else password.encode(),
        clean_start=True,
        keep_alive=KEEP_ALIVE_S,
    ).write()
