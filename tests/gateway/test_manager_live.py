"""Two gateways that agree through a real manager."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.federation import RunningFederation
from tests.gateway import packets as p
from tests.gateway.placing import name_at
from tests.gateways import Gateway, RawClient, wait_until

pytestmark = pytest.mark.processes

BROKERS = ("0", "1")


@dataclass
class Setting:
    federation: RunningFederation
    gateways: list[Gateway]

    def states(self) -> list[dict[str, bool]]:
        return [{one["id"]: one["takes_clients"] for one in gateway.health()["brokers"]} for gateway in self.gateways]

    def manager(self) -> psutil.Process:
        children = psutil.Process(self.federation.process.pid).children(recursive=True)
        return next(one for one in children if "manager" in one.cmdline())

    def broker_pid(self, k: int) -> int:
        return int(self.federation.state["federators"][k]["broker_pid"])


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        federation = stack.enter_context(RunningFederation(tmp_path, len(BROKERS)))
        words = ["--manager", federation.state["manager"], "--manager-interval", "200ms"]
        gateways = []
        for name in ("one", "two"):
            gateway = Gateway(tmp_path / name, words=(*words, "--gateway-id", name))
            gateways.append(stack.enter_context(gateway))
        made = Setting(federation, gateways)
        wait_until(lambda: made.states() == [{"0": True, "1": True}] * 2, "both know both brokers")
        yield made


def explained(gateway: Gateway, client: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gateway.command("explain", "--client", client, "--json").stdout)
    return found


def test_two_gateways_agree_on_verdicts_and_drains(setting: Setting) -> None:
    one, two = setting.gateways
    at_1 = name_at("1", BROKERS)
    assert explained(one, at_1)["broker"] == explained(two, at_1)["broker"] == "1"
    assert explained(one, at_1)["version"] == explained(two, at_1)["version"]

    # A drain requested at one gateway holds at both, and outlives both gateways and the manager.
    assert one.command("drain", "1", "--rate", "50").returncode == 0
    wait_until(lambda: setting.states() == [{"0": True, "1": False}] * 2, "drained at both")
    for gateway in setting.gateways:
        os.kill(gateway.pid, signal.SIGKILL)
        gateway.end()
    manager = setting.manager()
    os.kill(manager.pid, signal.SIGKILL)
    wait_until(lambda: not manager.is_running() or manager.status() == "zombie", "the manager has ended")
    for gateway in setting.gateways:
        gateway.start()
        assert not next(row for row in gateway.health()["brokers"] if row["id"] == "1")["takes_clients"]
        with RawClient(gateway.port) as client:
            client.send(p.connect(4, at_1.encode()).packet)
            assert client.packet()[3] == 0
    assert two.command("undrain", "1").returncode == 0
    wait_until(lambda: setting.states() == [{"0": True, "1": True}] * 2, "undrained at both")


def test_a_broker_that_returned_takes_clients_only_after_the_manager_agrees(setting: Setting) -> None:
    one, two = setting.gateways
    before = one.health()["version"]
    os.kill(setting.broker_pid(1), signal.SIGSTOP)
    wait_until(lambda: setting.states() == [{"0": True, "1": False}] * 2, "down at both")
    wait_until(lambda: one.health()["version"] > before, "a version in which it is down")
    manager = setting.manager()
    os.kill(manager.pid, signal.SIGSTOP)
    try:
        os.kill(setting.broker_pid(1), signal.SIGCONT)
        wait_until(lambda: all(_verdict(gateway, "1") == "up" for gateway in setting.gateways), "it answers again")
        wait_until(lambda: one.health()["manager"] == "away", "the manager is missed")
        assert setting.states() == [{"0": True, "1": False}] * 2
        assert "not every gateway knows yet" in one.command("explain", "--client", "x").stdout
    finally:
        os.kill(manager.pid, signal.SIGCONT)
    wait_until(lambda: setting.states() == [{"0": True, "1": True}] * 2, "up at both")
    assert two.health()["version"] == one.health()["version"]
    assert one.metric("hanse_gateway_manager_reached") == 1
    assert one.metric("hanse_gateway_manager_failures_total") >= 1


def _verdict(gateway: Gateway, broker: str) -> str:
    return next(str(row["verdict"]) for row in gateway.health()["brokers"] if row["id"] == broker)
