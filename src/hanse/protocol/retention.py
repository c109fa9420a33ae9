"""The retention buffer: QoS 1 and 2 publications of the last seconds, for neighbours that may have missed some.

Custody alone is not enough. After a loss, the new route runs through federators that have seen a publication and would
drop it. So each federator keeps what it has passed on for (K + 2)·A + B. On every new mesh edge, both sides tell what
they have and send what the other lacks (docs/protocol.md R68). Some publications are kept for longer. A group's cores
may not have found each other by then: their meshes will meet, and what went through one is missing in the other. And a
neighbour that was just told of publications has yet to ask for them.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import inf

from hanse.protocol.messages import Run, Summary
from hanse.protocol.packets import split

# A run is cut into pieces for up to this many gaps. Beyond, the whole run is sent, because duplicates do no harm.
GAPS_MAX = 64

# Origin and epoch; the first id and the number of ids.
Source = tuple[int, int]
Ranges = list[tuple[int, int]]
# Publications under way to the asking neighbour, by group.
Pending = Mapping[str, Mapping[Source, Ranges]]
NOTHING: Pending = {}


class Retention:
    """The retention buffer of one federator, oldest first."""

    __slots__ = ("_bytes", "_bytes_max", "_counters", "_keep_s", "_keep_s_max", "_old", "_renewed_at", "_runs")

    def __init__(self, keep_s: float, keep_s_max: float, bytes_max: int, counters: Counter[str]) -> None:
        self._keep_s = keep_s
        self._keep_s_max = keep_s_max
        self._bytes_max = bytes_max
        self._counters = counters
        self._runs: deque[tuple[float, Run]] = deque()
        # Runs that are kept for longer. All of them are older than `_runs`.
        self._old: deque[tuple[float, Run]] = deque()
        # Group to when it was last found contested, or told of. From then on it is kept for another `keep_s`.
        self._renewed_at: dict[str, float] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Size of all runs that are kept."""
        return self._bytes

    def add(self, now: float, run: Run) -> None:
        """Keep a run. Beyond the limit the oldest are dropped."""
        self._runs.append((now, run))
        self._bytes += len(run[7])
        while self._bytes > self._bytes_max:
            _, oldest = (self._old or self._runs).popleft()
            self._counters["retention_cut"] += oldest.length
            self._bytes -= len(oldest.body)

    def age(self, now: float, is_contested: Callable[[str], bool]) -> None:
        """Drop runs older than `keep_s`, unless one of their groups was contested, or told of, within that time.

        In that case meshes have only just met, and federators that lack runs have yet to be told of them or to ask for
        them.
        """
        old, self._old = self._old, deque()
        while self._runs and self._runs[0][0] < now - self._keep_s:
            old.append(self._runs.popleft())
        recent: dict[str, float] = {}
        for group in {group for _, run in chain(old, self._runs) for group in run.groups}:
            renewed_at = now if is_contested(group) else self._renewed_at.get(group, -inf)
            if renewed_at >= now - self._keep_s:
                recent[group] = renewed_at
        self._renewed_at = recent
        for at, run in old:
            if at >= now - self._keep_s_max and any(group in recent for group in run.groups):
                self._old.append((at, run))
            else:
                self._bytes -= len(run.body)

    def contested(self, is_contested: Callable[[str], bool], bytes_max: int) -> list[Run]:
        """Return the newest runs of contested groups, for these groups alone, in order, up to `bytes_max`."""
        found: list[Run] = []
        for _, run in reversed([*self._old, *self._runs]):
            groups = tuple(filter(is_contested, run.groups))
            bytes_max -= len(run.body) if groups else 0
            if bytes_max < 0:
                break
            if groups:
                found.append(run._replace(groups=groups))
        return found[::-1]

    def since(self, time: float) -> list[tuple[float, Run]]:
        """Return the runs that are kept since a time, oldest first, with the times at which they were added."""
        return [entry for entry in self._kept() if entry[0] >= time]

    def _kept(self) -> Iterator[tuple[float, Run]]:
        return chain(self._old, self._runs)

    def summaries(self, now: float, ages_ms: Mapping[str, int]) -> tuple[Summary, ...]:
        """Return summaries of these groups. Each tells the age from which on more is wanted."""
        have: dict[str, dict[Source, Ranges]] = {group: {} for group in ages_ms}
        for _, run in self._kept():
            for group in run.groups:
                if group in have:
                    have[group].setdefault((run.origin, run.epoch), []).append((run.first, run.length))
        out = []
        for group in sorted(have):
            known = tuple((*source, _joined(ranges)) for source, ranges in sorted(have[group].items()))
            if known:
                self._renewed_at[group] = now
            out.append(Summary(group, ages_ms[group], known))
        return tuple(out)

    def missing(self, now: float, summaries: Iterable[Summary], pending: Pending = NOTHING) -> list[Run]:
        """Return runs of these groups that are recent enough and neither in the summaries nor pending."""
        wanted = {
            summary.group: (now - summary.age_ms / 1000, _with_pending(summary, pending.get(summary.group, {})))
            for summary in summaries
        }
        missing: list[Run] = []
        for at, run in self._kept():
            by_gaps: dict[tuple[tuple[int, int], ...], list[str]] = {}
            for group in run.groups:
                since, have = wanted.get(group, (at, None))
                if have is None or at < since:
                    continue
                gaps = _gaps(run.first, run.length, have.get((run.origin, run.epoch), ()))
                if gaps:
                    by_gaps.setdefault(gaps, []).append(group)
            for gaps, groups in by_gaps.items():
                missing += _pieces(run._replace(groups=tuple(groups)), gaps)
        return missing


def _with_pending(summary: Summary, pending: Mapping[Source, Ranges]) -> dict[Source, tuple[tuple[int, int], ...]]:
    have = {(origin, epoch): ranges for origin, epoch, ranges in summary.have}
    for source, ranges in pending.items():
        have[source] = _joined([*have.get(source, ()), *ranges])
    return have


def _joined(ranges: Ranges) -> tuple[tuple[int, int], ...]:
    """Return the same ids in as few ranges as possible."""
    out: Ranges = []
    for first, count in sorted(ranges):
        if out and first <= out[-1][0] + out[-1][1]:
            start, length = out[-1]
            out[-1] = (start, max(length, first + count - start))
        else:
            out.append((first, count))
    return tuple(out)


def _gaps(first: int, count: int, have: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the ids of a run that are in none of the ranges, which are in order."""
    gaps: Ranges = []
    start, end = first, first + count
    for low, length in have:
        if low + length <= start:
            continue
        if low >= end:
            break
        if low > start:
            gaps.append((start, low - start))
        start = low + length
    if start < end:
        gaps.append((start, end - start))
    return tuple(gaps)


def _pieces(run: Run, gaps: tuple[tuple[int, int], ...]) -> list[Run]:
    if gaps == ((run.first, run.length),) or len(gaps) > GAPS_MAX:
        return [run]
    spans = split(run.body)
    return [
        run._replace(
            first=first,
            length=count,
            body=run.body[spans[first - run.first][0] : spans[first - run.first + count - 1][1]],
        )
        for first, count in gaps
    ]
