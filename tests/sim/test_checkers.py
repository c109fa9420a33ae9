"""The checkers, proved by sabotage: a machine that breaks a rule makes the checker for that rule fail."""

from collections.abc import Sequence
from typing import Any

import pytest

from hanse.errors import HanseError, LocalError
from hanse.protocol.effects import CloseLink, Effect
from hanse.protocol.events import Event, Tick
from hanse.protocol.forwarding import Routed
from hanse.protocol.machine import Machine
from hanse.protocol.messages import Publication, Run
from hanse.protocol.settings import Settings
from hanse.sim import overlay
from hanse.sim.checkers import Checkers, InvariantError
from hanse.sim.convergence import why_not_converged
from hanse.sim.federation import Federation
from hanse.sim.host import Client
from hanse.sim.ledger import Message
from hanse.sim.overlay import Overlay
from hanse.sim.packets import publish_packet


def world(
    machine: type[Machine] = Machine, shape: Overlay | None = None, *, is_wire: bool = False
) -> tuple[Federation, Checkers]:
    checkers = Checkers()
    federation = Federation(
        shape or overlay.ring(4), Settings(), seed=1, machine=machine, monitor=checkers, is_wire=is_wire
    )
    for identity in federation.nodes:
        federation.start(identity)
    federation.subscribe(Client("anna", 2), "a")
    federation.subscribe(Client("ben", 3), "a")
    return federation, checkers


def live(federation: Federation, checkers: Checkers, rounds: int = 12) -> None:
    for k in range(rounds):
        federation.run(1.0)
        federation.publish(0, [(2 * k, "a", 1), (2 * k + 1, "a", 1)])
        checkers.sweep()
    for _ in range(8):
        federation.run(1.0)
        checkers.sweep()


def live_and_close(federation: Federation, checkers: Checkers) -> None:
    live(federation, checkers)
    checkers.close()


def fails(machine: type[Machine], name: str, *, is_wire: bool = False) -> None:
    federation, checkers = world(machine, is_wire=is_wire)
    with pytest.raises(InvariantError) as raised:
        live_and_close(federation, checkers)
    assert raised.value.name == name, str(raised.value)


@pytest.mark.parametrize("is_wire", [True, False])
def test_an_honest_machine_passes(is_wire: bool) -> None:
    federation, checkers = world(is_wire=is_wire)
    live(federation, checkers)
    assert checkers.ledger.eligible > 20
    assert checkers.ledger.counters["delivered"] == checkers.ledger.eligible
    assert not checkers.ledger.lost


class Deliverer(Machine):
    """Machine whose deliveries a test can change."""

    def change(self, deliveries: list[Run]) -> list[Run]:
        return deliveries

    def forward(self, now: float, neighbour: int, runs: Sequence[Run], receipt: int = 0) -> Routed:
        routed = super().forward(now, neighbour, runs, receipt)
        return Routed(routed.frames, self.change(routed.deliveries) if routed.deliveries else [])


def test_a_message_delivered_twice_is_found() -> None:
    class Twice(Deliverer):
        def change(self, deliveries: list[Run]) -> list[Run]:
            return deliveries * 2

    fails(Twice, "duplicate")


def test_a_message_that_was_never_published_is_found() -> None:
    class Inventor(Deliverer):
        def change(self, deliveries: list[Run]) -> list[Run]:
            return [deliveries[0]._replace(length=1, body=publish_packet("a", 1, 999_999))]

    fails(Inventor, "delivered what was not published")


def test_a_message_that_was_altered_is_found() -> None:
    class Scribbler(Deliverer):
        def change(self, deliveries: list[Run]) -> list[Run]:
            return [run._replace(body=run.body[:-1] + b"\xff") for run in deliveries]

    fails(Scribbler, "delivered what was not published")


def test_a_body_cut_short_is_found() -> None:
    class Cutter(Deliverer):
        def change(self, deliveries: list[Run]) -> list[Run]:
            return [run._replace(body=run.body[:-1]) for run in deliveries]

    fails(Cutter, "corrupted")


def test_a_wrong_origin_is_found() -> None:
    class Thief(Deliverer):
        def change(self, deliveries: list[Run]) -> list[Run]:
            return [run._replace(origin=run.origin + 1) for run in deliveries]

    fails(Thief, "corrupted")


