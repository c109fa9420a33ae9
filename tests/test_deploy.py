import configparser
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from hanse.settings import settings_of
from hanse.topology.settings import ManagerSettings

DEPLOY = Path(__file__).parent.parent / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))

# The variables of Listing 3, by service.
LISTING_3 = {
    "mongodb": ["MONGO_INITDB_DATABASE=root"],
    "microservice": [
        "MONGO_URL=mongodb://mongodb:27017/root",
        "CORE_ANN_INTERVAL=2s",
        "BEACON_INTERVAL=2s",
        "FED_REDUNDANCY=2",
        "TOP_MAX_REDUNDANCY=5",
    ],
    "federator": ["TOPOLOGY_MANAGER_URL=http://topology-manager:8080", "ADVERTISED_LISTENER=tcp://mqtt-fed:1883"],
}


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def test_the_compose_file_has_the_services_and_variables_of_listing_3() -> None:
    services = compose()["services"]
    for name, variables in LISTING_3.items():
        assert set(variables) <= set(services[name]["environment"]), name
    assert "1883:1883" in services["broker"]["ports"]


def test_hosts_in_the_compose_urls_are_its_services() -> None:
    services = compose()["services"]
    names = set(services)
    for service in services.values():
        names.update(service.get("networks", {}).get("default", {}).get("aliases", []))
    assert {"mongodb", "topology-manager", "mqtt-fed"} <= names


def test_the_manager_reads_all_its_variables() -> None:
    known = {"HANSE_CONFIG"}
    for one in settings_of(ManagerSettings):
        known |= {one.variable, *one.spec.aliases}
    given = {line.split("=")[0] for line in compose()["services"]["microservice"]["environment"]}
    assert given <= known
    unit = _unit(DEPLOY / "systemd" / "hanse-manager.service")
    assert {word.split("=")[0] for word in unit["Service"]["Environment"].split()} <= known


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is missing (Debian: docker-compose)")
def test_docker_compose_accepts_the_file() -> None:
    command = ["docker-compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def _unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path, encoding="utf-8")
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_units_run_without_privileges_and_start_a_hanse_command(path: Path) -> None:
    unit = _unit(path)
    assert unit["Service"]["ExecStart"].split()[:2] == ["/opt/hanse/bin/hanse", path.stem.removeprefix("hanse-")]
    assert unit["Service"]["NoNewPrivileges"] == "yes"
    assert unit["Service"]["DynamicUser"] == "yes"
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.processes
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: systemd)"
)
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # /opt/hanse need not be installed on this machine.
    faults = [line for line in result.stderr.splitlines() if path.name in line and "is not executable" not in line]
    assert not faults


def test_the_image_runs_as_an_unprivileged_user() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "USER hanse" in lines
    assert 'ENTRYPOINT ["hanse"]' in lines
