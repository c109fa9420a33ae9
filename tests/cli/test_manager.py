import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.brokers import Mosquitto

DEADLINE_S = 30.0
_LISTENS = re.compile(r"the manager listens.*?(http[^ \",]+)")
JSON = {"Content-Type": "application/json"}
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("HANSE_") and k != "MONGO_URL"}
# Stale extensions would print a line before the logs; a manager does not use the hot path.
ENVIRONMENT["HANSE_PURE"] = "1"


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from hanse.cli import main; main()", *words]


def hanse(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**ENVIRONMENT, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command(*words), cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


class Process:
    """A manager as an operator runs it."""

    def __init__(self, folder: Path, *words: str) -> None:
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.output = (folder / f"manager-{time.monotonic_ns()}.log").open("w+")
        self.process = subprocess.Popen(
            command("manager", "--listen", "127.0.0.1:0", *words),
            cwd=folder,
            env=environment,
            stdout=self.output,
            stderr=self.output,
        )
        wait(lambda: self.process.poll() is not None or _LISTENS.search(self.log()) is not None)
        found = _LISTENS.search(self.log())
        assert found is not None, self.log()
        self.url = found[1]

    def log(self) -> str:
        self.output.seek(0)
        return self.output.read()

    def get(self, path: str, **more: Any) -> Any:
        answer = httpx.get(self.url + path, timeout=60, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def join(self, ip: str, **more: Any) -> Any:
        return httpx.post(f"{self.url}/api/v1/join", json={"ip": ip, **more}, timeout=30).json()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.output.close()


@contextmanager
def manager(folder: Path, *words: str) -> Iterator[Process]:
    process = Process(folder, *words)
    try:
        yield process
    finally:
        process.end()


def wait(what: Any) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.05)


pytestmark = pytest.mark.processes


def test_a_manager_places_probes_and_relinks_real_brokers(tmp_path: Path) -> None:
    with manager(tmp_path, "--health-interval", "1s") as here, Mosquitto() as a, Mosquitto() as b, Mosquitto() as c:
        for number, broker in enumerate((a, b, c)):
            assert here.join(f"tcp://127.0.0.1:{broker.port}")["id"] == number
        wait(lambda: all(one["latency"] is not None for one in here.get("/api/v1/federators")))
        b.kill()
        begin_s = time.monotonic()
        wait(lambda: [one["id"] for one in here.get("/api/v1/federators")] == [0, 2])
        detection_s = time.monotonic() - begin_s
        assert [one["neighborsAmount"] for one in here.get("/api/v1/federators")] == [1, 1]
        b.restart()
        wait(lambda: len(here.get("/api/v1/federators")) == 3)
        assert here.get("/api/v1/topology")["isTwoConnected"]
        print(f"detected after {detection_s:.2f} s at an interval of 1 s")


@pytest.mark.slow
def test_a_federator_that_lost_both_neighbours_is_relinked(tmp_path: Path) -> None:
    with ExitStack() as stack:
        here = stack.enter_context(manager(tmp_path, "--health-interval", "1s"))
        brokers = [stack.enter_context(Mosquitto()) for _ in range(9)]
        for number, broker in enumerate(brokers):
            assert here.join(f"tcp://127.0.0.1:{broker.port}")["id"] == number
        victims = [one["id"] for one in here.get("/api/v1/federators/8")["neighbors"]]
        assert len(victims) == 2
        for victim in victims:
            brokers[victim].kill()
        begin_s = time.monotonic()
        wait(lambda: not set(victims) & {one["id"] for one in here.get("/api/v1/federators")})
        print(f"two lost neighbours replaced after {time.monotonic() - begin_s:.2f} s, interval 1 s")
        shown = here.get("/api/v1/federators/8")
        assert shown["neighborsAmount"] >= 2
        assert not set(victims) & {one["id"] for one in shown["neighbors"]}
        assert here.get("/api/v1/topology")["isTwoConnected"]


@pytest.mark.slow
def test_a_restarted_manager_detects_changes_made_while_it_was_down(tmp_path: Path) -> None:
    quick = ("--health-interval", "1s", "--lease", "1s")
    with Mosquitto() as a, Mosquitto() as b, Mosquitto() as c:
        with manager(tmp_path, *quick) as before:
            for broker in (a, b, c):
                before.join(f"tcp://127.0.0.1:{broker.port}")
            before.process.kill()
        b.kill()
        with manager(tmp_path, *quick) as after:
            wait(lambda: after.get("/healthz")["isLeading"])
            wait(lambda: [one["id"] for one in after.get("/api/v1/federators")] == [0, 2])
            assert [one["neighborsAmount"] for one in after.get("/api/v1/federators")] == [1, 1]


@pytest.mark.slow
def test_sigterm_ends_the_manager_cleanly_with_open_streams_and_polls(tmp_path: Path) -> None:
    with manager(tmp_path) as here, httpx.Client(base_url=here.url, timeout=30) as client:
        joined = here.join("tcp://127.0.0.1:1")
        with client.stream("GET", "/api/v1/events", headers={"Last-Event-ID": "0"}) as events:
            lines = events.iter_lines()
            seen = [next(lines) for _ in range(8)]
            assert "retry: 1000" in seen
            assert "event: joined" in seen or "event: leading" in seen
            here.process.send_signal(signal.SIGTERM)
            assert here.process.wait(DEADLINE_S) == 0, here.log()
        assert joined["id"] == 0
    with manager(tmp_path) as again:
        # The lease was returned, so the next manager leads at once.
        assert again.get("/healthz")["status"] == "leading"
        assert [one["id"] for one in again.get("/api/v1/topology")["federators"]] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("lease", ["3s", "6s"])
def test_the_standby_takes_over_from_a_killed_manager_within_15_seconds(tmp_path: Path, lease: str) -> None:
    # The second value, 6 s, is the default.
    with manager(tmp_path, "--lease", lease) as first, manager(tmp_path, "--lease", lease) as second:
        joined = first.join("tcp://127.0.0.1:1883")
        assert second.get("/healthz")["status"] == "standby"
        refused = httpx.post(f"{second.url}/api/v1/join", json={"ip": "tcp://127.0.0.1:1884"})
        assert refused.status_code == 503
        assert refused.json()["leader"] == first.url
        first.process.kill()
        begin_s = time.monotonic()
        wait(lambda: second.get("/healthz")["isLeading"])
        took_s = time.monotonic() - begin_s
        assert took_s < 15.0, f"with a lease of {lease} it took {took_s:.1f} s"
        word = second.join("tcp://127.0.0.1:1884")
        assert word["id"] == 1
        assert word["epoch"] > joined["epoch"]


def test_a_manager_beyond_loopback_does_not_start_without_tls(tmp_path: Path) -> None:
    result = hanse("manager", "--listen", "0.0.0.0:0", folder=tmp_path)
    assert result.returncode == 2
    assert "--tls-certificate" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is needed to create a certificate")
def test_a_manager_with_tls_and_a_token_listens_beyond_loopback(tmp_path: Path) -> None:
    asked = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout k.pem -out c.pem -days 1"
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *asked.split(), *named], cwd=tmp_path, capture_output=True, check=True)
    token = hanse("token", "create", folder=tmp_path).stdout.strip()
    words = ("--listen", "0.0.0.0:0", "--tls-certificate", "c.pem", "--tls-key", "k.pem")
    with manager(tmp_path, *words) as here:
        url = here.url.replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=tmp_path / "c.pem")
        with httpx.Client(base_url=url, verify=context) as client:
            body = {"ip": "tcp://127.0.0.1:1883"}
            assert client.post("/api/v1/join", json=body).status_code == 401
            assert client.get("/api/v1/topology").status_code == 401
            headers = {"Authorization": f"Bearer {token}"}
            assert client.post("/api/v1/join", json=body, headers=headers).status_code == 200
            again = client.post("/api/v1/join", json={"ip": "tcp://127.0.0.1:1884"}, headers=headers)
            assert again.status_code == 403


