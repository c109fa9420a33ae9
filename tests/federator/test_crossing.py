import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import LocalError
from hanse.federator.crossing import Crossing, FilterCounts, intersection
from hanse.protocol.topics import TOPIC_BYTES_MAX, covers, matches, may_cross

LEVEL = st.sampled_from(["a", "b", "c", "p", ""])
NAMES = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, tail: "/".join(levels + tail),
    st.lists(st.sampled_from(["a", "b", "c", "p", "+", ""]), min_size=1, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool) | st.just("#")
RULES = st.lists(FILTERS, max_size=3)
PREFIXES = st.sampled_from([None, "p", "p/a"])


def test_without_settings_every_name_and_filter_is_unchanged() -> None:
    crossing = Crossing()
    assert crossing.is_trivial
    assert crossing.leave("a/b") == crossing.enter("a/b") == "a/b"
    assert crossing.outward_filter("a/+") == crossing.inward_filter("a/+") == ["a/+"]
    assert crossing.standing_filters == ()
    assert crossing.local_copy("federated/a") is None
    assert crossing.leave("federated/a") == "federated/a"


@pytest.mark.parametrize(
    "crossing",
    [
        Crossing(export_allow=["a"]),
        Crossing(export_deny=["a"]),
        Crossing(import_allow=["a"]),
        Crossing(import_deny=["a"]),
        Crossing(prefix="p"),
        Crossing(federated_prefix=True),
    ],
)
def test_any_setting_makes_the_rules_more_than_trivial(crossing: Crossing) -> None:
    assert not crossing.is_trivial


@pytest.mark.parametrize("topic", ["$SYS/x", "federator/core_ann/1/2", "federated_topology_ann", "hanse/probe/1"])
@pytest.mark.parametrize("prefix", [None, "p"])
def test_topics_that_never_cross_stay_even_if_allowed(topic: str, prefix: str | None) -> None:
    crossing = Crossing(prefix=prefix, export_allow=["#", topic], import_allow=["#", topic], federated_prefix=True)
    assert not crossing.exports(topic)
    assert not crossing.exports(f"federated/{topic}")
    assert crossing.local_copy(f"federated/{topic}") is None
    assert not crossing.imports(topic)
    assert crossing.inward(topic) is None


@pytest.mark.parametrize("topic", ["federator/core_ann/1/2", "$SYS/x", "$hanse/telemetry/v1/x/1", "", "$share/g/t"])
def test_attack_a_prefix_does_not_smuggle_control_topics_in(topic: str) -> None:
    assert Crossing(prefix="p").enter(f"p/{topic}") is None


def test_deny_wins_over_allow() -> None:
    crossing = Crossing(export_allow=["a/#"], export_deny=["a/secret/#"], import_deny=["b"])
    assert crossing.exports("a/x")
    assert not crossing.exports("a/secret/x")
    assert not crossing.exports("c")
    assert crossing.imports("c")
    assert not crossing.imports("b")


def test_own_topics_appear_under_the_prefix_and_others_reach_them_there() -> None:
    crossing = Crossing(prefix="plants/7")
    assert crossing.leave("temp") == "plants/7/temp"
    assert crossing.leave("plants/7/temp") == "plants/7/plants/7/temp"
    assert crossing.enter("plants/7/cmd/stop") == "cmd/stop"
    assert crossing.enter("plants/3/temp") == "plants/3/temp"
    assert crossing.enter("plants/7") == "plants/7"
    assert crossing.enter("plants/7/") is None


def test_rules_apply_to_local_names() -> None:
    crossing = Crossing(prefix="p", export_allow=["temp"], import_deny=["cmd/#"])
    assert crossing.leave("temp") == "p/temp"
    assert crossing.leave("p/temp") is None
    assert crossing.enter("p/cmd/x") is None
    assert crossing.enter("other/cmd/x") == "other/cmd/x"


