import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import LocalError
from hanse.interest import (
    BridgeGone,
    BridgeSeen,
    Change,
    ClientBack,
    ClientLeft,
    Confirmed,
    Gap,
    InterestRegistry,
    InterestSettings,
    Report,
    Session,
    Subscribed,
    Unsubscribed,
    store,
)

LOG = "mosquitto-log"


def test_the_first_subscription_adds_a_filter_and_the_end_of_the_last_removes_it() -> None:
    registry = InterestRegistry()
    assert registry.apply(0, LOG, [Subscribed("a", "t", 1)]) == Change(added=(("t", 1),))
    assert registry.apply(0, LOG, [Subscribed("b", "t", 1)]).is_empty
    assert registry.references("t") == 2
    assert registry.apply(0, LOG, [Unsubscribed("a", "t")]).is_empty
    assert registry.apply(0, LOG, [Unsubscribed("b", "t")]) == Change(removed=("t",))
    assert registry.filters() == {}


def test_the_largest_qos_counts_and_a_repeated_subscription_replaces_that_clients_former_one() -> None:
    registry = InterestRegistry()
    registry.apply(0, LOG, [Subscribed("a", "t", 0)])
    assert registry.apply(0, "beacon", [Subscribed("b", "t", 2)]) == Change(changed=(("t", 2),))
    assert registry.apply(0, "beacon", [Subscribed("b", "t", 1)]) == Change(changed=(("t", 1),))
    assert registry.references("t") == 2
    assert registry.filters() == {"t": 1}


def test_a_subscription_that_ends_and_begins_again_in_one_batch_is_no_change() -> None:
    registry = InterestRegistry()
    registry.apply(0, LOG, [Subscribed("a", "t", 1)])
    assert registry.apply(0, LOG, [Unsubscribed("a", "t"), Subscribed("a", "t", 1)]).is_empty


def test_an_unsubscription_without_a_subscription_is_no_change() -> None:
    assert InterestRegistry().apply(0, LOG, [Unsubscribed("a", "t")]).is_empty


def test_a_clean_session_ends_at_once() -> None:
    registry = InterestRegistry()
    registry.apply(0, LOG, [Subscribed("a", "t", 1), Subscribed("a", "u", 0)])
    assert registry.apply(1, LOG, [ClientLeft("a", Session.ENDED)]) == Change(removed=("t", "u"))


def test_interest_of_a_kept_session_does_not_expire() -> None:
    registry = InterestRegistry()
    registry.apply(0, LOG, [Subscribed("a", "t", 1), ClientLeft("a", Session.KEPT)])
    assert registry.next_expiry_s() is None
    assert registry.expire(1e9).is_empty
    assert registry.apply(1e9, LOG, [ClientLeft("a", Session.ENDED)]) == Change(removed=("t",))


def test_number_of_kept_sessions_is_limited_and_the_one_that_left_first_ends() -> None:
    registry = InterestRegistry(InterestSettings(absent_clients_max=2))
    for client in "abcd":
        registry.apply(0, LOG, [Subscribed(client, client, 1), ClientLeft(client, Session.KEPT)])
        if client == "b":
            registry.apply(0, LOG, [ClientBack("a", session_kept=True), ClientLeft("a", Session.KEPT)])
    # Client b left first: a came back in between.
    assert registry.filters() == {"c": 1, "d": 1}
    assert registry.expired == {"absent_clients_max": 2}


def test_confirmation_stops_the_expiry_after_a_gap_and_after_an_unknown_end() -> None:
    registry = InterestRegistry(InterestSettings(unconfirmed_ttl_s=60, unknown_ttl_s=30))
    registry.apply(0, LOG, [Subscribed("a", "t", 1), Subscribed("b", "u", 1), ClientLeft("b", Session.UNKNOWN), Gap()])
    registry.apply(0, "beacon", [Subscribed("c", "v", 1), Gap()])
    registry.apply(1, LOG, [Confirmed()])
    assert registry.expire(1000) == Change(removed=("v",))


