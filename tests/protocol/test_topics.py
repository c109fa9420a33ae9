import functools
import itertools
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import RemoteError
from hanse.protocol.topics import (
    LEVELS_MAX,
    NEVER_FEDERATED,
    TOPIC_BYTES_MAX,
    check_filter,
    check_name,
    covers,
    filter_may_cross,
    matches,
    may_cross,
    meet,
    split_share,
)

BOUNDED = settings(max_examples=examples(300), deadline=None)

ORDINARY_NAMES = [
    "a",
    "/",
    "//",
    "/a",
    "a/",
    "a//b",
    " ",
    "a b/c d",
    "sensors/hall 4/temp",
    "$SYS",
    "$SYS/broker/uptime",
    "$CONTROL/dynamic-security/v1",
    "$",
    "..",
    "../../etc/passwd",
    "%2e%2e/a",
    "'; drop table messages; --",
    "<script>alert(1)</script>",
    "مرحبا/שלום",
    "\N{RIGHT-TO-LEFT OVERRIDE}abc",
    "fleet/\N{DELIVERY TRUCK}/\N{GRINNING FACE}",
    "\ufeffa",
    "federator/federator/core_ann",
    "$hanse/telemetry/$hanse/telemetry/v1",
]
MAY_REFUSE_BUT_ACCEPTED = [chr(code) for code in [*range(0x01, 0x20), *range(0x7F, 0xA0), 0xFFFE, 0xFFFF, 0x1FFFF]]
LONGEST = ["a" * TOPIC_BYTES_MAX, "é" * (TOPIC_BYTES_MAX // 2) + "a", "\N{GRINNING FACE}" * (TOPIC_BYTES_MAX // 4)]
DEEPEST = ["/" * (LEVELS_MAX - 1), "/".join("a" * LEVELS_MAX)]

BAD_TEXT = [
    ("", "is empty"),
    ("a" * (TOPIC_BYTES_MAX + 1), "65536 bytes or more; at most 65535"),
    ("é" * (TOPIC_BYTES_MAX // 2 + 1), "65536 bytes or more; at most 65535"),
    ("a" * 10_000_000, "10000000 bytes or more; at most 65535"),
    ("/" * LEVELS_MAX, "201 levels; at most 200"),
    ("/" * TOPIC_BYTES_MAX, "65536 levels; at most 200"),
    ("\0", "U+0000"),
    ("a/\0/b", "U+0000"),
    ("a\ud800", "lone surrogate at character 1"),
    ("\udfff/a", "lone surrogate at character 0"),
    (b"a/\xed\xa0\x80".decode("utf-8", "surrogateescape"), "lone surrogate"),  # a surrogate in UTF-8
    (b"a\xc0\xafb".decode("utf-8", "surrogateescape"), "lone surrogate"),  # an overlong slash
]
BAD_FILTERS = [
    ("#/a", "a misplaced #"),
    ("a/#/b", "a misplaced #"),
    ("a#", "a misplaced #"),
    ("a/#b", "a misplaced #"),
    ("a/b#", "a misplaced #"),
    ("##", "a misplaced #"),
    ("#/#", "a misplaced #"),
    ("a/+#", "a misplaced #"),
    ("a+", "+ beside other characters"),
    ("+a/b", "+ beside other characters"),
    ("a/b+/#", "+ beside other characters"),
    ("++", "+ beside other characters"),
    ("$share/g/a#", "a misplaced #"),
    ("$share/g/a+/b", "+ beside other characters"),
    ("$share/", "malformed"),
    ("$share//", "malformed"),
    ("$share//a", "malformed"),
    ("$share/g", "malformed"),
    ("$share/g/", "malformed"),
    ("$share/+/a", "malformed"),
    ("$share/#", "malformed"),
    ("$share/g#/a", "malformed"),
    ("$share/g/$share/h/a", "shares a shared subscription"),
    ("$share/g/" + "/" * LEVELS_MAX, "201 levels"),
]
MATCHING = [
    ("a", "a", True),
    ("a", "b", False),
    ("a", "A", False),
    ("a", "a/", False),
    ("a/", "a", False),
    ("/", "/", True),
    ("+/+", "/", True),
    ("/+", "/", True),
    ("+", "/", False),
    ("+/+/+", "//", True),
    ("/a", "a", False),
    ("+", "a", True),
    ("+", "a/b", False),
    ("a/+", "a", False),
    ("a/+", "a/", True),
    ("a/+", "a/b", True),
    ("a/+", "a/b/c", False),
    ("a/+/c", "a/b/c", True),
    ("a/+/c", "a/b/d", False),
    ("#", "a", True),
    ("#", "/", True),
    ("#", "a/b/c", True),
    ("a/#", "a", True),
    ("a/#", "a/b", True),
    ("a/#", "a/b/c", True),
    ("a/#", "ab", False),
    ("a/b/#", "a", False),
    ("+/#", "a", True),
    ("+/b/#", "a/b", True),
    ("a/+/#", "a", False),
    ("#", "$SYS", False),
    ("#", "$SYS/x", False),
    ("+/x", "$SYS/x", False),
    ("+/#", "$SYS/x", False),
    ("$SYS/#", "$SYS/x", True),
    ("$SYS/#", "$SYS", True),
    ("$SYS/+", "$SYS/x", True),
    ("a/#", "a/$b", True),
    ("a/+", "a/$b", True),
    ("$share/g/a/+", "a/b", True),
    ("$share/g/#", "$SYS/x", False),
    ("$share/g/#", "a", True),
    ("\ufeffa", "a", False),
    ("../+", "../a", True),
    ("a/../b", "b", False),
]
COVERING = [
    ("a", "a", True),
    ("a", "b", False),
    ("a", "+", False),
    ("+", "a", True),
    ("+", "+", True),
    ("+", "#", False),
    ("+", "$a", False),
    ("#", "$a", False),
    ("#", "$a/#", False),
    ("#", "+", True),
    ("#", "a/#", True),
    ("#", "#", True),
    ("+/#", "#", True),
    ("+/+/#", "#", False),
    ("a/#", "a", True),
    ("a/#", "a/#", True),
    ("a/#", "a/+/b", True),
    ("a/#", "+/b", False),
    ("a/+/#", "a/#", False),
    ("a/+/#", "a/b/#", True),
    ("a/b/#", "a", False),
    ("a/b/#", "a/#", False),
    ("a/+", "a/#", False),
    ("a/+", "a/b", True),
    ("a/+", "a/b/c", False),
    ("a/b/c", "a/b", False),
    ("$a/#", "$a/b", True),
    ("$a/+", "$a/b", True),
    ("$a", "+", False),
    ("a/+", "$share/g/a/b", True),
    ("$share/g/a/+", "a/b", True),
]
CROSSING = [
    ("a", True),
    ("/", True),
    ("a/$b", True),
    ("..", True),
    ("<script>", True),
    ("federator", False),
    ("federator/core_ann/1", False),
    ("federator/federator/x", False),
    ("federators/x", True),
    ("/federator/x", True),
    ("x/federator/x", True),
    ("federated/x", True),
    ("federated_topology_ann", False),
    ("federated_topology_ann/x", True),
    ("hanse/probe", False),
    ("hanse/probe/7", False),
    ("hanse/probes", True),
    ("hanse", True),
    ("$", False),
    ("$SYS", False),
    ("$SYS/broker/uptime", False),
    ("$CONTROL/x", False),
    ("$share/g/t", False),
    ("$hanse", False),
    ("$hanse/telemetry", False),
    ("$hanse/telemetry/v1/hop/3", True),
    ("$hanse/telemetryx/v1", False),
    ("$hanse/other/x", False),
]
FILTER_CROSSING = [
    ("#", True),
    ("+/x", True),
    ("+", True),
    ("federator/#", False),
    ("federator/+/1", False),
    ("federator", False),
    ("+/core_ann/#", True),
    ("federated_topology_ann", False),
    ("federated_topology_ann/#", True),
    ("hanse/#", True),
    ("hanse/+", True),
    ("hanse/probe/#", False),
    ("hanse/probe/+", False),
    ("$SYS/#", False),
    ("$hanse", False),
    ("$hanse/#", True),
    ("$hanse/+", False),
    ("$hanse/+/#", True),
    ("$hanse/telemetry", False),
    ("$hanse/telemetry/#", True),
    ("$hanse/telemetry/v1/+/3", True),
    ("$hanse/other/#", False),
    ("$share", False),
    ("$share/g/#", True),
    ("$share/g/a/b", True),
    ("$share/g/$SYS/#", False),
    ("$share/g/federator/#", False),
    ("$share/g/$hanse/telemetry/#", True),
]

LEVEL = st.sampled_from(["", "a", "b", "$c", "é", "e\u0301"])
NAMES = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVEL | st.just("+"), max_size=4))
    if draw(st.booleans()) or not "/".join(levels):
        levels.append("#")
    return "/".join(levels)


def all_names(alphabet: list[str], levels_max: int) -> list[str]:
    products = (itertools.product(alphabet, repeat=count) for count in range(1, levels_max + 1))
    return [name for levels in itertools.chain.from_iterable(products) if (name := "/".join(levels))]


def all_filters(alphabet: list[str], levels_max: int) -> list[str]:
    plain = all_names([*alphabet, "+"], levels_max)
    return [*plain, "#", *(f"{filter_}/#" for filter_ in plain if filter_.count("/") + 1 < levels_max)]


@pytest.mark.parametrize("topic", ORDINARY_NAMES + MAY_REFUSE_BUT_ACCEPTED)
def test_a_name_that_a_broker_accepts_is_accepted_unchanged(topic: str) -> None:
    check_name(topic)
    assert matches(topic, topic)


def test_a_name_like_a_shared_subscription_is_matched_by_no_filter_of_its_own_text() -> None:
    check_name("$share/g/t")
    assert not matches("$share/g/t", "$share/g/t")
    assert not may_cross("$share/g/t")


@pytest.mark.parametrize("topic", LONGEST + DEEPEST, ids=lambda topic: topic[:3])
def test_a_name_and_a_filter_at_the_limits_are_accepted(topic: str) -> None:
    check_name(topic)
    check_filter(topic)


@pytest.mark.parametrize(("text", "reason"), BAD_TEXT, ids=range(len(BAD_TEXT)))
def test_text_that_mqtt_forbids_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(RemoteError, match="^The topic name .*" + reason.replace("+", r"\+")):
        check_name(text)
    with pytest.raises(RemoteError, match="^The topic filter .*" + reason.replace("+", r"\+")):
        check_filter(text)


@pytest.mark.parametrize("topic", ["+", "#", "a/+", "a/#", "a+b", "c#", "a/+/b"])
def test_a_wildcard_in_a_name_is_refused(topic: str) -> None:
    with pytest.raises(RemoteError, match="holds a wildcard"):
        check_name(topic)


@pytest.mark.parametrize(
    "filter_",
    ["#", "+", "/#", "+/#", "+/+", "a/+/#", "/+", "$SYS/#", "$share", "$share/g/a", "$share/g//", "$share/g/+/#"],
)
def test_a_wildcard_that_is_a_whole_level_is_accepted(filter_: str) -> None:
    check_filter(filter_)


@pytest.mark.parametrize(("filter_", "reason"), BAD_FILTERS, ids=lambda text: text[:24])
def test_a_malformed_filter_is_refused_with_its_reason(filter_: str, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason.replace("+", r"\+")):
        check_filter(filter_)


def test_the_levels_of_a_shared_subscription_are_counted_behind_its_name() -> None:
    check_filter("$share/g/" + DEEPEST[0])


@pytest.mark.parametrize(
    "topic", ["a\r\nforged log line\0", "\x1b[2J\0", "\N{RIGHT-TO-LEFT OVERRIDE}\0", "x\0" * 9_999]
)
def test_an_error_repeats_a_bounded_and_escaped_part_of_the_topic(topic: str) -> None:
    with pytest.raises(RemoteError) as caught:
        check_name(topic)
    message = str(caught.value)
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 400


def test_nfc_and_nfd_stay_different() -> None:
    composed = "temp\u00e9rature"
    decomposed = unicodedata.normalize("NFD", composed)
    check_name(composed)
    check_name(decomposed)
    assert not matches(composed, decomposed)
    assert not covers(decomposed, composed)


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        ("a/b", (None, "a/b")),
        ("$share", (None, "$share")),
        ("$shared/g/a", (None, "$shared/g/a")),
        ("$share/g/a", ("g", "a")),
        ("$share/g//a", ("g", "/a")),
        ("$share/g h/+/#", ("g h", "+/#")),
    ],
)
def test_a_shared_subscription_splits_into_name_and_filter(filter_: str, expected: tuple[str | None, str]) -> None:
    assert split_share(filter_) == expected


