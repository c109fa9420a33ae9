"""Report of what the disk lost: to the log, to the counters, and to the gaps of `/accounts`.

An id is written `origin/epoch/number`. The parts around the damage tell which ids it lies between. Not all ids
between them went to this destination, so the number of lost publications is known only as records, which lost one part
of `PART_PUBLICATIONS` publications or more.
"""

import logging
from collections import Counter
from collections.abc import Sequence

from hanse.errors import RemoteError
from hanse.federator.damaged import SUFFIX
from hanse.federator.gaps import GapBook
from hanse.federator.outbox import Outbox
from hanse.federator.records import decode
from hanse.protocol.messages import BLOCKED, HOST, Run

_log = logging.getLogger(__name__)


class Losses:
    """The report for one outbox.

    Args:
        outbox: where damages are found.
        counters: where they are counted, as `outbox_damaged_records` and `outbox_damaged_bytes`.
        gaps: what `/accounts` shows.
    """

    def __init__(self, outbox: Outbox, *, counters: Counter[str], gaps: GapBook) -> None:
        self._outbox = outbox
        self._counters = counters
        self._gaps = gaps

    def report(self) -> None:
        """Report what was found since the last call; one that cost nothing is only logged."""
        damages, self._outbox.damages = self._outbox.damages, []
        for damage in damages:
            before, after = _runs(damage.before), _runs(damage.after)
            where = (
                f"{damage.file} in the outbox, {damage.size} bytes from byte {damage.start} on, positions "
                f"{damage.first} to {damage.end - 1}, for {_destination(damage.way)}; "
                f"the file is kept as {damage.file}{SUFFIX}"
            )
            if not damage.records:
                _log.warning("damaged on disk, but nothing was lost: %s", where)
                continue
            what = f"up to {damage.records} records{_between(before, after)}: {where}"
            _log.error("damaged on disk: %s. Check the disk. Publications that only this outbox held are lost.", what)
            self._gaps.add("damaged on disk", what, until_us=self._gaps.now_us())
        counted = self._outbox.counters
        if counted.damaged or counted.put_aside:
            self._counters["outbox_damaged"] = counted.damaged
            self._counters["outbox_damaged_records"] = counted.damaged_records
            self._counters["outbox_damaged_bytes"] = counted.damaged_bytes


def _runs(payload: bytes) -> list[Run]:
    try:
        return [run for _, runs in decode(payload) for run in runs]
    except RemoteError:
        return []


def _between(before: Sequence[Run], after: Sequence[Run]) -> str:
    words = []
    if before:
        last = before[-1]
        words.append(f"after publication {last.origin}/{last.epoch}/{last.first + last.length - 1}")
    if after:
        words.append(f"before publication {after[0].origin}/{after[0].epoch}/{after[0].first}")
    return f" {' and '.join(words)}" if words else ""


def _destination(way: int) -> str:
    if way == HOST:
        return "the host broker"
    return "a federator with a route" if way == BLOCKED else f"federator {way}"
