"""A managed federation for tests, process by process: real managers, Mosquittos and federators, which tests can kill.

Rules: everything listens on 127.0.0.1. Nothing outlives the `with` block or the test's own process. A kill is SIGKILL,
like a crash.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.federation import Client, environment, eventually

from hanse.local import mosquitto, overlay, ports
from hanse.local.client import broker_answers
from hanse.local.processes import die_with_parent

START_S = 60.0


class Managed:
    """A managed federation: `with Managed(directory, 6, shape="ring") as federation: …`; up, linked, with one core.

    Args:
        shape: overlay reported to the manager before the federators join; with `managed` it places them itself.
        managers: number of managers, on one store.
        health_interval: health interval of the managers.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        shape: str = overlay.MANAGED,
        managers: int = 1,
        health_interval: str = "1s",
        announcement_interval: str = "500ms",
        manager_words: Sequence[str] = (),
        federator_words: Sequence[str] = (),
        scheme: str = "http",
        link: str = "direct",
    ) -> None:
        self.directory = directory
        self.count = count
        self.shape = shape
        self.health_interval_s = float(health_interval.removesuffix("s"))
        taken = ports.free(3 * count + managers)
        self.broker_ports, self.link_ports = taken[:count], taken[count : 2 * count]
        self.metrics_ports, manager_ports = taken[2 * count : 3 * count], taken[3 * count :]
        self.manager_urls = [f"{scheme}://127.0.0.1:{port}" for port in manager_ports]
        self._manager_words = [
            *("--health-interval", health_interval, "--announcement-interval", announcement_interval),
            # A killed manager's lease expires sooner; with the default a new manager waits 6 s.
            *("--lease", "2s", "--store", str(directory / "topology.db"), *manager_words),
        ]
        self._federator_words = list(federator_words)
        self._link = link
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[int, dict[str, str]] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            print(self.logs())
        self.close()

    def _start(self) -> None:
        for k in range(self.count):
            self.start_broker(k)
        for number in range(len(self.manager_urls)):
            self.start_manager(number)
        self.seed()
        for k in range(self.count):
            self.start_federator(k)
        eventually(self.is_settled, "all federators are linked as the manager means it", START_S)

    def seed(self) -> None:
        """Report the overlay to the manager, if one is given."""
        if self.shape == overlay.MANAGED:
            return
        around = overlay.neighbours(overlay.edges(self.shape, self.count), self.count)
        for k in range(self.count):
            named = [{"id": one, "ip": self.broker_url(one), "link": self.link_url(one)} for one in around[k]]
            body = {"ip": self.broker_url(k), "link": self.link_url(k), "epoch": 0, "neighbors": named}
            self.ask(f"/api/v1/federators/{k}/report", body)

    def close(self) -> None:
        """End all processes: federators, then managers, then brokers."""
        order = sorted(self._processes, key=lambda name: ("federator", "manager", "broker").index(name.split()[0]))
        for name in order:
            self.kill(name)

    # --- processes --------------------------------------------------------------------------------------------------

    def start_broker(self, k: int) -> None:
        settings = mosquitto.BrokerSettings(self.broker_ports[k], self.directory / f"site-{k}")
        self._spawn(f"broker {k}", mosquitto.command(settings))
        url = self.broker_url(k)
        eventually(lambda: asyncio.run(broker_answers(url)), f"broker {k} answers")

    def start_manager(self, number: int = 0) -> None:
        url = self.manager_urls[number]
        words = ["manager", "--listen", url.split("://")[1], "--advertised-url", url, *self._manager_words]
        self._spawn(f"manager {number}", [sys.executable, "-m", "hanse", *words])
        if url.startswith("http://"):
            eventually(lambda: self.health(number) is not None, f"manager {number} answers", START_S)

    def start_federator(self, k: int) -> None:
        words = ["federator", "--id", str(k), "--broker", self.broker_url(k), "--link", self._link]
        words += ["--link-listen", self.link_url(k)] if self._link == "direct" else []
        words += ["--state-dir", str(self.directory / f"site-{k}" / "state")]
        words += ["--metrics", f"127.0.0.1:{self.metrics_ports[k]}"]
        for url in self.manager_urls:
            words += ["--manager", url]
        self._spawn(
            f"federator {k}",
            [sys.executable, "-m", "hanse", *words, *self._federator_words],
            self.environment.get(k, {}),
        )

    def _spawn(self, name: str, command: Sequence[str], variables: dict[str, str] | None = None) -> None:
        parent = os.getpid()
        self.directory.mkdir(exist_ok=True)
        with (self.directory / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(**(variables or {})),
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - only a system call
            )

    def kill(self, name: str) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def kill_site(self, k: int) -> None:
        """Kill broker and federator, as if the machine died."""
        self.kill(f"federator {k}")
        self.kill(f"broker {k}")

    def stop_in_order(self, name: str) -> int:
        """Send SIGTERM, and return the exit code."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(20)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def living(self) -> list[int]:
        """Return the sites whose federator runs."""
        return [k for k in range(self.count) if self.is_running(f"federator {k}")]

    def logs(self) -> str:
        """Return the end of each process's output."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3_000:]}" for path in sorted(self.directory.glob("*.log"))
        )

    # --- views ------------------------------------------------------------------------------------------------------

    def broker_url(self, k: int) -> str:
        return f"mqtt://127.0.0.1:{self.broker_ports[k]}"

    def link_url(self, k: int) -> str:
        return f"mqtt://127.0.0.1:{self.link_ports[k]}"

    def ask(self, path: str, body: dict[str, Any] | None = None, number: int = 0) -> Any:
        """Return a page of a manager."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.manager_urls[number] + path, data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def health(self, number: int = 0) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self.ask("/healthz", number=number)
        except OSError:
            return None
        return found

    def leads(self, number: int = 0) -> bool:
        """Return whether this manager leads."""
        found = self.health(number)
        return found is not None and bool(found["isLeading"])

    def topology(self, number: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("/api/v1/topology", number=number)
        return found

    def states(self, number: int = 0) -> dict[int, str]:
        return {one["id"]: one["state"] for one in self.topology(number)["federators"]}

    def neighbours(self, number: int = 0) -> dict[int, set[int]]:
        """Return the overlay as the manager has assigned it."""
        return neighbours_of(self.topology(number))

    def page(self, k: int, path: str = "/healthz") -> dict[str, Any]:
        """Return one of federator k's pages."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_ports[k]}{path}", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def answers(self, k: int) -> bool:
        """Return whether federator k's page answers."""
        try:
            self.page(k)
        except OSError:
            return False
        return True

    def linked(self, k: int) -> set[int]:
        """Return the neighbours whose links are up at federator k."""
        return set(self.page(k)["neighbours"])

    def is_settled(self, number: int = 0) -> bool:
        """Return whether the running federators have exactly the assigned links, and one core."""
        living = self.living()
        try:
            found = self.topology(number)
            pages = [self.page(k) for k in living]
        except OSError:
            return False
        meant = neighbours_of(found)
        up = {one["id"] for one in found["federators"] if one["state"] == "up"}
        cores = {page["management_core"] for page in pages}
        return (
            up == set(living)
            and all(set(page["neighbours"]) == meant[page["id"]] for page in pages)
            and len(cores) == 1
            and None not in cores
        )

    def is_mapped(self) -> bool:
        """Return whether the running federators have the manager's last map, for use while it is down."""
        epoch = self.topology()["epoch"]
        return all(self.page(k)["membership"]["map_epoch"] == epoch for k in self.living())

    def knows(self, group: str, among: Iterable[int] | None = None) -> bool:
        """Return whether all (or the given) federators agree on the core of the group."""
        cores = set()
        for k in self.living() if among is None else among:
            rows = [row for row in self.page(k, "/groups")["groups"] if row["group"] == group]
            cores.add(rows[0]["core"] if rows else None)
        return len(cores) == 1 and None not in cores