def test_the_return_of_a_persistent_client_stops_the_expiry() -> None:
    registry = InterestRegistry()
    registry.apply(0, LOG, [Subscribed("a", "t", 1), ClientLeft("a", Session.KEPT, 100)])
    assert registry.apply(50, LOG, [ClientBack("a", session_kept=True)]).is_empty
    assert registry.expire(1000).is_empty


def test_a_second_disconnect_line_does_not_delay_the_expiry() -> None:
    registry = InterestRegistry(InterestSettings(unknown_ttl_s=500))
    registry.apply(0, LOG, [Subscribed("a", "t", 1), ClientLeft("a", Session.KEPT, 100)])
    registry.apply(50, LOG, [ClientLeft("a", Session.UNKNOWN)])
    assert registry.expire(100) == Change(removed=("t",))


def test_a_clean_reconnect_leaves_time_to_subscribe_again() -> None:
    registry = InterestRegistry(InterestSettings(resubscribe_grace_s=2))
    registry.apply(0, LOG, [Subscribed("a", "t", 1), Subscribed("a", "u", 1)])
    assert registry.apply(10, LOG, [ClientBack("a", session_kept=False)]).is_empty
    assert registry.apply(10.1, LOG, [Subscribed("a", "t", 1)]).is_empty
    assert registry.expire(12) == Change(removed=("u",))
    assert registry.filters() == {"t": 1}


def test_beacons_expire_unless_repeated() -> None:
    registry = InterestRegistry()
    registry.apply(0, "beacon", [Subscribed("b", "t", 2, ttl_s=6)])
    registry.apply(4, "beacon", [Subscribed("b", "t", 2, ttl_s=6)])
    assert registry.expire(6).is_empty
    assert registry.expire(10) == Change(removed=("t",))
    assert registry.expired == {"not_renewed": 1}


def test_beacons_renewed_for_a_month_leave_no_heap_of_old_times() -> None:
    registry = InterestRegistry()
    for now_s in range(20_000):
        registry.apply(now_s, "beacon", [Subscribed("b", "t", 2, ttl_s=10**6)])
    assert len(registry._expiries) < 3_000
    assert registry.expire(10**6 + 19_998).is_empty
    assert registry.expire(10**6 + 19_999) == Change(removed=("t",))


def test_a_gap_makes_only_its_sources_interest_unconfirmed() -> None:
    registry = InterestRegistry(InterestSettings(unconfirmed_ttl_s=60))
    registry.apply(0, LOG, [Subscribed("a", "t", 1), Subscribed("b", "u", 1)])
    registry.apply(0, "static", [Subscribed("(configuration)", "s", 2)])
    registry.apply(10, LOG, [Gap()])
    registry.apply(20, LOG, [Subscribed("a", "t", 1)])
    assert registry.expire(70) == Change(removed=("u",))
    assert registry.expired == {"unconfirmed": 1}
    assert registry.expire(10**9).is_empty


def test_interest_survives_a_restart_until_confirmed_or_expired(tmp_path: Path) -> None:
    settings = InterestSettings(unconfirmed_ttl_s=60)
    registry = InterestRegistry(settings)
    registry.apply(
        1000,
        LOG,
        [
            Subscribed("stays", "t", 1),
            Subscribed("left", "u", 2),
            ClientLeft("left", Session.KEPT, 30),
            Subscribed("w", "$share/g/s", 1),
        ],
    )
    store.save(tmp_path / "interest.json", registry.dump(1010, wall_s=5000))

    after = InterestRegistry(settings)
    document = store.read(tmp_path / "interest.json")
    assert document is not None
    change = after.load(3, 5005, document)
    assert change == Change(added=(("s", 1), ("t", 1), ("u", 2)), shares_added=(("g", "s"),))
    assert after.apply(4, LOG, [Subscribed("stays", "t", 1)]).is_empty
    assert after.expire(17.9).is_empty
    assert after.expire(18) == Change(removed=("u",))  # 20 s were left at the save, 5 s passed while away
    assert after.expire(63) == Change(removed=("s",), shares_removed=(("g", "s"),))
    assert after.filters() == {"t": 1}


