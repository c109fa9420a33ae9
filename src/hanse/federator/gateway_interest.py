"""Gateways' reports of their clients' subscriptions, and their wait before a client gets its SUBACK.

Two requests of gateways (`hanse.federator.gateways`):

- `interest`: rows for `hanse.interest.gateway`, in order. `snapshot` is `begin` or `end` where the rows begin or end a
  snapshot. With `barrier` (filters that clients at this broker have been granted) the answer comes when this federator
  has joined their meshes, and names their groups. `taken` in the answer says whether `interest = gateway`.
- `claims`: the answer comes when this federator's host broker has granted the subscriptions for these groups, so that a
  publication at this broker reaches those who want them.

Rules:

1. A report is applied when it arrives, in the order of the connection. Only the answer may wait.
2. The barrier works with every source of interest: it waits for the interest itself, from any source.
3. A wait is bounded by the gateway (`wait_ms`) and by `WAIT_S_MAX`. Then the request fails with `Unavailable`.
4. A filter that no rule lets out or in has no group, and nobody waits for it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from hanse.errors import RemoteError, Unavailable
from hanse.federator.crossing import Crossing
from hanse.federator.gateways import GatewayPeer, Gateways
from hanse.federator.host import HostSession
from hanse.interest import Report
from hanse.interest.filters import split_share
from hanse.interest.gateway import GatewayAdapter, Owner
from hanse.protocol.machine import Machine
from hanse.request_channel import Answer, Request

WAIT_S_MAX: Final = 30.0
# Rows and groups per request.
ROWS_MAX: Final = 10_000
# Between two looks at the state while a barrier waits: a claim crosses a link in about a millisecond.
LOOK_S: Final = 0.003
TICK_S: Final = 1.0

_log = logging.getLogger(__name__)


class GatewayInterest:
    """The federator's part.

    Args:
        adapter: what reads the rows; None if gateways are no source of interest here.
        gateways: whose requests are answered.
        take: given the reports.
        machine: asked about groups.
        host: asked whether it holds a subscription.
        crossing: names of filters elsewhere.
        counters: to count into: `barriers`, `barriers_late`.
    """

    def __init__(
        self,
        adapter: GatewayAdapter | None,
        gateways: Gateways,
        take: Callable[[str, list[Report]], None],
        machine: Machine,
        host: HostSession,
        crossing: Crossing,
        counters: Counter[str],
    ) -> None:
        self._adapter = adapter
        self._take = take
        self._machine = machine
        self._host = host
        self._crossing = crossing
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        gateways.offer("interest", self._interest)
        gateways.offer("claims", self._claims)
        gateways.watch(self._come, self._gone)

    async def watch(self) -> None:
        """End leases and sessions as their time comes."""
        while self._adapter is not None:
            await asyncio.sleep(TICK_S)
            self._report(self._adapter.tick(self._loop.time()))

    def _come(self, peer: GatewayPeer) -> None:
        if self._adapter is not None:
            self._adapter.connected(_owner(peer))

    def _gone(self, peer: GatewayPeer) -> None:
        if self._adapter is not None:
            self._adapter.disconnected(self._loop.time(), _owner(peer))

    def _report(self, reports: list[Report]) -> None:
        if reports and self._adapter is not None:
            self._take(self._adapter.source, reports)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _interest(self, peer: GatewayPeer, request: Request) -> Answer:
        fields = request.fields
        rows = _list(fields.get("rows", []), "rows")
        filters = [text for text in _list(fields.get("barrier", []), "barrier") if isinstance(text, str)]
        adapter = self._adapter
        if adapter is not None:
            owner, now = _owner(peer), self._loop.time()
            if fields.get("snapshot") == "begin":
                adapter.begin_snapshot(owner)
            reports = adapter.rows(now, owner, rows)
            if fields.get("snapshot") == "end":
                reports += adapter.end_snapshot(now, owner)
            self._report(reports)
        groups = sorted({group for text in filters for group in self._groups_of(text)})
        if groups:
            await self._wait(fields, groups, self._is_joined)
        return Answer({"taken": adapter is not None, "groups": groups})

    async def _claims(self, _peer: GatewayPeer, request: Request) -> Answer:
        groups = [text for text in _list(request.fields.get("groups"), "groups") if isinstance(text, str)]
        await self._wait(request.fields, groups, self._is_served)
        return Answer()

    async def _wait(self, fields: dict[str, Any], groups: Iterable[str], is_done: Callable[[str], bool]) -> None:
        wait_ms = fields.get("wait_ms")
        limit_s = min(WAIT_S_MAX, wait_ms / 1e3) if isinstance(wait_ms, int | float) else WAIT_S_MAX
        until = time.monotonic() + limit_s
        self._counters["barriers"] += 1
        left = [group for group in groups if not is_done(group)]
        while left:
            if time.monotonic() >= until:
                self._counters["barriers_late"] += 1
                raise Unavailable(f"{len(left)} groups are not ready at federator {self._machine.identity} in time.")
            await asyncio.sleep(LOOK_S)
            left = [group for group in left if not is_done(group)]

    # --- states -------------------------------------------------------------------------------------------------------

    def _groups_of(self, text: str) -> list[str]:
        try:
            outward = self._crossing.outward_filter(split_share(text)[1])
        except RemoteError:
            return []
        group_of = self._machine.settings.grouping.group_of
        return [group_of(one) for one in outward]

    def _is_joined(self, group: str) -> bool:
        """Return whether publications of the group reach this federator."""
        machine = self._machine
        if not machine.is_local(group):
            return False
        if not machine.neighbours() or machine.core_of(group) == machine.identity:
            return True
        hops, must_wait = machine.hops(group)
        return bool(hops) and not must_wait

    def _is_served(self, group: str) -> bool:
        """Return whether publications of the group at the host broker go to those who want them."""
        machine = self._machine
        if group not in machine.host_subscriptions():
            return False
        if not machine.hops(group)[0] or machine.hops(group)[1]:
            return False
        return all(self._host.holds(local) for local in self._crossing.inward_filter(group))


def _owner(peer: GatewayPeer) -> Owner:
    return Owner(peer.name.gateway, peer.name.incarnation, peer.name.connection)


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > ROWS_MAX:
        raise RemoteError(f"The {what} of a gateway's request are no list of at most {ROWS_MAX}.")
    return value