def test_a_message_that_is_not_delivered_is_found() -> None:
    class Deaf(Deliverer):
        def change(self, deliveries: list[Run]) -> list[Run]:
            del deliveries
            return []

    fails(Deaf, "lost")


def test_an_id_used_twice_is_found() -> None:
    class Repeater(Machine):
        def publish(
            self,
            now: float,
            publications: Sequence[Publication],
            receipt: int = 0,
            again: tuple[int, int] | None = None,
            stamp: int = 0,
        ) -> Routed:
            self._forwarding.next_id = 0
            return super().publish(now, publications, receipt, again, stamp)

    fails(Repeater, "id reused")


def test_an_echo_to_the_host_is_found() -> None:
    class Echo(Machine):
        def publish(
            self,
            now: float,
            publications: Sequence[Publication],
            receipt: int = 0,
            again: tuple[int, int] | None = None,
            stamp: int = 0,
        ) -> Routed:
            routed = super().publish(now, publications, receipt, again, stamp)
            return Routed(routed.frames, [run for runs in routed.frames.values() for run in runs])

    fails(Echo, "echo")


def test_a_message_sent_back_to_its_sender_is_found() -> None:
    class Back(Machine):
        def forward(self, now: float, neighbour: int, runs: Sequence[Run], receipt: int = 0) -> Routed:
            routed = super().forward(now, neighbour, runs, receipt)
            return Routed({**routed.frames, neighbour: list(runs)}, routed.deliveries)

    fails(Back, "back to the sender")


def test_hops_beyond_the_limit_are_found() -> None:
    class Traveller(Machine):
        def publish(
            self,
            now: float,
            publications: Sequence[Publication],
            receipt: int = 0,
            again: tuple[int, int] | None = None,
            stamp: int = 0,
        ) -> Routed:
            routed = super().publish(now, publications, receipt, again, stamp)
            return Routed({to: [run._replace(hops=65) for run in runs] for to, runs in routed.frames.items()}, [])

    fails(Traveller, "hops")


def test_a_parent_at_the_wrong_distance_is_found() -> None:
    class Liar(Machine):
        def distance_to(self, core: int) -> int | None:
            distance = super().distance_to(core)
            return distance + 1 if distance and distance > 1 else distance

    fails(Liar, "parent distance")


def test_more_parents_than_the_redundancy_are_found() -> None:
    class Greedy(Machine):
        def parents_of(self, core: int) -> tuple[int, ...]:
            parents = super().parents_of(core)
            return parents * 3 if parents else parents

    fails(Greedy, "too many parents")


def test_a_parent_that_is_no_neighbour_is_found() -> None:
    class Stranger(Machine):
        def parents_of(self, core: int) -> tuple[int, ...]:
            return (99,) if super().parents_of(core) else ()

    fails(Stranger, "parent without a link")


def test_a_core_with_parents_is_found() -> None:
    federation, checkers = world()
    federation.run(3.0)
    with pytest.raises(InvariantError, match="core with parents"):
        checkers._check_route(federation.nodes[0], 0, 0, (1,))


def test_a_lasting_loop_is_found_and_a_passing_one_is_counted() -> None:
    federation, checkers = world()
    live(federation, checkers, 4)
    one, other = federation.nodes[1].running, federation.nodes[2].running
    for machine, parent in ((one, 2), (other, 1)):
        route = machine._ways.route(0)
        assert route is not None
        route.parents = (parent,)
    checkers._check_loop(1, 0)
    assert checkers.ledger.counters["loops"] == 1
    with pytest.raises(InvariantError, match="lasting loop"):
        checkers._check_loop(1, 0, is_second_look=True)


def test_two_cores_are_found() -> None:
    class Selfish(Machine):
        def cores(self) -> dict[str, int | None]:
            cores = super().cores()
            return {**cores, "a": self.identity} if cores.get("a") is not None and self.identity == 3 else cores

    fails(Selfish, "not converged")


def test_a_stale_epoch_is_found() -> None:
    class Old(Machine):
        def core_epoch(self, core: int) -> int | None:
            epoch = super().core_epoch(core)
            return epoch - 1 if epoch and core != self.identity else epoch

    fails(Old, "not converged")


def test_a_mesh_link_that_only_one_side_knows_is_found() -> None:
    class Forgetful(Machine):
        def mesh_neighbours(self, group: str) -> tuple[int, ...]:
            return () if self.identity == 2 else super().mesh_neighbours(group)

    fails(Forgetful, "not converged")


