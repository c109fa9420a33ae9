"""Two link books against each other over loopback: the link that stays, frames that wait, frames that are dropped."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from hanse.federator.doubles import PROCESS, Doubles
from hanse.federator.links import CONTROL_TOPIC, DATA_TOPIC, LinkBook
from hanse.mqtt.endpoints import LinkDialler
from hanse.mqtt.limits import LINK_CONTROL_BYTES_MAX
from hanse.mqtt.link import Frame, Link
from hanse.mqtt.urls import Address
from hanse.protocol import codec
from hanse.protocol.messages import ControlFrame

DEADLINE_S = 10.0


class Federator:
    """One book, and its reports."""

    def __init__(self, identity: int, process: str = "") -> None:
        self.identity = identity
        self.process = process
        # Ids that two processes use.
        self.doubles: list[int] = []
        self.up: list[int] = []
        self.down: list[int] = []
        self.frames: list[Frame] = []
        # Tokens of acknowledged frames, by neighbour.
        self.taken: list[tuple[int, int]] = []
        self.refusal: str | None = None
        self.acks_at_once = True
        self.url = ""
        self.book = LinkBook(
            identity,
            properties=lambda: {"protocol": "1", PROCESS: process},
            admit=self._admit,
            on_up=self.up.append,
            on_down=self.down.append,
            on_frames=self._take,
            on_taken=self._note_taken,
            on_double=lambda identity, _: self.doubles.append(identity),
        )

    def _admit(self, identity: int, peer: Mapping[str, str]) -> str | None:
        assert peer["protocol"] == "1"
        assert identity != self.identity
        return self.refusal

    def _take(self, neighbour: int, frames: list[Frame]) -> None:
        self.frames += frames
        if self.acks_at_once:
            self.ack(neighbour, frames)

    def _note_taken(self, neighbour: int, tokens: list[int]) -> None:
        self.taken += [(neighbour, token) for token in tokens]

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
    """Two books that both listen, before any dialled: `async with Pair(1, 2) as (one, two)`."""

    def __init__(self, *identities: int) -> None:
        self._all = [Federator(identity) for identity in identities]

    async def __aenter__(self) -> list[Federator]:
        for one in self._all:
            await one.listen()
        return self._all

    async def __aexit__(self, *_: object) -> None:
        for one in self._all:
            await one.book.stop()


def test_one_connection_serves_both_directions() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up == [2] and two.up == [1])
            assert one.book.send_data(2, b"to two", 1, 0)
            two.book.send_control(1, ControlFrame(2, 7, 1, 0, 0))
            await eventually(lambda: one.frames and two.frames)
            assert [(one.topic, one.payload, one.receipt) for one in two.frames] == [(DATA_TOPIC, b"to two", 0)]
            assert one.frames[0].topic == CONTROL_TOPIC
            assert codec.decode_control(one.frames[0].payload).epoch == 7

    asyncio.run(steps())


def test_the_link_of_the_smaller_id_stays_if_both_dial() -> None:
    async def steps() -> None:
        for _ in range(5):
            async with Pair(1, 2) as (one, two):
                one.book.dial(two.url)
                two.book.dial(one.url)
                await eventually(lambda one=one, two=two: one.has_link(2) and two.has_link(1))  # type: ignore[misc]
                await eventually(lambda one=one, two=two: one.link(2).is_dialled and not two.link(1).is_dialled)  # type: ignore[misc]
                # The reports of ups and downs add up, whichever came first.
                assert len(one.up) == len(one.down) + 1
                assert len(two.up) == len(two.down) + 1

    asyncio.run(steps())


def test_a_stranger_with_a_neighbours_id_does_not_take_its_place() -> None:
    async def steps() -> None:
        one, first, second = Federator(1), Federator(2, "a"), Federator(2, "b")
        await one.listen()
        try:
            first.book.dial(one.url)
            await eventually(lambda: one.has_link(2))
            second.book.dial(one.url)
            await eventually(lambda: one.book.events.counts["link_id_in_use"] >= 1)
            assert not one.doubles  # the first one may be dead, and the second one its restart
            assert first.book.send_data(1, b"alive", 1, 0)
            await eventually(lambda: one.doubles)
            assert one.doubles == [2]
            assert one.up == [2]
            assert not one.down
            assert one.link(2).peer[PROCESS] == "a"
            assert not second.has_link(1)
        finally:
            for each in (first, second, one):
                await each.book.stop()

    asyncio.run(steps())


def test_a_neighbour_gets_its_place_back_when_a_strangers_connection_ends() -> None:
    async def steps() -> None:
        one, first, second = Federator(1), Federator(2, "a"), Federator(2, "b")
        await one.listen()
        try:
            first.book.dial(one.url)
            await eventually(lambda: one.has_link(2))
            second.book.dial(one.url)
            await eventually(lambda: one.book.events.counts["link_id_in_use"] >= 1)
            first.book.close(1, "the network fails")
            await eventually(lambda: len(one.up) == 2)
            # Whichever of the two was faster has the place. When it ends, the other one gets the place, more than once.
            for winner, loser in ((second, first), (first, second)) * 2:
                if one.link(2).peer[PROCESS] != winner.process:
                    continue
                ups = len(one.up)
                await winner.book.hang_up(one.url)
                await eventually(lambda ups=ups: len(one.up) > ups)  # type: ignore[misc]
                assert one.link(2).peer[PROCESS] == loser.process
                refused = one.book.events.counts["link_id_in_use"]
                winner.book.dial(one.url)
                await eventually(lambda refused=refused: one.book.events.counts["link_id_in_use"] > refused)  # type: ignore[misc]
        finally:
            for each in (first, second, one):
                await each.book.stop()

    asyncio.run(steps())


def test_a_federator_that_restarts_repeatedly_is_never_refused() -> None:
    async def steps() -> None:
        one = Federator(1)
        await one.listen()
        try:
            for start in range(5):
                again = Federator(2, str(start))
                again.book.dial(one.url)
                await eventually(lambda start=start: len(one.up) == start + 1)  # type: ignore[misc]
                await again.book.stop()
                await eventually(lambda start=start: len(one.down) == start + 1)  # type: ignore[misc]
            assert not one.doubles
            assert not one.book.events.counts["link_id_in_use"]
        finally:
            await one.book.stop()

    asyncio.run(steps())


def test_a_refused_process_is_a_conflict_only_if_the_open_link_is_alive_afterwards() -> None:
    doubles = Doubles()
    assert doubles.refusal(2, {PROCESS: "a"}, {PROCESS: "a"}, 7) is None  # its former connection was half open
    assert not doubles.is_new_conflict(2, 8)
    assert doubles.refusal(2, {PROCESS: "a"}, {PROCESS: "b"}, 7) == (
        "federator id 2 is linked from another process, and gets a new link when that one ends; "
        "if both run, give one of the two another --id"
    )
    assert not doubles.is_new_conflict(2, 7)
    assert doubles.refusal(2, {PROCESS: "a"}, {}, 8) is not None
    assert doubles.is_new_conflict(2, 8)
    assert not doubles.is_new_conflict(2, 9)  # it is reported already
    doubles.end(2)
    assert not doubles.is_new_conflict(2, 9)


def test_the_larger_id_may_dial_when_the_smaller_does_not() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.has_link(2) and two.has_link(1))
            assert two.link(1).is_dialled
            await eventually(lambda: one.up == [2])

    asyncio.run(steps())


def test_a_new_link_of_a_neighbour_replaces_its_former_one() -> None:
    """Its process was killed and the former connection is not known to be dead."""

    async def steps() -> None:
        async with Pair(1, 2, 2) as (one, former, again):
            former.book.dial(one.url)
            await eventually(lambda: one.up == [2])
            again.book.dial(one.url)
            await eventually(lambda: one.up == [2, 2])
            assert one.down == [2]
            await eventually(lambda: former.down == [1])
            assert one.book.send_data(2, b"x", 1, 0)
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


def test_a_refused_federator_gets_the_reason() -> None:
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


def test_a_dialler_that_rejects_the_answer_closes_the_link() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.refusal = "no"
            two.book.dial(one.url)
            await eventually(lambda: one.up and one.down)
            assert not two.up

    asyncio.run(steps())


def test_a_token_is_reported_with_the_neighbours_acknowledgement_and_not_before() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.acks_at_once = False
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            assert one.book.send_data(2, b"x", 1, 41)
            assert one.book.send_data(2, b"y", 1, 42)
            await eventually(lambda: len(two.frames) == 2)
            assert all(frame.receipt for frame in two.frames)
            assert (one.taken, one.book.owed(2)) == ([], 2)
            two.ack(1, two.frames[1:])
            await eventually(lambda: one.taken)
            assert (one.taken, one.book.owed(2)) == ([(2, 42)], 1)
            two.ack(1, two.frames)
            await eventually(lambda: len(one.taken) > 1)
            assert (one.taken, one.book.owed(2)) == ([(2, 42), (2, 41)], 0)

    asyncio.run(steps())


def test_a_frame_without_a_token_has_no_receipt_and_is_never_reported() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            one.book.send_data(2, b"x", 1, 0)
            one.book.send_data(2, b"y", 1, 5)
            await eventually(lambda: one.taken)
            assert [frame.receipt > 0 for frame in two.frames] == [False, True]
            assert one.taken == [(2, 5)]

    asyncio.run(steps())


def test_frames_with_a_token_wait_in_order_while_the_link_is_full() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            one.link(2)._data_bytes_max = 200
            wire = one.link(2)._connection
            assert wire is not None
            wire.pause_writing()
            payloads = [b"%03d" % number * 20 for number in range(100)]
            for token, payload in enumerate(payloads, 1):
                assert one.book.send_data(2, payload, 1, token)
            assert one.book._peers[2].waiting
            assert one.book.owed(2) == len(payloads)
            wire.resume_writing()
            await eventually(lambda: len(one.taken) == len(payloads))
            assert one.taken == [(2, token) for token in range(1, len(payloads) + 1)]
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
            assert one.book.send_data(2, b"x" * 80, 3, 0)
            assert not one.book.send_data(2, b"y" * 80, 4, 0)
            assert one.book.drops == {"link_full": 4}
            wire.resume_writing()
            await eventually(lambda: two.frames)
            assert one.book.send_data(2, b"z", 1, 0)

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
            one.book.send_data(2, b"x" * 99, 1, 0)
            one.book.send_control(2, ControlFrame(1, 7, 1, 0, 0))
            wire.resume_writing()
            await eventually(lambda: len(two.frames) == 2)
            assert [frame.topic for frame in two.frames] == [CONTROL_TOPIC, DATA_TOPIC]

    asyncio.run(steps())


def test_frames_to_an_absent_neighbour_are_counted() -> None:
    async def steps() -> None:
        async with Pair(1) as (one,):
            assert not one.book.send_data(9, b"x", 5, 0)
            one.book.send_control(9, ControlFrame(1, 7, 1, 0, 0))
            one.book.ack(9, 1)
            one.book.close(9, "why not")
            assert one.book.drops == {"link_down": 5}

    asyncio.run(steps())


def test_unacknowledged_frames_of_a_closed_link_are_neither_reported_nor_sent_again() -> None:
    """The protocol has it in custody, and learns that the link is down."""

    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.acks_at_once = False
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            one.link(2)._data_bytes_max = 50
            for token in range(1, 5):
                assert one.book.send_data(2, b"x" * 40, 1, token)
            assert one.book.owed(2) == 4
            two.link(1).abort()
            await eventually(lambda: one.down == [2] and len(one.up) == 2 and len(two.up) == 2)
            assert one.book.owed(2) == 0
            two.frames.clear()
            two.acks_at_once = True
            assert one.book.send_data(2, b"y", 1, 9)
            await eventually(lambda: one.taken)
            assert one.taken == [(2, 9)]
            assert [frame.payload for frame in two.frames] == [b"y"]
            assert one.book.drops == {}

    asyncio.run(steps())


def test_a_receipt_is_valid_only_for_the_link_of_its_frame() -> None:
    """The custody of a frame can end long after its link did, and the next link's frames have the same numbers."""

    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.acks_at_once = False
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            one.book.send_data(2, b"x", 1, 1)
            await eventually(lambda: two.frames)
            former = list(two.frames)
            two.frames.clear()
            two.link(1).abort()
            await eventually(lambda: len(one.up) == 2 and len(two.up) == 2)
            one.book.send_data(2, b"x again", 1, 2)
            await eventually(lambda: two.frames)
            assert former[0].receipt != two.frames[0].receipt
            two.ack(1, former)
            one.book.send_data(2, b"after", 1, 3)
            await eventually(lambda: len(two.frames) == 2)
            two.ack(1, two.frames[1:])
            await eventually(lambda: one.taken)
            assert one.taken == [(2, 3)]  # token 2 was not acknowledged in the place of token 1
            two.ack(1, two.frames)
            await eventually(lambda: len(one.taken) == 2)
            assert one.taken == [(2, 3), (2, 2)]

    asyncio.run(steps())


