"""Bulk connection: a second connection to the host broker, over WebSocket, for streams of QoS 0 that cannot come back.

Mosquitto reads each packet of a plain connection with three system calls, but many packets of a WebSocket with one. It
spends 4.6 us on a message of such a stream instead of 7.0, and one hop carries 1.3 times as much. A lone message takes
40 us longer on that route. No Local applies per client: publications of the bulk connection come back by any
subscription of the session that matches them.

Rules:

1. By default, everything goes over the session. The bulk connection is used while more than `ENTER_PER_S` publications
   per second are delivered, all of groups that no subscription of the session overlaps. The session takes over again
   below `LEAVE_PER_S`, or when a publication arrives that a subscription may match.
2. Nothing is overtaken: at each switch, new publications wait until the broker has answered on the old connection (a
   *fence*), and has therefore accepted everything sent there before.
3. A subscription that overlaps the groups of the bulk connection is sent to the broker after the switch back. Until the
   broker has answered all subscription requests, no new groups use the bulk connection.
4. A session from a former process may have subscriptions that nobody knows. With such a session, the bulk connection
   rests.
5. Without a bulk connection, or if it does not answer, the session carries everything. It is dialled again, less and
   less often.
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
# Pause after groups that a subscription overlaps: more of them will come.
REST_S = 10.0
# Sets of groups that are known to overlap no subscription, or some.
GROUPS_MAX = 1_024
# Bytes held back at a fence: those that arrive within some milliseconds.
HELD_BYTES_MAX = WRITE_BYTES_MAX

Groups = tuple[str, ...]


class Lane:
    """Bulk connection beside one host session.

    Args:
        address: WebSocket listener of the broker.
        connect: the first CONNECT.
        publish: function that publishes a run of QoS 0 over the session.
        fence: function that calls back when the broker has accepted all that the session sent; raises Unavailable if it
            cannot now.
        held: function that returns the filters of the session, including requested ones.
        is_settled: function that returns whether the broker has answered all subscription requests.
        counters: the session's counters of drops.
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
        # Route of deliveries: the bulk connection, the session, or, between the two, none yet.
        self.is_used = False
        self._is_between = False
        # A fence that was requested before the session or the bulk connection ended is ignored.
        self._fence_number = 0
        # The last ping that was sent on the bulk connection before the switch back.
        self._awaited = 0
        self._answer_timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[bytes, int, list[Groups]]] = []
        self._waiting_bytes = 0
        self._after: list[Callable[[], None]] = []
        self._apart: dict[Groups, bool] = {}
        self._packets = 0
        self._since = 0.0
        self._rests_until = 0.0

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the bulk connection, because the session is connected."""
        if self._dialling is None:
            self._dialling = self._loop.create_task(self._keep())

    def stop(self) -> None:
        """Close it, because the session is gone or about to go."""
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
                _log.info("the bulk connection to %s is not available, so the session carries all: %s", where, error)
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
        """Publish a run of QoS 0 of these groups on the current route."""
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
        """Return whether a subscription to one of these may bring back publications of the bulk connection."""
        if not self.is_used and not self._is_between:
            return False
        return any(meet(filter_, group) for filter_ in filters for groups in self._apart for group in groups)

    def leave(self, then: Callable[[], None] | None = None) -> None:
        """Switch back to the session; call `then` when the broker has accepted all of the bulk connection."""
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
        """Switch to the bulk connection, if still allowed: the broker has accepted all that the session sent."""
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
        """Handle the answer to a ping: the broker has accepted all that was sent before it."""
        if self._answer_timer is not None and number >= self._awaited:
            self._settle()

    def _settle(self) -> None:
        """Let the session carry all, the waiting publications first."""
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
        assert self._wire is not None, "the bulk connection is in use"
        if self._wire.waiting_bytes() > WRITE_BYTES_MAX:
            self._counters.drop("slow_peer", count)
            return
        self._wire.write(run)
        self._counters.publications_out += count

    def _are_apart(self, groups: list[Groups]) -> bool:
        """Return whether no subscription of the session overlaps any of these, as far as is known now."""
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
