"""`hanse account` against real federators: a ring of three under load, with and without a link that breaks."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, environment, eventually
from tests.federators import LOG_LINES, Federator, is_converged, running

pytestmark = pytest.mark.processes

LIMITS = ("max_inflight_messages 20000", "max_queued_messages 100000")
EACH = 600


class EmulatedLink:
    """`hanse link-emulator` in front of one federator's listener."""

    def __init__(self, target: str) -> None:
        command = [sys.executable, "-m", "hanse", "link-emulator", "--target", target.removeprefix("mqtt://")]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment(PYTHONUNBUFFERED="1")
        )
        assert self.process.stdout is not None
        found = re.match(r"link (\S+) -> .*, control \S+:(\d+)", self.process.stdout.readline())
        assert found is not None
        self.url, self._control = f"mqtt://{found[1]}", int(found[2])

    def say(self, line: str) -> None:
        with socket.create_connection(("127.0.0.1", self._control), 5) as control, control.makefile("rw") as file:
            file.write(line + "\n")
            file.flush()
            assert file.readline().startswith("ok ")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


Scene = tuple[list[Mosquitto], list[Federator], EmulatedLink]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Run a ring whose link between 2 and 0 is emulated."""
    with (
        Mosquitto(*LOG_LINES, *LIMITS) as one,
        Mosquitto(*LOG_LINES, *LIMITS) as two,
        Mosquitto(*LOG_LINES, *LIMITS) as three,
    ):
        brokers = [one, two, three]
        federators = [Federator(k, broker.url, tmp_path) for k, broker in enumerate(brokers)]
        link = EmulatedLink(federators[0].link_url)
        for federator in federators:
            federator.words += ["--link-listen", federator.link_url]
        federators[1].words += ["--neighbour", federators[0].link_url]
        federators[2].words += ["--neighbour", federators[1].link_url, "--neighbour", link.url]
        try:
            with running(federators):
                eventually(lambda: all(len(one.neighbours()) == 2 for one in federators), "the ring is closed")
                yield brokers, federators, link
        finally:
            link.end()


def account(federators: list[Federator], *words: str) -> dict[str, Any]:
    urls = [word for one in federators for word in ("--metrics", f"http://127.0.0.1:{one.metrics_port}")]
    command = [sys.executable, "-m", "hanse", "account", *urls, "--json", "--wait", "20", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=60)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["unexplained"] else 0)
    return found


def publish(publishers: list[Client], first: int, cut: EmulatedLink | None = None) -> None:
    """Publish from all sides in turn, at QoS 0 and 1, up to the last acknowledgement. A link may break meanwhile."""
    infos = []
    for number in range(first, first + EACH):
        if cut is not None and number == first + EACH // 3:
            cut.say("cut")  # from here on the link drops everything
        if cut is not None and number == first + EACH * 2 // 3:
            time.sleep(0.3)
            cut.say("reset")
        infos += [publisher.client.publish("load/x", b"%d" % number, number % 2) for publisher in publishers]
    for info in infos:
        info.wait_for_publish(30)


def published(found: dict[str, Any], group: str) -> dict[int, int]:
    return {one["origin"]: one["published"] for one in found["accounts"] if one["group"] == group}


@pytest.mark.slow
def test_a_ring_under_load_balances_with_and_without_a_broken_link(scene: Scene) -> None:
    brokers, federators, link = scene
    with (
        Client(brokers[1].port) as wide,
        Client(brokers[2].port) as exact,
        Client(brokers[0].port) as zero,
        Client(brokers[1].port) as one,
        Client(brokers[2].port) as two,
    ):
        wide.subscribe("load/#")
        exact.subscribe("load/x")
        for group in ("load/#", "load/x"):
            eventually(lambda group=group: all(f.knows(group) for f in federators), group)  # type: ignore[misc]
        publish([zero, one, two], 0)
        eventually(lambda: len(wide.messages) == len(exact.messages) == 3 * EACH, "all arrived", 60)
        found = account(federators)
        assert found["is_at_rest"]
        assert (found["unexplained"], found["silent"], found["left_off"]) == (0, [], 0)
        # Publications of 1 are wanted elsewhere only for load/x, those of 2 only for load/#, those of 0 for both.
        assert {origin: count for origin, count in published(found, "load/#").items() if origin != 1} == {
            0: EACH,
            2: EACH,
        }
        for entry in found["accounts"]:
            assert all(there["missing"] == 0 for there in entry["destinations"]), entry
            assert entry["lost_on_the_way"] == {}
        assert all(one["lost"] == 0 and one["sent"] == one["received"] for one in found["links"])

        # In the middle of the load the link breaks, and stays broken for a while.
        publish([zero, two], EACH, link)
        eventually(lambda: federators[0].neighbours() == [1], "0 has noticed")
        found = account(federators)
        assert found["is_at_rest"]
        assert found["unexplained"] == 0, found
        assert published(found, "load/#")[0] == 2 * EACH
        # The core of load/x is 2, so publications that 0 sent straight there were lost with the link, at least at QoS
        # 0.
        (lost,) = [one for one in found["accounts"] if (one["origin"], one["group"]) == (0, "load/x")]
        assert lost["destinations"][0]["missing"] > 0
        assert lost["lost_on_the_way"]["link 0 to 2"] >= lost["destinations"][0]["missing"]
        link.say("restore")
        eventually(lambda: is_converged(federators), "the ring is closed again", 30)


def test_a_silent_federator_is_named_and_its_neighbours_report_what_they_sent(scene: Scene) -> None:
    brokers, federators, _ = scene
    with Client(brokers[2].port) as subscriber, Client(brokers[0].port) as publisher:
        subscriber.subscribe("gone/#")
        eventually(lambda: federators[0].knows("gone/#"), "gone/# is known")
        for number in range(20):
            publisher.publish("gone/x", b"%d" % number)
        subscriber.expect(20)
        federators[2].end()
        found = account(federators)
        assert len(found["silent"]) == 1
        assert any("federator 2 does not answer" in one["why"] for one in found["links"])
        assert published(found, "gone/#") == {0: 20}
        assert found["unexplained"] == 0
