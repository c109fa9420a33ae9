import importlib.util
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from hanse.errors import LocalError
from hanse.pipeline.jobs import progress
from hanse.pipeline.jobs.gold import GoldSettings, refresh_gold, run_gold, steps
from hanse.pipeline.jobs.progress import Batch
from hanse.pipeline.jobs.silver import refresh_silver, run_silver
from hanse.pipeline.jobs.store import BRONZE, Store, Warehouse, stored_tables
from hanse.pipeline.report import write_report
from hanse.pipeline.schemas.catalog import GOLD, SILVER
from hanse.pipeline.schemas.mqtt import ROW
from hanse.telemetry import KINDS, HopTrace, encode, topic_for

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_traffic", ROOT / "bench" / "generate_traffic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


POISON: list[dict[str, Any]] = [
    {"topic": "a/<script>alert(1)</script>", "payload": b"<script>alert(2)</script>"},
    {"topic": "a/b", "payload": b"\xff\xfe"},
    {
        "topic": "a/c",
        "payload": b"",
        "properties": {"user": [{"name": "n", "value": "<script>"} for _ in range(10_000)]},
    },
    {"topic": topic_for("hop", "b00"), "payload": b"<script>\xff"},
]


def add_bronze(spark: Any, store: Warehouse, table: pa.Table, batch_id: int) -> None:
    store.table(BRONZE).append(spark.createDataFrame(table), app_id="test", batch_id=batch_id)


@pytest.fixture(scope="module")
def federation(spark: Any, generator: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, Any]:
    """Run ten minutes of six brokers, the last of them killed after seven minutes, from bronze to gold."""
    traffic = generator.Traffic(generator.Plan(seconds=600, publications_per_s=3, kill_at_s=420, loss_share=0.01))
    store = Warehouse(spark, tmp_path_factory.mktemp("warehouse"))
    table = generator.to_arrow(traffic.batches())
    blank = {"producer": "client", "received_at": generator.START_US, "qos": 1, "retain": False, "dup": False}
    rows = [blank | {"seq": i} | row for i, row in enumerate(POISON)]
    poison = pa.Table.from_pylist(rows, ROW)
    add_bronze(spark, store, pa.concat_tables([table, poison]), 0)
    assert run_silver(store, store.directory / "silver.json") == 1
    run_gold(store)
    return store, traffic


@pytest.mark.slow
@pytest.mark.spark
def test_every_table_is_written_and_none_lacks_a_required_value(federation: tuple[Warehouse, Any]) -> None:
    store, traffic = federation
    telemetry = sum(store.table(f"silver_{kind}").rows() for kind in KINDS)
    assert telemetry == traffic.truth.rows
    for name, table in (SILVER | GOLD).items():
        frame = store.read(name)
        required = [F.count_if(F.col(c.name).isNull()).alias(c.name) for c in table.columns if c.is_required]
        counts = frame.agg(F.count("*").alias("rows"), *required).collect()[0].asDict()
        assert counts.pop("rows") > 0, name
        assert set(counts.values()) == {0}, name


@pytest.mark.slow
@pytest.mark.spark
def test_the_traffic_matrix_equals_the_deliveries(federation: tuple[Warehouse, Any]) -> None:
    store, traffic = federation
    matrix = store.read("gold_traffic_matrix").groupBy("origin", "destination", "group").sum("publications")
    assert {(row[0], row[1], row[2]): row[3] for row in matrix.collect()} == dict(traffic.truth.delivered)


@pytest.mark.slow
@pytest.mark.spark
def test_delivery_agrees_with_the_truth_and_every_loss_is_explained(federation: tuple[Warehouse, Any]) -> None:
    store, traffic = federation
    last = store.read("gold_delivery").groupBy("origin", "destination", "group")
    totals = [f"{name}_total" for name in ("expected", "delivered", "dropped", "lost", "unexplained")]
    rows = last.agg(*[F.max_by(name, "window_start").alias(name) for name in totals]).collect()
    assert len(rows) > 30
    for row in rows:
        key = (row["origin"], row["destination"], row["group"])
        assert row["delivered_total"] == traffic.truth.delivered[key]
        assert row["dropped_total"] == traffic.truth.dropped[key]
        assert row["unexplained_total"] == 0
        if "b05" not in key:  # the killed broker: while it failed, nobody knows how many messages it had to receive
            assert row["expected_total"] == traffic.truth.published[key[0], key[2]]
            assert row["lost_total"] == traffic.truth.dropped[key]


