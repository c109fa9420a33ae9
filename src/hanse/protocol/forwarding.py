"""The data path: from runs of publications to frames per neighbour and local deliveries, in batches.

The control side owns who is a neighbour in which mesh; this side reads it through `Table` and caches what it reads:
topic to plan for what the host broker hands in, groups to plan for what a link hands in. `invalidate` empties the
caches whenever the control side changed anything that a plan depends on.

The rules (docs/protocol.md R25 to R31):

- No event, effect or log line per message; a transit hop passes bytes on.
- Never back to the sender; a later copy only for groups that are new to it; delivered locally once.
- A publication that has no way now is parked, within limits, and every drop is counted.

Plain tuples, dictionaries and local variables throughout: bench/bench_route.py measures it.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hanse.errors import RemoteError
from hanse.protocol.accounts import DROPPED, HOST, PIECE, Accounts, Stream, Use, Way
from hanse.protocol.messages import Publication, Run
from hanse.protocol.packets import split, topic_of
from hanse.protocol.seen import Done, SeenIds
from hanse.protocol.settings import Settings
from hanse.protocol.topics import check_name, may_cross

PLANS_MAX = 65_536

_new_tuple = tuple.__new__
_NO_USE: Use = [0, 0]


class Table(Protocol):
    """What the control side tells the data path."""

    def match(self, topic: str) -> tuple[str, ...]:
        """The groups that a topic belongs to, of all that anybody claims."""

    def is_known(self, group: str) -> bool:
        """Whether this federator has heard of the group at all."""

    def is_local(self, group: str) -> bool:
        """Whether the host broker's clients are interested in the group."""

    def is_member(self, group: str) -> bool:
        """Whether this federator is in the group's mesh."""

    def hops(self, group: str) -> tuple[tuple[int, ...], bool]:
        """The neighbours that a publication of the group goes to, and whether it must wait for a way."""

    def absent(self, group: str) -> tuple[int, ...]:
        """The neighbours of the group's mesh whose link is down."""

    def hop_limit(self) -> int:
        """The number of hops beyond which a publication is dropped (R29)."""


class Routed(NamedTuple):
    """What one batch became."""

    frames: dict[int, list[Run]]
    deliveries: list[Run]


class Plan(NamedTuple):
    """Where the publications of some groups go from here."""

    groups: tuple[str, ...]
    hops: tuple[tuple[int, tuple[str, ...]], ...]
    is_local: bool
    blocked: tuple[str, ...]
    done: Done
    has_unknown: bool
    # The neighbours of `hops` where each gets all groups and nothing waits: the common case.
    uniform: tuple[int, ...]
    # The accounts: what all this means, its uses by stream, and the use by our own publications.
    way: Way
    uses: dict[Stream, Use]
    own: Use


class _Parked(NamedTuple):
    expires_at: float
    source: int
    run: Run


