"""The federators of one worker's brokers: reports of interest to each, and the barrier before a SUBACK.

Rules:

1. There is one connection to each federator that a broker of the directory names. It begins when the broker appears,
   and ends when the broker is gone.
2. A client's interest is reported to the federator of the broker where the client is, from CONNACK on. When the client
   moves, it leaves one and arrives at the other.
3. The barrier for a filter has passed when the federator of the client's broker has joined the filter's mesh, and all
   other federators that are connected at that moment hear their brokers for it; or when `barrier_timeout_s` is over,
   which is counted. Clients that subscribe within one turn of the loop share the requests.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from hanse.errors import HanseError, Unavailable
from hanse.gateway.federators.connection import FederatorConnection, FederatorLogin
from hanse.gateway.federators.reports import Held, Reporter
from hanse.request_channel import Endpoint, Handler, parse_endpoint

# Filters per request of a barrier; the federator's limit is 10,000.
FILTERS_PER_BARRIER: Final = 1_000
# For the last rows when the worker stops: without them its clients count as here until the lease ends.
LAST_S: Final = 1.0
# Added to the time that the federator has for its answer.
ANSWER_EXTRA_S: Final = 1.0
# Time for which the interest of a client that moves stays at the federator of the former broker: for a verdict, a few
# attempts to attach it, and the replay.
MOVE_S: Final = 10.0

_log = logging.getLogger(__name__)


def in_the_clear(endpoint: Endpoint) -> str:
    """Return why a federator is not dialled without TLS."""
    return (
        f"{endpoint} is on another machine and would get the token, and what clients subscribe to, without TLS; write "
        "tls://, or allow it by --insecure."
    )


class Broker(Protocol):
    """A broker of the directory, as this package needs it."""

    id: str
    federator: str


class _Barrier:
    """The filters whose clients wait at one broker since the same turn of the loop."""

    def __init__(self, passed: asyncio.Future[None]) -> None:
        self.filters: set[str] = set()
        self.passed = passed


class Federators:
    """All connections of one worker to federators.

    Args:
        login: identity of this worker.
        barrier_timeout_s: maximum delay of a SUBACK.
        clock: the time in seconds.
        may_change: whether brokers with federators may appear later. If not, and there are none, nothing is remembered.
        is_insecure: whether federators on other machines may be dialled without TLS.

    Attributes:
        counters: `interest_...` of the reports; `barriers_passed`, `barriers_late`, and `barriers_alone` for clients at
            a broker whose federator is not connected.
        handlers: what answers requests of federators, by kind.
        on_open: told of the broker of each new connection to a federator; may be set.
    """

    def __init__(
        self,
        login: FederatorLogin,
        *,
        barrier_timeout_s: float,
        clock: Callable[[], float],
        may_change: bool = False,
        is_insecure: bool = False,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.handlers: dict[str, Handler] = {}
        self.on_open: Callable[[str], None] | None = None
        self._login = login
        self._barrier_timeout_s = barrier_timeout_s
        self._clock = clock
        self._may_change = may_change
        self._is_insecure = is_insecure
        self._loop = asyncio.get_running_loop()
        self._addresses: dict[str, str] = {}
        self._reporters: dict[str, Reporter] = {}
        # Clients, and the broker where each is; empty for none.
        self._clients: dict[object, tuple[Held, str]] = {}
        self._barriers: dict[str, _Barrier] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- connections --------------------------------------------------------------------------------------------------

    def update(self, brokers: Iterable[Broker]) -> None:
        """Follow the directory (rule 1)."""
        wanted = {broker.id: broker.federator for broker in brokers if broker.federator}
        for broker_id in [one for one in self._addresses if wanted.get(one) != self._addresses[one]]:
            del self._addresses[broker_id]
            reporter = self._reporters.pop(broker_id, None)
            if reporter is not None:
                self._run(self._end(reporter))
        for broker_id, address in wanted.items():
            if broker_id not in self._addresses:
                self._begin(broker_id, address)

    def _begin(self, broker_id: str, address: str) -> None:
        self._addresses[broker_id] = address
        endpoint = parse_endpoint(address)
        if endpoint.is_open_to_others and not self._is_insecure:
            _log.error("the federator of broker %s is not connected: %s", broker_id, in_the_clear(endpoint))
            return
        connection = FederatorConnection(
            endpoint,
            self._login,
            on_open=lambda _: self._opened(broker_id, reporter),
            on_lost=lambda _: reporter.lost(),
            handlers=self.handlers,
        )
        reporter = self._reporters[broker_id] = Reporter(connection, self.counters, self._clock)
        for held, at in self._clients.values():
            if at == broker_id:
                reporter.here(held)
        connection.start()

    def _opened(self, broker_id: str, reporter: Reporter) -> None:
        reporter.opened()
        if self.on_open is not None and self._reporters.get(broker_id) is reporter:
            self.on_open(broker_id)

    async def _end(self, reporter: Reporter) -> None:
        await reporter.stop()
        # Without it, the federator would take the end of the connection for a death and publish the clients' wills.
        with contextlib.suppress(HanseError):
            await reporter.connection.ask("wills", {"goodbye": True}, timeout_s=LAST_S)
        await reporter.connection.stop()

    async def stop(self) -> None:
        """Tell what is left to tell, and end all connections."""
        reporters = list(self._reporters.values())
        left = [asyncio.ensure_future(one.flushed()) for one in reporters if one.connection.is_open]
        if left:
            await asyncio.wait(left, timeout=LAST_S)
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._reporters.clear()
        self._addresses.clear()
        await asyncio.gather(*(self._end(reporter) for reporter in reporters))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def connection(self, broker_id: str) -> FederatorConnection | None:
        """Return the connection to a broker's federator; None if the broker has none."""
        reporter = self._reporters.get(broker_id)
        return None if reporter is None else reporter.connection

    @property
    def broker_ids(self) -> list[str]:
        """Return the brokers that have a federator."""
        return list(self._reporters)

    async def join(self, broker_id: str, filters: Iterable[str], timeout_s: float) -> None:
        """Wait until the federator of this broker has joined the meshes of these filters.

        Raises:
            HanseError: it has not in time, or there is no connection to it.
        """
        reporter = self._reporters.get(broker_id)
        if reporter is None or not reporter.connection.is_open:
            raise Unavailable(f"There is no connection to the federator of broker {broker_id}.")
        try:
            async with asyncio.timeout(timeout_s):
                await reporter.flushed()
                texts = list(filters)
                for at in range(0, len(texts), FILTERS_PER_BARRIER):
                    fields = {"barrier": texts[at : at + FILTERS_PER_BARRIER], "wait_ms": timeout_s * 1e3}
                    await reporter.connection.ask("interest", fields, timeout_s=timeout_s + ANSWER_EXTRA_S)
        except TimeoutError:
            raise Unavailable(f"The federator of broker {broker_id} has not joined within {timeout_s:g} s.") from None

    @property
    def connected(self) -> int:
        """Return how many federators can be asked now."""
        return sum(reporter.connection.is_open for reporter in self._reporters.values())

    # --- interest -----------------------------------------------------------------------------------------------------

    def accepted(
        self, key: object, broker_id: str, client_id: bytes, *, is_complete: bool, expiry_s: int | None
    ) -> None:
        """Take over a client that a broker has accepted. `is_complete`: the broker had no session of it."""
        if not self._reporters and not self._may_change:
            return
        held = Held(key, client_id.decode("utf-8", "replace"), is_complete=is_complete, expiry_s=expiry_s)
        self._clients[key] = held, ""
        self.arrived(key, broker_id)

    def arrived(self, key: object, broker_id: str) -> None:
        """Take note of the broker where a client is now, with all that it holds."""
        found = self._clients.get(key)
        if found is None or found[1] == broker_id:
            return
        held = found[0]
        self.left(key, held.expiry_s)
        self._clients[key] = held, broker_id
        reporter = self._reporters.get(broker_id)
        if reporter is not None:
            reporter.here(held)

    def subscribed(self, key: object, filters: Iterable[tuple[bytes, int]]) -> list[str]:
        """Take filters with their granted QoS; return them as text."""
        texts: list[str] = []
        found = self._clients.get(key)
        if found is None:
            return texts
        held, broker_id = found
        now = self._clock()
        for raw, qos in filters:
            text = raw.decode("utf-8", "replace")
            since = held.filters[text][1] if text in held.filters else now
            held.filters[text] = qos, since
            texts.append(text)
        reporter = self._reporters.get(broker_id)
        if reporter is not None:
            reporter.subscribed(held, texts)
        return texts

    def unsubscribed(self, key: object, filters: Iterable[bytes]) -> None:
        """Forget filters."""
        found = self._clients.get(key)
        if found is None:
            return
        held, broker_id = found
        texts = [raw.decode("utf-8", "replace") for raw in filters]
        for text in texts:
            held.filters.pop(text, None)
        reporter = self._reporters.get(broker_id)
        if reporter is not None:
            reporter.unsubscribed(held, texts)

    def left(self, key: object, expiry_s: int | None, *, is_moving: bool = False) -> None:
        """Take note that the client has left its broker, which keeps its session for `expiry_s`; None: without end.

        The interest of a client that moves stays there for `MOVE_S`. Otherwise nobody would retain publications until
        the federator of its next broker has joined.
        """
        found = self._clients.get(key)
        if found is None or not found[1]:
            return
        held, broker_id = found
        held.expiry_s = expiry_s
        self._clients[key] = held, ""
        if is_moving:
            self._loop.call_later(MOVE_S, self._end_move, key, held, broker_id)
        else:
            self._end_move(key, held, broker_id)

    def _end_move(self, key: object, held: Held, broker_id: str) -> None:
        found = self._clients.get(key)
        reporter = self._reporters.get(broker_id)
        # A client that has come back since has not left.
        if reporter is not None and (found is None or found[1] != broker_id):
            reporter.left(held)

    def forget(self, key: object, expiry_s: int | None) -> None:
        """Take note that the client is gone."""
        self.left(key, expiry_s)
        self._clients.pop(key, None)

    # --- the barrier --------------------------------------------------------------------------------------------------

    async def barrier(self, broker_id: str, filters: Iterable[str]) -> None:
        """Wait until the filters of a client at this broker are reliable, or the time is over (rule 3)."""
        barrier = self._barriers.get(broker_id)
        if barrier is None:
            barrier = self._barriers[broker_id] = _Barrier(self._loop.create_future())
            self._loop.call_soon(self._start_barrier, broker_id)
        barrier.filters.update(filters)
        await asyncio.shield(barrier.passed)

    def _start_barrier(self, broker_id: str) -> None:
        self._run(self._pass(broker_id, self._barriers.pop(broker_id)))

    async def _pass(self, broker_id: str, barrier: _Barrier) -> None:
        reporter = self._reporters.get(broker_id)
        outcome = "barriers_late"
        try:
            if reporter is None or not reporter.connection.is_open:
                outcome = "barriers_alone"
                return
            others = [one for one in self._reporters.values() if one is not reporter and one.connection.is_open]
            async with asyncio.timeout(self._barrier_timeout_s):
                await reporter.flushed()
                texts = sorted(barrier.filters)
                for at in range(0, len(texts), FILTERS_PER_BARRIER):
                    await self._wait(reporter, others, texts[at : at + FILTERS_PER_BARRIER])
            outcome = "barriers_passed"
        except TimeoutError:
            _log.info("barrier of broker %s: not all federators have answered in time", broker_id)
        except HanseError as error:
            _log.info("barrier of broker %s: %s", broker_id, error)
        finally:
            self.counters[outcome] += 1
            if not barrier.passed.done():
                barrier.passed.set_result(None)

    async def _wait(self, reporter: Reporter, others: list[Reporter], texts: list[str]) -> None:
        wait_ms = self._barrier_timeout_s * 1e3
        timeout_s = self._barrier_timeout_s + ANSWER_EXTRA_S
        fields = {"barrier": texts, "wait_ms": wait_ms}
        answer = await reporter.connection.ask("interest", fields, timeout_s=timeout_s)
        groups = answer.fields.get("groups")
        if groups:
            fields = {"groups": groups, "wait_ms": wait_ms}
            asked = (one.connection.ask("claims", fields, timeout_s=timeout_s) for one in others)
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            for one, outcome in zip(others, outcomes, strict=True):
                # A federator that was lost meanwhile can no longer be reached.
                if isinstance(outcome, BaseException) and one.connection.is_open:
                    raise outcome

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
