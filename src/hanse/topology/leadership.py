"""Leadership: the loop that takes, keeps and releases the lease. `lease` holds the rules."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from hanse.errors import HanseError
from hanse.topology.lease import Held, Watch
from hanse.topology.problems import NotLeading
from hanse.topology.store import Deposed, Lease, Store

log = logging.getLogger("hanse.manager")


@dataclass(frozen=True, slots=True)
class Candidacy:
    """Candidate for the lease, its URL, and how long it leads without renewal."""

    manager: str
    url: str
    lease_s: float


class Leadership:
    """Leadership of this manager.

    `on_take` runs with a lease just taken, before `is_leading`. If it fails, the lease expires unused. `on_follow` runs
    after every look at another manager's lease, `on_lose` once when leading ends.
    """

    def __init__(
        self,
        store: Store,
        candidacy: Candidacy,
        *,
        on_take: Callable[[Lease], Awaitable[None]],
        on_follow: Callable[[], Awaitable[None]],
        on_lose: Callable[[Lease], None],
    ) -> None:
        self.leader_url = ""
        self.errors = 0
        self._store = store
        self._candidacy = candidacy
        self._on_take = on_take
        self._on_follow = on_follow
        self._on_lose = on_lose
        self._held: Held | None = None
        self._watch = Watch(candidacy.lease_s)

    @property
    def is_leading(self) -> bool:
        """Return whether this manager leads now."""
        return self._held is not None and not self._held.is_over(time.monotonic(), self._candidacy.lease_s)

    def lease(self) -> Lease:
        """Return the lease, for a write. Raise `NotLeading` without one."""
        if self._held is None or not self.is_leading:
            raise NotLeading(self.leader_url)
        return self._held.lease

    async def run(self) -> None:
        """Keep the lease, or watch its holder, for ever."""
        pause_s = min(1.0, self._candidacy.lease_s / 6)
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.step()
            except Deposed:
                self.step_down()
            except HanseError as error:
                self.errors += 1
                log.warning("lease: %s", error)
            except Exception:  # the edge of the shell: a manager that stops watching never leads again
                self.errors += 1
                log.exception("lease")

    async def step(self) -> None:
        """Check once: renew, take, or follow."""
        now_s = time.monotonic()
        if self._held is not None:
            if self._held.is_over(now_s, self._candidacy.lease_s):
                self.step_down()
            elif self._held.is_due(now_s, self._candidacy.lease_s):
                self._held = Held(await self._store.renew_lease(self._held.lease), now_s)
            return
        seen = await self._store.read_lease()
        if self._watch.may_take(now_s, seen):
            lease = await self._store.take_lease(seen, self._candidacy.manager, self._candidacy.url)
            if lease is not None:
                await self._on_take(lease)
                self._held, self.leader_url = Held(lease, now_s), self._candidacy.url
                return
        self.leader_url = seen.url if seen else ""
        await self._on_follow()

    def step_down(self) -> None:
        """Stop leading, because another manager leads or will."""
        if self._held is not None:
            held, self._held = self._held, None
            self._watch = Watch(self._candidacy.lease_s)
            self._on_lose(held.lease)

    async def release(self) -> None:
        """Release the lease, so that the next manager need not wait."""
        if self._held is not None:
            with suppress(HanseError):
                await self._store.release_lease(self._held.lease)
            self._held = None
