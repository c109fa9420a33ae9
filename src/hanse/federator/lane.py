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
import logging
import random
from collections.abc import Callable, Iterable

from hanse.errors import HanseError, Unavailable
from hanse.mqtt.backoff import Backoff, BackoffSettings
from hanse.mqtt.counters import Counters
from hanse.mqtt.limits import WRITE_BYTES_MAX
from hanse.mqtt.urls import Address
from hanse.mqtt.websocket_publisher import ANSWER_S, WebSocketPublisher
from hanse.protocol.topics import meet

_log = logging.getLogger(__name__)

ENTER_PER_S = 10_000
LEAVE_PER_S = 2_000
WINDOW_S = 0.1
# After groups that meet came by: they will again.
REST_S = 10.0
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
        self._wire: WebSocketPublisher | None = None
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
            wire = WebSocketPublisher(self._address, self._connect, self._on_answer)
            try:
                await wire.open()
                self._wire = wire
                await wire.closed.wait()
            except (HanseError, OSError) as error:
                where = f"ws://{self._address.host}:{self._address.port}"
                _log.info("the lane to %s cannot be had, so the session carries all: %s", where, error)
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
                if not self._is_settled() or len(self._apart) >= GROUPS_MAX:
                    return False
                known = not any(meet(filter_, group) for filter_ in self._held_filters() for group in one)
                self._apart[one] = known
            if not known:
                return False
        return True
