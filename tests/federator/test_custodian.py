"""Custody's disk: real files in a directory, and a list in the place of the protocol."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.federator import custodian as custodian_module
from hanse.federator.custodian import Custodian
from hanse.federator.outbox import Outbox
from hanse.mqtt.publication import encode, expiry_s
from hanse.protocol import codec
from hanse.protocol.effects import Discard, Fetch, Store
from hanse.protocol.events import Event, Fetched, Stored
from hanse.protocol.messages import BLOCKED, HOST, Run
from hanse.protocol.packets import split

DEADLINE_S = 20.0
NEIGHBOUR = 7


def run_of(first: int, *payloads: bytes, groups: tuple[str, ...] = ("a/#",), expiry: int | None = None) -> Run:
    packets = [encode("a/b", payload, qos=1, expiry_s=expiry) for payload in payloads]
    return Run(3, 50, first, len(packets), 1, 1, groups, b"".join(packets))


class Disk:
    """A custodian in a directory, and what it told."""

    def __init__(self, directory: Path, bytes_max: int = 1 << 24, overflow: str = "stop") -> None:
        self.directory = directory
        self.events: list[Event] = []
        self.counters: Counter[str] = Counter()
        self.custodian = Custodian(
            directory, bytes_max=bytes_max, overflow=overflow, step=self.events.append, counters=self.counters
        )

    def store(self, position: int, *runs: Run, way: int = NEIGHBOUR) -> None:
        """A record for each run."""
        self.custodian.store(Store(way, position, tuple((run,) for run in runs)))

    async def told(self, count: int = 1) -> list[Event]:
        """The next so many events."""
        await eventually(lambda: len(self.events) >= count)
        events, self.events[:] = self.events[:count], self.events[count:]
        return events

    async def fetch(self, start: int, end: int, way: int = NEIGHBOUR) -> Fetched:
        self.custodian.fetch(Fetch(way, start, end))
        (event,) = await self.told()
        assert isinstance(event, Fetched)
        return event


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.005)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def on_disk(directory: Path, steps: Callable[[Disk], Awaitable[None]], **options: int | str) -> None:
    async def all_steps() -> None:
        disk = Disk(directory, **options)  # type: ignore[arg-type]
        try:
            await steps(disk)
        finally:
            disk.custodian.stop()

    asyncio.run(all_steps())


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custodian_module, "RETRY_S", 0.02)
    monkeypatch.setattr(custodian_module, "TIDY_S", 0.02)


# --- writing and reading ---------------------------------------------------------------------------------------------


def test_stored_is_reported_after_a_commit_has_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed: list[int] = []
    commit = Outbox.commit

    def recorded(outbox: Outbox) -> None:
        commit(outbox)
        committed.append(outbox.pending_bytes)

    monkeypatch.setattr(Outbox, "commit", recorded)

    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, b"one"), run_of(1, b"two"))
        assert disk.events == []
        assert await disk.told() == [Stored(NEIGHBOUR, 2)]
        assert committed == [0]
        assert disk.counters["outbox_stored"] == 2

    on_disk(tmp_path, steps)


def test_records_that_arrive_during_a_commit_go_with_the_next_one(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, b"one"))
        disk.store(1, run_of(1, b"two"))
        disk.store(0, run_of(2, b"three"), way=HOST)
        assert await disk.told() == [Stored(NEIGHBOUR, 1)]
        assert sorted(map(str, await disk.told(2))) == sorted(map(str, [Stored(HOST, 1), Stored(NEIGHBOUR, 2)]))

    on_disk(tmp_path, steps)


def test_records_come_back_unchanged_and_in_order(tmp_path: Path) -> None:
    runs = [run_of(0, b"one", b"two"), run_of(2, b"three", groups=("a/b", "a/#")), run_of(3, b"four")]

    async def write(disk: Disk) -> None:
        disk.store(0, *runs)
        await disk.told()

    async def read(disk: Disk) -> None:
        assert disk.custodian.outbox.ways() == {NEIGHBOUR: (0, 3)}
        expected = Fetched(NEIGHBOUR, tuple((position, (run,)) for position, run in enumerate(runs)), 3)
        assert await disk.fetch(0, 3) == expected
        assert await disk.fetch(1, 2) == Fetched(NEIGHBOUR, ((1, (runs[1],)),), 2)

    on_disk(tmp_path, write)
    on_disk(tmp_path, read)


def test_a_run_that_waits_to_be_matched_has_no_groups(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        unmatched = run_of(0, b"x", groups=())
        disk.store(0, unmatched, way=BLOCKED)
        await disk.told()
        assert await disk.fetch(0, 1, BLOCKED) == Fetched(BLOCKED, ((0, (unmatched,)),), 1)

    on_disk(tmp_path, steps)


def test_one_fetch_brings_a_bounded_number_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custodian_module, "FETCH_RECORDS", 4)

    async def steps(disk: Disk) -> None:
        disk.store(0, *[run_of(number, b"%d" % number) for number in range(10)])
        await disk.told()
        ends: list[int] = []
        while not ends or ends[-1] < 10:
            fetched = await disk.fetch(ends[-1] if ends else 0, 10)
            assert [position for position, _ in fetched.records] == list(range(ends[-1] if ends else 0, fetched.end))
            ends.append(fetched.end)
        assert ends == [4, 8, 10]
        assert disk.events == []

    on_disk(tmp_path, steps)


def test_records_that_do_not_fit_one_fetch_together_are_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second would pass the limit in bytes: it is left for the next fetch, and the first alone is below it."""
    monkeypatch.setattr(custodian_module, "FETCH_BYTES", 1000)

    async def steps(disk: Disk) -> None:
        disk.store(0, *[run_of(number, b"x" * 700) for number in range(3)])
        await disk.told()
        for position in range(3):
            fetched = await disk.fetch(position, 3)
            assert [found for found, _ in fetched.records] == [position]
            assert fetched.end == position + 1

    on_disk(tmp_path, steps)


