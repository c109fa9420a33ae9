"""20,000 messages a second while overlapping filters come and go at far brokers: nothing lost, nothing twice."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.federation import Client, RunningFederation, eventually

from hanse.load.plan import Load
from hanse.load.run import run

pytestmark = [pytest.mark.processes, pytest.mark.slow]

RATE_PER_S = 20_000
SECONDS = 10
FILTERS = ("churn/#", "churn/+", "+/0", "#")


@pytest.mark.parametrize("qos", [0, 1])
def test_filters_that_come_and_go_at_20000_a_second_lose_and_double_nothing(tmp_path: Path, qos: int) -> None:
    stop = threading.Event()
    switches = 0

    def disturb(port: int, first: int) -> None:
        """Subscribe and unsubscribe without end; what arrives here is not of interest."""
        nonlocal switches
        with Client(port) as client:
            client.client.on_message = None
            number = first
            while not stop.wait(0.05):
                wanted = FILTERS[number % len(FILTERS)]
                client.subscribe(wanted, 0)
                stop.wait(0.05)
                client.client.unsubscribe(wanted)
                number += 1
                switches += 1

    with RunningFederation(tmp_path, 3, "--overlay", "line") as federation:
        load = Load(
            publish_urls=(f"mqtt://127.0.0.1:{federation.port(0)}",),
            subscribe_urls=(f"mqtt://127.0.0.1:{federation.port(2)}",),
            count=RATE_PER_S * SECONDS,
            rate_per_s=RATE_PER_S,
            qos=qos,
            topic="churn/{publisher}",
            filter="churn/0",
            settle_s=2.0,
        )
        # One at the broker that the load subscribes at, one at the broker between.
        threads = [threading.Thread(target=disturb, args=(federation.port(k), k)) for k in (1, 2)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: federation.knows("churn/#") or switches > 0, "the filters have begun to change")
            result = asyncio.run(run(load))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        drops = {k: federation.counters(k) for k in range(3)}
    assert switches > 20
    assert (result.lost, result.duplicates, result.reordered, result.corrupted) == (0, 0, 0, 0), (result, drops)