@pytest.mark.parametrize(("filter_", "topic", "expected"), MATCHING)
def test_matching_follows_the_mqtt_rules(filter_: str, topic: str, expected: bool) -> None:
    check_filter(filter_)
    check_name(topic)
    assert matches(filter_, topic) is expected


@pytest.mark.parametrize(("wide", "narrow", "expected"), COVERING)
def test_covering_follows_the_table_of_cases(wide: str, narrow: str, expected: bool) -> None:
    assert covers(wide, narrow) is expected


@functools.cache
def matched_by_small_filters() -> dict[str, frozenset[str]]:
    # "z" stands for any level that no filter names, and one more level than any filter has for any further depth.
    everything = all_names(["a", "$b", "z"], levels_max=4)
    return {
        filter_: frozenset(topic for topic in everything if matches(filter_, topic))
        for filter_ in all_filters(["a", "$b"], levels_max=3)
    }


def test_covering_is_exact_on_every_pair_of_small_filters() -> None:
    matched = matched_by_small_filters()
    for wide, narrow in itertools.product(matched, repeat=2):
        assert covers(wide, narrow) == (matched[narrow] <= matched[wide]), (wide, narrow)


def test_meeting_is_exact_on_every_pair_of_small_filters() -> None:
    matched = matched_by_small_filters()
    for one, other in itertools.product(matched, repeat=2):
        assert meet(one, other) == bool(matched[one] & matched[other]), (one, other)


