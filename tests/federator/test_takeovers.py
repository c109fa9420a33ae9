"""Recognition of takeovers from ticks, log lines and reason codes, without a broker."""

from collections import Counter
from pathlib import Path

import pytest

from hanse.federator.gaps import GAPS_MAX, GapBook
from hanse.federator.takeovers import FIGHT, QUEUED_MAX, SETTLE_S, TICK_EXPIRY_S, Takeovers, uptime_of


class Scene:
    """Takeovers of a process, with a clock in seconds."""

    def __init__(self, path: Path, *, renews: bool = True) -> None:
        self.now_s = 1_000.0
        self.gaps = GapBook(self._clock_us)
        self.counters: Counter[str] = Counter()
        self.renewed = 0
        self._renews = renews
        self.of = Takeovers(
            path / "tick",
            gaps=self.gaps,
            counters=self.counters,
            on_taken_over=self._on_taken_over,
            clock_us=self._clock_us,
        )

    def _clock_us(self) -> int:
        return int(self.now_s * 1e6)

    def _on_taken_over(self) -> bool:
        self.renewed += 1
        return self._renews

    def connect(self, address: str | None = None) -> None:
        self.of.connected(self.now_s, session_present=True, address=address)

    def tick(self, *uptimes_s: int) -> None:
        for one in uptimes_s:
            self.of.tick(b"%d seconds" % one)

    def restart(self, path: Path, *, first: int, watched: int, received: int = 0) -> int:
        """Return how many takeovers the next process finds, whose session has this first tick."""
        after = Scene(path)
        after.connect()
        after.of.received(received)
        after.tick(first)
        after.of.watched_tick(b"%d seconds" % watched)
        return after.counters["session_taken_over"]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.connect()
    made.of.watching()
    return made


def settle(scene: Scene) -> None:
    scene.now_s += SETTLE_S + 0.1
    scene.of.check(scene.now_s)


def test_connections_of_its_own_are_no_takeover(scene: Scene) -> None:
    scene.of.disconnected(scene.now_s, is_taken_over=False, address=None)
    scene.connect()
    scene.of.admitted(scene.now_s, "10.0.0.1:5")
    settle(scene)
    assert scene.counters["session_taken_over"] == 0


def test_one_connection_more_in_the_log_is_a_takeover(scene: Scene) -> None:
    scene.of.admitted(scene.now_s, "10.0.0.9:5")
    scene.of.disconnected(scene.now_s, is_taken_over=False, address=None)
    scene.now_s += 1
    scene.connect()
    scene.of.admitted(scene.now_s, "10.0.0.1:5")
    settle(scene)
    assert (scene.counters["session_taken_over"], scene.renewed) == (1, 1)
    scene.now_s += 1
    scene.connect()
    ((kind, since_us, until_us, publications, detail),) = scene.gaps.rows()
    assert (kind, since_us, until_us) == ("session taken over", 1_000_000_000, int(scene.now_s * 1e6))
    assert publications is None
    assert "10.0.0.9:5" in str(detail)
    settle(scene)
    assert scene.counters["session_taken_over"] == 1


def test_a_connection_from_an_own_address_does_not_hide_another(scene: Scene) -> None:
    scene.connect("10.0.0.1:5")
    scene.of.admitted(scene.now_s, "10.0.0.1:5")
    settle(scene)
    assert scene.counters["session_taken_over"] == 0
    # The broker's log does not show the federator's own connection yet when the other client takes the session.
    scene.connect("10.0.0.1:6")
    scene.of.admitted(scene.now_s, "10.0.0.9:5")
    settle(scene)
    assert scene.counters["session_taken_over"] == 1


def test_an_own_connection_that_the_log_shows_first_is_no_takeover(scene: Scene) -> None:
    for port in range(5):
        scene.of.admitted(scene.now_s, f"10.0.0.1:{port}")
        scene.connect(f"10.0.0.1:{port}")
    settle(scene)
    assert scene.counters["session_taken_over"] == 0


