"""Federators under a manager, with real processes: placed, repaired, left alone, admitted and refused."""

import json
import signal
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.federation import eventually
from tests.managed import Managed, Stream, when
from typer.testing import CliRunner

from hanse.cli import build

pytestmark = pytest.mark.processes
# Generous: the measured times are printed, and only the event itself is asserted.
DEADLINE_S = 45.0
RING_OF_SIX = {k: {(k - 1) % 6, (k + 1) % 6} for k in range(6)}


@pytest.mark.slow
def test_the_availability_scenario_of_the_papers(tmp_path: Path) -> None:
    """Nine are placed by the manager.

    Two that are the only neighbours of a third stop. Its subscriber receives again.
    """
    with Managed(tmp_path, 9, health_interval="2s", announcement_interval="1s") as federation:
        around = federation.neighbours()
        third = max(k for k, neighbours in around.items() if len(neighbours) == 2)
        two = sorted(around[third])
        source = min(k for k in range(9) if k != third and k not in two)
        with Stream(federation, source, third, "seeds/availability", every_s=0.05) as stream:
            stream.await_message(time.monotonic(), DEADLINE_S)
            for k in two:
                federation.kill_site(k)
            stopped_s = time.monotonic()
            gone_s = when(
                lambda: all(federation.states()[k] == "gone" for k in two), f"{two} are known as gone", DEADLINE_S
            )
            linked_s = when(lambda: bool(federation.linked(third) - set(two)), f"{third} is linked again", DEADLINE_S)
            again_s = stream.await_message(stopped_s, DEADLINE_S)
            print(
                f"{third} lost {two}: detected after {gone_s - stopped_s:.2f} s (two intervals: "
                f"{2 * federation.health_interval_s:.0f} s), linked after {linked_s - stopped_s:.2f} s, first message "
                f"{again_s - stopped_s:.2f} s after the stop, {again_s - gone_s:.2f} s after detection"
            )
        eventually(federation.is_settled, "the living are linked as the manager means it", DEADLINE_S)
        assert federation.topology()["isTwoConnected"]


@pytest.mark.slow
def test_a_cut_that_the_rule_of_the_papers_never_heals(tmp_path: Path) -> None:
    """A ring of six loses two opposite ones: two pieces of two remain, and every federator has a neighbour."""
    with Managed(tmp_path, 6, shape="ring") as federation, Stream(federation, 1, 4, "cut/x", every_s=0.05) as stream:
        stream.await_message(time.monotonic(), DEADLINE_S)
        assert federation.neighbours() == RING_OF_SIX
        for k in (0, 3):
            federation.kill_site(k)
        cut_s = time.monotonic()
        again_s = stream.await_message(cut_s, DEADLINE_S)
        print(f"the cut was healed after {again_s - cut_s:.2f} s")
        eventually(federation.is_settled, "four are linked as the manager means it", DEADLINE_S)
        found = federation.topology()
        assert found["isTwoConnected"]
        assert {one["id"]: one["state"] for one in found["federators"]} == {
            **dict.fromkeys((1, 2, 4, 5), "up"),
            **dict.fromkeys((0, 3), "gone"),
        }
        for k in (0, 3):
            federation.start_broker(k)
            federation.start_federator(k)
        eventually(federation.is_settled, "the two are taken in again under their ids", DEADLINE_S)


def run_without_a_manager(federation: Managed, away_s: float) -> None:
    with Stream(federation, 1, 4, "away/x") as stream:
        stream.await_message(time.monotonic(), DEADLINE_S)
        federation.kill("manager 0")
        eventually(
            lambda: all(federation.page(k)["membership"]["state"] == "away" for k in federation.living()),
            "all know that the manager is away",
            DEADLINE_S,
        )
        stream.await_message(time.monotonic() + away_s, DEADLINE_S + away_s)
        federation.start_manager()
        eventually(federation.leads, "the manager is back", DEADLINE_S)
        eventually(
            lambda: all(federation.page(k)["membership"]["state"] == "up" for k in federation.living()),
            "all know that it is back",
            DEADLINE_S,
        )
        assert federation.is_settled(), "nothing has changed meanwhile"
        stream.stop()
        eventually(lambda: not stream.lost(), f"nothing is lost; lost: {stream.lost()[:10]}", DEADLINE_S)
        assert stream.doubled() == []
        print(f"{len(stream.sent)} messages over {away_s:.0f} s without a manager, none lost, none doubled")


