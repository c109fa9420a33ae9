"""docs/gateway.md is correct: its table of settings is generated, its commands and metrics are checked.

When a setting changes, `HANSE_WRITE_DOCS=1 pytest tests/gateway/test_docs.py` writes the table again.
"""

import re
import shlex
from pathlib import Path

import pytest
from tests.settings_table import check_table
from typer.testing import CliRunner

from hanse.cli import build
from hanse.gateway.settings import GatewaySettings

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
SOURCE = Path(__file__).parents[2] / "src" / "hanse" / "gateway" / "pages.py"


def test_the_table_of_settings_is_the_settings() -> None:
    check_table(PAGE, GatewaySettings)


def commands() -> list[str]:
    joined = PAGE.read_text().replace("\\\n", " ")
    return re.findall(r"^(hanse (?:gateway|discover) [^\n]*)$", joined, re.MULTILINE)


def test_the_page_has_commands() -> None:
    assert len(commands()) > 5


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_page_takes_its_flags(command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if word != "..."]
    group = words[:1] + [word for word in words[1:2] if not word.startswith("-")]
    shown = CliRunner().invoke(build([group[0]]), [*group, "--help"], env={"COLUMNS": "300"}).output
    for flag in (word for word in words if word.startswith("--")):
        assert flag in shown, f"{flag} of {command}"


def test_every_metric_of_the_page_exists() -> None:
    source = SOURCE.read_text()
    for name in re.findall(r"`(?:hanse_gateway)?_([a-z_]+)(?:\{[a-z]+\})?`", PAGE.read_text()):
        assert f'"{name}"' in source, name