def neighbours_of(topology: dict[str, Any]) -> dict[int, set[int]]:
    """Return the neighbours that the manager assigned to each federator."""
    around: dict[int, set[int]] = {one["id"]: set() for one in topology["federators"]}
    for link in topology["links"]:
        around[link["a"]].add(link["b"])
        around[link["b"]].add(link["a"])
    return around


class Stream:
    """Stream of numbered messages with QoS 1 from one broker to a subscriber at another, until `stop`."""

    def __init__(self, federation: Managed, at: int, to: int, topic: str, every_s: float = 0.02) -> None:
        self.arrived: dict[int, list[float]] = {}
        self.sent: dict[int, float] = {}
        self._subscriber = Client(federation.broker_ports[to])
        self._subscriber.client.on_message = lambda _client, _data, message: self._take(int(message.payload))
        self._subscriber.subscribe(topic, 1)
        eventually(lambda: federation.knows(topic), f"all know {topic}")
        self._publisher = Client(federation.broker_ports[at])
        self._topic = topic
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for client in (self._publisher, self._subscriber):
            client.__exit__(None, None, None)

    def _publish(self) -> None:
        number = 0
        while not self._stop.wait(self._every_s):
            self.sent[number] = time.monotonic()
            self._publisher.client.publish(self._topic, b"%d" % number, 1)
            number += 1

    def _take(self, number: int) -> None:
        self.arrived.setdefault(number, []).append(time.monotonic())

    def stop(self) -> None:
        """Stop publishing."""
        self._stop.set()
        self._thread.join()

    def lost(self) -> list[int]:
        """Return the numbers that were sent and did not arrive."""
        return sorted(self.sent.keys() - self.arrived.keys())

    def doubled(self) -> list[int]:
        """Return the numbers that arrived more than once."""
        return sorted(number for number, times in self.arrived.items() if len(times) > 1)

    def first_sent_after(self, moment_s: float) -> float | None:
        """Return when the first message sent after a given time arrived."""
        times = [
            self.arrived[number][0]
            for number, sent_s in list(self.sent.items())
            if sent_s > moment_s and number in self.arrived
        ]
        return min(times, default=None)

    def await_message(self, sent_after_s: float, deadline_s: float) -> float:
        """Wait for a message sent after a given time; return when it arrived."""
        eventually(lambda: self.first_sent_after(sent_after_s) is not None, "a message arrives again", deadline_s)
        found = self.first_sent_after(sent_after_s)
        assert found is not None
        return found


def when(condition: Callable[[], bool], what: str, deadline_s: float) -> float:
    """Wait until a condition holds; return the time."""
    eventually(condition, what, deadline_s)
    return time.monotonic()
