"""Redirects at a gateway: how many per second, and how long one takes. One JSON object.

    python bench/bench_redirect.py --seconds 10 --rounds 3

A real gateway with one worker (`mode = redirect`) in front of two real Mosquittos, and a load generator in a process of
its own, all on this machine. Two forms: `disconnect` is figure 2 of the TD-MQTT paper (CONNECT, CONNACK, SUBSCRIBE,
SUBACK, DISCONNECT 0x9C); `connack` names the broker in CONNACK, for a client that names its topic in CONNECT.

- `at_rate`: clients come at 1,000 per second, whatever happened to those before (open loop). `ms` is from the first
  byte of CONNECT to the reference. `from_schedule_ms` is from the moment at which the client should have come, so that
  a stall counts for all clients that it delays; it includes the TCP connection and the load generator's own lateness.
- `most_per_s`: as many as fit, with 64 clients at a time. `cpu_ms`: processor time of the gateway for each of them.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from hanse.local import mosquitto, ports
from hanse.local.processes import die_with_parent

RATE: Final = 1_000
AT_ONCE: Final = 64
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
TOPIC: Final = b"bench/topic"
NUMBERS: Final = itertools.count()


def text(data: bytes) -> bytes:
    """Return a string of MQTT."""
    return len(data).to_bytes(2, "big") + data


def packet(head: int, body: bytes) -> bytes:
    """Return a packet of at most 129 bytes."""
    assert len(body) < 128
    return bytes((head, len(body))) + body


def connect(client_id: bytes, *, names_topic: bool) -> bytes:
    """Return a CONNECT of MQTT 5."""
    properties = b"\x26" + text(b"server-reference-topic") + text(TOPIC) if names_topic else b""
    return packet(0x10, b"\x00\x04MQTT\x05\x02\x00\x3c" + bytes((len(properties),)) + properties + text(client_id))


SUBSCRIBE: Final = packet(0x82, b"\x00\x01\x00" + text(TOPIC) + b"\x01")


class Redirected(asyncio.Protocol):
    """One client, until it has its reference."""

    def __init__(self, client_id: bytes, *, names_topic: bool) -> None:
        self._connect = connect(client_id, names_topic=names_topic)
        self._names_topic = names_topic
        self._have = b""
        self._has_subscribed = False
        self.begin_s = 0.0
        self.end_s = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        self.begin_s = time.perf_counter()
        self._transport.write(self._connect)

    def data_received(self, data: bytes) -> None:
        """Take answers."""
        self._have += data
        while len(self._have) >= 2 and len(self._have) >= 2 + self._have[1]:
            size = 2 + self._have[1]
            self._take(self._have[:size])
            self._have = self._have[size:]

    def _take(self, found: bytes) -> None:
        assert self._transport is not None
        kind = found[0]
        if kind == 0x20 and found[3] == 0 and not self._names_topic:
            self._transport.write(SUBSCRIBE)
        elif (kind == 0xE0 and found[2] == 0x9C) or (kind == 0x20 and found[3] == 0x9C):
            assert b"127.0.0.1:" in found
            self.end_s = time.perf_counter()
            self._transport.close()
        else:
            assert kind == 0x90, f"an answer that was not expected: {found!r}"

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the result counts
        """End."""
        if not self.done.done():
            self.done.set_result(None)


class Round:
    """The clients of one round."""

    def __init__(self, port: int, form: str) -> None:
        self.took_s: list[float] = []
        self.from_schedule_s: list[float] = []
        self.failed = 0
        self._port = port
        self._form = form

    async def one(self, scheduled_s: float | None = None) -> None:
        """Be redirected once."""
        # A client that came back would be proxied.
        name = b"%s-%d" % (self._form.encode(), next(NUMBERS))
        client = Redirected(name, names_topic=self._form == "connack")
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: client, "127.0.0.1", self._port)
            async with asyncio.timeout(30):
                await client.done
        except (OSError, TimeoutError):
            self.failed += 1
            return
        if not client.end_s:
            self.failed += 1
            return
        self.took_s.append(client.end_s - client.begin_s)
        if scheduled_s is not None:
            self.from_schedule_s.append(client.end_s - scheduled_s)

    async def at_rate(self, rate: float, seconds: float) -> None:
        """Let clients come at a rate."""
        tasks: set[asyncio.Task[None]] = set()
        begin_s = time.perf_counter()
        for k in range(int(rate * seconds)):
            due_s = begin_s + k / rate
            wait_s = due_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.ensure_future(self.one(due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def most(self, seconds: float) -> float:
        """Keep clients coming, `AT_ONCE` at a time; return how many per second were redirected."""
        begin_s = time.perf_counter()

        async def again() -> None:
            while time.perf_counter() - begin_s < seconds:
                await self.one()

        await asyncio.gather(*(again() for _ in range(AT_ONCE)))
        return len(self.took_s) / (time.perf_counter() - begin_s)


def quantiles(values_s: list[float]) -> dict[str, float]:
    """Return the usual quantiles in milliseconds."""
    ordered = sorted(values_s)
    marks = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    return {name: round(ordered[min(len(ordered) - 1, int(at * len(ordered)))] * 1e3, 3) for name, at in marks.items()}


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@contextlib.contextmanager
def running(directory: Path) -> Iterator[tuple[int, int]]:
    """Run the brokers and the gateway; give its port and its process."""
    with contextlib.ExitStack() as stack:
        broker_ports = ports.free(2)
        for k, port in enumerate(broker_ports):
            config = directory / f"broker{k}.conf"
            config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_type error\n")
            start(stack, [mosquitto.find_program(), "-c", str(config)])
        state = directory / "state"
        words = ["--listen", "mqtt://127.0.0.1:0", "--metrics", "127.0.0.1:0", "--state-dir", str(state)]
        words += ["--mode", "redirect", "--connect-rate", "1000000", "--shutdown-grace", "0s"]
        words += [word for k, port in enumerate(broker_ports) for word in ("--broker", f"b{k}=mqtt://127.0.0.1:{port}")]
        gateway = start(stack, [sys.executable, "-m", "hanse", "gateway", *words])
        until_s = time.monotonic() + 30
        while not (state / "gateway.json").exists():
            if gateway.poll() is not None or time.monotonic() > until_s:
                raise SystemExit("the gateway did not start")
            time.sleep(0.05)
        found = json.loads((state / "gateway.json").read_text())
        yield int(found["listeners"][0].rpartition(":")[2]), found["pid"]


def start(stack: contextlib.ExitStack, command: list[str]) -> "subprocess.Popen[bytes]":
    """Start a process that ends with the block."""
    parent = os.getpid()
    process = subprocess.Popen(
        command,
        stdout=sys.stderr,
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - a system call and no more
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def spread(values: list[float]) -> dict[str, float]:
    """Return the median over the rounds, the smallest and the largest."""
    return {name: round(of(values), 3) for name, of in (("median", statistics.median), ("min", min), ("max", max))}


def measure(port: int, pid: int, form: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure one form."""
    rated: list[Round] = []
    rates: list[float] = []
    spent_ms: list[float] = []
    failed = 0
    for _ in range(rounds):
        one = Round(port, form)
        uvloop.run(one.at_rate(RATE, seconds))
        rated.append(one)
        full = Round(port, form)
        before_s = cpu_s(pid)
        rates.append(uvloop.run(full.most(seconds)))
        spent_ms.append((cpu_s(pid) - before_s) * 1e3 / max(1, len(full.took_s)))
        failed += one.failed + full.failed
    took = [quantiles(one.took_s) for one in rated]
    late = [quantiles(one.from_schedule_s) for one in rated]
    return {
        "at_rate": {
            **{f"ms_{name}": spread([one[name] for one in took]) for name in ("p50", "p99", "p999")},
            "from_schedule_ms_p99": spread([one["p99"] for one in late]),
        },
        "most_per_s": spread(rates),
        "cpu_ms": spread(spent_ms),
        "failed": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as (port, pid):
        uvloop.run(Round(port, "disconnect").most(1.0))
        found: dict[str, Any] = {"rounds": given.rounds, "seconds": given.seconds, "clients_per_s": RATE}
        for form in ("disconnect", "connack"):
            found[form] = measure(port, pid, form, given.rounds, given.seconds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
