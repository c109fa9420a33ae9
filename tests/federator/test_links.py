"""Two link books against each other over the loopback: who stays, who waits, what is dropped."""

import asyncio
from collections.abc import Callable, Mapping

from hanse.federator.links import CONTROL_TOPIC, DATA_TOPIC, LinkBook
from hanse.federator.obligations import Obligation
from hanse.mqtt.link import Frame, Link
from hanse.mqtt.urls import Address
from hanse.protocol import codec
from hanse.protocol.messages import ControlFrame

DEADLINE_S = 10.0


class Federator:
    """One book, and what it told."""

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.up: list[int] = []
        self.down: list[int] = []
        self.frames: list[Frame] = []
        self.refusal: str | None = None
        self.acks_at_once = True
        self.url = ""
        self.book = LinkBook(
            identity,
            properties=lambda: {"protocol": "1"},
            admit=self._admit,
            on_up=self.up.append,
            on_down=self.down.append,
            on_frames=self._take,
        )

    def _admit(self, identity: int, peer: Mapping[str, str]) -> str | None:
        assert peer["protocol"] == "1"
        assert identity != self.identity
        return self.refusal

    def _take(self, neighbour: int, frames: list[Frame]) -> None:
        self.frames += frames
        if self.acks_at_once:
            self.ack(neighbour, frames)

    def ack(self, neighbour: int, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.receipt:
                self.book.ack(neighbour, frame.receipt)

    async def listen(self) -> None:
        self.url = await self.book.listen(Address("127.0.0.1", 0))

    def link(self, neighbour: int) -> Link:
        return self.book._peers[neighbour].link

    def has_link(self, neighbour: int) -> bool:
        return neighbour in self.book._peers and self.link(neighbour).is_open


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.001)


class Pair:
    """`async with Pair(1, 2) as (one, two)`: both listen, nobody has dialled."""

    def __init__(self, *identities: int) -> None:
        self._all = [Federator(identity) for identity in identities]

    async def __aenter__(self) -> list[Federator]:
        for one in self._all:
            await one.listen()
        return self._all

    async def __aexit__(self, *_: object) -> None:
        for one in self._all:
            await one.book.stop()


class Owed:
    """An obligation that says when it is released."""

    def __init__(self) -> None:
        self.is_released = False
        self.obligation = Obligation(self._release)

    def _release(self) -> None:
        self.is_released = True


def test_one_connection_serves_both_directions() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up == [2] and two.up == [1])
            assert one.book.send_data(2, b"to two", 1, None)
            two.book.send_control(1, ControlFrame(2, 7, 1, 0, 0))
            await eventually(lambda: one.frames and two.frames)
            assert two.frames == [Frame(DATA_TOPIC, b"to two", 0)]
            assert one.frames[0].topic == CONTROL_TOPIC
            assert codec.decode_control(one.frames[0].payload).epoch == 7

    asyncio.run(steps())


def test_when_both_dial_the_link_that_the_smaller_id_dialled_stays() -> None:
    async def steps() -> None:
        for _ in range(5):
            async with Pair(1, 2) as (one, two):
                one.book.dial(two.url)
                two.book.dial(one.url)
                await eventually(lambda one=one, two=two: one.has_link(2) and two.has_link(1))  # type: ignore[misc]
                await eventually(lambda one=one, two=two: one.link(2).is_dialled and not two.link(1).is_dialled)  # type: ignore[misc]
                # What was said of ups and downs adds up, whichever came first.
                assert len(one.up) == len(one.down) + 1
                assert len(two.up) == len(two.down) + 1

    asyncio.run(steps())


def test_the_larger_id_may_dial_when_the_smaller_does_not() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.has_link(2) and two.has_link(1))
            assert two.link(1).is_dialled
            await eventually(lambda: one.up == [2])

    asyncio.run(steps())


def test_a_neighbour_that_comes_again_replaces_its_former_link() -> None:
    """Its process was killed and the former connection is not known to be dead."""

    async def steps() -> None:
        async with Pair(1, 2, 2) as (one, former, again):
            former.book.dial(one.url)
            await eventually(lambda: one.up == [2])
            again.book.dial(one.url)
            await eventually(lambda: one.up == [2, 2])
            assert one.down == [2]
            await eventually(lambda: former.down == [1])
            assert one.book.send_data(2, b"x", 1, None)
            await eventually(lambda: again.frames)

    asyncio.run(steps())


def test_a_federator_refuses_a_link_to_itself() -> None:
    async def steps() -> None:
        async with Pair(1, 1) as (one, other):
            other.book.dial(one.url)
            dialler = other.book._diallers[one.url]
            failures: list[str] = []
            dialler._on_failed = lambda error: failures.append(str(error))
            await eventually(lambda: failures)
            assert "cannot be a neighbour of federator 1" in failures[0]
            assert not one.up
            assert not other.up

    asyncio.run(steps())


