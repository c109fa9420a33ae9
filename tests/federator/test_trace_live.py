"""`hanse trace` against real federators in a line of three: the good case, and failures caused one by one."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, environment, eventually
from tests.federators import LOG_LINES, Federator, is_converged, running

pytestmark = pytest.mark.processes

Scene = tuple[list[Mosquitto], list[Federator]]


@pytest.fixture(scope="module", params=["direct", pytest.param("broker", marks=pytest.mark.slow)])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run three federators; each test leaves them as it found them.

    `secret/#` and `foreign/#` do not cross at 0 and 2.
    """
    tmp_path = tmp_path_factory.mktemp("scene")
    own = [["--export-deny", "secret/#"], [], ["--import-deny", "foreign/#"]]
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*LOG_LINES) as two, Mosquitto(*LOG_LINES) as three:
        brokers = [one, two, three]
        federators = [Federator(k, broker.url, tmp_path, *own[k]) for k, broker in enumerate(brokers)]
        for a, b in ((0, 1), (1, 0), (1, 2), (2, 1)):
            if request.param == "broker":
                federators[a].words += ["--neighbour", f"{b}={brokers[b].url}"]
            elif a > b:
                federators[a].words += ["--neighbour", federators[b].link_url]
        for federator in federators:
            by_broker = request.param == "broker"
            federator.words += ["--link", "broker"] if by_broker else ["--link-listen", federator.link_url]
        with running(federators):
            yield brokers, federators


def is_by_broker(scene: Scene) -> bool:
    return "--link" in scene[1][0].words


def run_trace(federator: Federator, topic: str, *words: str) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{federator.metrics_port}"
    command = [sys.executable, "-m", "hanse", "trace", topic, "--metrics", url, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=60)


