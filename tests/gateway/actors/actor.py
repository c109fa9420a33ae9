"""One actor process, as a test sees it."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from tests.federation import environment

DEADLINE_S = 40.0
HERE = Path(__file__).parent
MQTT_JS = "5.16.0"
CACHE = Path(os.environ.get("HANSE_TEST_CACHE") or Path.home() / ".cache" / "hanse-tests")


def mqttjs() -> Path:
    """Return the directory of MQTT.js; install it there if it is missing, and fail if npm cannot."""
    folder = CACHE / f"mqttjs-{MQTT_JS}"
    found = folder / "node_modules" / "mqtt"
    if not found.exists():
        assert shutil.which("npm"), "npm is missing (Debian: npm)"
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"mqtt@{MQTT_JS}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
    return found


class Actor:
    """One client: `with Actor("paho", url, 5) as actor: actor.connect("a")`.

    Args:
        kind: `paho`, `hanse` or `mqttjs`.
        version: of MQTT: 3 for 3.1, 4 for 3.1.1, 5.
    """

    def __init__(self, kind: str, url: str, version: int) -> None:
        if kind == "mqttjs":
            words = ["node", str(HERE / "mqttjs.cjs"), str(mqttjs()), url, str(version)]
        else:
            words = [sys.executable, "-m", f"tests.gateway.actors.with_{kind}", url, str(version)]
        self.messages: list[dict[str, Any]] = []
        self.is_closed = threading.Event()
        self._arrived = threading.Condition()
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        root = HERE.parents[2]
        path = os.pathsep.join([str(root), environment()["PYTHONPATH"]])
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(PYTHONPATH=path), cwd=root
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "message" in line:
                with self._arrived:
                    self.messages.append(line["message"])
                    self._arrived.notify_all()
            elif "closed" in line:
                self.is_closed.set()
            else:
                self._answers.put(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the process at once: for its broker, it disappears without a packet."""
        self._process.kill()
        self._process.wait()
        self._reading.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _do(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._answers.get(timeout=DEADLINE_S)
        assert answer.get("did") == command["do"], (command, answer)
        return answer

    def connect(self, name: str, *, clean: bool = True, will: dict[str, Any] | None = None) -> bool:
        """Connect; return whether the broker had a session."""
        return bool(self._do(do="connect", id=name, clean=clean, will=will)["present"])

    def subscribe(self, wanted: str, qos: int = 2) -> None:
        """Subscribe, and return with the SUBACK."""
        answer = self._do(do="subscribe", filter=wanted, qos=qos)
        assert answer["granted"] == qos

    def publish(
        self, topic: str, payload: str, qos: int = 1, *, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        """Publish, and return when the library reports that it is done."""
        self._do(do="publish", topic=topic, payload=payload, qos=qos, retain=retain, properties=properties)

    def disconnect(self) -> None:
        """Send DISCONNECT, and end."""
        self._do(do="disconnect")
        self._process.wait(DEADLINE_S)

    def wait(self, topic: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for `count` messages of a topic, and return them."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.of(topic)) >= count, DEADLINE_S), self.messages
        return self.of(topic)

    def of(self, topic: str) -> list[dict[str, Any]]:
        """Return the messages of a topic so far."""
        return [one for one in self.messages if one["topic"] == topic]
