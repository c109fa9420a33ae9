"""A wrong setting is one clear sentence and exit code 2."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.federation import environment

from hanse.federator.store import StateDirectory

pytestmark = pytest.mark.processes


def hanse(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hanse", *words],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(answer: subprocess.CompletedProcess[str]) -> str:
    """Return the one sentence. Nothing else may be printed, above all no traceback."""
    assert answer.returncode == 2, answer
    lines = answer.stderr.strip().splitlines()
    assert len(lines) == 1, answer.stderr
    assert lines[0].startswith("hanse: ")
    return lines[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--id", "-1"], "id"),
        ([], "This federator has no id"),
        (["--id", "1", "--broker", "http://127.0.0.1"], "has no known scheme"),
        (["--id", "1", "--link-listen", "mqtt://0.0.0.0:1883"], "without TLS"),
        (["--id", "1", "--interest", "telepathy"], "telepathy"),
        (["--id", "1", "--link", "broker", "--neighbour", "mqtt://127.0.0.1:1"], "has no id"),
        (["--id", "1", "--announcement-interval", "soon"], "soon"),
        (["--id", "1", "--export-allow", "a/#/b"], "a/#/b"),
    ],
)
def test_a_wrong_setting_of_a_federator_is_one_sentence(words: list[str], says: str, tmp_path: Path) -> None:
    said = refused(hanse("federator", *words, cwd=tmp_path))
    assert says in said
    assert "another one" not in said


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    assert "HANSE_REDUNDANCY" in refused(hanse("federator", "--id", "1", cwd=tmp_path, HANSE_REDUNDANCY="many"))


def test_an_unknown_setting_in_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hanse.toml"
    path.write_text("[federator]\nid = 1\nredundncy = 2\n")
    assert "redundncy" in refused(hanse("federator", "--config", str(path), cwd=tmp_path))


def test_a_password_is_not_repeated(tmp_path: Path) -> None:
    said = refused(hanse("federator", "--id", "1", "--broker", "mqtt://me:hunter2@host:99999", cwd=tmp_path))
    assert "hunter2" not in said


def test_a_state_directory_in_use_is_named(tmp_path: Path) -> None:
    with StateDirectory(tmp_path / "state"):
        said = refused(hanse("federator", "--id", "1", "--state-dir", str(tmp_path / "state"), cwd=tmp_path))
    assert f"in use by the process {os.getpid()}" in said


@pytest.mark.parametrize("flag", ["--link-listen", "--metrics"])
def test_a_port_in_use_is_one_sentence(flag: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = [flag, f"mqtt://{address}" if flag == "--link-listen" else address]
        answer = hanse("federator", "--id", "1", *words, "--log-level", "error", cwd=tmp_path)
    said = refused(answer)
    assert address.rsplit(":", 1)[1] in said


def test_up_explains_how_to_get_mosquitto(tmp_path: Path) -> None:
    said = refused(hanse("up", cwd=tmp_path, HANSE_MOSQUITTO="/nowhere/mosquitto"))
    assert "HANSE_MOSQUITTO names '/nowhere/mosquitto'" in said


def test_up_names_the_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(hanse("up", "--brokers", "1", "--base-port", str(port), cwd=tmp_path))
    assert str(port) in said


def test_up_refuses_an_unknown_overlay_or_kind_of_link(tmp_path: Path) -> None:
    assert "triangle" in refused(hanse("up", "--overlay", "triangle", cwd=tmp_path))
    assert "pigeon" in refused(hanse("up", "--link", "pigeon", cwd=tmp_path))
