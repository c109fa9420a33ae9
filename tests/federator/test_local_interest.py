"""From what adapters hear to what the protocol, the disk and the others are told: a machine, adapters, a directory."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.net import Network

from hanse.errors import Unavailable
from hanse.federator import local_interest
from hanse.federator.crossing import Crossing
from hanse.federator.local_interest import LocalInterest
from hanse.federator.settings import FederatorSettings
from hanse.federator.sources import InterestSources
from hanse.federator.store import StateDirectory
from hanse.interest import BridgeSeen, InterestRegistry, Report
from hanse.interest.listing import Row
from hanse.mqtt.publication import Publication, encode
from hanse.protocol.events import Subscribed, Unsubscribed

LOG = "$SYS/broker/log/M/"


def said(topic: str, payload: bytes) -> Publication:
    """A message of the host broker's."""
    return Publication(encode(topic, payload), topic, 0, False, False, 0, (1,))


class Scene:
    """The interest of federator 0's broker."""

    def __init__(self, state: StateDirectory, crossing: Crossing | None = None, **settings: Any) -> None:
        self.net = Network(1)
        self.machine = self.net.machines[0]
        self.events: list[Subscribed | Unsubscribed] = []
        self.noted: list[tuple[str, bool]] = []
        self.retained: list[list[str]] = []
        self.unwanted: list[str] = []
        self.lingers = False
        self.bridges: list[Report] = []
        self.counters: Counter[str] = Counter()
        self.shares_told = 0
        self.registry = InterestRegistry()
        self.interest = LocalInterest(
            self.machine,
            InterestSources(FederatorSettings(id=0, **settings)),
            state,
            registry=self.registry,
            crossing=crossing or Crossing(),
            poll_interval_s=0.001,
            step=self._step,
            note=lambda group, is_added: self.noted.append((group, is_added)),
            want_retained=self.retained.append,
            unwant_retained=self._unwant,
            on_bridges=self._take_bridges,
            on_shares=self._tell_shares,
            counters=self.counters,
        )

    def _unwant(self, filter_: str) -> None:
        self.unwanted.append(filter_)
        if not self.lingers:
            self.interest.release(filter_)

    def _step(self, event: Subscribed | Unsubscribed) -> None:
        self.events.append(event)
        self.net.step(0, event)

    def _take_bridges(self, reports: Sequence[Report]) -> None:
        self.bridges += [report for report in reports if isinstance(report, BridgeSeen)]

    def _tell_shares(self) -> None:
        self.shares_told += 1

    def subscribe(self, client: str, filter_: str) -> None:
        self.interest.hear([said(f"{LOG}subscribe", f"{client} 1 {filter_}".encode())])

    def unsubscribe(self, client: str, filter_: str) -> None:
        self.interest.hear([said(f"{LOG}unsubscribe", f"{client} {filter_}".encode())])

    def has_timer(self) -> bool:
        return self.interest._timer is not None

    async def watched(self, condition: Callable[[], object]) -> None:
        """Let files and lists be read until something has come about."""
        tasks = [asyncio.create_task(one) for one in self.interest.watch()]
        try:
            await until(condition)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - several objects' state
            await asyncio.sleep(0.001)


def play(directory: Path, steps: Callable[[Scene], Awaitable[None]], **more: Any) -> None:
    async def all_steps() -> None:
        with StateDirectory(directory) as state:
            scene = Scene(state, **more)
            scene.interest.restore()
            scene.interest.start()
            await steps(scene)
            scene.interest.stop()

    asyncio.run(all_steps())