def test_blocked_records_are_fetched_to_the_end_in_several_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custodian_module, "FETCH_RECORDS", 4)

    async def steps(disk: Disk) -> None:
        disk.store(0, *[run_of(number, b"%d" % number) for number in range(12)], way=BLOCKED)
        await disk.told()
        disk.custodian.fetch(Fetch(BLOCKED, 1, 11))
        fetched = [event for event in await disk.told(3) if isinstance(event, Fetched)]
        assert [event.end for event in fetched] == [5, 9, 11]
        assert [position for event in fetched for position, _ in event.records] == list(range(1, 11))
        await turns()
        assert disk.events == []

    on_disk(tmp_path, steps)


def test_a_fetch_of_records_discarded_meanwhile_says_so(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, b"one"), run_of(1, b"two"), run_of(2, b"three"))
        await disk.told()
        disk.custodian.discard(Discard(NEIGHBOUR, (0, 2)))
        fetched = await disk.fetch(0, 3)
        assert [position for position, _ in fetched.records] == [1]
        assert await disk.fetch(fetched.end, 3) == Fetched(NEIGHBOUR, (), 3)
        assert await disk.fetch(0, 5, way=99) == Fetched(99, (), 5)

    on_disk(tmp_path, steps)


def test_discards_reach_the_disk_without_a_request(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, b"one"), run_of(1, b"two"))
        await disk.told()
        commits = disk.custodian.outbox.counters.commits
        disk.custodian.discard(Discard(NEIGHBOUR, (0,)))
        disk.custodian.discard(Discard(NEIGHBOUR, (1,)))
        await eventually(lambda: disk.custodian.outbox.counters.commits == commits + 1)
        assert disk.custodian.outbox.records == 0
        assert disk.events == []

    on_disk(tmp_path, steps)


def test_the_expiry_of_waiting_publications_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, b"short", expiry=5), run_of(1, b"long", expiry=100), run_of(2, b"always"))
        await disk.told()
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 10)
        fetched = await disk.fetch(0, 3)
        assert [position for position, _ in fetched.records] == [1, 2]
        (left,) = fetched.records[0][1]
        seconds = expiry_s(left.body)
        assert seconds is not None
        assert 88 <= seconds <= 91
        assert fetched.records[1][1] == (run_of(2, b"always"),)
        assert disk.counters["expired_in_outbox"] == 1
        assert disk.custodian.outbox.records == 2  # what expired was let go of

    on_disk(tmp_path, steps)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\0" * 8 + b"\x07\x07not a frame", id="no frame"),
        pytest.param(b"\0" * 8 + codec.encode_summaries(()), id="a frame of another kind"),
        pytest.param(b"\0" * 8 + codec.encode_data((run_of(0, b"x"),))[:-1], id="cut short"),
    ],
)
def test_a_record_of_another_kind_is_refused_counted_and_discarded(tmp_path: Path, payload: bytes) -> None:
    async def steps(disk: Disk) -> None:
        disk.custodian.outbox.append(NEIGHBOUR, [payload])
        disk.store(1, run_of(1, b"good"))
        await disk.told()
        fetched = await disk.fetch(0, 2)
        assert fetched == Fetched(NEIGHBOUR, ((1, (run_of(1, b"good"),)),), 2)
        assert disk.counters["outbox_records_refused"] == 1
        assert disk.custodian.outbox.records == 1

    on_disk(tmp_path, steps)