@pytest.mark.slow
def test_attack_bodies_of_10_mb_do_not_grow_the_manager(tmp_path: Path) -> None:
    with manager(tmp_path) as here, httpx.Client(base_url=here.url, timeout=30) as client:
        here.get("/api/v1/topology")
        before = psutil.Process(here.process.pid).memory_info().rss
        for number in range(10):
            with suppress(httpx.HTTPError):  # it may close the connection while we are still sending
                content = b"x" * 10_000_000 if number % 2 else iter([b"[" * 1_000_000] * 10)
                assert client.post("/api/v1/join", content=content).status_code == 413
        deep = b'{"ip":' + b"[" * 900_000
        assert client.post("/api/v1/join", content=deep, headers=JSON).status_code == 400
        assert psutil.Process(here.process.pid).memory_info().rss - before < 20_000_000
        assert here.get("/healthz")["federators"] == 0


@pytest.mark.slow
def test_an_unusable_certificate_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    words = ("--listen", "0.0.0.0:0", "--tls-certificate", "c.pem", "--tls-key", "c.pem")
    result = hanse("manager", *words, folder=tmp_path)
    assert result.returncode == 2
    assert "tls_certificate c.pem" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_taken_port_gives_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = hanse("manager", "--listen", f"127.0.0.1:{port}", folder=tmp_path)
    assert result.returncode == 2
    assert "choose another port" in result.stderr


