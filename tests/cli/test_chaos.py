"""`hanse chaos`: the arguments that it refuses, its output, and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.federation import RunningFederation, environment, eventually
from typer.testing import CliRunner

from hanse.cli import build
from hanse.errors import LocalError
from hanse.lab.chaos.faults import FAULTS
from hanse.local import state


def invoke(*words: str) -> BaseException | None:
    return CliRunner().invoke(build(["chaos"]), ["chaos", *words]).exception


def test_the_list_names_every_fault() -> None:
    shown = CliRunner().invoke(build(["chaos"]), ["chaos", "--list"])
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.output.splitlines()] == ["none", *FAULTS]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fault", "earthquake"], "expected none, kill-origin"),
        (["--qos", "3"], "--qos is '3'"),
        (["--announcement-interval", "5"], "--announcement-interval"),
        (["--state", "no-such-file.json"], "There is no state file"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_starts(words: list[str], said: str) -> None:
    error = invoke(*words)
    assert isinstance(error, LocalError)
    assert said in str(error)


def given(path: Path, *, supervisor: int | None, brokers: int = 3) -> Path:
    rows = [
        state.FederatorState(k, f"mqtt://127.0.0.1:{k + 1}", None, f"http://127.0.0.1:{k + 1}", 1, 1)
        for k in range(brokers)
    ]
    started = None if supervisor is None else state.process_start(supervisor)
    state.write(path, state.State(tuple(rows), supervisor_pid=supervisor, supervisor_started=started))
    return path


def test_links_of_a_given_federation_cannot_be_cut(tmp_path: Path) -> None:
    path = given(tmp_path / "state.json", supervisor=os.getpid())
    error = invoke("--state", str(path), "--fault", "cut-link")
    assert isinstance(error, LocalError)
    assert "needs control over links" in str(error)


def test_process_ids_of_an_ended_supervisor_are_not_used(tmp_path: Path) -> None:
    path = given(tmp_path / "state.json", supervisor=None)
    error = invoke("--state", str(path), "--fault", "kill-origin")
    assert isinstance(error, LocalError)
    assert "needs control over federators" in str(error)


def test_a_federation_of_one_is_refused(tmp_path: Path) -> None:
    path = given(tmp_path / "state.json", supervisor=os.getpid(), brokers=1)
    error = invoke("--state", str(path))
    assert isinstance(error, LocalError)
    assert "a message needs at least two" in str(error)


def call(*words: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "hanse", "chaos", *words, "--json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


@pytest.mark.processes
def test_a_given_federation_is_loaded_and_judged_and_left_unchanged(tmp_path: Path) -> None:
    with RunningFederation(tmp_path, 3, "--no-manager", "--overlay", "ring") as running:
        code, found = call("--state", str(running.state_path), "--fault", "none", "--messages", "1000", "--qos", "mix")
        assert code == 0, found
        assert found["held"] is True
        (one,) = found["rounds"]
        assert one["accounting"]["pairs"] == one["accounting"]["delivered"] == 1_000
        assert one["counters"]["federator 0"]['hanse_federator_agent_total{what="host_publications"}'] >= 1_000
        assert running.process.poll() is None
        eventually(lambda: not has_group(running, "chaos/"), "nobody wants what it published")


def has_group(running: RunningFederation, prefix: str) -> bool:
    return any(row["group"].startswith(prefix) for row in running.page(0, "/groups")["groups"])


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_federator_of_a_given_federation_is_restarted_by_its_supervisor(tmp_path: Path) -> None:
    with RunningFederation(tmp_path, 3, "--no-manager", "--overlay", "ring") as running:
        before = running.state["federators"][0]["federator_pid"]
        code, found = call("--state", str(running.state_path), "--fault", "kill-origin", "--messages", "2000")
        (one,) = found["rounds"]
        assert one["target"] == "federator 0"
        assert code == (0 if one["held"] else 1)
        assert running.state["federators"][0]["federator_pid"] not in {before, 0}


@pytest.mark.slow
@pytest.mark.processes
def test_a_temporary_federation_is_started_broken_and_taken_down(tmp_path: Path) -> None:
    code, found = call("--dir", str(tmp_path / "run"), "--brokers", "3", "--fault", "reset-link", "--messages", "1000")
    (one,) = found["rounds"]
    assert code == (0 if one["held"] else 1)
    assert one["accounting"]["published"] == 1_000
    output = (tmp_path / "run" / "federation-0" / "site-0" / "federator" / "output.log").read_text()
    assert "listening for neighbours" in output