def lose_two_without_a_manager(federation: Managed) -> None:
    with Stream(federation, 1, 4, "around/x", every_s=0.05) as stream:
        stream.await_message(time.monotonic(), DEADLINE_S)
        assert federation.neighbours() == RING_OF_SIX
        eventually(federation.is_mapped, "all have the manager's last map", DEADLINE_S)
        federation.kill("manager 0")
        for k in (0, 3):
            federation.kill_site(k)
        cut_s = time.monotonic()
        again_s = stream.await_message(cut_s, DEADLINE_S)
        print(f"routed around without a manager after {again_s - cut_s:.2f} s")
        own = {1: [5], 2: [4], 4: [2], 5: [1]}
        eventually(
            lambda: own == {k: federation.page(k)["membership"]["own_links"] for k in own},
            "the rings close",
            DEADLINE_S,
        )
        eventually(lambda: federation.linked(1) == {2, 5}, "the links of their own stand", DEADLINE_S)
        federation.start_manager()
        eventually(
            lambda: federation.states() == {**dict.fromkeys((1, 2, 4, 5), "up"), **dict.fromkeys((0, 3), "gone")},
            "the manager knows the truth",
            DEADLINE_S,
        )
        eventually(federation.is_settled, "the living are linked as the manager means it", DEADLINE_S)
        assert federation.topology()["isTwoConnected"]
        eventually(
            lambda: all(federation.page(k)["membership"]["own_links"] == [] for k in federation.living()),
            "all links are the manager's again",
            DEADLINE_S,
        )
        eventually(federation.is_settled, "and still as it means them", DEADLINE_S)
        stream.await_message(time.monotonic(), DEADLINE_S)


@pytest.mark.slow
def test_nothing_is_lost_without_a_manager_and_the_dead_are_bypassed(tmp_path: Path) -> None:
    """The ring of six again, this time without a manager to repair it."""
    with Managed(tmp_path, 6, shape="ring") as federation:
        run_without_a_manager(federation, 1.0)
        lose_two_without_a_manager(federation)


@pytest.mark.slow
def test_links_by_broker_are_repaired_with_and_without_a_manager(tmp_path: Path) -> None:
    with Managed(tmp_path, 6, shape="ring", link="broker") as federation:
        with Stream(federation, 1, 4, "by-broker/x", every_s=0.05) as stream:
            stream.await_message(time.monotonic(), DEADLINE_S)
            federation.kill_site(0)
            eventually(federation.is_settled, "five are linked as the manager means it", DEADLINE_S)
            federation.start_broker(0)
            federation.start_federator(0)
            eventually(federation.is_settled, "six are", DEADLINE_S)
            eventually(lambda: federation.neighbours() == RING_OF_SIX, "in their ring", DEADLINE_S)
        lose_two_without_a_manager(federation)


@pytest.mark.slow
def test_a_minute_without_a_manager_under_traffic(tmp_path: Path) -> None:
    with Managed(tmp_path, 6, shape="ring") as federation:
        run_without_a_manager(federation, 60.0)
        lose_two_without_a_manager(federation)


def token(federation: Managed, *words: str) -> str:
    store = str(federation.directory / "topology.db")
    result = CliRunner().invoke(build(["token"]), ["token", *words, "--store", store])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def certificates(directory: Path) -> Path:
    """Make a certificate for the manager, which is also its authority."""
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=manager", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(directory / "manager.key"), "-out", str(directory / "manager.crt")]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True)
    return directory / "manager.crt"


class Admitted(Managed):
    """Three federators that join over https, each with its own token in the environment."""

    def __init__(self, directory: Path) -> None:
        certificate = certificates(directory)
        manager = ["--require-token", "--tls-certificate", str(certificate)]
        super().__init__(
            directory,
            3,
            scheme="https",
            manager_words=[*manager, "--tls-key", str(directory / "manager.key")],
            federator_words=["--manager-ca-file", str(certificate)],
        )
        self._context = ssl.create_default_context(cafile=certificate)
        self.reader = ""

    def seed(self) -> None:
        self.reader = token(self, "create", "--role", "read", "--uses", "many")
        for k in range(self.count):
            self.environment[k] = {"HANSE_JOIN_TOKEN": token(self, "create", "--label", f"site {k}")}

    def ask(self, path: str, body: dict[str, Any] | None = None, number: int = 0) -> Any:
        assert body is None
        request = urllib.request.Request(
            self.manager_urls[number] + path, headers={"Authorization": f"Bearer {self.reader}"}
        )
        with urllib.request.urlopen(request, timeout=5, context=self._context) as answer:
            return json.load(answer)


