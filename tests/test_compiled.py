"""The form of the hot path that a process runs."""

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
    """Return the output of a separate process."""
    environment = {**os.environ, **({"HANSE_PURE": "1"} if pure else {})}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Copy sources for editing."""
    for source in compiled.modules(PACKAGE):
        place = tmp_path / source.relative_to(PACKAGE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
    return tmp_path


def runs_sources(package: Path) -> bool:
    """Return whether this process searches only the sources for imports from there."""
    finder = sys.path_importer_cache.pop(str(package / "protocol"), None)
    return isinstance(finder, FileFinder) and finder.find_spec("machine") is not None


def test_without_extensions_the_sources_run_silently(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not compiled.choose(package)
    assert capsys.readouterr().err == ""


def test_extensions_of_these_sources_run(package: Path) -> None:
    compiled.write_stamp(package, compiled.digest(package))
    assert compiled.choose(package)
    assert not runs_sources(package)


def test_unfinished_extensions_do_not_run(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "errors.cpython-311-x86_64-linux-gnu.so").touch()
    assert not compiled.choose(package)
    assert runs_sources(package)
    assert "tools/compile" in capsys.readouterr().err


def test_after_an_edit_the_sources_run_with_a_notice(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled.write_stamp(package, compiled.digest(package))
    edited = package / "protocol" / "machine.py"
    edited.write_text(edited.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert not compiled.choose(package)
    assert runs_sources(package)
    assert "tools/compile" in capsys.readouterr().err


def test_the_sources_run_on_request(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled.write_stamp(package, compiled.digest(package))
    monkeypatch.setenv("HANSE_PURE", "1")
    assert not compiled.choose(package)
    assert runs_sources(package)
    assert capsys.readouterr().err == ""


def test_this_process_runs_the_sources_and_a_child_the_current_form() -> None:
    ask = "import hanse, hanse.protocol.machine as m; print(hanse.is_compiled, m.__file__.endswith('.py'))"
    assert not hanse.is_compiled
    is_current = compiled.is_current(PACKAGE)
    assert run("-c", ask).split() == [str(is_current), str(not is_current)]
    assert run("-c", ask, pure=True).split() == ["False", "True"]


def test_both_forms_give_the_same_run() -> None:
    life = ("-m", "hanse", "sim", "run", "--brokers", "30", "--groups", "20", "--seed", "5", "--json")
    pure, other = (json.loads(run(*life, pure=pure)) for pure in (True, False))
    assert pure["trace_hash"] == other["trace_hash"]
    assert pure["delivered"] == other["delivered"] > 0


def test_no_extension_is_found_if_the_sources_are_requested() -> None:
    """An extension is passed over only in the directories of `modules`, and a package is found through its parent's."""
    found = compiled.modules(PACKAGE)
    directories = {path.parent for path in found}
    assert all(path.parent.parent in directories for path in found if path.stem == "__init__")


@pytest.mark.processes
def test_every_module_beside_the_extensions_can_be_imported() -> None:
    """An interpreted class with a compiled base cannot even be defined; so a module with one is also compiled."""
    code = (
        "import importlib, pkgutil\n"
        "import hanse\n"
        "for name in ('mqtt', 'federator', 'gateway', 'protocol', 'sim'):\n"
        "    package = importlib.import_module(f'hanse.{name}')\n"
        "    for found in pkgutil.walk_packages(package.__path__, f'{package.__name__}.'):\n"
        "        if not found.name.endswith('__main__'):\n"
        "            importlib.import_module(found.name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
