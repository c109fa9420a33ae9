"""The source and the sink as users call them, in a real session."""

import os
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own docs use
from tests.brokers import Mosquitto
from tests.pipeline.collecting import spooled
from tests.pipeline.publishing import publish, wait_for
from tests.pipeline.spooling import spool_rows

from hanse.pipeline.collector_status import read_status
from hanse.pipeline.jobs.ingest import Progress, read_progress
from hanse.pipeline.schemas import mqtt
from hanse.pipeline.spool import SpoolReader
from hanse.pipeline.tables import BatchSink, StoredTable

pytestmark = pytest.mark.spark

BROKER = ("max_inflight_messages 20000", "max_queued_messages 0")
HOUR_US = 3_600_000_000


def read(spark: SparkSession, spool: Path, **options: str) -> DataFrame:
    return spark.read.format("mqtt").options(spool=str(spool), **options).load()


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def test_a_batch_read_returns_every_row_in_the_schema(spark: SparkSession, tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [100, 7], received_us=HOUR_US)
    frame = read(spark, tmp_path)
    assert frame.schema == mqtt.struct_type()
    rows = {row.seq: row for row in frame.collect()}
    assert sorted(rows) == list(range(107))
    assert (rows[3].producer, rows[3].topic, bytes(rows[3].payload)) == ("p", "plant/3", b"3".rjust(20, b"."))
    assert (rows[3].properties.content_type, rows[3].properties.user[0].value) == ("text/plain", "3")
    assert rows[4].properties is None
    first = frame.agg(F.min("received_at").cast("string").alias("at")).collect()[0].at
    assert first == "1970-01-01 01:00:00"


@pytest.mark.slow
def test_a_batch_read_can_be_narrowed_by_time_topic_and_producer(spark: SparkSession, tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [10] * 5)
    spool_rows(tmp_path, "q", [10])
    assert seqs(
        read(spark, tmp_path, clientId="p", since="1970-01-01T00:00:00.000020Z", until="1970-01-01T00:00:00.000033Z")
    ) == list(range(20, 33))
    assert seqs(read(spark, tmp_path, clientId="p", topics="plant/1")) == list(range(1, 50, 4))
    assert read(spark, tmp_path).count() == 60
    assert read(spark, tmp_path).where("producer = 'none'").count() == 0


