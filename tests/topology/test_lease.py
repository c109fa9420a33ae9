from hanse.topology.lease import Held, Watch
from hanse.topology.store import Lease

LEASE = Lease("one", "http://one", 1, 0)


def test_a_lease_without_a_holder_may_be_taken() -> None:
    assert Watch(6.0).may_take(0.0, None)
    assert Watch(6.0).may_take(0.0, Lease("", "", 3, 9))


def test_a_lease_that_stood_still_for_its_length_may_be_taken() -> None:
    watch = Watch(6.0)
    assert not watch.may_take(100.0, LEASE)
    assert not watch.may_take(105.9, LEASE)
    assert watch.may_take(106.0, LEASE)


def test_every_beat_restarts_the_wait() -> None:
    watch = Watch(6.0)
    for beat in range(20):
        assert not watch.may_take(beat * 5.0, Lease("one", "", 1, beat))


def test_the_holder_stops_before_any_watcher_takes_over() -> None:
    # The holder began to write beat 7 at 100.0 and never wrote another. A watcher saw beat 7 no earlier than that.
    held = Held(Lease("one", "", 1, 7), renewed_s=100.0)
    watch = Watch(6.0)
    assert not watch.may_take(100.0, held.lease)
    for now_s in (101.0, 105.0, 105.99, 106.0, 107.0):
        if watch.may_take(now_s, held.lease):
            assert held.is_over(now_s, 6.0)


def test_a_lease_is_renewed_in_time() -> None:
    held = Held(LEASE, renewed_s=100.0)
    assert not held.is_due(101.9, 6.0)
    assert held.is_due(102.0, 6.0)
