"""Definition of a table: its name, the meaning of a row, and its columns, each with a type and a meaning.

Rules of this module:

- A column's type is one of `TYPES`. The Spark schema, the Arrow schema and `docs/pipeline-tables.md` come from the same
  list of columns, so they cannot differ.
- `is_required` means that every row has a value. Silver is typed accordingly. Gold is stored nullable, because Spark's
  aggregates are; the tests check that the transforms keep required columns filled.
"""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own docs use
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "long": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "strings": ArrayType(StringType()),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column; its type is a key of `TYPES`."""

    name: str
    type: str
    meaning: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One dataset; its name begins with its layer (`silver_`, `gold_`), and `row` describes one row."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def struct(self) -> StructType:
        """Spark schema of the table."""
        return StructType([StructField(c.name, TYPES[c.type], not c.is_required) for c in self.columns])

    @property
    def arrow(self) -> pa.Schema:
        """Arrow schema of the table, equal to Spark's own conversion of the Spark schema, including nullability."""
        return to_arrow_schema(self.struct, timezone="UTC")

    @property
    def names(self) -> list[str]:
        """Names of the columns in order."""
        return [column.name for column in self.columns]

    def conform(self, frame: DataFrame) -> DataFrame:
        """Select the table's columns from `frame`, in order, cast to the table's types."""
        return frame.select(*[_cast(column) for column in self.columns])


def _cast(column: Column) -> SparkColumn:
    return F.col(column.name).cast(TYPES[column.type]).alias(column.name)


def moment(name: str, meaning: str) -> Column:
    """Define a required point in time."""
    return Column(name, "timestamp", meaning)


def text(name: str, meaning: str) -> Column:
    """Define a required string."""
    return Column(name, "string", meaning)


def count(name: str, meaning: str) -> Column:
    """Define a required whole number."""
    return Column(name, "long", meaning)


def number(name: str, meaning: str) -> Column:
    """Define a required number."""
    return Column(name, "double", meaning)


def maybe(column: Column) -> Column:
    """Make a column optional."""
    return Column(column.name, column.type, column.meaning, is_required=False)


WINDOW_START = moment("window_start", "start of the window")