def test_who_is_not_admitted_hears_why() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            one.refusal = "federator 2 speaks protocol '9', this one 1"
            two.book.dial(one.url)
            failures: list[str] = []
            two.book._diallers[one.url]._on_failed = lambda error: failures.append(str(error))
            await eventually(lambda: failures)
            assert "speaks protocol '9'" in failures[0]
            assert not one.up

    asyncio.run(steps())


def test_who_dialled_and_does_not_like_the_answer_hangs_up() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.refusal = "no"
            two.book.dial(one.url)
            await eventually(lambda: one.up and one.down)
            assert not two.up

    asyncio.run(steps())


def test_an_obligation_is_settled_with_the_neighbours_acknowledgement_and_not_before() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.acks_at_once = False
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            owed = Owed()
            one.book.send_data(2, b"x", 1, owed.obligation)
            owed.obligation.settle()
            await eventually(lambda: two.frames)
            assert not owed.is_released
            two.ack(1, two.frames)
            await eventually(lambda: owed.is_released)

    asyncio.run(steps())


def test_frames_that_are_owed_wait_in_order_while_the_link_is_full() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            one.link(2)._data_bytes_max = 200
            wire = one.link(2)._connection
            assert wire is not None
            wire.pause_writing()
            payloads = [b"%03d" % number * 20 for number in range(100)]
            all_owed = [Owed() for _ in payloads]
            for payload, owed in zip(payloads, all_owed, strict=True):
                assert one.book.send_data(2, payload, 1, owed.obligation)
                owed.obligation.settle()
            assert one.book._peers[2].waiting
            wire.resume_writing()
            await eventually(lambda: all(owed.is_released for owed in all_owed))
            assert [frame.payload for frame in two.frames] == payloads
            assert one.book.drops == {}

    asyncio.run(steps())


def test_frames_of_qos_0_are_dropped_and_counted_while_the_link_is_full() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            one.link(2)._data_bytes_max = 100
            wire = one.link(2)._connection
            assert wire is not None
            wire.pause_writing()
            assert one.book.send_data(2, b"x" * 80, 3, None)
            assert not one.book.send_data(2, b"y" * 80, 4, None)
            assert one.book.drops == {"link_full": 4}
            wire.resume_writing()
            await eventually(lambda: two.frames)
            assert one.book.send_data(2, b"z", 1, None)

    asyncio.run(steps())


def test_control_passes_a_link_that_is_full_of_data() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            one.link(2)._data_bytes_max = 100
            wire = one.link(2)._connection
            assert wire is not None
            wire.pause_writing()
            one.book.send_data(2, b"x" * 99, 1, None)
            one.book.send_control(2, ControlFrame(1, 7, 1, 0, 0))
            wire.resume_writing()
            await eventually(lambda: len(two.frames) == 2)
            assert [frame.topic for frame in two.frames] == [CONTROL_TOPIC, DATA_TOPIC]

    asyncio.run(steps())


def test_what_goes_to_a_neighbour_that_is_away_is_counted() -> None:
    async def steps() -> None:
        async with Pair(1) as (one,):
            assert not one.book.send_data(9, b"x", 5, None)
            one.book.send_control(9, ControlFrame(1, 7, 1, 0, 0))
            one.book.ack(9, 1)
            one.book.close(9, "why not")
            assert one.book.drops == {"link_down": 5}

    asyncio.run(steps())


def test_what_was_under_way_or_waiting_when_a_link_ends_is_counted_and_owed_no_longer() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.acks_at_once = False
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            one.link(2)._data_bytes_max = 50
            all_owed = [Owed() for _ in range(4)]
            for owed in all_owed:
                one.book.send_data(2, b"x" * 40, 1, owed.obligation)
                owed.obligation.settle()
            two.link(1).abort()
            await eventually(lambda: one.down)
            assert all(owed.is_released for owed in all_owed)
            assert one.book.drops == {"frames_lost_with_link": 4}

    asyncio.run(steps())


def test_a_link_that_ends_is_dialled_again_until_somebody_hangs_up() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            two.book.dial(one.url)  # the same address again is no second dialler
            await eventually(lambda: two.up == [1])
            one.book.close(2, "a rule was broken")
            await eventually(lambda: two.up == [1, 1])
            assert two.down == [1]
            await two.book.hang_up(one.url)
            await eventually(lambda: one.down == [2, 2])
            assert not one.has_link(2)
            await two.book.hang_up(one.url)

    asyncio.run(steps())