def test_interest_that_expired_while_away_is_not_loaded_and_a_clock_that_stepped_back_delays_nothing() -> None:
    registry = InterestRegistry()
    registry.apply(0, LOG, [Subscribed("a", "t", 1), ClientLeft("a", Session.KEPT, 30)])
    document = registry.dump(0, wall_s=5000)
    assert InterestRegistry().load(0, 5030, document).is_empty
    after = InterestRegistry()
    after.load(0, 10, document)
    assert after.next_expiry_s() == 30


def test_a_report_since_the_start_is_newer_than_the_stored_one() -> None:
    before, after = InterestRegistry(), InterestRegistry()
    before.apply(0, LOG, [Subscribed("a", "t", 2)])
    after.apply(0, LOG, [Subscribed("a", "t", 0)])
    assert after.load(0, 0, before.dump(0, 0)).is_empty
    assert after.filters() == {"t": 0}
    assert after.next_expiry_s() is None


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"version": 2, "saved_at_s": 0, "subscriptions": []},
        {"version": 1, "saved_at_s": "x", "subscriptions": []},
        {"version": 1, "saved_at_s": 0, "subscriptions": [["a"]]},
        {"version": 1, "saved_at_s": 0, "subscriptions": [["a", "b", "c", 1, "soon"]]},
        {"version": 1, "saved_at_s": 0, "subscriptions": [7]},
    ],
)
def test_a_foreign_document_is_refused_with_a_remedy(document: dict[str, object]) -> None:
    with pytest.raises(LocalError, match="move the file away"):
        InterestRegistry().load(0, 0, document)


def test_odd_values_in_a_stored_row_are_dropped_and_do_no_harm() -> None:
    registry = InterestRegistry()
    text = """{"version": 1, "saved_at_s": 0, "subscriptions": [
        ["s", "c", "a", [1], null], ["s", "c", "b", true, null], ["s", "c", "d", 1, NaN], ["s", "c", "e", 1,
        Infinity], ["s", "c", "$SYS/#", 1, null], ["s", "c", "kept", 1, 5]]}"""
    assert registry.load(0, 0, json.loads(text)) == Change(added=(("kept", 1),))
    assert registry.drops == {"qos_out_of_range": 2, "filter_never_federated": 1}


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "interest.json"
    path.write_bytes(content)
    with pytest.raises(LocalError, match=r"interest\.json"):
        store.read(path)


def test_a_missing_file_means_no_interest_and_a_refusing_disk_is_reported(tmp_path: Path) -> None:
    assert store.read(tmp_path / "none.json") is None
    with pytest.raises(LocalError, match="could not be saved"):
        store.save(tmp_path / "no-such-directory" / "x.json", {})


def test_a_share_is_interest_in_its_filter_and_its_name_is_listed() -> None:
    registry = InterestRegistry()
    change = registry.apply(0, LOG, [Subscribed("w1", "$share/g/t/#", 1), Subscribed("w2", "$share/g/t/#", 0)])
    assert change == Change(added=(("t/#", 1),), shares_added=(("g", "t/#"),))
    assert registry.shares() == {"g": frozenset({"t/#"})}
    assert registry.apply(0, LOG, [Unsubscribed("w1", "$share/g/t/#")]) == Change(changed=(("t/#", 0),))
    change = registry.apply(0, LOG, [Unsubscribed("w2", "$share/g/t/#")])
    assert change == Change(removed=("t/#",), shares_removed=(("g", "t/#"),))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("$SYS/broker/#", "filter_never_federated"),
        ("federator/beacon/x", "filter_never_federated"),
        ("federator/#", "filter_never_federated"),
        ("federated_topology_ann", "filter_never_federated"),
        ("$share/g/$SYS/#", "filter_never_federated"),
        ("", "filter_malformed"),
        ("a/#/b", "filter_malformed"),
        ("a+/b", "filter_malformed"),
        ("a\0b", "filter_malformed"),
        ("a\ud800b", "filter_malformed"),
        ("$share//x", "filter_malformed"),
        ("$share/g", "filter_malformed"),
        ("$share/g/", "filter_malformed"),
        ("x" * 65_536, "filter_malformed"),
        ("/" * 200, "filter_malformed"),
    ],
)
def test_filters_that_must_not_cross_are_dropped_and_counted(wanted: str, reason: str) -> None:
    registry = InterestRegistry()
    assert registry.apply(0, LOG, [Subscribed("a", wanted, 1)]).is_empty
    assert registry.drops == {reason: 1}


