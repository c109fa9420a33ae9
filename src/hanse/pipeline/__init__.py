"""Data pipeline: MQTT into Spark and back, the spool between them, and the tables built from the data.

`register(spark)` adds the data source behind `spark.readStream.format("mqtt")`. docs/pipeline.md states its guarantees.
The spool and the collector do not import pyspark; this package loads it only when `register` is called.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register the data source `mqtt` with a classic or Connect session.

    A local session whose workers' Python was not chosen (`PYSPARK_PYTHON`, `spark.pyspark.python`) gets this
    interpreter. Spark's default is the first `python3` in the PATH, which need not have this package.
    """
    _choose_workers_python(spark)
    from hanse.pipeline.sources.files import MqttFilesSource  # noqa: PLC0415 - pyspark is imported only here
    from hanse.pipeline.sources.mqtt import MqttDataSource  # noqa: PLC0415

    spark.dataSource.register(MqttDataSource)
    spark.dataSource.register(MqttFilesSource)


def _choose_workers_python(spark: "SparkSession") -> None:
    context = getattr(spark, "_sc", None)  # a Connect session has none
    if context is None or not context.master.startswith("local"):
        return
    is_chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python") is not None
    if not is_chosen:
        context.pythonExec = sys.executable