def test_an_unexpected_position_is_an_error(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        with pytest.raises(LocalError, match="gave position 0 where 5 was expected"):
            disk.store(5, run_of(0, b"x"))

    on_disk(tmp_path, steps)


# --- a full outbox ---------------------------------------------------------------------------------------------------

# Two records of this, with what the outbox and the frame add, fit; three do not.
LARGE = b"x" * 1000
SMALL_OUTBOX = 2500


def test_stop_sends_no_acknowledgements_until_there_is_capacity(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, LARGE), run_of(1, LARGE))
        assert await disk.told() == [Stored(NEIGHBOUR, 2)]
        disk.store(2, run_of(2, LARGE))
        disk.store(0, run_of(3, b"small, and behind"), way=HOST)
        await eventually(lambda: disk.counters["outbox_full"] >= 3)
        assert disk.events == []
        disk.custodian.discard(Discard(NEIGHBOUR, (0,)))
        events = await disk.told(2)
        assert sorted(map(str, events)) == sorted(map(str, [Stored(NEIGHBOUR, 3), Stored(HOST, 1)]))
        fetched = await disk.fetch(1, 3)
        assert [runs[0].first for _, runs in fetched.records] == [1, 2]
        assert not [name for name in disk.counters if name.startswith("dropped")]

    on_disk(tmp_path, steps, bytes_max=SMALL_OUTBOX, overflow="stop")


def test_records_acknowledged_before_a_full_outbox_took_them_do_not_stay(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, LARGE), run_of(1, LARGE))
        await disk.told()
        disk.store(2, run_of(2, LARGE), run_of(3, LARGE))
        disk.store(4, run_of(4, LARGE))
        disk.custodian.discard(Discard(NEIGHBOUR, (2,)))  # its neighbour has taken it
        disk.custodian.discard(Discard(NEIGHBOUR, (4,)))
        disk.custodian.discard(Discard(99, (0,)))  # another's, of whom nothing waits
        assert disk.events == []
        disk.custodian.discard(Discard(NEIGHBOUR, (0, 1)))
        assert await disk.told() == [Stored(NEIGHBOUR, 5)]
        assert disk.custodian.outbox.records == 1
        fetched = await disk.fetch(2, 5)
        assert [(position, runs[0].first) for position, runs in fetched.records] == [(3, 3)]
        disk.store(5, run_of(5, b"after"))
        assert await disk.told() == [Stored(NEIGHBOUR, 6)]
        assert disk.custodian.outbox.records == 2

    on_disk(tmp_path, steps, bytes_max=SMALL_OUTBOX, overflow="stop")


def test_drop_oldest_frees_capacity_and_counts(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, LARGE), run_of(1, LARGE))
        await disk.told()
        disk.store(2, run_of(2, LARGE))
        assert await disk.told() == [Stored(NEIGHBOUR, 3)]
        assert disk.counters["dropped_outbox_oldest"] == 1
        fetched = await disk.fetch(0, 3)
        assert [position for position, _ in fetched.records] == [1, 2]

    on_disk(tmp_path, steps, bytes_max=SMALL_OUTBOX, overflow="drop-oldest")


def test_drop_oldest_drops_nothing_of_another_route(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, LARGE), run_of(1, LARGE))
        await disk.told()
        disk.store(0, run_of(2, LARGE), way=HOST)
        await eventually(lambda: disk.counters["outbox_full"] >= 2)
        assert disk.events == []
        assert disk.counters["dropped_outbox_oldest"] == 0
        disk.custodian.discard(Discard(NEIGHBOUR, (0,)))
        assert await disk.told() == [Stored(HOST, 1)]

    on_disk(tmp_path, steps, bytes_max=SMALL_OUTBOX, overflow="drop-oldest")


