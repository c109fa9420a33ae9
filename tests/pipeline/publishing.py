"""Publisher for the pipeline's tests: sends a list, and returns when the broker has acknowledged all of it."""

import asyncio
import time
from collections.abc import Callable, Sequence

from hanse.errors import HanseError
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import encode

DEADLINE_S = 60.0


class _Count(ClientHandler):
    def __init__(self) -> None:
        self.acknowledged = 0
        self.refused = 0
        self.changed = asyncio.Event()

    def on_acknowledged(self, numbers: list[int]) -> None:
        self.acknowledged += len(numbers)
        self.changed.set()

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        self.refused += len(refused)

    def on_credit(self) -> None:
        self.changed.set()

    def on_disconnected(self, error: HanseError | None) -> None:
        del error


async def publish_packets(
    url: str, packets: Sequence[bytes], *, per_s: float | None = None, client_id: str = "publisher"
) -> int:
    """Publish canonical QoS 1 packets; return the number acknowledged, which is all of them, or raise."""
    count = _Count()
    client = Client(ClientSettings(url=url, client_id=client_id, session_expiry_s=600), count)
    await client.start(must_connect=True)
    began = time.monotonic()
    try:
        for at in range(0, len(packets), 200):
            while client.credit < 200:
                count.changed.clear()
                await asyncio.wait_for(count.changed.wait(), DEADLINE_S)
            client.publish_run(b"".join(packets[at : at + 200]))
            behind = 0.0 if per_s is None else began + at / per_s - time.monotonic()
            await asyncio.sleep(max(0.0, behind))
        while count.acknowledged < len(packets):
            assert not count.refused
            count.changed.clear()
            await asyncio.wait_for(count.changed.wait(), DEADLINE_S)
    finally:
        await client.stop()
    return count.acknowledged


def publish(url: str, messages: Sequence[tuple[str, bytes]], *, per_s: float | None = None) -> int:
    """Publish without an event loop."""
    return asyncio.run(
        publish_packets(url, [encode(topic, payload, qos=1) for topic, payload in messages], per_s=per_s)
    )


def wait_for(what: str, is_so: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Poll until `is_so` returns true; raise TimeoutError at the deadline."""
    until = time.monotonic() + deadline_s
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {deadline_s} s")
        time.sleep(0.02)
