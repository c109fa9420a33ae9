"""The data pipeline: MQTT into Spark and back, the spool between, and the tables that come of it.

`register(spark)` makes `spark.readStream.format("mqtt")` known; docs/pipeline.md says what it promises. The spool
and the collector import no pyspark: this package loads it only when `register` is called.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make the data source `mqtt` known to a session, classic or Connect."""
    from hanse.pipeline.sources.files import MqttFilesSource  # noqa: PLC0415 - pyspark loads only here
    from hanse.pipeline.sources.mqtt import MqttDataSource  # noqa: PLC0415

    spark.dataSource.register(MqttDataSource)
    spark.dataSource.register(MqttFilesSource)