def test_an_id_of_another_session_from_another_host_is_a_security_event(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.of.other_admitted("10.0.0.9:7")  # whether addresses are translated is not known yet
    scene.connect("10.0.0.1:5")
    scene.of.admitted(scene.now_s, "10.0.0.1:5")
    scene.of.other_admitted("10.0.0.1:6")
    assert scene.counters["session_id_used_elsewhere"] == 0
    for _ in range(100):
        scene.of.other_admitted("10.0.0.9:7")
    assert scene.counters["session_id_used_elsewhere"] == 100
    assert 0 < len(caplog.records) < 50
    settle(scene)
    assert scene.counters["session_taken_over"] == 0


def test_an_attempt_without_an_answer_counts_as_its_own(scene: Scene) -> None:
    scene.of.disconnected(scene.now_s, is_taken_over=False, address="10.0.0.1:4")
    scene.of.disconnected(
        scene.now_s, is_taken_over=False, address="10.0.0.1:5"
    )  # the broker let it in, and its answer was lost
    scene.of.admitted(scene.now_s, "10.0.0.1:5")
    settle(scene)
    assert scene.counters["session_taken_over"] == 0


def test_an_attempt_without_a_connection_hides_nothing(scene: Scene) -> None:
    scene.of.disconnected(scene.now_s, is_taken_over=False, address="10.0.0.1:4")
    scene.of.disconnected(scene.now_s, is_taken_over=False, address=None)
    scene.of.admitted(scene.now_s, "10.0.0.9:5")
    settle(scene)
    assert scene.counters["session_taken_over"] == 1


def test_two_that_fight_for_the_session_are_noticed_before_the_log_is_quiet(scene: Scene) -> None:
    for _ in range(FIGHT):
        scene.of.admitted(scene.now_s, "10.0.0.9:5")
    assert scene.counters["session_taken_over"] == 1


def test_the_reason_code_counts_once_even_if_the_log_also_shows_it(scene: Scene) -> None:
    scene.of.admitted(scene.now_s, "10.0.0.9:5")
    scene.of.disconnected(scene.now_s, is_taken_over=True, address=None)
    assert scene.counters["session_taken_over"] == 1
    settle(scene)
    assert scene.counters["session_taken_over"] == 1


def test_a_session_without_another_id_has_a_gap_that_ends_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, renews=False)
    scene.connect()
    scene.of.watching()
    scene.of.admitted(scene.now_s, "10.0.0.9:5")
    settle(scene)
    assert scene.gaps.rows()[0][2] is not None


@pytest.mark.parametrize(
    ("first", "watched", "received", "found"),
    [
        pytest.param(40, 80, 0, 0, id="all ticks are there"),
        pytest.param(70, 80, 0, 1, id="four are missing"),
        pytest.param(50, 80, 0, 0, id="one is missing"),
        pytest.param(70, 80, QUEUED_MAX + 1, 0, id="the queue may have been full"),
        pytest.param(400, 400 + TICK_EXPIRY_S, 0, 0, id="they may have expired"),
        pytest.param(5, 10, 0, 0, id="the broker was restarted"),
    ],
)
def test_missing_ticks_are_a_takeover_while_the_federator_was_down(
    tmp_path: Path, scene: Scene, first: int, watched: int, received: int, found: int
) -> None:
    scene.tick(10, 20, 30)
    assert scene.restart(tmp_path, first=first, watched=watched, received=received) == found


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"90", b"x y", b"1 2 3", b"9" * 100])
def test_a_damaged_file_of_ticks_proves_nothing(tmp_path: Path, scene: Scene, content: bytes) -> None:
    (tmp_path / "tick").write_bytes(content)
    assert scene.restart(tmp_path, first=500, watched=500) == 0


def test_gaps_are_bounded_and_those_that_were_dropped_are_counted() -> None:
    gaps = GapBook()
    for number in range(GAPS_MAX + 3):
        gaps.add("session taken over", str(number))
    assert (len(gaps.rows()), gaps.rows()[0][4], gaps.dropped) == (GAPS_MAX, "3", 3)


@pytest.mark.parametrize(("payload", "found"), [(b"95 seconds", 95), (b"x", None), (b"", None), (b"-1 s", None)])
def test_uptime(payload: bytes, found: int | None) -> None:
    assert uptime_of(payload) == found
