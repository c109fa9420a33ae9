"""Where the silver and gold jobs read and write: three functions, and what does them on tables on disk."""

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
    """What a job needs of the tables."""

    def read(self, name: str) -> DataFrame:
        """The table's rows; none if it was never written."""
        ...

    def append(self, name: str, frame: DataFrame, batch_id: int) -> bool:
        """Adds rows, once for each `batch_id`; False if it had that batch, and did not look at `frame`."""
        ...

    def replace(self, name: str, frame: DataFrame) -> None:
        """Puts rows in place of all others; a reader sees the old ones or the new ones."""
        ...


class Warehouse:
    """Tables in one directory, each in one of its own, as `hanse.pipeline.tables` keeps them."""

    def __init__(self, spark: SparkSession, directory: str | Path) -> None:
        self.spark = spark
        # Spark and this process may have different working directories.
        self.directory = Path(directory).absolute()

    def table(self, name: str) -> StoredTable:
        """The table on disk.

        Raises:
            LocalError: No table has this name.
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
    """All silver and gold tables in a directory, for compaction and vacuum; those never written do no harm."""
    return [StoredTable(warehouse / table.name, table.arrow) for table in (*TABLES.values(), alarms.TABLE)]


def _schema(name: str) -> pa.Schema:
    if name == BRONZE:
        return mqtt.ROW
    if name not in TABLES:
        raise LocalError(f"No table {name!r}; there are {BRONZE}, {', '.join(TABLES)}.")
    return TABLES[name].arrow