@BOUNDED
@given(filters(), filters(), NAMES)
def test_filters_that_match_one_topic_meet(one: str, other: str, topic: str) -> None:
    assert meet(one, other) == meet(other, one)
    if matches(one, topic) and matches(other, topic):
        assert meet(one, other)


@BOUNDED
@given(filters(), filters(), NAMES)
def test_the_wide_filter_matches_what_the_narrow_one_matches(wide: str, narrow: str, topic: str) -> None:
    check_filter(wide)
    check_name(topic)
    if covers(wide, narrow) and matches(narrow, topic):
        assert matches(wide, topic)


@BOUNDED
@given(filters(), NAMES)
def test_covering_a_name_equals_matching_it(filter_: str, topic: str) -> None:
    assert covers(filter_, topic) == matches(filter_, topic)


@BOUNDED
@given(filters(), filters(), filters())
def test_covering_is_reflexive_and_transitive(one: str, two: str, three: str) -> None:
    assert covers(one, one)
    if covers(one, two) and covers(two, three):
        assert covers(one, three)


@pytest.mark.parametrize(("topic", "expected"), CROSSING)
def test_control_topics_probes_and_dollar_topics_do_not_cross(topic: str, expected: bool) -> None:
    check_name(topic)
    assert may_cross(topic) is expected


