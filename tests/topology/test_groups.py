from hanse.topology.groups import ENTRIES_MAX, GROUPS_A_REPORT_MAX, GroupBook, GroupReport


def test_the_last_report_of_a_federator_counts() -> None:
    book = GroupBook()
    book.note(0, [GroupReport("a", 0)])
    book.note(0, [GroupReport("b", 0, (1,), (1, 2), has_interest=True)])
    total, groups = book.groups(offset=0, limit=10)
    assert total == 1
    assert groups == [
        {
            "group": "b",
            "cores": [0],
            "members": [{"id": 0, "core": 0, "parents": [1], "mesh": [1, 2], "interest": True}],
        }
    ]
    book.forget([0, 9])
    assert book.groups(offset=0, limit=10) == (0, [])


def test_entries_beyond_the_limit_are_dropped_and_counted() -> None:
    book = GroupBook()
    many = [GroupReport(f"g{i}", 0) for i in range(GROUPS_A_REPORT_MAX)]
    for node in range(ENTRIES_MAX // GROUPS_A_REPORT_MAX + 1):
        book.note(node, many)
    assert len(book) == ENTRIES_MAX
    assert book.dropped == GROUPS_A_REPORT_MAX
    book.note(0, [*many, GroupReport("one more", 0)])
    assert book.dropped == GROUPS_A_REPORT_MAX + 1
