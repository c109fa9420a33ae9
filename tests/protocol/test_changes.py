from hanse.protocol.changes import Alarms, Changes, Due


def test_dirty_state_is_taken_once_and_in_order() -> None:
    changes = Changes()
    changes.routes.update((3, 1, 2))
    changes.groups.update(("b", "a"))
    changes.keys.update(((2, "a"), (1, "b")))
    assert changes.take_routes() == [1, 2, 3]
    assert changes.take_routes() == []
    assert changes.take_groups() == ["a", "b"]
    assert changes.take_groups() == []
    assert changes.is_unsettled  # for the keys
    assert changes.take_keys() == [(1, "b"), (2, "a")]
    assert changes.take_keys() == []


def test_nothing_is_unsettled_once_all_is_taken() -> None:
    changes = Changes()
    changes.routes.add(1)
    changes.cores.add(1)  # waits to be sent, not to be settled
    changes.take_routes()
    assert not changes.is_unsettled


def test_state_that_gets_dirty_while_it_is_settled_waits_for_the_next_time() -> None:
    changes = Changes()
    changes.groups.add("a")
    for group in changes.take_groups():
        changes.groups.add(group + "/b")
    assert changes.take_groups() == ["a/b"]


def test_a_new_step_leaves_the_effects_of_the_last_one_alone() -> None:
    changes = Changes()
    first = changes.begin_step()
    assert changes.effects is first
    assert changes.begin_step() is not first


def test_alarms_ring_in_order_of_time_and_then_of_kind() -> None:
    alarms = Alarms(0.0, 10.0)
    alarms.set(2.0, Due.FADED, 7, "g")
    alarms.set(2.0, Due.CORE_LOST, 9)
    alarms.set(1.0, Due.CLAIM, 0, "h")
    alarms.set(3.0, Due.CLAIM, 0, "g")
    assert alarms.next_at == 1.0
    assert list(alarms.ring(2.0)) == [(Due.CLAIM, 0, "h"), (Due.CORE_LOST, 9, ""), (Due.FADED, 7, "g")]
    assert alarms.next_at == 3.0
    assert list(alarms.ring(2.9)) == []


def test_rounds_keep_their_beat_and_missed_rounds_are_not_made_up_for() -> None:
    alarms = Alarms(0.0, 1.0)
    assert alarms.next_at == 1.0
    alarms.begin_round(1.2)
    assert alarms.next_round_at == 2.0
    alarms.begin_round(7.5)
    assert alarms.next_round_at == 8.5


def test_a_step_is_clean_until_something_is_left_to_do() -> None:
    changes = Changes()
    assert changes.is_clean
    changes.claims.add(1)
    assert not changes.is_clean