def test_a_name_stays_exactly_if_it_is_hidden_or_matches_a_closed_filter() -> None:
    words = ["federator", "federated_topology_ann", "hanse", "probe", "federators", "z", ""]
    for topic in all_names(words, levels_max=3):
        assert may_cross(topic) == (not any(matches(closed, topic) for closed in NEVER_FEDERATED)), topic


@pytest.mark.parametrize(("filter_", "expected"), FILTER_CROSSING)
def test_a_filter_may_cross_unless_all_its_matches_stay(filter_: str, expected: bool) -> None:
    check_filter(filter_)
    assert filter_may_cross(filter_) is expected


def test_a_filter_may_cross_exactly_if_it_matches_a_name_that_may() -> None:
    words = ["federator", "federated_topology_ann", "hanse", "probe", "$hanse", "telemetry"]
    crossing = [topic for topic in all_names([*words, "z"], levels_max=4) if may_cross(topic)]
    deeper = ["$hanse/telemetry/+", "$hanse/+/#", "hanse/probe/+", "+/+/+"]
    for filter_ in [*all_filters(words, levels_max=2), *deeper]:
        assert filter_may_cross(filter_) == any(matches(filter_, topic) for topic in crossing), filter_


@BOUNDED
@given(
    st.text(st.characters(codec=None) | st.sampled_from("+#/$\0"), max_size=30)
    | st.just("$share/").flatmap(lambda prefix: st.text("ab+#/$", max_size=8).map(prefix.__add__))
)
def test_any_text_is_accepted_or_refused_with_a_remote_error(text: str) -> None:
    try:
        check_filter(text)
    except RemoteError:
        return
    assert covers(text, text)
    filter_may_cross(text)
    if "+" not in text and "#" not in text:
        check_name(text)
