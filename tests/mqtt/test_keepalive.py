import pytest

from hanse.errors import LocalError
from hanse.mqtt.backoff import Backoff, BackoffSettings
from hanse.mqtt.keepalive import KeepAlive


def test_a_quiet_peer_is_pinged_and_then_given_up() -> None:
    keep_alive = KeepAlive(8, 0.0, pings=True)
    assert keep_alive.check_every_s == 2
    assert keep_alive.check(2, 0, 0) == "fine"
    assert keep_alive.check(4, 0, 3.9) == "ping"
    assert keep_alive.check(6, 0, 5.9) == "fine"
    assert keep_alive.check(8, 0, 7.9) == "dead"


def test_any_byte_answers_a_ping() -> None:
    keep_alive = KeepAlive(8, 0.0, pings=True)
    assert keep_alive.check(4, 0, 0) == "ping"
    assert keep_alive.check(6, 4.1, 4) == "fine"
    assert keep_alive.check(8, 7.9, 4) == "ping", "the broker must hear from us too"


def test_an_answer_within_one_tick_of_the_clock_is_an_answer() -> None:
    keep_alive = KeepAlive(8, 0.0, pings=True)
    assert keep_alive.check(4, 0, 0) == "ping"
    assert keep_alive.check(6, 4, 4) == "fine"
    assert keep_alive.check(8, 4, 4) == "ping"
    assert keep_alive.check(10, 4, 8) == "fine"
    assert keep_alive.check(12, 4, 8) == "dead"


def test_a_server_waits_one_and_a_half_intervals() -> None:
    keep_alive = KeepAlive(8, 0.0, pings=False)
    for now in (2, 4, 6, 8, 10, 12):
        assert keep_alive.check(now, 0, 0) == "fine"
    assert keep_alive.check(12.1, 0, 0) == "dead"


def test_an_observer_that_was_stopped_blames_itself_first() -> None:
    keep_alive = KeepAlive(8, 0.0, pings=True)
    assert keep_alive.check(4, 0, 0) == "ping"
    assert keep_alive.check(1000, 0, 4) == "fine"
    assert keep_alive.check(1002, 1001, 4) == "ping"


def test_no_interval_means_no_keep_alive() -> None:
    assert KeepAlive(0, 0.0, pings=True).check(10_000, 0, 0) == "fine"


def test_delays_double_up_to_the_limit_and_reset_after_a_steady_connection() -> None:
    backoff = Backoff(BackoffSettings(first_s=0.1, max_s=1.0, steady_s=5), lambda: 1.0)
    assert [backoff.next_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.held(4.9)
    assert backoff.next_s() == 1.0
    backoff.held(5.0)
    assert backoff.next_s() == 0.1


def test_jitter_shortens_a_delay_by_up_to_half() -> None:
    assert Backoff(BackoffSettings(first_s=0.2), lambda: 0.0).next_s() == 0.1
    with pytest.raises(LocalError):
        BackoffSettings(first_s=2, max_s=1)
