import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "bench_manager.py"


def run(*words: str) -> dict[str, object]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(BENCH), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.processes
def test_the_managers_bench_runs_in_its_small_form() -> None:
    found = run("--federators", "30", "--interval", "1", "--rounds", "1")
    assert found["is_two_connected_after"]
    assert found["probe_failures_before_kill"] == 0


@pytest.mark.slow
@pytest.mark.processes
def test_a_health_round_over_1000_federators_fits_its_interval() -> None:
    found = run("--federators", "1000", "--interval", "5", "--rounds", "3")
    assert found["round_fits_interval"]
    assert found["is_two_connected_after"]
