"""One test, or a few, for each rule of docs/protocol.md on retained state, in its order."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hanse.mqtt.publication import encode as publish
from hanse.protocol.retained import RetainedSettings, Version
from hanse.protocol.retained.codec import FILTERS_MAX
from hanse.protocol.retained.effects import EVERYBODY, Effect, Inject, Keep, Look, Release, Spread, Tell
from hanse.protocol.retained.events import (
    Ended,
    Event,
    Granted,
    HostRestarted,
    HostUp,
    Injected,
    LinkRestored,
    Looked,
    LookFailed,
    Received,
    Refused,
    SessionLost,
    Tick,
    Touched,
    Uncertain,
    Unwanted,
    Wanted,
)
from hanse.protocol.retained.keeper import DUPLICATE, LOST_MIN, SPREAD_MAX, Keeper
from hanse.protocol.retained.messages import Answer, Change, Cursor, Fetch, Push, Rejoined
from hanse.protocol.retained.values import digest_of
from hanse.protocol.retained.versions import stamp_at

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text()
ME, OTHER, THIRD = 1, 2, 3
WALL_MS = 1_700_000_000_000
SETTINGS = RetainedSettings(look_gap_s=0.0)

_Effect = TypeVar("_Effect")


def value(topic: str, payload: bytes, qos: int = 1) -> bytes:
    return publish(topic, payload, qos=qos, retain=True)


def version(ms: int, federator: int = OTHER) -> Version:
    """Return a version so many milliseconds after the beginning of the test."""
    return Version(stamp_at(WALL_MS + ms), federator)


class Desk:
    """A keeper, its host broker as a dictionary, and its disk."""

    def __init__(
        self, disk: dict[bytes, bytes] | None = None, host: dict[str, bytes] | None = None, **settings: Any
    ) -> None:
        self.now = 100.0
        self.host = {} if host is None else host
        self.disk = {} if disk is None else disk
        self.keeper = Keeper(ME, replace(SETTINGS, **settings), epoch=7)
        self.keeper.restore(sorted(self.disk.items()))
        self.effects: list[Effect] = []
        self.keeper.start(self.now, self.wall_ms)
        self._take()
        self.step(HostUp())

    @property
    def wall_ms(self) -> int:
        return WALL_MS + round((self.now - 100.0) * 1000)

    def _take(self) -> None:
        for effect in self.keeper.take_effects():
            self.effects.append(effect)
            if isinstance(effect, Keep):
                self.disk.update(effect.records)
                for key in [key for key, record in self.disk.items() if not record]:
                    del self.disk[key]

    def step(self, *happened: Event) -> None:
        for event in happened:
            self.keeper.step(self.now, self.wall_ms, event)
            self._take()

    def take(self, kind: type[_Effect]) -> list[_Effect]:
        """Return the effects of one kind since the last call, and forget them."""
        found: list[_Effect] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def after(self, seconds: float) -> None:
        """Let time pass, with everything that is due."""
        until = self.now + seconds
        while self.keeper.deadline <= until:
            self.now = max(self.now, self.keeper.deadline)
            self.step(Tick())
            self.look()
        self.now = until

    def look(self) -> list[tuple[str, ...]]:
        """Carry out looks until none is wanted; return their filters."""
        seen = []
        while looks := self.take(Look):
            for one in looks:
                seen.append(one.filters)
                found = {topic: packet for topic, packet in self.host.items() if _matches(one.filters, topic)}
                self.step(Looked(one.number, found))
        return seen

    def hear(self, topic: str, payload: bytes, waited_since_ms: int | None = None) -> int:
        """Let a client of the host broker write, and the federator hear it."""
        self.write(topic, payload)
        packet = value(topic, payload)
        stamp = self.keeper.heard(self.now, self.wall_ms, [(0, topic, packet)], 1, waited_since_ms)
        self._take()
        return stamp

    def write(self, topic: str, payload: bytes) -> None:
        """Let a client of the host broker write, unheard."""
        if payload:
            self.host[topic] = value(topic, payload)
        else:
            self.host.pop(topic, None)

    def arrive(self, topic: str, ver: Version, payload: bytes, *, is_acknowledged: bool = True) -> int | None:
        """Let a write of another federator arrive, and the host broker take it."""
        number = self.keeper.arrive(self.now, self.wall_ms, topic, ver, value(topic, payload))
        self._take()
        if number is not None and number != DUPLICATE:
            self.write(topic, payload)
            if is_acknowledged:
                self.step(Injected((number,)))
                self.look()
        return number

    def inject(self) -> list[tuple[str, bytes]]:
        """Carry out injections; return them."""
        done = []
        while injections := self.take(Inject):
            for one in injections:
                done.append((one.topic, one.packet))
                if digest_of(one.packet):
                    self.host[one.topic] = one.packet
                else:
                    self.host.pop(one.topic, None)
                self.step(Injected((one.number,)))
            self.look()
        return done

    def said(self) -> list[tuple[int, object]]:
        """Return the messages to others since the last call."""
        return [(tell.receiver, tell.message) for tell in self.take(Tell)]

    def winner(self, topic: str) -> tuple[Version | None, int]:
        entry = self.keeper.book.get(topic)
        return (None, 0) if entry is None else (entry.version, entry.digest)


def _matches(filters: tuple[str, ...], topic: str) -> bool:
    return any(one in ("#", topic) or (one.endswith("/#") and topic.startswith(one[:-1])) for one in filters)


def wanting(*filters: str, **settings: Any) -> Desk:
    """Return a desk whose clients want filters, after its first looks and fetches."""
    desk = Desk(**settings)
    desk.step(Wanted(filters))
    desk.look()
    desk.said()
    return desk


def test_r79_a_batch_gets_one_stamp_above_all_that_were_given_or_seen() -> None:
    desk = wanting("#")
    assert desk.hear("a", b"1") == stamp_at(WALL_MS)
    writes = [(1, "a", value("a", b"2")), (4, "b", value("b", b"3"))]
    first = desk.keeper.heard(desk.now, desk.wall_ms, writes, 6)
    assert first == stamp_at(WALL_MS) + 1
    assert desk.winner("a")[0] == Version(first + 1, ME)
    assert desk.winner("b")[0] == Version(first + 4, ME)
    desk.arrive("c", version(5_000), b"x")
    assert desk.hear("a", b"4") == version(5_000).stamp + 1
    desk.now += 60
    assert desk.hear("a", b"5") == stamp_at(desk.wall_ms)


def test_r80_a_version_far_in_the_future_is_refused_and_counted() -> None:
    desk = wanting("#")
    assert desk.arrive("a", version(301_000), b"x") is None
    assert desk.winner("a") == (None, 0)
    assert desk.keeper.counters["retained_clock_refused"] == 1
    assert desk.arrive("a", version(299_000), b"x") is not None


def test_r81_a_write_that_waited_gets_the_time_before_it_and_more_than_what_the_host_held() -> None:
    desk = wanting("#")
    desk.now += 60
    assert desk.hear("a", b"1", WALL_MS + 10_000) == version(10_000).stamp
    desk.arrive("b", version(50_000), b"x")
    assert desk.hear("b", b"2", WALL_MS + 10_000) == version(50_000).stamp + 1


def test_r81_a_write_that_waited_loses_to_what_came_meanwhile() -> None:
    desk = wanting("#")
    desk.arrive("a", version(0), b"old")
    desk.now += 60
    desk.step(Received(OTHER, Push((Change("a", version(50_000), value("a", b"new")),))))
    assert desk.inject() == [("a", value("a", b"new"))]
    entry = desk.keeper.book.get("a")
    assert entry is not None
    entry.host = version(0)  # the broker holds the waiting write: it came before the injection
    desk.hear("a", b"waited", WALL_MS + 10_000)
    assert desk.winner("a") == (version(50_000), digest_of(value("a", b"new")))
    assert desk.inject() == [("a", value("a", b"new"))]


def test_r82_the_book_is_on_disk_before_the_injection_with_what_the_host_held() -> None:
    desk = wanting("#")
    desk.arrive("a", version(1), b"one")
    desk.effects.clear()
    desk.step(Received(OTHER, Push((Change("a", version(2), value("a", b"two")),))))
    kinds = [type(effect) for effect in desk.effects if isinstance(effect, Keep | Inject)]
    assert kinds == [Keep, Inject]
    again = Desk(dict(desk.disk), desk.host)
    entry = again.keeper.book.get("a")
    assert entry is not None
    assert (entry.version, entry.host, entry.priors) == (version(2), version(2), (digest_of(value("a", b"one")),))
    # The injection never left the former process: a look finds what was there before, and it is injected again.
    again.step(Wanted(("#",)))
    again.look()
    again.step(Received(OTHER, Push((Change("a", version(2), value("a", b"two")),))))
    assert again.inject() == [("a", value("a", b"two"))]


def test_r82_topics_beyond_the_bound_travel_as_they_came_and_are_counted() -> None:
    desk = wanting("#", topics_max=1)
    desk.arrive("a", version(1), b"x")
    assert desk.arrive("b", version(1), b"x") is not None
    assert desk.keeper.book.get("b") is None
    assert desk.keeper.counters["retained_book_full"] > 0
    assert not desk.keeper.is_under_way("b")


def test_r83_a_newer_write_is_injected_an_older_one_delivered_and_the_same_one_dropped() -> None:
    desk = wanting("#")
    assert isinstance(desk.arrive("t", version(500, 4), b"new"), int)
    assert desk.arrive("t", version(300), b"old") is None
    assert desk.arrive("t", version(500, 4), b"new") == DUPLICATE
    assert desk.arrive("t", version(500, 5), b"tie") not in (None, DUPLICATE)
    assert desk.winner("t") == (version(500, 5), digest_of(value("t", b"tie")))


def test_r83_what_nobody_here_wants_is_not_stored() -> None:
    desk = wanting("a")
    assert desk.arrive("b", version(1), b"x") is None
    assert desk.keeper.book.get("b") is None


def test_r84_a_deletion_of_nothing_is_remembered_and_not_injected() -> None:
    desk = wanting("#")
    desk.step(Received(OTHER, Push((Change("a", version(2), b""),))))
    assert desk.inject() == []
    assert desk.arrive("a", version(1), b"old") is None


def test_r85_a_look_counts_for_no_topic_that_something_happened_to() -> None:
    desk = wanting("#")
    desk.arrive("a", version(1), b"one")
    desk.host["b"] = value("b", b"unheard")
    desk.step(Wanted(("a", "b")))
    (look,) = desk.take(Look)
    before = dict(desk.host)
    desk.arrive("a", version(2), b"two", is_acknowledged=False)
    desk.step(Looked(look.number, before))
    assert desk.winner("a")[0] == version(2), "the look began before the injection"
    assert desk.winner("b")[0] == Version(1, ME), "the other topic counts"
    assert desk.take(Look) == [], "not while the injection is under way"
    desk.step(Injected(desk.keeper.injections_under_way()))
    assert [one for one in desk.look() if "a" in one] != []


def test_r85_only_one_look_is_under_way_and_one_that_fails_is_made_again() -> None:
    desk = wanting("#", look_retry_s=5.0)
    desk.step(Wanted(("a",)))
    (first,) = desk.take(Look)
    desk.step(Wanted(("b",)))
    assert desk.take(Look) == []
    desk.step(LookFailed(first.number))
    assert desk.take(Look) == []
    desk.now += 5.0
    desk.step(Tick())
    assert [look.filters for look in desk.take(Look)] == [("a", "b")]
    assert desk.keeper.counters["retained_looks_failed"] == 1


def test_r86_an_injection_that_never_arrived_is_made_again() -> None:
    desk = wanting("#")
    desk.arrive("a", version(1), b"one")
    number = desk.keeper.arrive(desk.now, desk.wall_ms, "a", version(2), value("a", b"two"))
    assert number is not None
    desk._take()
    desk.step(Uncertain((number,)))
    desk.look()
    assert desk.inject() == [("a", value("a", b"two"))]
    assert desk.winner("a") == (version(2), digest_of(value("a", b"two")))


def test_r86_an_own_injection_that_the_host_took_late_is_no_unheard_write() -> None:
    desk = wanting("#")
    desk.step(Granted("#"))
    desk.look()
    desk.arrive("a", version(1), b"injected")
    stamp = desk.hear("a", b"heard")
    desk.host["a"] = value("a", b"injected")  # the broker took the two in the other order
    desk.look()
    assert desk.inject() == [("a", value("a", b"heard"))]
    assert desk.winner("a") == (Version(stamp, ME), digest_of(value("a", b"heard")))
    desk.now += 120
    desk.host["a"] = value("a", b"injected")
    desk.step(Wanted(("a",)))
    desk.look()
    assert desk.winner("a")[1] == digest_of(value("a", b"injected")), "long after, it is a write of its own"


def test_r87_an_unheard_write_is_just_newer_than_what_the_host_held() -> None:
    desk = wanting("#")
    desk.write("new", b"x")
    desk.arrive("a", version(5), b"one")
    desk.now += 120
    desk.write("a", b"unheard")
    desk.step(Wanted(("a", "new")))
    desk.look()
    assert desk.winner("new")[0] == Version(1, ME)
    assert desk.winner("a") == (Version(version(5).stamp + 1, ME), digest_of(value("a", b"unheard")))
    assert desk.arrive("a", version(6), b"heard elsewhere") is not None, "what was heard since wins"


def test_r87_an_unheard_write_is_newer_than_the_end_of_the_observation() -> None:
    desk = wanting("a")
    desk.step(Granted("b"))
    desk.look()
    desk.now += 10
    desk.step(Ended("b"))
    ended = desk.keeper.clock.last
    desk.write("b", b"x")
    desk.step(Wanted(("b",)))
    desk.look()
    assert desk.winner("b")[0] == Version(ended + 1, ME)


def test_r87_a_lost_session_ends_the_observation_when_something_was_heard_last() -> None:
    desk = wanting("a")
    desk.step(Granted("b"))
    desk.look()
    desk.step(SessionLost(WALL_MS + 7_000))
    desk.write("b", b"x")
    desk.step(Wanted(("b",)))
    desk.look()
    assert desk.winner("b")[0] == Version(version(7_000).stamp + 1, ME)


def test_r88_a_write_heard_soon_after_an_injection_is_verified_by_a_look() -> None:
    desk = wanting("#", verify_s=3.0)
    desk.step(Granted("#"))
    desk.look()
    desk.arrive("a", version(1), b"x")
    desk.now += 2.9
    desk.hear("a", b"y")
    assert desk.look() == [("a",)]
    desk.now += 3.1
    desk.hear("a", b"z")
    assert desk.look() == []


def restarted(desk: Desk) -> None:
    desk.step(HostRestarted())
    desk.look()


def test_r89_after_a_restart_the_book_wins_and_tombstones_are_injected() -> None:
    desk = wanting("#")
    desk.arrive("a", version(1), b"old")
    desk.arrive("b", version(1), b"old")
    backup = dict(desk.host)
    desk.arrive("a", version(2), b"new")
    desk.arrive("b", version(2), b"")
    desk.host.clear()
    desk.host.update(backup)
    restarted(desk)
    assert sorted(desk.inject()) == [("a", value("a", b"new")), ("b", publish("b", b"", qos=1, retain=True))]
    assert desk.winner("a") == (version(2), digest_of(value("a", b"new")))
    assert desk.keeper.counters["retained_distrusted"] == 2
    assert not desk.keeper.is_suspicious


def test_r89_a_value_that_is_not_in_memory_is_fetched_again() -> None:
    desk = wanting("#", value_bytes_max=1)
    desk.arrive("a", version(2), b"new")
    desk.host.clear()
    restarted(desk)
    fetched = [message.filters for _, message in desk.said() if isinstance(message, Fetch)]
    assert ("a",) in fetched
    desk.step(Received(OTHER, Answer(99, 1, 1, True, (Change("a", version(2), value("a", b"new")),))))
    assert desk.inject() == [("a", value("a", b"new"))]


def test_r89_suspicion_outlives_the_process() -> None:
    desk = wanting("#")
    desk.arrive("a", version(2), b"new")
    desk.step(HostRestarted())
    desk.host["a"] = value("a", b"older files")
    again = Desk(dict(desk.disk), desk.host)
    assert again.keeper.is_suspicious
    again.step(Wanted(("#",)))
    again.look()
    assert again.winner("a") == (version(2), digest_of(value("a", b"new")))


def test_r89_what_is_heard_after_the_restart_is_no_suspect() -> None:
    desk = wanting("#")
    desk.arrive("a", version(2), b"old")
    desk.step(HostRestarted())
    desk.take(Look)
    stamp = desk.hear("a", b"fresh")
    assert desk.winner("a")[0] == Version(stamp, ME)
    assert not desk.keeper.is_suspicious


@pytest.mark.parametrize(("kept", "is_lost"), [(LOST_MIN, True), (LOST_MIN + 1, False)])
def test_r89_many_topics_that_are_gone_at_once_are_lost_and_not_deleted(kept: int, is_lost: bool) -> None:
    desk = wanting("#")
    for number in range(LOST_MIN + kept):
        desk.hear(f"t/{number}", b"x")
    for number in range(LOST_MIN):
        del desk.host[f"t/{number}"]
    desk.step(Wanted(("t/#",)))
    desk.look()
    assert desk.keeper.counters["retained_lost"] == (LOST_MIN if is_lost else 0)
    assert len(desk.inject()) == (LOST_MIN if is_lost else 0)
    assert (desk.winner("t/0")[1] != 0) == is_lost


def test_r89_a_value_that_the_host_acknowledged_and_never_showed_is_not_a_deletion() -> None:
    desk = wanting("#")
    desk.step(Granted("#"))
    desk.look()
    number = desk.keeper.arrive(desk.now, desk.wall_ms, "a", version(1), value("a", b"x"))
    assert number is not None
    desk._take()
    desk.step(Injected((number,)))
    desk.after(3.0)
    assert desk.take(Spread) == []
    assert desk.winner("a") == (version(1), digest_of(value("a", b"x")))
    assert desk.keeper.counters["retained_not_kept"] == 1
    desk.step(Wanted(("a",)))
    desk.look()
    assert desk.inject() == [], "not again before the next version"
    assert desk.arrive("a", version(2), b"y") not in (None, DUPLICATE)


def test_r89_an_injection_that_the_host_refuses_is_not_made_again() -> None:
    desk = wanting("#")
    desk.arrive("a", version(1), b"old")
    number = desk.keeper.arrive(desk.now, desk.wall_ms, "a", version(2), value("a", b"new"))
    assert number is not None
    desk._take()
    desk.step(Refused((number,)))
    desk.look()
    assert desk.inject() == []
    assert desk.winner("a")[0] == version(2)


def test_r90_a_filter_is_looked_at_and_fetched_when_interest_begins_and_again_and_again() -> None:
    desk = Desk(fetch_interval_s=600.0)
    desk.step(Wanted(("a/#",)))
    assert [look.filters for look in desk.take(Look)] == [("a/#",)]
    assert desk.said() == [(EVERYBODY, Fetch(1, ("a/#",)))]
    desk.after(600.0)
    assert (EVERYBODY, Fetch(2, ("a/#",))) in desk.said()


def test_r90_interest_of_before_is_fetched_again_after_a_restart() -> None:
    desk = Desk()
    desk.step(HostRestarted(), Wanted(("a",)))
    assert [message for _, message in desk.said()] == [Fetch(1, ("a",))]
    desk.look()
    desk.step(HostRestarted())
    assert [message for _, message in desk.said()] == [Fetch(2, ("a",))]


def test_r90_a_winner_whose_value_is_gone_everywhere_is_given_up() -> None:
    desk = wanting("#", value_bytes_max=1, fetch_s=5.0)
    desk.arrive("a", version(9), b"gone")
    desk.host["a"] = value("a", b"of a backup")
    restarted(desk)
    desk.after(6.0)
    assert desk.winner("a") == (Version(0, ME), digest_of(value("a", b"of a backup")))
    assert desk.arrive("a", version(2), b"elsewhere") is not None
    assert desk.arrive("a", version(9), b"gone") is not None, "it was not gone"


def ask(desk: Desk, *filters: str, number: int = 5, cursors: tuple[Cursor, ...] = (), sender: int = OTHER) -> list[Any]:
    desk.step(Received(sender, Fetch(number, filters, cursors)))
    desk.look()
    return [message for receiver, message in desk.said() if receiver == sender]


def test_r91_an_answer_has_values_with_versions_and_tombstones() -> None:
    desk = wanting("#")
    desk.arrive("a", version(2), b"x")
    desk.arrive("b", version(3), b"x")
    desk.arrive("b", version(4), b"")
    desk.write("c", b"unheard")
    (answer,) = ask(desk, "#")
    assert answer.is_last
    assert {change.topic: (change.version, change.value) for change in answer.changes} == {
        "a": (version(2), value("a", b"x")),
        "b": (version(4), b""),
        "c": (Version(1, ME), value("c", b"unheard")),
    }


def test_r91_who_has_nothing_says_nothing() -> None:
    assert ask(wanting("#"), "a/#") == []


def test_r91_a_large_answer_comes_in_parts() -> None:
    desk = wanting("#")
    for number in range(5):
        desk.hear(f"t/{number}", b"x" * 100_000)
    (first,) = ask(desk, "t/#")
    assert not first.is_last
    assert [change.topic for change in first.changes] == ["t/0", "t/1", "t/2"]
    (second,) = ask(desk, "t/#", cursors=(Cursor(ME, first.epoch, first.sequence),))
    assert second.is_last
    assert [change.topic for change in second.changes] == ["t/3", "t/4"]


def test_r91_the_asker_fetches_the_next_part() -> None:
    desk = wanting("#")
    desk.step(Received(OTHER, Answer(1, 4, 70, False, (Change("a", version(1), value("a", b"x")),))))
    assert desk.said() == [(OTHER, Fetch(1, ("#",), (Cursor(OTHER, 4, 70),)))]


def test_r92_a_copy_waits_for_the_answer_of_its_origin() -> None:
    desk = wanting("#", fetch_s=5.0)
    desk.step(Received(THIRD, Push(())))  # it is known
    stale = Change("a", version(1, THIRD), value("a", b"copy"))
    desk.step(Received(OTHER, Answer(1, 1, 1, True, (stale,))))
    assert desk.inject() == []
    desk.step(Received(THIRD, Answer(1, 1, 1, True, (Change("a", version(2, THIRD), value("a", b"origin")),))))
    assert desk.inject() == [("a", value("a", b"origin"))]


def test_r92_a_copy_is_taken_when_its_origin_does_not_answer_in_time() -> None:
    desk = wanting("#", fetch_s=5.0)
    desk.step(Received(THIRD, Push(())))
    desk.step(Received(OTHER, Answer(1, 1, 1, True, (Change("a", version(1, THIRD), value("a", b"copy")),))))
    desk.after(5.0)
    assert [packet for _, packet in desk.inject()] == [value("a", b"copy")]


def test_r92_what_is_newer_here_is_pushed_to_the_answerer() -> None:
    desk = wanting("#")
    desk.arrive("a", version(9), b"new")
    desk.step(Received(OTHER, Answer(1, 1, 1, True, (Change("a", version(1), value("a", b"old")),))))
    desk.look()
    assert (OTHER, Push((Change("a", version(9), value("a", b"new")),))) in desk.said()


def test_r93_a_fetch_costs_what_has_changed() -> None:
    desk = wanting("#")
    desk.hear("a", b"x")
    (answer,) = ask(desk, "#")
    assert ask(desk, "#", cursors=(Cursor(ME, answer.epoch, answer.sequence),)) == []
    desk.now += 1
    desk.hear("b", b"y")
    (later,) = ask(desk, "#", cursors=(Cursor(ME, answer.epoch, answer.sequence),))
    assert [change.topic for change in later.changes] == ["b"]
    (whole,) = ask(desk, "#", cursors=(Cursor(ME, answer.epoch + 1, later.sequence),))
    assert [change.topic for change in whole.changes] == ["a", "b"]


def test_r93_the_asker_names_how_far_it_has_applied() -> None:
    desk = wanting("#")
    desk.step(Received(OTHER, Answer(1, 4, 70, True, (Change("a", version(1), value("a", b"x")),))))
    desk.inject()
    desk.said()
    desk.step(LinkRestored(OTHER))
    desk.after(1.0)
    assert (EVERYBODY, Fetch(2, ("#",), (Cursor(OTHER, 4, 70),))) in desk.said()


def test_r94_a_deletion_is_remembered_for_its_time() -> None:
    desk = wanting("#", tombstone_s=100.0, sweep_s=10.0)
    desk.arrive("a", version(2), b"x")
    desk.arrive("a", version(3), b"")
    desk.after(90.0)
    assert desk.arrive("a", version(1), b"old") is None
    desk.after(30.0)
    assert desk.keeper.book.get("a") is None
    assert desk.arrive("a", version(1), b"old") is not None


def test_r94_the_oldest_deletions_are_forgotten_beyond_the_bound() -> None:
    desk = wanting("#", tombstones_max=1, sweep_s=10.0)
    for number, topic in enumerate(("a", "b")):
        desk.arrive(topic, version(number), b"x")
        desk.now += 1
        desk.arrive(topic, version(10 + number), b"")
    desk.after(20.0)
    assert desk.keeper.book.get("a") is None
    assert desk.winner("b") == (version(11), 0)
    assert desk.keeper.counters["retained_tombstones_expired"] == 1


def test_r94_an_old_value_is_a_new_change_when_interest_begins() -> None:
    desk = wanting("other", tombstone_s=100.0)
    desk.step(Granted("a"))
    desk.look()
    desk.hear("a", b"x")
    (answer,) = ask(desk, "a")
    desk.now += 50
    desk.step(Wanted(("a",)))
    desk.look()
    assert ask(desk, "a", cursors=(Cursor(ME, answer.epoch, answer.sequence),)) == []
    desk.step(Unwanted("a"))
    desk.after(700)
    desk.step(Wanted(("a",)))
    desk.look()
    assert len(ask(desk, "a", cursors=(Cursor(ME, answer.epoch, answer.sequence),))) == 1


def test_r95_interest_lingers_and_then_the_copies_are_removed() -> None:
    desk = wanting("a/#", linger_s=600.0)
    desk.arrive("a/x", version(1), b"copy")
    desk.step(Granted("a/#"))
    desk.look()
    desk.hear("a/own", b"own")
    desk.step(Unwanted("a/#"))
    desk.after(599.0)
    assert desk.take(Release) == []
    assert desk.arrive("a/x", version(2), b"fresh") is not None
    desk.after(2.0)
    assert desk.take(Release) == [Release("a/#")]
    desk.after(700.0)
    assert [topic for topic, _ in desk.inject()] == ["a/x"]
    assert set(desk.host) == {"a/own"}
    assert desk.winner("a/x") == (None, 0), "nothing is known: it is no deletion"


def test_r95_a_copy_that_was_written_over_stays() -> None:
    desk = wanting("a", linger_s=10.0)
    desk.arrive("a", version(1), b"copy")
    desk.step(Unwanted("a"))
    desk.write("a", b"a client's own")
    desk.after(120.0)
    assert desk.inject() == []
    assert desk.host["a"] == value("a", b"a client's own")


def test_r95_interest_without_anything_retained_ends_at_once() -> None:
    desk = wanting("a")
    desk.step(Unwanted("a"))
    assert desk.take(Release) == [Release("a")]


def test_r95_clients_that_come_back_in_time_keep_their_interest() -> None:
    desk = wanting("a", linger_s=10.0)
    desk.arrive("a", version(1), b"x")
    desk.step(Unwanted("a"))
    desk.after(9.0)
    desk.step(Wanted(("a",)))
    desk.after(100.0)
    assert desk.take(Release) == []
    assert "a" in desk.host


def test_r96_an_unheard_write_is_published_to_those_who_want_it() -> None:
    desk = wanting("other")
    desk.write("a", b"x")
    desk.step(Granted("a"))
    desk.look()
    (spread,) = desk.take(Spread)
    assert (spread.topic, spread.packet, spread.stamp) == ("a", value("a", b"x"), 1)
    desk.write("b", b"x")
    desk.step(Wanted(("b",)))
    desk.look()
    assert desk.take(Spread) == [], "nobody else wants it"


def test_r96_after_many_unheard_writes_everybody_fetches() -> None:
    desk = wanting("other")
    for number in range(SPREAD_MAX + 1):
        desk.write(f"t/{number}", b"x")
    desk.step(Granted("t/#"))
    desk.look()
    assert len(desk.take(Spread)) == SPREAD_MAX
    assert desk.said() == [(EVERYBODY, Rejoined(ME))]


def test_r97_a_mark_and_a_look_decide_where_the_host_does_not_tell() -> None:
    desk = wanting("other", touch_s=2.0)
    desk.step(Granted("#"))
    desk.look()
    desk.now += 60
    desk.write("a", b"x")
    desk.step(Touched(("a", "not/retained")))
    marked_ms = desk.wall_ms
    assert desk.look() == []
    desk.after(2.0)
    assert desk.winner("a") == (Version(stamp_at(marked_ms), ME), digest_of(value("a", b"x")))
    assert desk.keeper.book.get("not/retained") is None
    assert len(desk.take(Spread)) == 1


def test_r97_exact_hosts_are_asked_for_exact_topics_only() -> None:
    desk = wanting("#", is_exact=True)
    desk.arrive("a", version(1), b"x")
    desk.step(Wanted(("b/#", "c")))
    desk.look()
    desk.step(Received(OTHER, Fetch(1, ("#",))))
    assert desk.look() == [("a",)]


def test_r98_a_link_that_is_back_is_told_and_everybody_fetches() -> None:
    desk = wanting("#")
    desk.step(LinkRestored(OTHER))
    assert (EVERYBODY, Rejoined(OTHER)) in desk.said()
    desk.after(0.6)
    assert any(isinstance(message, Fetch) for _, message in desk.said())
    desk.step(Received(THIRD, Rejoined(9)))
    desk.after(0.7)
    assert any(isinstance(message, Fetch) for _, message in desk.said())


def test_many_filters_are_fetched_together() -> None:
    desk = Desk()
    desk.step(Wanted(tuple(f"t/{number}" for number in range(FILTERS_MAX + 1))))
    assert [len(message.filters) for _, message in desk.said() if isinstance(message, Fetch)] == [FILTERS_MAX, 1]


def test_damaged_records_are_counted_and_left_out() -> None:
    desk = wanting("#")
    desk.arrive("a", version(1), b"x")
    desk.disk |= {b"tb": b"\xff", b"e\xff": b"\1", b"s": b"", b"x": b"1"}
    assert Desk(desk.disk).keeper.counters["retained_records_refused"] == 4


def test_the_documents_parameters_match_the_settings() -> None:
    table = DOCUMENT.split("## Retained state")[1].split("### Messages about")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\| ([^|]*?) \|", table, re.MULTILINE))
    defaults = RetainedSettings()
    assert documented == {field.name: str(getattr(defaults, field.name)) for field in fields(RetainedSettings)}


def test_the_tests_are_in_the_order_of_the_rules() -> None:
    names = re.findall(r"^def test_r(\d\d)_", Path(__file__).read_text(), re.MULTILINE)
    assert names == sorted(names)
    assert sorted({int(name) for name in names}) == list(range(79, 99))
