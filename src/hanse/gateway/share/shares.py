"""The members of share groups among one worker's clients, and the brokers that serve the groups.

Rules:

1. The serving broker of a group is the first live one in the order of the rendezvous hash of (name, filter), over the
   brokers of the directory. Every gateway with the same directory makes the same choice.
2. When the serving broker changes, a member subscribes at the new one before it unsubscribes at the old one. While
   members use different brokers, messages arrive twice.
3. When a serving broker or a second session is lost, the member joins again at the broker that the directory gives.
   Then one member of the group, at one gateway, gets the publications that federators retain from `GAP_S` before the
   loss on, except those that this worker has delivered.
4. The unacknowledged publications of a client that leaves go to another member of this worker.
5. A client whose deliveries are not acknowledged, or that reads slowly, holds its second sessions.
6. Requests of one client are served in their order.
7. The second session ends with the client's connection. If the client's own session lasts, its groups are remembered
   for as long, and joined again when its broker reports that the session is present.
"""

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, cast

from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.brokers.directory import Directory
from hanse.gateway.federators import Federators
from hanse.gateway.front.connect import Connect
from hanse.gateway.placement import Broker, Query, choose
from hanse.gateway.session.publication import read_publish, without, write_publish
from hanse.gateway.session.replayed import Replayed
from hanse.gateway.share.delivered import Delivered
from hanse.gateway.share.link import ANSWER_S, ShareLink
from hanse.gateway.share.tap import SHARE, Asked, Delivery, ShareTap
from hanse.mqtt.properties import varint
from hanse.protocol.topics import matches

# For a SUBSCRIBE, over all attempts. Clients give up after 10 to 30 s.
REQUEST_S: Final = 10.0
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
# Deliveries that wait for one client before its second sessions are not read.
WAITING_MAX: Final = 1_000
# Sessions whose groups are remembered without their clients; the oldest is forgotten first.
REMEMBERED_MAX: Final = 10_000
# Maximum lag of a member whose queue a lost broker may have acknowledged and not delivered. A longer time repeats more
# deliveries of other gateways.
GAP_S: Final = 1.0
# Second sessions that are being opened at once.
DIALS_MAX: Final = 50
# Reason codes: not authorized; implementation specific error.
NOT_AUTHORIZED: Final = 0x87
FAILED: Final = 0x83

# Properties of a PUBLISH that belong to one subscription.
_OF_SUBSCRIPTION: Final = frozenset({0x0B})

_log = logging.getLogger(__name__)

# Asks federators for retained publications: given the new broker, the lost one, the filter, and the age in
# milliseconds.
Replay = Callable[[str, str, str, int], Awaitable[list[Replayed]]]


class ShareClient(Protocol):
    """A client's connection, as this module needs it."""

    tap: ShareTap | None

    @property
    def is_full(self) -> bool:
        """Return whether the client accepts no more bytes now."""

    def flush_tap(self) -> None:
        """Write the tap's data for the client."""


class Group:
    """A `$share` filter of one member.

    Attributes:
        broker_id: the broker where the member has it now; empty for none.
        qos: the granted QoS.
        lost_at: time from which messages may be missing, because `lost_id` was lost; 0 if none are.
    """

    __slots__ = ("broker_id", "identifier", "key", "lost_at", "lost_id", "options", "qos", "wanted")

    def __init__(self, pattern: bytes, options: int, identifier: int) -> None:
        self.key = key_of(pattern)
        self.wanted = pattern[len(SHARE) :].partition(b"/")[2].decode("utf-8", "replace")
        self.options = options
        self.identifier = identifier
        self.broker_id = ""
        self.qos = 0
        self.lost_at = 0.0
        self.lost_id = ""


class Member:
    """One client with its share groups."""

    def __init__(self, client: ShareClient, connect: Connect, client_id: bytes, tap: ShareTap) -> None:
        self.client = client
        self.connect = connect
        self.client_id = client_id
        self.tap = tap
        self.groups: dict[bytes, Group] = {}
        self.links: dict[str, ShareLink] = {}
        self.lock = asyncio.Lock()
        self.early: list[Asked] = []
        self.is_accepted = False
        self.is_gone = False
        self.is_joining = False


