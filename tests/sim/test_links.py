"""Links between simulated federators, judged by what reaches the machines."""

from collections.abc import Sequence

import pytest

from hanse.protocol.events import Event, LinkDown, LinkUp
from hanse.protocol.messages import ControlFrame, Run
from hanse.protocol.settings import Settings
from hanse.sim import overlay
from hanse.sim.federation import Federation, Node
from hanse.sim.host import Client
from hanse.sim.links import Noise
from hanse.sim.monitor import Monitor


class Diary(Monitor):
    """Record of what machines hear."""

    def __init__(self) -> None:
        self.frames: list[tuple[float, int, int, ControlFrame]] = []
        self.links: list[tuple[float, int, Event]] = []
        self.lost = 0

    def attach(self, federation: Federation) -> None:
        self._engine = federation.engine

    def heard(self, node: Node, neighbour: int, frame: ControlFrame) -> None:
        self.frames.append((self._engine.now, neighbour, node.identity, frame))

    def stepped(self, node: Node, event: Event) -> None:
        if isinstance(event, LinkUp | LinkDown):
            self.links.append((self._engine.now, node.identity, event))

    def lost_in_flight(self, runs: Sequence[Run]) -> None:
        del runs
        self.lost += 1


def pair(
    latency_s: tuple[float, float] = (0.1, 0.1), *, is_wire: bool = True, seed: int = 1
) -> tuple[Federation, Diary]:
    diary = Diary()
    federation = Federation(overlay.line(2), Settings(), seed=seed, latency_s=latency_s, is_wire=is_wire, monitor=diary)
    federation.start(0)
    federation.start(1)
    federation.subscribe(Client("anna", 1), "a")
    federation.run(5.0)
    return federation, diary


def numbers(diary: Diary, target: int, since_s: float) -> list[int]:
    return [frame.number for time_s, _, to, frame in diary.frames if to == target and time_s >= since_s]


def events(diary: Diary, identity: int) -> Sequence[type[Event]]:
    return [type(event) for _, to, event in diary.links if to == identity]


def test_both_ends_learn_of_a_new_link_after_its_latency() -> None:
    _, diary = pair()
    assert [(time_s, to) for time_s, to, _ in diary.links] == [(0.1, 1), (0.1, 0)]


def test_latency_is_drawn_once_per_link_within_the_range() -> None:
    federation = Federation(overlay.ring(20), Settings(), seed=1, latency_s=(0.005, 0.1))
    drawn = [way.latency_s for link in federation.links.values() for way in link.directions]
    assert all(0.005 <= latency_s <= 0.1 for latency_s in drawn)
    assert len(set(drawn)) == 20


@pytest.mark.parametrize("is_wire", [True, False])
def test_frames_arrive_in_order_and_none_is_missing(is_wire: bool) -> None:
    _, diary = pair(is_wire=is_wire)
    for target in (0, 1):
        seen = numbers(diary, target, 0.0)
        assert seen == list(range(seen[0], seen[0] + len(seen)))


def test_both_ends_learn_of_a_cut_with_a_reset_and_a_new_connection_heals_it() -> None:
    federation, diary = pair()
    federation.close_link((0, 1), is_silent=False)
    federation.run(3.0)
    assert events(diary, 0) == events(diary, 1) == [LinkUp, LinkDown]
    assert federation.live_neighbours(0) == []
    federation.open_link((0, 1), is_silent=False)
    federation.run(3.0)
    assert events(diary, 0) == events(diary, 1) == [LinkUp, LinkDown, LinkUp]
    assert federation.live_neighbours(0) == [1]


def test_frames_in_flight_when_a_link_breaks_are_lost() -> None:
    federation, diary = pair()
    federation.publish(0, [(1, "a", 0)])
    federation.run(0.05)
    federation.close_link((0, 1), is_silent=False)
    federation.run(1.0)
    assert diary.lost == 1


def test_a_silent_cut_holds_frames_back_and_delivers_them_in_order_if_it_ends_in_time() -> None:
    federation, diary = pair()
    federation.close_link((0, 1), is_silent=True)
    now = federation.engine.now
    federation.run(1.2)
    assert numbers(diary, 1, now + 0.11) == []
    federation.open_link((0, 1), is_silent=True)
    federation.run(2.0)
    assert events(diary, 1) == [LinkUp]
    seen = numbers(diary, 1, 0.0)
    assert seen == list(range(seen[0], seen[0] + len(seen)))


def test_both_ends_give_up_a_lasting_silent_cut() -> None:
    federation, diary = pair()
    federation.close_link((0, 1), is_silent=True)
    federation.run(10.0)
    assert events(diary, 0) == events(diary, 1) == [LinkUp, LinkDown]


def test_cuts_nest() -> None:
    federation, _ = pair()
    federation.close_link((0, 1), is_silent=False)
    federation.close_link((0, 1), is_silent=False)
    federation.open_link((0, 1), is_silent=False)
    federation.run(2.0)
    assert federation.live_neighbours(0) == []
    federation.open_link((0, 1), is_silent=False)
    federation.run(2.0)
    assert federation.live_neighbours(0) == [1]


