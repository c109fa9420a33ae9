"""Keeper of retained state: it decides which value of each topic wins, and brings the host broker to it.

docs/protocol.md, R79 to R98, is its specification. The keeper does no IO. Wall time (milliseconds) and a steady clock
(seconds) come in with each event.

- `heard` gives stamps to retained writes of the host broker's clients, before they travel.
- `arrive` decides about a retained publication of somebody else: RETAIN 1 or RETAIN 0.
- `step` takes all other events. Each of the three leaves its effects for `take_effects`.

A look shows the values at the host broker. It counts for a topic only if nothing happened to the topic meanwhile. The
comparison with the book then distinguishes our own injections from writes that nobody heard.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from hanse.errors import RemoteError
from hanse.protocol.retained.book import Book, Entry, Injection
from hanse.protocol.retained.codec import (
    CHANGES_MAX,
    FILTERS_MAX,
    decode_entry,
    decode_numbers,
    encode_entry,
    encode_numbers,
)
from hanse.protocol.retained.effects import EVERYBODY, Effect, Inject, Keep, Look, Release, Spread, Tell
from hanse.protocol.retained.events import (
    Ended,
    Event,
    Granted,
    HostRestarted,
    HostUp,
    Injected,
    LinkRestored,
    Looked,
    LookFailed,
    Received,
    Refused,
    SessionLost,
    Tick,
    Touched,
    Uncertain,
    Unwanted,
    Wanted,
)
from hanse.protocol.retained.fetches import Fetches
from hanse.protocol.retained.messages import Answer, Change, Cursor, Fetch, Message, Push, Rejoined
from hanse.protocol.retained.observation import Observation
from hanse.protocol.retained.settings import RetainedSettings
from hanse.protocol.retained.values import ABSENT, clearing, digest_of, with_retain
from hanse.protocol.retained.versions import HybridClock, Version, stamp_at
from hanse.protocol.topics import covers
from hanse.protocol.trie import FilterIndex

# Takes the place of an injection's number if the host broker has the publication from a fetch.
DUPLICATE = -1
# If so many topics are gone at once, they count as lost instead of deleted.
LOST_MIN = 100
# Topics that are judged in one step, some 20 ms; between two steps others have their turn.
JUDGED_MAX = 2_000
# So many unheard writes of one look are published to those who want them. For more, everybody fetches.
SPREAD_MAX = 100
# A part of a long answer needs no look at everything if there was one at most this long ago.
LOOKED_S = 30.0
# Topics of one look, and bytes of values in one answer or push.
LOOK_FILTERS_MAX = 1_000
ANSWER_BYTES_MAX = 256 * 1024
# Requests that wait for a look; more are refused and counted.
ASKS_MAX = 4_096
# Federators whose answers are awaited when a duplicate of theirs arrives first.
PEERS_MAX = 10_000
# After a neighbour is back, messages under way arrive first. This also spreads the fetches of many federators.
REJOIN_S = 0.5
REJOIN_S_PER_PEER = 0.05
# Topics of a host broker that does not mark retained publications, which wait for a look. More are not looked at, and
# counted.
TOUCHED_MAX = 10_000

# Keys of the book on disk: a letter, then the topic, the filter, or nothing.
TOPIC_KEY, END_KEY, STATE_KEY, SUSPECT_KEY = b"t", b"e", b"s", b"r"


@dataclass(frozen=True, slots=True)
class _Ask:
    """Request for values: for an answer to a fetch, or for a push."""

    receiver: int
    filters: tuple[str, ...]
    # 0 for a push.
    number: int = 0
    since: int = 0
    # Filters that need a look first.
    awaited: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Look:
    """Look that is under way."""

    number: int
    filters: tuple[str, ...]
    # Subscriptions that existed when it began.
    granted: frozenset[str]
    # Topics about which it says nothing, because something happened to them meanwhile.
    touched: set[str] = field(default_factory=set)
    # When it is done: what it showed, and the topics that have yet to be judged.
    found: Mapping[str, bytes] = field(default_factory=dict)
    unjudged: list[str] = field(default_factory=list)


class Keeper:
    """Retained state of one federator.

    Args:
        identity: id of this federator.
        settings: bounds and times.
        epoch: epoch of the change feed, if there is no book on disk.
        counters: counters to update.
    """

    def __init__(
        self,
        identity: int,
        settings: RetainedSettings | None = None,
        *,
        epoch: int,
        counters: Counter[str] | None = None,
    ) -> None:
        self.identity = identity
        self.settings = settings or RetainedSettings()
        self.counters: Counter[str] = Counter() if counters is None else counters
        self.clock = HybridClock(round(self.settings.clock_ahead_s_max * 1000))
        self.book = Book(epoch, self.settings.topics_max, self.counters)
        self.observation = Observation(self.settings.filters_max)
        self.fetches = Fetches()
        # Time at which `Tick` is due.
        self.deadline = math.inf

        self._now = self._started_at = -math.inf
        self._wall_ms = 0
        self._effects: list[Effect] = []
        self._records: dict[bytes, bytes] = {}
        # Filters that clients of the host broker want, and filters that only linger, to their end.
        self._interest = FilterIndex()
        self._lingering: dict[str, float] = {}
        # Copies to remove if the next look still shows them.
        self._leftover: set[str] = set()
        # Injections under way: number to topic, topic to how many.
        self._under_way: dict[int, str] = {}
        self._pending: Counter[str] = Counter()
        self._next_number = 1
        # Topics with an injection under way that may never arrive.
        self._uncertain: set[str] = set()
        # Topics to look at again as soon as no injection is under way.
        self._recheck: set[str] = set()
        # After a restart of the host broker: topics that no look has checked yet.
        self._suspects: set[str] = set()
        # Whether the disk says that there are such topics.
        self._is_suspicion_saved = False
        # Topics whose injections the host broker does not keep; not injected again before the next version.
        self._unkept: set[str] = set()
        # Topics of which no look has shown yet that the host broker keeps what is injected.
        self._unconfirmed: set[str] = set()
        self._confirm_at = math.inf
        # Topics that were published on at a host broker that does not say what it retains, and the stamp of that.
        self._touched: dict[str, int] = {}
        self._touched_at = math.inf
        self._is_host_up = False
        self._look: _Look | None = None
        self._look_due: dict[str, None] = {}
        self._look_at = -math.inf
        # Results of a large look, for a short time.
        self._shown: Mapping[str, bytes] = {}
        self._shown_until = math.inf
        # Unheard writes that the look under way has shown, and that others want.
        self._found = 0
        # When looks at filters with wildcards ended.
        self._looked_at: dict[str, float] = {}
        self._asks: list[_Ask] = []
        self._values: OrderedDict[str, tuple[Version, bytes]] = OrderedDict()
        self._value_bytes = 0
        self._peers: OrderedDict[int, None] = OrderedDict()
        self._fetch_at = math.inf
        self._sweep_at = math.inf
        self._is_saved = False

    # --- entrances ---------------------------------------------------------------------------------------------------

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the book of a former process from disk, before anything else. Count damaged records."""
        for key, value in records:
            try:
                name = key[1:].decode()
                match key[:1]:
                    case b"t":
                        entry = decode_entry(value)
                        self.book.restore(name, entry)
                        for version in (entry.version, entry.host):
                            self.clock.see(version.stamp if version else 0)
                    case b"e":
                        (stamp,) = decode_numbers(value, 1)
                        self.observation.restore(name, stamp)
                        self.clock.see(stamp)
                    case b"s":
                        self.book.epoch, stamp = decode_numbers(value, 2)
                        self.clock.see(stamp)
                        self._is_saved = True
                    case b"r":
                        self._is_suspicion_saved = True
                    case _:
                        self.counters["retained_records_refused"] += 1
            except (RemoteError, ValueError):
                self.counters["retained_records_refused"] += 1

    def start(self, now: float, wall_ms: int) -> None:
        """Start, after `restore`. A look checks injections that a former process left unacknowledged."""
        self._now, self._wall_ms = now, wall_ms
        for topic, entry in self.book.entries.items():
            if entry.priors:
                self._look_due[topic] = None
        # Spread over the interval, so that not all federators fetch at once.
        share = (self.identity * 2_654_435_761 & 0xFFFF) / 0x10000
        self._fetch_at = now + self.settings.fetch_interval_s * (0.5 + share / 2)
        self._sweep_at = now + self.settings.sweep_s
        self._started_at = now
        if self._is_suspicion_saved:
            # A former process ended before its looks had checked everything after the host broker's restart.
            self._on_restart()
        self._finish()

    def heard(
        self,
        now: float,
        wall_ms: int,
        writes: Sequence[tuple[int, str, bytes]],
        count: int,
        waited_since_ms: int | None = None,
    ) -> int:
        """Take retained writes of the host broker's clients; return the stamp of the batch's first publication.

        Publication k of the batch has that stamp + k, whether or not it is retained.

        Args:
            now: steady clock.
            wall_ms: wall clock.
            writes: position in the batch, topic and packet of each retained publication.
            count: publications in the batch.
            waited_since_ms: time after which the writes were made, if they waited in the session.
        """
        self._now, self._wall_ms = now, wall_ms
        first = self._stamp(writes, count, waited_since_ms)
        for offset, topic, packet in writes:
            self._hear(topic, packet, Version(first + offset, self.identity))
        self._finish()
        return first

    def arrive(self, now: float, wall_ms: int, topic: str, version: Version, packet: bytes) -> int | None:
        """Take a retained publication of another federator that is about to be delivered to the host broker.

        Returns:
            The number of the injection if it must be published with RETAIN; say `Injected` when it is acknowledged.
            None if it must be published without (R83). `DUPLICATE` if it must not be published at all.
        """
        self._now, self._wall_ms = now, wall_ms
        number = self._apply(topic, version, packet, is_live=True)
        self._finish()
        return number

    def step(self, now: float, wall_ms: int, event: Event) -> None:  # noqa: C901 - one case per event
        """Handle one event."""
        self._now, self._wall_ms = now, wall_ms
        match event:
            case Wanted(filters):
                self._want(filters)
            case Unwanted(filter_):
                self._unwant(filter_)
            case Granted(filter_):
                self.observation.grant(filter_)
                self._look_due[filter_] = None
            case Ended(filter_):
                self._end_observation(filter_, self.clock.next(wall_ms))
            case SessionLost(at_ms):
                for filter_ in sorted(self.observation.granted):
                    self._end_observation(filter_, stamp_at(at_ms))
            case HostRestarted():
                self._on_restart()
            case HostUp(is_up):
                self._is_host_up = is_up
                if not is_up:
                    self._give_up_look()
            case Looked(number, found, unclear):
                if self._look is not None and self._look.number == number and not self._look.unjudged:
                    self._on_looked(self._look, found, unclear)
            case LookFailed(number):
                if self._look is not None and self._look.number == number:
                    self.counters["retained_looks_failed"] += 1
                    self._give_up_look()
                    self._look_at = now + self.settings.look_retry_s
            case Injected(numbers):
                for number in numbers:
                    self._on_injected(number)
            case Uncertain(numbers):
                for number in numbers:
                    self._on_injected(number, is_certain=False)
            case Refused(numbers):
                for number in numbers:
                    self._on_refused(number)
            case Touched(topics):
                self._on_touched(topics)
            case Received(sender, message):
                self._on_message(sender, message)
            case LinkRestored(neighbour):
                # R98: federators behind the link do not see that it is back.
                self._effects.append(Tell(EVERYBODY, Rejoined(neighbour)))
                self._refetch()
            case Tick():
                self._on_tick()
            case _:
                assert_never(event)
        self._finish()

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    # --- views ------------------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Return whether clients of the host broker are interested in a topic, or were a moment ago."""
        return bool(self._interest.match(topic))

    def is_under_way(self, topic: str) -> bool:
        """Return whether the host broker has not acknowledged an injection for a topic."""
        return self._pending[topic] > 0

    def injections_under_way(self) -> tuple[int, ...]:
        """Return the numbers of the injections that the host broker has not acknowledged."""
        return tuple(sorted(self._under_way))

    @property
    def lingering(self) -> int:
        """Number of filters whose interest has ended and lingers."""
        return len(self._lingering)

    @property
    def is_suspicious(self) -> bool:
        """Return whether topics remain that no look has checked since the host broker's restart."""
        return bool(self._suspects)

    def _note(self, topic: str, entry: Entry) -> None:
        self.book.note(topic, entry, self._wall_ms)

    # --- heard writes
    # --------------------------------------------------------------------------------------------------

    def _stamp(self, writes: Sequence[tuple[int, str, bytes]], count: int, waited_since_ms: int | None) -> int:
        """Return the stamp (R79, R81): now, or the time at which the writes entered the session, above earlier ones."""
        if waited_since_ms is None:
            return self.clock.next(self._wall_ms, count)
        floor = 0
        for _, topic, _ in writes:
            entry = self.book.get(topic)
            # Older files may come with an older queue: its writes are no newer than the book.
            if entry is not None and entry.host is not None and topic not in self._suspects:
                floor = max(floor, entry.host.stamp + 1)
        first = max(stamp_at(waited_since_ms), floor)
        self.clock.see(first + count)
        return first

    def _hear(self, topic: str, packet: bytes, version: Version) -> None:
        digest = digest_of(packet)
        self._touch(topic)
        self._suspects.discard(topic)
        entry = self.book.open(topic)
        if entry is None:
            return
        if self._was_injected(entry, self.settings.verify_s):
            self._recheck_soon(topic)  # R88
        if entry.version is not None and version < entry.version:
            # It waited in the session, and something newer has arrived meanwhile.
            if not self._pending[topic]:
                entry.host, entry.host_digest = version, digest
                self._note(topic, entry)
                self._repair(topic, entry)
            return
        self._win(topic, entry, version, digest, packet)
        if self._pending[topic]:
            # The host broker may have got our injection before this write or after it: only a look tells.
            self._recheck.add(topic)
        else:
            entry.host, entry.host_digest = version, digest
        self._note(topic, entry)

    def _win(self, topic: str, entry: Entry, version: Version, digest: int, packet: bytes) -> None:
        """Make a version the winner of its topic."""
        entry.version, entry.digest, entry.changed_ms = version, digest, self._wall_ms
        entry.qos = packet[0] >> 1 & 3 if packet else 0
        self._unkept.discard(topic)
        self._remember_value(topic, version, packet)

    def _was_injected(self, entry: Entry, within_s: float) -> bool:
        return bool(entry.recent) and entry.recent[-1].at_ms > self._wall_ms - within_s * 1000

    # --- values of other federators
    # -------------------------------------------------------------------------------------

    def _apply(self, topic: str, version: Version, packet: bytes, *, is_live: bool) -> int | None:
        """Apply another federator's version (R83); return the number of the injection that follows from a live one."""
        if self.clock.is_refused(self._wall_ms, version.stamp):  # R80
            self.counters["retained_clock_refused"] += 1
            return None
        self.clock.see(version.stamp)
        digest = digest_of(packet)
        is_wanted = self.wants(topic)
        entry = self.book.get(topic)
        if not is_wanted and (entry is None or digest != ABSENT):
            return None
        if entry is None and not is_live and digest == ABSENT and not is_wanted:
            return None
        entry = entry or self.book.open(topic)
        if entry is None:
            # The book is full: pass the value on unchanged and without protection.
            return self._number(topic) if is_live else None
        if entry.version is None or version > entry.version:
            self._win(topic, entry, version, digest, packet)
            self._note(topic, entry)
            if is_live:
                return self._inject(topic, entry)
            if entry.host_digest != digest:  # R84: otherwise there is nothing to delete, or the value is there
                self._effects_inject(topic, entry, packet)
            elif not self.observation.is_observed(topic):
                # According to the book, the host broker has it. A write that nobody heard may have replaced it.
                self._look_due[topic] = None
            else:
                entry.host = version
            return None
        if version == entry.version and digest == entry.digest:
            self._remember_value(topic, version, packet)
            if entry.host_digest == digest and is_live and is_wanted and topic not in self._unkept:
                return DUPLICATE
            if entry.host_digest != digest and not self._pending[topic]:
                if is_live:
                    return self._inject(topic, entry)
                self._effects_inject(topic, entry, packet)
        return None

    # --- injections ---------------------------------------------------------------------------------------------------

    def _number(self, topic: str) -> int:
        number = self._next_number
        self._next_number += 1
        self._under_way[number] = topic
        self._pending[topic] += 1
        self._touch(topic)
        return number

    def _inject(self, topic: str, entry: Entry) -> int:
        """Note in the book, before publishing at the host broker, that the winner is injected (R82)."""
        entry.priors = (*entry.priors, entry.host_digest)[-self.settings.recent_max :]
        self._note_injection(entry, entry.digest, entry.version)
        entry.host, entry.host_digest = entry.version, entry.digest
        self._note(topic, entry)
        self.counters["retained_injected"] += 1
        return self._number(topic)

    def _note_injection(self, entry: Entry, digest: int, version: Version | None) -> None:
        oldest_ms = self._wall_ms - self.settings.recent_s * 1000
        kept = [one for one in entry.recent if one.at_ms > oldest_ms]
        entry.recent = (*kept, Injection(self._wall_ms, digest, version))[-self.settings.recent_max :]

    def _effects_inject(self, topic: str, entry: Entry, packet: bytes) -> None:
        number = self._inject(topic, entry)
        body = packet if entry.digest != ABSENT else clearing(topic)
        self._effects.append(Inject(number, topic, with_retain(body, is_set=True)))

    def _repair(self, topic: str, entry: Entry) -> None:
        """Inject the winner again if it is wanted or a deletion, because the host broker holds something else."""
        if entry.version is None or entry.digest == entry.host_digest or self._pending[topic]:
            return
        if topic in self._unkept:
            return
        if entry.digest == ABSENT:
            self._effects_inject(topic, entry, b"")
            self._recheck_soon(topic)
        elif self.wants(topic):
            known = self._values.get(topic)
            if known is not None and known[0] == entry.version:
                self._effects_inject(topic, entry, known[1])
                self._recheck_soon(topic)
            elif not self.fetches.is_open_for(topic):
                self.fetches.want([topic], afresh=True)
            else:
                return
        else:
            return
        self.counters["retained_repaired"] += 1

    def _on_injected(self, number: int, *, is_certain: bool = True) -> None:
        topic = self._under_way.pop(number, None)
        if topic is None:
            return
        self._pending[topic] -= 1
        if not is_certain:
            self._uncertain.add(topic)
        if self._pending[topic]:
            return
        del self._pending[topic]
        entry = self.book.get(topic)
        if topic in self._uncertain:
            self._uncertain.discard(topic)
            self._recheck.add(topic)
        elif entry is not None and entry.priors:
            entry.priors = ()
            self.book.dirty.add(topic)
        if entry is not None and entry.host_digest != ABSENT and not entry.is_kept:
            # R89: many topics are checked by one look, when no more of them come.
            self._unconfirmed.add(topic)
            self._confirm_at = self._now + self.settings.verify_s
        if entry is not None and entry.version is None and entry.host_digest == ABSENT:
            self.book.drop(topic)  # a copy was removed
        if topic in self._recheck:
            self._recheck.discard(topic)
            self._look_due[topic] = None

    def _on_refused(self, number: int) -> None:
        """Note that the host broker keeps its old value and refuses the winner."""
        topic = self._under_way.get(number)
        entry = None if topic is None else self.book.get(topic)
        if topic is not None and entry is not None:
            self.counters["retained_not_kept"] += 1
            self._unkept.add(topic)
        self._on_injected(number, is_certain=False)

    def _on_touched(self, topics: tuple[str, ...]) -> None:
        """Let a look decide whether publications are retained now (R97)."""
        stamp = self.clock.next(self._wall_ms)
        for topic in topics:
            if topic not in self._touched and len(self._touched) >= TOUCHED_MAX:
                self.counters["retained_touches_refused"] += 1
                continue
            self._touched[topic] = stamp
            self._touch(topic)
        self._touched_at = min(self._touched_at, self._now + self.settings.touch_s)

    def _recheck_soon(self, topic: str) -> None:
        """Look at a topic, but not while an injection is under way."""
        if self._pending[topic]:
            self._recheck.add(topic)
        else:
            self._look_due[topic] = None

    # --- looks --------------------------------------------------------------------------------------------------------

    def _touch(self, topic: str) -> None:
        if self._look is not None:
            self._look.touched.add(topic)

    def _begin_look(self) -> None:
        if self._look is not None or not self._is_host_up or self._now < self._look_at or not self._look_due:
            return
        due = list(self._look_due)
        if len(due) > FILTERS_MAX and not self.settings.is_exact:
            due = self._widened(due)
            self._look_due = dict.fromkeys(due)
        due = due[:LOOK_FILTERS_MAX]
        for filter_ in due:
            del self._look_due[filter_]
        number = self._next_number
        self._next_number += 1
        granted = frozenset(filter_ for filter_ in due if filter_ in self.observation.granted)
        self._look = _Look(number, tuple(sorted(due)), granted, set(self._pending))
        self.counters["retained_looks"] += 1
        filters = self._look.filters
        if self.settings.is_exact:  # R97
            filters = tuple(sorted(self.book.matching(filters) | {one for one in filters if not _is_wild(one)}))
        self._effects.append(Look(number, filters))

    def _widened(self, filters: list[str]) -> list[str]:
        """Return filters with wildcards in the place of many topics, where we know some that cover them."""
        found: dict[str, None] = {}
        for filter_ in filters:
            wide = filter_
            if not _is_wild(filter_):
                known = [*self._interest.match(filter_), *self.observation.granted.match(filter_)]
                wide = min(filter(_is_wild, known), default=filter_)
            found[wide] = None
        return list(found)

    def _give_up_look(self) -> None:
        if self._look is not None:
            self._look_due = {**dict.fromkeys(self._look.filters), **self._look_due}
            self._look = None

    def _on_looked(self, look: _Look, found: Mapping[str, bytes], unclear: frozenset[str]) -> None:
        matching = self.book.matching(look.filters) - unclear
        self._suspect_a_loss(look, matching, found)
        look.found = found
        look.unjudged = sorted((found.keys() | matching) - unclear, reverse=True)
        self._judge_some(look)

    def _judge_some(self, look: _Look) -> None:
        """Judge the next topics of a look that is done. The look goes on until all are judged."""
        found = look.found
        last, look.unjudged = look.unjudged[-JUDGED_MAX:], look.unjudged[:-JUDGED_MAX]
        for topic in reversed(last):
            if topic in look.touched or self._pending[topic]:
                # R85: the look counts only if nothing happened meanwhile.
                entry = self.book.get(topic)
                if self._pending[topic] or (entry is not None and self._was_injected(entry, 1.0)):
                    self._recheck_soon(topic)
                elif topic in self._suspects or topic in self._touched or not self.observation.is_observed(topic):
                    self._look_due[topic] = None
                continue
            self._judge(topic, found.get(topic, b""))
        if look.unjudged:
            return
        self._look = None
        self._look_at = self._now + self.settings.look_gap_s
        for filter_ in look.filters:
            if _is_wild(filter_):
                self._looked_at.pop(filter_, None)
                self._looked_at[filter_] = self._now
                if len(self._looked_at) > FILTERS_MAX:
                    self._looked_at.pop(next(iter(self._looked_at)))
        for filter_ in look.granted:
            self.observation.complete(filter_)
        if len(found) > FILTERS_MAX:
            # For the parts of long answers.
            self._shown, self._shown_until = found, self._now + LOOKED_S
        if self._found > SPREAD_MAX:
            self._effects.append(Tell(EVERYBODY, Rejoined(self.identity)))
        self._found = 0
        self._answer_asks(found)

    def _suspect_a_loss(self, look: _Look, matching: set[str], found: Mapping[str, bytes]) -> None:
        """Check whether most expected topics are gone at once (R89): the host broker has lost them, or hides them."""
        held = [topic for topic in matching - look.touched if self._is_held(topic)]
        gone = [topic for topic in held if topic not in found and topic not in self._suspects]
        if len(gone) >= LOST_MIN and 2 * len(gone) >= len(held):
            self.counters["retained_lost"] += len(gone)
            self._suspects.update(gone)

    def _judge(self, topic: str, packet: bytes) -> None:
        """Compare the value at the host broker with the book (R86, R87, R89)."""
        digest = digest_of(packet)
        touched = self._touched.pop(topic, 0)
        entry = self.book.get(topic)
        if entry is None:
            if digest == ABSENT:
                return
            entry = self.book.open(topic)
            if entry is None:
                return
        is_suspect = topic in self._suspects
        self._suspects.discard(topic)
        if topic in self._leftover and self._remove_copy(topic, entry, digest):
            return
        if entry.version is not None and digest == entry.digest:
            if not entry.is_kept and digest != ABSENT:
                entry.is_kept = True
                self.book.dirty.add(topic)
            if entry.host_digest != digest or entry.priors:
                entry.host, entry.host_digest, entry.priors = entry.version, digest, ()
                self._note(topic, entry)
            self._remember_value(topic, entry.version, packet)
            return
        if digest == entry.host_digest and (entry.version is not None or digest == ABSENT):
            pass
        elif not is_suspect and self._is_lost_injection(entry, digest):
            entry.host, entry.host_digest, entry.priors = Version(0, self.identity), digest, ()
            self._note(topic, entry)
        elif not is_suspect and digest == ABSENT and not entry.is_kept and self._is_copy(entry):
            # The host broker acknowledged our injection and does not hold it: it retains nothing, or not for us.
            self.counters["retained_not_kept"] += 1
            self._unkept.add(topic)
            entry.host, entry.host_digest, entry.priors = Version(0, self.identity), ABSENT, ()
            self._note(topic, entry)
        elif not is_suspect and (former := self._own_injection(entry, digest)) is not None:
            entry.host, entry.host_digest = former.version, digest
            self._note(topic, entry)
        elif is_suspect and entry.version is not None and entry.version.stamp > 0:
            self._distrust(topic, entry, digest)
        else:
            self._discover(topic, entry, digest, packet, touched)
        self._repair(topic, entry)

    def _is_lost_injection(self, entry: Entry, digest: int) -> bool:
        """Return whether an injection of this federator, or of its former process, never arrived."""
        return digest in entry.priors

    def _own_injection(self, entry: Entry, digest: int) -> Injection | None:
        """Return our injection if the host broker got it late, after a write that this federator took for newer."""
        oldest_ms = self._wall_ms - self.settings.recent_s * 1000
        for one in reversed(entry.recent):
            if one.digest == digest and one.at_ms > oldest_ms:
                return one
        return None

    def _distrust(self, topic: str, entry: Entry, digest: int) -> None:
        """Let the book win, because the host broker has started with older files (R89)."""
        self.counters["retained_distrusted"] += 1
        entry.host, entry.host_digest, entry.priors = Version(0, self.identity), digest, ()
        if entry.digest != ABSENT and not self.wants(topic):
            # Nobody here needs the winner, and its value is gone here. The present value has no time.
            if digest == ABSENT:
                self.book.drop(topic)
                return
            entry.version, entry.digest = entry.host, digest
        self._note(topic, entry)

    def _discover(self, topic: str, entry: Entry, digest: int, packet: bytes, touched: int) -> None:
        """Give a version to a write or deletion that nobody heard (R87): just newer than the value before it."""
        known = max(entry.host.stamp if entry.host else -1, self.observation.ended_at(topic) or -1)
        version = Version(max(known + 1, touched, 1), self.identity)
        self.clock.see(version.stamp)
        entry.host, entry.host_digest, entry.priors = version, digest, ()
        self.counters["retained_discovered"] += 1
        if entry.version is None or version > entry.version:
            self._win(topic, entry, version, digest, packet)
            # R96. Others want the topic if the federator is subscribed to it for them.
            if self.observation.is_granted(topic):
                self._found += 1
            if self.observation.is_granted(topic) and self._found <= SPREAD_MAX:
                body = with_retain(packet, is_set=True) if packet else clearing(topic)
                self._effects.append(Spread(topic, body, version.stamp))
        self._note(topic, entry)

    # --- interest and observation -------------------------------------------------------------------------------------

    def _want(self, filters: tuple[str, ...]) -> None:
        """Begin interest: look here, and ask the others (R90)."""
        for filter_ in filters:
            if self._lingering.pop(filter_, None) is not None:
                continue
            if filter_ in self._interest:
                continue
            if len(self._interest) >= self.settings.filters_max:
                self.counters["retained_filters_refused"] += 1
                continue
            self._interest.add(filter_)
            self._look_due[filter_] = None
            self.fetches.want([filter_])
            self._announce_old(filter_)

    def _announce_old(self, filter_: str) -> None:
        """Announce a value that nobody kept fresh here: it may be older than a deletion forgotten elsewhere (R94).

        The others' cursors are beyond it. At the end of the feed they get it again, and all hold the same.
        """
        old_ms = self._wall_ms - self.settings.tombstone_s * 1000
        for topic in sorted(self.book.matching([filter_])):
            entry = self.book.entries[topic]
            if entry.changed_ms <= old_ms and entry.host_digest != ABSENT:
                self._note(topic, entry)

    def _unwant(self, filter_: str) -> None:
        """End interest, but let it linger while there is a copy that it keeps fresh (R95)."""
        if filter_ not in self._interest:
            self._effects.append(Release(filter_))
        elif self.settings.linger_s > 0 and any(map(self._is_held, self.book.matching([filter_]))):
            self._lingering[filter_] = self._now + self.settings.linger_s
        else:
            self._release(filter_)

    def _is_held(self, topic: str) -> bool:
        entry = self.book.get(topic)
        return entry is not None and entry.host_digest != ABSENT

    def _release(self, filter_: str) -> None:
        """End interest for good; the sweep finds the copies that nothing else keeps (R95)."""
        self._lingering.pop(filter_, None)
        self._interest.discard(filter_)
        self.fetches.forget(filter_)
        self._effects.append(Release(filter_))
        self._sweep_at = self._now

    def _remove_copy(self, topic: str, entry: Entry, digest: int) -> bool:
        """Remove a copy if a look shows that it is still there and still unwanted (R95)."""
        self._leftover.discard(topic)
        if digest != entry.host_digest or not self._is_leftover(topic, entry):
            return False
        self.counters["retained_copies_removed"] += 1
        self._note_injection(entry, ABSENT, None)
        entry.priors = (*entry.priors, digest)[-self.settings.recent_max :]
        # Removing a copy is not a deletion: nothing is known of the topic any more.
        entry.version, entry.digest, entry.host, entry.host_digest = None, ABSENT, None, ABSENT
        self._note(topic, entry)
        self._effects.append(Inject(self._number(topic), topic, clearing(topic)))
        return True

    def _end_observation(self, filter_: str, stamp: int) -> None:
        for changed in self.observation.end(filter_, stamp):
            end = self.observation.ends.get(changed)
            self._records[END_KEY + changed.encode()] = b"" if end is None else encode_numbers(end)

    def _on_restart(self) -> None:
        """Treat everything that the host broker held as uncertain (R89)."""
        self.counters["retained_host_restarts"] += 1
        self._unkept.clear()
        self._suspects.update(self.book.entries)
        self.observation.begin_anew()
        self._give_up_look()
        for topic in self._suspects:
            self._look_due[topic] = None
        for filter_ in (*self.observation.granted, *self._interest):
            self._look_due[filter_] = None
        self.fetches.want(self._interest)

    # --- fetches: the side that asks
    # -----------------------------------------------------------------------------------

    def _refetch(self) -> None:
        """Fetch everything again soon, as far as it has changed since the cursors."""
        share = (self.identity * 2_654_435_761 & 0xFFFF) / 0x10000
        self._fetch_at = min(self._fetch_at, self._now + REJOIN_S + share * len(self._peers) * REJOIN_S_PER_PEER)

    def _on_answer(self, sender: int, answer: Answer) -> None:
        fetch = self.fetches.open.get(answer.number)
        newer: list[str] = []
        for change in answer.changes:
            origin = change.version.federator
            if (
                fetch is not None
                and origin not in (sender, self.identity)
                and origin in self._peers
                and origin not in fetch.answered
                and len(fetch.held) < CHANGES_MAX
            ):
                fetch.held.append((sender, change))  # R92
            elif self._take_change(change):
                newer.append(change.topic)
        if newer:
            self._push(sender, newer)
        if fetch is None:
            return
        if not answer.is_last:
            onward = (Cursor(sender, answer.epoch, answer.sequence),)
            self._effects.append(Tell(sender, Fetch(answer.number, fetch.filters, onward)))
            return
        fetch.answered.add(sender)
        wanted = [filter_ for filter_ in fetch.filters if filter_ in self._interest]
        self.fetches.note(wanted, sender, answer.epoch, answer.sequence)
        ready = [held for held in fetch.held if held[1].version.federator in fetch.answered]
        fetch.held = [held for held in fetch.held if held[1].version.federator not in fetch.answered]
        self._take_held(ready)

    def _take_held(self, held: list[tuple[int, Change]]) -> None:
        newer: dict[int, list[str]] = {}
        for sender, change in held:
            if self._take_change(change):
                newer.setdefault(sender, []).append(change.topic)
        for sender, topics in sorted(newer.items()):
            self._push(sender, topics)

    def _take_change(self, change: Change) -> bool:
        """Apply a change; return whether the book has something newer."""
        self._apply(change.topic, change.version, change.value, is_live=False)
        entry = self.book.get(change.topic)
        return entry is not None and entry.version is not None and entry.version > change.version

    def _push(self, receiver: int, topics: list[str]) -> None:
        """Send a federator the values that are newer here than in its answer (R92); its interest decides about them."""
        for start in range(0, len(topics), FILTERS_MAX):
            part = tuple(topics[start : start + FILTERS_MAX])
            self._ask(_Ask(receiver, part), part)

    # --- fetches: the side that answers
    # --------------------------------------------------------------------------------

    def _on_fetch(self, sender: int, fetch: Fetch) -> None:
        since = 0
        for cursor in fetch.cursors:
            if cursor.federator == self.identity and cursor.epoch == self.book.epoch:
                since = cursor.sequence
        ask = _Ask(sender, fetch.filters, fetch.number, since)
        unseen = [filter_ for filter_ in fetch.filters if not self._is_seen(filter_, since)]
        if unseen:
            self._ask(ask, unseen)  # R91: look first
            return
        changed = self.book.changed_since(fetch.filters, since, CHANGES_MAX)
        missing = [topic for topic in changed if self._is_held(topic) and not self._has_value(topic)]
        if not missing:
            self._answer(ask, {})
        else:
            self._ask(ask, missing if len(missing) <= FILTERS_MAX else fetch.filters)

    def _has_value(self, topic: str) -> bool:
        """Return whether what the host broker holds is in memory."""
        entry = self.book.entries[topic]
        shown = self._shown.get(topic)
        if shown is not None and digest_of(shown) == entry.host_digest:
            return True
        known = self._values.get(topic)
        return (
            known is not None and entry.is_settled and known[0] == entry.version and self.observation.is_observed(topic)
        )

    def _is_seen(self, filter_: str, since: int) -> bool:
        """Return whether everything under a filter is observed, so that the book has it."""
        if self.observation.is_complete(filter_):
            return True
        if since and self._looked_at.get(filter_, -math.inf) >= self._now - LOOKED_S:
            return True
        if not _is_wild(filter_):
            return self.observation.is_observed(filter_)
        return any(_is_wild(wide) and covers(wide, filter_) for wide in self.observation.complete_filters())

    def _ask(self, ask: _Ask, filters: Iterable[str]) -> None:
        if len(self._asks) >= ASKS_MAX:
            self.counters["retained_requests_refused"] += 1
            return
        awaited = frozenset(filters)
        self._asks.append(replace(ask, awaited=awaited))
        for filter_ in sorted(awaited):
            self._look_due[filter_] = None

    def _answer_asks(self, found: Mapping[str, bytes]) -> None:
        """Answer the requests whose filters have all been looked at by now."""
        asks, self._asks = self._asks, []
        for ask in asks:
            if not ask.awaited.isdisjoint(self._look_due):
                self._asks.append(ask)
            elif ask.number:
                self._answer(ask, found)
            else:
                self._send_push(ask, found)

    def _answer(self, ask: _Ask, found: Mapping[str, bytes]) -> None:
        """Send the values of the host broker with their versions, and deletions, in the order of the feed (R91)."""
        changes: list[Change] = []
        size = 0
        through = max(self.book.sequence, ask.since)
        is_last = True
        last = ask.since
        for topic in self.book.changed_since(ask.filters, ask.since, CHANGES_MAX + 1):
            entry = self.book.entries[topic]
            if len(changes) >= CHANGES_MAX or size > ANSWER_BYTES_MAX:
                through, is_last = last, False
                break
            change = self._change_of(topic, entry, found)
            if change is None and entry.host_digest != ABSENT:
                # Its value was not to be had just now: the asker's cursor stays before it, and it asks again.
                through, is_last = entry.sequence - 1, False
                break
            last = entry.sequence
            if change is not None:
                changes.append(change)
                size += len(change.value)
        if not changes:
            return  # silence: nothing has changed
        self.counters["retained_sent"] += len(changes)
        answer = Answer(ask.number, self.book.epoch, through, is_last, tuple(changes))
        self._effects.append(Tell(ask.receiver, answer))

    def _change_of(self, topic: str, entry: Entry, found: Mapping[str, bytes]) -> Change | None:
        if entry.is_tombstone:
            assert entry.version is not None
            return Change(topic, entry.version, b"")
        if entry.host_digest == ABSENT:
            return None
        packet = found.get(topic, b"") or self._shown.get(topic, b"")
        if digest_of(packet) != entry.host_digest and topic in self._values:
            packet = self._values[topic][1]
        if not packet or digest_of(packet) != entry.host_digest:
            return None
        version = entry.version if entry.is_settled else entry.host
        return Change(topic, version or Version(0, self.identity), packet)

    def _send_push(self, ask: _Ask, found: Mapping[str, bytes]) -> None:
        changes = []
        for topic in ask.filters:
            entry = self.book.get(topic)
            if entry is not None and (entry.is_settled or entry.is_tombstone):
                change = self._change_of(topic, entry, found)
                if change is not None:
                    changes.append(change)
        if changes:
            self.counters["retained_pushed"] += len(changes)
            self._effects.append(Tell(ask.receiver, Push(tuple(changes))))

    # --- messages -----------------------------------------------------------------------------------------------------

    def _on_message(self, sender: int, message: Message) -> None:
        if sender == self.identity:
            return
        self._peers.pop(sender, None)
        self._peers[sender] = None
        if len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)
        match message:
            case Fetch():
                self._on_fetch(sender, message)
            case Answer():
                self._on_answer(sender, message)
            case Push(changes):
                for change in changes:
                    self._take_change(change)
            case Rejoined():
                self._refetch()
            case _:
                assert_never(message)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        for fetch in self.fetches.expired(self._now):
            self._take_held(fetch.held)
            if fetch.is_afresh:
                self._give_up_values(fetch.filters)
        for filter_ in sorted(filter_ for filter_, at in self._lingering.items() if at <= self._now):
            self._release(filter_)
        if self._now >= self._fetch_at:
            self._fetch_at = self._now + self.settings.fetch_interval_s
            self.fetches.want(self._interest)
            for filter_ in (*self._interest, *self.observation.granted):
                self._look_due[filter_] = None
        if self._look is not None and self._look.unjudged:
            self._judge_some(self._look)
        if self._now >= self._shown_until:
            self._shown, self._shown_until = {}, math.inf
        if self._now >= self._confirm_at:
            self._confirm_at = math.inf
            for topic in sorted(self._unconfirmed):
                self._recheck_soon(topic)
            self._unconfirmed.clear()
        if self._now >= self._touched_at:
            self._touched_at = math.inf
            for topic in self._touched:
                self._look_due[topic] = None
        if self._now >= self._sweep_at:
            self._sweep_at = self._now + self.settings.sweep_s
            self._sweep()

    def _give_up_values(self, topics: tuple[str, ...]) -> None:
        """R90: the value of a winner is gone, also elsewhere; take what the host broker holds as the winner.

        If somebody comes back who has the value, its version is the greater one again.
        """
        for topic in topics:
            entry = self.book.get(topic)
            if entry is None or entry.version is None or entry.digest in (ABSENT, entry.host_digest):
                continue
            self.counters["retained_given_up"] += 1
            if entry.host_digest == ABSENT:
                self.book.drop(topic)
            else:
                entry.version, entry.digest = entry.host or Version(0, self.identity), entry.host_digest
                self._note(topic, entry)
            # Older versions of the others were refused before, and the cursors are beyond them.
            self.fetches.want([topic], afresh=True)

    def _sweep(self) -> None:
        """Forget old deletions and unknown topics; find copies that nobody wants (R94, R95)."""
        forgotten_ms = self._wall_ms - self.settings.tombstone_s * 1000
        gone: list[str] = []
        tombstones: list[tuple[int, str]] = []
        for topic, entry in self.book.entries.items():
            if self._pending[topic]:
                continue
            if entry.is_tombstone:
                tombstones.append((entry.changed_ms, topic))
            elif entry.version is None and entry.host_digest == ABSENT:
                gone.append(topic)
            elif self._is_leftover(topic, entry) and topic not in self._leftover:
                self._leftover.add(topic)
                self._look_due[topic] = None
        tombstones.sort()
        surplus = len(tombstones) - self.settings.tombstones_max
        expired = [topic for k, (at_ms, topic) in enumerate(tombstones) if k < surplus or at_ms <= forgotten_ms]
        self.counters["retained_tombstones_expired"] += len(expired)
        for topic in (*gone, *expired):
            self.book.drop(topic)
        self._pending += Counter()  # without the zeros that looking left

    def _is_leftover(self, topic: str, entry: Entry) -> bool:
        """Return whether interest in a copy has ended for good, or had already when this process began."""
        return (
            self._is_copy(entry)
            and entry.host_digest != ABSENT
            and self._now >= self._started_at + self.settings.linger_s
            and not self.wants(topic)
        )

    def _is_copy(self, entry: Entry) -> bool:
        """Return whether the value at the host broker came from another federator."""
        return entry.host is not None and entry.host.federator != self.identity

    def _finish(self) -> None:
        """Do the work after any event: fetches, the next look, records, and the next deadline."""
        if self.fetches.is_due:
            for fetch in self.fetches.begin(self._now + self.settings.fetch_s):
                self._effects.append(Tell(EVERYBODY, fetch))
                for filter_ in fetch.filters:
                    self._look_due.setdefault(filter_, None)
        self._begin_look()
        self._keep()
        self._set_deadline()

    def _keep(self) -> None:
        """Write changes to disk before any other effect (R82)."""
        records = self._records
        for topic in sorted(self.book.dirty):
            entry = self.book.get(topic)
            records[TOPIC_KEY + topic.encode()] = b"" if entry is None else encode_entry(entry)
            if entry is None:
                self._suspects.discard(topic)
        self.book.dirty.clear()
        if self.is_suspicious != self._is_suspicion_saved:
            self._is_suspicion_saved = self.is_suspicious
            records[SUSPECT_KEY] = encode_numbers(1) if self.is_suspicious else b""
        if not records:
            return
        if not self._is_saved:
            self._is_saved = True
            records[STATE_KEY] = encode_numbers(self.book.epoch, self.clock.last)
        self._effects.insert(0, Keep(tuple(records.items())))
        self._records = {}

    def _set_deadline(self) -> None:
        due = [
            self._fetch_at,
            self._sweep_at,
            self._touched_at,
            self._confirm_at,
            self._shown_until,
            self.fetches.deadline,
            *self._lingering.values(),
        ]
        if self._look is not None and self._look.unjudged:
            due.append(self._now)
        if self._look_due and self._look is None and self._is_host_up:
            due.append(max(self._now, self._look_at))
        self.deadline = min(due)

    # --- values in memory ---------------------------------------------------------------------------------------------

    def _remember_value(self, topic: str, version: Version, packet: bytes) -> None:
        former = self._values.pop(topic, None)
        if former is not None:
            self._value_bytes -= len(former[1])
        if not packet or digest_of(packet) == ABSENT:
            return
        self._values[topic] = (version, packet)
        self._value_bytes += len(packet)
        while self._value_bytes > self.settings.value_bytes_max and self._values:
            _, (_, oldest) = self._values.popitem(last=False)
            self._value_bytes -= len(oldest)


def _is_wild(filter_: str) -> bool:
    return "+" in filter_ or "#" in filter_
