"""A real federation for tests: `hanse up` as users run it, with real Mosquittos and federators."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

import hanse
from hanse.local import ports

START_S = 90.0
# These tests do not measure time: on a busy machine a SUBACK has taken more than 20 s.
WAIT_S = 60.0


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = WAIT_S) -> None:
    """Wait until a condition holds; fail with `what` at the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"not within {deadline_s} s: {what}"
        time.sleep(0.01)


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a child: the code under test, not an installed package, and none of our settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HANSE_")}
    return {**kept, "PYTHONPATH": str(Path(hanse.__file__).parent.parent), **more}


class RunningFederation:
    """`hanse up` until the end of the block; leaves nothing behind.

    Args:
        gateway: whether to run a gateway as well.
    """

    def __init__(self, directory: Path, brokers: int, *words: str, gateway: bool = False) -> None:
        self._directory = directory
        self.brokers = brokers
        self.base_port = _free_block(brokers)
        self.state_path = directory / "state.json"
        self._log = (directory / "up.log").open("wb")
        command = [sys.executable, "-m", "hanse", "up", "--brokers", str(brokers), "--base-port", str(self.base_port)]
        command += ["--dir", str(directory / "run"), "--state", str(self.state_path), *words]
        command += ["--gateway" if gateway else "--no-gateway"]
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True, env=environment()
        )

    def __enter__(self) -> Self:
        try:
            eventually(self._is_up, f"hanse up has converged; see {self._log.name}", START_S)
        except BaseException:
            self.close()
            raise
        return self

    def _is_up(self) -> bool:
        assert self.process.poll() is None, (self._directory / "up.log").read_text()
        return self.state_path.exists()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Send Ctrl-C, and escalate if that does not suffice."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        self._log.close()

    @property
    def state(self) -> dict[str, Any]:
        """Return the state file."""
        found: dict[str, Any] = json.loads(self.state_path.read_bytes())
        return found

    def port(self, k: int) -> int:
        """Return the port of broker k."""
        return self.base_port + k

    def page(self, k: int, path: str) -> dict[str, Any]:
        """Return one of federator k's JSON pages."""
        with urllib.request.urlopen(self.state["federators"][k]["metrics"] + path, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def counters(self, k: int) -> dict[str, int]:
        """Return the counters of federator k."""
        found: dict[str, int] = self.page(k, "/healthz")["counters"]
        return found

    def knows(self, group: str) -> bool:
        """Return whether all federators know the group and agree on its core."""
        cores = set()
        for k in range(self.brokers):
            rows = [row for row in self.page(k, "/groups")["groups"] if row["group"] == group]
            cores.add(rows[0]["core"] if rows else None)
        return len(cores) == 1 and None not in cores


class Client:
    """A paho client, as users have it, with the received messages in a list."""

    def __init__(self, port: int, *, version: int = 5, name: str = "") -> None:
        protocol = MQTTProtocolVersion.MQTTv5 if version == 5 else MQTTProtocolVersion.MQTTv311
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=protocol)
        self.messages: list[paho.MQTTMessage] = []
        self._granted = 0
        self.client.on_message = lambda _client, _data, message: self.messages.append(message)
        self.client.on_subscribe = self._on_subscribe
        self.client.max_inflight_messages_set(1_000)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        eventually(self.client.is_connected, "the client is connected")

    def _on_subscribe(self, *_: object) -> None:
        self._granted += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        # paho keeps a socket pair for its thread until garbage collection, in any order.
        self.client._reset_sockets()

    def subscribe(self, wanted: str, qos: int = 2) -> None:
        """Subscribe, and return with the SUBACK."""
        before = self._granted
        if self.client.protocol == MQTTProtocolVersion.MQTTv5:
            self.client.subscribe(wanted, options=SubscribeOptions(qos=qos, retainAsPublished=True))
        else:
            self.client.subscribe(wanted, qos)
        eventually(lambda: self._granted > before, "SUBACK")

    def publish(
        self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False, properties: Properties | None = None
    ) -> None:
        """Publish, and return with the acknowledgement."""
        self.client.publish(topic, payload, qos, retain, properties).wait_for_publish(WAIT_S)

    def expect(self, count: int) -> list[paho.MQTTMessage]:
        """Wait for `count` messages, and check that no more arrive."""
        eventually(lambda: len(self.messages) >= count, f"{count} messages; came: {len(self.messages)}")
        time.sleep(0.15)
        assert len(self.messages) == count, [message.payload[:40] for message in self.messages]
        return self.messages


def _free_block(count: int) -> int:
    """Return a base port with `count` consecutive free ports."""
    for _ in range(50):
        base = ports.free(1)[0]
        try:
            ports.require_free([base + k for k in range(count)])
        except Exception:  # noqa: BLE001 - taken: try the next one
            continue
        return base
    raise AssertionError("no free block of ports")
