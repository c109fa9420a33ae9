"""20,000 messages/s while overlapping filters come and go at distant brokers: nothing is lost, nothing duplicated."""

import asyncio
import socket
import threading
import time
from pathlib import Path

import pytest
from mqtt5 import ConnectPacket, QoS, SubscribePacket, TopicFilter, UnsubscribePacket
from tests.federation import RunningFederation, eventually

from hanse.load.plan import Load
from hanse.load.run import run

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SECONDS = 10
FILTERS = ("churn/#", "churn/+", "+/0", "#")


class Restless:
    """Client that changes its subscriptions without end, and discards arrivals unread.

    To read 20,000 messages per second in a client like paho takes most of a processor, of the two that all share.
    """

    def __init__(self, port: int, name: str) -> None:
        self._wire = socket.create_connection(("127.0.0.1", port), timeout=5.0)
        self._wire.sendall(ConnectPacket(name, clean_start=True, keep_alive=0).write())
        assert self._wire.recv(2)[0] == 0x20, "CONNACK was expected"

    def close(self) -> None:
        self._wire.close()

    def change(self, wanted: str) -> None:
        """Want a filter for a moment, and then not for a moment."""
        self._wire.sendall(SubscribePacket(1, [TopicFilter(wanted, max_qos=QoS.AT_MOST_ONCE)]).write())
        self._discard(0.05)
        self._wire.sendall(UnsubscribePacket(2, [wanted]).write())
        self._discard(0.05)

    def _discard(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._wire.settimeout(left_s)
            try:
                assert self._wire.recv(1 << 20), "the broker closed the connection"
            except TimeoutError:
                return


@pytest.mark.parametrize(
    ("qos", "rate_per_s", "is_ordered"),
    [
        (0, 20_000, True),
        # More than two processors can handle with all that runs here (some 16,000). Messages that wait for seconds in
        # one route's backlog may be overtaken when a filter opens another route.
        (1, 20_000, False),
        (1, 10_000, True),
    ],
)
def test_filters_that_come_and_go_at_20000_per_second_lose_and_duplicate_nothing(
    tmp_path: Path, qos: int, rate_per_s: int, is_ordered: bool
) -> None:
    stop = threading.Event()
    switches = 0

    def disturb(port: int, first: int) -> None:
        nonlocal switches
        client = Restless(port, f"restless-{first}")
        number = first
        while not stop.is_set():
            client.change(FILTERS[number % len(FILTERS)])
            number += 1
            switches += 1
        client.close()

    # A ring from the start: a manager would turn a line into one meanwhile, and a shorter route would open without a
    # filter.
    with RunningFederation(tmp_path, 3, "--overlay", "ring") as federation:
        load = Load(
            publish_urls=(f"mqtt://127.0.0.1:{federation.port(0)}",),
            subscribe_urls=(f"mqtt://127.0.0.1:{federation.port(2)}",),
            count=rate_per_s * SECONDS,
            rate_per_s=rate_per_s,
            qos=qos,
            topic="churn/{publisher}",
            filter="churn/0",
            settle_s=5.0,
        )
        # One at the broker of the load's subscribers, one at the broker between.
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
    assert (result.lost, result.duplicates, result.corrupted) == (0, 0, 0), (result, drops)
    assert not is_ordered or result.reordered == 0, (result, drops)
