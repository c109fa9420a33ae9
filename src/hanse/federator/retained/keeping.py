"""Retained state of one federator: the keeper of `hanse.protocol.retained`, driven by the host broker and the others.

Rules:

1. The keeper knows topics by their federation names, the host broker by local ones (`crossing`). A value leaves this
   broker only under the name that its publication would have, and enters it only if its publication might.
2. The book is on disk before any consequence of it takes place.
3. There is one look at a time. When the broker comes back, the federator first looks whether it has restarted. Until
   then it takes nothing from the session, because messages in a restored session must not count as new.
4. A host broker that speaks 3.1.1 does not say which publications are retained. Each one marks its topic, and a look
   decides (R97).
5. Messages of other federators come from outside. Malformed ones, and those that no broker should get, are counted and
   dropped.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, assert_never

from hanse.errors import HanseError
from hanse.federator.crossing import Crossing
from hanse.federator.gate import Gate
from hanse.federator.naming import renamed
from hanse.federator.retained.book_file import BookFile
from hanse.federator.retained.look import Seen, look
from hanse.federator.retained.ticks import Ticks
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.publication import encode, payload_of
from hanse.protocol.identity import private_group
from hanse.protocol.messages import Publication
from hanse.protocol.retained import codec, effects, events
from hanse.protocol.retained.codec import decode_numbers, encode_numbers
from hanse.protocol.retained.keeper import Keeper
from hanse.protocol.retained.messages import Answer, Change, Message, Push
from hanse.protocol.retained.settings import RetainedSettings
from hanse.protocol.retained.values import digest_of
from hanse.protocol.retained.versions import FOUND, Version
from hanse.protocol.settings import MANAGEMENT_GROUP
from hanse.protocol.topics import matches, may_cross

# Topic of the packets that federators send each other about retained state.
TOPIC = "$hanse/retained"
# The claim of a private group may still be on its way when the first answer is ready for it.
KNOWN_S = 5.0
# Messages to others that wait for it; more are dropped and counted, and the next fetch repairs that.
WAITING_MAX = 1_000
# Publications of a session that came back are held for this long at most until a look has told about restarts.
HOLD_S = 2.0
# Key of the broker's start in the book file.
_START_KEY = b"u"
_log = logging.getLogger(__name__)

Hold = Callable[[bool], None]


class RetainedState:
    """Shell of the keeper.

    Args:
        identity: id of this federator.
        settings: settings of the keeper.
        look_settings: settings of the sessions that look at the host broker.
        book: file of the book.
        crossing, gate: rules for leaving and entering.
        publish: function that publishes messages found at the host broker, with a stamp.
        publish_to: function that sends packets to a group of federators.
        is_known: function that returns whether a group is claimed.
        join: function that joins this federator's private group for good.
        inject: function that publishes a packet at the host broker, and reports its number at the acknowledgement.
        release: function that ends interest in a filter.
        hold: function that lets publications of the host session wait, or continue.
        counters: counters to update.
    """

    def __init__(
        self,
        identity: int,
        settings: RetainedSettings,
        look_settings: ClientSettings,
        *,
        book: BookFile,
        crossing: Crossing,
        gate: Gate,
        publish: Callable[[Publication, int], None],
        publish_to: Callable[[str, list[bytes]], None],
        is_known: Callable[[str], bool],
        join: Callable[[], None],
        inject: Callable[[bytes, int], None],
        release: Callable[[str], None],
        hold: Hold,
        counters: Counter[str],
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity
        self._look_settings = look_settings
        self._book = book
        self._crossing = crossing
        self._gate = gate
        self._publish = publish
        self._publish_to = publish_to
        self._is_known = is_known
        self._join = join
        self._inject_packet = inject
        self._release = release
        self._hold = hold
        self._wall_s = wall_s
        self._loop = asyncio.get_running_loop()
        self._keeper = Keeper(identity, settings, epoch=int(wall_s()), counters=counters)
        self._counters = counters
        self._ticks = Ticks()
        self._records: list[tuple[bytes, bytes]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = math.inf
        self._is_carrying_out = False
        self._has_joined = False
        self._waiting: list[tuple[int, bytes]] = []
        self._injected: list[int] = []
        self._is_stopped = False
        # Whether the last look failed.
        self._is_blind = False

    # --- start and end ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the book, and look whether the host broker has restarted meanwhile; before its session begins."""
        records = self._book.read()
        started = dict(records).pop(_START_KEY, None)
        if started is not None:
            self._ticks = Ticks(decode_numbers(started, 1)[0])
        self._keeper.restore((key, value) for key, value in records if key != _START_KEY)
        self._keeper.start(self._loop.time(), self._wall_ms())
        self._carry_out()
        if len(self._keeper.book):
            last_s = self._ticks.last_s
            seen = await self._try_look(())
            if seen is not None:
                self._note_uptime(seen.uptime_s, looked_after_s=last_s)

    async def stop(self) -> None:
        """End the tasks under way."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._write()
        self._book.close()

    @property
    def topics(self) -> int:
        """Topics in the book."""
        return len(self._keeper.book)

    @property
    def lingering(self) -> int:
        """Filters whose interest has ended and lingers."""
        return self._keeper.lingering

    # --- events at the host broker
    # -------------------------------------------------------------------------------------

    def host_up(self, *, session_present: bool) -> None:
        """Note that the host broker has accepted the session."""
        wall_ms = self._wall_ms()
        self._ticks.connected(wall_ms, session_present=session_present)
        if not session_present:
            self._step(events.SessionLost(self._ticks.heard_ms))
        if not len(self._keeper.book):
            self._step(events.HostUp())
            return
        if session_present:
            self._hold(True)
        self._start_task(self._look_after_return(session_present))

    async def _look_after_return(self, session_present: bool) -> None:
        """Apply rule 3."""
        last_s = self._ticks.last_s
        seen = None
        try:
            async with asyncio.timeout(HOLD_S):
                seen = await self._try_look(())
        except TimeoutError:
            pass
        finally:
            if seen is not None and seen.uptime_s is not None:
                self._note_uptime(seen.uptime_s, looked_after_s=last_s)
            elif not session_present:
                # Without an uptime, a broker that has lost the session may have lost everything.
                self._step(events.HostRestarted())
            self._hold(False)
            self._step(events.HostUp())

    def host_down(self) -> None:
        """Note that the connection to the host broker has ended."""
        self._step(events.HostUp(is_up=False))

    def granted(self, filter_: str) -> None:
        """Note that the host broker holds a subscription of the federation."""
        self._step(events.Granted(self._crossing.outward(filter_)))

    def ended(self, filter_: str) -> None:
        """Note that the host broker has ended a subscription."""
        self._step(events.Ended(self._crossing.outward(filter_)))

    def tick(self, uptime_s: int | None, *, is_retained: bool) -> None:
        """Note the broker's uptime."""
        self._note_uptime(uptime_s, is_retained=is_retained)

    def _note_uptime(
        self, uptime_s: int | None, *, is_retained: bool = False, looked_after_s: int | None = None
    ) -> None:
        if uptime_s is None:
            return
        wall_ms = self._wall_ms()
        before_ms = self._ticks.started_ms
        is_restarted = self._ticks.tick(uptime_s, wall_ms, is_retained=is_retained, looked_after_s=looked_after_s)
        self._ticks.heard(wall_ms)
        after_ms = self._ticks.started_ms or 0
        if len(self._keeper.book) and (before_ms is None or abs(after_ms - before_ms) >= 1_000):
            self._records.append((_START_KEY, encode_numbers(max(0, after_ms))))
        if is_restarted:
            _log.warning("the host broker has restarted: what it retains is compared with the book")
            self._step(events.HostRestarted())

    def heard(self, outgoing: Sequence[tuple[str, int, bytes]]) -> int:
        """Take a batch of clients' publications, some of them retained; return the stamp of the first."""
        wall_ms = self._wall_ms()
        since_ms = self._ticks.waiting_since(wall_ms)
        self._ticks.heard(wall_ms)
        writes = [(k, topic, packet) for k, (topic, _, packet) in enumerate(outgoing) if packet[0] & 1]
        stamp = self._keeper.heard(self._loop.time(), wall_ms, writes, len(outgoing), since_ms)
        self._carry_out()
        return stamp

    def touched(self, outgoing: Sequence[tuple[str, int, bytes]]) -> None:
        """Take publications of a host broker that does not say which ones are retained."""
        self._step(events.Touched(tuple({topic for topic, _, _ in outgoing})))

    def arrive(self, publications: Sequence[tuple[str, Version, bytes]]) -> list[int | None]:
        """Take retained publications that are about to be delivered to the host broker.

        Returns:
            For each the number of the injection if it should be published with RETAIN, None if without, `DUPLICATE` if
            not at all.
        """
        now, wall_ms = self._loop.time(), self._wall_ms()
        numbers = [self._keeper.arrive(now, wall_ms, *publication) for publication in publications]
        self._carry_out()
        return numbers

    def found(self, topic: str, version: Version, packet: bytes) -> None:
        """Take a message found by another federator's look; inject it if it is newer, and do nothing else."""
        value = packet if digest_of(packet) else b""
        self._step(events.Received(version.federator, Push((Change(topic, version, value),))))

    def injected(self, numbers: Iterable[int]) -> None:
        """Note that the host broker has acknowledged injections; those of one read are one step and one write."""
        if not self._injected:
            self._loop.call_soon(self._tell_injected)
        self._injected += numbers

    def _tell_injected(self) -> None:
        injected, self._injected = self._injected, []
        self._step(events.Injected(tuple(injected)))

    def refused(self, numbers: Iterable[int]) -> None:
        """Note that the host broker refuses injections."""
        self._step(events.Refused(tuple(numbers)))

    def uncertain(self, numbers: Iterable[int]) -> None:
        """Note that injections may have been lost."""
        self._step(events.Uncertain(tuple(numbers)))

    # --- interest -----------------------------------------------------------------------------------------------------

    def want(self, filters: Sequence[str]) -> None:
        """Add filters that clients of the host broker want, by their federation names."""
        if filters:
            self._step(events.Wanted(tuple(filters)))

    def unwant(self, filter_: str) -> None:
        """Note that no client wants a filter any more; `release` follows, perhaps later."""
        self._step(events.Unwanted(filter_))

    # --- other federators
    # ----------------------------------------------------------------------------------------------

    def link_restored(self, neighbour: int) -> None:
        """Note that the link to a neighbour is back after a loss."""
        self._step(events.LinkRestored(neighbour))

    def hear(self, sender: int, packet: bytes) -> None:
        """Take a message of another federator.

        Raises:
            RemoteError: It is malformed.
        """
        message = codec.decode(payload_of(packet))
        if isinstance(message, Answer | Push):
            message = message._replace(changes=tuple(filter(self._may_enter, message.changes)))
        self._step(events.Received(sender, message))

    def _may_enter(self, change: Change) -> bool:
        """Apply rules 1 and 5."""
        if not may_cross(change.topic) or not self._crossing.imports(change.topic):
            self._counters["retained_not_imported"] += 1
            return False
        return not change.value or self._gate.admit(change.value, 1)[1] == 1

    def _may_leave(self, change: Change) -> bool:
        """Apply rule 1."""
        local = self._crossing.inward(change.topic)
        return local is not None and may_cross(change.topic) and self._crossing.leave(local) == change.topic

    # --- the keeper ---------------------------------------------------------------------------------------------------

    def _wall_ms(self) -> int:
        return int(self._wall_s() * 1_000)

    def _step(self, event: events.Event) -> None:
        if not self._is_stopped:
            self._keeper.step(self._loop.time(), self._wall_ms(), event)
            self._carry_out()

    def _carry_out(self) -> None:
        """Carry out the keeper's effects, in order; those that result follow."""
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while wanted := self._keeper.take_effects():
                for effect in wanted:
                    self._do(effect)
        finally:
            self._is_carrying_out = False
        self._write()
        self._arm()

    def _do(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Keep(records):
                self._records += records
            case effects.Inject(number, topic, packet):
                self._write()
                local = self._crossing.enter(topic)
                if local is None:
                    self.injected([number])
                else:
                    self._inject_packet(packet if local == topic else renamed(packet, local), number)
            case effects.Look(number, filters):
                self._start_task(self._look(number, filters))
            case effects.Spread(topic, packet, stamp):
                self._write()
                self._publish(Publication(topic, packet[0] >> 1 & 3, packet), stamp + FOUND)
            case effects.Tell(receiver, message):
                self._tell(receiver, message)
            case effects.Release(filter_):
                self._release(filter_)
            case _:
                assert_never(effect)

    def _write(self) -> None:
        if self._records:
            records, self._records = self._records, []
            self._book.write(records)

    def _arm(self) -> None:
        deadline = self._keeper.deadline
        if deadline == self._armed_at or self._is_stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_at = deadline
        if deadline < math.inf:
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._armed_at = math.inf
        self._step(events.Tick())

    # --- looks --------------------------------------------------------------------------------------------------------

    async def _look(self, number: int, filters: tuple[str, ...]) -> None:
        local = {one for filter_ in filters for one in self._crossing.inward_filter(filter_)}
        # Copies of others' topics have the same name here as there.
        local.update(filter_ for filter_ in filters if not self._crossing.is_trivial and may_cross(filter_))
        last_s = self._ticks.last_s
        seen = await self._try_look(local)
        if seen is None:
            self._step(events.LookFailed(number))
            return
        self._note_uptime(seen.uptime_s, looked_after_s=last_s)
        found, unclear = self._by_federation_name(seen)
        self._step(events.Looked(number, found, unclear))

    async def _try_look(self, filters: Iterable[str]) -> Seen | None:
        try:
            seen = await look(self._look_settings, filters, self._qos_of)
        except (HanseError, TimeoutError) as error:
            # Told once: looks are tried again every few seconds, and each is counted.
            level = logging.DEBUG if self._is_blind else logging.WARNING
            _log.log(level, "the host broker did not show its retained messages: %s", error)
            self._is_blind = True
            return None
        self._is_blind = False
        return seen

    def _by_federation_name(self, seen: Seen) -> tuple[dict[str, bytes], frozenset[str]]:
        book = self._keeper.book
        unclear = {topic for topic in book.entries if any(matches(refused, topic) for refused in seen.refused)}
        if self._crossing.is_trivial:
            return {topic: packet for topic, packet in seen.found.items() if may_cross(topic)}, frozenset(unclear)
        found: dict[str, bytes] = {}
        for topic, packet in seen.found.items():
            name = self._crossing.leave(topic)
            entry = book.get(topic)
            if topic != name and entry is not None and entry.host_digest and self._crossing.enter(topic) == topic:
                # A copy of somebody else's topic. A client's own write there would also have this name.
                found[topic] = packet
                if name is not None:
                    unclear.add(name)
            elif name is not None:
                found[name] = packet if name == topic else renamed(packet, name)
        return found, frozenset(unclear)

    def _qos_of(self, topic: str, packet: bytes) -> int | None:
        """Return the QoS of a value that the host broker holds, if the book knows it."""
        digest = digest_of(packet)
        for name in (topic, self._crossing.leave(topic)):
            entry = None if name is None else self._keeper.book.get(name)
            if entry is not None and entry.version is not None and entry.digest == digest:
                return entry.qos
        return None

    # --- messages -----------------------------------------------------------------------------------------------------

    def _tell(self, receiver: int, message: Message) -> None:
        if isinstance(message, Answer | Push):
            message = message._replace(changes=tuple(filter(self._may_leave, message.changes)))
            if not message.changes and not isinstance(message, Answer):
                return
        body = codec.encode(message)
        if not self._has_joined:
            # For good: answers may come at any time, and a claim costs nothing while nothing changes.
            self._has_joined = True
            self._join()
        if receiver == effects.EVERYBODY:
            self._send(MANAGEMENT_GROUP, body)
        elif self._is_known(private_group(receiver)):
            self._send(private_group(receiver), body)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting.append((receiver, body))
            if len(self._waiting) == 1:
                self._start_task(self._send_waiting())
        else:
            self._counters["retained_messages_dropped"] += 1

    async def _send_waiting(self) -> None:
        deadline = self._loop.time() + KNOWN_S
        while self._waiting and self._loop.time() < deadline:
            await asyncio.sleep(0.02)
            waiting, self._waiting = self._waiting, []
            for receiver, body in waiting:
                if self._is_known(private_group(receiver)):
                    self._send(private_group(receiver), body)
                else:
                    self._waiting.append((receiver, body))
        self._counters["retained_messages_dropped"] += len(self._waiting)
        self._waiting.clear()

    def _send(self, group: str, body: bytes) -> None:
        self._publish_to(group, [encode(TOPIC, body, qos=1)])

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_stopped:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("work on retained state failed: %r", task.exception())
