"""Measure QoS 1 messages/s from a broker into the spool, each acknowledged after the sync, and counted there. JSON out.

For comparison, the same rounds send the same messages to a client that acknowledges at once and stores nothing. This
shows what broker and client can do without a disk. The time runs from the first received message to the last
acknowledged one.
"""
# ruff: noqa: E402, ASYNC110 - it borrows the tests' broker, and looks at counters that nobody signals

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from bench_spool import spread
from tests.brokers import Mosquitto
from tests.pipeline.publishing import publish_packets

from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.subscriptions import Subscription
from hanse.pipeline.collector import Collector
from hanse.pipeline.collector_settings import CollectorSettings
from hanse.pipeline.spool import SpoolReader

BROKER = ("max_inflight_messages 65535", "max_queued_messages 0", "max_queued_bytes 0")


async def collected(broker: Mosquitto, spool: str, count: int) -> float:
    """Return messages/s into the spool."""
    collector = Collector(CollectorSettings(url=broker.url, topics=("b/#",), spool=spool, client_id="bench"))
    task = asyncio.create_task(collector.run())
    while collector.status.state != "collecting":
        await asyncio.sleep(0.01)
    publisher = await publishing(broker, count)
    while not collector.status.received:
        await asyncio.sleep(0.001)
    began = time.perf_counter()
    while collector.status.acknowledged < count:
        await asyncio.sleep(0.005)
    took = time.perf_counter() - began
    await publisher.wait()
    collector.stop()
    await task
    assert SpoolReader(spool, "bench").tail().rows == count
    return count / took


class _Sink(ClientHandler):
    def __init__(self) -> None:
        self.received = 0
        self.is_subscribed = False

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.is_subscribed = bool(answers)

    def on_publications(self, publications: list[Publication]) -> None:
        self.received += len(publications)


async def received(broker: Mosquitto, count: int) -> float:
    """Return messages/s without a spool."""
    sink = _Sink()
    client = Client(ClientSettings(url=broker.url, client_id="plain", auto_ack=True), sink)
    client.subscribe([Subscription("b/#", qos=1, no_local=False)])
    await client.start(must_connect=True)
    while not sink.is_subscribed:
        await asyncio.sleep(0.01)
    publisher = await publishing(broker, count)
    while not sink.received:
        await asyncio.sleep(0.001)
    began = time.perf_counter()
    while sink.received < count:
        await asyncio.sleep(0.005)
    took = time.perf_counter() - began
    await publisher.wait()
    await client.stop()
    return count / took


async def publishing(broker: Mosquitto, count: int) -> asyncio.subprocess.Process:
    """Run a publisher in a process of its own, so that the collector has its loop to itself."""
    return await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--publish", broker.url, "--messages", str(count)
    )


def packets_of(count: int) -> list[bytes]:
    return [encode(f"b/{n % 50}", b"%010d" % n + b"x" * 190, qos=1) for n in range(count)]


async def run(messages: int, rounds: int) -> dict[str, object]:
    figures: dict[str, list[float]] = {"spool": [], "none": []}
    for n in range(rounds):
        for name in sorted(figures, reverse=bool(n % 2)):
            with Mosquitto(*BROKER) as broker, tempfile.TemporaryDirectory() as folder:
                rate = await (collected(broker, folder, messages) if name == "spool" else received(broker, messages))
                figures[name].append(rate)
    return {
        "messages": messages,
        "payload_bytes": 200,
        "rounds": rounds,
        "collected_per_s": spread(figures["spool"]),
        "received_without_spool_per_s": spread(figures["none"]),
        "ratio": spread([ours / theirs for ours, theirs in zip(figures["spool"], figures["none"], strict=True)]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish:
        asyncio.run(publish_packets(given.publish, packets_of(given.messages)))
    else:
        print(json.dumps(asyncio.run(run(given.messages, given.rounds)), indent=2))
