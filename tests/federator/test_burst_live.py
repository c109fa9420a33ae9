"""A client that subscribes to 20,000 filters at once: links and pages do not wait for it."""

import threading
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from tests.brokers import Mosquitto
from tests.federation import eventually
from tests.federators import LOG_LINES, Federator, ring, running

pytestmark = [pytest.mark.processes, pytest.mark.slow]
MANY = 20_000
# The neighbour declares the link dead after 5 s without a sign. Without slices, pages took more than 10 s.
LONGEST_S = 4.0


def metric(federator: Federator, name: str) -> float:
    line = next(line for line in federator.metrics().splitlines() if line.startswith(f"hanse_federator_{name} "))
    return float(line.split()[1])


class Visitor:
    """Visitor that asks a federator for its metrics again and again, and notes the longest time that it took."""

    def __init__(self, federator: Federator) -> None:
        self.longest_s = 0.0
        self._federator = federator
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._ask_again)
        self._thread.start()

    def _ask_again(self) -> None:
        while not self._is_done.wait(0.05):
            begun = time.monotonic()
            self._federator.metrics()
            self.longest_s = max(self.longest_s, time.monotonic() - begun)

    def leave(self) -> None:
        self._is_done.set()
        self._thread.join()


def test_pages_answer_and_no_neighbour_is_lost_during_twenty_thousand_subscriptions(tmp_path: Path) -> None:
    lines = (*LOG_LINES, "max_inflight_messages 20000", "max_queued_messages 100000")
    with (
        Mosquitto(*lines, quiet=True) as one,
        Mosquitto(*lines, quiet=True) as two,
        running(ring([one, two], tmp_path)) as federators,
    ):
        visitors = [Visitor(federator) for federator in federators]
        client = paho.Client(CallbackAPIVersion.VERSION2, "many", protocol=MQTTProtocolVersion.MQTTv5)
        try:
            client.connect("127.0.0.1", one.port)
            client.loop_start()
            eventually(client.is_connected, "the client is connected")
            for k in range(0, MANY, 500):
                client.subscribe([(f"many/{k + n}", 1) for n in range(500)])
            eventually(lambda: metric(federators[1], "groups") >= MANY, "all filters are known elsewhere")
            client.disconnect()
            eventually(lambda: metric(federators[0], "filters") == 0, "all are gone")
        finally:
            client.loop_stop()
            for visitor in visitors:
                visitor.leave()
        assert max(visitor.longest_s for visitor in visitors) < LONGEST_S
        for federator in federators:
            assert "neighbour_lost" not in federator.log
            assert len(federator.log.splitlines()) < 200
