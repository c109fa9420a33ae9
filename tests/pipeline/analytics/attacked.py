"""Tables in which every text is an attack, for the tests of the report."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from hanse.pipeline.schemas.catalog import TABLES


def attacked_tables(make: Any, text: str) -> Callable[[str], DataFrame]:
    """Return a function that reads any table as one row in which every string is `text`."""

    def read(name: str) -> DataFrame:
        table = TABLES[name]
        texts = [column for column in table.columns if column.type in {"string", "strings"}]
        header = " ".join(column.name for column in texts)
        row = tuple([text] if column.type == "strings" else text for column in texts)
        frame: DataFrame = make(table, header, row)
        if name == "gold_topology_intervals":
            return frame.withColumn("down_at", frame["up_at"])
        return frame

    return read
