"""Ledger of logged subscriptions against a broker's counts: single rules, then a broker that does anything."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import RemoteError
from hanse.interest.ledger import Counts, Ledger, LedgerState
from hanse.interest.reports import (
    BridgeSeen,
    ClientBack,
    ClientLeft,
    Confirmed,
    Gap,
    Report,
    Session,
    Subscribed,
    Unsubscribed,
)


def ledger(*, bridge_topics: int = 0, subscriptions_max: int = 100) -> Ledger:
    return Ledger("hanse-", Counter(), bridge_topics=bridge_topics, subscriptions_max=subscriptions_max)


def ticks(of: Ledger, ordinary: int, shared: int = 0, away: int | None = None, count: int = 2) -> list[Report]:
    reports: list[Report] = []
    for _ in range(count):
        reports += of.tick(Counts(ordinary, shared, away))
    return reports


def test_subscription_that_the_log_never_told_is_counted_after_two_ticks() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("a", "$share/g/t", 1)])
    assert of.state == LedgerState(known=2, unknown=None, ended_unseen=None, doubtful=0)
    unknown = []
    for _ in range(2):
        ticks(of, 2, 3, count=1)
        unknown.append(of.state.unknown)
    assert unknown == [None, 3]
    of.take([Subscribed("b", "t", 0), Subscribed("b", "$share/g/t", 1), Subscribed("c", "$share/g/t", 1)])
    ticks(of, 2, 3, count=1)
    assert of.state.unknown == 0


def test_own_subscriptions_are_counted_and_not_reported() -> None:
    of = ledger()
    assert of.take([Subscribed("hanse-1", "$SYS/x", 1), Subscribed("a", "t", 1)]) == [Subscribed("a", "t", 1)]
    ticks(of, 2)
    assert of.state.unknown == 0


def test_topics_of_configured_bridges_are_not_unknown() -> None:
    of = ledger(bridge_topics=2)
    ticks(of, 3)
    assert of.state.unknown == 1


def test_repeated_subscription_counts_once() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("a", "t", 2)])
    ticks(of, 1)
    assert of.state == LedgerState(known=1, unknown=0, ended_unseen=0, doubtful=0)


def test_session_of_mqtt_5_that_ends_with_its_connection_is_found_at_the_next_tick() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("a", "u", 1), Subscribed("b", "v", 1)])
    ticks(of, 3)
    assert of.take([ClientLeft("a", Session.UNKNOWN)]) == [ClientLeft("a", Session.KEPT)]
    assert ticks(of, 1, count=1) == [ClientLeft("a", Session.ENDED)]
    assert of.state.known == 1


def test_session_of_mqtt_5_that_is_kept_is_found_at_the_next_tick() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1)])
    ticks(of, 1)
    of.take([ClientLeft("a", Session.UNKNOWN)])
    assert ticks(of, 1) == []
    assert of.state == LedgerState(known=1, unknown=0, ended_unseen=0, doubtful=0)


def test_own_session_that_began_clean_ends_with_its_connection() -> None:
    of = ledger()
    of.take([ClientBack("hanse-1-x", session_kept=False), Subscribed("hanse-1-x", "t", 0)])
    of.take([ClientBack("hanse-1", session_kept=True), Subscribed("hanse-1", "u", 0)])
    of.take([ClientLeft("hanse-1-x", Session.UNKNOWN), ClientLeft("hanse-1", Session.UNKNOWN)])
    assert of.state.known == 1
    of.take([ClientBack("hanse-1-x", session_kept=False), ClientBack("hanse-1-x", session_kept=True)])
    of.take([Subscribed("hanse-1-x", "t", 0), ClientLeft("hanse-1-x", Session.UNKNOWN)])
    assert of.state.known == 2


def test_without_counts_the_end_of_an_mqtt_5_session_stays_unknown() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1)])
    assert of.take([ClientLeft("a", Session.UNKNOWN)]) == [ClientLeft("a", Session.UNKNOWN)]


def test_number_of_disconnected_clients_decides_between_equal_sessions() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("b", "u", 1)])
    ticks(of, 2, away=0)
    of.take([ClientLeft("a", Session.UNKNOWN), ClientLeft("b", Session.UNKNOWN)])
    # One of them ended; nothing tells which.
    assert ticks(of, 1, away=1, count=1) == []
    assert of.state.doubtful == 2


def test_topic_without_subscribers_ends_the_doubtful_subscriptions_that_match_it() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("b", "u", 1), Subscribed("c", "t", 1)])
    ticks(of, 3)
    of.take([ClientLeft("a", Session.UNKNOWN), ClientLeft("b", Session.UNKNOWN)])
    ticks(of, 2, count=1)
    assert of.unmatched(lambda filter_: filter_ == "t") == [Unsubscribed("a", "t")]
    assert ticks(of, 2) == [Confirmed()]
    assert of.state == LedgerState(known=2, unknown=0, ended_unseen=0, doubtful=0)


def test_topic_without_subscribers_ends_an_uncertain_subscription_without_counts() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("b", "t", 1), ClientLeft("a", Session.UNKNOWN)])
    assert of.is_uncertain
    assert of.unmatched(lambda filter_: filter_ == "t") == [Unsubscribed("a", "t")]
    assert of.unmatched(lambda _: True) == []


def test_reconnect_to_a_session_reports_all_of_it_again() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), ClientLeft("a", Session.KEPT)])
    back = ClientBack("a", session_kept=True)
    assert of.take([back]) == [back, Subscribed("a", "t", 1)]


def test_gap_makes_everything_doubtful_until_the_counts_agree() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1)])
    ticks(of, 1)
    assert of.take([Gap()]) == [Gap()]
    assert of.state == LedgerState(known=1, unknown=None, ended_unseen=None, doubtful=1)
    assert ticks(of, 1, count=1) == [Confirmed()]
    assert of.state.doubtful == 0


def test_as_many_missing_as_are_doubtful_means_that_all_of_these_ended() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("a", "$share/g/t", 1), Gap(), Subscribed("b", "u", 1)])
    assert ticks(of, 1, 0, count=1) == []
    assert ticks(of, 1, 0, count=1) == [Unsubscribed("a", "$share/g/t"), Unsubscribed("a", "t")]
    assert of.state == LedgerState(known=1, unknown=0, ended_unseen=0, doubtful=0)


def test_snapshot_shows_subscriptions_missing_in_the_log_and_ended_ones() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("gone", "t", 1), Subscribed("s", "$share/g/t", 1), Gap()])
    of.begin_snapshot()
    held = [("a", "t", 1), ("a", "u", 2), ("hanse-1", "$SYS/x", 1)]
    reports = of.take_snapshot(held, is_whole=True)
    assert reports == [Unsubscribed("gone", "t"), Subscribed("a", "t", 1), Subscribed("a", "u", 2)]
    ticks(of, 3, 1)
    assert of.state == LedgerState(known=4, unknown=0, ended_unseen=0, doubtful=0)


def test_snapshot_without_the_federators_own_subscriptions_is_refused() -> None:
    ledger().require_own([("a", "t", 1), ("hanse-1", "$SYS/x", 1)])
    with pytest.raises(RemoteError, match="another broker's"):
        ledger().require_own([("a", "t", 1)])


def test_snapshot_that_is_not_whole_ends_nothing() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1)])
    of.begin_snapshot()
    assert of.take_snapshot([("b", "u", 1)], is_whole=False) == [Subscribed("b", "u", 1)]
    assert of.state.known == 2


def test_log_is_newer_than_a_snapshot_that_was_asked_for_before() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Subscribed("b", "t", 1)])
    of.begin_snapshot()
    of.take([Unsubscribed("a", "t"), Subscribed("b", "u", 1)])
    assert of.take_snapshot([("a", "t", 1), ("b", "t", 1)], is_whole=True) == []
    assert of.state.known == 2
    of.begin_snapshot()
    of.abandon_snapshot()


def test_bridges_of_the_broker_in_a_snapshot_are_counted_and_no_interest() -> None:
    of = ledger(bridge_topics=1)
    of.take([BridgeSeen("host.up")])
    of.begin_snapshot()
    assert of.take_snapshot([("local.host.up", "out/#", 1), ("local.host.up", "more/#", 1)], is_whole=True) == []
    ticks(of, 2)
    assert of.state.unknown == 0


def test_bridge_that_is_known_only_after_the_snapshot_is_no_interest_either() -> None:
    of = ledger()
    of.begin_snapshot()
    assert len(of.take_snapshot([("local.host.up", "out/#", 1)], is_whole=True)) == 1
    assert of.take([BridgeSeen("host.up")]) == [Unsubscribed("local.host.up", "out/#"), BridgeSeen("host.up")]
    ticks(of, 1)
    assert of.state == LedgerState(known=0, unknown=0, ended_unseen=0, doubtful=0)


def test_hints_are_interest_and_doubtful_until_the_counts_agree() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1)])
    ticks(of, 3)
    hints = [("a", "t", 1), ("b", "u", 1), ("hanse-1", "x", 0)]
    assert of.take_hints(hints) == [Subscribed("b", "u", 1)]
    assert of.state == LedgerState(known=3, unknown=None, ended_unseen=None, doubtful=2)
    assert ticks(of, 3, count=1) == [Confirmed()]
    assert of.take_hints([("b", "v", 1)]) == [Subscribed("b", "v", 1)]
    assert ticks(of, 3) == [Unsubscribed("b", "v")]


def test_time_ends_nothing_after_a_gap_if_the_broker_holds_no_less() -> None:
    of = ledger()
    of.take([Subscribed("a", "t", 1), Gap()])
    assert ticks(of, 3, count=1) == []
    assert ticks(of, 3, count=1) == [Confirmed()]
    assert ticks(of, 3, count=1) == []
    assert of.state == LedgerState(known=1, unknown=2, ended_unseen=0, doubtful=1)
    # Fewer than before: something has ended, and time may show what.
    of.take([Subscribed("b", "u", 1), Gap()])
    assert ticks(of, 1) == []


def test_full_ledger_no_longer_claims_to_know() -> None:
    of = ledger(subscriptions_max=1)
    of.take([Subscribed("a", "t", 1), Subscribed("a", "u", 1)])
    ticks(of, 2)
    assert of.state == LedgerState(known=1, unknown=None, ended_unseen=None, doubtful=0)


def test_number_of_clients_without_subscriptions_is_limited() -> None:
    of = ledger(subscriptions_max=2)
    for client in "abc":
        of.take([ClientBack(client, session_kept=True), ClientLeft(client, Session.KEPT)])
    of.take([Subscribed("d", "t", 1), Unsubscribed("d", "t"), ClientLeft("d", Session.UNKNOWN)])
    ticks(of, 0, away=3)
    assert of.state == LedgerState(known=0, unknown=None, ended_unseen=None, doubtful=0)
    assert len(of._clients) == 2


def test_ledger_survives_a_restart_and_is_doubtful_then() -> None:
    before, after = ledger(), ledger()
    before.take([Subscribed("a", "t", 1), Subscribed("hanse-1", "x", 1), ClientLeft("a", Session.KEPT)])
    after.load(before.dump())
    assert after.state == LedgerState(known=2, unknown=None, ended_unseen=None, doubtful=2)
    assert ticks(after, 2, away=1, count=1) == [Confirmed()]
    after.load([1, [], ["a", "b", "c"], ["a", True, [["t"], ["u", "1"]]]])
    assert after.state.known == 2


class Broker:
    """A broker whose log and counts the ledger gets, and that knows the truth."""

    def __init__(self) -> None:
        self.held: dict[str, set[str]] = {}
        # Connected client to what its log line says of its session, and whether the session will be kept.
        self.connected: dict[str, tuple[Session, bool]] = {}

    def connect(self, client: str, kind: int) -> list[Report]:
        reports = self.disconnect(client)
        session, is_kept, is_clean = [
            (Session.ENDED, False, True),
            (Session.KEPT, True, False),
            (Session.UNKNOWN, False, True),
            (Session.UNKNOWN, True, True),
            (Session.UNKNOWN, True, False),
            (Session.UNKNOWN, False, False),
        ][kind]
        if is_clean:
            self.held.pop(client, None)
            # Federators keep no session that begins clean.
            is_kept = is_kept and not client.startswith("hanse-")
        self.held.setdefault(client, set())
        self.connected[client] = (session, is_kept)
        return [*reports, ClientBack(client, session_kept=not is_clean)]

    def disconnect(self, client: str) -> list[Report]:
        if client not in self.connected:
            return []
        session, is_kept = self.connected.pop(client)
        if not is_kept:
            del self.held[client]
        return [ClientLeft(client, session)]

    def change(self, client: str, filter_: str, *, is_added: bool) -> list[Report]:
        if client not in self.connected:
            return []
        if is_added:
            self.held[client].add(filter_)
            return [Subscribed(client, filter_, 1)]
        self.held[client].discard(filter_)
        return [Unsubscribed(client, filter_)]

    def expire(self, client: str) -> list[Report]:
        if client in self.connected or client not in self.held:
            return []
        del self.held[client]
        return [ClientLeft(client, Session.ENDED)]

    def counts(self, *, tells_away: bool) -> Counts:
        filters = [filter_ for held in self.held.values() for filter_ in held]
        shared = sum(filter_.startswith("$share/") for filter_ in filters)
        away = len(self.held) - len(self.connected)
        return Counts(len(filters) - shared, shared, away if tells_away else None)

    def truth(self) -> set[tuple[str, str]]:
        return {(client, filter_) for client, held in self.held.items() for filter_ in held}


_CLIENTS = ("a", "b", "c", "hanse-1")
_FILTERS = ("t", "u", "$share/g/t", "$share/h/t")
_STEPS = st.one_of(
    st.tuples(st.just("connect"), st.sampled_from(_CLIENTS), st.integers(0, 5)),
    st.tuples(st.just("disconnect"), st.sampled_from(_CLIENTS), st.just(0)),
    st.tuples(st.just("subscribe"), st.sampled_from(_CLIENTS), st.integers(0, 3)),
    st.tuples(st.just("subscribe"), st.sampled_from(_CLIENTS), st.integers(0, 3)),
    st.tuples(st.just("unsubscribe"), st.sampled_from(_CLIENTS), st.integers(0, 3)),
    st.tuples(st.just("expire"), st.sampled_from(_CLIENTS), st.just(0)),
    st.tuples(st.just("tick"), st.just(""), st.just(0)),
    st.tuples(st.just("tick"), st.just(""), st.just(0)),
)
# A snapshot is asked for, made by the broker, and arrives; anything may happen between these.
_SNAPSHOT = st.tuples(st.sampled_from(["ask", "make", "arrive"]), st.just(""), st.just(0))


def play(broker: Broker, kind: str, client: str, number: int) -> list[Report]:
    match kind:
        case "connect":
            return broker.connect(client, number)
        case "disconnect":
            return broker.disconnect(client)
        case "expire":
            return broker.expire(client)
        case _:
            return broker.change(client, _FILTERS[number], is_added=kind == "subscribe")


def held_by(of: Ledger) -> set[tuple[str, str]]:
    return {(client, filter_) for client, _, filters in of.dump() for filter_, _ in filters}


@settings(max_examples=examples(3_000))
@given(st.lists(_STEPS, max_size=40), st.booleans())
def test_ledger_that_heard_all_lines_holds_no_less_than_the_broker(
    steps: list[tuple[str, str, int]], tells_away: bool
) -> None:
    broker, of = Broker(), ledger()
    of.tick(broker.counts(tells_away=tells_away))
    for kind, client, number in steps:
        if kind != "tick":
            of.take(play(broker, kind, client, number))
            continue
        of.tick(broker.counts(tells_away=tells_away))
        assert broker.truth() <= held_by(of), "no subscription that stands may be given up"
        state = of.state
        assert not state.unknown
        if not state.doubtful and not state.ended_unseen:
            assert held_by(of) == broker.truth()
    counts = broker.counts(tells_away=tells_away)
    for _ in range(2):
        of.tick(counts)
    assert of.state.ended_unseen == len(held_by(of)) - len(broker.truth())


@settings(max_examples=examples(3_000))
@given(st.lists(_STEPS, max_size=30), st.lists(_STEPS, max_size=30))
def test_unknown_subscriptions_are_counted_and_never_make_the_ledger_give_up_one_that_stands(
    unheard: list[tuple[str, str, int]], heard: list[tuple[str, str, int]]
) -> None:
    broker, of = Broker(), ledger()
    for kind, client, number in unheard:
        play(broker, kind, client, number)
    before = broker.truth()
    of.tick(broker.counts(tells_away=True))
    of.tick(broker.counts(tells_away=True))
    assert of.state.unknown == len(before)
    told: set[tuple[str, str]] = set()
    for kind, client, number in heard:
        if kind == "tick":
            of.tick(broker.counts(tells_away=True))
            continue
        reports = play(broker, kind, client, number)
        told |= {(report.client, report.filter) for report in reports if isinstance(report, Subscribed)}
        told &= broker.truth()
        of.take(reports)
    of.tick(broker.counts(tells_away=True))
    assert told <= held_by(of)


@settings(max_examples=examples(3_000))
@given(st.lists(st.one_of(_STEPS, _SNAPSHOT), max_size=50))
def test_snapshots_at_any_time_leave_the_ledger_with_no_less_than_the_broker_holds(
    steps: list[tuple[str, str, int]],
) -> None:
    broker, of = Broker(), ledger()
    made: list[tuple[str, str, int]] | None = None
    is_asked = False
    for kind, client, number in steps:
        match kind:
            case "tick":
                of.tick(broker.counts(tells_away=True))
            case "ask" if not is_asked:
                of.begin_snapshot()
                is_asked = True
            case "make" if is_asked:
                made = [(*one, 1) for one in sorted(broker.truth()) if not one[1].startswith("$share/")]
            case "arrive" if made is not None:
                of.take_snapshot(made, is_whole=True)
                made, is_asked = None, False
            case "ask" | "make" | "arrive":
                pass
            case _:
                of.take(play(broker, kind, client, number))
        assert broker.truth() <= held_by(of)
    for _ in range(3):
        of.tick(broker.counts(tells_away=True))
    assert of.state.unknown == 0


@settings(max_examples=examples(3_000))
@given(st.lists(_STEPS, max_size=30), st.lists(_STEPS, max_size=30))
def test_snapshot_makes_the_unknown_known(
    unheard: list[tuple[str, str, int]], heard: list[tuple[str, str, int]]
) -> None:
    broker, of = Broker(), ledger()
    for kind, client, number in unheard:
        play(broker, kind, client, number)
    of.begin_snapshot()
    of.take_snapshot([(*one, 1) for one in broker.truth() if not one[1].startswith("$share/")], is_whole=True)
    for kind, client, number in heard:
        if kind == "tick":
            of.tick(broker.counts(tells_away=True))
        else:
            of.take(play(broker, kind, client, number))
        ordinary = {one for one in broker.truth() if not one[1].startswith("$share/")}
        assert ordinary <= held_by(of)