@pytest.mark.parametrize(
    ("local", "federation"),
    [
        ("temp", ["p/temp", "temp"]),
        ("#", ["#"]),
        ("+/temp", ["+/temp", "p/+/temp"]),
        ("p/temp", ["p/p/temp"]),  # p/temp is called temp here, so this client does not want it
        ("p/#", ["p/#"]),  # p itself, and p/p/#, are both within
        ("$share/g/temp", ["p/temp", "temp"]),
        ("$hanse/telemetry/#", ["$hanse/telemetry/#"]),
        ("$SYS/#", []),
        ("federator/#", []),
    ],
)
def test_local_interest_with_a_prefix(local: str, federation: list[str]) -> None:
    assert Crossing(prefix="p").outward_filter(local) == federation


@pytest.mark.parametrize(
    ("federation", "local"),
    [
        ("p/a/temp", ["temp"]),
        ("p/+/temp", ["temp"]),
        ("+/+/+", ["+"]),
        ("#", ["#"]),
        ("p/#", ["#"]),
        ("p/a/#", ["#"]),
        ("p/a", []),
        ("p/a/", []),
        ("p", []),
        ("+/+", []),
        ("other/#", []),
        ("p/a/$SYS/#", []),
        ("p/a/federator/#", []),
        ("$hanse/telemetry/#", ["$hanse/telemetry/#"]),
        ("$SYS/#", []),
    ],
)
def test_interest_elsewhere_with_a_prefix(federation: str, local: list[str]) -> None:
    assert Crossing(prefix="p/a").inward_filter(federation) == local


def test_interest_is_narrowed_to_topics_that_may_enter() -> None:
    crossing = Crossing(import_allow=["a/#", "b/+"], import_deny=["a/x/#"])
    assert crossing.outward_filter("#") == ["a/#", "b/+"]
    assert crossing.outward_filter("+/x") == ["b/x"]
    assert crossing.outward_filter("c") == []
    assert crossing.outward_filter("a/x/+") == []


def test_host_subscriptions_are_narrowed_to_topics_that_may_leave() -> None:
    crossing = Crossing(export_allow=["a/#"], export_deny=["a/x"])
    assert crossing.inward_filter("#") == ["a/#"]
    assert crossing.inward_filter("+") == ["a"]
    assert crossing.inward_filter("a/x") == []


def test_telemetry_needs_no_allow_filter_but_can_be_denied() -> None:
    topic = "$hanse/telemetry/v1/hop/7"
    assert Crossing(export_allow=["a"], export_deny=["#"]).leave(topic) == topic
    assert Crossing(import_allow=["a"]).outward_filter("$hanse/telemetry/#") == ["$hanse/telemetry/#"]
    closed = Crossing(export_deny=["$hanse/telemetry/#"])
    assert closed.leave(topic) is None
    assert closed.inward_filter("$hanse/telemetry/#") == []
    assert Crossing(prefix="p").leave(topic) == Crossing(prefix="p").enter(topic) == topic


def test_federated_topics_are_publications_on_the_topic_behind() -> None:
    crossing = Crossing(prefix="p", federated_prefix=True, export_deny=["b"])
    assert crossing.standing_filters == ("federated/#",)
    assert crossing.leave("federated/a") == "p/a"
    assert crossing.local_copy("federated/a") == "a"
    assert crossing.local_copy("a") is None
    assert crossing.leave("federated/b") is None
    assert crossing.local_copy("federated/b") == "b"  # it stays, and is still a publication on b
    assert crossing.leave("federated/") == "p/federated/"


def test_a_name_that_the_prefix_makes_too_long_stays() -> None:
    crossing = Crossing(prefix="p")
    assert crossing.exports("x" * (TOPIC_BYTES_MAX - 2))
    assert not crossing.exports("x" * (TOPIC_BYTES_MAX - 1))
    assert not crossing.exports("/" * 199)
    assert Crossing().exports("/" * 199)
    assert crossing.outward_filter("x" * (TOPIC_BYTES_MAX - 1)) == ["x" * (TOPIC_BYTES_MAX - 1)]