def test_drop_newest_keeps_older_records_and_counts(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, LARGE), run_of(1, LARGE))
        await disk.told()
        disk.store(2, run_of(2, LARGE), run_of(3, LARGE))
        assert await disk.told() == [Stored(NEIGHBOUR, 4)]
        assert disk.counters["dropped_outbox_newest"] == 2
        fetched = await disk.fetch(0, 4)
        assert [position for position, _ in fetched.records] == [0, 1]
        assert fetched.end == 4
        assert disk.custodian.outbox.records == 2  # the empty places are let go of
        disk.custodian.discard(Discard(NEIGHBOUR, (0,)))
        disk.store(4, run_of(4, LARGE))
        assert await disk.told() == [Stored(NEIGHBOUR, 5)]
        assert [position for position, _ in (await disk.fetch(2, 5)).records] == [4]

    on_disk(tmp_path, steps, bytes_max=SMALL_OUTBOX, overflow="drop-newest")


def test_drop_newest_counts_a_drop_once_for_any_number_of_attempts(tmp_path: Path) -> None:
    """Not even an empty record fits."""

    async def steps(disk: Disk) -> None:
        room = SMALL_OUTBOX - disk.custodian.outbox.bytes_of([b""])
        disk.custodian.outbox.append(HOST, [b"\0" * room])
        disk.store(0, run_of(0, b"x"))
        await eventually(lambda: disk.counters["outbox_full"] >= 3)
        assert disk.counters["dropped_outbox_newest"] == 0
        disk.custodian.discard(Discard(HOST, (0,)))
        assert await disk.told() == [Stored(NEIGHBOUR, 1)]
        assert disk.counters["dropped_outbox_newest"] == 0

    on_disk(tmp_path, steps, bytes_max=SMALL_OUTBOX, overflow="drop-newest")


# --- a disk that refuses ---------------------------------------------------------------------------------------------


def test_a_refusing_disk_is_retried_and_nothing_is_acknowledged_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit = Outbox.commit

    def refused(_: Outbox) -> None:
        raise LocalError("The outbox cannot be used: no space left; check the disk.")

    async def steps(disk: Disk) -> None:
        monkeypatch.setattr(Outbox, "commit", refused)
        disk.store(0, run_of(0, b"one"))
        await eventually(lambda: disk.counters["outbox_not_written"] >= 2)
        disk.store(1, run_of(1, b"two"))
        disk.store(0, run_of(2, b"three"), way=HOST)
        await eventually(lambda: disk.counters["outbox_not_written"] >= 4)
        assert disk.events == []
        monkeypatch.setattr(Outbox, "commit", commit)
        events = await disk.told(2)
        assert sorted(map(str, events)) == sorted(map(str, [Stored(NEIGHBOUR, 2), Stored(HOST, 1)]))

    on_disk(tmp_path, steps)
    # The failure is logged once, not with each attempt, and then its end.
    told = [record.getMessage() for record in caplog.records if "written" in record.getMessage()]
    assert [line.split(",")[0].split(":")[0] for line in told] == [
        "the outbox could not be written",
        "the outbox is written again",
    ]
    on_disk(tmp_path, _finds_two)


async def _finds_two(disk: Disk) -> None:
    fetched = await disk.fetch(0, 2)
    assert [position for position, _ in fetched.records] == [0, 1]


def test_a_file_that_cannot_be_opened_is_read_later(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, b"one"))
        await disk.told()
        (log,) = (tmp_path / "outbox").glob(f"{NEIGHBOUR}_*.log")
        away = log.rename(log.with_name("away"))
        disk.custodian.fetch(Fetch(NEIGHBOUR, 0, 1))
        await eventually(lambda: disk.counters["outbox_not_read"] >= 2)
        assert disk.events == []
        disk.custodian.fetch(Fetch(99, 3, 4))  # answers come in the order of what was asked for
        await turns()
        assert disk.events == []
        away.rename(log)
        assert await disk.told(2) == [Fetched(NEIGHBOUR, ((0, (run_of(0, b"one"),)),), 1), Fetched(99, (), 4)]

    on_disk(tmp_path, steps)