def answers(federation: Managed, k: int) -> bool:
    try:
        federation.page(k)
    except OSError:
        return False
    return True


class AdmittedByOne(Admitted):
    """Three federators that join over https, all with one token."""

    def seed(self) -> None:
        self.reader = token(self, "create", "--role", "read", "--uses", "many")
        shared = token(self, "create", "--uses", "many")
        self.environment = {k: {"HANSE_JOIN_TOKEN": shared} for k in range(self.count)}


@pytest.mark.slow
def test_a_revoked_federators_links_are_closed_by_its_neighbours(tmp_path: Path) -> None:
    with Admitted(tmp_path) as federation, Stream(federation, 0, 2, "admitted/x", every_s=0.05) as stream:
        stream.await_message(time.monotonic(), DEADLINE_S)
        listed = token(federation, "list")
        identity = next(line.split()[0] for line in listed.splitlines() if "site 2" in line)
        token(federation, "revoke", identity)
        eventually(lambda: federation.states()[2] == "revoked", "the manager has taken it out", DEADLINE_S)
        eventually(lambda: not federation.linked(2), "its links are closed", DEADLINE_S)
        eventually(lambda: federation.page(2)["membership"]["state"] == "refused", "and it says so", DEADLINE_S)
        assert federation.linked(0) == {1}
        assert federation.linked(1) == {0}
        closed_s = time.monotonic()
        time.sleep(2.0)  # it dials all the time, and no attempt may succeed
        assert stream.first_sent_after(closed_s) is None
        assert not federation.linked(2)
        # The secrets are in the environment and, readable only by the owner, on disk, and nowhere else.
        said = federation.logs()
        assert all(given["HANSE_JOIN_TOKEN"].split("-", 2)[2] not in said for given in federation.environment.values())
        assert "hanse-fed-" not in said


@pytest.mark.slow
def test_one_federator_of_many_with_one_token_is_expelled(tmp_path: Path) -> None:
    with AdmittedByOne(tmp_path) as federation:
        store = str(federation.directory / "topology.db")
        result = CliRunner().invoke(build(["federator"]), ["federator", "revoke", "2", "--store", store])
        assert result.exit_code == 0, result.output
        eventually(lambda: federation.states()[2] == "revoked", "the manager has taken it out", DEADLINE_S)
        eventually(lambda: not federation.linked(2), "its links are closed", DEADLINE_S)
        eventually(lambda: federation.page(2)["membership"]["state"] == "refused", "and it says so", DEADLINE_S)
        assert federation.linked(0) == {1}
        assert federation.linked(1) == {0}
        assert [federation.states()[k] for k in range(2)] == ["up", "up"]
        # A new start changes nothing: neither its credential nor the token in its environment admits it.
        federation.kill("federator 2")
        federation.start_federator(2)
        eventually(lambda: federation.is_running("federator 2") and answers(federation, 2), "it answers", DEADLINE_S)
        eventually(lambda: federation.page(2)["membership"]["state"] == "refused", "it is refused again", DEADLINE_S)
        assert not federation.linked(2)


@pytest.mark.slow
def test_a_federator_without_a_token_does_not_start_and_explains_how_to_get_one(tmp_path: Path) -> None:
    with Admitted(tmp_path) as federation:
        federation.kill_site(2)
        for path in (tmp_path / "site-2" / "state").iterdir():
            path.unlink()
        federation.environment[2] = {"HANSE_JOIN_TOKEN": "hanse-00000000-" + "x" * 43}
        federation.start_broker(2)
        federation.start_federator(2)
        eventually(lambda: not federation.is_running("federator 2"), "it has ended", DEADLINE_S)
        said = (tmp_path / "federator 2.log").read_text()
        assert "refuses this federator" in said
        assert "HANSE_JOIN_TOKEN" in said
        assert "x" * 43 not in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_a_federator_starts_from_its_cache_while_no_manager_answers(tmp_path: Path) -> None:
    with Managed(tmp_path, 3) as federation:
        eventually(
            lambda: all(federation.page(k)["membership"]["known_peers"] == 3 for k in range(3)),
            "all know all",
            DEADLINE_S,
        )
        time.sleep(0.5)  # and until it is on disk
        federation.kill("manager 0")
        federation.kill("federator 1")
        federation.start_federator(1)
        eventually(lambda: federation.answers(1), "it has started", DEADLINE_S)
        eventually(lambda: federation.linked(1) == {0, 2}, "it is linked as before", DEADLINE_S)
        page = federation.page(1)
        assert (page["id"], page["membership"]["state"]) == (1, "away")
        with Stream(federation, 0, 1, "kept/x") as stream:
            stream.await_message(time.monotonic(), DEADLINE_S)
        # A manager that also lost its store knows only the reports of federators.
        for path in tmp_path.glob("topology.db*"):
            path.unlink()
        federation.start_manager()
        eventually(federation.is_settled, "the manager has it all from the federators", DEADLINE_S)
        assert federation.states() == dict.fromkeys(range(3), "up")


