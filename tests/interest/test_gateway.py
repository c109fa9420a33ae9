"""Reports of gateways, with time and connections controlled by the test."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.interest import InterestRegistry
from hanse.interest.gateway import LEASE_S, GatewayAdapter, Owner

A, B = Owner("g1", "first", 0), Owner("g2", "first", 0)


class Federator:
    """An adapter with the registry behind it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.adapter = GatewayAdapter()
        self.registry = InterestRegistry()

    def say(self, owner: Owner, *rows: list[Any]) -> None:
        self._apply(self.adapter.rows(self.now, owner, json.loads(json.dumps(rows))))

    def snapshot(self, owner: Owner, *rows: list[Any]) -> None:
        self.adapter.connected(owner)
        self.adapter.begin_snapshot(owner)
        self.say(owner, *rows)
        self._apply(self.adapter.end_snapshot(self.now, owner))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._apply(self.adapter.tick(self.now))
        self.registry.expire(self.now)

    def _apply(self, reports: Any) -> None:
        self.registry.apply(self.now, "gateway", reports)

    def restart(self, away_s: float) -> None:
        rows, document = self.adapter.dump(self.now), self.registry.dump(self.now, 1_000.0)
        self.adapter, self.registry = GatewayAdapter(), InterestRegistry()
        self.registry.load(self.now, 1_000.0 + away_s, json.loads(json.dumps(document)))
        held = self.registry.held_of("gateway")
        self._apply(self.adapter.load(self.now, away_s, json.loads(json.dumps(rows)), held))

    @property
    def filters(self) -> dict[str, int]:
        return self.registry.filters()


def here(name: str, *filters: str, expiry: float | None = 0, complete: bool = True) -> list[list[Any]]:
    return [["here", name, complete, expiry], *(["subscribed", name, text, 1, 5] for text in filters)]


def test_subscriptions_begin_and_end_with_what_the_client_does() -> None:
    one = Federator()
    one.snapshot(A)
    one.say(A, *here("c", "a/#", "b"))
    assert one.filters == {"a/#": 1, "b": 1}
    one.say(A, ["unsubscribed", "c", "b"])
    assert one.filters == {"a/#": 1}
    one.say(A, ["left", "c", 0])
    assert one.filters == {}
    assert len(one.adapter) == 0


def test_filter_of_10000_bytes_and_share_names_arrive_whole() -> None:
    one = Federator()
    long = "x/" * 20 + "y" * 10_000
    one.snapshot(A, *here("c", long, "$share/team/jobs/#"))
    assert one.filters == {long: 1, "jobs/#": 1}
    assert one.registry.shares() == {"team": frozenset({"jobs/#"})}


@pytest.mark.parametrize("expiry", [30.0, None])
def test_session_keeps_its_interest_for_its_expiry(expiry: float | None) -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a", expiry=expiry))
    one.say(A, ["left", "c", expiry])
    one.wait(29)
    assert one.filters == {"a": 1}
    one.wait(2)
    assert one.filters == ({"a": 1} if expiry is None else {})


def test_client_that_comes_back_in_time_goes_on() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a", expiry=30))
    one.say(A, ["left", "c", 30])
    one.wait(20)
    one.say(A, *here("c", complete=False, expiry=30))
    one.wait(1_000)
    assert one.filters == {"a": 1}


def test_clean_start_ends_what_the_client_held_after_a_moment() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a", "b", expiry=30))
    one.say(A, *here("c", "b"))
    one.wait(5)
    assert one.filters == {"b": 1}


def test_lost_gateway_keeps_its_clients_for_the_lease_and_sessions_for_their_expiry() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a"), *here("s", "b", expiry=100))
    one.adapter.disconnected(one.now, A)
    one.wait(LEASE_S - 1)
    assert one.filters == {"a": 1, "b": 1}
    one.wait(2)
    assert one.filters == {"b": 1}
    one.wait(101)
    assert one.filters == {}
    assert one.adapter.counters["leases_ended"] == 1


def test_gateway_that_is_back_within_the_lease_reports_the_remaining_clients() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a", "b"), *here("d", "x"), *here("e", "y", expiry=50))
    one.adapter.disconnected(one.now, A)
    one.wait(30)
    one.snapshot(A, *here("c", "b", "new"))
    assert one.filters == {"b": 1, "new": 1, "y": 1}
    one.wait(51)
    assert one.filters == {"b": 1, "new": 1}


def test_snapshot_of_a_resumed_session_ends_nothing_that_the_gateway_never_saw() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "old", expiry=100))
    one.say(A, ["left", "c", 100])
    one.snapshot(B)
    one.say(B, *here("c", "new", complete=False, expiry=100))
    one.snapshot(B, *here("c", "new", complete=False, expiry=100))
    assert one.filters == {"old": 1, "new": 1}


def test_restarted_gateway_ends_its_former_incarnation() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a"), *here("s", "b", expiry=100))
    again = Owner("g1", "second", 0)
    one.snapshot(again, *here("d", "x"))
    assert one.filters == {"b": 1, "x": 1}
    other_worker = Owner("g1", "second", 1)
    one.snapshot(other_worker)
    assert one.filters == {"b": 1, "x": 1}


def test_client_that_moved_to_another_gateway_is_not_ended_by_the_first() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a"))
    one.snapshot(B)
    one.say(B, *here("c", "a"))
    one.say(A, ["left", "c", 0])
    one.adapter.disconnected(one.now, A)
    one.wait(LEASE_S + 1)
    assert one.filters == {"a": 1}
    assert one.adapter.counters["rows_out_of_date"] == 1


