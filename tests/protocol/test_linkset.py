from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.protocol.net import Network

from hanse.protocol.events import LinkDown
from hanse.protocol.linkset import MirroredSet, OwnedSet
from hanse.protocol.messages import Key, SetAck, SetDelta, SetStep

A, B, C = (1, "a"), (1, "b"), (2, "c")


def told(owner: OwnedSet, *keys: Key) -> OwnedSet:
    for key in keys:
        owner.add(key)
    return owner


def exchange(owner: OwnedSet, mirror: MirroredSet, steps_max: int = 100, epoch: int = 1) -> None:
    while (delta := owner.delta(steps_max)) is not None:
        mirror.apply(epoch, delta)
    owner.acknowledge(mirror.ack)


def test_a_frame_carries_the_steps_that_no_frame_has_carried() -> None:
    owner = told(OwnedSet(), A, B)
    assert owner.delta(100) == SetDelta(1, 0, 0, (SetStep(True, *A), SetStep(True, *B)))
    assert owner.delta(100) is None
    assert owner.discard(A)
    assert owner.has_unsent
    assert owner.delta(100) == SetDelta(1, 2, 0, (SetStep(False, *A),))
    assert not owner.has_unsent


def test_a_frame_carries_a_limited_number_of_steps() -> None:
    owner = told(OwnedSet(), A, B, C)
    delta = owner.delta(2)
    assert delta is not None
    assert len(delta.steps) == 2
    assert owner.has_unsent


def test_a_step_that_changes_nothing_is_no_step() -> None:
    owner = told(OwnedSet(), A)
    assert not owner.add(A)
    assert not owner.discard(B)
    delta = owner.delta(100)
    assert delta is not None
    assert delta.steps == (SetStep(True, *A),)


def test_acknowledged_steps_are_dropped_and_others_are_sent_again() -> None:
    owner, mirror = told(OwnedSet(), A, B), MirroredSet()
    exchange(owner, mirror)
    assert not owner.has_unacknowledged
    owner.add(C)
    owner.delta(100)  # lost on the way
    owner.rewind()
    assert owner.delta(100) == SetDelta(1, 2, 0, (SetStep(True, *C),))


def test_an_acknowledgement_of_more_than_was_sent_is_ignored() -> None:
    owner = told(OwnedSet(), A)
    owner.acknowledge(SetAck(1, 2))
    owner.acknowledge(SetAck(7, 1))
    assert owner.has_unacknowledged
    assert owner.delta(100) == SetDelta(1, 0, 0, (SetStep(True, *A),))


def test_the_mirror_waits_for_a_gap_to_be_filled() -> None:
    owner, mirror = told(OwnedSet(), A), MirroredSet()
    lost = owner.delta(100)
    owner.add(B)
    later = owner.delta(100)
    assert lost is not None
    assert later is not None
    assert mirror.apply(1, later) == ([], [])
    assert mirror.keys == set()
    owner.rewind()
    exchange(owner, mirror)
    assert mirror.keys == {A, B}


def test_the_mirror_reports_additions_and_removals_once() -> None:
    owner, mirror = told(OwnedSet(), A, B), MirroredSet()
    delta = owner.delta(100)
    assert delta is not None
    assert mirror.apply(1, delta) == ([A, B], [])
    assert mirror.apply(1, delta) == ([], [])  # the same frame again
    owner.discard(A)
    owner.add(A)  # removed and added within one frame is no change
    owner.discard(B)
    delta = owner.delta(100)
    assert delta is not None
    assert mirror.apply(1, delta) == ([], [B])


def test_a_new_generation_replaces_the_old_set_only_when_it_is_whole() -> None:
    owner, mirror = told(OwnedSet(), A, B), MirroredSet()
    exchange(owner, mirror)
    owner.discard(A)
    owner.add(C)
    owner.restart()
    first, second = owner.delta(1), owner.delta(1)
    assert first is not None
    assert second is not None
    assert mirror.apply(1, first) == ([], [])
    assert mirror.keys == {A, B}
    assert mirror.apply(1, second) == ([C], [A])
    assert mirror.keys == {B, C}