def test_a_batch_read_of_a_spool_or_producer_that_does_not_exist_fails(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nothing does not exist; give the option spool"):
        read(spark, tmp_path / "nothing").count()
    spool_rows(tmp_path, "p", [1])
    with pytest.raises(Exception, match="has no producer q; it has p"):
        read(spark, tmp_path, clientId="q").count()


@pytest.mark.slow
def test_filters_of_the_query_prune_blocks_and_stay_exact(spark: SparkSession, tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [10] * 5)
    # The damaged block lies outside the requested time: with pruning it is never opened.
    path = next((tmp_path / "p").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    day = "1970-01-01 00:00:00"
    asked = f"received_at >= timestamp'{day}.000012' and received_at < timestamp'{day}.000025'"
    assert seqs(read(spark, tmp_path, pushFilters="true").where(asked)) == list(range(12, 25))
    with pytest.raises(Exception, match="checksum does not match"):
        read(spark, tmp_path).count()
    assert read(spark, tmp_path, failOnDataLoss="false").count() == 40


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topicz": "a"}, "did you mean"),
        ({"maxRowsPerBatch": "many"}, "maxRowsPerBatch is 'many'"),
        ({"url": "mqtt://h", "topics": "a"}, "takes no url"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    spark: SparkSession, options: dict[str, str], says: str
) -> None:
    with pytest.raises(AnalysisException, match=says):
        spark.read.format("mqtt").options(**options).load().count()


def test_a_schema_of_the_users_own_is_refused(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="schema of its own"):
        spark.read.format("mqtt").schema("topic string").load().count()


@pytest.mark.slow
def test_a_stream_resumes_at_its_checkpoint_and_shows_its_lag(spark: SparkSession, tmp_path: Path) -> None:
    spool = tmp_path / "spool"

    def drain() -> list[Progress]:
        query = (
            spark.readStream.format("mqtt")
            .options(spool=str(spool), maxRowsPerBatch="100", consumer="test")
            .load()
            .writeStream.foreachBatch(BatchSink(str(tmp_path / "table"), mqtt.ROW, str(tmp_path / "checkpoint")))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [read_progress(one) for one in query.recentProgress]

    spool_rows(spool, "p", [50] * 5)
    progress = drain()
    assert [(one.rows, one.lag_rows) for one in progress if one.rows] == [(100, 150), (100, 50), (50, 0)]
    spool_rows(spool, "p", [50])
    drain()
    assert seqs(StoredTable(tmp_path / "table", mqtt.ROW).read(spark)) == list(range(300))
    assert (spool / ".consumers" / "test.json").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_a_stream_needs_only_a_url_and_topics(spark: SparkSession, tmp_path: Path) -> None:
    options = {"topics": "t/#", "spool": str(tmp_path / "spool"), "clientId": "mine"}
    with Mosquitto(*BROKER) as broker:
        query = (
            spark.readStream.format("mqtt")
            .options(url=broker.url, **options)
            .load()
            .writeStream.format("memory")
            .queryName("all_a_user_needs")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        try:
            wait_for("collecting", lambda: _state(tmp_path / "spool", "mine") == "collecting")
            publish(broker.url, [("t/a", str(n).encode()) for n in range(300)])
            wait_for("300 rows", lambda: spark.table("all_a_user_needs").count() >= 300)
            assert _numbers(spark.table("all_a_user_needs")) == list(range(300))
            # The collector is killed: the source starts another, and nothing is lost or duplicated.
            status = read_status(tmp_path / "spool", "mine")
            assert status is not None
            os.kill(status.pid, 9)
            publish(broker.url, [("t/a", str(n).encode()) for n in range(300, 400)])
            wait_for("400 rows", lambda: spark.table("all_a_user_needs").count() >= 400)
            assert _numbers(spark.table("all_a_user_needs")) == list(range(400))
            pid = read_status(tmp_path / "spool", "mine")
        finally:
            query.stop()
        # It ends with the query, without a stop call.
        assert pid is not None
        wait_for("the collector's end", lambda: _state(tmp_path / "spool", "mine") is None)
    spark.catalog.dropTempView("all_a_user_needs")


def _numbers(table: DataFrame) -> list[int]:
    return sorted(int(row.payload) for row in table.collect())


def _state(spool: Path, producer: str) -> str | None:
    status = read_status(spool, producer)
    return None if status is None else status.state


@pytest.mark.slow
@pytest.mark.processes
def test_available_now_with_a_url_reads_the_brokers_queued_messages(spark: SparkSession, tmp_path: Path) -> None:
    def run(url: str) -> int:
        query = (
            spark.readStream.format("mqtt")
            .options(url=url, topics="t/#", spool=str(tmp_path / "spool"), clientId="mine")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(read_progress(one).rows for one in query.recentProgress)

    with Mosquitto(*BROKER) as broker:
        assert run(broker.url) == 0
        publish(broker.url, [("t/a", str(n).encode()) for n in range(500)])
        assert run(broker.url) == 500


@pytest.mark.slow
@pytest.mark.processes
def test_a_login_that_the_broker_refuses_ends_the_query_with_the_brokers_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Mosquitto(anonymous=False) as broker:
        query = (
            spark.readStream.format("mqtt")
            .options(url=broker.url, topics="t/#", spool=str(tmp_path / "spool"), username="u", password="wrong")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        with pytest.raises(StreamingQueryException, match=r"The collector of mqtt://.* stopped"):
            query.awaitTermination(60)
        assert "wrong" not in str(query.exception())


@pytest.mark.slow
@pytest.mark.processes
def test_rows_are_published_and_return_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    spool_rows(tmp_path / "in", "p", [500])
    with Mosquitto(*BROKER) as broker:
        collecting = (
            spark.readStream.format("mqtt")
            .options(url=broker.url, topics="#", spool=str(tmp_path / "out"), clientId="back")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "noop"))
            .start()
        )
        try:
            wait_for("collecting", lambda: _state(tmp_path / "out", "back") == "collecting")
            read(spark, tmp_path / "in").write.format("mqtt").option("url", broker.url).option("appId", "batch").mode(
                "append"
            ).save()
            stream = (
                spark.readStream.format("mqtt")
                .option("spool", str(tmp_path / "in"))
                .load()
                .select("payload")
                .writeStream.format("mqtt")
                .options(url=broker.url, topic="fixed", qos="0", appId="stream")
                .option("checkpointLocation", str(tmp_path / "sink"))
                .trigger(availableNow=True)
                .start()
            )
            stream.awaitTermination()
            wait_for("1000 rows", lambda: SpoolReader(tmp_path / "out", "back").tail().rows >= 1000)
        finally:
            collecting.stop()
    rows = spooled(tmp_path / "out", "back")
    batch = [row for row in rows if row["topic"] != "fixed"]
    stream_rows = [row for row in rows if row["topic"] == "fixed"]
    wanted = {(row["topic"], row["payload"]) for row in spooled(tmp_path / "in", "p")}
    assert {(row["topic"], row["payload"]) for row in batch} == wanted
    assert len(batch) == len(stream_rows) == 500
    assert {row["qos"] for row in stream_rows} == {0}
    third = next(row for row in batch if row["payload"].endswith(b".3"))
    assert third["properties"]["content_type"] == "text/plain"
    assert [one["name"] for one in third["properties"]["user"]] == ["n", "hanse-message-id"]
    ids = {one["value"] for row in rows for one in row["properties"]["user"] if one["name"] == "hanse-message-id"}
    assert len(ids) == 1000
    assert {one.split("/")[0] for one in ids} == {"batch", "stream"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("topic", {}, "no column payload"),
        ("payload", {}, "no column topic"),
        ("payload, seq as topic", {}, "topic is bigint"),
        ("topic, payload, seq as extra", {}, "does not know the columns extra"),
        ("topic, payload, cast(qos as string) qos", {}, "qos is string"),
    ],
)
def test_columns_that_cannot_be_published_are_refused_before_any_row(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, str], says: str
) -> None:
    spool_rows(tmp_path, "p", [3])
    frame = read(spark, tmp_path).selectExpr(*[one.strip() for one in columns.split(", ")])
    with pytest.raises(AnalysisException, match=says):
        frame.write.format("mqtt").options(url="mqtt://127.0.0.1:1", **options).mode("append").save()


@pytest.mark.slow
def test_a_row_with_a_wildcard_in_its_topic_fails_the_batch_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    spool_rows(tmp_path, "p", [3])
    frame = read(spark, tmp_path).selectExpr("'a/#' as topic", "payload")
    with Mosquitto(*BROKER) as broker, pytest.raises(Exception, match=r"Row app/0/\d+/0 cannot be published"):
        frame.write.format("mqtt").options(url=broker.url, appId="app").mode("append").save()
