from hanse.gateway.brokers.health import Health, suspects_to_judge


def test_a_refused_session_is_a_verdict_at_once() -> None:
    health = Health()
    assert health.refused("connection refused")
    assert health.verdict == "refused"
    assert health.incarnation == 1
    assert not health.refused("again")


def test_two_answers_bring_a_broker_back() -> None:
    health = Health()
    health.refused("x")
    health.asked(1.0)
    assert not health.answered(1.1)
    assert health.verdict == "refused"
    health.asked(2.0)
    assert health.answered(2.1)
    assert health.verdict == "up"


def test_an_answer_between_two_refusals_does_not_count() -> None:
    health = Health()
    health.refused("x")
    health.answered(1.0)
    health.refused("x")
    assert not health.answered(2.0)


def test_silence_is_suspect_only_without_any_bytes() -> None:
    health = Health()
    health.asked(10.0)
    assert not health.is_suspect(10.9, 1.0)
    assert health.is_suspect(11.1, 1.0)
    health.heard(10.5)
    assert not health.is_suspect(11.1, 1.0)
    assert health.is_suspect(11.6, 1.0)
    health.answered(11.7)
    assert not health.is_suspect(99.0, 1.0)


def test_the_oldest_open_question_counts() -> None:
    health = Health()
    health.asked(1.0)
    health.asked(2.0)
    assert health.is_suspect(2.1, 1.0)


def test_no_broker_is_hung_when_more_than_half_are_suspect() -> None:
    brokers = [(name, Health()) for name in "abcd"]
    for _, health in brokers[:3]:
        health.asked(0.0)
    assert suspects_to_judge(brokers, 2.0, 1.0) == ([], True)
    brokers[0][1].answered(2.0)
    assert suspects_to_judge(brokers, 2.0, 1.0) == (["b", "c"], False)


def test_a_hung_broker_still_counts_as_suspect() -> None:
    brokers = [(name, Health()) for name in "abc"]
    brokers[0][1].asked(0.0)
    assert suspects_to_judge(brokers, 2.0, 1.0) == (["a"], False)
    assert brokers[0][1].hung(1.0)
    assert not brokers[0][1].hung(1.0)
    assert suspects_to_judge(brokers, 2.0, 1.0) == ([], False)
    brokers[1][1].asked(2.0)
    assert suspects_to_judge(brokers, 4.0, 1.0) == ([], True)


def test_the_round_trip_is_an_average() -> None:
    health = Health()
    health.asked(0.0)
    health.answered(0.010)
    health.asked(1.0)
    health.answered(1.020)
    assert health.rtt_s is not None
    assert 0.0119 < health.rtt_s < 0.0121
