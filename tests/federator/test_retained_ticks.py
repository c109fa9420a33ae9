"""Conclusions from the uptime of the host broker: writes that waited, and restarts."""

from hanse.federator.retained.ticks import BEHIND_MS_MAX, Ticks

START_MS = 1_000_000_000


def live(ticks: Ticks, uptime_s: int) -> bool:
    return ticks.tick(uptime_s, START_MS + uptime_s * 1_000)


def test_a_write_of_a_live_session_has_not_waited() -> None:
    ticks = Ticks()
    ticks.connected(START_MS, session_present=False)
    assert ticks.waiting_since(START_MS) is None
    assert not live(ticks, 10)
    assert ticks.started_ms == START_MS
    assert ticks.waiting_since(START_MS + 10_500) is None


def test_what_waited_came_after_the_tick_before_it() -> None:
    ticks = Ticks(START_MS)
    live(ticks, 10)
    ticks.heard(START_MS + 12_000)
    back_ms = START_MS + 50_000
    ticks.connected(back_ms, session_present=True)
    assert ticks.waiting_since(back_ms) == START_MS + 12_000
    assert not ticks.tick(20, back_ms)
    assert ticks.waiting_since(back_ms) == START_MS + 20_000
    assert not ticks.tick(40, back_ms)
    assert ticks.waiting_since(back_ms) == START_MS + 40_000
    assert not ticks.tick(50, back_ms)
    assert ticks.waiting_since(back_ms) is None


def test_a_retained_tick_says_nothing_about_what_waited() -> None:
    ticks = Ticks(START_MS)
    ticks.connected(START_MS + 50_000, session_present=True)
    assert not ticks.tick(50, START_MS + 50_000, is_retained=True)
    assert ticks.waiting_since(START_MS + 50_000) == 0


def test_a_smaller_uptime_or_a_later_start_is_a_restart() -> None:
    ticks = Ticks(START_MS)
    assert not live(ticks, 100)
    assert ticks.tick(90, START_MS + 101_000)
    assert ticks.started_ms == START_MS + 11_000
    ticks = Ticks(START_MS)
    assert ticks.tick(100, START_MS + 200_000, looked_after_s=ticks.last_s)
    assert ticks.started_ms == START_MS + 100_000


def test_a_late_tick_is_no_restart() -> None:
    ticks = Ticks()
    live(ticks, 100)
    assert not ticks.tick(110, START_MS + 140_000), "the session is busy"
    assert not ticks.tick(140, START_MS + 141_000, looked_after_s=ticks.last_s)
    assert not ticks.tick(120, START_MS + 142_000), "a look has overtaken it"
    assert ticks.started_ms == START_MS
    assert ticks.tick(5, START_MS + 150_000, looked_after_s=ticks.last_s)
    assert not ticks.tick(6, START_MS + 151_000)


def test_a_retained_tick_may_be_as_old_as_an_interval() -> None:
    ticks = Ticks(START_MS)
    assert not ticks.tick(100, START_MS + 130_000, looked_after_s=ticks.last_s)
    assert ticks.started_ms == START_MS
    assert ticks.tick(100, START_MS + 300_000, looked_after_s=ticks.last_s)


def test_ticks_that_waited_are_no_restart() -> None:
    ticks = Ticks(START_MS)
    live(ticks, 100)
    ticks.connected(START_MS + 500_000, session_present=True)
    assert not ticks.tick(450, START_MS + 500_000)
    assert ticks.waiting_since(START_MS + 500_000) == START_MS + 450_000


def test_a_session_that_never_catches_up_does_so_after_a_minute() -> None:
    ticks = Ticks(START_MS)
    ticks.connected(START_MS, session_present=True)
    ticks.tick(10, START_MS + 30_000)
    assert ticks.waiting_since(START_MS + 30_000) == START_MS + 10_000
    ticks.tick(60, START_MS + 80_000)
    assert ticks.waiting_since(START_MS + 80_000) is None
    assert ticks.started_ms == START_MS + 20_000


def test_without_an_uptime_a_session_catches_up_after_a_while() -> None:
    ticks = Ticks()
    ticks.heard(START_MS)
    ticks.connected(START_MS + 5_000, session_present=True)
    assert ticks.waiting_since(START_MS + 5_000) == START_MS
    assert ticks.waiting_since(START_MS + 5_001 + BEHIND_MS_MAX) is None


def test_a_look_that_takes_long_is_no_restart() -> None:
    ticks = Ticks()
    live(ticks, 100)
    began_s = ticks.last_s
    live(ticks, 110)
    assert not ticks.tick(100, START_MS + 112_000, looked_after_s=began_s)
