"""Process of the load generator: `python -m hanse.load.worker`, driven by `run` through its pipes.

In: one line with the task as JSON; then for publishers `go`, for subscribers `{"sent": [[publisher, count], ...]}`.
Out: one JSON object per line: `ready`, `progress`, then `done` with the results, or `error` with a sentence.
"""

import dataclasses
import gc
import json
import os
import sys
import time
from typing import Any

from hanse.errors import HanseError
from hanse.load.plan import Load
from hanse.load.publisher import Publishers
from hanse.load.subscriber import Subscribers
from hanse.mqtt.allocator import keep_freed_blocks


def main() -> None:
    """Run the task, and report its results."""
    keep_freed_blocks()
    task = json.loads(sys.stdin.readline())
    settings: dict[str, Any] = task["load"]
    for name in ("publish_urls", "subscribe_urls"):
        settings[name] = tuple(settings[name])
    load = Load(**settings)
    try:
        if task["role"] == "publish":
            _publish(load, task["run"], task["numbers"])
        else:
            _subscribe(load, task["run"], task["numbers"])
    except HanseError as error:
        _tell("error", kind=type(error).__name__, message=str(error))
        sys.exit(1)


def _publish(load: Load, run: int, numbers: list[int]) -> None:
    publishers = Publishers(load, run, numbers)
    _tell("ready")
    if sys.stdin.readline().strip() != "go":
        return
    _no_pauses()
    cpu_s = time.process_time()
    published = publishers.run(lambda count: _tell("progress", count=count))
    cpu_s = time.process_time() - cpu_s
    document = {field.name: getattr(published, field.name) for field in dataclasses.fields(published)}
    _tell("done", cpu_s=cpu_s, **{**document, "lag": published.lag.to_json()})


def _subscribe(load: Load, run: int, numbers: list[int]) -> None:
    subscribers = Subscribers(load, run, numbers)
    _tell("ready")
    _no_pauses()
    line = bytearray()

    def finished() -> dict[int, int] | None:
        chunk = os.read(0, 65_536)
        if not chunk:
            sys.exit(1)  # the process that started this one is gone
        line.extend(chunk)
        return dict(json.loads(line)["sent"]) if line.endswith(b"\n") else None

    cpu_s = time.process_time()
    received = subscribers.run(finished, 0, lambda count: _tell("progress", count=count))
    cpu_s = time.process_time() - cpu_s
    document = {field.name: getattr(received, field.name) for field in dataclasses.fields(received)}
    _tell("done", cpu_s=cpu_s, **{**document, "latency": received.latency.to_json()})


def _no_pauses() -> None:
    """Disable garbage collection. Nothing here makes cycles, and a collection would be measured as latency."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _tell(event: str, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON holds
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
