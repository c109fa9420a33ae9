"""The manager: holds the topology, changes it under the lease, and tells everybody.

Rules:

1. One change at a time. It is computed on a copy and stored, and only then counts: answers, announcements and events
   follow the store.
2. Only the leader changes anything. A manager that finds itself deposed stops at once, and names the leader.
3. The manager waits for no federator. Announcements go out in the background, with a deadline. A federator that missed
   one finds it in the next answer to its poll or report.
4. Graph theory runs in a thread: a repair of 1,000 federators must not delay the event loop.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from hanse.errors import HanseError, Unavailable
from hanse.topology import changes
from hanse.topology.addresses import parse_address
from hanse.topology.admission import Gate, expel
from hanse.topology.announcements import TOPIC, compose, neighbor_of
from hanse.topology.audit import Actor, Audit, entries_of, expulsion
from hanse.topology.changes import Announcement, Change, Conflict, Peer, Rules
from hanse.topology.events import EventLog
from hanse.topology.gateways import GatewayBook, GatewayReport
from hanse.topology.groups import GroupBook, GroupReport
from hanse.topology.leadership import Candidacy, Leadership
from hanse.topology.metrics import Counters
from hanse.topology.model import Probe, State, Topology
from hanse.topology.probes import Prober, Target
from hanse.topology.problems import NotFound
from hanse.topology.repair import graph_of, is_connected, is_two_connected
from hanse.topology.rounds import Rounds, now
from hanse.topology.settings import ManagerSettings
from hanse.topology.store import AuditEntry, Deposed, Lease, Store
from hanse.topology.tokens import Credentials, Forbidden, is_credential, parse_credential

T = TypeVar("T")

log = logging.getLogger("hanse.manager")

POLL_WAIT_MAX_S = 30.0  # proxies cut a silent answer after 60 s
POLLS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a federator about itself."""

    peer: Peer
    epoch: int
    neighbors: tuple[Peer, ...]
    lost: tuple[int, ...] = ()
    groups: tuple[GroupReport, ...] | None = None
    broker_is_well: bool | None = None
    latency_ms: float | None = None
    gateway: str | None = None


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
        self.gateways = GatewayBook()
        self.counters = Counters()
        self.rules = Rules(settings.overlay_degree_max, settings.placement, settings.federators_max)
        self.leadership = Leadership(
            store,
            Candidacy(self.id, settings.advertised_url, settings.lease_s),
            on_take=self._take_over,
            on_follow=self._follow,
            on_lose=self._deposed,
        )
        self.audit = Audit(store)
        self.rounds = Rounds(self, store, make_prober)
        self._store = store
        self._requires_token = requires_token
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._polls = 0
        self._shape: tuple[int, tuple[bool, bool]] | None = None
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._sending: set[asyncio.Task[None]] = set()
        self.credentials = Credentials(b"\0" * 32)
        self.gate = Gate(store, self.credentials, is_required=requires_token)

    # Start and stop.

    async def start(self) -> None:
        """Read the store, try to lead, and begin to watch."""
        given = self.settings.secret
        secret = given.encode() if given else await self._store.read_secret(secrets.token_bytes(32))
        self.credentials = Credentials(secret)
        self.gate = Gate(self._store, self.credentials, is_required=self._requires_token)
        await self.leadership.step()
        self._tasks = [
            asyncio.create_task(self.leadership.run(), name="lease"),
            asyncio.create_task(self.rounds.run(), name="health"),
            asyncio.create_task(self.rounds.measure_lag(), name="lag"),
        ]

    def begin_stop(self) -> None:
        """End the answers that wait for something, so that the HTTP server can end."""
        self._is_stopping = True
        self.events.close()
        self._wake_polls()

    async def stop(self) -> None:
        """Release the lease and close everything except the store, which belongs to the caller."""
        self.begin_stop()
        for task in (*self._tasks, *self._sending):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._sending, return_exceptions=True)
        await self.rounds.prober.close()
        await self.leadership.release()

    @property
    def is_leading(self) -> bool:
        """Return whether this manager leads now."""
        return self.leadership.is_leading

    # Requests of federators.

    async def join(self, peer: Peer, shown: str | None, claimed: int | None, source: str = "") -> int:
        """Add a federator and return its id."""
        moment = now()
        async with self._lock:
            lease = self.leadership.lease()
            token = await self.gate.join(shown, peer.key, self.topology, moment.timestamp())
            known = self.topology.by_key(peer.key)
            if known is not None and known.state is State.REVOKED and token is None:
                raise Forbidden(f"Federator {known.id} was revoked; ask the operator for a token.")
            if shown is not None and is_credential(shown):
                # The federator was here before. If the store was lost, only its credential shows that.
                earlier = parse_credential(shown)
                peer = replace(peer, id=earlier.id, token=earlier.token)
            else:
                peer = replace(peer, id=claimed, token=token.id if token else None)
            change, node = await self.compute(lambda: changes.join(self.topology, peer, self.rules, moment))
            if token is not None and not await self._store.spend_token(token.id, moment.timestamp()):
                raise Forbidden("The token is expired, used up or revoked; ask the operator for another.")
            try:
                await self._commit(lease, change, Actor(f"federator {node}", source), _admission(peer))
            except HanseError:
                if token is not None:
                    with suppress(HanseError):
                        await self._store.refund_token(token.id)
                raise
        self.rounds.hear(node)
        if known is None:
            self.counters.joins += 1
        else:
            self.counters.rejoins += 1
        return node

    async def leave(self, node: int, shown: str | None, source: str = "") -> None:
        """Remove a federator that says it leaves."""
        await self._authorise(node, shown)
        actor = Actor(f"federator {node}", source)
        await self.change(lambda before: changes.lose(before, [node], State.LEFT, self.rules, now()), actor)
        self.counters.leaves += 1
        self.groups.forget([node])

    async def revoke(self, node: int, actor: Actor, *, keep_token: bool = False) -> str | None:
        """Expel a federator, and close the token that admitted it. Return the id of the token that was closed."""
        self.leadership.lease()
        one = self.topology.federators.get(node)
        if one is None:
            raise NotFound(f"There is no federator {node}; `hanse federator list` shows the existing ones.")
        closed = await expel(self._store, one, keep_token=keep_token)
        await self.audit.note(expulsion(one, closed, actor, time.time()))
        await self.change(lambda before: changes.lose(before, [node], State.REVOKED, self.rules, now()), actor)
        self.counters.revoked += 1
        self.groups.forget([node])
        return closed

    async def report(self, report: Report, shown: str | None, source: str = "") -> None:
        """Handle the report of a federator, which becomes the truth if the manager knows less."""
        node = report.peer.id
        assert node is not None
        self.leadership.lease()
        await self.gate.federator(shown, node, report.peer.key, self.topology)
        peer = report.peer
        if shown is not None:
            peer = replace(peer, token=parse_credential(shown).token)
        known_before = node in self.topology.federators
        try:
            change = await self.change(
                lambda before: changes.adopt(before, peer, report.epoch, report.neighbors, self.rules, now()),
                Actor(f"federator {node}", source),
            )
        except Conflict as error:
            self.tell("conflict", {"id": node, "ip": report.peer.ip, "detail": str(error)})
            raise
        self.counters.reports += 1
        self.gateways.note_listener(str(node), report.gateway)
        self.rounds.hear(node, is_well=report.broker_is_well, latency_ms=report.latency_ms)
        if report.groups is not None:
            self.groups.note(node, report.groups)
        if not change.is_empty and (not known_before or change.happenings):
            self.rounds.note_adopted()
        self.rounds.note_lost_links(node, report.lost)
        if self.topology.federators[node].state is State.GONE:
            self.rounds.suspect(node)  # it reports, so perhaps it is back

    async def poll(self, node: int, shown: str | None, after: int, wait_s: float) -> None:
        """Return when the federator's neighbours have changed after that epoch, or when the time is over."""
        await self._authorise(node, shown)
        if self._polls >= POLLS_MAX:
            raise Unavailable(f"{POLLS_MAX} federators already wait, which is the limit; poll without waiting.")
        self.rounds.hear(node)
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
        """Return the epoch at which the federator's neighbours last changed."""
        one = self.topology.federators.get(node)
        if one is None:
            raise NotFound(f"There is no federator {node}; join first.")
        return one.changed_epoch

    def word(self, node: int) -> dict[str, object]:
        """Return the reply for a federator: its neighbours and the federation's settings, under an epoch."""
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
        """Return whether the overlay is connected, and two-connected; computed once per epoch."""
        here = self.topology
        if self._shape is None or self._shape[0] != here.epoch:
            graph = await self.compute(lambda: graph_of(here.living(), here.links))
            found = await self.compute(lambda: (is_connected(graph), is_two_connected(graph)))
            self._shape = (here.epoch, found)
        return self._shape[1]

    async def list_audit(self, *, offset: int, limit: int) -> tuple[int, list[AuditEntry]]:
        """Return how many audit entries there are, and some of them, the newest first."""
        return await self._store.list_audit(offset=offset, limit=limit)

    # Gateways.

    def report_gateway(self, name: str, report: GatewayReport) -> dict[str, object]:
        """Take the report of a gateway, and return what all gateways must know alike."""
        self.leadership.lease()
        self.gateways.report(name, report, self._broker_urls(), time.time())
        return self.gateway_plan()

    def gateway_plan(self) -> dict[str, object]:
        """Return what all gateways must know alike."""
        book = self.gateways
        entries = []
        for broker, url in self._broker_urls().items():
            drain = book.drain(broker)
            word = None if drain is None else {"drained": drain.is_drained, "rate": drain.rate, "at": drain.at_s}
            entries.append(
                {
                    "id": broker,
                    "url": url,
                    "state": book.state(broker),
                    "drain": word,
                    "federator": book.listener(broker),
                }
            )
        return {"version": book.version, "brokers": entries}

    def _broker_urls(self) -> dict[str, str]:
        """Return the address of each broker that belongs to the federation, by its federator's id."""
        known = self.topology.federators.values()
        return {str(one.id): one.ip for one in known if one.state not in (State.LEFT, State.REVOKED)}

    async def _authorise(self, node: int, shown: str | None) -> None:
        self.leadership.lease()
        one = self.topology.federators.get(node)
        if one is None:
            raise NotFound(f"There is no federator {node}; join first.")
        await self.gate.federator(shown, node, one.key, self.topology)

    # Changes of the topology.

    async def change(self, make: Callable[[Topology], Change], actor: Actor | None = None) -> Change:
        """Compute a change and store it (rules 1 and 2). Without an actor, it is the manager's own."""
        async with self._lock:
            lease = self.leadership.lease()
            begin_s = time.perf_counter()
            change = await self.compute(lambda: make(self.topology))
            if not change.is_empty:
                self.counters.repair_s = time.perf_counter() - begin_s
            await self._commit(lease, change, actor or Actor(f"manager {self.id}"))
            return change

    async def measure(self, latency_ms: Mapping[int, float], checked: Sequence[int]) -> None:
        """Store the measurements of a health round."""
        async with self._lock:
            lease = self.leadership.lease()
            self.topology = changes.measured(self.topology, latency_ms, checked, now())
            written = [one for node in checked if (one := self.topology.federators.get(node)) is not None]
            if written:
                await self._store.record_health(lease, written)

    async def compute(self, make: Callable[[], T]) -> T:
        """Run a computation (rule 4). Below a hundred federators, a thread costs more than it saves."""
        if len(self.topology.federators) < 100:
            return make()
        return await asyncio.to_thread(make)

    async def _commit(
        self, lease: Lease, change: Change, actor: Actor, detail: Mapping[str, object] | None = None
    ) -> None:
        if change.is_empty:
            return
        try:
            await self._store.commit(lease, change.topology, change.changed, change.forgotten)
        except Deposed:
            self.leadership.step_down()
            raise
        except Unavailable:
            self.counters.store_errors += 1
            raise
        self.topology = change.topology
        for happening in change.happenings:
            self.tell(happening.kind, happening.data)
        self._wake_polls()
        self._announce(change.announcements)
        entries = entries_of(change, actor, time.time())
        if entries and detail:
            entries[0] = replace(entries[0], detail={**entries[0].detail, **detail})
        await self.audit.note(entries)

    def _wake_polls(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def tell(self, kind: str, data: Mapping[str, object]) -> None:
        """Send an event to the watchers."""
        self.events.tell(kind, self.topology.epoch, data)

    def _announce(self, announcements: Sequence[Announcement]) -> None:
        """Apply rule 3."""
        around = self.topology.neighbor_map() if announcements else {}
        for announcement in announcements:
            one = self.topology.federators[announcement.to]
            if one.probe is Probe.SELF:
                continue  # behind NAT: its open poll has been woken
            credential = self.credentials.issue(one.id, one.key, one.token)
            payload = compose(announcement, self.topology, around[one.id], credential, self.id)
            task = asyncio.create_task(self._send(Target(one.id, one.key, one.probe), payload))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, target: Target, payload: bytes) -> None:
        if await self.rounds.prober.publish(target, TOPIC, payload, self.settings.probe_timeout_s):
            self.counters.announcements += 1
        else:
            self.counters.announcements_failed += 1

    # Leadership.

    async def _take_over(self, lease: Lease) -> None:
        """Take over with the lease just taken, before this manager counts as leading."""
        async with self._lock:
            topology = await self._store.load(lease)
            # Beyond every epoch stored, and beyond the clock's seconds in case the store was lost.
            self.topology = replace(topology, epoch=max(topology.epoch + 1, int(time.time())))
            await self._store.commit(lease, self.topology, [], [])
        self.rounds.begin()
        self.gateways.begin(time.time())
        self.counters.takeovers += 1
        self.tell("leading", {"manager": self.id, "term": lease.term})
        entry = AuditEntry(time.time(), f"manager {self.id}", "", "leading", f"term {lease.term}", {})
        await self.audit.note([entry])
        log.info("manager %s leads, term %d, epoch %d", self.id, lease.term, self.topology.epoch)
        self._wake_polls()

    async def _follow(self) -> None:
        self.topology = await self._store.load(None)
        self._wake_polls()

    def _deposed(self, lease: Lease) -> None:
        log.warning("manager %s no longer leads, term %d", self.id, lease.term)
        self.tell("deposed", {"manager": self.id})


def _admission(peer: Peer) -> dict[str, object]:
    """Return the details of a join for the audit log, beside id and address. `token` would be hidden in a log line."""
    return {"link": peer.link or "none", "probe": peer.probe.value, "admitted_by": peer.token or "nobody"}


def peer_of(ip: str, *, node: int | None, link: str | None, probe: Probe = Probe.BROKER) -> Peer:
    """Return a federator as it names itself, with checked addresses. Raise RemoteError for a bad one."""
    key = parse_address(ip).url
    if link is not None:
        parse_address(link)
    return Peer(ip, key, node, link, probe)
