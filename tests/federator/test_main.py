"""`python -m hanse.federator` takes the flags of `hanse federator`, and omits what only a command line needs."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.federation import environment

from hanse.federator.__main__ import parse


def test_flags_are_parsed_like_on_the_command_line() -> None:
    words = ["--id", "7", "--broker=mqtt://h:1", "--neighbour", "a", "--neighbour", "b", "--insecure"]
    words += ["--no-federated-prefix", "--config", "hanse.toml"]
    assert parse(words) == (
        {"id": "7", "broker": "mqtt://h:1", "insecure": True, "federated_prefix": False, "neighbour": ["a", "b"]},
        Path("hanse.toml"),
    )


@pytest.mark.parametrize("words", [["--help"], ["--unknown", "1"], ["stray"], ["--id"], ["--insecure=yes"]])
def test_words_that_are_not_flags_with_values_are_left_to_the_command_line(words: list[str]) -> None:
    assert parse(words) is None


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.processes
@pytest.mark.parametrize("words", [["--id", "-1"], [], ["--id", "1", "--interest", "telepathy"]])
def test_both_entry_points_refuse_with_the_same_message(words: list[str], tmp_path: Path) -> None:
    short = run("-m", "hanse.federator", *words, cwd=tmp_path)
    long = run("-m", "hanse", "federator", *words, cwd=tmp_path)
    assert (short.returncode, short.stderr) == (long.returncode, long.stderr)
    assert short.returncode == 2


@pytest.mark.processes
def test_the_agent_needs_no_library_of_the_command_line(tmp_path: Path) -> None:
    code = "import sys, hanse.federator.__main__, hanse.federator.running\n"
    code += "print({'typer', 'rich', 'pydantic'} & set(sys.modules))"
    assert run("-c", code, cwd=tmp_path).stdout == "set()\n"


@pytest.mark.processes
def test_an_unknown_flag_is_refused_by_the_command_line(tmp_path: Path) -> None:
    answer = run("-m", "hanse.federator", "--id", "1", "--unknown", "2", cwd=tmp_path)
    assert answer.returncode == 2
    assert "No such option: --unknown" in answer.stderr
