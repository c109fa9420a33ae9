import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.gateway.placement import (
    POLICIES,
    Broker,
    BrokerView,
    Query,
    choose,
    hash_key,
    latency_group,
    rank,
    score,
)


def views(*ids: str) -> list[BrokerView]:
    return [BrokerView(Broker(one, f"mqtt://{one}:1883")) for one in ids]


# A gateway of another version must place alike, so these never change.
VECTORS = [
    ("0", b"", 0x83E1045460752D64),
    ("0", b"sensor-1", 0x6D06251B3E2D42CF),
    ("1", b"sensor-1", 0xA18F2D063224E393),
    ("2", b"sensor-1", 0x3AD156DFD3F18BCE),
    ("broker-a", b"\xff\x00", 0xA608CD1346013D76),
    ("x" * 64, b"sensor-1", 0xD7D2F8EE6346C1B6),
    ("x" * 65, b"sensor-1", 0x618E85FA31A987EE),
    ("Lübeck", b"Gr\xc3\xb6\xc3\x9fe", 0x913E2BED31162361),
]


@pytest.mark.parametrize(("broker", "client", "expected"), VECTORS)
def test_scores_equal_the_test_vectors(broker: str, client: bytes, expected: int) -> None:
    assert score(hash_key(broker), client) == expected


def test_the_ranking_follows_the_scores_and_gives_reasons() -> None:
    ranking = rank(Query(b"sensor-1"), views("0", "1", "2"))
    assert [entry.broker.id for entry in ranking.entries] == ["1", "0", "2"]
    assert [entry.reason for entry in ranking.entries] == [f"place {k} by the hash" for k in (1, 2, 3)]
    assert ranking.chosen is ranking.entries[0].broker


def test_the_order_of_the_configuration_does_not_matter() -> None:
    one = rank(Query(b"sensor-1"), views("a", "b", "c", "d"))
    other = rank(Query(b"sensor-1"), views("d", "b", "a", "c"))
    assert [entry.broker.id for entry in one.entries] == [entry.broker.id for entry in other.entries]


def test_a_broker_that_goes_moves_only_its_own_clients() -> None:
    all_of_them = views("a", "b", "c", "d")
    before = {k: choose(Query(b"c%d" % k), all_of_them) for k in range(500)}
    all_of_them[1].verdict = "refused"
    after = {k: choose(Query(b"c%d" % k), all_of_them) for k in range(500)}
    moved = {k for k in before if before[k] != after[k]}
    assert moved == {k for k, broker in before.items() if broker is not None and broker.id == "b"}
    # The clients that moved spread over all the other brokers.
    assert {broker.id for k, broker in after.items() if k in moved and broker is not None} == {"a", "c", "d"}


def test_clients_spread_evenly() -> None:
    found = [choose(Query(b"client-%d" % k), views("a", "b", "c", "d")) for k in range(4_000)]
    counts = [sum(1 for one in found if one is not None and one.id == name) for name in "abcd"]
    # The standard deviation is 27.
    assert all(850 < count < 1_150 for count in counts)


@given(
    client=st.binary(max_size=40),
    states=st.lists(st.sampled_from(["up", "refused", "hung"]), min_size=1, max_size=6),
    drained=st.integers(-1, 5),
)
def test_choose_and_rank_agree(client: bytes, states: list[str], drained: int) -> None:
    brokers = views(*[str(k) for k in range(len(states))])
    for k, state in enumerate(states):
        brokers[k].verdict = state
        brokers[k].is_drained = k == drained
    ranking = rank(Query(client), brokers)
    assert ranking.chosen == choose(Query(client), brokers)
    assert len(ranking.entries) == len(brokers)
    firsts = [entry.is_candidate for entry in ranking.entries]
    assert firsts == sorted(firsts, reverse=True)


def test_an_obstacle_is_the_reason() -> None:
    brokers = views("a", "b", "c", "d", "e")
    brokers[0].verdict = "hung"
    brokers[1].is_drained = True
    brokers[2].is_agreed = False
    brokers[3].offers_less = "QoS 1"
    reasons = {entry.broker.id: entry.reason for entry in rank(Query(b"x"), brokers).entries}
    assert reasons == {
        "a": "it is hung",
        "b": "it is drained",
        "c": "it has returned, and not every gateway knows yet",
        "d": "it offers less than the others: QoS 1",
        "e": reasons["e"],
    }
    assert reasons["e"].startswith("place ")


def test_no_candidate_is_no_choice() -> None:
    brokers = views("a")
    brokers[0].verdict = "refused"
    assert choose(Query(b"x"), brokers) is None
    assert rank(Query(b"x"), brokers).chosen is None
    assert rank(Query(b"x"), []).chosen is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_client_with_a_session_is_placed_by_the_hash(policy: str) -> None:
    brokers = views("a", "b", "c")
    brokers[0].connections = 99
    ranking = rank(Query(b"sensor-1", is_transient=False, turn=2, draw=0.9), brokers, policy)
    assert ranking.chosen == choose(Query(b"sensor-1"), brokers)
    assert ranking.policy == "hash"


def test_least_connections_takes_the_emptiest() -> None:
    brokers = views("a", "b", "c")
    for view, count in zip(brokers, (5, 2, 9), strict=True):
        view.connections = count
    ranking = rank(Query(b"x", is_transient=True), brokers, "least-connections")
    assert [entry.broker.id for entry in ranking.entries] == ["b", "a", "c"]


def test_latency_groups_come_before_load() -> None:
    brokers = views("far", "near-busy", "near-idle", "unknown")
    for view, rtt, count in zip(brokers, (7.0, 0.3, 1.9, None), (0, 50, 3, 0), strict=True):
        view.rtt_ms, view.connections = rtt, count
    ranking = rank(Query(b"x", is_transient=True), brokers, "latency")
    assert [entry.broker.id for entry in ranking.entries] == ["near-idle", "near-busy", "far", "unknown"]
    assert "group 0 to 2 ms" in ranking.entries[0].reason


def test_the_groups_are_those_of_emma() -> None:
    assert [latency_group(rtt) for rtt in (0.0, 1.99, 2.0, 4.9, 5.0, 10.0)] == [0, 0, 1, 1, 2, 3]


def test_round_robin_skips_and_static_rr_falls_to_the_next() -> None:
    brokers = views("a", "b", "c")
    brokers[1].verdict = "refused"

    def taken(policy: str) -> list[str]:
        found = [rank(Query(b"x", is_transient=True, turn=turn), brokers, policy).chosen for turn in range(6)]
        return [one.id for one in found if one is not None]

    assert taken("round-robin") == ["a", "c", "a", "c", "a", "c"]
    assert taken("static-rr") == ["a", "c", "c", "a", "c", "c"]


def test_random_covers_all() -> None:
    brokers = views("a", "b")
    chosen = [rank(Query(b"x", is_transient=True, draw=draw), brokers, "random").chosen for draw in (0.1, 0.9)]
    assert [one.id for one in chosen if one is not None] == ["a", "b"]
