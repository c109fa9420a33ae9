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


def test_the_names_in_its_urls_are_names_of_its_services() -> None:
    services = compose()["services"]
    names = set(services)
    for service in services.values():
        names.update(service.get("networks", {}).get("default", {}).get("aliases", []))
    assert {"mongodb", "topology-manager", "mqtt-fed"} <= names


def test_every_variable_of_the_manager_is_one_that_it_reads() -> None:
    known = {"HANSE_CONFIG"}
    for one in settings_of(ManagerSettings):
        known |= {one.variable, *one.spec.aliases}
    given = {line.split("=")[0] for line in compose()["services"]["microservice"]["environment"]}
    assert given <= known
    unit = _unit(DEPLOY / "systemd" / "hanse-manager.service")
    assert {word.split("=")[0] for word in unit["Service"]["Environment"].split()} <= known


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose here (Debian: docker-compose)")
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
def test_the_units_run_without_rights_and_start_a_command_of_ours(path: Path) -> None:
    unit = _unit(path)
    assert unit["Service"]["ExecStart"].split()[:2] == ["/opt/hanse/bin/hanse", path.stem.removeprefix("hanse-")]
    assert unit["Service"]["NoNewPrivileges"] == "yes"
    assert unit["Service"]["DynamicUser"] == "yes"
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here (Debian: systemd)")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # Whether /opt/hanse is installed here is not the unit's fault.
    faults = [line for line in result.stderr.splitlines() if path.name in line and "is not executable" not in line]
    assert not faults


def test_the_image_runs_as_nobody_special() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "USER hanse" in lines
    assert 'ENTRYPOINT ["hanse"]' in lines
