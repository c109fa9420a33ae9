"""Small runs against a real broker, without assertions about speed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanse.cli import build
from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.load import Load, latency, run, throughput
from hanse.local import mosquitto, ports
from hanse.local.client import Connection, broker_answers
from hanse.local.processes import ProcessSettings, SupervisedProcess

pytestmark = pytest.mark.processes
DEADLINE_S = 30


@asynccontextmanager
async def broker(tmp_path: Path, *extra: str) -> AsyncIterator[str]:
    port = ports.free(1)[0]
    url = f"mqtt://127.0.0.1:{port}"
    conf = mosquitto.BrokerSettings(port, tmp_path, persistence=False, extra=extra)
    one = SupervisedProcess("broker", mosquitto.command(conf), tmp_path / "o.log", ProcessSettings(restarts=False))
    await one.start()
    try:
        await one.wait_ready(lambda: broker_answers(url), DEADLINE_S)
        yield url
    finally:
        await one.stop()


@pytest.mark.parametrize(("qos", "count"), [(0, 20_000), (1, 5_000), (2, 1_000)])
def test_at_full_speed_everything_arrives_once_and_in_order(tmp_path: Path, qos: int, count: int) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:
            result = await throughput(url, url, count=count, qos=qos, settle_s=0, warm_up=100)
            assert result.is_clean
            assert (result.published, result.received, result.expected) == (count, count, count)
            assert result.acknowledged == (count if qos else 0)
            assert result.latency.count == count - 100
            assert 0 < result.latency.p50_ms <= result.latency.p99_ms <= result.latency.max_ms
            assert result.receive_rate_per_s > 0

    asyncio.run(go())


def test_on_a_schedule_the_rate_is_kept(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:
            result = await latency(url, url, count=300, rate_per_s=1_000, qos=1, settle_s=0)
            assert result.is_clean
            assert result.latency.count == 270
            assert result.publish_s >= 0.298  # never faster than requested
            assert result.send_lag_ms_p99 >= 0

    asyncio.run(go())


@pytest.mark.slow
def test_many_publishers_topics_subscribers_and_processes(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:
            told: list[tuple[int, int]] = []
            plan = Load(
                (url,),
                (url,),
                publishers=5,
                subscribers=3,
                count=400,
                qos=1,
                topics=7,
                rate_per_s=4_000,
                settle_s=0,
                topic="l/{publisher}/x{topic}",
                verify=True,
                processes=2,
                size_bytes=300,
                window=20,
            )
            result = await run(plan, lambda sent, received: told.append((sent, received)))
            assert result.is_clean
            assert (result.published, result.expected, result.received) == (2_000, 6_000, 6_000)
            assert all(sent <= 2_000 and received <= 6_000 for sent, received in told)

    asyncio.run(go())


@pytest.mark.slow
def test_payloads_of_any_size_down_to_the_stamp(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:
            for size, count in ((24, 2_000), (1024 * 1024, 10)):
                result = await throughput(url, url, count=count, size_bytes=size, qos=1, settle_s=0)
                assert result.is_clean
                assert result.received == count

    asyncio.run(go())


def test_only_messages_that_do_not_arrive_are_lost(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:
            # No subscription matches the second publisher's messages.
            plan = Load((url,), (url,), publishers=2, count=500, qos=1, settle_s=0, idle_s=0.3, filter="load/0")
            result = await run(plan)
            assert (result.published, result.acknowledged) == (1_000, 1_000)
            assert (result.received, result.lost, result.expected) == (500, 500, 1_000)
            assert not result.is_clean

    asyncio.run(go())


def test_the_brokers_receive_maximum_bounds_the_window(tmp_path: Path) -> None:
    async def go() -> None:
        # With more than two unacknowledged, this broker would end the connection.
        async with broker(tmp_path, "max_inflight_messages 2", "max_queued_messages 10") as url:
            result = await throughput(url, url, count=500, qos=1, settle_s=0, window=1_000)
            assert result.is_clean

    asyncio.run(go())


def test_messages_of_another_run_are_foreign(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:

            async def disturb() -> None:
                async with Connection(url) as connection:
                    while True:
                        await connection.publish("load/0", bytes(64), qos=1)
                        await asyncio.sleep(0.01)

            other = asyncio.create_task(disturb())
            # The disturbance never ends. The run ends when no new message of its own has arrived for a while.
            result = await latency(url, url, count=500, rate_per_s=500, warm_up=0, settle_s=0)
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
            assert result.foreign > 0
            assert (result.lost, result.duplicates, result.received) == (0, 0, 500)

    asyncio.run(go())


def test_without_subscribers_only_the_publishing_is_measured(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:
            result = await run(Load((url,), (url,), subscribers=0, count=5_000, settle_s=0))
            assert (result.published, result.expected, result.received) == (5_000, 0, 0)

    asyncio.run(go())


def test_an_absent_broker_and_a_refused_login_are_one_sentence_each(tmp_path: Path) -> None:
    async def go() -> None:
        nobody = f"mqtt://127.0.0.1:{ports.free(1)[0]}"
        with pytest.raises(Unavailable, match="No broker answers at"):
            await throughput(nobody, nobody, count=10)
        (tmp_path / "passwords").write_text("")
        async with broker(tmp_path, f"password_file {tmp_path / 'passwords'}") as url:
            guest = url.replace("//", "//guest:wrong@")
            with pytest.raises(RemoteError, match="refused the connection"):
                await throughput(guest, guest, count=10)

    asyncio.run(go())


def test_a_broker_that_dies_ends_the_run(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:
            going = asyncio.create_task(run(Load((url,), (url,), count=100_000, rate_per_s=1_000, settle_s=0)))
            async with Connection(url) as connection:
                await connection.subscribe(["load/#"])
                async for _ in connection.messages():
                    break
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(Unavailable, match=r"closed the connection|broke|ended the connection"):
                await going

    asyncio.run(go())


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker(tmp_path) as url:
            words = ["load", "--publish-at", url, "--subscribe-at", url, "--count", "500", "--settle-s", "0"]
            runner, app = CliRunner(), build(["load"])
            shown = await asyncio.to_thread(runner.invoke, app, words)
            assert shown.exit_code == 0, shown.output
            assert "out of order" in shown.output
            result = await asyncio.to_thread(runner.invoke, app, [*words, "--json", "--interval-ms", "0.5"])
            assert json.loads(result.stdout)["received"] == 500
            wrong = await asyncio.to_thread(runner.invoke, app, [*words, "--rate", "1", "--interval-ms", "1"])
            assert isinstance(wrong.exception, LocalError)

    asyncio.run(go())
