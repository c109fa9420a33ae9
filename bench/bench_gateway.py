"""The gateway beside HAProxy, both in front of the same Mosquitto.

    python bench/bench_gateway.py [--rounds 5] [--seconds 5] [--only NAME] [--clients 5000]

Rounds alternate between the direct connection, HAProxy in TCP mode and the gateway, so that a busy machine hits all
three alike. Each proxy has one process. Three loads, made by mqtt_load.c (MQTT 3.1.1):

- `pair_qos0`: one publisher, one subscriber, 64 bytes, QoS 0, at most 2,000 messages on their way.
- `pair_qos1`: the same with 1 KiB and QoS 1, at most 500.
- `many`: 200 connections, each with one message of 64 bytes in flight to itself.

A figure is a ratio to HAProxy in the same round: throughput, and the proxy's own processor time per message. `single`
is one connection with one message in flight: what a proxy adds to the round trip of an unloaded broker. `idle` is the
memory of each proxy with many clients that only ping, plain and with TLS that the proxy terminates.

Prints JSON. Needs cc, mosquitto, haproxy and openssl.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import uvloop

from hanse.local import mosquitto, ports

SOURCE = Path(__file__).with_name("mqtt_load.c")
SYSTEMS = ("direct", "haproxy", "gateway")
LOADS: dict[str, list[str]] = {
    "pair_qos0": ["flood", "0", "64", "2000"],
    "pair_qos1": ["flood", "1", "1024", "500"],
    "many": ["echo", "0", "64", "200"],
    "single": ["echo", "0", "64", "1"],
}
# Connections that are opened at once for the memory of idle clients.
AT_ONCE = 50


def need(program: str, package: str) -> str:
    for path in (shutil.which(program), f"/usr/sbin/{program}"):
        if path and Path(path).exists():
            return path
    raise SystemExit(f"{program} was not found; bench_gateway.py needs it: apt-get install {package}")


def wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 30
    while not ports.answers(port):
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{process.args!r} did not start:\n{log.read_text()}")
        time.sleep(0.02)


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait_for(port, process, log)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Bench:
    """A broker, and two proxies in front of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.load = str(directory / "mqtt_load")
        subprocess.run([need("cc", "gcc"), "-O2", "-o", self.load, str(SOURCE)], check=True)
        names = ("direct", "haproxy", "gateway", "haproxy_tls", "gateway_tls")
        self.ports = dict(zip(names, ports.free(len(names)), strict=True))
        self.pids: dict[str, int] = {}

    @contextlib.contextmanager
    def start(self) -> Iterator[None]:
        """Run all three."""
        self._write_files()
        haproxy = [need("haproxy", "haproxy"), "-db", "-f", str(self.directory / "haproxy.cfg")]
        gateway = [sys.executable, "-m", "hanse", "gateway", "--broker", f"b=mqtt://127.0.0.1:{self.ports['direct']}"]
        gateway += ["--listen", f"mqtt://127.0.0.1:{self.ports['gateway']}", "--metrics", "127.0.0.1:0"]
        gateway += ["--listen", f"mqtts://127.0.0.1:{self.ports['gateway_tls']}", "--shutdown-grace", "0s"]
        gateway += ["--cert-file", str(self.directory / "cert.pem"), "--key-file", str(self.directory / "key.pem")]
        gateway += ["--connect-rate", "100000", "--state-dir", str(self.directory / "state")]
        broker = [mosquitto.find_program(), "-c", str(self.directory / "mosquitto.conf")]
        with contextlib.ExitStack() as stack:
            for name, command in (("direct", broker), ("haproxy", haproxy), ("gateway", gateway)):
                made = stack.enter_context(running(command, self.ports[name], self.directory / f"{name}.log"))
                self.pids[name] = made.pid
            yield

    def _write_files(self) -> None:
        names = ["-keyout", str(self.directory / "key.pem"), "-out", str(self.directory / "cert.pem")]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        command = [need("openssl", "openssl"), "req", "-x509", *curve, "-subj", "/CN=localhost", *names]
        subprocess.run(command, check=True, capture_output=True)
        both = (self.directory / "cert.pem").read_text() + (self.directory / "key.pem").read_text()
        (self.directory / "both.pem").write_text(both)
        user = "user root\n" if os.geteuid() == 0 else ""
        (self.directory / "mosquitto.conf").write_text(
            f"listener {self.ports['direct']} 127.0.0.1\nallow_anonymous true\nlog_type error\n{user}"
            "max_inflight_messages 0\nmax_queued_messages 0\n"
        )
        frontends = "".join(
            f"frontend {name}\n  bind 127.0.0.1:{self.ports[name]}{more}\n  default_backend brokers\n"
            for name, more in (("haproxy", ""), ("haproxy_tls", f" ssl crt {self.directory / 'both.pem'}"))
        )
        (self.directory / "haproxy.cfg").write_text(
            "global\n  nbthread 1\n  maxconn 9000\n  tune.ssl.default-dh-param 2048\n"
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
            f"{frontends}backend brokers\n  server b 127.0.0.1:{self.ports['direct']}\n"
        )

    def cpu_s(self, system: str) -> float:
        """Return the processor time that a system has used."""
        # In nanoseconds; /proc/PID/stat has steps of 10 ms.
        threads = Path(f"/proc/{self.pids[system]}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in threads) / 1e9

    def rss_mb(self, system: str) -> float:
        """Return the memory that a system occupies."""
        status = Path(f"/proc/{self.pids[system]}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def run(self, load: str, system: str, seconds: float) -> dict[str, float]:
        """Put a load on a system, and return what came of it."""
        kind, qos, payload, count = LOADS[load]
        words = [self.load, kind, "127.0.0.1", str(self.ports[system]), str(seconds), qos, payload, count]
        before = self.cpu_s(system)
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} failed: {done.stderr}")
        found = json.loads(done.stdout)
        found["per_s"] = found["messages"] / found["seconds"]
        found["cpu_us"] = (self.cpu_s(system) - before) / max(found["all"], 1) * 1e6
        return dict(found)


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def compare(bench: Bench, load: str, rounds: int, seconds: float) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    for k in range(rounds):
        # Who begins changes, so that nobody always runs beside the same other work.
        for j in range(len(SYSTEMS)):
            system = SYSTEMS[(j + k) % len(SYSTEMS)]
            runs[system].append(bench.run(load, system, seconds))
    found: dict[str, Any] = {
        system: {name: spread([one[name] for one in runs[system]]) for name in runs[system][0] if name != "all"}
        for system in SYSTEMS
    }
    pairs = list(zip(runs["gateway"], runs["haproxy"], runs["direct"], strict=True))
    found["throughput_ratio"] = spread([ours["per_s"] / theirs["per_s"] for ours, theirs, _ in pairs])
    found["cpu_ratio"] = spread([ours["cpu_us"] / theirs["cpu_us"] for ours, theirs, _ in pairs])
    if "p50_us" in runs["direct"][0]:
        for name in ("p50_us", "p99_us"):
            found[f"added_{name}"] = {
                "gateway": spread([ours[name] - direct[name] for ours, _, direct in pairs]),
                "haproxy": spread([theirs[name] - direct[name] for _, theirs, direct in pairs]),
            }
    return found


class Idle(asyncio.Protocol):
    """A client that connects and is silent."""

    def __init__(self, k: int) -> None:
        self.name = b"idle-%07d" % k
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        # uvloop's transports are such by behaviour, not by inheritance.
        self.transport = cast("asyncio.Transport", transport)
        body = b"\0\4MQTT\4\2\0\0" + len(self.name).to_bytes(2, "big") + self.name
        self.transport.write(b"\x10" + bytes((len(body),)) + body)

    def data_received(self, data: bytes) -> None:
        """Wait for CONNACK."""
        if not self.accepted.done() and data[:1] == b"\x20" and data[3] == 0:
            self.accepted.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail if there was none."""
        if not self.accepted.done():
            self.accepted.set_exception(ConnectionError(f"an idle client was closed: {error}"))


async def open_idle(port: int, count: int, tls: ssl.SSLContext | None) -> list[Idle]:
    loop = asyncio.get_running_loop()
    made: list[Idle] = []
    for start in range(0, count, AT_ONCE):
        batch = [Idle(k) for k in range(start, min(count, start + AT_ONCE))]
        await asyncio.gather(
            *(loop.create_connection(lambda one=one: one, "127.0.0.1", port, ssl=tls) for one in batch)
        )
        await asyncio.gather(*(one.accepted for one in batch))
        made += batch
    return made


async def idle_memory(bench: Bench, count: int) -> dict[str, Any]:
    trusting = ssl.create_default_context(cafile=bench.directory / "cert.pem")
    trusting.check_hostname = False
    found: dict[str, Any] = {"clients": count}
    for system in ("gateway", "haproxy"):
        for name, tls in (("plain", None), ("tls", trusting)):
            before = bench.rss_mb(system)
            began = time.monotonic()
            clients = await open_idle(bench.ports[system if tls is None else f"{system}_tls"], count, tls)
            took_s = time.monotonic() - began
            await asyncio.sleep(1)
            after = bench.rss_mb(system)
            found[f"{system}_{name}"] = {
                "before_mb": round(before, 1),
                "mb": round(after, 1),
                "kb_per_client": round((after - before) * 1024 / count, 1),
                "connects_per_s": round(count / took_s),
            }
            for one in clients:
                if one.transport is not None:
                    one.transport.abort()
            await asyncio.sleep(1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The gateway beside HAProxy in TCP mode.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="per run")
    parser.add_argument("--only", choices=[*LOADS, "idle"], action="append")
    parser.add_argument("--clients", type=int, default=5_000, help="idle clients")
    arguments = parser.parse_args()
    wanted = arguments.only or [*LOADS, "idle"]
    found: dict[str, Any] = {}
    # Each part has processes of its own: memory that one part needed must not count in another.
    for name in wanted:
        with tempfile.TemporaryDirectory() as place:
            bench = Bench(Path(place))
            with bench.start():
                if name == "idle":
                    found[name] = uvloop.run(idle_memory(bench, arguments.clients))
                else:
                    found[name] = compare(bench, name, arguments.rounds, arguments.seconds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
