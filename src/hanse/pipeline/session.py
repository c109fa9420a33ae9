"""The only place that builds a Spark session.

The session is local by default, on a cluster with `master`, or over Spark Connect with `remote`. The rest of the
pipeline does not know which.
"""

import os
import sys

from pyspark.sql import SparkSession

from hanse.errors import LocalError
from hanse.pipeline import register

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def local_settings(cores: int) -> dict[str, str]:
    """Return the settings that a session on one machine needs."""
    return {
        "spark.driver.memory": "2g",
        # The default of 200 is meant for clusters; every stateful checkpoint fixes this number for good.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.default.parallelism": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # No port of ours is reachable from other machines.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    # A trigger without new data should cost nothing.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "200",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def build(
    *,
    master: str | None = None,
    remote: str | None = None,
    app_name: str = "hanse",
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Build a session with the source `mqtt` registered.

    Args:
        master: a cluster, such as spark://host:7077; `local[*]` by default.
        remote: a Spark Connect server, such as sc://host:15002, instead of a master.
        app_name: the name that Spark shows for the application.
        settings: further Spark settings, which override the defaults of this module.
    """
    if master and remote:
        raise LocalError("Give a master or a remote, not both: over Connect the server has the master.")
    builder: SparkSession.Builder = SparkSession.builder.appName(app_name)
    chosen = dict(SETTINGS)
    if remote:
        # A Connect client cannot set options that the server reads at its start.
        builder = builder.remote(remote)
    else:
        where = master or "local[*]"
        builder = builder.master(where)
        if where.startswith("local"):
            # Workers run in this interpreter's environment, not with the first `python3` in the PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            chosen |= local_settings(os.cpu_count() or 2)
    chosen |= settings or {}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not remote:
        spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
