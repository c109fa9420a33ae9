"""Measure a manager: latency of joins, duration of a health round, detection, repair, memory. One JSON object.

    python bench/bench_manager.py --federators 1000

The manager is the real one, a process of its own with a SQLite store. The brokers are simulated: a second process
listens on one port for each, and supports enough MQTT 5 to accept a probe and return it.
"""

import argparse
import asyncio
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import mqtt5
import psutil

Kill = multiprocessing.connection.Connection


class SimulatedBroker(asyncio.Protocol):
    """Broker that answers with CONNACK, SUBACK, PUBACK and PINGRESP, and returns every publication to its sender."""

    def __init__(self, connections: set[asyncio.Transport]) -> None:
        self._connections = connections
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        del exc
        self._connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Answer every whole packet."""
        self._buffer += data
        answers = bytearray()
        at = 0
        while at < len(self._buffer):
            try:
                packet, length = mqtt5.read(memoryview(self._buffer)[at:])
            except IndexError:
                break
            at += length
            answers += self._answer(packet)
        self._buffer = self._buffer[at:]
        if answers:
            self._transport.write(bytes(answers))

    def _answer(self, packet: mqtt5.Packet) -> bytes:
        match packet:
            case mqtt5.ConnectPacket():
                return mqtt5.ConnAckPacket().write()
            case mqtt5.SubscribePacket():
                granted = [mqtt5.SubAckReasonCode.GRANTED_QOS_AT_MOST_ONCE] * len(packet.topic_filters)
                return mqtt5.SubAckPacket(packet.packet_id, granted).write()
            case mqtt5.PublishPacket(qos=mqtt5.QoS.AT_MOST_ONCE):
                return mqtt5.PublishPacket(packet.topic, payload=packet.payload).write()
            case mqtt5.PublishPacket():
                return mqtt5.PubAckPacket(packet.packet_id or 0).write()
            case mqtt5.PingReqPacket():
                return mqtt5.PingRespPacket().write()
            case _:
                return b""


def run_brokers(count: int, pipe: multiprocessing.connection.Connection) -> None:
    """Run the brokers: send their ports, then kill those that the parent names."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        connections: list[set[asyncio.Transport]] = [set() for _ in range(count)]
        servers = []
        for mine in connections:
            make = functools.partial(SimulatedBroker, mine)
            servers.append(await loop.create_server(make, "127.0.0.1", 0))
        pipe.send([server.sockets[0].getsockname()[1] for server in servers])
        while True:
            victims = await asyncio.to_thread(pipe.recv)
            if victims is None:
                return
            for victim in victims:
                servers[victim].close()
                for transport in list(connections[victim]):
                    transport.abort()

    asyncio.run(main())


@contextmanager
def brokers(count: int) -> Iterator[tuple[list[int], multiprocessing.connection.Connection]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_brokers, args=(count, theirs))
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        ours.send(None)
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()
        theirs.close()
        process.close()


def listening_url(process: "subprocess.Popen[bytes]", folder: str) -> str:
    """Return the URL that the manager logs when it listens."""
    while process.poll() is None:
        found = re.search(r"the manager listens url=(\S+)", Path(folder, "log").read_text(encoding="utf-8"))
        if found is not None:
            return found[1]
        time.sleep(0.02)
    raise SystemExit("the manager did not start")


