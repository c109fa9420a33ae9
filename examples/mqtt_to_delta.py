"""MQTT into a Delta table, in plain PySpark.

python mqtt_to_delta.py mqtt://localhost:1883 'sensors/#' /data/lake
"""

import sys

from pyspark.sql import SparkSession

from hanse.pipeline import register
from hanse.pipeline.schemas.mqtt import ROW
from hanse.pipeline.tables import BatchSink


def main(url: str, topics: str, lake: str) -> None:
    spark = SparkSession.builder.appName("mqtt to delta").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    messages = (
        spark.readStream.format("mqtt")
        .option("url", url)
        .option("topics", topics)
        .option("spool", f"{lake}/spool")
        .load()
    )
    query = (
        messages.writeStream.foreachBatch(BatchSink(f"{lake}/messages", ROW, f"{lake}/checkpoint"))
        .option("checkpointLocation", f"{lake}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(f"{sum(progress['numInputRows'] for progress in query.recentProgress)} rows added to {lake}/messages")


if __name__ == "__main__":
    main(*sys.argv[1:4])
