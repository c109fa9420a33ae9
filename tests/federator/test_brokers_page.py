"""docs/brokers.md is correct: its commands, its lines of configuration, its counters."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hanse
from hanse.cli import build
from hanse.federator.settings import FederatorSettings, parse_adapter
from hanse.interest import vendor
from hanse.protocol.topics import may_cross

PAGE = (Path(__file__).parents[2] / "docs" / "brokers.md").read_text(encoding="utf-8")
SOURCES = Path(hanse.__file__).parent
COMMANDS = re.findall(r"^\s*(hanse (?:federator|interest config) --[^`\n]*)$", PAGE, re.MULTILINE)


def test_the_page_has_its_commands() -> None:
    assert len(COMMANDS) == 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_has_settings_that_fit_together(command: str) -> None:
    words = shlex.split(command)[1:]
    group = words[:2] if words[0] == "interest" else words[:1]
    helped = CliRunner().invoke(build(words), [*group, "--help"], env={"COLUMNS": "250", "TERM": "dumb"})
    assert all(flag in helped.output for flag in re.findall(r"--[a-z-]+", command))
    if words[0] == "federator":
        given = dict(zip(words[1::2], words[2::2], strict=True))
        fields = {flag.removeprefix("--").replace("-", "_"): value for flag, value in given.items()}
        FederatorSettings(**{**fields, "id": int(fields["id"]), "interest": (fields["interest"],)})  # type: ignore[arg-type]


def test_the_lines_for_a_broker_are_the_printed_ones() -> None:
    printed = {name: vendor.lines(name).splitlines() for name in vendor.VENDORS}
    blocks = re.findall(r"^```conf\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for name, block in zip(("rabbitmq", "nats", "emqx"), blocks, strict=True):
        for line in block.splitlines():
            assert line in printed[name], (name, line)


def test_the_adapters_of_the_page_are_known() -> None:
    named = {word for word in re.findall(r"`((?:poll:|mosquitto-)[a-z]+|emqx)`", PAGE) if word != "mosquitto-file"}
    assert {"poll:rabbitmq", "poll:nats", "poll:emqx", "emqx", "mosquitto-log"} <= named
    for word in named:
        parse_adapter(word)


def test_the_counters_of_the_page_exist() -> None:
    counters = re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)
    assert len(counters) == 6
    code = "".join(path.read_text(encoding="utf-8") for path in (SOURCES / "federator").glob("*.py"))
    assert all(f'["{counter}"]' in code for counter in counters)


def test_probes_of_a_host_never_cross() -> None:
    assert not may_cross("hanse/probe/host/hanse-federator-1/x")