@contextmanager
def manager(interval_s: float) -> Iterator[tuple[str, psutil.Process]]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["manager", "--listen", "127.0.0.1:0", "--health-interval", f"{interval_s * 1000:.0f}ms"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with open(os.path.join(folder, "log"), "w+") as log:  # noqa: PTH118, PTH123 - a log file
            process = subprocess.Popen(
                [sys.executable, "-c", "from hanse.cli import main; main()", *words],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
            )
            try:
                yield listening_url(process, folder), psutil.Process(process.pid)
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                if process.stdout is not None:
                    process.stdout.close()


async def measure(
    url: str, ports: list[int], kill: Kill, process: psutil.Process, *, interval_s: float, rounds: int
) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        empty_mb = process.memory_info().rss / 1e6
        few = max(2, len(ports) // 20)
        alone_ms, _ = await join_all(client, ports[:few], at_once=1)
        joins_ms, joins_s = await join_all(client, ports[few:], at_once=20)
        seen = await watch_rounds(client, rounds, interval_s)
        counts = (1, max(2, len(ports) // 20))
        repairs = [await lose_some(client, ports, count, kill, interval_s) for count in counts]
        shown = (await client.get("/api/v1/topology")).json()
        return {
            "federators": len(ports),
            "health_interval_s": interval_s,
            "join_alone_ms_p50": round(statistics.median(alone_ms), 2),
            "join_ms_p50": round(statistics.median(joins_ms), 2),
            "join_ms_p99": round(statistics.quantiles(joins_ms, n=100)[98], 2),
            "joins_per_s": round(len(joins_ms) / joins_s, 1),
            "round_s": [round(one, 3) for one in seen["rounds"]],
            "round_fits_interval": max(seen["rounds"]) < interval_s,
            "probe_failures_before_kill": seen["failures"],
            "loop_lag_s": round(seen["lag"], 3),
            "losses": repairs,
            "is_connected_after": shown["isConnected"],
            "is_two_connected_after": shown["isTwoConnected"],
            "memory_mb_empty": round(empty_mb, 1),
            "memory_mb_full": round(process.memory_info().rss / 1e6, 1),
            "cpu_s": round(sum(process.cpu_times()[:2]), 1),
        }


async def join_all(client: httpx.AsyncClient, ports: list[int], *, at_once: int) -> tuple[list[float], float]:
    gate = asyncio.Semaphore(at_once)

    async def join(port: int) -> float:
        async with gate:
            begin_s = time.perf_counter()
            answer = await client.post("/api/v1/join", json={"ip": f"tcp://127.0.0.1:{port}"})
            assert answer.status_code == 200, answer.text
            return (time.perf_counter() - begin_s) * 1000

    begin_s = time.perf_counter()
    joins_ms = await asyncio.gather(*(join(port) for port in ports))
    return list(joins_ms), time.perf_counter() - begin_s


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name.removeprefix("hanse_manager_"): float(value) for name, value in pairs}


async def watch_rounds(client: httpx.AsyncClient, rounds: int, interval_s: float) -> dict[str, Any]:
    """Return the durations of whole rounds over all federators, with their connections open."""
    start = (await metrics(client))["health_rounds_total"] + 2
    lengths: list[float] = []
    last, lag = start, 0.0
    now: dict[str, float] = {}
    deadline_s = time.monotonic() + 60 + (rounds + 3) * interval_s * 3
    while len(lengths) < rounds:
        assert time.monotonic() < deadline_s, "the health rounds did not come"
        await asyncio.sleep(interval_s / 5)
        now = await metrics(client)
        lag = max(lag, now["loop_lag_seconds"])
        if now["health_rounds_total"] > last:
            last = now["health_rounds_total"]
            lengths.append(now["health_round_seconds"])
    return {"rounds": lengths, "failures": int(now["probe_failures_total"]), "lag": lag}


async def lose_some(
    client: httpx.AsyncClient, ports: list[int], count: int, kill: Kill, interval_s: float
) -> dict[str, Any]:
    up = [one["id"] for one in (await client.get("/api/v1/federators")).json()]
    victims = up[:: max(1, len(up) // count)][:count]
    ips = {one["id"]: one["ip"] for one in (await client.get("/api/v1/federators")).json()}
    by_port = {port: index for index, port in enumerate(ports)}
    kill.send([by_port[int(ips[victim].rsplit(":", 1)[1])] for victim in victims])
    begin_s = time.perf_counter()
    deadline_s = time.monotonic() + 60 + interval_s * 6
    while True:
        now = await metrics(client)
        if now['federators{state="up"}'] <= len(up) - count:
            break
        assert time.monotonic() < deadline_s, f"{count} dead brokers were not found: {now}"
        await asyncio.sleep(0.02)
    shown = (await client.get("/api/v1/topology")).json()
    return {
        "lost": count,
        "detected_and_repaired_s": round(time.perf_counter() - begin_s, 3),
        "repair_computed_s": round(now["change_seconds"], 4),
        "is_two_connected": shown["isTwoConnected"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federators", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between health rounds")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with brokers(options.federators) as (ports, kill), manager(options.interval) as (url, process):
        found = asyncio.run(measure(url, ports, kill, process, interval_s=options.interval, rounds=options.rounds))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
