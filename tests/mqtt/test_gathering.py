from hanse.mqtt.gathering import (
    ENOUGH_BYTES,
    FEW_ACKNOWLEDGEMENTS,
    FEW_PACKETS,
    LARGE_BYTES,
    LONG_S,
    MANY_PACKETS,
    MISSES_MAX,
    READS_A_WINDOW,
    REST_S,
    SHORT_S,
    SMALL_BYTES,
    UNIX_FULL_PACKETS,
    UNIX_LONG_S,
    WIDE_WINDOW,
    WINDOW_S,
    Gathering,
)


def read_at(gathering: Gathering, rate_per_s: float, count: int, size: int = 70, packets: int = 1) -> list[float]:
    return [gathering.pause_s(100.0 + k / rate_per_s, size, packets) for k in range(count)]


def test_a_thousand_reads_per_second_are_never_delayed() -> None:
    assert not any(read_at(Gathering(), 1_000, 10_000))


def test_a_full_pause_is_as_long_as_the_wire_can_buffer_the_stream() -> None:
    for gathering, long_s in ((Gathering(), LONG_S), (Gathering(UNIX_LONG_S), UNIX_LONG_S)):
        assert max(read_at(gathering, 10_000, 100, LARGE_BYTES)) == long_s


def test_a_sender_stopped_by_a_full_socket_does_not_wait_long() -> None:
    gathering = Gathering(UNIX_LONG_S, UNIX_FULL_PACKETS)
    assert read_at(gathering, 10_000, 100, LARGE_BYTES)[-1] == UNIX_LONG_S
    assert gathering.pause_s(200.0, 70 * (UNIX_FULL_PACKETS - 1), UNIX_FULL_PACKETS - 1) == UNIX_LONG_S
    assert gathering.pause_s(200.1, 70 * UNIX_FULL_PACKETS, UNIX_FULL_PACKETS) == SHORT_S
    # Nobody waits until acknowledgements are read.
    assert gathering.pause_s(200.2, 4 * UNIX_FULL_PACKETS, UNIX_FULL_PACKETS) == UNIX_LONG_S


def test_many_reads_in_a_short_time_are_gathered_for_a_short_time() -> None:
    pauses = read_at(Gathering(), 2 * READS_A_WINDOW / WINDOW_S, 4 * READS_A_WINDOW, SMALL_BYTES)
    assert not any(pauses[: READS_A_WINDOW - 1])
    assert set(pauses[2 * READS_A_WINDOW :]) == {SHORT_S}


def test_a_stream_that_gathers_much_is_gathered_longer() -> None:
    gathering = Gathering()
    assert read_at(gathering, 100_000, 3 * READS_A_WINDOW, LARGE_BYTES)[-1] == LONG_S
    assert gathering.pause_s(200.0, LARGE_BYTES - 1, 1) == SHORT_S


def test_a_stream_that_ebbs_is_again_read_at_once() -> None:
    gathering = Gathering()
    assert read_at(gathering, 100_000, 2 * READS_A_WINDOW, SMALL_BYTES)[-1]
    assert not gathering.pause_s(200.0, SMALL_BYTES - 1, 1)
    assert not gathering.pause_s(200.1, SMALL_BYTES, 1)


def test_reads_that_are_already_large_are_never_delayed() -> None:
    assert not any(read_at(Gathering(), 100_000, 100, ENOUGH_BYTES))


def test_acknowledgements_are_gathered_by_their_number() -> None:
    gathering = Gathering()
    assert read_at(gathering, 100_000, 2 * READS_A_WINDOW, 4)[-1] == SHORT_S
    assert gathering.pause_s(100.001, 4 * FEW_PACKETS, FEW_PACKETS) == SHORT_S
    assert gathering.pause_s(100.002, 4 * MANY_PACKETS, MANY_PACKETS) == LONG_S
    assert not gathering.pause_s(100.007, 4 * FEW_PACKETS - 4, FEW_PACKETS - 1)


def test_a_few_acknowledgements_that_nobody_waits_for_justify_a_pause() -> None:
    for window, is_gathered in ((WIDE_WINDOW, True), (WIDE_WINDOW - 1, False)):
        gathering = Gathering()
        gathering.know_window(window)
        assert read_at(gathering, 100_000, 2 * READS_A_WINDOW, 4)[-1] == SHORT_S
        assert bool(gathering.pause_s(100.001, 4 * FEW_ACKNOWLEDGEMENTS, FEW_ACKNOWLEDGEMENTS)) is is_gathered
    # For other packets the window says nothing, and fewer than a few mean that the stream has ebbed.
    for packets, size in ((FEW_ACKNOWLEDGEMENTS, 5 * FEW_ACKNOWLEDGEMENTS), (7, 4 * 7)):
        gathering = Gathering()
        gathering.know_window(WIDE_WINDOW)
        assert read_at(gathering, 100_000, 2 * READS_A_WINDOW, 4)[-1] == SHORT_S
        assert not gathering.pause_s(100.001, size, packets)


def test_a_peer_that_waits_for_our_acknowledgements_is_not_delayed_repeatedly() -> None:
    gathering = Gathering()
    # 20 messages per turn are what Mosquitto sends before it waits: no pause brings more.
    now = 100.0
    pauses = 0
    while now < 100.0 + REST_S:
        now += 1 / 100_000
        if gathering.pause_s(now, 40, 1):
            pauses += 1
            now += SHORT_S
            assert not gathering.pause_s(now, 20 * 40, 20)
    assert pauses == MISSES_MAX
    later = [gathering.pause_s(now + REST_S + k / 100_000, 40, 1) for k in range(2 * READS_A_WINDOW)]
    assert later[-1] == SHORT_S
