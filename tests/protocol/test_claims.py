from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.protocol.claims import ClaimSet, Fetch
from hanse.protocol.messages import ClaimChange, ClaimDelta, ClaimPart


def filled(*groups: str, log_max: int = 100) -> ClaimSet:
    claims = ClaimSet(9, 1_000, log_max)
    for group in groups:
        claims.change(ClaimChange(group, 100))
    return claims


def test_each_change_is_one_version() -> None:
    claims = filled("a", "b")
    claims.change(ClaimChange("a", 7))
    claims.change(ClaimChange("b", None))
    claims.change(ClaimChange("never", None))
    assert claims.version == 5
    assert claims.groups == {"a": ClaimChange("a", 7)}


def test_a_delta_holds_the_changes_after_a_version_up_to_a_limit() -> None:
    claims = filled("a", "b", "c")
    assert claims.delta_since(1, 1) == ClaimDelta(9, 1_000, 1, (ClaimChange("b", 100),))
    assert claims.delta_since(3, 10) is None  # nothing is missing
    assert claims.delta_since(4, 10) is None  # it knows more than we do


def test_changes_are_remembered_for_at_least_the_log_and_at_most_twice_it() -> None:
    claims = filled(*map(str, range(21)), log_max=10)
    assert claims.delta_since(21 - 10, 100) is not None
    assert claims.delta_since(0, 100) is None
    assert len(claims._log) <= 20


def test_replacing_a_whole_set_returns_the_differing_groups() -> None:
    claims = filled("a", "b", "c")
    differing = claims.replace(1_001, 7, (ClaimChange("a", 100), ClaimChange("b", 5), ClaimChange("d", 100)))
    assert differing == {"b", "c", "d"}
    assert (claims.epoch, claims.version) == (1_001, 7)
    assert claims.delta_since(6, 10) is None


def test_a_new_epoch_keeps_the_set_and_forgets_the_changes() -> None:
    claims = filled("a", "b")
    claims.reset_epoch(1_001)
    assert set(claims.groups) == {"a", "b"}
    assert claims.version == 3
    assert claims.delta_since(2, 10) is None


def test_parts_belong_to_one_snapshot_while_the_set_changes() -> None:
    claims = filled("a", "b", "c")
    first = claims.part(-1, 0, 2)
    claims.change(ClaimChange("aa", 100))
    second = claims.part(first.version, 2, 2)
    assert [claim.group for claim in (*first.claims, *second.claims)] == ["a", "b", "c"]
    assert (second.version, second.offset, second.total) == (3, 2, 3)
    # That was the last part, so the snapshot is gone. A neighbour that asks again gets a new one from its beginning.
    again = claims.part(first.version, 2, 2)
    assert (again.version, again.offset, again.total) == (4, 0, 4)


def test_a_lost_snapshot_continues_if_the_set_has_not_changed() -> None:
    claims = filled("a", "b", "c")
    claims.part(-1, 0, 100)
    part = claims.part(3, 2, 100)
    assert (part.offset, [claim.group for claim in part.claims]) == (2, ["c"])


def test_an_offset_beyond_the_snapshot_gives_nothing_more() -> None:
    claims = filled("a")
    part = claims.part(1, 5, 100)
    assert (part.offset, part.total, part.claims) == (5, 1, ())


def test_a_fetch_is_whole_when_all_parts_of_one_snapshot_have_arrived() -> None:
    fetch = Fetch(neighbour=1, epoch=0, asked_at=0.0)
    assert fetch.version == -1  # on the wire: no snapshot is named yet
    a, b = ClaimChange("a", 1), ClaimChange("b", 1)
    assert not fetch.accept(ClaimPart(9, 2, 5, 1, 2, (b,)))  # the first part has not come
    assert not fetch.accept(ClaimPart(9, 2, 5, 0, 2, (a,)))
    assert not fetch.accept(ClaimPart(9, 2, 6, 1, 2, (b,)))  # of another snapshot
    assert fetch.accept(ClaimPart(9, 2, 5, 1, 2, (b,)))
    assert fetch.claims == [a, b]
    assert fetch.accept(ClaimPart(9, 3, 1, 0, 1, (b,)))  # a new snapshot starts again
    assert (fetch.epoch, fetch.version, fetch.claims) == (3, 1, [b])


CHANGES = st.builds(ClaimChange, st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 3)))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(CHANGES, st.booleans()), max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_a_follower_that_asks_ends_with_the_same_claims(
    changes: list[tuple[ClaimChange, bool]], log_max: int, claims_max: int
) -> None:
    core, follower = ClaimSet(9, 1, log_max), ClaimSet(9, 1, log_max)

    def ask() -> None:
        delta = core.delta_since(follower.version, claims_max)
        if delta is not None:
            assert delta.start == follower.version
            for change in delta.changes:
                follower.change(change)
            return
        fetch, is_whole = Fetch(1, 1, 0.0), follower.version == core.version
        while not is_whole:
            is_whole = fetch.accept(core.part(fetch.version, len(fetch.claims), claims_max))
        if fetch.version >= 0:
            follower.replace(fetch.epoch, fetch.version, tuple(fetch.claims))

    for change, is_asked in changes:
        core.change(change)
        if is_asked:
            ask()
    while follower.version < core.version:
        ask()
    assert follower.groups == core.groups
