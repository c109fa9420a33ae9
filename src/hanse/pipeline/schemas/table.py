"""What a table is: a name, what one row of it is, and its columns, each with a type and a meaning.

Rules of this module:

- A column's type is written as one of `TYPES`; the Spark and the Arrow schema come from the same list of columns,
  so they cannot drift apart, and so does `docs/pipeline-tables.md`.
- `is_required` says that no row lacks it. Silver is typed so; gold is stored nullable, as Spark's aggregates are,
  and the tests hold the transforms to it.
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
    """One column: its type is a key of `TYPES`."""

    name: str
    type: str
    meaning: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One dataset: its name begins with its layer (`silver_`, `gold_`), `row` says what one row is."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def struct(self) -> StructType:
        """The Spark schema."""
        return StructType([StructField(c.name, TYPES[c.type], not c.is_required) for c in self.columns])

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema, equal to Spark's own translation of the Spark schema, to the nullability."""
        return to_arrow_schema(self.struct, timezone="UTC")

    @property
    def names(self) -> list[str]:
        """The columns' names in order."""
        return [column.name for column in self.columns]

    def conform(self, frame: DataFrame) -> DataFrame:
        """The table's columns out of `frame`, in order, with the table's types."""
        return frame.select(*[_cast(column) for column in self.columns])


def _cast(column: Column) -> SparkColumn:
    return F.col(column.name).cast(TYPES[column.type]).alias(column.name)


def moment(name: str, meaning: str) -> Column:
    """A required point in time."""
    return Column(name, "timestamp", meaning)


def text(name: str, meaning: str) -> Column:
    """A required string."""
    return Column(name, "string", meaning)


def count(name: str, meaning: str) -> Column:
    """A required whole number."""
    return Column(name, "long", meaning)


def number(name: str, meaning: str) -> Column:
    """A required number."""
    return Column(name, "double", meaning)


def maybe(column: Column) -> Column:
    """The same column, but a row may lack it."""
    return Column(column.name, column.type, column.meaning, is_required=False)


WINDOW_START = moment("window_start", "start of the window")