def test_the_papers_variables_are_accepted(tmp_path: Path) -> None:
    result = hanse("manager", folder=tmp_path, TOP_MAX_REDUNDANCY="1")
    assert result.returncode == 2
    assert "TOP_MAX_REDUNDANCY: '1' is not allowed; expected at least 2" in result.stderr
    result = hanse("manager", folder=tmp_path, CORE_ANN_INTERVAL="2")
    assert "CORE_ANN_INTERVAL" in result.stderr


def test_tokens_are_created_shown_once_listed_and_revoked(tmp_path: Path) -> None:
    made = hanse("token", "create", "--uses", "many", "--ttl", "1h", "--label", "plant 7", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    text = made.stdout.strip()
    identity = text.split("-")[1]
    listed = hanse("token", "list", folder=tmp_path).stdout
    assert identity in listed
    assert "plant 7" in listed
    assert "many" in listed
    assert "valid" in listed
    assert text.split("-", 2)[2] not in listed
    assert (tmp_path / "hanse-topology.db").read_bytes().find(text.split("-", 2)[2].encode()) == -1
    assert hanse("token", "revoke", identity, folder=tmp_path).stdout.strip() == f"revoked {identity}"
    assert "revoked" in hanse("token", "list", folder=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "--uses", "0"), "1 to 1000000, or many"),
        (("create", "--ttl", "soon"), "or forever"),
        (("create", "--ttl", "0s"), "valid for more than 0 s"),
        (("create", "--role", "king"), "join, read, gateway, admin"),
    ],
)
def test_a_wrong_token_command_is_explained(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = hanse("token", *words, folder=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("token", "list"),
        ("token", "revoke", "deadbeef"),
        ("federator", "list"),
        ("federator", "revoke", "1"),
        ("audit",),
    ],
)
def test_only_the_creation_of_a_token_creates_a_store(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = hanse(*words, folder=tmp_path)
    assert result.returncode == 2
    assert "There is no store hanse-topology.db" in result.stderr
    assert list(tmp_path.iterdir()) == []
    made = hanse("token", "create", folder=tmp_path)
    assert "created the store hanse-topology.db" in made.stderr
    assert len(made.stdout.splitlines()) == 1
    assert "created the store" not in hanse("token", "create", folder=tmp_path).stderr
    result = hanse(*words, folder=tmp_path)
    assert (result.returncode, "There is no" in result.stderr) == (
        (0, False) if words[-1] in ("list", "audit") else (2, True)
    )


def test_one_federator_of_many_with_one_token_is_listed_and_expelled(tmp_path: Path) -> None:
    token = hanse("token", "create", "--uses", "many", "--label", "plants", folder=tmp_path).stdout.strip()
    identity = token.split("-")[1]
    with manager(tmp_path, "--require-token", "--health-interval", "1s") as here:
        credentials = [here.join(f"tcp://127.0.0.1:{port}", token=token)["credential"] for port in (1, 2, 3)]
        listed = hanse("federator", "list", folder=tmp_path).stdout.splitlines()
        assert [line.split()[:3] for line in listed[1:]] == [
            [str(k), f"tcp://127.0.0.1:{k + 1}", "up"] for k in range(3)
        ]
        assert all(line.split()[-2:] == [identity, "plants"] for line in listed[1:])
        said = hanse("federator", "revoke", "1", folder=tmp_path).stdout
        assert "revoked federator 1 (tcp://127.0.0.1:2)" in said
        assert f"closed token {identity}" in said
        answers = [
            httpx.get(
                f"{here.url}/api/v1/federators/{node}/neighbors", headers={"Authorization": f"Bearer {credential}"}
            )
            for node, credential in enumerate(credentials)
        ]
        assert [answer.status_code for answer in answers] == [200, 403, 200]
        wait(lambda: "revoked" in hanse("federator", "list", folder=tmp_path).stdout)
        lines = hanse("audit", folder=tmp_path).stdout.splitlines()
        assert "token-created" in lines[0]
        assert any(re.search(r"operator \S+ .*expelled  federator 1  ip=tcp://127.0.0.1:2", line) for line in lines)
        assert any("federator 0 (127.0.0.1)  joined  federator 0" in line for line in lines)
        # The brokers do not exist, so the manager may meanwhile have found other federators gone.
        newest = map(json.loads, hanse("audit", "--json", "--limit", "5", folder=tmp_path).stdout.splitlines())
        assert ("revoked", "federator 1") in {(entry["action"], entry["subject"]) for entry in newest}
        assert "detail" in here.join("tcp://127.0.0.1:4", token=token)


def test_an_expulsion_that_keeps_the_token_warns(tmp_path: Path) -> None:
    token = hanse("token", "create", "--uses", "many", folder=tmp_path).stdout.strip()
    with manager(tmp_path) as here:
        here.join("tcp://127.0.0.1:1", token=token)
        said = hanse("federator", "revoke", "0", "--keep-token", folder=tmp_path).stdout
        assert "stays open: federator 0 can join with it at another address" in said
        assert here.join("tcp://127.0.0.1:2", token=token)["id"] == 1


def test_flags_before_a_subcommand_of_federator_are_refused(tmp_path: Path) -> None:
    result = hanse("federator", "--id", "1", "list", folder=tmp_path)
    assert result.returncode == 2
    assert "put them after it" in result.stderr


def test_a_token_that_does_not_exist_cannot_be_revoked(tmp_path: Path) -> None:
    hanse("token", "create", folder=tmp_path)
    result = hanse("token", "revoke", "deadbeef", folder=tmp_path)
    assert result.returncode == 2
    assert "There is no token 'deadbeef'" in result.stderr


def test_the_token_commands_read_the_managers_file(tmp_path: Path) -> None:
    (tmp_path / "hanse.toml").write_text('[manager]\nstore = "there.db"\nhealth_interval = "2s"\n')
    made = hanse("token", "create", "--config", "hanse.toml", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "there.db").exists()


@pytest.mark.slow
def test_the_settings_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "hanse.toml").write_text('[manager]\noverlay_degree_max = 3\nhealth_interval = "2s"\n')
    with manager(tmp_path, "--config", "hanse.toml", "--redundancy", "3") as here:
        settings = here.get("/api/v1/topology")["settings"]
    assert settings == {
        "announcement_interval": "1s",
        "beacon_interval": "2s",
        "redundancy": 3,
        "overlay_degree_max": 3,
        "health_interval": "2s",
    }
    assert json.dumps(settings)


def test_the_manager_logs_json_lines_and_nothing_else(tmp_path: Path) -> None:
    with manager(tmp_path, "--log-format", "json", "--log-level", "debug") as here:
        here.join("tcp://127.0.0.1:9")
        assert httpx.get(f"{here.url}/nowhere").status_code == 404
        here.process.terminate()
        assert here.process.wait(30) == 0
        lines = [json.loads(line) for line in here.log().splitlines()]
    assert {"the manager listens"} <= {line["event"] for line in lines}
    assert all({"time", "level", "logger", "event"} <= line.keys() for line in lines)
