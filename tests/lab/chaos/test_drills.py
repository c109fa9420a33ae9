"""The drills: in full where that takes minutes, and their calculations without processes."""

import asyncio
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hanse.lab.chaos.ground import Ground, Place
from hanse.lab.chaos.history import Seen, Sent
from hanse.lab.chaos.outage import OutageSettings, latencies_ms, percentile, run_outage
from hanse.lab.chaos.pages import Page, changes, drops, parse, processor_s, resident_bytes
from hanse.lab.chaos.retained import RetainedDrill, run_retained
from hanse.lab.chaos.storm import StormSettings, recovery_s, run_storm
from hanse.lab.chaos.topics import TopicsSettings, run_topics
from hanse.lab.chaos.watch import Samples, Watch, disk_bytes


def test_percentiles_are_measured_values() -> None:
    assert percentile([float(n) for n in range(1, 101)], 99) == 99
    assert percentile([1.0], 99) == 1
    assert math.isnan(percentile([], 50))


def trickle(slow_until_s: float) -> tuple[Sent, Seen]:
    """Return 100 messages per second for 60 s: a storm from 10 to 20 s, and a latency of 1 s until a given time."""
    sent, seen = Sent(0, (1,), 6_000), Seen(1, 6_000)
    sent.count = 6_000
    for number in range(6_000):
        sent.sent_s[number] = sent.acked_s[number] = 1_000 + number / 100
        late_s = 1.0 if 10 <= number / 100 < slow_until_s else 0.002
        seen.take(number, sent.sent_s[number] + late_s)
    return sent, seen


def test_recovery_is_the_time_from_which_latency_is_as_before() -> None:
    assert recovery_s(*trickle(20.0), 1_000, 1_010, 1_020) == 0
    assert recovery_s(*trickle(25.5), 1_000, 1_010, 1_020) == 6
    assert recovery_s(*trickle(60.0), 1_000, 1_010, 1_020) is None
    sent, seen = trickle(20.0)
    assert recovery_s(sent, seen, 1_000, 1_010, 1_060) is None
    assert latencies_ms(sent, seen, 1_010, 1_010.05)[-1] == pytest.approx(1_000)


def test_a_prometheus_page_is_parsed_and_compared() -> None:
    text = (
        "# HELP hanse_federator_groups Groups known.\n"
        "hanse_federator_groups 3\n"
        'hanse_federator_dropped_total{reason="link_full"} 7\n'
        'hanse_federator_hop_seconds_bucket{le="+Inf"} 5\n'
    )
    found = parse(text)
    assert found == {"hanse_federator_groups": 3.0, 'hanse_federator_dropped_total{reason="link_full"}': 7.0}
    before, after = Page(1, {**found, "hanse_federator_groups": 1.0}, 5), Page(1, found, 9)
    assert changes(before, after) == {"hanse_federator_groups": 2.0}
    assert drops([before], [after]) == {"broker 0": 4}
    # A restart resets the counters, so all of their values are new. The same holds for a broker.
    again = Page(2, {**found, 'hanse_federator_dropped_total{reason="control_link_full"}': 3.0}, 2)
    assert drops([before], [again]) == {"federator 0: link_full": 7, "broker 0": 2}
    assert drops([before], [None]) == {}
    waiting = {"hanse_federator_parked_bytes": 9.0, "hanse_federator_outbox_bytes": 0.0, "hanse_federator_epoch": 1.0}
    assert Page(1, waiting).under_way == {"hanse_federator_parked_bytes": 9.0}


def test_memory_and_processor_are_those_of_the_process() -> None:
    assert (resident_bytes(os.getpid()) or 0) > 1_000_000
    assert (processor_s(os.getpid()) or 0) > 0
    assert resident_bytes(2**22 + 1) is None
    assert processor_s(2**22 + 1) is None


def test_the_highest_memory_is_that_of_the_requested_time() -> None:
    samples = Samples([1, 2, 3, 4], [10, 50, None, 20], [], [])
    assert samples.highest_mb(2.5, 5) == 20
    assert samples.highest_mb(0, 5) == 50
    assert samples.highest_mb(2.5, 3.5) == 0


def test_a_state_directory_is_measured_without_its_log(tmp_path: Path) -> None:
    (tmp_path / "outbox").mkdir()
    (tmp_path / "outbox" / "1_0.log").write_bytes(b"x" * 100_000)
    before = disk_bytes(tmp_path)
    assert before >= 100_000
    (tmp_path / "output.log").write_bytes(b"x" * 1_000_000)
    assert disk_bytes(tmp_path) == before


def test_a_watch_sees_memory_disks_and_gauges_before_and_after_the_block(tmp_path: Path) -> None:
    gauge = [0]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\n\r\nhanse_federator_outbox_bytes {gauge[0]}\n".encode())
        writer.close()

    async def scenario() -> list[Samples]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        pids = [os.getpid(), None]
        directories = [tmp_path / "0", tmp_path / "1"]
        for directory in directories:
            directory.mkdir()
        places = [Place(0, 1, "", url), Place(1, 2, "", "http://127.0.0.1:1")]
        ground = cast("Ground", SimpleNamespace(places=places, pid=lambda _, site: pids[site]))
        async with server, Watch(ground, directories) as watch:
            await asyncio.sleep(0.05)
            gauge[0] = 7
            (directories[0] / "outbox.log").write_bytes(b"x" * 100_000)
        return watch.sites

    here, away = asyncio.run(scenario())
    assert here.outbox == [0.0, 7.0]
    assert here.disk_mb[0] < 0.1 <= here.disk_mb[-1]
    assert here.highest_mb(0, math.inf) > 10
    assert away.outbox == [None, None]
    assert away.resident_mb == [None] * len(away.at_s)


def check(found: dict[str, object]) -> None:
    held = found["held"]
    assert isinstance(held, dict)
    assert all(held.values()), found


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_100_000_topics_and_10_000_subscriptions_at_one_broker(tmp_path: Path) -> None:
    check(asyncio.run(run_topics(tmp_path, TopicsSettings())))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_a_neighbour_away_for_five_minutes_at_1_000_messages_a_second(tmp_path: Path) -> None:
    check(asyncio.run(run_outage(tmp_path, OutageSettings())))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_200_retained_topics_converge_through_kills_a_partition_and_a_restored_backup(tmp_path: Path) -> None:
    check(asyncio.run(run_retained(tmp_path, RetainedDrill())))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_storm_at_ten_times_capacity_for_a_minute(tmp_path: Path) -> None:
    check(asyncio.run(run_storm(tmp_path, StormSettings())))
