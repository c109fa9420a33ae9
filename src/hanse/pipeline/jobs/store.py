"""Table access for the silver and gold jobs: a protocol of three methods, and its implementation on disk."""

from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from hanse.errors import LocalError
from hanse.pipeline.schemas import alarms, mqtt
from hanse.pipeline.schemas.catalog import TABLES
from hanse.pipeline.tables import StoredTable

BRONZE = "bronze_mqtt"


class Store(Protocol):
    """Table operations that a job needs."""

    def read(self, name: str) -> DataFrame:
        """Return the table's rows; an empty frame if it was never written."""
        ...

    def append(self, name: str, frame: DataFrame, batch_id: int) -> bool:
        """Add rows once per `batch_id`; return False, without reading `frame`, if the table has that batch already."""
        ...

    def replace(self, name: str, frame: DataFrame) -> None:
        """Replace all rows; a reader sees either the old rows or the new ones."""
        ...


class Warehouse:
    """Tables in one directory, each in a subdirectory managed by `hanse.pipeline.tables`."""

    def __init__(self, spark: SparkSession, directory: str | Path) -> None:
        self.spark = spark
        # Spark and this process may have different working directories.
        self.directory = Path(directory).absolute()

    def table(self, name: str) -> StoredTable:
        """Return the table on disk.

        Raises:
            LocalError: There is no table with this name.
        """
        return StoredTable(self.directory / name, _schema(name))

    def read(self, name: str) -> DataFrame:
        """See `Store`."""
        return self.table(name).read(self.spark)

    def append(self, name: str, frame: DataFrame, batch_id: int) -> bool:
        """See `Store`."""
        return not self.table(name).append(frame, app_id="silver", batch_id=batch_id).skipped

    def replace(self, name: str, frame: DataFrame) -> None:
        """See `Store`."""
        table = self.table(name)
        last = table.last_batch("gold")
        table.replace(frame, app_id="gold", batch_id=0 if last is None else last + 1)


def stored_tables(warehouse: Path) -> list[StoredTable]:
    """Return all silver and gold tables in a directory, for compaction and vacuum; tables never written do no harm."""
    return [StoredTable(warehouse / table.name, table.arrow) for table in (*TABLES.values(), alarms.TABLE)]


def _schema(name: str) -> pa.Schema:
    if name == BRONZE:
        return mqtt.ROW
    if name not in TABLES:
        raise LocalError(f"No table {name!r}; there are {BRONZE}, {', '.join(TABLES)}.")
    return TABLES[name].arrow