class Forwarding:
    """The data path of one federator."""

    def __init__(self, identity: int, epoch: int, settings: Settings, table: Table, counters: Counter[str]) -> None:
        self.identity = identity
        self.epoch = epoch
        self.next_id = 0
        self._settings = settings
        self._table = table
        self._counters = counters
        self._seen = SeenIds(settings.seen_s, settings.seen_ids_max)
        self._topic_plans: dict[str, Plan] = {}
        self._link_plans: dict[tuple[int, tuple[str, ...]], Plan] = {}
        self._parked: deque[_Parked] = deque()
        self._parked_bytes = 0
        # 0 where it has to be asked for anew.
        self._hop_limit = 0
        self.accounts = Accounts()

    # --- what the control side does ---------------------------------------------------------------------------

    def invalidate(self) -> None:
        """The control side changed: no plan holds any longer."""
        self._topic_plans.clear()
        self._link_plans.clear()
        self._hop_limit = 0

    def begin_epoch(self, epoch: int) -> None:
        """Ids start anew under a new epoch (R1)."""
        self.epoch = epoch
        self.next_id = 0
        self.invalidate()  # plans hold accounts of the old epoch

    def forget(self, now: float) -> None:
        """Once a round: drop what is too old to be remembered or to wait."""
        self._seen.forget(now)
        while self._parked and self._parked[0].expires_at <= now:
            self._drop_parked("parked_expired", "parked_expired")

    def retry_parked(self) -> dict[int, list[Run]]:
        """Frames for what was parked and now has a way, in the order in which it was parked (R30)."""
        frames: dict[int, list[Run]] = {}
        waiting, self._parked = self._parked, deque()
        self._parked_bytes = 0
        for parked in waiting:
            plan = self._plan(parked.run.groups, parked.source)
            self._spread(plan, parked.run, frames)
            if plan.hops or not plan.blocked:
                self.accounts.use(plan.way._replace(source=PIECE, blocked=()), parked.run)
            if plan.blocked:
                self._keep(parked._replace(run=parked.run._replace(groups=plan.blocked)))
        return frames

    @property
    def parked_bytes(self) -> int:
        """How much waits for a way."""
        return self._parked_bytes

    def waiting(self) -> list[Run]:
        """The runs that wait for a way."""
        return [parked.run for parked in self._parked]

    # --- publications from the host broker ----------------------------------------------------------------------

    def publish(self, now: float, publications: Sequence[Publication]) -> Routed:
        """Route what clients published at the host broker: match, number, and spread (R25, R26)."""
        frames: defaultdict[int, list[Run]] = defaultdict(list)
        self.accounts.now = now
        plans = self._topic_plans
        plan: Plan | None = None
        qos = -1
        packets: list[bytes] = []
        for topic, packet_qos, packet in publications:
            new_plan = plans.get(topic)
            if new_plan is None:
                new_plan = self._plan_topic(topic)
            if new_plan is plan and packet_qos == qos:
                packets.append(packet)
                continue
            if packets and plan is not None:
                self._number(now, plan, qos, packets, frames)
            plan, qos, packets = new_plan, packet_qos, [packet]
        if packets and plan is not None:
            self._number(now, plan, qos, packets, frames)
        self._counters["published"] += len(publications)
        return Routed(dict(frames), [])

    def publish_to(self, now: float, group: str, qos: int, packets: list[bytes]) -> Routed:
        """Send packets to one group whatever their topics: for what one federator tells others."""
        frames: defaultdict[int, list[Run]] = defaultdict(list)
        self._number(now, self._plan((group,), HOST), qos, packets, frames)
        return Routed(dict(frames), [])

    def _number(
        self, now: float, plan: Plan, qos: int, packets: list[bytes], frames: defaultdict[int, list[Run]]
    ) -> None:
        count = len(packets)
        if not plan.hops and not plan.blocked:
            self._counters["not_wanted"] += count
            return
        body = packets[0] if count == 1 else b"".join(packets)
        if len(body) > self._settings.message_bytes_max:
            packets = [packet for packet in packets if len(packet) <= self._settings.message_bytes_max]
            self._counters["dropped_too_large"] += count - len(packets)
            for measure in ("published", f"{DROPPED}too_large") if len(packets) < count else ():
                self.accounts.add(measure, (self.identity, self.epoch), plan.groups, count - len(packets), 0)
            count, body = len(packets), b"".join(packets)
            if not count:
                return
        first = self.next_id
        self.next_id = first + count
        use = plan.own
        use[0] += count
        use[1] += len(body)
        # A named tuple's own constructor costs as much as the rest of this function.
        run = _new_tuple(Run, (self.identity, self.epoch, first, count, qos, 1, plan.groups, body))
        if plan.uniform:
            for neighbour in plan.uniform:
                frames[neighbour].append(run)
            return
        for neighbour, groups in plan.hops:
            frames[neighbour].append(run if groups is plan.groups else run._replace(groups=groups))
        if plan.blocked:
            self._park(now, HOST, run._replace(groups=plan.blocked))

    def _plan_topic(self, topic: str) -> Plan:
        # A wide filter such as # brings in topics that never cross (R32).
        plan = self._plan(self._table.match(topic) if may_cross(topic) else (), HOST)
        if len(self._topic_plans) >= PLANS_MAX:
            self._topic_plans.clear()
        self._topic_plans[topic] = plan
        return plan

    # --- runs from a neighbour ----------------------------------------------------------------------------------

    def forward(self, now: float, neighbour: int, runs: Sequence[Run]) -> Routed:
        """Route what a link handed in: suppress what was here before, deliver, and pass on (R26 to R29)."""
        frames: dict[int, list[Run]] = {}
        deliveries: list[Run] = []
        counters = self._counters
        accounts = self.accounts
        accounts.now = now
        hop_limit = self._hop_limit
        if not hop_limit:
            hop_limit = self._hop_limit = self._table.hop_limit()
        for run in runs:
            origin, epoch, first, count, _, hops, groups, body = run
            counters["received"] += count
            if origin == self.identity:
                counters["duplicates"] += count
                self._refuse(neighbour, run, "duplicate")
                continue
            if hops > hop_limit:
                counters["dropped_hops"] += count
                self._refuse(neighbour, run, f"{DROPPED}hops")
                continue
            window = self._seen.window(origin, epoch)
            if window is None:
                counters["refused_old"] += count
                self._refuse(neighbour, run, f"{DROPPED}too_old")
                continue
            plan = self._link_plans.get((neighbour, groups))
            if plan is None:
                plan = self._plan_link(neighbour, groups)
            if plan.has_unknown:
                accounts.count("received", run, neighbour=neighbour)
                self._forward_by_topic(now, neighbour, run, frames, deliveries)
            elif window.record_if_new(now, first, count, plan.done):
                use = plan.uses.get((origin, epoch))
                if use is None:
                    use = accounts.begin(plan.uses, plan.way, (origin, epoch))
                use[0] += count
                use[1] += len(body)
                self._pass_on(now, neighbour, plan, run, frames)
                if plan.is_local:
                    deliveries.append(run)
            else:
                accounts.count("received", run, neighbour=neighbour)
                self._forward_pieces(now, neighbour, groups, run, frames, deliveries)
        return Routed(frames, deliveries)

    def _refuse(self, neighbour: int, run: Run, measure: str) -> None:
        self.accounts.count("received", run, neighbour=neighbour)
        self.accounts.count(measure, run)

    def _forward_by_topic(
        self, now: float, neighbour: int, run: Run, frames: dict[int, list[Run]], deliveries: list[Run]
    ) -> None:
        """A group of the run is unknown here: each topic is matched anew (R28)."""
        named = tuple([group for group in run.groups if self._table.is_known(group)])
        for offset, (start, end) in enumerate(split(run.body)):
            packet = run.body[start:end]
            try:
                topic = topic_of(packet)
                check_name(topic)
            except RemoteError:
                self._counters["rejected_packet"] += 1
                self.accounts.count(f"{DROPPED}malformed", run._replace(length=1, body=packet))
                continue
            found = self._table.match(topic) if may_cross(topic) else ()  # R32
            matched = tuple([group for group in found if group not in named])
            if not named and not matched:
                self._counters["dropped_unknown_group"] += 1
                self.accounts.count(f"{DROPPED}unknown_group", run._replace(length=1, body=packet))
                continue
            single = run._replace(first=run.first + offset, length=1, body=packet)
            if named:
                self._forward_pieces(now, neighbour, named, single, frames, deliveries)
            if matched:
                # The sender served none of these, so it may need the publication itself: as from the host.
                self._forward_pieces(now, HOST, matched, single, frames, deliveries)

    def _forward_pieces(
        self,
        now: float,
        neighbour: int,
        groups: tuple[str, ...],
        run: Run,
        frames: dict[int, list[Run]],
        deliveries: list[Run],
    ) -> None:
        """Some of the run has been here before: treat each stretch by what was done with it (R27)."""
        window = self._seen.window(run.origin, run.epoch)
        assert window is not None, "forward() has just had it"
        spans = split(run.body)
        for first, count, done in list(window.pieces(run.first, run.length)):
            stream = run.origin, run.epoch
            if done is None:
                self._counters["refused_old"] += count
                self.accounts.add(f"{DROPPED}too_old", stream, groups, count, 0)
                continue
            served, was_delivered = done
            fresh = tuple([group for group in groups if group not in served])
            if not fresh:
                self._counters["duplicates"] += count
                self.accounts.add("duplicate", stream, groups, count, 0)
                continue
            plan = self._plan_link(neighbour, fresh)
            low, high = first - run.first, first - run.first + count - 1
            piece = run._replace(first=first, length=count, groups=fresh, body=run.body[spans[low][0] : spans[high][1]])
            self.accounts.use(plan.way._replace(source=PIECE), piece)
            self._pass_on(now, neighbour, plan, piece, frames)
            if plan.is_local and not was_delivered:
                deliveries.append(piece)
            elif plan.is_local:
                self.accounts.count("merged", piece, tuple(filter(self._table.is_local, fresh)))
            window.record(now, first, count, (served | plan.done[0], was_delivered or plan.is_local))

    def _pass_on(self, now: float, neighbour: int, plan: Plan, run: Run, frames: dict[int, list[Run]]) -> None:
        if plan.hops:
            self._spread(plan, run._replace(hops=run.hops + 1), frames)
        if plan.blocked:
            self._park(now, neighbour, run._replace(hops=run.hops + 1, groups=plan.blocked))

    def _spread(self, plan: Plan, run: Run, frames: dict[int, list[Run]]) -> None:
        for neighbour, groups in plan.hops:
            frames.setdefault(neighbour, []).append(run if groups == run.groups else run._replace(groups=groups))

    def _plan_link(self, neighbour: int, groups: tuple[str, ...]) -> Plan:
        key = (neighbour, groups)
        plan = self._link_plans.get(key)
        if plan is None:
            if len(self._link_plans) >= PLANS_MAX:
                self._link_plans.clear()
            plan = self._link_plans[key] = self._plan(groups, neighbour)
        return plan

    # --- plans and parking ----------------------------------------------------------------------------------------

    def plan(self, groups: tuple[str, ...], source: int) -> Plan:
        """Where publications of these groups would go from here, coming from a source: what a probe follows."""
        return self._plan(groups, source)

    def _plan(self, groups: tuple[str, ...], source: int) -> Plan:
        table = self._table
        by_neighbour: dict[int, list[str]] = {}
        absent: dict[int, list[str]] = {}
        blocked = []
        for group in groups:
            for neighbour in table.absent(group):
                absent.setdefault(neighbour, []).append(group)
            neighbours, is_blocked = table.hops(group)
            for neighbour in neighbours:
                if neighbour != source:
                    by_neighbour.setdefault(neighbour, []).append(group)
            # An outsider whose only way leads back to the sender waits too: the ways are changing.
            if is_blocked or (neighbours == (source,) and not table.is_member(group)):
                blocked.append(group)
        hops = []
        for neighbour in sorted(by_neighbour):
            served = tuple(by_neighbour[neighbour])
            hops.append((neighbour, groups if served == groups else served))
        is_uniform = not blocked and all(served is groups for _, served in hops)
        uniform = tuple(neighbour for neighbour, _ in hops) if is_uniform else ()
        is_local = any(map(table.is_local, groups))
        has_unknown = not all(map(table.is_known, groups))
        way = Way(
            source, groups, tuple(hops), is_local, tuple(blocked), tuple((n, tuple(absent[n])) for n in sorted(absent))
        )
        uses = self.accounts.uses(way)
        own = _NO_USE
        if source == HOST and (hops or blocked):
            stream = self.identity, self.epoch
            own = uses.get(stream) or self.accounts.begin(uses, way, stream)
        done = (frozenset(groups), is_local)
        return Plan(groups, way.hops, is_local, way.blocked, done, has_unknown, uniform, way, uses, own)

    def _park(self, now: float, source: int, run: Run) -> None:
        """Keep a run until there is a way, within the limits; the oldest goes first (R30)."""
        settings = self._settings
        wait_s = (settings.expiry_factor + 2) * settings.announcement_interval_s
        self._counters["parked"] += run.length
        self._keep(_Parked(now + wait_s, source, run))
        while self._parked_bytes > settings.parked_bytes_max:
            self._drop_parked("dropped_parked_full", "parked_full")

    def _keep(self, parked: _Parked) -> None:
        self._parked.append(parked)
        self._parked_bytes += len(parked.run.body)

    def _drop_parked(self, counter: str, reason: str) -> None:
        parked = self._parked.popleft()
        self._parked_bytes -= len(parked.run.body)
        self._counters[counter] += parked.run.length
        self.accounts.count(f"{DROPPED}{reason}", parked.run)
