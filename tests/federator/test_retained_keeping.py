"""The keeper of retained state among its neighbours in the federator."""

import asyncio
from pathlib import Path

import pytest
from tests.federator.retained_states import Federation, play

from hanse.errors import RemoteError
from hanse.federator.crossing import Crossing
from hanse.federator.retained import TOPIC, BookFile
from hanse.mqtt.publication import encode, payload_of, qos_of
from hanse.protocol.retained import Version, codec
from hanse.protocol.retained.messages import Change, Push
from hanse.protocol.retained.versions import FOUND

NOW_STAMP = 1_700_000_000_000 << 16


def test_what_another_broker_retains_is_fetched_and_injected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        one, two, three = await federation.begin(None, None, None)
        two.write("a/x", b"of two", 2)
        two.write("b", b"not asked for")
        one.state.want(["a/#"])
        await federation.until(lambda: "a/x" in one.broker)
        assert (payload_of(one.broker["a/x"]), qos_of(one.broker["a/x"])) == (b"of two", 2)
        assert one.injected == ["a/x"]
        assert "b" not in one.broker
        assert three.injected == []
        assert one.state.topics == 1

    play(monkeypatch, tmp_path, steps)


def test_the_newest_of_two_writes_wins_at_both_brokers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        one, two = await federation.begin(None, None)
        one.hear("a", b"first")
        await asyncio.sleep(0.002)
        two.hear("a", b"second")
        for member in (one, two):
            member.state.want(["a"])
        await federation.until(lambda: payload_of(one.broker["a"]) == b"second")
        assert payload_of(two.broker["a"]) == b"second"
        two.hear("a", b"")
        one.state.link_restored(2)
        await federation.until(lambda: "a" not in one.broker)

    play(monkeypatch, tmp_path, steps)


def test_arrivals_get_numbers_and_the_book_is_on_disk_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        (one,) = await federation.begin(None)
        one.state.want(["a"])
        packet = encode("a", b"x", qos=1, retain=True)
        number, older = one.state.arrive(
            [("a", Version(NOW_STAMP, 2), packet), ("a", Version(NOW_STAMP - 1, 2), packet)]
        )
        assert number is not None
        assert older is None
        assert any(key == b"ta" for key, _ in BookFile(one.path, one.counters).read())

    play(monkeypatch, tmp_path, steps)


def test_an_unheard_write_is_published_as_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        one, two = await federation.begin(None, None)
        one.write("a", b"x")
        one.state.granted("a")
        await federation.until(lambda: bool(one.found))
        ((publication, stamp),) = one.found
        assert publication.topic == "a"
        assert stamp == FOUND + 1
        two.state.want(["a"])
        two.state.found("a", Version(stamp - FOUND, 1), publication.packet)
        await federation.until(lambda: "a" in two.broker)

    play(monkeypatch, tmp_path, steps)


def test_names_and_what_may_cross_hold_for_retained_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        one, two = await federation.begin(
            Crossing(prefix="plants/1", import_deny=["closed/#"]), Crossing(export_deny=["secret/#"])
        )
        one.write("temp", b"x")
        two.write("plants/1/cmd", b"x")
        two.write("closed/x", b"x")
        two.write("secret/x", b"x")
        two.write("open", b"x")
        one.state.want(["#"])
        two.state.want(["plants/#"])
        await federation.until(lambda: "plants/1/temp" in two.broker and {"cmd", "open"} <= one.broker.keys())
        assert set(one.broker) == {"temp", "cmd", "open"}
        assert one.counters["retained_not_imported"] > 0

    play(monkeypatch, tmp_path, steps)