def test_an_older_generation_or_epoch_is_ignored() -> None:
    owner, mirror = told(OwnedSet(), A), MirroredSet()
    old = owner.delta(100)
    assert old is not None
    owner.restart()
    exchange(owner, mirror, epoch=2)
    assert mirror.apply(2, old) == ([], [])
    assert mirror.apply(1, SetDelta(9, 0, 0, ())) == ([], [])
    assert mirror.keys == {A}


def test_a_mirror_that_lost_its_state_gets_the_whole_set_again() -> None:
    owner, mirror = told(OwnedSet(), A, B), MirroredSet()
    exchange(owner, mirror)
    assert mirror.clear() == [A, B]
    owner.acknowledge(mirror.ack)  # it goes back, which tells the owner
    exchange(owner, mirror)
    assert mirror.keys == {A, B}


def test_an_empty_set_is_told_once_introduced_until_it_is_acknowledged() -> None:
    owner, mirror = OwnedSet(generation=4), MirroredSet()
    mirror.apply(1, SetDelta(1, 0, 0, (SetStep(True, *A),)))
    assert owner.delta(100) is None
    owner.introduce()
    assert owner.delta(100) == SetDelta(4, 0, 0, ())  # lost
    assert not owner.has_unsent
    assert owner.has_unacknowledged
    owner.rewind()
    exchange(owner, mirror)
    assert mirror.keys == set()
    assert not owner.has_unacknowledged


def test_a_restarted_owners_old_set_holds_until_it_speaks() -> None:
    mirror = MirroredSet()
    mirror.apply(1, SetDelta(3, 0, 0, (SetStep(True, *A),)))
    mirror.await_owner()
    assert mirror.ack == SetAck(0, 0)
    assert mirror.keys == {A}
    mirror.apply(2, SetDelta(1, 0, 0, (SetStep(True, *B),)))
    assert mirror.keys == {B}


def test_a_neighbour_that_restarts_without_interest_is_no_member_any_more() -> None:
    # Federator 0 is the management group's core, so its only memberships are those of its clients.
    net = Network(3, [(0, 1), (1, 2)])
    net.run(3)
    net.subscribe(2, "g")
    net.run(0.3)
    net.subscribe(0, "g")
    net.run(0.3)
    assert net.mesh_links("g") == {(0, 1), (1, 2)}
    net.crash(0)
    net.hosts[0].interest.clear()
    net.run(1)
    assert net.machines[1].is_member("g")  # absent, not gone
    net.restart(0, [1])
    net.run(5)
    assert not net.machines[1].is_member("g")


def test_a_neighbour_that_one_side_forgot_is_mirrored_correctly_again() -> None:
    net = Network(3, [(0, 1), (1, 2)])
    net.run(3)
    net.subscribe(0, "a", "b")
    net.run(0.3)
    net.subscribe(2, "a", "b")
    net.run(0.3)
    net.unsubscribe(2, "a")
    net.run(0.3)
    net.step(2, LinkDown(1, is_removed=True))
    net.cut(1, 2)
    net.link(1, 2)
    net.run(5)
    assert net.mesh_links("b") == {(0, 1), (1, 2)}
    assert net.mesh_links("a") == set()


# --- two ends over a bad channel ------------------------------------------------------------------------------------


class ToMirror(NamedTuple):
    number: int
    epoch: int
    delta: SetDelta | None


class ToOwner(NamedTuple):
    number: int
    echo_epoch: int
    ack: SetAck


KEYS = st.tuples(st.integers(0, 2), st.sampled_from("ab"))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS),
        st.tuples(st.just("discard"), KEYS),
        st.tuples(st.sampled_from(["tell", "acknowledge", "rewind", "restart", "reboot", "forget"]), st.none()),
        st.tuples(st.sampled_from(["hear", "hear_again", "lose", "heed", "heed_again"]), st.integers(0, 5)),
    ),
    max_size=60,
)


