"""Batches to a neighbour over a real link: publications that travel with QoS 1, and those that do not wait for it."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable

from tests.federator.test_links import Federator, Pair, eventually

from hanse.federator.metrics import LinkTraffic
from hanse.federator.onward import Onward
from hanse.mqtt.publication import encode
from hanse.protocol import codec
from hanse.protocol.accounts import Accounts
from hanse.protocol.messages import Run


def run_of(qos: int, first: int, length: int = 1) -> Run:
    body = encode("t", b"x" * 50, qos=qos) * length
    return Run(1, 1, first, length, qos, 1, ("g",), body)


class Scene:
    """The first of two federators, which sends, and the second, which receives."""

    def __init__(self, one: Federator, two: Federator) -> None:
        self.one, self.two = one, two
        self.sent: defaultdict[int, LinkTraffic] = defaultdict(LinkTraffic)
        self.accounts = Accounts()
        self.counters: Counter[str] = Counter()
        self.onward = Onward(one.book, sent=self.sent, accounts=self.accounts, counters=self.counters)

    @property
    def arrived(self) -> list[list[tuple[int, int]]]:
        """Return QoS and first id of the runs of each received frame."""
        return [[(run.qos, run.first) for run in codec.decode_data(frame.payload)] for frame in self.two.frames]

    @property
    def dropped(self) -> int:
        return sum(row.publications for row in self.accounts.rows() if row.measure == "dropped:link")


def play(steps: Callable[[Scene], Awaitable[None]]) -> None:
    async def scene() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            await steps(Scene(one, two))

    asyncio.run(scene())


def test_a_batch_is_one_frame_for_any_qos() -> None:
    async def steps(scene: Scene) -> None:
        scene.onward.send(2, [run_of(0, 0, 3), run_of(1, 3)], 7)
        await eventually(lambda: scene.one.taken)
        assert scene.one.taken == [(2, 7)]
        assert scene.arrived == [[(0, 0), (1, 3)]]
        assert scene.sent[2].messages == [3, 1, 0]
        assert (scene.counters["forwarded"], scene.dropped) == (4, 0)

    play(steps)


def test_qos_0_does_not_wait_with_frames_that_have_a_token() -> None:
    async def steps(scene: Scene) -> None:
        scene.one.link(2)._data_bytes_max = 1_000
        wire = scene.one.link(2)._connection
        assert wire is not None
        wire.pause_writing()
        for batch in range(100):
            scene.onward.send(2, [run_of(0, 10 * batch, 9), run_of(1, 10 * batch + 9)], batch + 1)
        waiting = scene.one.book._peers[2].waiting
        # Nearly all of the hundred with a token wait, and beside them only the one frame that found no capacity.
        loose = [run.length for payload, _ in waiting for run in codec.decode_data(payload) if not run.qos]
        assert len(waiting) > 90
        assert sum(loose) <= 9
        assert scene.one.book.drops == {"link_full": scene.dropped}
        assert scene.dropped > 800
        wire.resume_writing()
        await eventually(lambda: len(scene.one.taken) == 100)
        assert scene.one.taken == [(2, token) for token in range(1, 101)]
        came = [one for frame in scene.arrived for one in frame]
        assert [first for qos, first in came if qos] == [10 * batch + 9 for batch in range(100)]
        assert 9 * sum(1 for qos, _ in came if not qos) == 900 - scene.dropped

    play(steps)


def test_qos_0_is_dropped_while_the_link_is_down() -> None:
    async def steps(scene: Scene) -> None:
        scene.onward.send(3, [run_of(0, 0, 4)], 0)
        assert scene.one.book.drops == {"link_down": 4}
        assert (scene.dropped, scene.sent[3].dropped_frames) == (4, 1)

    play(steps)
