"""Custody: the accounts of which QoS 1 and 2 publications were given to whom, and of what may be acknowledged.

A *giver* (the host broker, a neighbour, the outbox) hands in a batch, which becomes an `Entry`. The batch goes on to
one or more destinations (neighbours, the host broker). Each destination is a `Duty` of the entry, and `Way` is the
state of one destination. The giver gets its acknowledgement when every duty of the entry is done or is on disk. This
module keeps the books. `forwarding` decides which route a publication takes.

The rules (docs/protocol.md R55 to R78):

- A destination has a limited number of bytes under way. Further runs wait behind them in order, and no destination
  waits for another.
- What waits longer than `outbox_after_s`, or is with a neighbour for longer than `stuck_after_s`, is written to the
  outbox. Then its giver is acknowledged, and what waits on disk is no longer in memory.
- A lost destination gives back what it was sent. What was on disk stays there, in order, until the destination is open
  again.
- This module never decides to drop anything. What is given up is counted where it is given up.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from hanse.protocol.accounts import Accounts
from hanse.protocol.effects import Acknowledge, Deliver, Discard, Effect, Fetch, SendRuns, SendSummaries, Store
from hanse.protocol.messages import BLOCKED, HOST, Run, Summary
from hanse.protocol.orphans import Orphans
from hanse.protocol.settings import Settings

# Givers that are neither a neighbour nor the host broker: nobody waits for the answer, or a record on disk does.
NOBODY = -3
DISK = -4

# Interval between checks of waiting duties.
CHECK_EVERY_S = 0.1
# Minimum size of a publication in the window of a destination, so that 8,192 of them are under way at most.
# With 100,000, a federator that had just come back got seconds of them before the next control frame, and was taken for
# lost again.
PUBLICATION_BYTES_MIN = 2 << 10
# Bytes that are fetched from disk for a destination before the fetched ones have left.
FETCH_BYTES = 1 << 20
# Amount that may wait in memory for a destination that is merely busy, and for how many times `stuck_after_s`.
BACKLOG_BYTES = 64 << 20
BUSY_FACTOR = 5

# Giver, its epoch, the id of a run's first publication, and a group.
Key = tuple[int, int, int, int, str]
_Wait = tuple[int, tuple[str, ...]]


class Entry:
    """One batch, and the giver that waits for its acknowledgement."""

    __slots__ = ("followers", "giver", "keys", "owed", "receipt", "record")

    def __init__(self, giver: int, receipt: int = 0, record: tuple[int, int] | None = None) -> None:
        self.giver = giver
        # Value that the giver needs back: its receipt, or the (destination, position) of a record on disk.
        self.receipt = receipt
        self.record = record
        # Duties that are not done, and one more while the batch is still being handed out.
        self.owed = 1
        self.keys: list[Key] = []
        # Batches that hold the same publications again, from the same giver (R56).
        self.followers: list[Entry] = []


# Returns the part of a former process's record for the host broker that has not been delivered since (R57).
Sift = Callable[[Sequence[Run]], Sequence[Run]]


class Duty:
    """Runs of one batch that one destination must acknowledge."""

    __slots__ = (
        "asked_at",
        "entry",
        "position",
        "runs",
        "sent_at",
        "since",
        "size",
        "source",
        "summaries",
        "token",
        "weight",
    )

    def __init__(self, entry: Entry, runs: Sequence[Run], since: float, source: int) -> None:
        self.entry = entry
        self.runs = runs
        self.since = since
        self.sent_at = since
        # The neighbour that the runs came from. They do not go back there.
        self.source = source
        self.size = sum([len(run[7]) for run in runs])
        # Its share of the window. A small publication takes a neighbour as long as one of this size.
        self.weight = max(self.size, PUBLICATION_BYTES_MIN * sum([run[3] for run in runs]))
        self.token = 0
        # Position in the outbox of the destination; -1 if the duty is not there.
        self.position = -1
        # Summaries in the place of runs, and when the neighbour was last sent them.
        self.summaries: tuple[Summary, ...] = ()
        self.asked_at = since


class Way:
    """State of one destination: what was sent to a neighbour or to the host broker, and what waits for it."""

    __slots__ = (
        "answered_at",
        "backlog",
        "disk",
        "front",
        "identity",
        "is_fetching",
        "resent_at",
        "sent",
        "sent_weight",
        "stale_fetches",
    )

    def __init__(self, identity: int) -> None:
        self.identity = identity
        # Token to what is under way, in the order in which it was sent.
        self.sent: dict[int, Duty] = {}
        self.sent_weight = 0
        # Waiting batches in order: fetched from disk, on disk as ranges of positions, and in memory.
        self.front: deque[Duty] = deque()
        self.disk: deque[list[int]] = deque()
        self.backlog: deque[Duty] = deque()
        self.is_fetching = False
        # Answers still to come to fetches from before the destination was lost.
        self.stale_fetches = 0
        self.resent_at = 0.0
        # When the destination last acknowledged anything.
        self.answered_at = float("-inf")

    @property
    def is_idle(self) -> bool:
        """True if nothing is under way and nothing waits."""
        return not (self.sent or self.front or self.disk or self.backlog)

    def keep_on_disk(self, position: int) -> None:
        """Add a record that waits on disk, behind all others."""
        if self.disk and self.disk[-1][1] == position:
            self.disk[-1][1] = position + 1
        else:
            self.disk.append([position, position + 1])


class Custody:
    """The custody accounts of one federator.

    Attributes:
        effects: Effects to be carried out, in order. Callers fetch them with `take_effects`.
    """

    def __init__(self, settings: Settings, counters: Counter[str], accounts: Accounts) -> None:
        self._settings = settings
        self._accounts = accounts
        self._counters = counters
        self._ways: dict[int, Way] = {HOST: Way(HOST), BLOCKED: Way(BLOCKED)}
        # The destinations that can be sent to, now or after what waits before. Other modules only read it.
        self.open_ways: set[int] = {HOST}
        # The position of the next record of each destination. It outlives the `Way`.
        self._ends: dict[int, int] = {}
        self._next_token = 1
        self._in_progress: dict[Key, Entry] = {}
        # Source and groups of the runs that have no route now: in memory, and as positions of what is on disk.
        self._blocked: dict[_Wait, list[Duty]] = {}
        self._blocked_on_disk: dict[_Wait, list[list[int]]] = {}
        # Ranges of positions that are being fetched, and the source of their records.
        self._fetched_from: list[tuple[int, int, int]] = []
        self._unsorted_on_disk: deque[list[int]] = deque()
        self.orphans = Orphans()
        self.check_at = float("inf")
        self.effects: list[Effect] = []
        # The records for the host broker before this position were left by a former process.
        self._former_host_end = 0

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Publications that are under way or wait in memory."""
        duties = [duty for way in self._ways.values() for duty in (*way.sent.values(), *way.front, *way.backlog)]
        duties += [duty for blocked in self._blocked.values() for duty in blocked]
        return sum(run.length for duty in duties for run in duty.runs)

    def held(self) -> list[Run]:
        """Return the runs that wait in memory, for their turn or for a route."""
        duties = [duty for way in self._ways.values() for duty in (*way.front, *way.backlog)]
        duties += [duty for blocked in self._blocked.values() for duty in blocked]
        return [run for duty in duties for run in duty.runs]

    @property
    def records(self) -> int:
        """Records on disk that are not under way."""
        ranges = [r for way in self._ways.values() for r in way.disk]
        ranges += [r for positions in self._blocked_on_disk.values() for r in positions]
        return sum(end - start for start, end in [*ranges, *self._unsorted_on_disk]) + self.orphans.count

    @property
    def has_blocked(self) -> bool:
        """True if anything waits for a route."""
        return bool(self._blocked or self._blocked_on_disk or self._unsorted_on_disk)

    def backlog_of(self, identity: int) -> int:
        """Return how many batches and records wait for a destination or are under way to it."""
        way = self._ways.get(identity)
        if way is None:
            return 0
        return len(way.sent) + len(way.front) + len(way.backlog) + sum(end - start for start, end in way.disk)

    def pending(self, identity: int) -> dict[str, dict[tuple[int, int], list[tuple[int, int]]]]:
        """Return what is under way to a neighbour or waits in memory: ranges of ids by group, origin and epoch."""
        found: dict[str, dict[tuple[int, int], list[tuple[int, int]]]] = {}
        way = self._ways.get(identity)
        for duty in () if way is None else (*way.sent.values(), *way.front, *way.backlog):
            for run in duty.runs:
                for group in run.groups:
                    ids = found.setdefault(group, {}).setdefault((run.origin, run.epoch), [])
                    ids.append((run.first, run.length))
        return found

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self.effects = self.effects, []
        return effects

    # --- entries ------------------------------------------------------------------------------------------------------

    def open(self, giver: int, receipt: int) -> Entry:
        """Begin a batch. Call `close` when the batch has been handed out."""
        return Entry(giver if receipt else NOBODY, receipt)

    def note(self, entry: Entry, run: Run) -> None:
        """Note that the entry holds this run, so that a duplicate from the same giver waits with the entry (R56)."""
        if entry.giver >= 0:
            for group in run[6]:
                key = (entry.giver, run[0], run[1], run[2], group)
                entry.keys.append(key)
                self._in_progress[key] = entry

    def follow(self, entry: Entry, run: Run) -> None:
        """Let a duplicate wait for the first one from the same giver, so that both are acknowledged together (R56).

        A giver that has restarted is the same giver: its former process no longer has custody, so until the first one
        is handed on or on disk, nobody else has it but the new process.

        This holds only if both came for the same group. Each group has its own tree, and waiting across trees could
        close a circle.
        """
        for group in run[6]:
            first = self._in_progress.get((entry.giver, run[0], run[1], run[2], group))
            if first is not None and first is not entry and entry not in first.followers:
                first.followers.append(entry)
                entry.owed += 1

    def close(self, entry: Entry) -> None:
        """End the handing out of a batch."""
        self._settle(entry)

    def _settle(self, entry: Entry) -> None:
        entry.owed -= 1
        if entry.owed:
            return
        for key in entry.keys:
            if self._in_progress.get(key) is entry:
                del self._in_progress[key]
        if entry.record is not None:
            way, position = entry.record
            self.effects.append(Discard(way, (position,)))
        elif entry.receipt:
            self.effects.append(Acknowledge(entry.giver, (entry.receipt,)))
        for follower in entry.followers:
            self._settle(follower)

    # --- handing on ---------------------------------------------------------------------------------------------------

    def send(self, now: float, entry: Entry, identity: int, runs: Sequence[Run], source: int) -> int:
        """Send runs to a destination. Return the token of the acknowledgement, or 0 if the runs wait for their turn."""
        way = self._ways.get(identity)
        if way is None:
            way = self._ways[identity] = Way(identity)
        duty = Duty(entry, runs, now, source)
        entry.owed += 1
        self.check_at = min(self.check_at, now + CHECK_EVERY_S)
        is_busy = way.backlog or way.disk or way.front or way.sent_weight >= self._settings.window_bytes
        if is_busy or identity not in self.open_ways:
            way.backlog.append(duty)
            self._count("queued", way, runs)
            return 0
        return self._put_under_way(now, way, duty)

    def _put_under_way(self, now: float, way: Way, duty: Duty) -> int:
        token = duty.token = self._next_token
        self._next_token = token + 1
        duty.sent_at = now
        way.sent[token] = duty
        way.sent_weight += duty.weight
        return token

    def summarise(self, now: float, identity: int, summaries: tuple[Summary, ...]) -> None:
        """Send a neighbour summaries of some groups, again and again until it acknowledges them (R72)."""
        if identity not in self.open_ways:
            return  # a new link sends new summaries
        way = self._ways[identity]
        duty = Duty(Entry(NOBODY), (), now, NOBODY)
        duty.summaries = summaries
        token = self._put_under_way(now, way, duty)
        self.check_at = min(self.check_at, now + CHECK_EVERY_S)
        self.effects.append(SendSummaries(identity, summaries, token))

    def block(self, now: float, entry: Entry, run: Run, source: int) -> None:
        """Let a run without a route wait, and its giver with it (R63)."""
        entry.owed += 1
        self._counters["blocked"] += run[3]
        self._blocked.setdefault((source, run[6]), []).append(Duty(entry, (run,), now, source))
        self.check_at = min(self.check_at, now + CHECK_EVERY_S)

    def acknowledge(self, now: float, identity: int, tokens: Iterable[int]) -> None:
        """Finish the duties whose tokens a destination has acknowledged."""
        way = self._ways.get(identity)
        if way is None:
            return
        for token in tokens:
            duty = way.sent.pop(token, None)
            if duty is not None:
                way.sent_weight -= duty.weight
                way.answered_at = now
                self._finish(way, duty)
        if way.backlog or way.disk or way.front:
            self._pump(now, way)

    def _finish(self, way: Way, duty: Duty) -> None:
        if duty.position >= 0 and duty.entry.record is None:
            self.effects.append(Discard(way.identity, (duty.position,)))  # done before it was on disk
        self._settle(duty.entry)

    def _pump(self, now: float, way: Way) -> None:
        """Send what waits, in order, as far as the window allows."""
        window = self._settings.window_bytes
        while way.identity in self.open_ways and way.sent_weight < window:
            if way.front:
                duty = way.front.popleft()
            elif way.disk:
                if not way.is_fetching:
                    way.is_fetching = True
                    self.effects.append(Fetch(way.identity, way.disk[0][0], way.disk[0][1]))
                return
            elif way.backlog:
                duty = way.backlog.popleft()
            else:
                return
            self._launch(way, duty, self._put_under_way(now, way, duty))

    def _launch(self, way: Way, duty: Duty, token: int) -> None:
        if way.identity == HOST:
            self.effects.append(Deliver(tuple(duty.runs), token))
        else:
            self._count("forwarded", way, duty.runs)
            self.effects.append(SendRuns(way.identity, tuple(duty.runs), token))

    def _count(self, measure: str, way: Way, runs: Sequence[Run]) -> None:
        if way.identity >= 0:
            for run in runs:
                self._accounts.count(measure, run, neighbour=way.identity)

    # --- destinations that open and close -----------------------------------------------------------------------------

    def open_way(self, now: float, identity: int) -> None:
        """Let a neighbour be sent what is for it."""
        way = self._ways.setdefault(identity, Way(identity))
        if identity not in self.open_ways:
            self.open_ways.add(identity)
            way.resent_at = now
            self._pump(now, way)

    def close_way(self, identity: int, *, is_for_good: bool = False) -> list[Duty]:
        """Close the destination of a lost neighbour. Return what was under way or waited in memory, in order.

        What is on disk for the neighbour stays there, except a record under way to a neighbour that is gone for good.
        """
        way = self._ways.get(identity)
        if way is None:
            return []
        self.open_ways.discard(identity)
        way.stale_fetches += way.is_fetching
        way.is_fetching = False
        back: list[int] = []
        lost: list[Duty] = []
        for duty in (*way.sent.values(), *way.front):
            if duty.entry.record == (identity, duty.position) and not is_for_good:
                back.append(duty.position)
            elif duty.summaries:
                self._settle(duty.entry)
            else:
                lost.append(duty)
        lost.extend(way.backlog)
        for position in sorted(back, reverse=True):
            if way.disk and way.disk[0][0] == position + 1:
                way.disk[0][0] = position
            else:
                way.disk.appendleft([position, position + 1])
        way.sent.clear()
        way.sent_weight = 0
        way.front.clear()
        way.backlog.clear()
        return lost

    def stuck(self, identity: int) -> list[Duty]:
        """Return what was sent to a neighbour, was not acknowledged, and was written to disk since then (R62).

        Records that were sent from the disk do not count.
        """
        way = self._ways.get(identity)
        sent = () if way is None else way.sent.values()
        return [duty for duty in sent if duty.entry.record == (identity, duty.position) and duty.source != NOBODY]

    def hold(self, identity: int, duty: Duty, runs: Sequence[Run]) -> None:
        """Keep runs of a duty that `close_way` gave back, for the neighbour, until it is back (R75, R76)."""
        duty.entry.owed += 1
        self._ways[identity].backlog.append(Duty(duty.entry, runs, duty.since, duty.source))

    def release(self, identity: int, duty: Duty) -> None:
        """End a duty that `close_way` or `take_blocked` gave back and that was handed on otherwise."""
        if duty.position >= 0 and duty.entry.record is None:
            self.effects.append(Discard(identity, (duty.position,)))
        self._settle(duty.entry)

    def forget_way(self, now: float, identity: int) -> int:
        """Orphan the records of a neighbour that is gone for good, to be rerouted. Return how many there are."""
        way = self._ways.pop(identity, None)
        self.open_ways.discard(identity)
        if way is None:
            return 0
        self.check_at = min(self.check_at, now + CHECK_EVERY_S)
        return self.orphans.add(identity, way.disk)

    # --- runs without a route -----------------------------------------------------------------------------------------

    def blocked_keys(self) -> list[tuple[int, tuple[str, ...]]]:
        """Return source and groups of everything that waits for a route."""
        return sorted({*self._blocked, *self._blocked_on_disk})

    def take_blocked(self, source: int, groups: tuple[str, ...]) -> list[Duty]:
        """Return what waits in memory for this, and fetch what is on disk. Hand each on and `release` it."""
        for start, end in self._blocked_on_disk.pop((source, groups), ()):
            self._fetched_from.append((start, end, source))
            self.effects.append(Fetch(BLOCKED, start, end))
        return self._blocked.pop((source, groups), [])

    def take_sources(self, positions: Iterable[int], end: int) -> list[int]:
        """Return the sources of fetched records, up to position `end`, as far as this process knows them."""
        fetched_from = self._fetched_from
        found = [
            next((source for first, last, source in fetched_from if first <= position < last), NOBODY)
            for position in positions
        ]
        self._fetched_from = [one for one in fetched_from if one[1] != end]
        return found

    def fetch_unsorted(self) -> None:
        """Fetch what an earlier process left on disk because it had no route."""
        while self._unsorted_on_disk:
            start, end = self._unsorted_on_disk.popleft()
            self.effects.append(Fetch(BLOCKED, start, end))

    def keep_blocked(self, source: int, groups: tuple[str, ...], position: int) -> None:
        """Note that a record waits on disk for a route."""
        _add_position(self._blocked_on_disk.setdefault((source, groups), []), position)

    # --- the disk -----------------------------------------------------------------------------------------------------

    def restore(self, ranges: dict[int, tuple[int, int]]) -> None:
        """Take over the outbox of an earlier process: destination to the first position and the end of its records."""
        self._former_host_end = ranges.get(HOST, (0, 0))[1]
        for identity, (first, end) in ranges.items():
            way = self._ways.setdefault(identity, Way(identity))
            self._ends[identity] = end
            if first < end and identity == BLOCKED:
                self._unsorted_on_disk.append([first, end])
            elif first < end:
                way.disk.append([first, end])
                if identity in self.open_ways:
                    self._pump(0.0, way)

    def check(self, now: float) -> None:
        """Write what has waited for too long to the outbox, and send again what was not acknowledged."""
        settings = self._settings
        is_busy = False
        for way in list(self._ways.values()):
            stuck, late = self._overdue(now, way)
            self._store(way, [*stuck, *late])
            if way.identity in self.open_ways and way.identity != HOST:
                self._send_again(now, way)
            is_busy = is_busy or bool(way.sent or way.backlog)
        blocked = [
            duty
            for duties in self._blocked.values()
            for duty in duties
            if duty.position < 0 and now - duty.since > settings.outbox_after_s
        ]
        self._store(self._ways[BLOCKED], blocked)
        fetch = self.orphans.ask(now)
        if fetch is not None:
            self.effects.append(fetch)
        is_busy = is_busy or self.orphans.count > 0
        self.check_at = now + CHECK_EVERY_S if is_busy or self._blocked else float("inf")

    def _overdue(self, now: float, way: Way) -> tuple[list[Duty], list[Duty]]:
        """Return what must go to disk of a destination: of what is under way, and of what waits (R77).

        A destination that acknowledges is merely busy. What waits behind its window stays in memory for a while, within
        a limit. When it was written to disk at once, 10 KiB publications cost a saturated link three times the
        processor time.
        """
        settings = self._settings
        stuck: list[Duty] = []
        for duty in way.sent.values():
            if now - duty.sent_at <= settings.stuck_after_s:
                break
            if duty.position < 0 and duty.runs and duty.entry.giver != NOBODY:
                stuck.append(duty)
        waiting = [duty for duty in way.backlog if duty.position < 0]
        if way.identity not in self.open_ways or now - way.answered_at > settings.stuck_after_s:
            return stuck, [duty for duty in waiting if now - duty.since > settings.outbox_after_s]
        excess = sum([duty.size for duty in waiting]) - BACKLOG_BYTES
        late = []
        for duty in waiting:
            if excess <= 0 and now - duty.since <= BUSY_FACTOR * settings.stuck_after_s:
                break
            excess -= duty.size
            late.append(duty)
        return stuck, late

    def _store(self, way: Way, duties: list[Duty]) -> None:
        records: list[tuple[Run, ...]] = []
        for duty in duties:
            if duty.entry.record is not None:
                continue  # it is on disk already, perhaps as the record of another destination
            duty.position = self._ends.get(way.identity, 0) + len(records)
            records.append(tuple(duty.runs))
        if records:
            position = self._ends.get(way.identity, 0)
            self._ends[way.identity] = position + len(records)
            self.effects.append(Store(way.identity, position, tuple(records)))

    def _send_again(self, now: float, way: Way) -> None:
        wait_s, ask_s = self._settings.retransmission_s, self._settings.asking_s
        is_due = now - way.resent_at >= wait_s
        for duty in list(way.sent.values()):
            if now - duty.sent_at < ask_s:
                break
            if duty.summaries:
                if now - duty.asked_at >= ask_s:
                    duty.asked_at = now
                    summaries = self._aged(duty.summaries, now - duty.sent_at)
                    self.effects.append(SendSummaries(way.identity, summaries, duty.token))
            elif is_due and now - duty.sent_at >= wait_s:  # R60
                way.resent_at = now
                self._counters["retransmitted"] += len(duty.runs)
                self._launch(way, duty, duty.token)

    def _aged(self, summaries: tuple[Summary, ...], late_s: float) -> tuple[Summary, ...]:
        """Increase the ages of summaries that are sent again later, so that they reach as far back as before."""
        age_ms_max = math.ceil(self._settings.retention_s_max * 1000)
        late_ms = math.ceil(late_s * 1000)
        return tuple([one._replace(age_ms=min(one.age_ms + late_ms, age_ms_max)) for one in summaries])

    def stored(self, identity: int, end: int) -> None:
        """Acknowledge what was stored for a destination up to a position, because it is on disk now."""
        if identity == BLOCKED:
            self._blocked_stored(end)
            return
        way = self._ways.get(identity)
        if way is None:
            return
        for duty in way.sent.values():
            if 0 <= duty.position < end:
                self._hand_to_disk(identity, duty)
        kept: deque[Duty] = deque()
        for duty in way.backlog:
            is_stored = 0 <= duty.position < end
            if is_stored:
                self._hand_to_disk(identity, duty)
            if is_stored and not kept:
                way.keep_on_disk(duty.position)
            else:
                kept.append(duty)
        way.backlog = kept

    def _blocked_stored(self, end: int) -> None:
        for wait, duties in list(self._blocked.items()):
            kept = []
            for duty in duties:
                if 0 <= duty.position < end:
                    self._hand_to_disk(BLOCKED, duty)
                    self.keep_blocked(*wait, duty.position)
                else:
                    kept.append(duty)
            if kept:
                self._blocked[wait] = kept
            else:
                del self._blocked[wait]

    def _hand_to_disk(self, identity: int, duty: Duty) -> None:
        if duty.entry.record is None:
            entry, duty.entry = duty.entry, Entry(DISK, record=(identity, duty.position))
            self._settle(entry)

    def fetched(
        self, now: float, identity: int, records: Sequence[tuple[int, Sequence[Run]]], end: int, sift: Sift
    ) -> None:
        """Take records of a neighbour or the host broker that were read from the front of the disk, up to `end`."""
        way = self._ways.get(identity)
        if way is None:
            return
        if way.stale_fetches:
            way.stale_fetches -= 1  # each fetch is answered once, in order
            return
        if not way.is_fetching:
            return
        way.is_fetching = False
        way.disk[0][0] = end
        if way.disk[0][0] >= way.disk[0][1]:
            way.disk.popleft()
        for position, runs in records:
            is_former = identity == HOST and position < self._former_host_end
            duty = Duty(Entry(DISK, record=(identity, position)), sift(runs) if is_former else runs, now, NOBODY)
            duty.position = position
            if duty.runs:
                way.front.append(duty)
            else:
                self.close(duty.entry)
        self.check_at = min(self.check_at, now + CHECK_EVERY_S)
        self._pump(now, way)


def _add_position(ranges: list[list[int]], position: int) -> None:
    if ranges and ranges[-1][1] == position:
        ranges[-1][1] = position + 1
    else:
        ranges.append([position, position + 1])
