"""Which form of the hot path a process runs."""

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import FileFinder
from pathlib import Path

import pytest

import hanse
from hanse import compiled

PACKAGE = Path(hanse.__file__).parent


def run(*arguments: str, pure: bool = False) -> str:
    """What a process of its own prints."""
    environment = {**os.environ, **({"HANSE_PURE": "1"} if pure else {})}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Sources to be edited."""
    for source in compiled.modules(PACKAGE):
        place = tmp_path / source.relative_to(PACKAGE)
        place.parent.mkdir(exist_ok=True)
        shutil.copy(source, place)
    return tmp_path


def runs_sources(package: Path) -> bool:
    """Whether what this process imports from there is looked for among the sources alone."""
    finder = sys.path_importer_cache.pop(str(package / "protocol"), None)
    return isinstance(finder, FileFinder) and finder.find_spec("machine") is not None


def test_without_extensions_the_sources_run_and_nothing_is_said(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not compiled.choose(package)
    assert capsys.readouterr().err == ""


def test_extensions_of_these_sources_run(package: Path) -> None:
    compiled.write_stamp(package, compiled.digest(package))
    assert compiled.choose(package)
    assert not runs_sources(package)


def test_extensions_that_nobody_finished_do_not_run(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "errors.cpython-311-x86_64-linux-gnu.so").touch()
    assert not compiled.choose(package)
    assert runs_sources(package)
    assert "tools/compile" in capsys.readouterr().err


def test_after_an_edit_the_sources_run_and_it_is_said(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled.write_stamp(package, compiled.digest(package))
    edited = package / "protocol" / "machine.py"
    edited.write_text(edited.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert not compiled.choose(package)
    assert runs_sources(package)
    assert "tools/compile" in capsys.readouterr().err


def test_who_asks_for_the_sources_gets_them(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled.write_stamp(package, compiled.digest(package))
    monkeypatch.setenv("HANSE_PURE", "1")
    assert not compiled.choose(package)
    assert runs_sources(package)
    assert capsys.readouterr().err == ""


def test_here_the_sources_run_and_in_a_process_of_its_own_what_is_current() -> None:
    ask = "import hanse, hanse.protocol.machine as m; print(hanse.is_compiled, m.__file__.endswith('.py'))"
    assert not hanse.is_compiled
    is_current = compiled.is_current(PACKAGE)
    assert run("-c", ask).split() == [str(is_current), str(not is_current)]
    assert run("-c", ask, pure=True).split() == ["False", "True"]


def test_both_forms_live_the_same_life() -> None:
    life = ("-m", "hanse", "sim", "run", "--brokers", "30", "--groups", "20", "--seed", "5", "--json")
    pure, other = (json.loads(run(*life, pure=pure)) for pure in (True, False))
    assert pure["trace_hash"] == other["trace_hash"]
    assert pure["delivered"] == other["delivered"] > 0
