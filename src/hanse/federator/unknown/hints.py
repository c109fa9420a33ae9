"""Subscriptions that the log never showed, from files of the host broker: its log file and its database.

Rules:

1. The files are read when the broker's counts show unknown subscriptions, and again at growing intervals while some
   are left.
2. The subscriptions in them may have ended: they are interest, and doubtful until the counts agree.
3. A failure is logged once, until the next success.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from hanse.errors import HanseError, LocalError
from hanse.interest import Report, mosquitto_database
from hanse.interest.ledger import Ledger
from hanse.interest.log_replay import replay

AGAIN_S = 10.0
AGAIN_S_MAX = 600.0
_LOOK_EVERY_S = 0.5
# Of a longer log only the end is read.
LOG_BYTES_MAX = 64 * 1024 * 1024
DATABASE_BYTES_MAX = 1024 * 1024 * 1024
_log = logging.getLogger(__name__)
_Held = list[tuple[str, str, int]]


class Hints:
    """Reader of the files, when they are needed.

    Args:
        log, database: the files; None for one that cannot be read.
        own_prefix: prefix of the client ids of federators.
        ledger: the known subscriptions, with the comparison with the broker's counts.
        source: source of the reports.
        take: called with a source and its reports.
    """

    def __init__(
        self,
        log: Path | None,
        database: Path | None,
        *,
        own_prefix: str,
        ledger: Ledger,
        source: str,
        take: Callable[[str, list[Report]], None],
    ) -> None:
        self._log_path = log
        self._database = database
        self._own_prefix = own_prefix
        self._ledger = ledger
        self._source = source
        self._take = take
        self._is_failing = False
        # Reports since a subscription became unknown: those that have ended since then are not given again.
        self._offered: set[tuple[str, str]] = set()

    def check(self) -> list[str]:
        """Return the files in words; raise LocalError if one cannot be read."""
        words = []
        for what, path in (("log file", self._log_path), ("database", self._database)):
            if path is None:
                continue
            try:
                with path.open("rb"):
                    words.append(f"its {what} {path}")
            except OSError as error:
                raise LocalError(
                    f"the broker's {what} {path} cannot be read ({error.strerror}); run the federator as its user"
                ) from error
        return words

    async def watch(self) -> None:
        """Read the files whenever they are needed, until cancelled."""
        loop = asyncio.get_running_loop()
        next_s, again_s = 0.0, AGAIN_S
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            unknown = self._ledger.state.unknown
            if unknown == 0:
                again_s = AGAIN_S
                self._offered.clear()
            elif unknown and loop.time() >= next_s:
                await self._fill()
                next_s, again_s = loop.time() + again_s, min(2 * again_s, AGAIN_S_MAX)

    async def _fill(self) -> None:
        self._ledger.begin_snapshot()
        try:
            held = await asyncio.to_thread(self._read)
        except HanseError as error:
            self._ledger.abandon_snapshot()
            if not self._is_failing:
                _log.warning("subscriptions that are not known here cannot be looked up: %s", error)
            self._is_failing = True
            return
        self._is_failing = False
        reports = self._ledger.take_hints([one for one in held if one[:2] not in self._offered])
        self._offered.update(one[:2] for one in held)
        if reports:
            _log.info("the broker's files show %d subscriptions that were unknown", len(reports))
            self._take(self._source, reports)

    def _read(self) -> _Held:
        held: _Held = []
        if self._log_path is not None:
            held += replay(_end_of(self._log_path, LOG_BYTES_MAX), self._own_prefix)[0]
        if self._database is not None:
            data = _end_of(self._database, DATABASE_BYTES_MAX)
            held += mosquitto_database.parse(data, time.time())
        return held


def _end_of(path: Path, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - bytes_max))
            return file.read(bytes_max)
    except OSError as error:
        raise LocalError(
            f"{path} cannot be read ({error.strerror}); run the federator as the broker's user."
        ) from error
