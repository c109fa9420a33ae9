"""The kill drill: collector and driver are killed with -9 at random times while numbered messages are published.

Afterwards bronze holds every acknowledged message exactly once: the counts per payload match, and one message in ten
equals its predecessor byte for byte, including its number.
"""

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.brokers import Mosquitto
from tests.pipeline.publishing import publish_packets, wait_for

from hanse.mqtt.publication import encode
from hanse.pipeline.collector_status import read_status
from hanse.pipeline.spool import SpoolReader
from hanse.pipeline.tables import bronze

pytestmark = [pytest.mark.processes, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
HANSE = [sys.executable, "-c", "from hanse.cli import main; main()"]
# Spark starts in ten seconds, or in minutes on a busy machine. This test does not measure time.
DEADLINE_S = 900.0
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}


class Killable:
    """One of the two processes of the drill."""

    def __init__(self, log: Path, *words: str) -> None:
        self._words = words
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([*HANSE, *self._words], stdout=log, stderr=log, env=ENVIRONMENT)

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self._log.read_text()[-2000:]
        self.process.kill()
        self.process.wait()
        self.kills += 1

    def is_dead(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def drill(tmp_path: Path, *, messages: int, collector_kills: int, driver_kills: int, per_s: float, seed: int) -> None:
    chance = random.Random(seed)
    payloads = [str(n - 1 if n % 10 == 9 else n).encode() for n in range(messages)]
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    with Mosquitto("max_queued_messages 0", "max_inflight_messages 20000") as broker:
        collector = Killable(
            tmp_path / "collector.log",
            *("collect", "--url", broker.url, "--topics", "t/#", "--spool", str(spool), "--client-id", "c"),
        )
        driver = Killable(
            tmp_path / "driver.log",
            *("pipeline", "run", "--spool", str(spool), "--warehouse", str(lake), "--trigger", "500ms"),
            *("--option", "maxRowsPerBatch=5000"),
        )
        acknowledged: list[int] = []
        packets = [encode("t/x", payload, qos=1) for payload in payloads]
        publisher = threading.Thread(
            target=lambda: acknowledged.append(asyncio.run(publish_packets(broker.url, packets, per_s=per_s)))
        )
        try:
            collector.start()
            wait_for(
                "collecting", lambda: (found := read_status(spool, "c")) is not None and found.state == "collecting"
            )
            driver.start()
            wait_for("the first batch", lambda: (lake / "bronze_mqtt").exists() or _has_begun(lake), DEADLINE_S)
            publisher.start()
            victims = [collector] * collector_kills + [driver] * driver_kills
            chance.shuffle(victims)
            for victim in victims:
                # Let it start first: killing a process that has done nothing yet tests nothing.
                time.sleep(chance.uniform(0.5, 2.0))
                if victim is driver:
                    wait_for_a_batch(lake, driver)
                victim.kill()
                victim.start()
            publisher.join(DEADLINE_S)
            assert acknowledged == [messages]
            wait_for("all rows in the spool", lambda: SpoolReader(spool, "c").tail().rows >= messages, DEADLINE_S)
            wait_for("all rows in bronze", lambda: bronze(lake).rows() >= messages, DEADLINE_S)
        finally:
            collector.end()
            driver.end()
    assert (collector.kills, driver.kills) == (collector_kills, driver_kills)
    rows = DeltaTable(str(lake / "bronze_mqtt")).to_pyarrow_table(columns=["seq", "payload"])
    assert sorted(rows.column("seq").to_pylist()) == list(range(messages))
    assert Counter(rows.column("payload").to_pylist()) == Counter(payloads)


def wait_for_a_batch(lake: Path, driver: Killable) -> None:
    before = bronze(lake).rows()
    # If the driver ends by itself, `kill` reports it, with its log.
    wait_for("a batch of this driver", lambda: bronze(lake).rows() > before or driver.is_dead(), DEADLINE_S)


def _has_begun(lake: Path) -> bool:
    return (lake / "checkpoints" / "bronze_mqtt" / "metadata").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_kills_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    drill(tmp_path, messages=20_000, collector_kills=2, driver_kills=1, per_s=2500, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twelve_kills_in_200_000_messages_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    drill(tmp_path, messages=200_000, collector_kills=8, driver_kills=4, per_s=2500, seed=6)
