"""Search for the broker behind its output, without signalling a process that would die of the signal."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import eventually

from hanse.errors import LocalError
from hanse.federator.unknown.broker_output import BrokerOutput

HANDLES = "import signal, sys; signal.signal(signal.SIGUSR2, print); print('up', flush=True); sys.stdin.read()"
IGNORES = "import sys; print('up', flush=True); sys.stdin.read()"


@contextmanager
def process(output: Path, code: str) -> Iterator[int]:
    """Run a Python process with this output until the end of the block."""
    with output.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=file, stdin=subprocess.PIPE)
    try:
        eventually(lambda: output.read_bytes() == b"up\n", "the process runs")
        yield child.pid
    finally:
        child.communicate()


def test_process_is_found_by_its_output_if_it_handles_the_signal(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with process(output, IGNORES), pytest.raises(LocalError, match="No process of this user that handles SIGUSR2"):
        BrokerOutput(output).find()
    with process(output, HANDLES) as pid:
        assert BrokerOutput(output).find() == pid


def test_missing_output_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="log_dest stdout"):
        BrokerOutput(tmp_path / "none").find()


@pytest.mark.parametrize(
    ("text", "says"), [("", "no process id"), ("-1", "no process id"), ("9999999999", "does not run")]
)
def test_pid_file_without_a_running_process_is_refused(tmp_path: Path, text: str, says: str) -> None:
    pid_file = tmp_path / "pid"
    pid_file.write_text(text)
    with pytest.raises(LocalError, match=says):
        BrokerOutput(tmp_path / "output", pid_file).find()


def test_pid_file_that_names_another_program_is_refused(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    pid_file.write_text(f"{os.getpid()}\n")
    with pytest.raises(LocalError, match="not mosquitto"):
        BrokerOutput(tmp_path / "output", pid_file).find()
    with pytest.raises(LocalError, match="cannot be read"):
        BrokerOutput(tmp_path / "output", tmp_path / "none").find()


@pytest.mark.processes
def test_mosquitto_is_found_by_its_pid_file(tmp_path: Path) -> None:
    pid_file = tmp_path / "mosquitto.pid"
    with Mosquitto(f"pid_file {pid_file}") as broker:
        assert BrokerOutput(broker.log_path, pid_file).find() == broker.pid
        assert BrokerOutput(broker.log_path).find() == broker.pid