def test_the_protocol_learns_of_the_first_interested_client_and_of_the_last_end_of_interest(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.subscribe("one", "a/#")
        scene.subscribe("two", "a/#")
        assert scene.events == [Subscribed("a/#")]
        assert scene.machine.is_local("a/#")
        assert scene.noted == [("a/#", True)]
        assert scene.retained == [["a/#"]]
        assert len(scene.interest) == 1
        scene.unsubscribe("one", "a/#")
        assert len(scene.events) == 1
        scene.unsubscribe("two", "a/#")
        assert scene.events[1:] == [Unsubscribed("a/#")]
        assert scene.noted[1:] == [("a/#", False)]
        assert len(scene.interest) == 0

    play(tmp_path, steps)


def test_filters_go_out_under_the_names_of_the_federation(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.subscribe("one", "secret/x")
        assert scene.events == []
        scene.subscribe("one", "+/x")
        assert scene.events == [Subscribed("+/x")]
        assert [filters for filters in scene.retained if filters] == [["+/x"]]

    play(tmp_path, steps, crossing=Crossing(import_deny=("secret/#",)))


def test_interest_that_lingers_ends_when_the_keeper_of_retained_state_says_so(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.lingers = True
        scene.subscribe("one", "a")
        scene.unsubscribe("one", "a")
        assert scene.unwanted == ["a"]
        assert scene.machine.is_local("a")
        scene.subscribe("one", "a")
        scene.interest.release("a")
        assert scene.machine.is_local("a"), "somebody wants it again"
        scene.unsubscribe("one", "a")
        scene.interest.release("a")
        assert scene.events == [Subscribed("a"), Unsubscribed("a")]
        assert len(scene.interest) == 0
        scene.interest.release("a")
        assert len(scene.events) == 2

    play(tmp_path, steps)


def test_what_was_known_before_a_restart_is_wanted_and_fetched_again(tmp_path: Path) -> None:
    async def before(scene: Scene) -> None:
        scene.interest.save_if_changed()
        assert not (tmp_path / "interest.json").exists(), "nothing has changed yet"
        scene.subscribe("one", "kept")
        scene.interest.save_if_changed()

    async def after(scene: Scene) -> None:
        assert scene.events == [Subscribed("kept")]
        assert scene.retained == [["kept"]]
        scene.subscribe("one", "new")
        assert scene.retained == [["kept"], ["new"]]

    play(tmp_path, before)
    play(tmp_path, after)


def test_a_file_that_is_not_ours_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "interest.json").write_text(json.dumps({"version": 99}))

    async def steps(scene: Scene) -> None:
        assert scene.events == []
        scene.subscribe("one", "a")
        assert scene.events == [Subscribed("a")]

    play(tmp_path, steps)
    assert (tmp_path / "interest.json.damaged").exists()


def test_what_the_operator_named_is_wanted_from_the_start(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        assert scene.events == [Subscribed("plant/+")]

    play(tmp_path, steps, interest=("static",), static_filter=("1:plant/+",))


def test_a_beacon_runs_out_and_none_runs_out_after_the_end(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.interest.hear([said("federator/beacon/a", b"")])
        assert scene.events == [Subscribed("a")]
        await until(lambda: len(scene.events) == 2)
        assert scene.events[1] == Unsubscribed("a")
        scene.interest.hear([said("federator/beacon/b", b"")])
        assert scene.has_timer()
        scene.interest.stop()
        assert not scene.has_timer()
        scene.interest.hear([said("federator/beacon/c", b"")])
        assert not scene.has_timer()

    play(tmp_path, steps, interest=("beacon",), beacon_interval_s=0.01, expiry_factor=2)


def test_share_names_and_bridges_are_handed_on(tmp_path: Path) -> None:
    async def steps(scene: Scene) -> None:
        scene.subscribe("one", "a")
        assert scene.shares_told == 0
        scene.subscribe("one", "$share/pool/a")
        scene.subscribe("two", "$share/pool/a")
        assert scene.shares_told == 1
        scene.interest.hear([said("$SYS/broker/connection/site/state", b"1")])
        assert scene.bridges == [BridgeSeen("site")]

    play(tmp_path, steps)


def test_a_log_file_is_read_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "mosquitto.log"
    log.write_text("1700000000: New client connected from 127.0.0.1:1 as one (p5, c1, k60).\n")

    async def steps(scene: Scene) -> None:
        with log.open("a") as file:
            file.write("1700000001: one 1 a/b\n")
        await scene.watched(lambda: scene.events)
        assert scene.events == [Subscribed("a/b")]

    play(tmp_path / "state", steps, interest=(f"mosquitto-file:{log}",))


def test_a_list_that_cannot_be_had_is_counted_told_once_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0

    def fetch(*_: object) -> list[Row]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise Unavailable("nobody is there")
        return [("one", "a", 1)]

    monkeypatch.setattr(local_interest, "fetch", fetch)

    async def steps(scene: Scene) -> None:
        await scene.watched(lambda: scene.events)
        assert scene.events == [Subscribed("a")]
        assert scene.counters["lists_failed"] == 2
        assert [record.message for record in caplog.records] == [
            "the list of subscriptions is not available: nobody is there"
        ]

    play(tmp_path, steps, interest=("poll:nats",), poll_url="http://127.0.0.1:1")


def test_change_of_many_filters_is_applied_in_slices_and_others_run_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_interest, "SLICE_S", 0.0)
    caplog.set_level("INFO")
    count = 1_000

    async def steps(scene: Scene) -> None:
        turns: list[int] = []

        async def others() -> None:
            while True:
                turns.append(len(scene.events))
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        lines = [said(f"{LOG}subscribe", f"one 1 many/{k}".encode()) for k in range(count)]
        scene.interest.hear(lines)
        assert 0 < len(scene.events) < 100
        # A later change joins the waiting ones, and only the last state of a filter counts.
        scene.unsubscribe("one", "many/999")
        await until(lambda: len(scene.events) == count - 1)
        task.cancel()
        assert len(set(turns)) > 10
        assert scene.machine.is_local("many/998")
        assert Subscribed("many/999") not in scene.events
        texts = [record.message for record in caplog.records]
        assert texts == ["interest in 1000 filters begins, and in 0 ends: many/0, many/1, many/10, ..."]

    play(tmp_path, steps)


def test_what_was_restored_is_applied_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def before(scene: Scene) -> None:
        for k in range(100):
            scene.subscribe("one", f"many/{k}")
        scene.interest.save()

    play(tmp_path, before)
    monkeypatch.setattr(local_interest, "SLICE_S", 0.0)

    async def after(scene: Scene) -> None:
        assert len(scene.events) == 100

    play(tmp_path, after)