class Ends:
    """An owner and its mirror, with frames under way in both directions, and the rules R3 and R38 between them."""

    def __init__(self, steps_max: int) -> None:
        self.steps_max = steps_max
        self.owner, self.mirror = OwnedSet(), MirroredSet()
        self.epoch = 1
        self.heard = (0, 0)
        self.heeded = 0
        self.sent = 0
        self.forth: list[ToMirror] = []
        self.back: list[ToOwner] = []
        # The additions and removals that the mirror reported, put together. They must equal what the mirror shows.
        self.shadow: set[Key] = set()

    def tell(self) -> None:
        self.sent += 1
        self.forth.append(ToMirror(self.sent, self.epoch, self.owner.delta(self.steps_max)))

    def acknowledge(self) -> None:
        self.sent += 1
        self.back.append(ToOwner(self.sent, self.heard[0], self.mirror.ack))

    def reboot(self) -> None:
        keys = self.owner.keys
        self.owner = told(OwnedSet(), *sorted(keys))
        self.epoch += 1

    def forget(self) -> None:
        self.shadow -= set(self.mirror.clear())

    def hear(self, frame: ToMirror) -> None:
        if (frame.epoch, frame.number) <= self.heard:
            return
        if frame.epoch > self.heard[0] and self.heard[0]:
            self.mirror.await_owner()
        self.heard = (frame.epoch, frame.number)
        if frame.delta is None:
            return
        came, went = self.mirror.apply(frame.epoch, frame.delta)
        assert not self.shadow & set(came)
        assert self.shadow >= set(went)
        self.shadow = (self.shadow | set(came)) - set(went)
        assert self.shadow == self.mirror.keys

    def heed(self, frame: ToOwner) -> None:
        if frame.number <= self.heeded:
            return
        self.heeded = frame.number
        if frame.echo_epoch == self.epoch:
            self.owner.acknowledge(frame.ack)

    def do(self, action: str, argument: object) -> None:
        match action, argument:
            case ("add", (int() as core, str() as group)):
                self.owner.add((core, group))
            case ("discard", (int() as core, str() as group)):
                self.owner.discard((core, group))
            case ("hear" | "hear_again" | "lose", int() as index) if index < len(self.forth):
                frame = self.forth[index] if action == "hear_again" else self.forth.pop(index)
                if action != "lose":
                    self.hear(frame)
            case ("heed" | "heed_again", int() as index) if index < len(self.back):
                self.heed(self.back[index] if action == "heed_again" else self.back.pop(index))
            case ("tell", _):
                self.tell()
            case ("acknowledge", _):
                self.acknowledge()
            case ("rewind", _):
                self.owner.rewind()
            case ("restart", _):
                self.owner.restart()
            case ("reboot", _):
                self.reboot()
            case ("forget", _):
                self.forget()


@settings(max_examples=examples(200), deadline=None)
@given(ACTIONS, st.integers(1, 3))
def test_the_mirror_ends_with_the_owners_set_whatever_the_channel_does(
    actions: list[tuple[str, object]], steps_max: int
) -> None:
    ends = Ends(steps_max)
    for action, argument in actions:
        ends.do(action, argument)
    ends.forth.clear()
    ends.back.clear()
    ends.owner.introduce()
    for _ in range(60):
        ends.tell()
        ends.hear(ends.forth.pop())
        ends.acknowledge()
        ends.heed(ends.back.pop())
        if not ends.owner.has_unsent and ends.owner.has_unacknowledged:
            ends.owner.rewind()
    assert ends.mirror.keys == ends.owner.keys
    assert not ends.owner.has_unacknowledged


def test_an_empty_set_is_told_after_a_restart() -> None:
    owner = OwnedSet()
    assert owner.delta(100) is None
    owner.restart()
    assert owner.delta(100) == SetDelta(2, 0, 0, ())