def test_control_frames_beyond_the_capacity_of_a_link_are_dropped_and_counted() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            wire = one.link(2)._connection
            assert wire is not None
            wire.pause_writing()
            one.link(2)._control_bytes = LINK_CONTROL_BYTES_MAX  # as if so many bytes waited for the socket
            assert one.book.send_control(2, ControlFrame(1, 7, 1, 0, 0)) == 0
            assert one.book.drops == {"control_link_full": 1}

    asyncio.run(steps())


def test_each_link_knows_its_dialler() -> None:
    async def steps() -> None:
        async with Pair(1, 2) as (one, two):
            two.book.dial(one.url)
            await eventually(lambda: one.up and two.up)
            assert (one.book.is_up(2), one.book.is_dialled(2)) == (True, False)
            assert (two.book.is_up(1), two.book.is_dialled(1)) == (True, True)
            assert (one.book.is_up(9), one.book.is_dialled(9), one.book.owed(9)) == (False, False, 0)

    asyncio.run(steps())


def test_a_closed_link_is_dialled_again_until_it_is_given_up() -> None:
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


def test_refused_and_claimed_ids_are_security_events(caplog: pytest.LogCaptureFixture) -> None:
    async def steps() -> None:
        async with Pair(1, 2, 3) as (one, two, three):
            one.refusal = "the manager does not know federator 2"
            two.book.dial(one.url)
            await eventually(lambda: one.book.events.counts["link_refused"] > 0)
            claimant = LinkDialler(three.url, "3", three.book, properties=lambda: {"protocol": "1"})
            claimant.start()
            await eventually(lambda: three.book.events.counts["link_id_invalid"] > 0)
            await claimant.stop()

    asyncio.run(steps())
    told = {(vars(one)["security"], vars(one)["claimed_id"]) for one in caplog.records if "security" in vars(one)}
    assert told == {("link_refused", "2"), ("link_id_invalid", "3")}
    warnings = [one.getMessage() for one in caplog.records if one.name == "hanse.federator.link_events"]
    assert any("the manager does not know federator 2" in one for one in warnings)