def trace(federator: Federator, topic: str) -> dict[str, Any]:
    """Return the trace that `hanse trace` requests, without starting another process."""
    url = f"http://127.0.0.1:{federator.metrics_port}/trace"
    body = json.dumps({"topic": topic}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def ends(found: dict[str, Any]) -> set[tuple[int, str, int | None]]:
    """Return place, reason and destination of each end."""
    hops = [*found["hops"], *found["remarks"]]
    return {(hop["federator"], end["reason"], end["neighbour"]) for hop in hops for end in hop["ends"]}


def test_a_probe_is_seen_at_each_hop_and_delivered_to_no_client(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber:
        subscriber.subscribe("good/#")
        eventually(lambda: federators[0].knows("good/#"), "good/# is known")
        found = trace(federators[0], "good/x")
        assert (found["delivered_at"], found["reason"], found["remarks"]) == ([2], None, [])
        assert [(hop["previous"], hop["federator"]) for hop in found["hops"]] == [(None, 0), (0, 1), (1, 2)]
        assert [hop["delivered"] for hop in found["hops"]] == [[], [], ["good/#"]]
        times = [time_us for hop in found["hops"] for time_us in (hop["arrived_us"], hop["left_us"]) if time_us]
        assert times == sorted(times)
        assert [hop[0] for hop in found["hops"][2]["path"]] == [0, 1]
        shown = run_trace(federators[0], "good/x")
        assert shown.returncode == 0
        assert "good/x at 0" in shown.stdout
        assert "delivered here, for good/#" in shown.stdout
        assert shown.stdout.count(" ms in all") == 2
        time.sleep(0.2)
        assert subscriber.messages == []


def test_missing_interest_is_reported(scene: Scene) -> None:
    _, federators = scene
    done = run_trace(federators[0], "nobody/wants/this", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert (found["reason"], ends(found)) == ("no_interest", {(0, "no_interest", None)})
    assert "delivered nowhere: nobody elsewhere is interested" in run_trace(federators[0], "nobody/wants/this").stdout


def test_topics_that_never_cross_are_distinguished_from_those_that_export_blocks(scene: Scene) -> None:
    brokers, federators = scene
    assert trace(federators[0], "$SYS/x")["reason"] == "never_crosses"
    with Client(brokers[2].port) as subscriber:
        subscriber.subscribe("secret/#")
        eventually(lambda: federators[0].knows("secret/#"), "secret/# is known")
        found = trace(federators[0], "secret/x")
        assert (found["reason"], ends(found)) == ("export", {(0, "export", None)})
        assert trace(federators[1], "secret/x")["delivered_at"] == [2]


def test_topics_that_import_blocks_are_named_at_their_destination(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber:
        # The subscription itself does not reach the others: only the destination knows of it.
        subscriber.subscribe("foreign/x/#")
        eventually(lambda: ends(trace(federators[0], "foreign/x/y")) >= {(2, "import", None)}, "2 tells why")
        found = trace(federators[0], "foreign/x/y")
        assert (found["reason"], found["delivered_at"]) == ("import", [])
        assert found["remarks"][0]["ends"][0]["groups"] == ["foreign/x/#"]
        # This one does, because it wants more than that. The publication travels, and is blocked at the destination.
        subscriber.subscribe("+/y")
        eventually(lambda: federators[0].knows("+/y"), "+/y is known")
        found = trace(federators[0], "foreign/y")
        assert [hop["federator"] for hop in found["hops"]] == [0, 1, 2]
        assert (found["reason"], ends(found)) == ("import", {(2, "import", None)})


def test_a_killed_neighbour_is_a_link_that_is_down(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber:
        subscriber.subscribe("lost/#")
        eventually(lambda: federators[0].knows("lost/#"), "lost/# is known")
        federators[2].end(signal.SIGKILL)
        try:
            eventually(lambda: trace(federators[0], "lost/x")["reason"] == "link_down", "the link is named", 30)
            found = trace(federators[0], "lost/x")
            assert (1, "link_down", 2) in ends(found)
            assert trace(federators[1], "lost/x")["reason"] == "link_down"
        finally:
            federators[2].start()
        eventually(lambda: is_converged(federators), "all are back", 40)
        subscriber.subscribe("lost/#")  # its interest may not have been on disk
        eventually(lambda: trace(federators[0], "lost/x")["delivered_at"] == [2], "it arrives again", 30)


def test_the_host_broker_of_the_destination_is_down(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber:
        subscriber.subscribe("away/#")
        eventually(lambda: federators[0].knows("away/#"), "away/# is known")
        brokers[2].kill()
        try:
            eventually(lambda: federators[2].health() is None, "its federator has noticed")
            found = trace(federators[0], "away/x")
            if is_by_broker(scene):  # the link itself goes through that broker
                assert (1, "link_down", 2) in ends(found)
                assert found["reason"] == "link_down"
            else:
                assert [hop["federator"] for hop in found["hops"]] == [0, 1, 2]
                assert (found["reason"], ends(found)) == ("host_down", {(2, "host_down", None)})
            assert trace(federators[2], "away/x")["reason"] == "host_down"
        finally:
            brokers[2].restart()
        eventually(lambda: federators[2].health() is not None, "its federator is back", 30)


def test_a_neighbour_that_is_stuck_gives_no_answer(scene: Scene) -> None:
    brokers, federators = scene
    with Client(brokers[2].port) as subscriber:
        subscriber.subscribe("stuck/#")
        eventually(lambda: federators[0].knows("stuck/#"), "stuck/# is known")
        assert federators[2].process is not None
        federators[2].process.send_signal(signal.SIGSTOP)
        try:
            found = trace(federators[0], "stuck/x")
            assert (found["reason"], ends(found)) == ("no_answer", {(1, "no_answer", 2)})
        finally:
            federators[2].process.send_signal(signal.SIGCONT)
        eventually(lambda: trace(federators[0], "stuck/x")["delivered_at"] == [2], "it arrives again", 30)


def test_a_malformed_request_is_refused_with_a_sentence(scene: Scene) -> None:
    _, federators = scene
    done = run_trace(federators[0], "a/#")
    assert done.returncode == 1
    assert "wildcard" in done.stderr
    done = run_trace(federators[0], "a", "--at", "0")
    assert done.returncode == 2
    assert "Both --at and --metrics" in done.stderr
