"""The page `/accounts` of one federator, and its parser: the input of `hanse account`.

    {"id", "epoch", "started_us", "at_us", "left_off",
     "interest": [[group, since_us], ...],
     "accounts": [[measure, origin, epoch, [group, ...], neighbour or null, publications, bytes, since_us], ...],
     "waiting": [[origin, epoch, [group, ...], publications, bytes], ...],
     "gaps": [[kind, since_us, until_us or null, publications or null, detail], ...]}

Rules: all times are microseconds since 1970 by this federator's clock. A page holds at most `ROWS_MAX` accounts, those
with the most publications, and as many interests and waiting rows. `left_off` gives the number of omitted rows. Counts
begin with the process. The federators' own interest, in the management group and in private ones, is omitted.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from hanse.errors import RemoteError
from hanse.federator.gaps import GapBook
from hanse.protocol.accounts import MEASURES, Row
from hanse.protocol.balance import GAPS, Books, Gap, is_internal
from hanse.protocol.machine import Machine

# 10,000 rows are 1.5 MB and take 40 ms to write; the route runs on the event loop.
ROWS_MAX = 10_000


class Accounting:
    """Source of the page."""

    def __init__(self, machine: Machine, clock: Callable[[], float], gaps: GapBook | None = None) -> None:
        """Use the clock of the machine's times; `gaps` are publications that no account counts."""
        self._machine = machine
        self._gaps = GapBook() if gaps is None else gaps
        self._clock = clock
        self._started_us = _now_us()
        self._interest: dict[str, int] = {}

    def note_interest(self, group: str, *, is_added: bool) -> None:
        """Note that local interest in a group began or ended."""
        if is_added:
            self._interest[group] = _now_us()
        else:
            self._interest.pop(group, None)

    def page(self) -> str:
        """Return the page, as JSON."""
        machine = self._machine
        at_us = _now_us()
        now = self._clock()
        rows = sorted(machine.accounts.rows(), key=lambda row: -row.publications)
        waiting = machine.waiting()
        interest = sorted(item for item in self._interest.items() if not is_internal(item[0]))
        left_off = sum(max(0, len(every) - ROWS_MAX) for every in (rows, waiting, interest))
        return json.dumps(
            {
                "id": machine.identity,
                "epoch": machine.epoch,
                "started_us": self._started_us,
                "at_us": at_us,
                "left_off": left_off + machine.accounts.folded + self._gaps.dropped,
                "interest": interest[:ROWS_MAX],
                "accounts": [
                    [
                        row.measure,
                        row.origin,
                        row.epoch,
                        row.groups,
                        row.neighbour if row.neighbour >= 0 else None,
                        row.publications,
                        row.bytes,
                        at_us - round((now - row.since) * 1e6),
                    ]
                    for row in rows[:ROWS_MAX]
                ],
                "waiting": [
                    [run.origin, run.epoch, run.groups, run.length, len(run.body)] for run in waiting[:ROWS_MAX]
                ],
                "gaps": self._gaps.rows(),
            }
        )


def read(page: Mapping[str, Any]) -> Books:
    """Return the books of a page.

    Raises:
        RemoteError: it is not such a page.
    """
    try:
        rows = [_row(*fields) for fields in page["accounts"]]
        waiting = [
            Row("waiting", int(origin), int(epoch), tuple(map(str, groups)), -1, int(count), int(size), 0.0)
            for origin, epoch, groups, count, size in page["waiting"]
        ]
        interest = {str(group): float(since_us) for group, since_us in page["interest"]}
        identity = int(page["id"])
        gaps = [_gap(identity, *fields) for fields in page.get("gaps", ())]
        return Books(identity, float(page["started_us"]), interest, rows, waiting, int(page["left_off"]), gaps)
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteError(
            f"A page of accounts is malformed ({error!r}); expected what `/accounts` of a federator of this version "
            "holds, see docs/operating.md."
        ) from error


def _row(
    measure: str,
    origin: int,
    epoch: int,
    groups: list[str],
    neighbour: int | None,
    publications: int,
    size: int,
    since_us: int,
) -> Row:
    if measure not in MEASURES:
        raise ValueError(measure)
    numbers = int(publications), int(size), float(since_us)
    return Row(
        measure, int(origin), int(epoch), tuple(map(str, groups)), -1 if neighbour is None else int(neighbour), *numbers
    )


def _gap(federator: int, kind: str, since_us: int, until_us: int | None, publications: int | None, detail: str) -> Gap:
    if kind not in GAPS:
        raise ValueError(kind)
    return Gap(
        federator,
        kind,
        float(since_us),
        None if until_us is None else float(until_us),
        None if publications is None else int(publications),
        str(detail),
    )


def _now_us() -> int:
    return time.time_ns() // 1_000