def test_a_wrong_rule_is_the_operators_error() -> None:
    with pytest.raises(LocalError, match="a misplaced #"):
        Crossing(export_allow=["a/#/b"])
    with pytest.raises(LocalError, match="wildcard"):
        Crossing(prefix="a/+")


@given(NAMES, PREFIXES)
def test_a_name_comes_back_unchanged(name: str, prefix: str | None) -> None:
    crossing = Crossing(prefix=prefix)
    assert crossing.inward(crossing.outward(name)) == name


@given(FILTERS, FILTERS, NAMES)
def test_the_intersection_matches_the_names_that_both_match(one: str, other: str, name: str) -> None:
    both = intersection(one, other)
    assert (both is not None and matches(both, name)) == (matches(one, name) and matches(other, name))


def test_a_wildcard_shares_nothing_with_dollar_topics() -> None:
    assert intersection("#", "$SYS/x") is None
    assert intersection("$SYS/+", "+/x") is None
    assert intersection("$SYS/+", "$SYS/x/#") == "$SYS/x"


# About one example in ten is wanted and may enter.
@settings(max_examples=examples(500))
@given(PREFIXES, RULES, RULES, FILTERS, NAMES)
def test_no_wanted_publication_is_missed_by_the_mapped_interest(
    prefix: str | None, allow: list[str], deny: list[str], wanted: str, name: str
) -> None:
    crossing = Crossing(prefix=prefix, import_allow=allow, import_deny=deny)
    local = crossing.enter(name)
    is_wanted = local is not None and matches(wanted, local)
    assert any(matches(filter_, name) for filter_ in crossing.outward_filter(wanted)) or not is_wanted


@given(PREFIXES, RULES, RULES, FILTERS, NAMES)
def test_host_subscriptions_bring_the_publications_that_others_want_and_may_get(
    prefix: str | None, allow: list[str], deny: list[str], wanted: str, name: str
) -> None:
    crossing = Crossing(prefix=prefix, export_allow=allow, export_deny=deny)
    outward = crossing.leave(name)
    is_subscribed = any(matches(filter_, name) for filter_ in crossing.inward_filter(wanted))
    if outward is not None:
        assert is_subscribed == matches(wanted, outward)
    elif is_subscribed:
        assert any(matches(filter_, name) for filter_ in deny)  # part of a filter is denied: the name decides


@given(PREFIXES, RULES, FILTERS)
def test_mapped_filters_do_not_cover_each_other(prefix: str | None, allow: list[str], wanted: str) -> None:
    crossing = Crossing(prefix=prefix, import_allow=allow)
    found = crossing.outward_filter(wanted)
    assert not [(a, b) for a in found for b in found if a != b and covers(a, b)]
    assert found == sorted(found)


@given(NAMES, PREFIXES, RULES, RULES)
def test_nothing_closed_ever_leaves_or_enters(name: str, prefix: str | None, allow: list[str], deny: list[str]) -> None:
    crossing = Crossing(prefix=prefix, export_allow=allow, export_deny=deny, federated_prefix=True)
    for answer in (crossing.leave(name), crossing.enter(name)):
        assert answer is None or may_cross(answer)


def test_a_mapped_filter_ends_with_the_last_that_holds_it() -> None:
    counts = FilterCounts(Crossing(prefix="p").inward_filter)
    assert counts.apply([("p/a", 1), ("+/a", 0), ("q/a", 2)], []) == ([("a", 1)], [])
    assert counts.apply([], ["p/a", "q/a"]) == ([("a", 0)], [])
    assert counts.apply([("p/a", 0)], ["+/a"]) == ([], [])
    assert counts.filters() == {"a": 0}
    assert counts.apply([("p/a", 2)], []) == ([("a", 2)], [])
    assert counts.apply([], ["p/a", "never/held"]) == ([], ["a"])
    assert counts.filters() == {}


def test_a_filter_that_ends_and_begins_in_one_call_is_no_change() -> None:
    counts = FilterCounts(Crossing().outward_filter)
    counts.apply([("a", 1)], [])
    assert counts.apply([("a", 1)], ["a"]) == ([], [])
