from hanse.mqtt.gathering import (
    ENOUGH_BYTES,
    LARGE_BYTES,
    LONG_S,
    READS_A_WINDOW,
    SHORT_S,
    SMALL_BYTES,
    WINDOW_S,
    Gathering,
)


def read_at(gathering: Gathering, rate_per_s: float, count: int, size: int = 70) -> list[float]:
    return [gathering.pause_s(100.0 + k / rate_per_s, size) for k in range(count)]


def test_a_thousand_reads_a_second_are_never_made_to_wait() -> None:
    assert not any(read_at(Gathering(), 1_000, 10_000))


def test_many_reads_within_a_moment_are_gathered_for_a_moment() -> None:
    pauses = read_at(Gathering(), 2 * READS_A_WINDOW / WINDOW_S, 4 * READS_A_WINDOW, SMALL_BYTES)
    assert not any(pauses[: READS_A_WINDOW - 1])
    assert set(pauses[2 * READS_A_WINDOW :]) == {SHORT_S}


def test_what_gathers_much_is_gathered_longer() -> None:
    gathering = Gathering()
    assert read_at(gathering, 100_000, 3 * READS_A_WINDOW, LARGE_BYTES)[-1] == LONG_S
    assert gathering.pause_s(200.0, LARGE_BYTES - 1) == SHORT_S


def test_a_stream_that_ebbs_is_read_at_once_again() -> None:
    gathering = Gathering()
    assert read_at(gathering, 100_000, 2 * READS_A_WINDOW, SMALL_BYTES)[-1]
    assert not gathering.pause_s(200.0, SMALL_BYTES - 1)
    assert not gathering.pause_s(200.1, SMALL_BYTES)


def test_reads_that_are_large_already_are_never_made_to_wait() -> None:
    assert not any(read_at(Gathering(), 100_000, 100, ENOUGH_BYTES))
