"""The same ingest on a standalone cluster and over Spark Connect, by configuration alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.pipeline.clusters import ENVIRONMENT, ROOT, connect_server, standalone
from tests.pipeline.spooling import spool_rows

from hanse.pipeline.tables import bronze

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1500)]

HANSE = [sys.executable, "-c", "from hanse.cli import main; main()"]


def once(tmp_path: Path, *words: str) -> str:
    result = subprocess.run(
        [
            *HANSE,
            "pipeline",
            "once",
            "--spool",
            str(tmp_path / "spool"),
            "--warehouse",
            str(tmp_path / "lake"),
            *words,
        ],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def check(tmp_path: Path, rows: int) -> None:
    found = DeltaTable(str(bronze(tmp_path / "lake").path)).to_pyarrow_table(columns=["producer", "seq"])
    keys = list(zip(found.column("producer").to_pylist(), found.column("seq").to_pylist(), strict=True))
    assert sorted(keys) == [("p", n) for n in range(rows)]


def test_ingest_on_a_standalone_cluster_of_a_master_and_two_workers(tmp_path: Path) -> None:
    spool_rows(tmp_path / "spool", "p", [2000] * 10)
    with standalone(tmp_path) as master:
        conf = ("--conf", "spark.executor.memory=600m", "--conf", "spark.executor.cores=1")
        said = once(tmp_path, "--master", master, *conf)
    assert "bronze_mqtt: 20000 rows" in said
    check(tmp_path, 20_000)
    # Both workers ran an executor.
    assert all(any((tmp_path / f"worker-{n}").glob("app-*/*")) for n in (1, 2))


def test_ingest_over_spark_connect_resumes_where_it_stopped(tmp_path: Path) -> None:
    spool_rows(tmp_path / "spool", "p", [2000] * 5)
    with connect_server(tmp_path) as remote:
        said = once(tmp_path, "--remote", remote, "--option", "maxRowsPerBatch=4000")
        assert "batch 0: 4000 rows" in said
        assert "6000 rows behind" in said
        spool_rows(tmp_path / "spool", "p", [1000])
        assert "bronze_mqtt: 11000 rows" in once(tmp_path, "--remote", remote)
    check(tmp_path, 11_000)


def run_suite(*words: str, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | environment,
        timeout=1200,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout


def test_the_suite_of_the_source_and_the_ingest_passes_over_connect(tmp_path: Path) -> None:
    here = ROOT / "tests" / "pipeline"
    suites = (here / "sources" / "test_mqtt_on_spark.py", here / "jobs" / "test_ingest.py")
    with connect_server(tmp_path) as remote:
        run_suite(*map(str, suites), f"--basetemp={tmp_path / 'suite'}", HANSE_TEST_REMOTE=remote)


def test_the_golden_tests_of_all_tables_pass_over_connect(tmp_path: Path) -> None:
    suite = ROOT / "tests" / "pipeline" / "analytics"
    with connect_server(tmp_path) as remote:
        run_suite(str(suite), f"--basetemp={tmp_path / 'suite'}", HANSE_TEST_SPARK=remote)
