"""Fixtures for the tests of the tables: one Spark session, and tables written as text.

`HANSE_TEST_SPARK=connect pytest tests/pipeline/analytics` runs the same suite over Spark Connect, against a server
inside the test process; `HANSE_TEST_SPARK=sc://host:15002` uses a server elsewhere. The default is a classic session.
"""

import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from hanse.pipeline import register
from hanse.pipeline.schemas.table import Table
from hanse.pipeline.session import SETTINGS

START = datetime(2026, 1, 1, tzinfo=UTC)
BLANKS: dict[str, Any] = {
    "string": "",
    "long": 0,
    "double": 0.0,
    "boolean": False,
    "binary": b"",
    "timestamp": START,
    "strings": [],
}

Make = Callable[..., DataFrame]
Check = Callable[..., None]


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    mode = os.environ.get("HANSE_TEST_SPARK", "classic")
    if mode == "classic":
        yield request.getfixturevalue("spark")  # the session that all tests of the pipeline share
        return
    # The Python workers are separate processes: they must import this source tree, not an installed package.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[3] / "src")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.remote("local[2]" if mode == "connect" else mode).getOrCreate()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    register(session)
    yield session
    session.stop()


def value_of(kind: str, value: Any) -> Any:
    """Convert a value of a test table; times are written as seconds after `START`."""
    if kind == "timestamp" and isinstance(value, int | float):
        return START + timedelta(microseconds=round(value * 1_000_000))
    return float(value) if kind == "double" and value is not None else value


def rows_of(table: Table, header: str, rows: tuple[tuple[Any, ...], ...]) -> list[dict[str, Any]]:
    """Complete rows written by hand: a column that is not named is null, or blank if it is required."""
    names = header.split()
    assert set(names) <= set(table.names)
    blank = {c.name: BLANKS[c.type] if c.is_required else None for c in table.columns}
    types = {c.name: c.type for c in table.columns}
    return [
        blank | {name: value_of(types[name], value) for name, value in zip(names, row, strict=True)} for row in rows
    ]


@pytest.fixture(scope="session")
def make(spark: SparkSession) -> Make:
    """Return `make(table, "column column", (value, value), …)`, which builds a table with these rows."""

    def build(table: Table, header: str, *rows: tuple[Any, ...]) -> DataFrame:
        return spark.createDataFrame(pa.Table.from_pylist(rows_of(table, header, rows), table.arrow), table.struct)

    return build


@pytest.fixture(scope="session")
def check() -> Check:
    """Return `check(frame, table, "column column", (value, value), …)`, which compares schema and rows."""
    # Imported here because it loads pandas, which costs a second of CPU in each process that collects the tests.
    from pyspark.testing import assertDataFrameEqual

    def compare(actual: DataFrame, table: Table, header: str, *rows: tuple[Any, ...]) -> None:
        assert [(f.name, f.dataType) for f in actual.schema] == [(f.name, f.dataType) for f in table.struct]
        got = actual.toArrow().to_pylist()
        for row in got:
            for column in table.columns:
                assert row[column.name] is not None or not column.is_required, f"{column.name} is null in {row}"
        names = header.split()
        assertDataFrameEqual(
            [Row(**{name: row[name] for name in names}) for row in got],
            [Row(**{name: row[name] for name in names}) for row in rows_of(table, header, rows)],
            rtol=1e-9,
            atol=1e-9,
        )

    return compare
