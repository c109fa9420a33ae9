import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.topology.simulated import Running, running

from hanse.federator.words import probe_answer
from hanse.telemetry.contracts import HealthCheck
from hanse.telemetry.encoding import decode
from hanse.topology.checks import ANSWER_BYTES_MAX, CheckReporter, read_answer
from hanse.topology.health import Answer, Exchange, Observation, Outcome

KEYS = {1: "mqtt://10.0.0.1:1883", 2: "mqtt://10.0.0.2:1883"}


def told(reporter: CheckReporter) -> list[HealthCheck]:
    rows = []
    for topic, payload in reporter.flush():
        assert topic == f"$hanse/telemetry/v1/health/{reporter.reporter}"
        rows += decode(topic, payload)
    return [row for row in rows if isinstance(row, HealthCheck)]


def well(node: int, **more: object) -> Observation:
    exchange = Exchange(**{"sent_us": 10, "returned_us": 30, "answer": Answer("h1", 5_015, 5_017), **more})  # type: ignore[arg-type]
    return Observation(node, Outcome.WELL, 0.02, exchange=exchange)


def test_an_answered_probe_is_a_check_with_four_times_by_two_clocks() -> None:
    reporter = CheckReporter("m1", "h0")
    reporter.note([well(1)], KEYS)
    assert told(reporter) == [HealthCheck("1", "h0", "h1", 10, 5_015, 5_017, 30, True, None)]
    assert told(reporter) == []


def test_a_failed_check_names_the_host_that_answered_last_or_the_address() -> None:
    reporter = CheckReporter("m1", "h0")
    failed = Exchange(40)
    reporter.note([well(1)], KEYS)
    reporter.note(
        [
            Observation(1, Outcome.SILENT, 1.0, exchange=failed),
            Observation(2, Outcome.FAILED, exchange=failed),
        ],
        KEYS,
    )
    assert told(reporter)[1:] == [
        HealthCheck("1", "h0", "h1", 40, None, None, None, False, "federator"),
        HealthCheck("2", "h0", "10.0.0.2", 40, None, None, None, False, "broker"),
    ]


@pytest.mark.parametrize(
    "seen",
    [
        well(1, answer=None),
        well(1, returned_us=None),
        well(1, returned_us=9),
        Observation(1, Outcome.WELL, 1.0),
        Observation(1, Outcome.SILENT),
    ],
    ids=["no clock was reported", "the broker alone", "our clock was set back", "told by itself", "silent by itself"],
)
def test_an_incomplete_two_way_check_is_not_reported(seen: Observation) -> None:
    reporter = CheckReporter("m1", "h0")
    reporter.note([seen], KEYS)
    assert told(reporter) == []


def test_a_managers_name_is_turned_into_a_valid_topic_level() -> None:
    assert CheckReporter("Nord/1 #é").reporter == "manager-Nord_1___"


def test_the_answer_of_a_federator_is_parsed() -> None:
    assert read_answer(probe_answer("h1", 1_794_742_297_000_000)) == Answer(
        "h1", 1_794_742_297_000_000, 1_794_742_297_000_000
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        b"[]",
        b"\xff",
        b"[" * 1_000,
        b'{"host": "h", "received_us": 1}',
        b'{"host": "h", "received_us": 2, "answered_us": 1}',
        b'{"host": "h", "received_us": true, "answered_us": true}',
        b'{"host": "h", "received_us": 1.5, "answered_us": 2}',
        b'{"host": "h", "received_us": -1, "answered_us": 2}',
        b'{"host": "h", "received_us": 1, "answered_us": 99999999999999999999}',
        b'{"host": "", "received_us": 1, "answered_us": 2}',
        b'{"host": "a\\nb", "received_us": 1, "answered_us": 2}',
        b'{"host": 7, "received_us": 1, "answered_us": 2}',
        json.dumps({"host": "h" * 254, "received_us": 1, "answered_us": 2}).encode(),
        b'{"host": "h", "received_us": 1, "answered_us": 2}' + b" " * ANSWER_BYTES_MAX,
    ],
)
def test_a_malformed_answer_is_ignored(payload: bytes) -> None:
    assert read_answer(payload) is None


def rows_of(run: Running) -> dict[tuple[int, str], set[tuple[str, bool]]]:
    """Return the targets of reported checks by broker and topic, and whether they were healthy."""
    found: dict[tuple[int, str], set[tuple[str, bool]]] = {}
    for node, topic, payload in run.brokers.published:
        if topic.startswith("$hanse/telemetry/"):
            rows = [row for row in decode(topic, payload) if isinstance(row, HealthCheck)]
            found.setdefault((node, topic), set()).update((row.target, row.is_ok) for row in rows)
    return found


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - the manager's rounds set no event here
            await asyncio.sleep(0.01)


def test_a_round_is_reported_at_a_healthy_broker(tmp_path: Path) -> None:
    async def drive() -> None:
        async with running(tmp_path, health_interval_s=0.2) as run:
            run.brokers.down.add("mqtt://b0:1883")
            run.brokers.answer = Answer("far", 100, 101)
            for number in range(3):
                await run.join(number, probe="federator")
            where = (1, f"$hanse/telemetry/v1/health/manager-{run.manager.id}")
            await until(lambda: {("0", False), ("1", True), ("2", True)} <= rows_of(run).get(where, set()))
            assert ("0", True) not in rows_of(run)[where]
            assert run.manager.counters.checks_told
            assert not run.manager.counters.checks_not_told

    asyncio.run(drive())


def test_checks_wait_until_a_broker_is_healthy(tmp_path: Path) -> None:
    async def drive() -> None:
        async with running(tmp_path, health_interval_s=0.2) as run:
            run.brokers.down.add("mqtt://b0:1883")
            await run.join(0, probe="federator")
            await until(lambda: run.manager.counters.probe_failures >= 2 and run.manager.counters.health_rounds >= 2)
            assert rows_of(run) == {}
            run.brokers.answer = Answer("far", 100, 101)
            run.brokers.down.clear()
            await until(lambda: bool(rows_of(run)))
            assert next(iter(rows_of(run).values())) == {("0", False), ("0", True)}

    asyncio.run(drive())
