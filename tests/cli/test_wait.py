"""`hanse wait` beside real federations."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, environment, eventually
from tests.federators import LOG_LINES, Federator
from tests.managed import Managed

pytestmark = pytest.mark.processes


def wait(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hanse", "wait", *words]
    return subprocess.run(command, env=environment(), check=False, capture_output=True, text=True, timeout=120)


def test_wait_returns_when_messages_cross_links_through_brokers(tmp_path: Path) -> None:
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as two, Client(two.port) as subscriber:
        federators = [
            Federator(0, one.url, tmp_path, "--link", "broker", "--neighbour", f"1={two.url}"),
            Federator(1, two.url, tmp_path, "--link", "broker", "--neighbour", f"0={one.url}"),
        ]
        words = [word for each in federators for word in ("--metrics", f"http://127.0.0.1:{each.metrics_port}")]
        try:
            federators[0].start()
            early = wait(*words, "--timeout", "300ms")
            assert early.returncode == 1
            assert f"http://127.0.0.1:{federators[1].metrics_port} does not answer" in early.stderr
            federators[1].start()
            found = wait(*words, "--count", "2")
            assert (found.returncode, found.stdout) == (0, "ready\n"), found.stderr
            assert all(each.page("/healthz")["ready"] for each in federators)
            subscriber.subscribe("crosses/#")
            with Client(one.port) as publisher:

                def crosses() -> bool:
                    # A message that is published before the filter is known elsewhere does not cross.
                    publisher.publish("crosses/x", b"1")
                    return bool(subscriber.messages)

                eventually(crosses, "a message crosses")
        finally:
            for each in federators:
                each.end()


def test_a_federator_without_its_neighbour_is_not_ready(tmp_path: Path) -> None:
    with Mosquitto(*LOG_LINES) as broker:
        other = Federator(1, broker.url, tmp_path)
        alone = Federator(0, broker.url, tmp_path, "--neighbour", other.link_url)
        try:
            alone.start()
            found = wait("--metrics", f"http://127.0.0.1:{alone.metrics_port}", "--timeout", "2s")
            assert found.returncode == 1
            assert f"federator 0 has no link to its neighbour 127.0.0.1:{other.link_port}" in found.stderr
            page = alone.page("/healthz")
            assert (page["broker"], page["ready"]) == ("connected", False)
        finally:
            alone.end()


def test_wait_asks_the_manager(tmp_path: Path) -> None:
    with Managed(tmp_path, 2) as federation:
        words = ["--manager", federation.manager_urls[0]]
        assert wait(*words, "--count", "2").stdout == "ready\n"
        refused = wait(*words, "--count", "3", "--timeout", "300ms")
        assert refused.returncode == 1
        assert "2 of 3 federators have joined" in refused.stderr


def test_wait_without_a_federation_names_the_state_file(tmp_path: Path) -> None:
    found = wait("--state", str(tmp_path / "state.json"), "--timeout", "100ms")
    assert found.returncode == 1
    assert "not ready after 0.1 s: There is no state file" in found.stderr
    assert wait("--timeout", "soon").returncode == 2
