"""Health rounds: probe all, probe suspects again, let `health` judge, and let the manager act on the verdict.

Rules:

1. A round begins every interval, and at once for a suspected federator: its connection broke, a neighbour cannot reach
   it, or it reports although it is gone.
2. Only the leader probes, and begins with a round.
3. The measurements of the probes are published as telemetry, once per round, at a healthy broker. Any collector gets
   them from there.
4. The overlay is mended after a round if necessary. While federators still report themselves to a manager that lost its
   store, mending waits for the rest.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hanse.errors import HanseError
from hanse.topology import changes
from hanse.topology.checks import CheckReporter
from hanse.topology.health import Health, Observation, Outcome, Verdict
from hanse.topology.model import Link, Probe, State, link_of
from hanse.topology.probes import Prober, Target
from hanse.topology.store import Store

if TYPE_CHECKING:
    from hanse.topology.manager import Manager

log = logging.getLogger("hanse.manager")

BROKEN_S = 600.0  # how long a link is avoided after it was reported broken
LAG_STEP_S = 0.05
GATHER_S = 0.05


class Rounds:
    """Watch of one manager over all federators."""

    def __init__(
        self, manager: "Manager", store: Store, make_prober: Callable[[str, Callable[[int], None]], Prober]
    ) -> None:
        self.prober = make_prober(manager.id, self.suspect)
        self.doubt: str | None = None
        self._manager = manager
        self._settings = manager.settings
        self._store = store
        self._health = Health()
        self._suspects: set[int] = set()
        self._wake = asyncio.Event()
        self._heard_s: dict[int, float] = {}
        self._said_well: dict[int, tuple[bool, float | None]] = {}
        self._broken: dict[Link, float] = {}
        self._wants_mend = False
        self._adopted_s = float("-inf")
        self._checks = CheckReporter(manager.id)
        # A broker that accepts the checks of this round.
        self._well: Target | None = None

    def begin(self) -> None:
        """Prepare, because this manager is about to lead."""
        self.note_adopted()
        # Federators that measure themselves had no chance to tell a manager that was not there.
        self._heard_s = dict.fromkeys(self._manager.topology.federators, time.monotonic())

    def hear(self, node: int, *, is_well: bool | None = None, latency_ms: float | None = None) -> None:
        """Note that a federator reported, and perhaps the health of its broker."""
        self._heard_s[node] = time.monotonic()
        if is_well is not None:
            self._said_well[node] = (is_well, latency_ms)

    def note_adopted(self) -> None:
        """Note that something became known that may need mending, but perhaps not all of it yet."""
        self._adopted_s, self._wants_mend = time.monotonic(), True

    def note_lost_links(self, node: int, lost: Iterable[int]) -> None:
        """Note that a neighbour cannot be reached: it may be dead, or the route to it may be."""
        for other in lost:
            if other != node and link_of(node, other) in self._manager.topology.links:
                self._broken[link_of(node, other)] = time.monotonic() + BROKEN_S
                self._wants_mend = True
                self.suspect(other)

    def suspect(self, node: int) -> None:
        """Request a probe of this federator at once."""
        self._suspects.add(node)
        self._wake.set()

    async def run(self) -> None:
        """Run rounds at the interval, and probe suspects in between, while the manager runs."""
        next_s = time.monotonic()
        while True:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_s - time.monotonic())):
                    if not self._suspects:
                        await self._wake.wait()
            if not self._manager.is_leading:
                self._suspects.clear()
                await self.prober.keep([])
                await asyncio.sleep(min(0.2, self._settings.health_interval_s / 4))
                next_s = time.monotonic()  # a new leader begins with a round
                continue
            is_whole = time.monotonic() >= next_s
            if is_whole:
                next_s = max(next_s + self._settings.health_interval_s, time.monotonic())
            else:
                # When one connection breaks, others often follow: wait a moment, and probe them together.
                await asyncio.sleep(min(GATHER_S, self._settings.probe_timeout_s / 5))
            try:
                await self.check(is_whole=is_whole)
            except HanseError as error:
                log.warning("health round: %s", error)
            except Exception:  # the edge of the shell: one bad round must not end the watch over all
                self._manager.counters.round_errors += 1
                log.exception("health round")

    async def check(self, *, is_whole: bool = True) -> None:
        """Run one round: probe, probe the suspects again, judge, and change the topology accordingly."""
        begin_s = time.monotonic()
        self._manager.counters.loop_lag_s = 0.0
        self._well = None
        federators = self._manager.topology.federators.values()
        up = {one.id: one.latency_ms for one in federators if one.state is State.UP}
        gone = [one.id for one in federators if one.state is State.GONE]
        self._health.take_up(up, gone)
        wanted = set(self._health.due()) if is_whole else set()
        wanted |= self._suspects & (up.keys() | set(gone))
        self._suspects.clear()
        verdict = await self._judge(sorted(wanted))
        if is_whole:
            self._note_doubt(verdict.doubt)
        await self._act_on(verdict, second_look=True)
        if is_whole:
            await self.prober.keep([*up, *gone])
            await self._tell_checks()
            self._manager.counters.health_rounds += 1
            self._manager.counters.round_s = time.monotonic() - begin_s
            await self._tidy()
        elif self._wants_mend:
            await self._mend()

    async def _judge(self, nodes: list[int]) -> Verdict:
        targets = [
            Target(o.id, o.key, o.probe) for n in nodes if (o := self._manager.topology.federators.get(n)) is not None
        ]
        timeout_s = self._settings.probe_timeout_s
        seen = await self.prober.probe([one for one in targets if one.probe is not Probe.SELF], timeout_s)
        seen += [self._self_observation(one.id) for one in targets if one.probe is Probe.SELF]
        self._note_checks(targets, seen)
        is_late = self._manager.counters.loop_lag_s > timeout_s / 2
        verdict = self._health.judge(seen, is_late=is_late)
        self._manager.counters.probe_failures += sum(one.outcome is not Outcome.WELL for one in seen)
        await self._manager.measure(verdict.latency_ms, [one.id for one in seen])
        return verdict

    def _note_checks(self, targets: list[Target], seen: list[Observation]) -> None:
        """Apply rule 3."""
        by_id = {one.id: one for one in targets}
        well = [by_id[one.id] for one in seen if one.outcome is Outcome.WELL and by_id[one.id].probe is not Probe.SELF]
        if well:
            self._well = well[0]
        self._checks.note(seen, {one.id: one.key for one in targets})

    async def _tell_checks(self) -> None:
        if self._well is None:
            return  # they wait, within the limit
        self._checks.forget(self._manager.topology.federators)
        for topic, payload in self._checks.flush():
            if await self.prober.publish(self._well, topic, payload, self._settings.probe_timeout_s):
                self._manager.counters.checks_told += 1
            else:
                self._manager.counters.checks_not_told += 1

    def _note_doubt(self, doubt: str | None) -> None:
        self._manager.counters.doubts += doubt is not None
        if doubt != self.doubt:
            self._manager.tell("doubt", {"reason": doubt})
            log.warning("the manager doubts itself: %s", doubt or "no longer")
        self.doubt = doubt

    def _self_observation(self, node: int) -> Observation:
        """Return what a federator behind NAT said of its broker, if it spoke in the last one and a half intervals."""
        heard_s = self._heard_s.get(node, float("-inf"))
        is_well, latency_ms = self._said_well.get(node, (True, None))
        if time.monotonic() - heard_s > 1.5 * self._settings.health_interval_s:
            return Observation(node, Outcome.SILENT)
        return Observation(node, Outcome.WELL if is_well else Outcome.FAILED, latency_ms)

    async def _act_on(self, verdict: Verdict, *, second_look: bool) -> None:
        if verdict.gone:
            begin_s = time.perf_counter()
            await self._manager.change(
                lambda before: changes.lose(
                    before,
                    [n for n in verdict.gone if n in before.federators and before.federators[n].state is State.UP],
                    State.GONE,
                    self._manager.rules,
                    now(),
                    causes=verdict.causes,
                    avoid=self._avoided(),
                )
            )
            self._manager.counters.lost += len(verdict.gone)
            self._manager.groups.forget(verdict.gone)
            log.warning("gone: %s (repaired in %.3f s)", list(verdict.gone), time.perf_counter() - begin_s)
        for node in verdict.back:
            await self._take_back(node)
        if verdict.suspects and second_look:
            await asyncio.sleep(self._settings.probe_timeout_s)
            await self._act_on(await self._judge(list(verdict.suspects)), second_look=False)

    async def _take_back(self, node: int) -> None:
        one = self._manager.topology.federators.get(node)
        if one is not None and one.state is State.GONE:
            rules = self._manager.rules
            await self._manager.change(lambda before: changes.come_back(before, node, rules, now()))
            self._manager.counters.returned += 1

    async def _tidy(self) -> None:
        """Tidy up after a whole round: mend the overlay, remove revoked federators, forget old ones."""
        out = await self._expelled()
        if out:
            await self._manager.change(
                lambda before: changes.lose(before, out, State.REVOKED, self._manager.rules, now())
            )
            self._manager.counters.revoked += len(out)
            self._manager.groups.forget(out)
        remember = timedelta(seconds=self._settings.remember_s)
        await self._manager.change(lambda before: changes.forget(before, now(), remember))
        for known in (self._heard_s, self._said_well):
            for node in known.keys() - self._manager.topology.federators.keys():
                del known[node]
        if self._wants_mend:
            await self._mend()

    async def _expelled(self) -> list[int]:
        """Return the federators that an operator revoked, or whose token an operator revoked, and that are still in."""
        tokens = {token.id: token for token in await self._store.list_tokens()}
        expulsions = {one.key: one for one in await self._store.list_revocations()}
        out = []
        for one in self._manager.topology.federators.values():
            token = tokens.get(one.token) if one.token is not None else None
            expulsion = expulsions.get(one.key)
            is_out = (token is not None and token.is_revoked) or (expulsion is not None and expulsion.covers(token))
            if is_out and one.state is not State.REVOKED:
                out.append(one.id)
        return out

    async def _mend(self) -> None:
        """Mend the overlay, but wait while federators still report themselves to a manager that lost its store."""
        if time.monotonic() - self._adopted_s < self._settings.health_interval_s:
            return
        await self._manager.change(lambda before: changes.mend(before, self._manager.rules, self._avoided()))
        self._wants_mend = False

    def _avoided(self) -> set[Link]:
        now_s = time.monotonic()
        self._broken = {link: until_s for link, until_s in self._broken.items() if until_s > now_s}
        return set(self._broken)

    async def measure_lag(self) -> None:
        """Measure how late the event loop of this process is, for the doubt of `health`."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(LAG_STEP_S)
            self._manager.counters.loop_lag_s = max(
                self._manager.counters.loop_lag_s, time.monotonic() - before_s - LAG_STEP_S
            )


def now() -> datetime:
    """Return the time in whole milliseconds, as it is written: a restarted manager then reads what this one had."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
