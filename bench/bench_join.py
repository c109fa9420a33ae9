"""Measure joins and losses in a real federation: times from start and from kill to the first message. One JSON object.

    python bench/bench_join.py --federators 9 --rounds 3

Real Mosquittos, federators and manager, all on this machine. Each round is a new federation, placed by its manager:

- `join_s`: from the start of an additional federator's process to all its links; `join_message_s`: to the first message
  that a client at its broker receives. `process_s` of it is the start of Python, until the page for the operator
  answers.
- `repair_s`: the only two neighbours of a third federator are killed with their brokers; time to the first later
  message that reaches the third's client. `detected_s`: until the manager counts both as gone.
- `relink_s`: the same without a manager, which is killed first: the federators relink among themselves.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from hanse.errors import RemoteError, Unavailable
from hanse.local import mosquitto, overlay, ports
from hanse.local.agents import agent_command
from hanse.local.client import Connection, broker_answers
from hanse.local.http import get_json
from hanse.local.managed import LocalManager
from hanse.local.processes import die_with_parent
from hanse.local.supervise import Federation, FederationSettings, Site

DEADLINE_S = 60.0
EVERY_S = 0.02


async def until(condition: Callable[[], Any], what: str) -> float:
    """Wait for an asynchronous condition, and return the time."""
    end_s = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(Unavailable, RemoteError):
            if await condition():
                return time.monotonic()
        if time.monotonic() > end_s:
            raise SystemExit(f"not within {DEADLINE_S:g} s: {what}")
        await asyncio.sleep(0.01)


class Stream:
    """Numbered messages from one broker to another, and their times of arrival."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.arrived: dict[int, float] = {}

    async def publish(self, url: str, topic: str) -> None:
        """Publish until cancelled."""
        async with Connection(url) as connection:
            while True:
                self.sent.append(time.monotonic())
                await connection.publish(topic, b"%d" % (len(self.sent) - 1), qos=1)
                await asyncio.sleep(EVERY_S)

    async def subscribe(self, url: str, topic: str) -> None:
        """Receive until cancelled."""
        async with Connection(url) as connection:
            await connection.subscribe([topic], qos=1)
            async for message in connection.messages():
                self.arrived.setdefault(int(message.payload or b"0"), time.monotonic())

    async def first_sent_after(self, moment_s: float) -> float:
        """Return when the first message sent after a given time arrived."""

        async def came() -> bool:
            return any(self.sent[number] > moment_s for number in self.arrived)

        await until(came, "a message arrives")
        return min(at for number, at in self.arrived.items() if self.sent[number] > moment_s)


@contextlib.asynccontextmanager
async def flowing(source: str, target: str, topic: str) -> AsyncIterator[Stream]:
    stream = Stream()
    tasks = [asyncio.create_task(stream.subscribe(target, topic)), asyncio.create_task(stream.publish(source, topic))]
    try:
        yield stream
    finally:
        for task in tasks:
            task.cancel()
        for one in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(one, Exception):
                print(f"stream: {one!r}", file=sys.stderr)


async def start(directory: Path, count: int, health_interval: str) -> tuple[Federation, LocalManager]:
    manager = LocalManager(directory, overlay.MANAGED, health_interval)
    settings = FederationSettings(count, directory, overlay=overlay.MANAGED, restarts=False)
    federation = Federation(
        settings,
        lambda site: agent_command(site, "direct", manager.url),
        manager.is_converged,
        [manager.service()],
        manager.prepare,
    )
    manager.clear(federation.sites)
    await federation.start()
    return federation, manager


async def measure_loss(directory: Path, count: int, health_interval: str, *, with_manager: bool) -> dict[str, float]:
    federation, manager = await start(directory, count, health_interval)
    try:
        view = await manager.topology()
        around: dict[int, set[int]] = {k: set() for k in range(count)}
        for link in view["links"]:
            around[link["a"]].add(link["b"])
            around[link["b"]].add(link["a"])
        third = max((k for k in around if len(around[k]) == 2), default=None)
        assert third is not None, "placement gives the last one two neighbours"
        source = min(k for k in around if k != third and k not in around[third])
        sites = federation.sites
        async with flowing(sites[source].broker_url, sites[third].broker_url, "bench/loss") as stream:
            await stream.first_sent_after(time.monotonic())
            if not with_manager:
                await asyncio.sleep(2.0)  # so that all have the map
                await federation.services[0].kill()
            for k in around[third]:
                await federation.agents[k].kill()
                await federation.brokers[k].kill()
            killed_s = time.monotonic()
            found = {}
            if with_manager:

                async def gone() -> bool:
                    states = {one["id"]: one["state"] for one in (await manager.topology())["federators"]}
                    return all(states[k] == "gone" for k in around[third])

                found["detected_s"] = await until(gone, "both are gone") - killed_s
            again_s = await stream.first_sent_after(killed_s)
            return {**found, "repair_s" if with_manager else "relink_s": again_s - killed_s}
    finally:
        await federation.stop()


async def measure_join(directory: Path, count: int, health_interval: str) -> dict[str, float]:
    federation, manager = await start(directory, count, health_interval)
    broker_port, link_port, metrics_port = ports.free(3)
    folder = directory / f"site-{count}"
    site = Site(count, folder, broker_port, link_port, metrics_port, (), (), ())
    settings = mosquitto.BrokerSettings(broker_port, folder / "broker")
    parent = os.getpid()
    with (directory / "joining.log").open("wb") as output:

        def spawn(command: list[str]) -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - only a system call
            )

        processes = [spawn(mosquitto.command(settings))]
        try:
            await until(lambda: broker_answers(site.broker_url), "the broker answers")
            began_s = time.monotonic()
            processes.append(spawn(agent_command(site, "direct", manager.url)))

            async def shown() -> dict[str, Any]:
                page: dict[str, Any] = await get_json(f"{site.metrics_url}/healthz")
                return page

            async def linked() -> bool:
                page = await shown()
                meant = page["membership"]["neighbours"]
                return bool(meant) and sorted(page["neighbours"]) == sorted(meant)

            shown_s = await until(shown, "its page answers")
            linked_s = await until(linked, "its links stand")
            # Only now: Mosquitto logs a subscription once, not afterwards.
            async with flowing(federation.sites[0].broker_url, site.broker_url, "bench/join") as stream:
                message_s = await stream.first_sent_after(began_s)
            return {
                "process_s": shown_s - began_s,
                "join_s": linked_s - began_s,
                "join_message_s": message_s - began_s,
            }
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()
            await federation.stop()


async def run(options: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[float]] = {}
    for number in range(options.rounds):
        for name in ("join", "repair", "relink"):
            with tempfile.TemporaryDirectory(prefix="hanse-bench-") as folder:
                directory = Path(folder)
                if name == "join":
                    found = await measure_join(directory, options.federators, options.health_interval)
                else:
                    found = await measure_loss(
                        directory, options.federators, options.health_interval, with_manager=name == "repair"
                    )
            print(f"round {number + 1}, {name}: {json.dumps(found)}", file=sys.stderr)
            for key, value in found.items():
                runs.setdefault(key, []).append(value)
    return {
        "federators": options.federators,
        "rounds": options.rounds,
        "health_interval": options.health_interval,
        **{
            key: {
                "median": round(statistics.median(values), 3),
                "min": round(min(values), 3),
                "max": round(max(values), 3),
            }
            for key, values in runs.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--federators", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--health-interval", default="5s")
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
