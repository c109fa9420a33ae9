import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.topology.health import Health, Observation, Outcome, Policy


def well(node: int, latency_ms: float = 1.0) -> Observation:
    return Observation(node, Outcome.WELL, latency_ms)


def failed(node: int) -> Observation:
    return Observation(node, Outcome.FAILED)


def ward(count: int) -> Health:
    health = Health()
    health.take_up(dict.fromkeys(range(count)), [])
    return health


def all_but(count: int, lost: set[int]) -> list[Observation]:
    return [failed(i) if i in lost else well(i) for i in range(count)]


def test_two_failures_in_a_row_mean_gone() -> None:
    health = ward(5)
    first = health.judge(all_but(5, {3}))
    assert (first.gone, first.suspects) == ((), (3,))
    second = health.judge([failed(3)])
    assert (second.gone, second.causes) == ((3,), {3: "broker"})


def test_a_success_between_two_failures_makes_a_federator_healthy_again() -> None:
    health = ward(5)
    for _ in range(4):
        assert health.judge(all_but(5, {3})).gone == ()
        assert health.judge(all_but(5, set())).gone == ()


def test_a_silent_federator_is_distinguished_from_a_dead_broker() -> None:
    health = ward(5)
    health.judge([Observation(2, Outcome.SILENT)])
    assert health.judge([Observation(2, Outcome.SILENT)]).causes == {2: "federator"}


def test_a_gone_federator_that_answers_is_back() -> None:
    health = ward(4)
    health.take_up({0: None, 1: None}, [2, 3])
    assert health.judge([well(0), well(2)]).back == (2,)


def test_latency_is_smoothed() -> None:
    health = Health(Policy(smoothing=0.25))
    health.take_up({0: 10.0, 1: None}, [])
    assert health.judge([well(0, 20.0), well(1, 8.0)]).latency_ms == {0: 12.5, 1: 8.0}


def test_a_late_manager_counts_no_failure() -> None:
    health = ward(5)
    for _ in range(20):
        verdict = health.judge(all_but(5, {3}), is_late=True)
        assert verdict.gone == ()
        assert verdict.suspects == ()
        assert verdict.doubt == "the manager's own loop was late"


def test_a_refused_connection_counts_even_if_the_manager_is_late() -> None:
    health = ward(5)
    refused = Observation(3, Outcome.FAILED, is_definite=True)
    first = health.judge([well(0), failed(1), refused], is_late=True)
    assert first.suspects == (3,)
    assert first.doubt == "the manager's own loop was late"
    assert health.judge([refused], is_late=True).gone == (3,)


def test_more_than_half_failing_at_once_is_doubted_for_three_rounds_and_then_believed() -> None:
    health = ward(9)
    lost = {0, 1, 2, 3, 4}
    for _ in range(3):
        assert health.judge(all_but(9, lost)).doubt == "5 of 9 failed at once"
    assert health.judge(all_but(9, lost)).suspects == (0, 1, 2, 3, 4)
    assert health.judge([failed(i) for i in lost]).gone == (0, 1, 2, 3, 4)


def test_a_manager_that_reaches_nobody_declares_nobody_dead() -> None:
    health = ward(9)
    for _ in range(100):
        assert health.judge(all_but(9, set(range(9)))).gone == ()
    assert health.judge(all_but(9, set())).gone == ()


def test_two_of_three_dying_together_are_believed() -> None:
    health = ward(3)
    health.judge(all_but(3, {0, 1}))
    assert health.judge([failed(0), failed(1)]).gone == (0, 1)


def test_gone_federators_are_probed_less_and_less_often() -> None:
    health = ward(2)
    health.take_up({0: None}, [1])
    probed = []
    for number in range(40):
        due = health.due()
        assert 0 in due
        if 1 in due:
            probed.append(number)
        health.judge([failed(i) if i else well(i) for i in due])
    assert probed == [0, 2, *range(6, 40, 4)]


def test_an_observation_of_an_unknown_federator_is_ignored() -> None:
    assert ward(1).judge([failed(7), failed(7)]).gone == ()


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_federator_that_left_the_topology_is_no_longer_watched(rounds: int) -> None:
    health = ward(3)
    for _ in range(rounds):
        health.take_up({0: None, 1: None}, [])
        assert health.due() == [0, 1]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), max_size=30))
def test_nobody_is_gone_without_two_failures_in_a_row(rounds: list[list[bool]]) -> None:
    health = ward(6)
    in_a_row = [0] * 6
    gone: set[int] = set()
    for answers in rounds:
        verdict = health.judge([well(i) if ok else failed(i) for i, ok in enumerate(answers)])
        for i, ok in enumerate(answers):
            in_a_row[i] = 0 if ok else in_a_row[i] + 1
        assert all(in_a_row[i] >= 2 for i in verdict.gone)
        gone |= set(verdict.gone)
        assert all(answers[i] for i in verdict.back)
        gone -= set(verdict.back)
