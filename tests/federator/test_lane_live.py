"""The lane in a federation of real processes."""

import asyncio
import threading
import urllib.request
from pathlib import Path

import pytest
from tests.federation import Client, RunningFederation, eventually

from hanse import load

pytestmark = pytest.mark.processes


def uses_lane(federation: RunningFederation, k: int) -> bool:
    url = f"{federation.state['federators'][k]['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=5) as page:
        return b"\nhanse_federator_host_lane 1" in page.read()


def test_a_stream_goes_by_the_lane_and_comes_once_in_order_also_when_interest_turns(tmp_path: Path) -> None:
    """In the middle of a stream from 0 to 1 someone at 0 wants what is published at 1, the stream's own topic."""
    with RunningFederation(tmp_path, 2, "--overlay", "line") as federation, Client(federation.port(0)) as reader:
        seen: list[bool] = []
        is_over = threading.Event()

        def turn() -> None:
            while not is_over.is_set():
                seen.append(uses_lane(federation, 1))
                if seen[-1]:
                    reader.subscribe("other/#")
                    reader.subscribe("load/+/more")
                    reader.subscribe("load/#")
                    return
                is_over.wait(0.05)

        watcher = threading.Thread(target=turn)
        watcher.start()
        urls = [f"mqtt://127.0.0.1:{federation.port(k)}" for k in (0, 1)]
        try:
            result = asyncio.run(load.throughput(*urls, count=300_000, warm_up=1_000))
        finally:
            is_over.set()
            watcher.join()
        assert result.is_clean, result
        assert any(seen), "the lane was never used"
        eventually(lambda: not uses_lane(federation, 1), "the lane is left")