@pytest.mark.parametrize("wanted", ["#", "+", "/", "+/+", "a b/é/#", "$hanse/telemetry/v1/#", "federators/x", "../x"])
def test_filters_that_may_cross_are_kept(wanted: str) -> None:
    assert InterestRegistry().apply(0, LOG, [Subscribed("a", wanted, 1)]).added == ((wanted, 1),)


def test_reports_beyond_the_limits_are_dropped_and_counted_and_change_nothing() -> None:
    registry = InterestRegistry(InterestSettings(filters_max=3, clients_max=2, filters_per_client_max=2))
    registry.apply(0, LOG, [Subscribed("a", text, 0) for text in ("1", "2", "3")])
    assert registry.drops == {"filters_per_client_max": 1}
    registry.apply(0, LOG, [Subscribed("b", text, 0) for text in ("3", "4")])
    assert registry.drops["filters_max"] == 1
    registry.apply(0, LOG, [Subscribed("c", "1", 0)])
    assert registry.drops["clients_max"] == 1
    registry.apply(0, LOG, [Subscribed("a", "1", 3)])
    assert registry.drops["qos_out_of_range"] == 1
    assert registry.filters() == {"1": 0, "2": 0, "3": 0}


def test_bridges_come_and_go() -> None:
    registry = InterestRegistry()
    registry.apply(0, LOG, [BridgeSeen("to-b")])
    assert registry.has_bridges()
    registry.apply(0, LOG, [BridgeGone("to-b")])
    assert not registry.has_bridges()


_CLIENTS = st.sampled_from(["a", "b"])
_FILTERS = st.sampled_from(["t", "u/#", "$share/g/t"])
_REPORTS: st.SearchStrategy[Report] = st.one_of(
    st.builds(Subscribed, _CLIENTS, _FILTERS, st.integers(0, 2), st.sampled_from([None, 3.0])),
    st.builds(Unsubscribed, _CLIENTS, _FILTERS),
    st.builds(ClientLeft, _CLIENTS, st.sampled_from(Session), st.sampled_from([None, 4.0])),
    st.builds(ClientBack, _CLIENTS, st.booleans()),
    st.just(Gap()),
    st.just(Confirmed()),
)


@given(st.lists(st.tuples(st.sampled_from(["x", "y"]), _REPORTS, st.integers(0, 5)), max_size=40))
def test_the_changes_add_up_to_the_set_and_interest_expires_in_time(steps: list[tuple[str, Report, int]]) -> None:
    registry = InterestRegistry(InterestSettings(absent_clients_max=1, unknown_ttl_s=2, unconfirmed_ttl_s=5))
    known: dict[str, int] = {}
    now_s = 0.0

    def follow(change: Change) -> None:
        for wanted, qos in change.added:
            assert wanted not in known
            known[wanted] = qos
        for wanted, qos in change.changed:
            assert known[wanted] != qos
            known[wanted] = qos
        for wanted in change.removed:
            del known[wanted]

    for source, report, wait_s in steps:
        now_s += wait_s
        follow(registry.expire(now_s))
        follow(registry.apply(now_s, source, [report]))
        assert known == registry.filters()
        restored = InterestRegistry(registry.settings)
        restored.load(0, 0, json.loads(json.dumps(registry.dump(now_s, 0))))
        assert restored.filters() == known
    follow(registry.apply(now_s, "x", [Gap()]))
    follow(registry.apply(now_s, "y", [Gap()]))
    follow(registry.expire(now_s + 5))
    assert known == {}
    assert registry._held == {}
    assert registry._held_count == 0
    assert registry.shares() == {}


def test_interest_with_half_a_second_left_is_loaded() -> None:
    registry = InterestRegistry()
    registry.apply(0, LOG, [Subscribed("a", "t", 1), ClientLeft("a", Session.KEPT, 30)])
    document = registry.dump(0, wall_s=5000)
    after = InterestRegistry()
    assert after.load(0, 5029.5, document) == Change(added=(("t", 1),))
    assert after.next_expiry_s() == 0.5
