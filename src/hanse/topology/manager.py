"""The manager: holds the topology, changes it under the lease, and lets everybody know.

Rules:

1. One change at a time. It is computed on a copy, stored, and only then true: answers, announcements and events
   follow the store.
2. Only the leader changes anything. Who finds itself deposed stops at once, and says who leads now.
3. Nobody waits for a federator: announcements go out beside, with a deadline, and what was missed is in the next
   answer to its poll or report.
4. Graph theory runs in a thread: a repair of 1,000 federators must not make the loop late.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hanse.errors import HanseError, Unavailable
from hanse.topology import changes
from hanse.topology.addresses import parse_address
from hanse.topology.admission import Gate
from hanse.topology.announcements import TOPIC, compose, neighbor_of
from hanse.topology.changes import Announcement, Change, Conflict, Peer, Rules
from hanse.topology.events import EventLog
from hanse.topology.groups import GroupBook, GroupReport
from hanse.topology.health import Health, Observation, Outcome, Verdict
from hanse.topology.lease import Held, Watch
from hanse.topology.metrics import Counters
from hanse.topology.model import Link, Probe, State, Topology, link_of
from hanse.topology.probes import Prober, Target
from hanse.topology.problems import NotFound, NotLeading
from hanse.topology.repair import graph_of, is_connected, is_two_connected
from hanse.topology.settings import ManagerSettings
from hanse.topology.store import Deposed, Lease, Store
from hanse.topology.tokens import Credentials, Forbidden, is_credential, parse_credential

T = TypeVar("T")

log = logging.getLogger("hanse.manager")

POLL_WAIT_MAX_S = 30.0  # proxies cut a silent answer after 60 s
POLLS_MAX = 20_000
BROKEN_S = 600.0  # how long a link that was reported broken is avoided
LAG_STEP_S = 0.05
GATHER_S = 0.05


@dataclass(frozen=True, slots=True)
class Report:
    """What a federator tells of itself."""

    peer: Peer
    epoch: int
    neighbors: tuple[Peer, ...]
    lost: tuple[int, ...] = ()
    groups: tuple[GroupReport, ...] | None = None
    broker_is_well: bool | None = None
    latency_ms: float | None = None


class Manager:
    """One manager, leading or standing by."""

    def __init__(
        self,
        settings: ManagerSettings,
        store: Store,
        make_prober: Callable[[str, Callable[[int], None]], Prober],
        *,
        requires_token: bool = False,
    ) -> None:
        self.settings = settings
        self.id = settings.manager_id or secrets.token_hex(4)
        self.topology = Topology()
        self.events = EventLog()
        self.groups = GroupBook()
        self.counters = Counters()
        self.leader_url = ""
        self.doubt: str | None = None
        self._store = store
        self._requires_token = requires_token
        self._rules = Rules(settings.overlay_degree_max, settings.placement, settings.federators_max)
        self._prober = make_prober(self.id, self.suspect)
        self._health = Health()
        self._held: Held | None = None
        self._watch = Watch(settings.lease_s)
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._polls = 0
        self._suspects: set[int] = set()
        self._wake = asyncio.Event()
        self._heard_s: dict[int, float] = {}
        self._said_well: dict[int, tuple[bool, float | None]] = {}
        self._broken: dict[Link, float] = {}
        self._wants_mend = False
        self._shape: tuple[int, tuple[bool, bool]] | None = None
        self._adopted_s = float("-inf")
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._sending: set[asyncio.Task[None]] = set()
        self.credentials = Credentials(b"\0" * 32)
        self.gate = Gate(store, self.credentials, is_required=requires_token)

    # Life.

    async def start(self) -> None:
        """Reads the store, tries to lead, and begins to watch."""
        given = self.settings.secret
        secret = given.encode() if given else await self._store.read_secret(secrets.token_bytes(32))
        self.credentials = Credentials(secret)
        self.gate = Gate(self._store, self.credentials, is_required=self._requires_token)
        await self._lead_or_follow()
        self._tasks = [
            asyncio.create_task(self._keep_lease(), name="lease"),
            asyncio.create_task(self._keep_health(), name="health"),
            asyncio.create_task(self._keep_lag(), name="lag"),
        ]

    def begin_stop(self) -> None:
        """Ends the answers that wait for something, so that the HTTP server can end."""
        self._is_stopping = True
        self.events.close()
        self._wake_polls()

    async def stop(self) -> None:
        """Gives the lease back and lets everything go. The store is the caller's."""
        self.begin_stop()
        for task in (*self._tasks, *self._sending):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._sending, return_exceptions=True)
        await self._prober.close()
        if self._held is not None:
            with suppress(HanseError):
                await self._store.release_lease(self._held.lease)
            self._held = None

    @property
    def is_leading(self) -> bool:
        """Whether this manager's word counts now."""
        return self._held is not None and not self._held.is_over(time.monotonic(), self.settings.lease_s)

    # What federators ask for.

    async def join(self, peer: Peer, shown: str | None, claimed: int | None) -> int:
        """Takes a federator in and returns its id."""
        now = _now()
        async with self._lock:
            lease = self._lease()
            token = await self.gate.join(shown, peer.key, self.topology, now.timestamp())
            known = self.topology.by_key(peer.key)
            if known is not None and known.state is State.REVOKED and token is None:
                raise Forbidden(f"Federator {known.id} was revoked; ask the operator for a token.")
            if shown is not None and is_credential(shown):
                # It was here before. If the store was lost, its credential is what is left of that.
                earlier = parse_credential(shown)
                peer = replace(peer, id=earlier.id, token=earlier.token)
            else:
                peer = replace(peer, id=claimed, token=token.id if token else None)
            change, node = await self._compute(lambda: changes.join(self.topology, peer, self._rules, now))
            if token is not None and not await self._store.spend_token(token.id, now.timestamp()):
                raise Forbidden("The token is expired, used up or revoked; ask the operator for another.")
            try:
                await self._commit(lease, change)
            except HanseError:
                if token is not None:
                    with suppress(HanseError):
                        await self._store.refund_token(token.id)
                raise
        self._heard_s[node] = time.monotonic()
        if known is None:
            self.counters.joins += 1
        else:
            self.counters.rejoins += 1
        return node

    async def leave(self, node: int, shown: str | None) -> None:
        """A federator says that it goes."""
        await self._authorise(node, shown)
        await self.change(lambda before: changes.lose(before, [node], State.LEFT, self._rules, _now()))
        self.counters.leaves += 1
        self.groups.forget([node])

    async def report(self, report: Report, shown: str | None) -> None:
        """A federator says how it is; where the manager knows less, that becomes the truth."""
        node = report.peer.id
        assert node is not None
        self._lease()
        await self.gate.federator(shown, node, report.peer.key, self.topology)
        peer = report.peer
        if shown is not None:
            peer = replace(peer, token=parse_credential(shown).token)
        known_before = node in self.topology.federators
        try:
            change = await self.change(
                lambda before: changes.adopt(before, peer, report.epoch, report.neighbors, self._rules, _now())
            )
        except Conflict as error:
            self._tell("conflict", {"id": node, "ip": report.peer.ip, "detail": str(error)})
            raise
        self.counters.reports += 1
        self._heard_s[node] = time.monotonic()
        if report.broker_is_well is not None:
            self._said_well[node] = (report.broker_is_well, report.latency_ms)
        if report.groups is not None:
            self.groups.note(node, report.groups)
        if not change.is_empty and (not known_before or change.happenings):
            self._adopted_s, self._wants_mend = time.monotonic(), True
        self._note_lost_links(node, report.lost)
        if self.topology.federators[node].state is State.GONE:
            self.suspect(node)  # it speaks: perhaps it is back

    def _note_lost_links(self, node: int, lost: Iterable[int]) -> None:
        """A neighbour cannot be reached: is it dead, or is it the way to it?"""
        for other in lost:
            if other != node and link_of(node, other) in self.topology.links:
                self._broken[link_of(node, other)] = time.monotonic() + BROKEN_S
                self._wants_mend = True
                self.suspect(other)

    async def poll(self, node: int, shown: str | None, after: int, wait_s: float) -> None:
        """Returns when the federator's neighbours changed after that epoch, or when the time is over."""
        await self._authorise(node, shown)
        if self._polls >= POLLS_MAX:
            raise Unavailable(f"{POLLS_MAX} federators already wait, the most there may be; ask without waiting.")
        self._heard_s[node] = time.monotonic()
        self._polls += 1
        try:
            async with asyncio.timeout(min(wait_s, POLL_WAIT_MAX_S)):
                while self.federator_epoch(node) <= after and not self._is_stopping:
                    await self._changed.wait()
        except TimeoutError:
            return
        finally:
            self._polls -= 1

    def federator_epoch(self, node: int) -> int:
        """When the federator's neighbours last changed."""
        one = self.topology.federators.get(node)
        if one is None:
            raise NotFound(f"There is no federator {node}; join first.")
        return one.changed_epoch

    def word(self, node: int) -> dict[str, object]:
        """What a federator is told: its neighbours and the federation's settings, under an epoch."""
        one = self.topology.federators[node]
        neighbors = [neighbor_of(self.topology.federators[other]) for other in self.topology.neighbors(node)]
        return {
            "id": node,
            "epoch": self.topology.epoch,
            "changedEpoch": one.changed_epoch,
            "state": one.state.value,
            "neighbors": neighbors,
            "neighborsAmount": len(neighbors),
            "settings": self.settings.handed_out(),
            "manager": self.id,
        }

    async def shape(self) -> tuple[bool, bool]:
        """Whether the overlay is connected, and two-connected; computed once an epoch."""
        now = self.topology
        if self._shape is None or self._shape[0] != now.epoch:
            graph = await self._compute(lambda: graph_of(now.living(), now.links))
            found = await self._compute(lambda: (is_connected(graph), is_two_connected(graph)))
            self._shape = (now.epoch, found)
        return self._shape[1]

    async def _authorise(self, node: int, shown: str | None) -> None:
        self._lease()
        one = self.topology.federators.get(node)
        if one is None:
            raise NotFound(f"There is no federator {node}; join first.")
        await self.gate.federator(shown, node, one.key, self.topology)

    # Changing the topology.

    def _lease(self) -> Lease:
        if self._held is None or not self.is_leading:
            raise NotLeading(self.leader_url)
        return self._held.lease

    async def change(self, make: Callable[[Topology], Change]) -> Change:
        """Computes a change and stores it. Rules 1 and 2."""
        async with self._lock:
            lease = self._lease()
            begin_s = time.perf_counter()
            change = await self._compute(lambda: make(self.topology))
            if not change.is_empty:
                self.counters.repair_s = time.perf_counter() - begin_s
            await self._commit(lease, change)
            return change

    async def _compute(self, make: Callable[[], T]) -> T:
        """Rule 4; below a hundred federators a thread costs more than it spares."""
        if len(self.topology.federators) < 100:
            return make()
        return await asyncio.to_thread(make)

    async def _commit(self, lease: Lease, change: Change) -> None:
        if change.is_empty:
            return
        try:
            await self._store.commit(lease, change.topology, change.changed, change.forgotten)
        except Deposed:
            await self._step_down()
            raise
        except Unavailable:
            self.counters.store_errors += 1
            raise
        self.topology = change.topology
        for happening in change.happenings:
            self._tell(happening.kind, happening.data)
        self._wake_polls()
        self._announce(change.announcements)

    def _wake_polls(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _tell(self, kind: str, data: Mapping[str, object]) -> None:
        self.events.tell(kind, self.topology.epoch, data)

    def _announce(self, announcements: Iterable[Announcement]) -> None:
        """Rule 3."""
        for announcement in announcements:
            one = self.topology.federators[announcement.to]
            if one.probe is Probe.SELF:
                continue  # behind NAT: its poll is open and has been woken
            credential = self.credentials.issue(one.id, one.key, one.token)
            payload = compose(announcement, self.topology, credential, self.id)
            task = asyncio.create_task(self._send(Target(one.id, one.key, one.probe), payload))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, target: Target, payload: bytes) -> None:
        if await self._prober.publish(target, TOPIC, payload, self.settings.probe_timeout_s):
            self.counters.announcements += 1
        else:
            self.counters.announcements_failed += 1

    # Leading.

    async def _keep_lease(self) -> None:
        pause_s = min(1.0, self.settings.lease_s / 6)
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._lead_or_follow()
            except Deposed:
                await self._step_down()
            except HanseError as error:
                self.counters.store_errors += 1
                log.warning("lease: %s", error)

    async def _lead_or_follow(self) -> None:
        now_s = time.monotonic()
        if self._held is not None:
            if self._held.is_over(now_s, self.settings.lease_s):
                await self._step_down()
            elif self._held.is_due(now_s, self.settings.lease_s):
                self._held = Held(await self._store.renew_lease(self._held.lease), now_s)
            return
        seen = await self._store.read_lease()
        if self._watch.may_take(now_s, seen):
            lease = await self._store.take_lease(seen, self.id, self.settings.advertised_url)
            if lease is not None:
                await self._take_over(Held(lease, now_s))
                return
        self.leader_url = seen.url if seen else ""
        self.topology = await self._store.load(None)
        self._wake_polls()

    async def _take_over(self, held: Held) -> None:
        async with self._lock:
            topology = await self._store.load(held.lease)
            # Beyond every epoch stored; and beyond the clock's seconds, in case the store was lost.
            epoch = max(topology.epoch + 1, int(time.time()))
            topology = replace(topology, epoch=epoch)
            await self._store.commit(held.lease, topology, [], [])
            self.topology, self._held = topology, held
            self._wants_mend, self._adopted_s = True, time.monotonic()
            # Whoever measures itself has had no chance to tell a manager that was not there.
            self._heard_s = dict.fromkeys(topology.federators, time.monotonic())
            self.leader_url = self.settings.advertised_url
        self.counters.takeovers += 1
        self._tell("leading", {"manager": self.id, "term": held.lease.term})
        log.info("manager %s leads, term %d, epoch %d", self.id, held.lease.term, epoch)
        self._wake_polls()

    async def _step_down(self) -> None:
        if self._held is None:
            return
        log.warning("manager %s no longer leads, term %d", self.id, self._held.lease.term)
        self._held = None
        self._watch = Watch(self.settings.lease_s)
        self._tell("deposed", {"manager": self.id})

    # Health.

    def suspect(self, node: int) -> None:
        """Asks for a probe of this one at once."""
        self._suspects.add(node)
        self._wake.set()

    async def _keep_health(self) -> None:
        next_s = time.monotonic()
        while True:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_s - time.monotonic())):
                    if not self._suspects:
                        await self._wake.wait()
            if not self.is_leading:
                self._suspects.clear()
                await self._prober.keep([])
                await asyncio.sleep(min(0.2, self.settings.health_interval_s / 4))
                next_s = time.monotonic()  # whoever begins to lead begins with a round
                continue
            is_whole = time.monotonic() >= next_s
            if is_whole:
                next_s = max(next_s + self.settings.health_interval_s, time.monotonic())
            else:
                # Where one connection breaks others often do: a moment, and they are looked at together.
                await asyncio.sleep(min(GATHER_S, self.settings.probe_timeout_s / 5))
            try:
                await self.check_health(is_whole=is_whole)
            except HanseError as error:
                log.warning("health round: %s", error)
            except Exception:  # the edge of the shell: one bad round must not end the watch over all
                self.counters.round_errors += 1
                log.exception("health round")

    async def check_health(self, *, is_whole: bool = True) -> None:
        """One round: probe, look again at the suspects, judge, and change the topology accordingly."""
        begin_s = time.monotonic()
        self.counters.loop_lag_s = 0.0
        federators = self.topology.federators.values()
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
            await self._prober.keep([*up, *gone])
            self.counters.health_rounds += 1
            self.counters.round_s = time.monotonic() - begin_s
            await self._tidy()
        elif self._wants_mend:
            await self._mend()

    async def _judge(self, nodes: list[int]) -> Verdict:
        targets = [
            Target(o.id, o.key, o.probe) for n in nodes if (o := self.topology.federators.get(n)) is not None
        ]
        timeout_s = self.settings.probe_timeout_s
        seen = await self._prober.probe([one for one in targets if one.probe is not Probe.SELF], timeout_s)
        seen += [self._self_observation(one.id) for one in targets if one.probe is Probe.SELF]
        is_late = self.counters.loop_lag_s > timeout_s / 2
        verdict = self._health.judge(seen, is_late=is_late)
        self.counters.probe_failures += sum(one.outcome is not Outcome.WELL for one in seen)
        checked = [one.id for one in seen]
        async with self._lock:
            self.topology = changes.measured(self.topology, verdict.latency_ms, checked, _now())
            written = [one for node in checked if (one := self.topology.federators.get(node)) is not None]
            if written:
                await self._store.record_health(self._lease(), written)
        return verdict

    def _note_doubt(self, doubt: str | None) -> None:
        self.counters.doubts += doubt is not None
        if doubt != self.doubt:
            self._tell("doubt", {"reason": doubt})
            log.warning("the manager doubts itself: %s", doubt or "no longer")
        self.doubt = doubt

    def _self_observation(self, node: int) -> Observation:
        """Behind NAT: what it said of its broker, if it said anything within an interval and a half."""
        heard_s = self._heard_s.get(node, float("-inf"))
        is_well, latency_ms = self._said_well.get(node, (True, None))
        if time.monotonic() - heard_s > 1.5 * self.settings.health_interval_s:
            return Observation(node, Outcome.SILENT)
        return Observation(node, Outcome.WELL if is_well else Outcome.FAILED, latency_ms)

    async def _act_on(self, verdict: Verdict, *, second_look: bool) -> None:
        if verdict.gone:
            begin_s = time.perf_counter()
            await self.change(
                lambda before: changes.lose(
                    before,
                    [node for node in verdict.gone if node in before.federators],
                    State.GONE,
                    self._rules,
                    _now(),
                    causes=verdict.causes,
                    avoid=self._avoided(),
                )
            )
            self.counters.lost += len(verdict.gone)
            self.groups.forget(verdict.gone)
            log.warning("gone: %s (repaired in %.3f s)", list(verdict.gone), time.perf_counter() - begin_s)
        for node in verdict.back:
            one = self.topology.federators.get(node)
            if one is not None and one.state is State.GONE:
                await self.change(lambda before, node=node: changes.come_back(before, node, self._rules, _now()))  # type: ignore[misc]
                self.counters.returned += 1
        if verdict.suspects and second_look:
            await asyncio.sleep(self.settings.probe_timeout_s)
            await self._act_on(await self._judge(list(verdict.suspects)), second_look=False)

    async def _tidy(self) -> None:
        """After a whole round: mend what is to be mended, take out the revoked, forget the old."""
        revoked = {token.id for token in await self._store.list_tokens() if token.is_revoked}
        out = [
            o.id for o in self.topology.federators.values() if o.token in revoked and o.state is not State.REVOKED
        ]
        if out:
            await self.change(lambda before: changes.lose(before, out, State.REVOKED, self._rules, _now()))
            self.groups.forget(out)
        remember = timedelta(seconds=self.settings.remember_s)
        await self.change(lambda before: changes.forget(before, _now(), remember))
        if self._wants_mend:
            await self._mend()

    async def _mend(self) -> None:
        """While federators still report themselves to a manager that lost its store, it waits for the rest."""
        if time.monotonic() - self._adopted_s < self.settings.health_interval_s:
            return
        await self.change(lambda before: changes.mend(before, self._rules, self._avoided()))
        self._wants_mend = False

    def _avoided(self) -> set[Link]:
        now_s = time.monotonic()
        self._broken = {link: until_s for link, until_s in self._broken.items() if until_s > now_s}
        return set(self._broken)

    async def _keep_lag(self) -> None:
        """Measures how late this process's own loop is, for `health`'s doubt."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(LAG_STEP_S)
            self.counters.loop_lag_s = max(self.counters.loop_lag_s, time.monotonic() - before_s - LAG_STEP_S)


def peer_of(ip: str, *, node: int | None, link: str | None, probe: Probe = Probe.BROKER) -> Peer:
    """A federator as it names itself; its addresses are checked. Raises RemoteError."""
    key = parse_address(ip).url
    if link is not None:
        parse_address(link)
    return Peer(ip, key, node, link, probe)


def _now() -> datetime:
    """To the millisecond, as it is written: what a restarted manager reads is then what this one had."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)
