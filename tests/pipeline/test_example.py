"""The example of the docs against a real Mosquitto: in the tests' own session, and as a user runs it."""

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.brokers import Mosquitto
from tests.pipeline.collecting import CollectorProcess
from tests.pipeline.publishing import publish, wait_for

from hanse.pipeline.collector_settings import CollectorSettings
from hanse.pipeline.collector_status import read_status

pytestmark = [pytest.mark.spark, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mqtt_to_delta.py"


def is_collecting(spool: Path, producer: str) -> bool:
    status = read_status(spool, producer)
    return status is not None and status.state == "collecting"


@contextmanager
def thousand_messages(lake: Path) -> Iterator[list[str]]:
    """Yield the example's arguments; the broker holds 1,000 messages in the session that its collector will resume."""
    with Mosquitto("max_queued_messages 0") as broker:
        settings = CollectorSettings(url=broker.url, topics=("sensors/#",), spool=str(lake / "spool"))
        with CollectorProcess(settings) as collector:
            wait_for("collecting", lambda: is_collecting(lake / "spool", settings.client_id))
            assert collector.stop() == (0, "")
        publish(broker.url, [(f"sensors/{n % 3}", str(n).encode()) for n in range(1000)])
        yield [broker.url, "sensors/#", str(lake)]


def check(lake: Path, said: str) -> None:
    assert "1000 rows added" in said
    found = DeltaTable(str(lake / "messages")).to_pyarrow_table()
    assert sorted(int(payload) for payload in found.column("payload").to_pylist()) == list(range(1000))


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_example_carries_mqtt_into_a_delta_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the example in the existing session, because starting another costs 20 s of CPU."""
    assert len(EXAMPLE.read_text().splitlines()) < 40
    with thousand_messages(tmp_path) as words:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *words])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    check(tmp_path, capsys.readouterr().out)
    assert SparkSession.getActiveSession() is not None


@pytest.mark.slow
def test_the_example_runs_on_its_own(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    # Without a choice Spark would take the first python3 in the PATH, which has none of our packages.
    elsewhere = tmp_path / "bin"
    elsewhere.mkdir()
    (elsewhere / "python3").write_text("#!/bin/sh\nexit 1\n")
    (elsewhere / "python3").chmod(0o755)
    environment["PATH"] = f"{elsewhere}:{environment['PATH']}"
    with thousand_messages(tmp_path) as words:
        result = subprocess.run(
            [sys.executable, str(EXAMPLE), *words],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=200,
        )
    assert result.returncode == 0, result.stderr
    check(tmp_path, result.stdout)
