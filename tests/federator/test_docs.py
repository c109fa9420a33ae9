"""docs/operating.md is correct: its table of settings is generated, its commands and names are checked.

When a setting changes, `HANSE_WRITE_DOCS=1 pytest tests/federator/test_docs.py` writes the table again.
"""

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, RunningFederation, environment, eventually
from tests.federators import LOG_LINES, Federator, running
from tests.settings_table import check_table
from typer.testing import CliRunner

from hanse.cli import build
from hanse.federator.settings import FederatorSettings
from hanse.mqtt.tls import TlsSettings, client_context, server_context
from hanse.protocol.accounts import MEASURES
from hanse.protocol.topics import may_cross
from hanse.protocol.tracing import WORDS

DOCS = Path(__file__).parents[2] / "docs"
OPERATING = DOCS / "operating.md"


def test_the_table_of_settings_is_the_settings() -> None:
    check_table(OPERATING, FederatorSettings)


def test_every_hanse_command_of_the_pages_takes_its_flags() -> None:
    commands = re.findall(r"(?:^|`)\s*(hanse [a-z][^`\n]*)", OPERATING.read_text(), re.MULTILINE)
    assert len(commands) > 4
    for command in commands:
        words = shlex.split(command)[1:]
        if words[-1:] == ["..."]:
            continue
        group = [word for word in words[: 2 if words[0] == "interest" else 1] if not word.startswith("-")]
        helped = CliRunner().invoke(build(words), [*group, "--help"], env={"COLUMNS": "250", "TERM": "dumb"})
        assert helped.exit_code == 0, command
        for flag in re.findall(r"--[a-z-]+", command):
            assert flag in helped.output, f"{command}: no {flag}"


def test_reasons_and_measures_are_those_of_the_pages() -> None:
    for reason, words in WORDS.items():
        assert f"| `{reason.value}` | {words} |" in OPERATING.read_text()
    for measure, words in MEASURES.items():
        assert f"| `{measure}` | {words} |" in (DOCS / "protocol.md").read_text()


@pytest.mark.processes
def test_trace_and_account_print_the_output_on_the_page(tmp_path: Path) -> None:
    """Run the page's own commands in the federation that it describes; only the times differ."""
    shown = dict(re.findall(r"<!-- hanse (\w+): .*?```\n(.*?)```", OPERATING.read_text(), re.DOTALL))
    with (
        RunningFederation(tmp_path, 3, "--overlay", "line", "--no-manager") as federation,
        Client(federation.port(2)) as subscriber,
        Client(federation.port(0)) as publisher,
    ):
        subscriber.subscribe("hello/#")
        eventually(lambda: federation.knows("hello/#"), "hello/# is known")
        assert _said("hanse trace hello/world --at 0", federation) == _without_times(shown["trace"])
        # Reports to federator 0 used the links as well: count from here.
        before = _said("hanse account", federation)
        for number in range(3):
            publisher.publish("hello/world", b"%d" % number)
        subscriber.expect(3)
        after = _said("hanse account", federation)
        assert "hello/#" not in before
        # Compare the first table whole. For links, compare only names, because the federators' own messages pass there
        # as well.
        assert _cut(after) == _cut(shown["account"])
        assert after.splitlines()[-1] == "unexplained: 0"


def _cut(text: str) -> list[str]:
    """Return lines without blanks at their ends; of those about links only the first three words."""
    lines = [line.rstrip() for line in text.splitlines()]
    return [" ".join(line.split()[:3]) if re.match(r" *\d to \d", line) else line for line in lines if line]


def _said(command: str, federation: RunningFederation) -> str:
    assert f"\n{command}\n" in OPERATING.read_text()
    words = [sys.executable, "-m", *shlex.split(command), "--state", str(federation.state_path)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(COLUMNS="120"), check=True, timeout=60)
    return _without_times(done.stdout)


def _without_times(text: str) -> str:
    return re.sub(r"-?\d+\.\d ms", "N ms", text)


def test_topics_that_the_page_calls_never_crossing_do_not_cross() -> None:
    assert not any(map(may_cross, ("$SYS/x", "$anything", "federator/routing/1/2", "federated_topology_ann")))
    assert may_cross("$hanse/telemetry/v1/x/1")


def test_the_commands_for_certificates_make_a_certificate_for_both_sides_of_a_link(tmp_path: Path) -> None:
    section = OPERATING.read_text().partition("### TLS between federators")[2]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found is not None
    commands = found[1].replace("10.0.0.7", "127.0.0.1")
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    files = TlsSettings(tmp_path / "authority.crt", tmp_path / "federator-1.crt", tmp_path / "federator-1.key")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hi")
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(files)) as server:
            port = server.sockets[0].getsockname()[1]
            for name in ("127.0.0.1", "a.example"):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=client_context(files), server_hostname=name
                )
                assert await reader.read() == b"hi"
                writer.close()

    asyncio.run(story())


@pytest.mark.processes
def test_two_federators_started_as_the_page_says_meet(tmp_path: Path) -> None:
    """Run the page's own two commands, with this machine's ports and directories."""
    found = re.findall(r"^\s*(hanse federator --id \d .*)$", OPERATING.read_text(), re.MULTILINE)
    assert len(found) == 2
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as two:
        federators = [Federator(number, broker.url, tmp_path) for number, broker in ((1, one), (2, two))]
        places = {
            "mqtt://127.0.0.1:1883": one.url,
            "mqtt://127.0.0.1:2883": two.url,
            "mqtt://127.0.0.1:1884": federators[0].link_url,
            "/var/lib/hanse": str(tmp_path / "one"),
            "/var/lib/hanse-2": str(tmp_path / "two"),
        }
        for federator, command in zip(federators, found, strict=True):
            words = [places.get(word, word) for word in shlex.split(command)]
            federator.words = [*federator.words[:3], *words[1:], "--metrics", f"127.0.0.1:{federator.metrics_port}"]
        with running(federators), Client(two.port) as subscriber, Client(one.port) as publisher:
            subscriber.subscribe("hello/#")
            eventually(lambda: federators[0].knows("hello/#"), "hello/# is known")
            publisher.publish("hello/world", b"hi")
            subscriber.expect(1)
            page = federators[0].metrics()
            names = set(re.findall(r"`(hanse_federator_[a-z_]+)`", OPERATING.read_text()))
            for name in names | {
                f"hanse_federator_{rest}" for rest in re.findall(r"`…_([a-z_]+)`", OPERATING.read_text())
            }:
                assert f"# TYPE {name} " in page, name
            for federator in federators:
                # A clock that stands still within a turn of the loop would measure nothing.
                (seconds,) = re.findall(r"^hanse_federator_hop_seconds_sum (\S+)$", federator.metrics(), re.MULTILINE)
                assert float(seconds) > 0
