import subprocess
import sys

from hanse import __version__


def hanse(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from hanse.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_version_is_printed() -> None:
    assert hanse("--version").stdout == f"hanse {__version__}\n"


def test_an_unknown_command_exits_with_2() -> None:
    result = hanse("nosuchcommand")
    assert result.returncode == 2
    assert "nosuchcommand" in result.stderr
