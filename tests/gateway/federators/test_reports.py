"""Reports of a worker to a federator, against a real listener."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.client.stories import run, until

from hanse.errors import RemoteError, Unavailable
from hanse.federator.gateways import GatewayPeer, Gateways
from hanse.gateway.federators import FederatorConnection, FederatorLogin, Held, Reporter, reports
from hanse.request_channel import Answer, Endpoint, Request


class Federator:
    """A listener that keeps the reported rows."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.requests = 0
        self.is_taken = True
        self.fails = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.gateways = Gateways(1)
        self.gateways.offer("interest", self._interest)

    async def _interest(self, _peer: GatewayPeer, request: Request) -> Answer:
        self.requests += 1
        await self.may_answer.wait()
        if self.fails:
            self.fails -= 1
            raise RemoteError("not now")
        if request.fields.get("snapshot"):
            self.said.append(request.fields["snapshot"])
        self.said += request.fields["rows"]
        return Answer({"taken": self.is_taken})

    async def reporter(self) -> tuple[Reporter, Counter[str]]:
        counters: Counter[str] = Counter()
        endpoint = await self.gateways.listen(Endpoint("127.0.0.1", 0))
        connection = FederatorConnection(
            endpoint,
            FederatorLogin("g", "i"),
            on_open=lambda _: reporter.opened(),
            on_lost=lambda _: reporter.lost(),
        )
        reporter = Reporter(connection, counters, lambda: 5.0)
        return reporter, counters


def held(name: str, *filters: str) -> Held:
    one = Held(object(), name, is_complete=True, expiry_s=0)
    one.filters = dict.fromkeys(filters, (1, 3.0))
    return one


async def stop(federator: Federator, reporter: Reporter) -> None:
    await reporter.stop()
    await reporter.connection.stop()
    await federator.gateways.stop()


def test_snapshot_comes_first_and_changes_follow_in_order() -> None:
    async def story() -> None:
        federator = Federator()
        reporter, counters = await federator.reporter()
        early, late = held("early", "a", "$SYS/#", "$share/g/b"), held("late", "c")
        reporter.here(early)
        reporter.connection.start()
        await until(lambda: federator.said[-1:] == ["end"], "the snapshot")
        assert federator.said == [
            "begin",
            ["here", "early", True, 0],
            ["subscribed", "early", "a", 1, 2000],
            ["subscribed", "early", "$share/g/b", 1, 2000],
            "end",
        ]
        federator.said.clear()
        reporter.here(late)
        reporter.unsubscribed(early, ["a"])
        reporter.left(late)
        await reporter.flushed()
        assert federator.said == [
            ["here", "late", True, 0],
            ["subscribed", "late", "c", 1, 2000],
            ["unsubscribed", "early", "a"],
            ["left", "late", 0],
        ]
        assert counters["interest_snapshots"] == 1
        await stop(federator, reporter)

    run(story)


def test_older_connection_of_a_client_does_not_end_the_newer_one() -> None:
    async def story() -> None:
        federator = Federator()
        reporter, _ = await federator.reporter()
        older, newer = held("c", "a"), held("c", "b")
        reporter.here(older)
        reporter.here(newer)
        reporter.left(older)
        reporter.connection.start()
        await until(lambda: federator.said[-1:] == ["end"], "the snapshot")
        assert ["subscribed", "c", "b", 1, 2000] in federator.said
        assert not [row for row in federator.said if row[0] == "left" or row[2:3] == ["a"]]
        await stop(federator, reporter)

    run(story)


def test_federator_that_is_too_slow_gets_a_snapshot_in_place_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "WAITING_MAX", 10)

    async def story() -> None:
        federator = Federator()
        reporter, counters = await federator.reporter()
        reporter.connection.start()
        await until(lambda: federator.said == ["begin", "end"], "the empty snapshot")
        federator.may_answer.clear()
        for number in range(30):
            reporter.here(held(str(number), "a"))
            await asyncio.sleep(0.001)
        federator.may_answer.set()
        await reporter.flushed()
        assert counters["interest_overflows"] >= 1
        assert counters["interest_snapshots"] == 2
        at = len(federator.said) - federator.said[::-1].index("begin")
        named = {row[1] for row in federator.said[at:] if row[0] == "here"}
        assert named == {str(number) for number in range(30)}
        await stop(federator, reporter)

    run(story)


def test_failed_request_is_followed_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REFUSED_PAUSE_S", 0.05)

    async def story() -> None:
        federator = Federator()
        reporter, counters = await federator.reporter()
        reporter.connection.start()
        await until(lambda: federator.said == ["begin", "end"], "the empty snapshot")
        federator.fails = 1
        reporter.here(held("c", "a"))
        await until(lambda: federator.said[-1:] == ["end"] and len(federator.said) > 2, "the next snapshot")
        assert ["subscribed", "c", "a", 1, 2000] in federator.said
        assert counters["interest_failures"] == 1
        await stop(federator, reporter)

    run(story)


def test_federator_with_another_source_of_interest_gets_no_more_rows() -> None:
    async def story() -> None:
        federator = Federator()
        federator.is_taken = False
        reporter, _ = await federator.reporter()
        reporter.connection.start()
        await until(lambda: not reporter.is_taken, "its answer")
        asked = federator.requests
        reporter.here(held("c", "a"))
        await reporter.flushed()
        await asyncio.sleep(0.05)
        assert federator.requests == asked
        await stop(federator, reporter)

    run(story)


def test_flush_without_a_connection_is_unavailable() -> None:
    async def story() -> None:
        federator = Federator()
        reporter, _ = await federator.reporter()
        reporter.here(held("c", "a"))
        with pytest.raises(Unavailable, match="no connection"):
            await reporter.flushed()
        await stop(federator, reporter)

    run(story)


def test_rows_are_cut_into_requests_by_count_and_by_size() -> None:
    rows: list[list[Any]] = [["subscribed", "c", "x" * 300_000, 1, 0] for _ in range(10)]
    assert [len(part) for part in reports.parts(rows)] == [3, 3, 3, 1]
    rows = [["left", str(number), 0] for number in range(2_500)]
    assert [len(part) for part in reports.parts(rows)] == [1_000, 1_000, 500]