def test_a_link_closed_without_reason_is_found() -> None:
    class Grumpy(Machine):
        def step(self, now: float, event: Event) -> list[Effect]:
            effects = super().step(now, event)
            return [*effects, CloseLink(1, "no reason")] if isinstance(event, Tick) and now > 3 else effects

    fails(Grumpy, "link closed")


def test_a_change_of_route_in_a_quiet_round_is_found() -> None:
    class Fickle(Machine):
        is_turned = False

        def parents_of(self, core: int) -> tuple[int, ...]:
            parents = super().parents_of(core)
            return parents[::-1] if self.is_turned else parents

    federation, checkers = world(Fickle)
    live(federation, checkers, 8)
    checkers.freeze()
    federation.run(3.0)
    Fickle.is_turned = True
    with pytest.raises(InvariantError, match="route changed in a quiet round"):
        federation.run(3.0)


def test_a_run_cannot_be_frozen_before_it_is_calm() -> None:
    federation, checkers = world()
    federation.run(0.5)
    with pytest.raises(LocalError, match="bound after the last fault"):
        checkers.freeze()


def test_a_machine_that_does_not_move_its_deadline_is_found() -> None:
    class Still(Machine):
        def step(self, now: float, event: Event) -> list[Effect]:
            effects = super().step(now, event)
            if now > 2:
                self.deadline = 2.0
            return effects

    federation, _ = world(Still)
    with pytest.raises(HanseError, match="still has a past deadline"):
        federation.run(5.0)


def test_a_fault_excuses_a_loss_and_is_named_as_its_reason() -> None:
    federation, checkers = world(shape=overlay.line(4))
    for _ in range(8):
        federation.run(1.0)
        checkers.sweep()
    federation.publish(0, [(1, "a", 0)])
    federation.run(0.005)
    federation.close_link((0, 1), is_silent=False)
    for _ in range(10):
        federation.run(1.0)
        checkers.sweep()
    assert checkers.ledger.lost == {"in flight on a link that broke": 2}


def test_a_link_that_comes_up_deaf_has_the_same_bound_as_one_that_becomes_deaf() -> None:
    federation, checkers = world()
    live(federation, checkers)
    # 2 is the core. 1 hears it but is not heard, so 1 takes the other route.
    federation.deafen(1, 2, is_deaf=True)
    for step in (None, federation.stop, federation.start):
        if step is not None:
            step(1)
        for _ in range(10):
            federation.run(1.0)
            checkers.sweep()
    assert federation.nodes[1].running.parents_of(2) == (0,)


def test_a_cut_off_subscriber_is_not_entitled_and_each_side_is_lossless_within_itself() -> None:
    federation, checkers = world(shape=overlay.line(4))
    federation.run(8.0)
    federation.close_link((1, 2), is_silent=False)
    federation.run(8.0)
    federation.publish(0, [(1, "a", 1)])
    federation.publish(2, [(2, "a", 1)])
    for _ in range(8):
        federation.run(1.0)
        checkers.sweep()
    assert checkers.ledger.eligible == 1
    assert checkers.ledger.counters["delivered"] == 1


def test_a_partition_excuses_a_loss_even_if_the_origin_is_gone() -> None:
    federation, checkers = world(shape=overlay.ring(6))
    anna, ben = Client("anna", 2), Client("ben", 3)
    message = Message(0, 0, "a", 1, b"", published_s=5.0, is_told=True, is_calm=False)
    whole = dict.fromkeys(federation.nodes, 0)
    assert not parted(checkers, whole, message, anna)
    assert parted(checkers, {**whole, 2: 2}, message, anna)
    assert not parted(checkers, {**whole, 2: 2}, message, ben)
    # The origin 0 is down. Its neighbours 1 and 5 have what it published.
    left = {1: 1, 2: 2, 3: 2, 4: 2, 5: 5}
    assert parted(checkers, left, message, anna)
    assert not parted(checkers, {**left, 5: 2}, message, anna)
    assert not parted(checkers, {2: 2, 3: 2}, message, anna)


def parted(checkers: Checkers, sides: dict[int, int], message: Message, client: Client) -> bool:
    checkers._partitions = [(message.published_s, sides)]
    return checkers._was_parted(message, client)


