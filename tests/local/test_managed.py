"""`hanse up` with its manager, as users run it."""

import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, RunningFederation, environment, eventually
from typer.testing import CliRunner

from hanse.cli import build
from hanse.errors import LocalError
from hanse.interest.vendor import MOSQUITTO_LOG_TYPES
from hanse.local.supervise import FederationSettings, plan


def connections(path: Path) -> int:
    """Return the number of connections to a Unix socket, from /proc (unix(5)): 01 is listening, 03 is connected."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(row[-1] == str(path) and row[5] == "03" for row in rows)


def invoke(*words: str) -> BaseException | None:
    return CliRunner().invoke(build(["up"]), ["up", *words]).exception


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--overlay", "torus"], "expected ring"),
        (["--health-interval", "5"], "--health-interval"),
        (["--broker-url", "http://x"], "no known scheme"),
        (["--broker-url", "mqtt://127.0.0.1:1", "--broker-url", "tcp://127.0.0.1:1"], "given twice"),
        (["--brokers", "0"], "0 brokers are not possible"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_starts(tmp_path: Path, words: list[str], said: str) -> None:
    error = invoke(*words, "--dir", str(tmp_path), "--state", str(tmp_path / "state.json"))
    assert isinstance(error, LocalError)
    assert said in str(error)


def test_given_brokers_follow_started_ones_and_no_login_is_shown(tmp_path: Path) -> None:
    url = "mqtt://user:hunter2@192.0.2.1:1884"
    sites = plan(FederationSettings(2, tmp_path, overlay="ring", broker_urls=(url,))).sites
    assert [site.k for site in sites] == [0, 1, 2]
    assert (sites[2].broker_url, sites[2].broker_shown, sites[2].has_login) == (url, "mqtt://192.0.2.1:1884", True)
    assert sites[0].neighbour_brokers[1] == (2, "mqtt://192.0.2.1:1884")
    assert not sites[0].has_login
    assert [site.broker_socket is not None for site in sites] == [True, True, False]


@pytest.mark.processes
def test_a_manager_places_the_federation_and_a_running_broker_may_join(tmp_path: Path) -> None:
    lines = ["log_dest topic", *(f"log_type {kind}" for kind in MOSQUITTO_LOG_TYPES)]
    with Mosquitto(*lines) as given:
        with RunningFederation(tmp_path, 2, "--broker-url", f"mqtt://127.0.0.1:{given.port}") as running:
            state = running.state
            assert [row["id"] for row in state["federators"]] == [0, 1, 2]
            assert [row["broker_pid"] is None for row in state["federators"]] == [False, False, True]
            with urllib.request.urlopen(f"{state['manager']}/api/v1/topology", timeout=5) as answer:
                found = json.load(answer)
            assert [one["state"] for one in found["federators"]] == ["up"] * 3
            assert found["isTwoConnected"]
            # A started broker serves its federator over its socket: the main session and others.
            counts = [connections(tmp_path / f"run/site-{k}/broker/mosquitto.sock") for k in range(3)]
            assert [count > 0 for count in counts] == [True, True, False]
            with Client(running.port(0)) as subscriber, Client(given.port) as publisher:
                subscriber.subscribe("given/#")
                eventually(lambda: knows(running, "given/#"), "all know given/#")
                publisher.publish("given/x", b"hi")
                subscriber.expect(1)
            # Subscriptions of `hanse sub` are interest like any other.
            words = ["--state", str(running.state_path)]
            with ThreadPoolExecutor() as pool:
                listening = pool.submit(hanse, "sub", "-t", "cli/#", "-C", "1", "-W", "20", "--at", "1", *words)
                eventually(lambda: knows(running, "cli/#"), "all know cli/#")
                hanse("pub", "-t", "cli/x", "-m", "by hand", "--at", "2", *words)
                assert listening.result() == "by hand\n"
            pids = [row[key] for row in state["federators"] for key in ("broker_pid", "federator_pid")]
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids if pid is not None)
        with Client(given.port) as client:
            assert client.client.is_connected(), "a broker that was already running must keep running"
    assert not running.state_path.exists()


@pytest.mark.slow
@pytest.mark.processes
def test_a_broker_with_a_login_is_probed_by_its_federator_and_the_login_stays_secret(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), "user", "hunter2"], check=True)
    passwords.chmod(0o644)
    lines = ["log_dest topic", *(f"log_type {kind}" for kind in MOSQUITTO_LOG_TYPES), f"password_file {passwords}"]
    with Mosquitto(*lines, anonymous=False) as given:
        url = f"mqtt://user:hunter2@127.0.0.1:{given.port}"
        words = ["--broker-url", url, "--health-interval", "1s"]
        with RunningFederation(tmp_path, 2, *words) as running:
            manager = running.state["manager"]

            def is_measured() -> bool:
                with urllib.request.urlopen(f"{manager}/api/v1/topology", timeout=5) as answer:
                    row = json.load(answer)["federators"][2]
                return row["state"] == "up" and row["probe"] == "self" and row["latency"] is not None

            eventually(is_measured, "the manager has a latency from the federator itself")
            assert "hunter2" not in running.state_path.read_text()
            pid = running.state["federators"][2]["federator_pid"]
            assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            logs = [path.read_text() for path in tmp_path.glob("run/**/*.log")]
            assert not any("hunter2" in text for text in logs)


def hanse(*words: str) -> str:
    command = [sys.executable, "-m", "hanse", *words]
    return subprocess.run(command, env=environment(), check=True, capture_output=True, text=True, timeout=40).stdout


def knows(running: RunningFederation, group: str) -> bool:
    cores = set()
    for k in range(3):
        rows = [row for row in running.page(k, "/groups")["groups"] if row["group"] == group]
        cores.add(rows[0]["core"] if rows else None)
    return len(cores) == 1 and None not in cores