@pytest.mark.slow
@pytest.mark.spark
def test_latency_is_right_within_the_stated_clock_error(federation: tuple[Warehouse, Any]) -> None:
    store, traffic = federation
    by_path = store.read("silver_latencies").groupBy("path")
    rows = by_path.agg(
        F.percentile("latency_ms", F.lit(0.5)).alias("median"),
        F.count("*").alias("deliveries"),
        F.max("skew_error_ms").alias("error"),
        F.bool_and("is_corrected").alias("is_corrected"),
        F.max(F.abs("skew_ms")).alias("skew"),
    ).collect()
    assert {row["path"] for row in rows} == set(traffic.truth.latencies_ms)
    assert max(row["skew"] for row in rows) > 500  # there was an offset to correct
    for row in rows:
        truth = traffic.truth.latencies_ms[row["path"]]
        assert row["deliveries"] == len(truth)
        assert row["is_corrected"]
        assert row["error"] < 15
        assert abs(row["median"] - statistics.median(truth)) <= row["error"]


@pytest.mark.slow
@pytest.mark.spark
def test_clock_skew_is_right_within_its_error(federation: tuple[Warehouse, Any]) -> None:
    store, traffic = federation
    for row in store.read("gold_clock_skew").collect():
        a, b = (traffic.truth.skew_ms[row[name].removeprefix("host-")] for name in ("host", "other_host"))
        assert abs(row["skew_ms"] - (b - a)) <= row["skew_error_ms"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_killed_federator_shows_in_the_topology_and_in_the_anomalies(federation: tuple[Warehouse, Any]) -> None:
    store, _ = federation
    ended = store.read("gold_topology_intervals").where("down_at is not null").collect()
    assert {(row["element"], row["federator"], row["neighbour"]) for row in ended} >= {
        ("federator", "b05", None),
        ("link", "b04", "b05"),
    }
    shapes = store.read("gold_topology_snapshots").orderBy("at").collect()
    assert max(row["federators"] for row in shapes) == 6
    assert shapes[-1]["federators"] == 5
    off = store.read("gold_anomalies").where("name = 'b05'").collect()
    assert {("reports", "low"), ("failed_checks", "high")} <= {(row["measure"], row["direction"]) for row in off}
    assert not store.read("gold_anomalies").where("measure = 'reports' and name != 'b05'").collect()


@pytest.mark.slow
@pytest.mark.spark
def test_poison_is_kept_as_text_or_quarantined_with_a_reason(federation: tuple[Warehouse, Any]) -> None:
    store, _ = federation
    kept = {row["topic"]: row["payload_text"] for row in store.read("silver_messages").collect()}
    assert kept == {"a/<script>alert(1)</script>": "<script>alert(2)</script>", "a/b": r"\xff\xfe"}
    refused = {row["dataset"]: (row["reasons"], row["sample"]) for row in store.read("silver_quarantine").collect()}
    assert set(refused) == {"telemetry", "silver_messages"}
    assert refused["telemetry"] == ("Telemetry payload has format 60; this build supports 1.", r"<script>\xff")
    assert refused["silver_messages"][0] == "properties_are_within_limit"


@pytest.mark.slow
@pytest.mark.spark
def test_the_report_shows_the_killed_federator_and_the_losses(
    federation: tuple[Warehouse, Any], tmp_path: Path
) -> None:
    store, traffic = federation
    write_report(store.read, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "two checks failed" in page
    assert f"<b>{sum(traffic.truth.delivered.values()):,}</b>deliveries" in page
    assert "<b>5</b>federators up" in page
    assert "<b>0</b>lost, unexplained" in page
    assert "properties_are_within_limit" in page
    assert page.count("Plotly.newPlot(") == 7


class CrashingStore:
    """Store whose process dies at the n-th append, either before or just after it."""

    def __init__(self, store: Store, appends: int, *, after: bool) -> None:
        self.store, self.left, self.after = store, appends, after

    def read(self, name: str) -> DataFrame:
        return self.store.read(name)

    def replace(self, name: str, frame: DataFrame) -> None:
        self.store.replace(name, frame)

    def append(self, name: str, frame: DataFrame, batch_id: int) -> bool:
        self.left -= 1
        is_new = bool(self.left or self.after) and self.store.append(name, frame, batch_id)
        if not self.left:
            raise InterruptedError(name)
        return is_new


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_killed_between_its_tables_neither_loses_nor_duplicates_a_row(
    spark: Any, generator: ModuleType, tmp_path: Path
) -> None:
    first = generator.Traffic(generator.Plan(seconds=10, publications_per_s=2))
    second = generator.Traffic(generator.Plan(seconds=10, publications_per_s=2, seed=2))
    store = Warehouse(spark, tmp_path)
    checkpoint = tmp_path / "silver.json"
    table = generator.to_arrow(first.batches())
    odd = encode("hop", [HopTrace("", 1, 1, "t", "g", 0, None, 1, None, 0, False)])
    poison = dict(table.slice(0, 1).to_pylist()[0], producer="other", topic=topic_for("hop", "b00"), payload=odd)
    add_bronze(spark, store, pa.concat_tables([table, pa.Table.from_pylist([poison], ROW)]), 0)
    with pytest.raises(InterruptedError):
        run_silver(CrashingStore(store, 2, after=True), checkpoint)
    # Bronze grew while the job was down.
    add_bronze(spark, store, generator.to_arrow(second.batches(), seq=table.num_rows), 1)
    with pytest.raises(InterruptedError):
        run_silver(CrashingStore(store, 6, after=False), checkpoint)
    assert run_silver(store, checkpoint) == 2
    assert run_silver(store, checkpoint) == 0
    telemetry = sum(store.table(f"silver_{kind}").rows() for kind in KINDS)
    assert telemetry == first.truth.rows + second.truth.rows
    # The bad row was refused before the first crash; when the job came back, its table had the batch already.
    quarantine = store.read("silver_quarantine").collect()
    assert [(row["dataset"], row["reasons"]) for row in quarantine] == [("silver_hop", "origin_is_not_empty")]


def test_an_unfinished_batch_is_repeated_before_a_new_one() -> None:
    begun = Batch(3, {"p": 5}, {"p": 9, "q": 2})
    assert progress.following(begun, {"p": 100}) == begun


def test_a_new_batch_begins_where_the_last_one_ended() -> None:
    assert progress.following(None, {}) is None
    first = progress.following(None, {"p": 5})
    assert first == Batch(0, {"p": 0}, {"p": 5})
    done = Batch(0, {"p": 0}, {"p": 5}, is_done=True)
    assert progress.following(done, {"p": 5}) is None
    assert progress.following(done, {"p": 7, "q": 1}) == Batch(1, {"p": 5, "q": 0}, {"p": 7, "q": 1})
    assert progress.following(done, {"q": 1}) == Batch(1, {"q": 0}, {"p": 5, "q": 1})


def test_progress_is_read_as_it_was_saved_and_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "silver.json"
    assert progress.load(path) is None
    batch = Batch(1, {"p": 5}, {"p": 7}, is_done=True)
    progress.save(path, batch)
    assert progress.load(path) == batch
    for damage in ("", "[]", '{"batch_id": 1}', '{"batch_id": 1, "since": [], "until": {}, "is_done": true}'):
        path.write_text(damage)
        with pytest.raises(LocalError, match="is no valid record of the silver job's progress"):
            progress.load(path)


def test_every_gold_table_is_built_by_a_step() -> None:
    made = [name for name, _ in steps(GoldSettings())]
    assert len(made) == len(set(made))
    assert set(GOLD) <= set(made)


def test_gold_settings_out_of_range_are_refused() -> None:
    with pytest.raises(LocalError, match="A window of 0 s"):
        GoldSettings(window_s=0)
    with pytest.raises(LocalError, match="settle_s is -1"):
        GoldSettings(settle_s=-1)


@pytest.mark.slow
@pytest.mark.spark
def test_an_empty_warehouse_gives_empty_tables_and_no_error(spark: Any, tmp_path: Path) -> None:
    assert refresh_silver(spark, tmp_path) == "nothing new; 0 rows of telemetry"
    assert refresh_gold(spark, tmp_path) == f"0 rows in {len(GOLD)} tables, 0 anomalies"
    assert [table.rows() for table in stored_tables(tmp_path)] == [0] * len(SILVER | GOLD)
    write_report(Warehouse(spark, tmp_path).read, tmp_path / "report.html")
    assert "Nothing to show yet." in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.spark
def test_an_unknown_table_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="No table 'nosuch'"):
        Warehouse(spark, tmp_path).read("nosuch")


def test_the_same_seed_gives_the_same_traffic(generator: ModuleType) -> None:
    plan = generator.Plan(seconds=10)
    assert list(generator.Traffic(plan).batches()) == list(generator.Traffic(plan).batches())
    assert list(generator.Traffic(plan).batches()) != list(
        generator.Traffic(generator.Plan(seconds=10, seed=2)).batches()
    )
