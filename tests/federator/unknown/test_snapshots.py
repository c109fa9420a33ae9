"""Requests for the subscription tree, and the treatment of shared subscriptions in it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from hanse.errors import HanseError, Unavailable
from hanse.federator.unknown import snapshots as module
from hanse.federator.unknown.broker_output import BrokerOutput
from hanse.federator.unknown.snapshots import SHARED_CLIENT, SOURCE, Snapshots
from hanse.interest import Gap, Report, Subscribed, Unsubscribed
from hanse.interest.ledger import Counts, Ledger
from hanse.interest.tree import Tree

OWN = ("hanse-1", "$SYS/x", 1)


class Output:
    """Output of a broker: the trees that it will print, the last one again and again."""

    def __init__(self) -> None:
        self.trees: list[Tree | HanseError] = []
        self.asked = 0

    async def tree(self, _: Callable[[], None]) -> Tree:
        self.asked += 1
        found = self.trees.pop(0) if len(self.trees) > 1 else self.trees[0]
        if isinstance(found, HanseError):
            raise found
        return found


class Scene:
    def __init__(self) -> None:
        self.output, self.ledger = Output(), Ledger("hanse-", Counter())
        self.ledger.take([Subscribed(*OWN)])
        self.is_listening = True
        self.taken: list[tuple[str, Report]] = []
        self.held: list[tuple[str, str, int]] = []
        self.snapshots = Snapshots(
            cast("BrokerOutput", self.output),
            self.ledger,
            is_listening=lambda: self.is_listening,
            prompt=lambda: None,
            take=lambda source, reports: self.taken.extend((source, report) for report in reports),
            held=lambda: self.held,
        )

    def ticks(self, ordinary: int, shared: int) -> None:
        for _ in range(2):
            self.ledger.tick(Counts(ordinary, shared))


def play(steps: Callable[[Scene], Awaitable[None]], prepare: Callable[[Scene], None] = lambda _: None) -> None:
    async def run() -> None:
        scene = Scene()
        prepare(scene)
        watching = asyncio.create_task(scene.snapshots.watch())
        try:
            async with asyncio.timeout(10):
                await steps(scene)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - several objects' state
        await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)


def tree(*subscriptions: tuple[str, str, int], shared: tuple[str, ...] = (), perhaps: tuple[str, ...] = ()) -> Tree:
    return Tree([OWN, *subscriptions], set(shared), set(perhaps), is_whole=True, is_ended=True)


def test_tree_is_asked_for_at_the_start_and_after_each_gap() -> None:
    async def steps(scene: Scene) -> None:
        await until(lambda: scene.taken)
        assert scene.taken == [("mosquitto-log", Subscribed("a", "t", 1))]
        await asyncio.sleep(0.02)
        assert scene.output.asked == 1
        scene.ledger.take([Gap()])
        await until(lambda: scene.output.asked == 2)

    play(steps, lambda scene: scene.output.trees.append(tree(("a", "t", 1))))


def test_nothing_is_asked_for_before_the_log_is_heard() -> None:
    async def steps(scene: Scene) -> None:
        await asyncio.sleep(0.02)
        assert scene.output.asked == 0
        scene.is_listening = True
        await until(lambda: scene.output.asked)

    def prepare(scene: Scene) -> None:
        scene.is_listening = False
        scene.output.trees.append(tree())

    play(steps, prepare)


def test_failure_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def steps(scene: Scene) -> None:
        await until(lambda: scene.taken)
        assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == ["WARNING"]

    def prepare(scene: Scene) -> None:
        foreign = Tree([("a", "t", 1)], is_whole=True, is_ended=True)
        scene.output.trees += [Unavailable("no tree"), foreign, tree(("a", "t", 1))]

    play(steps, prepare)


def test_filters_of_unknown_shared_subscriptions_are_interest_until_none_is_unknown() -> None:
    async def steps(scene: Scene) -> None:
        await until(lambda: scene.taken)
        assert scene.taken == [(SOURCE, Subscribed(SHARED_CLIENT, "p/q", 2))]
        scene.ticks(1, 2)
        await asyncio.sleep(0.02)
        assert scene.snapshots.shared_covered == 1
        assert scene.output.asked == 1
        # The client makes its subscription again.
        scene.ledger.take([Subscribed("a", "$share/g/p/q", 1)])
        scene.ticks(1, 2)
        await until(lambda: len(scene.taken) == 2)
        assert scene.taken[1] == (SOURCE, Unsubscribed(SHARED_CLIENT, "p/q"))

    def prepare(scene: Scene) -> None:
        scene.ledger.take([Subscribed("b", "$share/g/known", 1)])
        scene.output.trees.append(tree(shared=("p/q", "known"), perhaps=("p",)))

    play(steps, prepare)


def test_levels_above_are_interest_if_the_broker_counts_more_than_the_filters_explain() -> None:
    async def steps(scene: Scene) -> None:
        await until(lambda: scene.taken)
        scene.ticks(1, 2)
        await until(lambda: len(scene.taken) == 2)
        assert scene.taken == [
            (SOURCE, Subscribed(SHARED_CLIENT, "p/q", 2)),
            (SOURCE, Subscribed(SHARED_CLIENT, "p", 2)),
        ]
        scene.ticks(1, 2)
        await until(lambda: scene.snapshots.shared_covered == 2)

    play(steps, lambda scene: scene.output.trees.append(tree(shared=("p/q",), perhaps=("p",))))


def test_shared_interest_of_a_former_process_is_taken_up() -> None:
    async def steps(scene: Scene) -> None:
        await until(lambda: scene.taken)
        assert scene.taken == [(SOURCE, Unsubscribed(SHARED_CLIENT, "gone"))]

    def prepare(scene: Scene) -> None:
        scene.held = [(SHARED_CLIENT, "gone", 2)]
        scene.output.trees.append(tree())

    play(steps, prepare)
