"""The bulk connection in a federation of real processes."""

import asyncio
import threading
import time
import urllib.request
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from tests.federation import WAIT_S, Client, RunningFederation, eventually

from hanse import load

pytestmark = pytest.mark.processes


def uses_lane(federation: RunningFederation, k: int) -> bool:
    url = f"{federation.state['federators'][k]['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=5) as page:
        return b"\nhanse_federator_host_lane 1" in page.read()


def wait_while_more_comes(reader: Client, came: threading.Event) -> None:
    """Wait long: on a busy machine, the last publication is behind all that the reader has not read of the stream."""
    count = -1
    while not came.wait(WAIT_S):
        before, count = count, len(reader.messages)
        assert count > before, f"nothing for {WAIT_S} s after {count} messages, and not what was published last"


# Fewer than the brokers and federators queue, so nothing is dropped, whatever else this machine does.
MESSAGES = 60_000
# A stream that is delayed may be over before it is seen on the bulk connection.
ROUNDS = 10


@pytest.mark.slow
def test_a_stream_on_the_bulk_connection_arrives_once_and_in_order_even_if_interest_turns(tmp_path: Path) -> None:
    """In the middle of a stream from 0 to 1, a client at 0 wants publications of 1, the stream's own topic."""
    with RunningFederation(tmp_path, 2, "--overlay", "line") as federation, Client(federation.port(0)) as reader:
        urls = [f"mqtt://127.0.0.1:{federation.port(k)}" for k in (0, 1)]
        is_seen, is_over, came = threading.Event(), threading.Event(), threading.Event()

        def take(_client: object, _data: object, message: paho.MQTTMessage) -> None:
            reader.messages.append(message)
            if message.payload == b"last":
                came.set()

        reader.client.on_message = take

        def turn() -> None:
            while not is_over.is_set() and not is_seen.is_set():
                if uses_lane(federation, 1):
                    is_seen.set()
                    for wanted in ("other/#", "load/+/more", "load/#"):
                        reader.subscribe(wanted)
                time.sleep(0.01)

        for _ in range(ROUNDS):
            is_over.clear()
            watcher = threading.Thread(target=turn)
            watcher.start()
            try:
                result = asyncio.run(load.throughput(*urls, count=MESSAGES))
            finally:
                is_over.set()
                watcher.join()
            assert result.is_clean, result
            if is_seen.is_set():
                break
        assert is_seen.is_set(), "the lane was never used"
        eventually(lambda: not uses_lane(federation, 1), "the lane is left")
        # A message that came back from 1 would reach the client at 0 for the second time, and before this one.
        with Client(federation.port(1)) as last:
            last.publish("load/last", b"last", 0)
        wait_while_more_comes(reader, came)
        assert len({message.payload for message in reader.messages}) == len(reader.messages)