def test_a_deaf_direction_loses_everything_and_tells_nobody_while_the_other_direction_works() -> None:
    federation, diary = pair()
    now = federation.engine.now
    federation.deafen(0, 1, is_deaf=True)
    federation.run(3.0)
    assert numbers(diary, 1, now + 0.11) == []
    assert len(numbers(diary, 0, now + 0.11)) >= 2
    assert events(diary, 1) == [LinkUp]
    federation.deafen(0, 1, is_deaf=False)
    federation.run(2.0)
    assert numbers(diary, 1, now + 3.0)


def test_noise_loses_reorders_and_replays_control_frames() -> None:
    federation, diary = pair()
    now = federation.engine.now
    federation.links[0, 1].set_noise(Noise(loss=0.2, reorder=0.3, replay=0.3))
    federation.run(200.0)
    seen = numbers(diary, 1, now)
    assert seen != sorted(seen)
    assert len(seen) != len(set(seen))
    assert set(range(min(seen), max(seen))) - set(seen)
    federation.links[0, 1].set_noise(None)
    federation.run(2.0)
    later = numbers(diary, 1, federation.engine.now - 1.3)
    assert later == sorted(set(later))


def test_neighbours_see_a_reset_from_a_killed_federator_and_silence_from_a_dark_host() -> None:
    federation, diary = pair()
    federation.stop(0)
    federation.run(1.0)
    assert events(diary, 1) == [LinkUp, LinkDown]
    federation.start(0)
    federation.run(2.0)
    federation.stop(0, is_silent=True)
    federation.run(1.0)
    assert events(diary, 1) == [LinkUp, LinkDown, LinkUp]
    federation.run(6.0)
    assert events(diary, 1) == [LinkUp, LinkDown, LinkUp, LinkDown]


def test_a_restarted_federator_ends_the_connection_that_its_neighbour_still_held() -> None:
    federation, diary = pair()
    federation.stop(0, is_silent=True)
    federation.run(0.5)
    federation.start(0)
    federation.run(2.0)
    assert events(diary, 1) == [LinkUp, LinkDown, LinkUp]
    # The new machine of 0 hears only of its own connection.
    assert events(diary, 0) == [LinkUp, LinkUp]


def test_a_paused_federator_hears_everything_late_and_in_order() -> None:
    federation, diary = pair()
    federation.pause(1)
    now = federation.engine.now
    federation.run(2.0)
    assert numbers(diary, 1, now + 1e-9) == []
    federation.resume(1)
    seen = numbers(diary, 1, 0.0)
    assert seen == list(range(seen[0], seen[0] + len(seen)))
    assert len(numbers(diary, 1, federation.engine.now)) >= 2


def test_a_paused_federator_reads_its_socket_before_it_learns_that_the_link_is_gone() -> None:
    class Known(Diary):
        def heard(self, node: Node, neighbour: int, frame: ControlFrame) -> None:
            super().heard(node, neighbour, frame)
            known.append(node.ways[neighbour].link.direction_to(node.identity).is_known)

    known: list[bool] = []
    diary = Known()
    federation = Federation(overlay.line(2), Settings(), seed=1, monitor=diary)
    federation.start(0)
    federation.start(1)
    federation.run(5.0)
    federation.pause(1)
    federation.run(3.0)
    federation.close_link((0, 1), is_silent=False)
    federation.run(1.0)
    known.clear()
    federation.resume(1)
    # The contents of its socket come first, over a link that it still has.
    assert len(known) >= 3
    assert all(known)
    assert events(diary, 1)[-1] is LinkDown
    assert not federation.link_between(0, 1).direction_to(1).is_known


def test_a_host_broker_that_died_gets_its_subscriptions_back() -> None:
    federation, _ = pair()
    host = federation.nodes[0].host
    assert host.federator_filters == {"a"}
    federation.stop_host(0)
    assert not host.tells_federator("a")
    federation.start_host(0)
    assert host.tells_federator("a")


def test_a_withdrawal_lost_behind_the_first_hop_is_heard_later() -> None:
    federation = Federation(overlay.line(5), Settings(), seed=1)
    for identity in federation.nodes:
        federation.start(identity)
    anna = Client("anna", 1)
    federation.subscribe(anna, "a")
    federation.run(8.0)
    assert all(node.running.core_of("a") == 1 for node in federation.nodes.values())
    # 2 hears that 1 claims nothing any more, and therefore stops announcing it. 3 misses this.
    federation.deafen(2, 3, is_deaf=True)
    federation.unsubscribe(anna, "a")
    federation.run(0.5)
    federation.deafen(2, 3, is_deaf=False)
    assert [node.running.is_known("a") for node in federation.nodes.values()] == [False] * 3 + [True] * 2
    # The route to the lost core ends after some rounds. Then 3 asks its neighbours, and one of them knows.
    federation.run(20.0)
    assert [node.running.is_known("a") for node in federation.nodes.values()] == [False] * 5
