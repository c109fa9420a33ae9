# ruff: noqa: N802 - the methods have Spark's names
"""Detection of telemetry reporters that fell silent, the one question that cannot wait for gold.

Rules:

1. Time is the stream's time (`received_at`, by the collector's clock), not the time at which Spark processes it. The
   same rows therefore give the same alarms, live or replayed, however they are divided into batches. While nobody
   reports at all, time stands still and there is no alarm: that condition is visible in the collector's own state.
2. A reporter is silent after `silent_s` without a row, and back with its next row. A gap within one batch gives both
   alarms.
3. A reporter that is silent for `forget_s` is forgotten, so that unused ids cost nothing.
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

# Five times the federators' report interval of two seconds: one late or lost report raises no alarm.
SILENT_S = 10.0
FORGET_S = 86_400.0
# Largest delay between rows, for example of collectors at different brokers, at which a row still counts.
LATE_S = 2.0

_TOPIC = rf"^\Q{ROOT}v{VERSION}/\E[a-z]+/[A-Za-z0-9_.:@-]{{1,{REPORTER_CHARS_MAX}}}$"

_SEEN = StructType([StructField("last_ms", LongType(), False), StructField("is_silent", BooleanType(), False)])


class Silence(StatefulProcessor):
    """State of one reporter: the time of its last row, and whether its silence was reported."""

    def __init__(self, silent_s: float = SILENT_S, forget_s: float = FORGET_S) -> None:
        self._silent_ms = round(silent_s * 1000)
        self._forget_ms = round(max(forget_s, silent_s) * 1000)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Store Spark's handle to state and timers."""
        self._handle = handle
        self._seen = handle.getValueState("seen", _SEEN)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ANN401, N803
        """Process the rows of one reporter in one batch, in any order."""
        del timerValues
        found = self._seen.get() if self._seen.exists() else None
        last_ms, is_silent = (found[0], found[1]) if found else (None, False)
        for at_ms in sorted(_milliseconds(row["received_at"]) for row in rows):
            if last_ms is not None and at_ms <= last_ms:
                continue  # late, or at the same time: nothing new
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
        """Report silence, or forget a reporter that has been silent for `forget_s`."""
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
        """Do nothing, because no resource is held."""


def live_alarms(rows: DataFrame, silent_s: float = SILENT_S, forget_s: float = FORGET_S) -> DataFrame:
    """Compute `gold_alarms` from a stream of `mqtt` rows."""
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
    # Spark passes a time without its zone, in the session's zone; sessions of the pipeline use UTC.
    aware = moment if moment.tzinfo else moment.astimezone(UTC)
    return round(aware.timestamp() * 1000)


def _alarm(key: Any, alarm: str, at_ms: int, silent_ms: int) -> Row:  # noqa: ANN401 - Spark's tuple
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return Row(at=at, reporter=str(key[0]), alarm=alarm, silent_s=silent_ms / 1000)