def test_interrupted_snapshot_ends_nothing_and_the_next_one_does() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a", "b", "d"))
    one.adapter.begin_snapshot(A)
    one.say(A, *here("c", "b"))
    one.adapter.disconnected(one.now, A)
    assert one.filters == {"a": 1, "b": 1, "d": 1}
    one.snapshot(A, *here("c", "d"))
    assert one.filters == {"d": 1}


def test_restart_of_the_federator_keeps_what_gateways_confirm_and_sessions() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a"), *here("gone", "g"), *here("s", "b", expiry=100), *here("t", "e", expiry=None))
    one.say(A, ["left", "s", 100], ["left", "t", None])
    one.restart(away_s=40)
    assert set(one.filters) == {"a", "b", "e", "g"}
    one.snapshot(A, *here("c", "a"))
    assert set(one.filters) == {"a", "b", "e"}
    one.wait(61)
    assert set(one.filters) == {"a", "e"}


def test_restart_of_the_federator_ends_the_clients_of_a_gateway_that_never_comes_back() -> None:
    one = Federator()
    one.snapshot(A, *here("c", "a"), *here("s", "b", expiry=100))
    one.restart(away_s=1)
    one.wait(LEASE_S + 1)
    assert set(one.filters) == {"b"}


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        ["here"],
        ["here", "c", 1, 0],
        ["here", "c", True, -1],
        ["here", "c", True, "x"],
        ["here", 3, True, 0],
        ["subscribed", "c", "a", 3, 0],
        ["subscribed", "c", "a", True, 0],
        ["subscribed", "c", "a", 1.5, 0],
        ["subscribed", "c", 7, 1, 0],
        ["left", "c", math.inf],
        ["left", "c"],
        ["unsubscribed", "c", None],
        ["what", "c"],
    ],
)
def test_attack_malformed_row_is_counted_and_the_others_count(row: Any) -> None:
    one = GatewayAdapter()
    one.connected(A)
    reports = one.rows(0.0, A, [row, *here("d", "x")])
    assert [type(report).__name__ for report in reports] == ["ClientBack", "Subscribed"]
    assert one.counters["rows_malformed"] == 1


_NAMES = st.sampled_from(["c", "d", "e"])
_STEPS = st.one_of(
    st.tuples(st.just("here"), _NAMES, st.sampled_from([A, B]), st.booleans(), st.sampled_from([0, 30])),
    st.tuples(st.just("subscribe"), _NAMES, st.sampled_from("xyz")),
    st.tuples(st.just("unsubscribe"), _NAMES, st.sampled_from("xyz")),
    st.tuples(st.just("left"), _NAMES),
    st.tuples(st.just("flap"), st.sampled_from([A, B])),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 20.0])),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_STEPS, max_size=40))
def test_interest_is_what_a_broker_with_these_sessions_would_hold(steps: list[Any]) -> None:
    """A model of the broker's sessions. Each gateway knows what its clients did since they came."""
    one = Federator()
    sessions: dict[str, dict[str, Any]] = {}  # at the broker
    books: dict[Owner, dict[str, list[Any]]] = {A: {}, B: {}}  # complete, expiry, filters
    one.snapshot(A)
    one.snapshot(B)

    def tell(owner: Owner) -> None:
        one.snapshot(
            owner, *(row for name, (complete, expiry, texts) in books[owner].items()
                     for row in here(name, *sorted(texts), complete=complete, expiry=expiry))
        )  # fmt: skip

    for step in steps:
        kind = step[0]
        if kind == "here":
            _, name, owner, clean, expiry = step
            session = sessions.get(name)
            is_kept = session is not None and not clean and (session["owner"] is None or session["expiry"] > 0)
            filters = session["filters"] if session is not None and is_kept else set()
            for other, book in books.items():
                if other != owner and name in book:
                    # The broker ends the older connection; its gateway says so late.
                    was = book.pop(name)
                    one.say(owner, *here(name, complete=not is_kept, expiry=expiry))
                    one.say(other, ["left", name, was[1]])
                    break
            else:
                one.say(owner, *here(name, complete=not is_kept, expiry=expiry))
            books[owner][name] = [not is_kept, expiry, set()]
            sessions[name] = {"filters": filters, "owner": owner, "expiry": expiry, "ends": None}
        elif kind in ("subscribe", "unsubscribe") and sessions.get(step[1], {}).get("owner"):
            _, name, text = step
            session = sessions[name]
            known = books[session["owner"]][name][2]
            if kind == "subscribe":
                one.say(session["owner"], ["subscribed", name, text, 1, 0])
                session["filters"].add(text)
                known.add(text)
            else:
                one.say(session["owner"], ["unsubscribed", name, text])
                session["filters"].discard(text)
                known.discard(text)
        elif kind == "left" and sessions.get(step[1], {}).get("owner"):
            name = step[1]
            session = sessions[name]
            one.say(session["owner"], ["left", name, session["expiry"]])
            del books[session["owner"]][name]
            session["owner"] = None
            session["ends"] = one.now + session["expiry"]
        elif kind == "flap":
            one.adapter.disconnected(one.now, step[1])
            tell(step[1])
        elif kind == "wait":
            one.wait(step[1])
        for name in [name for name, each in sessions.items() if each["ends"] is not None and each["ends"] <= one.now]:
            del sessions[name]
    one.wait(2.5)  # the grace after a clean start
    for name in [name for name, each in sessions.items() if each["ends"] is not None and each["ends"] <= one.now]:
        del sessions[name]
    assert set(one.filters) == {text for session in sessions.values() for text in session["filters"]}
