"""The choice of a broker for a client's topics, the groups behind it, and earlier redirects."""

from typing import Any

import pytest
from tests.gateway import packets as p

from hanse.gateway.discovery.topics import Presence
from hanse.gateway.placement import Broker, BrokerView
from hanse.gateway.redirect.choice import Place, Vitals, Wish, rank
from hanse.gateway.redirect.groups import CORE, MEMBER, Groups, Standing
from hanse.gateway.redirect.returns import REMEMBERED_S, Returns


def place(
    broker_id: str, *, rtt_ms: float | None = 1.0, verdict: str = "up", obstacle: str = "", **known: Any
) -> Place:
    view = BrokerView(Broker(broker_id, f"mqtt://{broker_id}:1883"), verdict=verdict, rtt_ms=rtt_ms)
    return Place(view, f"{broker_id}:1883", obstacle, **known)


def core(group: str = "t", hops: int = 0) -> list[Standing]:
    return [Standing(group, CORE if not hops else MEMBER, hops)]


def away(hops: int, group: str = "t") -> list[Standing]:
    return [Standing(group, "", hops)]


def order(wish: Wish, *places: Place) -> list[str]:
    return [entry.broker.id for entry in rank(wish, places).entries]


SUB = Wish(b"c", ("t",))
PUB = Wish(b"c", ("t",), is_publisher=True)


def test_a_subscriber_goes_to_the_mesh_of_its_group_before_a_nearer_broker() -> None:
    assert order(SUB, place("near", rtt_ms=0.1, standings=away(1)), place("far", rtt_ms=40, standings=core())) == [
        "far",
        "near",
    ]
    assert order(SUB, place("core", rtt_ms=9, standings=core()), place("mesh", rtt_ms=1, standings=core(hops=1))) == [
        "mesh",
        "core",
    ]


def test_a_subscriber_of_several_filters_goes_where_most_of_them_are() -> None:
    wish = Wish(b"c", ("a", "b", "c"))
    one = place("one", standings=[Standing("a", CORE, 0), None, None])
    two = place("two", standings=[None, Standing("b", MEMBER, 2), Standing("c", CORE, 0)])
    assert order(wish, one, two) == ["two", "one"]


def test_discovered_topics_count_where_they_were_published_last() -> None:
    old = place("old", presences=[Presence(5, 0)])
    new = place("new", rtt_ms=60, presences=[Presence(1, 1)])
    ranking = rank(SUB, [old, new])
    assert [entry.broker.id for entry in ranking.entries] == ["new", "old"]
    assert "home of 1 of 1 topics seen there" in ranking.entries[0].reason
    assert "home of 0 of 5 topics seen there" in ranking.entries[1].reason


def test_a_publisher_stays_near_within_two_hops_of_the_core() -> None:
    places = [
        place("core", rtt_ms=60, standings=core()),
        place("two", rtt_ms=1, standings=away(2)),
        place("three", rtt_ms=0.1, standings=away(3)),
        place("four", rtt_ms=0.1, standings=away(4)),
    ]
    assert order(PUB, *places) == ["two", "core", "three", "four"]
    assert order(SUB, *places)[0] == "core"


def test_a_publisher_goes_to_the_home_of_a_discovered_topic() -> None:
    assert order(PUB, place("a"), place("b", rtt_ms=60, presences=[Presence(1, 1)])) == ["b", "a"]


def test_latency_then_low_vitals_then_load_memory_battery_then_clients_sent() -> None:
    assert order(SUB, place("slow", rtt_ms=7), place("quick", rtt_ms=1, vitals=Vitals(load=0.9))) == ["quick", "slow"]
    assert order(SUB, place("low", vitals=Vitals(0.1, 0.05)), place("busy", vitals=Vitals(0.8, 0.9))) == ["busy", "low"]
    assert order(SUB, place("flat", vitals=Vitals(battery=0.1)), place("full", vitals=Vitals(battery=1.0)))[0] == "full"
    assert order(SUB, place("busy", vitals=Vitals(0.8)), place("idle", vitals=Vitals(0.2), sent=99))[0] == "idle"
    assert order(SUB, place("tight", vitals=Vitals(0.2, 0.3)), place("roomy", vitals=Vitals(0.2, 0.8)))[0] == "roomy"
    assert order(SUB, place("half", vitals=Vitals(battery=0.5)), place("full", vitals=Vitals(battery=0.9)))[0] == "full"
    assert order(SUB, place("more", sent=3), place("fewer", sent=2))[0] == "fewer"
    # Within a tenth the load makes no difference, and a missing report is no drawback.
    assert order(SUB, place("a", vitals=Vitals(0.21), sent=2), place("b", vitals=Vitals(0.29), sent=1))[0] == "b"


def test_a_broker_that_takes_no_clients_or_has_no_reference_is_no_candidate() -> None:
    ranking = rank(
        SUB,
        [
            place("down", verdict="hung", standings=core()),
            place("hidden", obstacle="it has no address for clients", standings=core()),
            place("up"),
        ],
    )
    assert ranking.chosen is not None
    assert ranking.chosen.id == "up"
    assert {entry.broker.id: entry.reason for entry in ranking.entries[1:]} == {
        "down": "it is hung",
        "hidden": "it has no address for clients",
    }


def test_a_client_that_came_back_goes_to_another_broker_that_has_its_topics() -> None:
    back = Wish(b"c", ("t",), came_from="first")
    first, second, none = place("first", standings=core()), place("second", standings=core(hops=1)), place("none")
    assert order(back, first, second, none) == ["second", "first", "none"]
    assert order(back, first, none) == ["first", "none"]
    assert order(Wish(b"c", ("t",), came_from="none"), none, place("other"))[0] == "other"


