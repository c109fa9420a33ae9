import configparser
import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from hanse.federator.settings import FederatorSettings
from hanse.gateway.settings import GatewaySettings
from hanse.settings import settings_of
from hanse.topology.settings import ManagerSettings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: systemd)"
)

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
    assert services["broker"]["ports"] == ["127.0.0.1:1883:1883"], "the broker takes anybody: loopback only"


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


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_units_start_without_a_configuration_file(path: Path) -> None:
    variables = dict(word.split("=", 1) for word in _unit(path)["Service"]["Environment"].split())
    assert variables["HANSE_CONFIG"].startswith("-"), "a missing file must not stop the service"


SETTINGS_OF_UNITS = {"federator": FederatorSettings, "gateway": GatewaySettings, "manager": ManagerSettings}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_credentials_of_the_units_belong_to_settings_and_no_secret_lacks_one(path: Path) -> None:
    section = path.stem.removeprefix("hanse-")
    lines = path.read_text(encoding="utf-8").splitlines()
    loaded = {line.split("=", 1)[1] for line in lines if line.startswith("LoadCredential=")}
    known = settings_of(SETTINGS_OF_UNITS[section])
    # An address may hold a password, and is therefore not shown, but it belongs in the file.
    secrets = {one for one in known if one.spec.is_secret and one.name not in ("broker", "neighbour", "manager")}
    keys = {one for one in known if one.can_be_credential and one.name.endswith(("key_file", "tls_key"))}
    assert loaded == {f"hanse.{section}.{one.name}" for one in secrets | keys}


@needs_systemd
@pytest.mark.processes
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # /opt/hanse need not be installed on this machine.
    faults = [line for line in result.stderr.splitlines() if path.name in line and "is not executable" not in line]
    assert not faults


@needs_systemd
@pytest.mark.processes
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_the_units_little_exposed(path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout


@needs_systemd
@pytest.mark.processes
def test_systemd_accepts_the_drop_in_for_mosquitto(tmp_path: Path) -> None:
    unit = tmp_path / "mosquitto.service"
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    shutil.copytree(DEPLOY / "systemd" / "mosquitto.service.d", tmp_path / "mosquitto.service.d")
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not [line for line in result.stderr.splitlines() if "hanse" in line or unit.name in line]


def test_the_drop_ins_for_the_subscription_tree_name_one_file_and_settings_that_exist() -> None:
    folder = DEPLOY / "systemd"
    (output,) = re.findall(
        r"^StandardOutput=append:(.*)$", (folder / "mosquitto.service.d" / "hanse-tree.conf").read_text(), re.MULTILINE
    )
    drop_in = (folder / "hanse-federator.service.d" / "mosquitto-tree.conf").read_text()
    variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", drop_in, re.MULTILINE))
    assert variables["HANSE_BROKER_OUTPUT"] == output
    assert {name.removeprefix("HANSE_").lower() for name in variables} <= {
        one.name for one in settings_of(FederatorSettings)
    }
    assert (DEPLOY / "logrotate" / "mosquitto-output").read_text().count(output) == 1


def _copied(dockerfile: str) -> list[list[str]]:
    """Return the sources and the target of each COPY from the build context."""
    return [line.split()[1:] for line in dockerfile.splitlines() if line.startswith("COPY ") and "--from=" not in line]


def _ignored(path: Path) -> bool:
    """Tell whether .dockerignore keeps a file of the checkout out of the build."""
    is_ignored = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!").removeprefix("**/")
        if not pattern or line.startswith("#"):
            continue
        names = path.parts if line.startswith("**/") else path.parts[:1]
        if any(fnmatch.fnmatch(name, pattern) for name in names):
            is_ignored = not line.startswith("!")
    return is_ignored


def test_the_image_gets_sources_and_nothing_that_was_built_here() -> None:
    assert not _ignored(Path("src/hanse/mqtt/codec.py"))
    for name in (
        "src/hanse/mqtt/codec.cpython-311-x86_64-linux-gnu.so",
        "src/hanse/.compiled",
        ".venv/bin/python",
        ".git/HEAD",
    ):
        assert _ignored(Path(name)), name


@pytest.mark.slow
@pytest.mark.processes
def test_the_steps_of_the_image_install_hanse_in_a_fresh_directory(tmp_path: Path) -> None:
    """Do without Docker what the Dockerfile does, with an extension beside the sources that fits no Python."""
    context, install = tmp_path / "src", tmp_path / "opt"
    stray = ROOT / "src" / "hanse" / "stray.cpython-39-x86_64-linux-gnu.so"
    stray.write_bytes(b"not an extension")
    try:
        for *sources, _ in _copied((DEPLOY / "Dockerfile").read_text(encoding="utf-8")):
            for name in sources:
                files = (
                    [ROOT / name]
                    if (ROOT / name).is_file()
                    else [one for one in (ROOT / name).rglob("*") if one.is_file()]
                )
                for file in files:
                    relative = file.relative_to(ROOT)
                    if not _ignored(relative):
                        (context / relative).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(file, context / relative)
    finally:
        stray.unlink()
    subprocess.run([sys.executable, "-m", "venv", str(install)], check=True, timeout=120)
    command = [str(install / "bin" / "pip"), "install", "--quiet", "-c", "constraints.txt", ".[manager,gateway]"]
    subprocess.run(command, cwd=context, check=True, timeout=600)
    done = subprocess.run(
        [str(install / "bin" / "hanse"), "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.startswith("hanse")
    assert not list((install / "lib").glob("python3*/site-packages/hanse/**/*.so"))


def test_the_image_runs_as_an_unprivileged_user() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "USER hanse" in lines
    assert 'ENTRYPOINT ["hanse"]' in lines
