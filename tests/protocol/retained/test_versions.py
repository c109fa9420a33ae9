from hanse.protocol.retained.versions import TIME_MS_MAX, HybridClock, Version, stamp_at


def test_a_version_orders_by_stamp_and_then_by_federator() -> None:
    assert Version(1, 9) < Version(2, 1) < Version(2, 3)


def test_a_version_tells_the_wall_time_of_its_write() -> None:
    assert Version(stamp_at(1_700_000_000_123) + 7, 3).time_ms == 1_700_000_000_123


def test_times_out_of_range_give_stamps_that_fit_on_the_wire() -> None:
    assert stamp_at(-5) == 0
    assert stamp_at(TIME_MS_MAX + 1) == stamp_at(TIME_MS_MAX) < 1 << 62


def test_the_clock_follows_wall_time_and_never_repeats() -> None:
    clock = HybridClock(1000)
    assert clock.next(50) == stamp_at(50)
    assert clock.next(50) == stamp_at(50) + 1
    assert clock.next(49) == stamp_at(50) + 2
    assert clock.next(51) == stamp_at(51)


def test_a_batch_takes_as_many_stamps_as_it_has_publications() -> None:
    clock = HybridClock(1000)
    assert clock.next(50, 10) == stamp_at(50)
    assert clock.next(50) == stamp_at(50) + 10


def test_the_clock_exceeds_every_stamp_that_it_was_shown() -> None:
    clock = HybridClock(1000)
    clock.see(stamp_at(80) + 4)
    clock.see(stamp_at(70))
    assert clock.next(60) == stamp_at(80) + 5


def test_a_stamp_far_ahead_of_the_wall_clock_is_refused() -> None:
    clock = HybridClock(1000)
    assert not clock.is_refused(50, stamp_at(1050))
    assert clock.is_refused(50, stamp_at(1050) + 1)