def test_a_subscriber_that_leaves_before_the_message_arrives_is_not_entitled() -> None:
    federation, checkers = world()
    federation.run(8.0)
    anna = federation.nodes[2].host.clients["anna"]
    federation.publish(0, [(1, "a", 1)])
    federation.unsubscribe(anna, "a")
    for _ in range(8):
        federation.run(1.0)
        checkers.sweep()
    assert checkers.ledger.eligible == 1


def test_a_new_subscriber_is_entitled_after_two_intervals() -> None:
    federation, checkers = world()
    federation.run(8.0)
    federation.subscribe(Client("cleo", 1), "a")
    federation.publish(0, [(1, "a", 1)])
    assert set(checkers.ledger.messages[1].pending) == {"anna", "ben"}
    federation.run(2.1)
    federation.publish(0, [(2, "a", 1)])
    assert set(checkers.ledger.messages[2].pending) == {"anna", "ben", "cleo"}


def test_the_hand_over_of_an_heir_is_excused_only_while_it_spreads_and_only_until_its_latest_time() -> None:
    """Replay seed 922: an heir that lost its interest keeps the group for K·A, and hands it on a round later (R15)."""
    federation, checkers = world()
    federation.run(10.0)
    changed_s, words_s = federation.engine.now, checkers._words_s()
    assert 0 < words_s < 1
    checkers._interest_s["a"] = changed_s
    assert checkers._excused(changed_s + 1.9) == ["a"]
    assert checkers._excused(changed_s + 3.9) == []
    checkers._handed_s["a"] = changed_s + 3.9
    assert checkers._excused(changed_s + 3.9 + 0.9 * words_s) == ["a"]
    assert checkers._excused(changed_s + 3.9 + 1.1 * words_s) == []
    late_s = checkers._handed_s["a"] = changed_s + 4.1 + words_s
    assert checkers._excused(late_s + 0.5 * words_s) == []


def test_reordering_is_counted() -> None:
    federation, checkers = world()
    federation.run(8.0)
    federation.publish(0, [(1, "a", 1)])
    federation.publish(0, [(2, "a", 1)])
    ledger = checkers.ledger
    ledger.deliver(2, ledger.messages[2], [])
    ledger.deliver(2, ledger.messages[1], [])
    assert ledger.counters["reordered"] == 1


def test_only_a_federator_killed_before_the_acknowledgement_of_a_delivery_may_repeat_it() -> None:
    federation, checkers = world()
    federation.run(8.0)
    federation.publish(0, [(1, "a", 1)])
    ledger = checkers.ledger
    while 2 not in ledger.messages[1].delivered_at:
        federation.run(0.0001)
    epoch = federation.nodes[0].running.epoch
    again = Run(0, epoch, 0, 1, 1, 1, ("a",), ledger.messages[1].packet)
    with pytest.raises(InvariantError, match="delivered twice"):
        checkers.delivered(federation.nodes[2], [again])
    federation.stop(2)
    federation.start(2)
    federation.run(0.005)
    # The neighbour that got no acknowledgement hands it in again later. Here the test delivers it.
    assert ledger.messages[1].taken_at <= {3}
    checkers.delivered(federation.nodes[2], [again])
    assert ledger.counters["repeats"] == 1
    with pytest.raises(InvariantError, match="delivered twice"):
        checkers.delivered(federation.nodes[2], [again])


def test_an_acknowledged_delivery_must_not_be_repeated_after_a_restart() -> None:
    federation, checkers = world()
    federation.run(8.0)
    federation.publish(0, [(1, "a", 1)])
    federation.run(1.0)
    message = checkers.ledger.messages[1]
    assert message.taken_at == {2, 3}
    federation.stop(2)
    federation.start(2)
    federation.run(1.0)
    again = Run(0, federation.nodes[0].running.epoch, 0, 1, 1, 1, ("a",), message.packet)
    with pytest.raises(InvariantError, match="delivered twice"):
        checkers.delivered(federation.nodes[2], [again])


def test_the_first_obstacle_to_convergence_is_named() -> None:
    federation, _ = world()
    assert "1 knows no core" in str(why_not_converged(federation))
    federation.run(10.0)
    assert why_not_converged(federation) is None
    federation.stop(0)
    assert "is not in the component" in str(why_not_converged(federation))


def test_the_machine_under_test_is_the_real_one() -> None:
    federation, _ = world()
    machines: list[Any] = [node.machine for node in federation.nodes.values()]
    assert all(type(machine) is Machine for machine in machines)