class Shares:
    """All share groups of one worker.

    Args:
        directory: the brokers.
        dialler: dials them.
        federators: receive the interest of the second sessions.
        look_at: asks the supervisor to judge a broker now.
        replay: see `Replay`; None without federators.
        hang_s: time for which a broker may have been hung before the verdict.
        holds_suback: whether a SUBACK waits for the barrier.
        clock: the time in seconds.

    Attributes:
        counters: `joined`, `moved`, `lost`, `refused`, `failed`, `redelivered`, `undelivered`, `qos0_dropped`,
            `replayed`, `replay_removed` and `forgotten`.
    """

    def __init__(
        self,
        directory: Directory,
        dialler: Dialler,
        federators: Federators,
        *,
        look_at: Callable[[str], None],
        replay: Replay | None,
        hang_s: float,
        holds_suback: bool,
        clock: Callable[[], float],
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._directory = directory
        self._dialler = dialler
        self._federators = federators
        self._look_at = look_at
        self._replay = replay
        self._hang_s = hang_s
        self._holds_suback = holds_suback
        self._delivered = Delivered()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._members: dict[ShareClient, Member] = {}
        self._by_tap: dict[ShareTap, Member] = {}
        self._by_pattern: dict[bytes, set[Member]] = {}
        # Groups of sessions whose clients are away, and the time until which they are kept, by client id.
        self._remembered: dict[bytes, tuple[float, dict[bytes, Group]]] = {}
        self._filled_at: dict[bytes, float] = {}
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- clients ------------------------------------------------------------------------------------------------------

    def begin(self, client: ShareClient, connect: Connect, client_id: bytes) -> ShareTap:
        """Take over a client."""
        tap = ShareTap(connect.level, connect.receive_max, self)
        member = self._members[client] = self._by_tap[tap] = Member(client, connect, client_id, tap)
        member.client.tap = tap
        return tap

    def accepted(self, client: ShareClient, *, session_present: bool) -> None:
        """Take note that the client's broker has accepted it: until then, its requests wait."""
        member = self._members.get(client)
        if member is None:
            return
        member.is_accepted = True
        until, remembered = self._remembered.pop(member.client_id, (0.0, {}))
        if session_present and until > self._clock():
            member.groups = remembered
            for pattern in remembered:
                self._by_pattern.setdefault(pattern, set()).add(member)
            self._rejoin(member)
        early, member.early = member.early, []
        for asked in early:
            self._run(self._serve(member, asked))

    def end(self, client: ShareClient, expiry_s: int | None) -> None:
        """Take note that the client is gone (rules 4 and 7).

        Args:
            client: the client.
            expiry_s: how long its session lasts; None without end.
        """
        member = self._members.pop(client, None)
        if member is None:
            return
        if expiry_s != 0 and member.groups:
            self._remember(member, math.inf if expiry_s is None else self._clock() + expiry_s)
        del self._by_tap[member.tap]
        member.is_gone = True
        for link in list(member.links.values()):
            link.close()
        for pattern in member.groups:
            self._forget(member, pattern)
        for delivery in member.tap.undelivered():
            self._hand_on(member, delivery)

    def _remember(self, member: Member, until: float) -> None:
        groups = {one: Group(one, group.options, group.identifier) for one, group in member.groups.items()}
        self._remembered.pop(member.client_id, None)
        self._remembered[member.client_id] = until, groups
        if len(self._remembered) > REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
            self.counters["forgotten"] += 1

    async def stop(self) -> None:
        """End everything."""
        for client in list(self._members):
            self.end(client, 0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def flushed(self, client: ShareClient) -> None:
        """Hold or resume the second sessions of a client whose state has changed (rule 5)."""
        member = self._members.get(client)
        if member is not None and member.links:
            is_wanted = not client.is_full and member.tap.waiting < WAITING_MAX
            for link in member.links.values():
                link.set_reading(is_wanted)

    def start(self) -> None:
        """Begin to look after the second sessions."""
        self._run(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = self._clock()
            for member in list(self._members.values()):
                for link in list(member.links.values()):
                    link.tick(now)

    # --- requests -----------------------------------------------------------------------------------------------------

    def share_requested(self, tap: ShareTap, asked: Asked) -> None:
        """Subscribe or unsubscribe, and report the codes to the tap."""
        member = self._by_tap[tap]
        if member.is_accepted:
            self._run(self._serve(member, asked))
        else:
            member.early.append(asked)

    async def _serve(self, member: Member, asked: Asked) -> None:
        async with member.lock:
            if asked.is_subscribe:
                codes = await self._subscribe(member, asked)
            else:
                codes = await self._unsubscribe(member, [one for _, one, _ in asked.shares])
        if not member.is_gone:
            member.tap.answered(asked, codes)
            member.client.flush_tap()

    async def _subscribe(self, member: Member, asked: Asked) -> list[int]:
        codes: dict[bytes, int] = {}
        left = {pattern: Group(pattern, options, asked.identifier) for _, pattern, options in asked.shares}
        until = self._clock() + REQUEST_S
        while left and not member.is_gone:
            for broker, patterns in self._by_broker(left):
                codes |= await self._join(member, broker, {one: left[one] for one in patterns})
            left = {pattern: group for pattern, group in left.items() if pattern not in codes}
            if self._clock() >= until:
                self.counters["failed"] += len(left)
                break
            if left:
                await asyncio.sleep(RETRY_FIRST_S)
        return [codes.get(pattern, FAILED) for _, pattern, _ in asked.shares]

    async def _join(self, member: Member, broker: Broker, groups: dict[bytes, Group]) -> dict[bytes, int]:
        """Subscribe at a serving broker; return the codes of the filters that the broker answered."""
        try:
            link = await self._link(member, broker)
            asked = [(pattern, group.options) for pattern, group in groups.items()]
            # One SUBSCRIBE has one identifier.
            codes: dict[bytes, int] = {}
            for identifier in dict.fromkeys(group.identifier for group in groups.values()):
                part = [one for one in asked if groups[one[0]].identifier == identifier]
                codes |= dict(zip((one[0] for one in part), await link.subscribe(part, identifier), strict=True))
        except RemoteError as error:
            _log.warning("a second session was refused", extra={"reason": str(error)})
            self.counters["refused"] += 1
            return dict.fromkeys(groups, NOT_AUTHORIZED)
        except Unavailable as error:
            _log.info("a second session failed", extra={"broker": broker.id, "reason": str(error)})
            self._look_at(broker.id)
            return {}
        if not link.is_open or member.is_gone:
            return {}
        granted = [pattern for pattern, code in codes.items() if code < 0x80]
        # At once: if the link is lost from now on, these groups are lost with it.
        former: list[tuple[bytes, str]] = []
        for pattern in granted:
            group = groups[pattern]
            known = member.groups.get(pattern)
            if known is not None and known is not group and known.broker_id not in ("", broker.id):
                former.append((pattern, known.broker_id))
            group.broker_id = broker.id
            group.qos = codes[pattern]
            member.groups[pattern] = group
            self._by_pattern.setdefault(pattern, set()).add(member)
            self.counters["joined"] += 1
        told = self._federators.subscribed(link, [(pattern, codes[pattern]) for pattern in granted])
        if self._holds_suback and told and not any(group.lost_at for group in groups.values()):
            # A federator without its broker passes no barrier; and after a loss there is no time.
            await self._federators.barrier(broker.id, told)
        for pattern, broker_id in former:
            await self._leave(member, broker_id, pattern)
        return codes

    async def _unsubscribe(self, member: Member, patterns: list[bytes]) -> list[int]:
        codes: dict[bytes, int] = {}
        for pattern in patterns:
            group = member.groups.pop(pattern, None)
            if group is None:
                codes[pattern] = 0x11  # no subscription existed
                continue
            self._forget(member, pattern)
            codes[pattern] = await self._leave(member, group.broker_id, pattern)
        return [codes[pattern] for pattern in patterns]

    async def _leave(self, member: Member, broker_id: str, pattern: bytes) -> int:
        link = member.links.get(broker_id)
        if link is None:
            return 0
        self._federators.unsubscribed(link, [pattern])
        try:
            (code,) = await link.unsubscribe([pattern])
        except Unavailable:
            return 0
        if not link.filters:
            member.links.pop(broker_id, None)
            link.close()
        return code

    def _forget(self, member: Member, pattern: bytes) -> None:
        members = self._by_pattern.get(pattern)
        if members is not None:
            members.discard(member)
            if not members:
                del self._by_pattern[pattern]
                self._filled_at.pop(pattern, None)

    # --- second sessions ----------------------------------------------------------------------------------------------

    async def _link(self, member: Member, broker: Broker) -> ShareLink:
        link = member.links.get(broker.id)
        if link is not None and link.is_open:
            return link
        link = ShareLink(broker.id, member.connect, member.client_id, member, self._deliver, self._lost)
        member.links[broker.id] = link
        try:
            async with self._dials:
                await self._dialler.dial(broker.url, lambda: link)
                await link.wait_accepted()
        except BaseException:
            if member.links.get(broker.id) is link:
                del member.links[broker.id]
            link.abort()
            raise
        if member.is_gone:
            link.close()
            raise Unavailable("The client is gone.")
        self._federators.accepted(link, broker.id, link.client_id, is_complete=True, expiry_s=0)
        return link

    def _deliver(self, link: ShareLink, packet: bytes, qos: int, broker_id: int) -> None:
        member = cast("Member", link.owner)
        if member.is_gone:
            return
        if not qos and member.client.is_full:
            self.counters["qos0_dropped"] += 1
            return
        if qos and self._replay is not None:
            self._delivered.add(self._clock(), link, packet, member.connect.level)
        member.tap.deliver(link, packet, qos, broker_id)
        member.client.flush_tap()

    def _lost(self, link: ShareLink) -> None:
        member = cast("Member", link.owner)
        is_wanted = not member.is_gone and member.links.get(link.broker_id) is link
        # The interest stays for a moment, so that publications are retained until the next broker serves the group.
        self._federators.left(link, 0, is_moving=is_wanted)
        self._federators.forget(link, 0)
        member.tap.link_lost(link)
        if not is_wanted:
            return
        del member.links[link.broker_id]
        lost_at = self._clock()
        if link.is_hung:
            lost_at = max(link.heard_at, lost_at - self._hang_s)
        lost = [group for group in member.groups.values() if group.broker_id == link.broker_id]
        for group in lost:
            group.broker_id = ""
            if not group.lost_at:
                group.lost_at, group.lost_id = lost_at, link.broker_id
        if lost:
            self.counters["lost"] += 1
            self._look_at(link.broker_id)
            self._rejoin(member)

    # --- serving brokers ----------------------------------------------------------------------------------------------

    def serving(self, key: bytes) -> Broker | None:
        """Return the broker that serves a group (rule 1)."""
        return choose(Query(key), self._directory.members)

    def _by_broker(self, groups: dict[bytes, Group]) -> list[tuple[Broker, list[bytes]]]:
        found: dict[Broker, list[bytes]] = {}
        for pattern, group in groups.items():
            broker = self.serving(group.key)
            if broker is not None:
                found.setdefault(broker, []).append(pattern)
        return list(found.items())

    def review(self) -> None:
        """Follow the directory (rules 1 to 3)."""
        down = {view.broker.id for view in self._directory.views if view.verdict != "up"}
        for member in list(self._members.values()):
            for broker_id in down.intersection(member.links):
                # A broker that hangs closes no connection.
                member.links[broker_id].is_hung = True
                member.links[broker_id].abort()
            if member.groups and any(self._is_misplaced(group) for group in member.groups.values()):
                self._rejoin(member)

    def _is_misplaced(self, group: Group) -> bool:
        broker = self.serving(group.key)
        return broker is not None and broker.id != group.broker_id

    def _rejoin(self, member: Member) -> None:
        if not member.is_joining:
            member.is_joining = True
            self._run(self._rejoin_now(member))

    async def _rejoin_now(self, member: Member) -> None:
        pause_s = RETRY_FIRST_S
        try:
            while not member.is_gone:
                async with member.lock:
                    left = {one: group for one, group in member.groups.items() if self._is_misplaced(group)}
                    for broker, patterns in self._by_broker(left):
                        await self._move(member, broker, patterns)
                if all(group.broker_id and not self._is_misplaced(group) for group in member.groups.values()):
                    return
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the load
                pause_s = min(2 * pause_s, RETRY_MAX_S)
        finally:
            member.is_joining = False

    async def _move(self, member: Member, broker: Broker, patterns: list[bytes]) -> None:
        """Subscribe at the new serving broker, then unsubscribe at the old one (rule 2)."""
        former = {pattern: member.groups[pattern].broker_id for pattern in patterns}
        codes = await self._join(member, broker, {pattern: member.groups[pattern] for pattern in patterns})
        for pattern, code in codes.items():
            group = member.groups.get(pattern)
            if group is None or member.is_gone:
                continue
            if code >= 0x80:
                _log.error(
                    "a member of a share group is refused by the group's new broker, and gets nothing",
                    extra={"client": member.client_id, "broker": broker.id, "code": code},
                )
                self._forget(member, pattern)
                del member.groups[pattern]
                continue
            if group.broker_id != broker.id:
                continue  # lost again meanwhile
            self.counters["moved"] += 1
            if former[pattern]:
                await self._leave(member, former[pattern], pattern)
            lost_at, group.lost_at = group.lost_at, 0.0
            if lost_at:
                await self._fill(member, broker.id, pattern, group, lost_at)

    async def _fill(self, member: Member, broker_id: str, pattern: bytes, group: Group, lost_at: float) -> None:
        """Ask for the publications that the group may have missed, for one member (rule 3)."""
        if self._replay is None or self._filled_at.get(pattern, -math.inf) >= lost_at:
            return
        self._filled_at[pattern] = self._clock()
        if not await self._is_granted(broker_id, pattern, group.lost_id):
            return
        age_ms = int((self._clock() - lost_at + GAP_S) * 1e3)
        found = await self._replay(broker_id, group.lost_id, group.wanted, age_ms)
        missing = self._delivered.missing(pattern, found)
        self.counters["replayed"] += len(missing)
        self.counters["replay_removed"] += len(found) - len(missing)
        for item in missing:
            others = [one for one in self._by_pattern.get(pattern, ()) if not one.is_gone]
            if not others:
                self.counters["undelivered"] += 1
                continue
            target = member if not member.is_gone else random.choice(others)  # noqa: S311 - spreads the load
            self._give(target, item.packet, 5, group)

    async def _is_granted(self, broker_id: str, pattern: bytes, lost_id: str) -> bool:
        """Return whether this gateway fills the gap: the federator of the serving broker lets one do it."""
        connection = self._federators.connection(broker_id)
        if connection is None or not connection.is_open:
            return True
        fields = {"group": pattern.decode("utf-8", "replace"), "lost": lost_id}
        try:
            answer = await connection.ask("share_gap", fields, timeout_s=ANSWER_S)
        except HanseError:
            return True
        return answer.fields.get("granted") is not False

    # --- handing over -------------------------------------------------------------------------------------------------

    def _hand_on(self, former: Member, delivery: Delivery) -> None:
        """Give unacknowledged publications of a client to another member of its group."""
        topic = read_publish(delivery.packet, former.connect.level).topic.decode("utf-8", "replace")
        for pattern, group in former.groups.items():
            others = self._by_pattern.get(pattern)
            if others and matches(group.wanted, topic):
                self.counters["redelivered"] += 1
                other = random.choice(list(others))  # noqa: S311 - spreads the load
                self._give(other, delivery.packet, former.connect.level, other.groups[pattern])
                return
        self.counters["undelivered"] += 1

    def _give(self, member: Member, packet: bytes, version: int, group: Group) -> None:
        """Deliver a publication that did not come over the member's own second session."""
        found = read_publish(packet, version)
        level = member.connect.level
        qos = min(found.qos, group.qos)
        properties = b""
        if level == 5:
            properties = without(found.properties, _OF_SUBSCRIPTION) if version == 5 else b""
            if group.identifier:
                properties += b"\x0b" + varint(group.identifier)
        made = write_publish(level, found.topic, found.payload, qos, found.packet_id, properties)
        member.tap.deliver(None, made, qos, found.packet_id)
        member.client.flush_tap()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a share group could not be served", exc_info=error)


def key_of(pattern: bytes) -> bytes:
    """Return the bytes that are hashed for a `$share` filter: name, zero byte (neither holds one), and filter."""
    name, _, wanted = pattern[len(SHARE) :].partition(b"/")
    return name + b"\0" + wanted
