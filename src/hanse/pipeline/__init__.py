"""Data pipeline: MQTT into Spark and back, the spool between them, and the tables built from the data.

`register(spark)` adds the data source behind `spark.readStream.format("mqtt")`. docs/pipeline.md states its guarantees.
The spool and the collector do not import pyspark; this package loads it only when `register` is called.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register the data source `mqtt` with a classic or Connect session."""
    from hanse.pipeline.sources.files import MqttFilesSource  # noqa: PLC0415 - pyspark is imported only here
    from hanse.pipeline.sources.mqtt import MqttDataSource  # noqa: PLC0415

    spark.dataSource.register(MqttDataSource)
    spark.dataSource.register(MqttFilesSource)
