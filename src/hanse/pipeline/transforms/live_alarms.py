# ruff: noqa: N802 - the methods have Spark's names
"""Who of those that report telemetry has fallen silent: the one question that cannot wait for gold.

Rules:

1. Time is what the stream says (`received_at`, by the collector's clock), not when Spark got round to it. So the same
   rows give the same alarms, however they are cut into batches, live or replayed; and time stands still, and no
   alarm comes, while nobody reports at all: that is the collector's own state to tell.
2. Silent after `silent_s` without a row; back with the next row. A gap that lies within one batch gives both.
3. A reporter that is silent for `forget_s` is forgotten, so that ids nobody uses any more cost nothing.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from hanse.pipeline.schemas.alarms import TABLE
from hanse.telemetry.topic import REPORTER_CHARS_MAX, ROOT, VERSION

# Five reports of the federators' two seconds: one that is late, or lost with a link, calls nobody.
SILENT_S = 10.0
FORGET_S = 86_400.0
# How much later than another a row may come, of another broker's collector for one, and still be counted.
LATE_S = 2.0

_TOPIC = rf"^\Q{ROOT}v{VERSION}/\E[a-z]+/[A-Za-z0-9_.:@-]{{1,{REPORTER_CHARS_MAX}}}$"

_SEEN = StructType([StructField("last_ms", LongType(), False), StructField("is_silent", BooleanType(), False)])


class Silence(StatefulProcessor):
    """One reporter's state: when it was last heard, and whether its silence was told."""

    def __init__(self, silent_s: float = SILENT_S, forget_s: float = FORGET_S) -> None:
        self._silent_ms = round(silent_s * 1000)
        self._forget_ms = round(max(forget_s, silent_s) * 1000)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark gives the handle to state and timers."""
        self._handle = handle
        self._seen = handle.getValueState("seen", _SEEN)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ANN401, N803
        """Rows of one reporter in one batch, in any order."""
        del timerValues
        found = self._seen.get() if self._seen.exists() else None
        last_ms, is_silent = (found[0], found[1]) if found else (None, False)
        for at_ms in sorted(_milliseconds(row["received_at"]) for row in rows):
            if last_ms is not None and at_ms <= last_ms:
                continue  # late, or of the same moment: it says nothing new
            if last_ms is not None and at_ms - last_ms > self._silent_ms:
                if not is_silent:
                    yield _alarm(key, "silent", last_ms + self._silent_ms, self._silent_ms)
                yield _alarm(key, "back", at_ms, at_ms - last_ms)
                is_silent = False
            last_ms = at_ms
        if last_ms is None:
            return
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(last_ms + self._silent_ms + 1)
        self._seen.update((last_ms, is_silent))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ANN401, N803
        """The stream's time has passed the moment at which silence becomes an alarm, or is long enough to forget."""
        del timerValues, expiredTimerInfo
        found = self._seen.get() if self._seen.exists() else None
        if found is None:
            return
        last_ms, is_silent = found
        if is_silent:
            self._seen.clear()
            return
        self._seen.update((last_ms, True))
        self._handle.registerTimer(last_ms + self._forget_ms + 2)
        yield _alarm(key, "silent", last_ms + self._silent_ms, self._silent_ms)

    def close(self) -> None:
        """Nothing is held."""


def live_alarms(rows: DataFrame, silent_s: float = SILENT_S, forget_s: float = FORGET_S) -> DataFrame:
    """`gold_alarms` from a stream of `mqtt` rows."""
    telemetry = rows.where(F.col("topic").rlike(_TOPIC)).select(
        F.element_at(F.split("topic", "/"), -1).alias("reporter"), "received_at"
    )
    return (
        telemetry.withWatermark("received_at", f"{LATE_S} seconds")
        .groupBy("reporter")
        .transformWithState(
            statefulProcessor=Silence(silent_s, forget_s),
            outputStructType=TABLE.struct,
            outputMode="Append",
            timeMode="EventTime",
        )
    )


def _milliseconds(moment: datetime) -> int:
    # Spark hands a session's local time over without its zone; the sessions of the pipeline are in UTC.
    aware = moment if moment.tzinfo else moment.astimezone(UTC)
    return round(aware.timestamp() * 1000)


def _alarm(key: Any, alarm: str, at_ms: int, silent_ms: int) -> Row:  # noqa: ANN401 - Spark's tuple
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return Row(at=at, reporter=str(key[0]), alarm=alarm, silent_s=silent_ms / 1000)