def test_nothing_is_reported_after_the_end(tmp_path: Path) -> None:
    async def steps() -> None:
        disk = Disk(tmp_path, SMALL_OUTBOX)
        disk.store(0, run_of(0, LARGE), run_of(1, LARGE))
        await disk.told()
        disk.store(2, run_of(2, LARGE))  # waits for room
        disk.custodian.fetch(Fetch(NEIGHBOUR, 0, 2))
        disk.store(0, run_of(3, b"x"), way=HOST)
        disk.custodian.stop()
        await asyncio.sleep(0.1)
        assert disk.events == []

    asyncio.run(steps())


def test_the_end_writes_the_remaining_records(tmp_path: Path) -> None:
    async def store(disk: Disk) -> None:
        disk.store(0, run_of(0, b"one"))
        disk.store(1, run_of(1, b"two"))
        disk.custodian.discard(Discard(NEIGHBOUR, ()))

    on_disk(tmp_path, store)
    on_disk(tmp_path, _finds_two)


def test_an_end_on_a_refusing_disk_gives_up_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: Outbox) -> None:
        raise LocalError("The outbox cannot be used: read-only; check the disk.")

    async def steps() -> None:
        disk = Disk(tmp_path)
        disk.store(0, run_of(0, b"one"))
        await disk.told()
        monkeypatch.setattr(Outbox, "commit", refused)
        disk.custodian.stop()

    asyncio.run(steps())
    monkeypatch.undo()
    assert "could not be written at the end" in caplog.text
    on_disk(tmp_path, _finds_one)


async def _finds_one(disk: Disk) -> None:
    fetched = await disk.fetch(0, 1)
    assert [split(runs[0].body) for _, runs in fetched.records] == [split(run_of(0, b"one").body)]


# --- what others wanted ----------------------------------------------------------------------------------------------


def test_interest_of_others_outlives_the_process(tmp_path: Path) -> None:
    async def write(disk: Disk) -> None:
        disk.custodian.write_wanted({"b", "a/#"})

    async def read(disk: Disk) -> None:
        assert disk.custodian.read_wanted() == ["a/#", "b"]

    on_disk(tmp_path, write)
    on_disk(tmp_path, read)
    assert sorted(path.name for path in tmp_path.glob("wanted*")) == ["wanted.json"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(None, [], id="missing"),
        pytest.param(b"", [], id="empty"),
        pytest.param(b'["a", "b', [], id="cut short"),
        pytest.param(b"\xff\xfe\x00", [], id="no text"),
        pytest.param(b'{"a": 1}', [], id="no list"),
        pytest.param(json.dumps(["a", 1, None, "b"]).encode(), ["a", "b"], id="other things among them"),
    ],
)
def test_a_damaged_file_of_wanted_groups_does_no_harm(
    tmp_path: Path, content: bytes | None, expected: list[str]
) -> None:
    if content is not None:
        (tmp_path / "wanted.json").write_bytes(content)

    async def steps(disk: Disk) -> None:
        assert disk.custodian.read_wanted() == expected

    on_disk(tmp_path, steps)


def test_wanted_groups_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.custodian.write_wanted(["a"])
        (tmp_path / "wanted.new").mkdir()
        disk.custodian.write_wanted(["b"])
        assert disk.counters["wanted_not_written"] == 1
        assert disk.custodian.read_wanted() == ["a"]

    on_disk(tmp_path, steps)


def test_one_commit_runs_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    running: list[int] = []
    commit = Outbox.commit

    def slow(outbox: Outbox) -> None:
        running.append(1)
        assert may_end.wait(DEADLINE_S)
        commit(outbox)

    monkeypatch.setattr(Outbox, "commit", slow)

    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, b"one"))
        disk.store(1, run_of(1, b"two"))
        await eventually(lambda: running)
        await turns()
        assert len(running) == 1
        may_end.set()
        assert await disk.told(2) == [Stored(NEIGHBOUR, 1), Stored(NEIGHBOUR, 2)]

    on_disk(tmp_path, steps)


def test_stop_closes_the_outbox(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        disk.store(0, run_of(0, b"one"))
        await disk.told()
        disk.custodian.stop()
        with pytest.raises(LocalError, match="closed"):
            disk.custodian.outbox.append(NEIGHBOUR, [b"late"])

    on_disk(tmp_path, steps)