@pytest.mark.parametrize("topic", ["$SYS/broker/x", "federator/core_ann/1/2", "a\x01b"])
def test_attack_a_push_of_what_no_broker_should_get_is_counted_and_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, topic: str
) -> None:
    async def steps(federation: Federation) -> None:
        (one,) = await federation.begin(None)
        one.state.want(["#"])
        change = Change(topic, Version(NOW_STAMP, 2), encode(topic, b"x", qos=1, retain=True))
        good = Change("good", Version(NOW_STAMP, 2), encode("good", b"x", qos=1, retain=True))
        one.state.hear(2, encode(TOPIC, codec.encode(Push((change, good))), qos=1))
        await federation.until(lambda: one.injected == ["good"])
        assert sum(one.counters[name] for name in ("retained_not_imported", "gate_unportable")) == 1

    play(monkeypatch, tmp_path, steps)


def test_attack_a_malformed_message_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        (one,) = await federation.begin(None)
        with pytest.raises(RemoteError):
            one.state.hear(2, encode(TOPIC, b"\x01\x10\xff", qos=1))

    play(monkeypatch, tmp_path, steps)


def test_publications_are_held_until_a_look_has_told_about_restarts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def steps(federation: Federation) -> None:
        (one,) = await federation.begin(None)
        one.uptime_s = 1_000
        one.state.tick(1_000, is_retained=False)
        one.state.want(["a"])
        one.hear("a", b"new")
        one.write("a", b"of the backup")
        one.uptime_s = 5
        one.state.host_down()
        one.state.host_up(session_present=True)
        assert one.held == [True]
        await federation.until(lambda: one.held == [True, False])
        await federation.until(lambda: payload_of(one.broker["a"]) == b"new")
        assert one.counters["retained_host_restarts"] == 1

    play(monkeypatch, tmp_path, steps)


def test_without_an_uptime_a_lost_session_is_a_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        (one,) = await federation.begin(None)
        one.hear("a", b"x")
        one.state.host_down()
        one.state.host_up(session_present=True)
        await federation.until(lambda: len(one.held) == 2)
        assert one.counters["retained_host_restarts"] == 0
        one.state.host_down()
        one.state.host_up(session_present=False)
        await federation.until(lambda: one.counters["retained_host_restarts"] == 1)

    play(monkeypatch, tmp_path, steps)


def test_the_next_process_knows_what_this_one_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        one, two = await federation.begin(None, None)
        one.hear("a", b"x")
        one.hear("a", b"")
        await one.state.stop()
        one.state = one.make()
        await one.state.start()
        one.state.host_up(session_present=False)
        assert one.state.topics == 1
        two.write("a", b"old")
        one.state.want(["a"])
        two.state.want(["a"])
        await federation.until(lambda: "a" not in two.broker)
        assert "a" not in one.broker

    play(monkeypatch, tmp_path, steps)


def test_a_broker_that_cannot_be_asked_is_asked_again_and_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(federation: Federation) -> None:
        (one,) = await federation.begin(None)
        one.is_up = False
        one.state.want(["a"])
        await federation.until(lambda: one.counters["retained_looks_failed"] >= 3)
        one.is_up = True
        looks = one.counters["retained_looks"]
        await federation.until(lambda: one.counters["retained_looks"] > looks)
        assert caplog.text.count("did not show its retained messages") == 1

    play(monkeypatch, tmp_path, steps)


def test_a_message_waits_for_the_receivers_group_and_is_dropped_in_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hanse.federator.retained.keeping.KNOWN_S", 0.05)

    async def steps(federation: Federation) -> None:
        one, two = await federation.begin(None, None)
        one.write("a", b"x")
        two._join = lambda: None  # type: ignore[method-assign]
        two.state = two.make()
        await two.state.start()
        two.state.want(["a"])
        await federation.until(lambda: one.counters["retained_messages_dropped"] == 1)
        assert two.injected == []

    play(monkeypatch, tmp_path, steps)


def test_interest_that_ends_is_released_and_the_copy_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def steps(federation: Federation) -> None:
        one, two = await federation.begin(None, None)
        two.write("a", b"x")
        one.state.want(["a"])
        await federation.until(lambda: "a" in one.broker)
        one.state.unwant("a")
        assert one.state.lingering == 1
        await federation.until(lambda: one.released == ["a"])
        await federation.until(lambda: "a" not in one.broker)
        assert "a" in two.broker

    play(monkeypatch, tmp_path, steps)
