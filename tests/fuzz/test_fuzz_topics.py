"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a topic name or filter. An accepted one can be matched, covered, put into the trie and checked for
crossing.
"""

from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz

from hanse.errors import RemoteError
from hanse.federator.crossing import Crossing, intersection
from hanse.interest import filters as interest_filters
from hanse.protocol import topics
from hanse.protocol.trie import FilterIndex

LEVELS = st.sampled_from(
    [
        "a",
        "b",
        "",
        "+",
        "#",
        "$SYS",
        "$share",
        "$hanse",
        "telemetry",
        "federator",
        "..",
        "<script>",
        "e\u0301",
        "é",
        "\ufeff",
        "\x01",
    ]
)
TEXTS = st.lists(LEVELS, min_size=1, max_size=6).map("/".join).map(str.encode)
CROSSING = Crossing(import_allow=("a/#", "+/b"), import_deny=("a/b/+",), export_deny=("b/#",), prefix="a/p")


def take(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    refusals = 0
    try:
        topics.check_name(text)
    except RemoteError:
        refusals += 1
    else:
        take_name(text)
    try:
        topics.check_filter(text)
    except RemoteError:
        refusals += 1
    else:
        take_filter(text)
    if refusals == 2:
        topics.check_name(text)  # for its message


def take_name(name: str) -> None:
    assert name.startswith(topics.SHARE_PREFIX) or topics.matches(name, name)
    if not topics.may_cross(name):
        assert CROSSING.enter(name) is None
        assert CROSSING.leave(name) is None
    for crossed in (CROSSING.enter(name), CROSSING.leave(name)):
        assert crossed is None or topics.may_cross(crossed)
    left = CROSSING.leave(name)
    assert left is None or CROSSING.inward(left) == name


def take_filter(wanted: str) -> None:
    _, behind = topics.split_share(wanted)
    assert topics.covers(wanted, wanted)
    assert intersection(behind, behind) == behind
    for mapped in (*CROSSING.outward_filter(wanted), *CROSSING.inward_filter(wanted)):
        topics.check_filter(mapped)
        assert topics.filter_may_cross(mapped)
    trie = FilterIndex()
    trie.add(behind)
    name = behind.replace("+", "x").replace("#", "y")
    if not behind.startswith("$"):
        assert (behind in trie.match(name)) == topics.matches(behind, name)
    # Interest accepted from a client never becomes a filter that the protocol refuses.
    try:
        interest_filters.check_filter(interest_filters.split_share(wanted)[1])
    except RemoteError:
        return
    topics.check_filter(behind)


def test_any_topic_is_accepted_or_refused() -> None:
    fuzz("topics", TEXTS, take)


def test_text_of_a_megabyte_is_checked_in_linear_time() -> None:
    for piece in ("/", "a/", "+/", "é", "x", "#"):
        assert_linear(lambda size, piece=piece: (piece * (size // len(piece.encode()))).encode(), take)  # type: ignore[misc]
