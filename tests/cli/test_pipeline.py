import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.pipeline.publishing import publish, wait_for
from tests.pipeline.spooling import spool_rows

from hanse.cli import main
from hanse.pipeline.collector_status import read_status
from hanse.pipeline.spool import SpoolReader
from hanse.pipeline.tables import bronze

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
HANSE = [sys.executable, "-c", "from hanse.cli import main; main()"]


def hanse(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HANSE, *words], capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=200)


@pytest.mark.slow
@pytest.mark.spark
def test_once_ingests_the_spool_and_compact_joins_files(tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool_rows(spool, "p", [500] * 4)
    words = ("--spool", str(spool), "--warehouse", str(lake))
    result = hanse("pipeline", "once", *words, "--option", "maxRowsPerBatch=1000")
    assert result.returncode == 0, result.stderr
    assert "batch 0: 1000 rows" in result.stdout
    assert "bronze_mqtt: 2000 rows" in result.stdout
    before = len(bronze(lake).files())

    result = hanse("pipeline", "compact", *words)
    assert result.returncode == 0, result.stderr
    assert f"bronze_mqtt: {before} files became 1" in result.stdout
    assert "spool: 0 segments deleted" in result.stdout
    assert bronze(lake).rows() == 2000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pipeline", "run", "--option", "nonsense"), "write name=value"),
        (("pipeline", "run", "--trigger", "5"), "expected a duration"),
        (("pipeline", "once", "--window", "1500ms"), "expected whole seconds"),
        (("pipeline", "once", "--window", "25h"), "1 s to a day"),
        (("pipeline", "alarms", "--silent", "100ms"), "1 s to a day"),
        (("collect", "--url", "http://h", "--topics", "a"), "no known scheme"),
        (("collect", "--url", "mqtt://h", "--topics", "a/#/b"), "wildcard in the wrong place"),
        (("collect", "--topics", "a"), "either --url, a broker, or --federation"),
        (("collect", "--url", "mqtt://h", "--federation", "mqtt://h", "--topics", "a"), "either --url, a broker, or"),
        (("collect", "--federation", "mqtt://127.0.0.1:1", "--topics", "a"), "give --id N"),
        (("collect", "--federation", "mqtt://far.example:1", "--id", "9", "--topics", "a"), "its link has no TLS"),
        (("collect", "--url", "mqtt://h", "--topics", "a", "--qos", "7"), "qos is 7"),
    ],
)
def test_a_wrong_argument_gives_one_sentence_and_exit_code_2(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hanse", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told


@pytest.mark.processes
def test_collect_runs_until_stopped_and_reports_its_counters(tmp_path: Path) -> None:
    with Mosquitto("max_queued_messages 0") as broker:
        words = ("collect", "--url", broker.url, "--topics", "t/#,u", "--spool", str(tmp_path), "--client-id", "c")
        # Compiled or not does not matter here, and stale extensions would print a line before the logs.
        environment = {**ENVIRONMENT, "HANSE_LOG_FORMAT": "json", "HANSE_PURE": "1"}
        process = subprocess.Popen([*HANSE, *words], stderr=subprocess.PIPE, text=True, env=environment)
        try:
            wait_for(
                "collecting",
                lambda: (found := read_status(tmp_path, "c")) is not None and found.state == "collecting",
            )
            publish(broker.url, [("t/a", b"1"), ("u", b"2"), ("v", b"3")])
            wait_for("two rows", lambda: SpoolReader(tmp_path, "c").tail().rows == 2)
            process.terminate()
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0
    first, *_, last = map(json.loads, said.splitlines())
    assert (first["event"], first["topics"], first["url"]) == ("the collector starts", "t/#,u", broker.url)
    assert last["event"] == "the collector ends"
    assert {name: last[name] for name in ("state", "spooled", "received", "acknowledged")} == {
        "state": "stopped",
        "spooled": 2,
        "received": 2,
        "acknowledged": 2,
    }
    assert read_status(tmp_path, "c") is None
