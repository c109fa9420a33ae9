"""Duplicates of overlapping subscriptions are one publication; equal publications keep their number."""

from hypothesis import given
from hypothesis import strategies as st

from hanse.federator.copies import CopyMerger
from hanse.mqtt.publication import Publication, encode


def arrival(payload: bytes, *identifiers: int, receipt: int = 0) -> Publication:
    return Publication(
        encode("t", payload, qos=1 if receipt else 0), "t", 1 if receipt else 0, False, False, receipt, identifiers
    )


def payloads(found: list[Publication]) -> list[bytes]:
    return [publication.payload for publication in found]


def test_duplicates_for_several_subscriptions_are_one_publication() -> None:
    found = CopyMerger().merge([arrival(b"a", 2), arrival(b"a", 3), arrival(b"a", 4)], 4)
    assert payloads(found) == [b"a"]


def test_two_equal_publications_in_a_row_stay_two() -> None:
    found = CopyMerger().merge([arrival(b"a", 2), arrival(b"a", 3), arrival(b"a", 2), arrival(b"a", 3)], 3)
    assert payloads(found) == [b"a", b"a"]


def test_a_duplicate_in_the_next_read_is_recognised() -> None:
    merger = CopyMerger()
    assert payloads(merger.merge([arrival(b"a", 2)], 3)) == [b"a"]
    assert payloads(merger.merge([arrival(b"a", 3), arrival(b"b", 2)], 3)) == [b"b"]


def test_one_packet_with_all_identifiers_is_one_publication() -> None:
    found = CopyMerger().merge([arrival(b"a", 2, 3), arrival(b"a", 2, 3), arrival(b"b", 2, 3)], 3)
    assert payloads(found) == [b"a", b"a", b"b"]


def test_duplicates_under_different_packet_ids_are_one_publication() -> None:
    found = CopyMerger().merge([arrival(b"a", 2, receipt=7), arrival(b"a", 3, receipt=8)], 3)
    assert [publication.receipt for publication in found] == [7]


def test_publications_without_identifiers_never_count_as_duplicates() -> None:
    assert len(CopyMerger().merge([arrival(b"a"), arrival(b"a")], 9)) == 2


def test_the_same_bytes_for_a_newer_subscription_are_no_duplicate() -> None:
    """A filter ends and begins again under a new identifier while a client sends the same payload every minute."""
    merger = CopyMerger()
    assert payloads(merger.merge([arrival(b"on", 2)], 2)) == [b"on"]
    assert payloads(merger.merge([arrival(b"on", 3)], 3)) == [b"on"]


def test_a_subscription_made_between_two_duplicates_does_not_separate_them() -> None:
    merger = CopyMerger()
    assert payloads(merger.merge([arrival(b"a", 2)], 3)) == [b"a"]
    assert payloads(merger.merge([arrival(b"a", 3)], 4)) == []


CONTENTS = st.lists(st.sampled_from([b"a", b"a", b"b", b"c"]), max_size=40)
IDENTIFIERS = st.sets(st.integers(2, 6), min_size=1)


@given(CONTENTS, IDENTIFIERS, st.data())
def test_merging_duplicates_of_any_subscriptions_restores_the_publications(
    contents: list[bytes], identifiers: set[int], data: st.DataObject
) -> None:
    """The broker may order the duplicates of one publication in any way, and reads may split them anywhere."""
    arrivals: list[Publication] = []
    # A broker sends duplicates in an order of its own, the same for equal topics: all of these have one topic.
    order = data.draw(st.permutations(sorted(identifiers)))
    has_one_copy = data.draw(st.booleans())
    for content in contents:
        if has_one_copy:
            arrivals.append(arrival(content, *order))
        else:
            arrivals += [arrival(content, identifier) for identifier in order]
    merger = CopyMerger()
    found: list[bytes] = []
    while arrivals:
        count = data.draw(st.integers(1, len(arrivals)))
        found += payloads(merger.merge(arrivals[:count], 6))
        arrivals = arrivals[count:]
    assert found == contents