def test_a_topic_that_moved_for_good_goes_to_the_operators_broker() -> None:
    moved = Wish(b"c", ("t",), moved_to="new")
    ranking = rank(moved, [place("old", standings=core()), place("new", rtt_ms=200)])
    assert ranking.entries[0].broker.id == "new"
    assert "moved here for good" in ranking.entries[0].reason


def test_all_members_of_a_share_group_go_to_one_broker() -> None:
    for name in ("$share/g/t", "$share/h/t", "$share/i/#"):
        chosen = {
            order(Wish(str(k).encode(), (name,)), *(place(one, rtt_ms=k % 9, sent=k % 5) for one in "abcd"))[0]
            for k in range(30)
        }
        assert len(chosen) == 1
    spread = {order(Wish(b"c", (f"$share/g{k}/t",)), *map(place, "abcd"))[0] for k in range(50)}
    assert spread == set("abcd")


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_filter_belongs_to_its_own_group_or_to_one_that_covers_it() -> None:
    groups = Groups()
    rows = [{"group": name, "role": "core", "distance": 0} for name in ("a/b", "a/+/c", "x/#", "p/q/#")]
    assert groups.take_federator("0", {"id": 0, "groups": rows}) == 0
    expected = {"a/b": "a/b", "a/z/c": "a/+/c", "x": "x/#", "x/y/z": "x/#", "p/q": "p/q/#", "$share/g/a/b": "a/b"}
    for filter_, group in expected.items():
        assert groups.standing("0", filter_) == Standing(group, "core", 0), filter_
    for filter_ in ("a", "a/#", "p/+", "z", "$SYS/x"):
        assert groups.standing("0", filter_) is None, filter_
    assert groups.standing("1", "a/b") is None


def test_the_federators_page_gives_role_and_distance() -> None:
    groups = Groups()
    page = {
        "id": 3,
        "groups": [
            {"group": "m", "role": "member", "core": 0, "distance": 2, "mesh": [1]},
            {"group": "o", "role": "outsider", "core": 0, "distance": 4},
            {"group": "u", "role": "outsider", "core": None, "distance": None},
            {"group": 7, "role": "core"},
            "nonsense",
        ],
    }
    assert groups.take_federator("3", page) == 2
    assert groups.standing("3", "m") == Standing("m", MEMBER, 2)
    assert groups.standing("3", "o") == Standing("o", "", 4)
    assert groups.standing("3", "u") == Standing("u", "", None)
    nonsense: object
    for nonsense in (None, [], {"groups": {}}, {"groups": [None, 1]}, "x"):
        groups.take_federator("3", nonsense)
    assert groups.standing("3", "m") is None


def test_the_managers_groups_get_their_hops_from_the_links() -> None:
    groups = Groups()
    topology = {"links": [{"a": 0, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 3}, {"a": "x", "b": 9}]}
    members = [{"id": 1, "mesh": [0]}, {"id": 2, "mesh": [], "interest": False}, {"id": 99, "interest": True}, 5]
    rows = [{"group": "t", "cores": [0], "members": members}, {"group": None}]
    groups.take_manager(["0", "1", "2", "3", "7"], rows, topology)
    assert [groups.standing(str(k), "t") for k in (0, 1, 2, 3)] == [
        Standing("t", CORE, 0),
        Standing("t", MEMBER, 1),
        Standing("t", "", 2),
        Standing("t", "", 3),
    ]
    assert groups.standing("7", "t") is None
    # A broker that the gateway does not know is never kept, even if the document names it.
    assert groups.standing("99", "t") is None


def test_the_table_of_groups_is_bounded() -> None:
    groups = Groups(rows_max=10)
    rows = [{"group": f"g{k}", "role": "core", "distance": 0} for k in range(8)]
    groups.take_federator("0", {"groups": rows})
    groups.take_federator("1", {"groups": rows})
    assert (len(groups), groups.dropped) == (10, 6)
    groups.take_federator("0", {"groups": rows})
    assert len(groups) == 10
    groups.take_manager(["0", "1"], [{"group": f"g{k}", "cores": [0], "members": []} for k in range(50)], {})
    assert len(groups) == 10


# --- returns ----------------------------------------------------------------------------------------------------------


def test_a_client_that_is_back_soon_is_proxied_and_later_redirected_again() -> None:
    returns = Returns(30.0)
    key = returns.key(p.connect(5, b"c1"), "10.0.0.1")
    assert not returns.is_back(key, 0.0)
    returns.note(key, "b", "b:1883", 0.0)
    assert returns.is_back(key, 29.0)
    # Renewed: a client that reconnects again and again stays proxied.
    assert returns.is_back(key, 58.0)
    assert not returns.is_back(key, 88.0)
    last = returns.last(key, 88.0)
    assert last is not None
    assert (last.broker_id, last.reference) == ("b", "b:1883")
    assert returns.last(key, 58.0 + REMEMBERED_S + 1) is None


def test_clients_are_distinguished_by_id_or_by_address_and_user_name() -> None:
    returns = Returns(30.0)
    assert returns.key(p.connect(5, b"a"), "1") == returns.key(p.connect(5, b"a"), "2")
    assert returns.key(p.connect(5, b"a"), "1") != returns.key(p.connect(5, b"b"), "1")
    assert returns.key(p.connect(5, b""), "1") != returns.key(p.connect(5, b""), "2")


@pytest.mark.parametrize("count", [10, 100])
def test_the_table_of_returns_is_bounded(count: int) -> None:
    returns = Returns(30.0, entries_max=10)
    for k in range(count):
        returns.note(str(k).encode(), "b", "b:1", 0.0)
    assert len(returns) == 10
    assert returns.is_back(str(count - 1).encode(), 1.0)
    returns.note(b"late", "b", "b:1", REMEMBERED_S + 2)
    assert len(returns) == 1
