"""Statistics of a Parquet file in the form of Delta's log, from the file's footer alone.

Readers use them to skip files: a filter on a column takes only the files whose range of values it may match. Rules:

1. A range may be wider than the values, never narrower. Long strings are cut, and a cut maximum is raised to a string
   that no value exceeds. Times have milliseconds in the log; a maximum is rounded up.
2. A column has a range only if every row group has one. Binary, Boolean and nested columns have none.
3. Floats with NaN have no range, because NaN is not ordered.
4. A column's null count is known for all its rows, or left out.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# As many characters as Spark's own Delta writer keeps.
_TEXT_CHARACTERS_MAX = 32
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(slots=True)
class FileStatistics:
    """Number of rows of a file, and of each column the smallest value, the largest value and the number of nulls."""

    rows: int
    smallest: dict[str, Any] = field(default_factory=dict)
    largest: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the statistics as Delta's log stores them."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": self.smallest,
                "maxValues": self.largest,
                "nullCount": self.nulls,
            }
        )


def file_statistics(footer: pq.FileMetaData) -> FileStatistics:
    """Return the statistics of a file; reading its footer costs about a millisecond."""
    found = FileStatistics(footer.num_rows)
    schema = footer.schema.to_arrow_schema()
    for place in range(footer.num_columns):
        name = footer.schema.column(place).path
        # The name of a nested column holds a dot, and so may that of a plain one: the schema decides.
        if name not in schema.names or pa.types.is_nested(schema.field(name).type):
            continue
        groups = list(_groups(footer, place))
        if any(one is None for one in groups):
            continue
        known = [one for one in groups if one is not None]
        if all(one.has_null_count for one in known):
            found.nulls[name] = sum(one.null_count for one in known)
        valued = [one for one in known if one.num_values]
        if valued and all(one.has_min_max for one in valued):
            _add_range(found, name, min(one.min for one in valued), max(one.max for one in valued))
    return found


def _groups(footer: pq.FileMetaData, place: int) -> Iterator[pq.Statistics | None]:
    for number in range(footer.num_row_groups):
        column = footer.row_group(number).column(place)
        yield column.statistics if column.is_stats_set else None


def _add_range(found: FileStatistics, name: str, smallest: Any, largest: Any) -> None:  # noqa: ANN401 - any column type
    low, high = _lower(smallest), _upper(largest)
    if low is not None and high is not None:
        found.smallest[name], found.largest[name] = low, high


def _lower(value: Any) -> str | int | float | None:  # noqa: ANN401
    """Return a value for the log that is at most `value`; None if the type has no range."""
    match value:
        case bool() | bytes():
            return None
        case int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value[:_TEXT_CHARACTERS_MAX]
        case datetime():
            return _time(value)
        case date():
            return value.isoformat()
        case _:
            return None


def _upper(value: Any) -> str | int | float | None:  # noqa: ANN401
    """Return a value for the log that is at least `value`; None if there is none."""
    match value:
        case str() if len(value) > _TEXT_CHARACTERS_MAX:
            return _raised(value[:_TEXT_CHARACTERS_MAX])
        case datetime():
            return _time(value if value.microsecond % 1000 == 0 else value + _MILLISECOND)
        case _:
            return _lower(value)


def _raised(text: str) -> str | None:
    """Return the shortest string above everything that begins with `text`, or None."""
    for end in range(len(text), 0, -1):
        following = ord(text[end - 1]) + 1
        if following == 0xD800:  # surrogates are no characters
            following = 0xE000
        if following <= 0x10FFFF:
            return text[: end - 1] + chr(following)
    return None


def _time(value: datetime) -> str:
    utc = value if value.tzinfo is None else value.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"