@pytest.mark.slow
def test_a_federator_that_leaves_is_not_reported_missing_and_returns_under_its_id(tmp_path: Path) -> None:
    with Managed(tmp_path, 4, health_interval="5s") as federation:
        assert federation.stop_in_order("federator 0") == 0
        assert federation.states()[0] == "left", "told, not found out"
        eventually(federation.is_settled, "the others are linked without it", DEADLINE_S)
        assert federation.topology()["isTwoConnected"]
        federation.start_federator(0)
        eventually(federation.is_settled, "it is back", DEADLINE_S)


@pytest.mark.slow
def test_a_stopped_federator_is_removed_and_readmitted_when_it_continues(tmp_path: Path) -> None:
    """After SIGSTOP, its broker answers and its sockets are open, but the process does nothing."""
    with Managed(tmp_path, 4) as federation:
        federation.signal("federator 0", signal.SIGSTOP)
        eventually(lambda: federation.states()[0] == "gone", "it is known as gone", DEADLINE_S)
        eventually(
            lambda: all(0 not in federation.linked(k) for k in (1, 2, 3)), "its neighbours let it go", DEADLINE_S
        )
        federation.signal("federator 0", signal.SIGCONT)
        eventually(federation.is_settled, "it is back", DEADLINE_S)
        assert federation.page(0)["membership"]["state"] == "up"


@pytest.mark.slow
def test_a_federator_whose_id_was_reassigned_restarts_under_another(tmp_path: Path) -> None:
    """The manager lost its store, and another federator came first."""
    with Managed(tmp_path, 2) as federation:
        federation.signal("federator 1", signal.SIGSTOP)
        federation.kill("manager 0")
        for path in tmp_path.glob("topology.db*"):
            path.unlink()
        federation.start_manager()
        eventually(federation.leads, "the manager is back", DEADLINE_S)
        # At this address there is a broker, so the impostor lives: it is federator 0's own broker under another name.
        other = federation.broker_url(0).replace("127.0.0.1", "localhost")
        assert federation.ask("/api/v1/join", {"ip": other, "id": 1})["id"] == 1
        eventually(lambda: 0 in federation.states(), "federator 0 is known again", DEADLINE_S)
        federation.signal("federator 1", signal.SIGCONT)
        eventually(
            lambda: federation.answers(1) and federation.page(1)["id"] > 1,
            "it starts anew under another id",
            DEADLINE_S,
        )
        identity = federation.page(1)["id"]
        eventually(lambda: identity in federation.linked(0), "under which it is linked", DEADLINE_S)


@pytest.mark.slow
def test_of_two_managers_the_second_takes_over(tmp_path: Path) -> None:
    with Managed(tmp_path, 4, managers=2) as federation:
        first = next(number for number in (0, 1) if federation.leads(number))
        second = 1 - first
        epoch = federation.topology(first)["epoch"]
        federation.kill(f"manager {first}")
        killed_s = time.monotonic()
        taken_s = when(lambda: federation.leads(second), "the second leads", DEADLINE_S)
        eventually(lambda: federation.is_settled(second), "and all follow it", DEADLINE_S)
        assert federation.topology(second)["epoch"] > epoch
        federation.kill_site(0)
        eventually(lambda: federation.states(second)[0] == "gone", "it watches", DEADLINE_S)
        eventually(lambda: federation.is_settled(second), "and repairs", DEADLINE_S)
        print(f"the second manager led {taken_s - killed_s:.2f} s after the first was killed")
        federation.start_manager(first)
        eventually(lambda: federation.health(first) is not None, "the first stands by", DEADLINE_S)
        assert not federation.leads(first)
        assert federation.is_settled(second)
