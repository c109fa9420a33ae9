"""Accounts and their balance, without a network."""

from collections import Counter
from typing import Any

import pytest
from tests.protocol.net import Desk, packet, publication

from hanse.protocol import accounts
from hanse.protocol.accounts import MEASURES, OTHER_GROUPS, PIECE, Accounts, Row, Way
from hanse.protocol.balance import Account, Books, Destination, LinkAccount, balance, is_internal
from hanse.protocol.events import LinkDown, Subscribed
from hanse.protocol.messages import HOST, Announcement, ClaimChange, ClaimDelta, Run, SetDelta, SetStep
from hanse.protocol.seen import EPOCHS_MAX
from hanse.protocol.tracing import Tracer

A, B = ("a",), ("b",)


def run(first: int = 0, count: int = 1, *, groups: tuple[str, ...] = A, topic: str = "a", hops: int = 1) -> Run:
    return Run(8, 900, first, count, 0, hops, groups, packet(topic) * count)


def desk(**settings: Any) -> Desk:
    """Return federator 5. The cores 8 of `a` and 9 of `b` are reached through 1; 2 joined the mesh of `a` through 5."""
    made = Desk(**settings)
    claims = (ClaimDelta(8, 1_000, 0, (ClaimChange("a", 100),)), ClaimDelta(9, 1_000, 0, (ClaimChange("b", 100),)))
    ways = (Announcement(8, 1_000, 1, 1, 1), Announcement(9, 1_000, 1, 1, 1))
    made.say(1, announcements=ways, claim_deltas=claims)
    made.say(2, memberships=SetDelta(1, 0, 1, (SetStep(True, 8, "a"),)))
    return made


def counts(made: Desk) -> Counter[tuple[str, int, tuple[str, ...], int]]:
    """Return publications by measure, origin, groups and neighbour, over all epochs."""
    found: Counter[tuple[str, int, tuple[str, ...], int]] = Counter()
    for row in made.machine.accounts.rows():
        found[row.measure, row.origin, row.groups, row.neighbour] += row.publications
    return found


def test_publications_of_clients_count_as_published_and_as_forwarded_to_each_neighbour() -> None:
    made = desk()
    made.machine.publish(0.0, [publication("a"), publication("a"), publication("b"), publication("x")])
    assert counts(made) == {
        ("published", 5, A, -1): 2,
        ("forwarded", 5, A, 1): 2,
        ("forwarded", 5, A, 2): 2,
        ("published", 5, B, -1): 1,
        ("forwarded", 5, B, 1): 1,
    }


def test_publications_of_a_neighbour_count_as_received_and_forwarded_and_the_second_time_as_duplicate() -> None:
    made = desk()
    made.machine.forward(0.0, 2, [run(0, 3)])
    made.machine.forward(0.0, 2, [run(2, 2)])  # one of them is new
    assert counts(made) == {
        ("received", 8, A, 2): 5,
        ("forwarded", 8, A, 1): 4,
        ("duplicate", 8, A, -1): 1,
    }


def test_telemetry_gets_the_measures_that_it_reports_and_all_drops_whatever_the_reason() -> None:
    made = desk()
    made.machine.forward(0.0, 2, [run(0, 3), run(hops=200)])
    assert {row.measure for row in made.machine.accounts.rows()} == {"received", "forwarded", "dropped:hops"}
    size = len(packet("a"))
    assert made.machine.flows == {("forwarded", 8, A): [3, 3 * size], ("dropped:hops", 8, A): [1, size]}


def test_accounts_continue_when_the_meshes_change() -> None:
    made = desk()
    made.machine.forward(0.0, 2, [run(0, 3)])
    made.say(2, memberships=SetDelta(1, 1, 1, (SetStep(True, 9, "b"),)))
    made.machine.forward(0.0, 2, [run(3, 1)])
    assert counts(made)["received", 8, A, 2] == 4


@pytest.mark.parametrize(
    ("arriving", "measure"),
    [
        (run(hops=200), "dropped:hops"),
        (run()._replace(origin=5), "duplicate"),
        (run(groups=("?",), topic="z"), "dropped:unknown_group"),
        (run(groups=("?",), topic="z")._replace(body=b"\x30\x04\x00\x02\xff\xfe"), "dropped:malformed"),
    ],
)
def test_refused_publications_count_as_received_and_as_dropped(arriving: Run, measure: str) -> None:
    made = desk()
    made.machine.forward(0.0, 2, [arriving])
    assert counts(made) == {
        ("received", arriving.origin, arriving.groups, 2): 1,
        (measure, arriving.origin, arriving.groups, -1): 1,
    }


def test_an_id_too_old_to_tell_counts_as_dropped() -> None:
    made = desk()
    made.machine.forward(0.0, 2, [run()._replace(epoch=910 - k) for k in range(EPOCHS_MAX + 1)])
    assert counts(made)["dropped:too_old", 8, A, -1] == 1
    assert counts(made)["received", 8, A, 2] == EPOCHS_MAX + 1


def test_publications_for_an_absent_member_and_parked_ones_are_counted_until_they_go_or_expire() -> None:
    made = desk()
    made.step(LinkDown(2))
    made.machine.publish(0.0, [publication("a")])
    assert counts(made)["dropped:link", 5, A, 2] == 1  # QoS 0 is not kept for it
    made.step(LinkDown(1))
    made.machine.publish(0.0, [publication("b"), publication("b")])
    assert counts(made)["parked", 5, B, -1] == 2
    assert [(one.groups, one.length) for one in made.machine.waiting()] == [(B, 2)]
    made.up(1)
    made.say(1, announcements=(Announcement(9, 1_000, 2, 1, 1),))
    assert made.machine.waiting() == []
    assert counts(made)["forwarded", 5, B, 1] == 2
    made.step(LinkDown(1))
    made.machine.publish(made.now, [publication("b")])
    made.wait(20.0)
    assert counts(made)["dropped:parked_expired", 5, B, -1] == 1
    assert ("unwanted", 5, B, -1) not in counts(made)


def test_publications_beyond_a_limit_of_size_or_capacity_are_dropped_and_counted() -> None:
    made = desk(parked_bytes_max=10, message_bytes_max=30)
    made.step(LinkDown(1))
    made.machine.publish(0.0, [publication("b", b"x" * 20)])
    made.machine.publish(0.0, [publication("b", b"x" * 40)])
    found = counts(made)
    assert (found["dropped:parked_full", 5, B, -1], found["dropped:too_large", 5, B, -1]) == (1, 1)
    assert found["published", 5, B, -1] == 2


def test_a_duplicate_for_another_group_is_merged_if_both_groups_are_wanted() -> None:
    made = desk()
    made.step(Subscribed("a"))
    made.step(Subscribed("b"))
    for one in made.machine.forward(0.0, 2, [run()]).deliveries:
        made.machine.count_delivered(one)
    assert made.machine.forward(0.0, 1, [run(groups=("a", "b"))]).deliveries == []
    found = counts(made)
    assert (found["delivered", 8, A, -1], found["merged", 8, B, -1]) == (1, 1)


def test_a_publication_received_for_nobody_is_unwanted() -> None:
    made = desk()
    made.machine.forward(0.0, 1, [run(groups=B)._replace(hops=1)])
    # A publication of an outsider whose only route leads back waits. It is unwanted if nothing lies beyond and that is
    # known.
    assert counts(made)["parked", 8, B, -1] == 1
    book = Accounts()
    book.use(Way(1, A, (), False, ()), run())
    assert Counter(row.measure for row in book.rows()) == {"received": 1, "unwanted": 1}


def test_ids_of_a_new_epoch_are_a_separate_account() -> None:
    made = desk()
    made.machine.publish(0.0, [publication("a")])
    made.say(1, echo_epoch=5_000, echo_number=1)
    assert made.machine.epoch == 5_001
    made.machine.publish(0.0, [publication("a")])
    epochs = [row.epoch for row in made.machine.accounts.rows() if row.measure == "published"]
    assert epochs == [1_000, 5_001]


def test_publications_that_the_host_hands_in_again_count_in_the_epoch_that_numbered_them() -> None:
    made = desk()
    made.machine.publish(0.0, [publication("a", qos=1)], 1, (900, 41))
    made.machine.publish(0.0, [publication("a", qos=1)], 2)
    found = {(row.measure, row.epoch, row.neighbour): row.publications for row in made.machine.accounts.rows()}
    assert found == {
        ("published", 900, -1): 1,
        ("forwarded", 900, 1): 1,
        ("forwarded", 900, 2): 1,
        ("published", 1_000, -1): 1,
        ("forwarded", 1_000, 1): 1,
        ("forwarded", 1_000, 2): 1,
    }


def test_looking_at_a_plan_makes_no_account() -> None:
    """A probe asks for the plan of a publication that nobody has published."""
    made = desk()
    assert Tracer(made.machine).look("a").forwarded
    assert made.machine.accounts.rows() == []


def test_every_measure_is_documented() -> None:
    made = desk()
    made.machine.publish(0.0, [publication("a")])
    made.machine.forward(0.0, 2, [run(hops=200), run()])
    assert {row.measure for row in made.machine.accounts.rows()} <= set(MEASURES)


def test_the_table_is_bounded_and_links_stay_exact_while_groups_are_combined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounts, "ACCOUNTS_MAX", 6)
    book = Accounts()
    for k in range(100):
        groups = (f"g{k}",)
        book.use(Way(1, groups, ((2, groups),), False, ()), run(groups=groups))
        book.count("delivered", run(groups=groups))
    rows = book.rows()
    assert len(rows) < 30
    assert sum(row.publications for row in rows if row.measure == "received") == 100
    assert sum(row.publications for row in rows if row.measure == "forwarded" and row.neighbour == 2) == 100
    assert {row.groups for row in rows if row.measure == "delivered"} >= {OTHER_GROUPS}
    for k in range(50):  # and at the end nothing grows at all
        book.count("delivered", run()._replace(origin=k))
        book.use(Way(PIECE, A, (), True, ()), run()._replace(origin=100 + k))
    assert book._size <= 12
    assert book.folded > 50
    assert HOST != PIECE


def test_accounts_that_are_kept_together_still_tell_what_waits_from_what_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "ACCOUNTS_MAX", 2)
    book = Accounts()
    book.use(Way(1, B, ((2, B),), False, ()), run(groups=B))
    book.use(Way(1, A, ((2, A),), False, A), run())
    rows = {(row.measure, row.groups): row.publications for row in book.rows()}
    assert rows["parked", OTHER_GROUPS] == 1
    assert rows["received", B] == 1
    book = Accounts()
    book.use(Way(1, B, ((2, B),), False, ()), run(groups=B))
    book.use(Way(1, A, ((2, A),), False, ()), run())
    assert "parked" not in {row.measure for row in book.rows()}


# --- the balance ------------------------------------------------------------------------------------------------------


def row(measure: str, publications: int, *, group: str = "a", neighbour: int = -1, since: float = 10.0) -> Row:
    return Row(measure, 0, 1, (group,), neighbour, publications, 0, since)


def line(published: int, received: int, delivered: int, *more: Row, interest_since: float = 1.0) -> list[Books]:
    """Return the books of 0, which publishes, and 1, which is interested."""
    origin = [row("published", published), row("forwarded", published, neighbour=1)]
    there = [row("received", received, neighbour=0), row("delivered", delivered), *more]
    return [Books(0, 0.0, {}, origin), Books(1, 0.0, {"a": interest_since}, there)]


def test_the_books_balance_if_everything_arrived() -> None:
    found = balance(line(5, 5, 5))
    assert found.unexplained == 0
    assert found.accounts == (Account(0, 1, "a", 5, 0, {}, (Destination(1, 5, 0, 0, {}, 0, 0),)),)
    assert found.links == (LinkAccount(0, 1, 5, 5, 0),)


def test_a_loss_without_a_reason_is_unexplained() -> None:
    found = balance(line(5, 5, 3))
    assert found.unexplained == 2
    assert found.accounts[0].destinations[0].missing == 2


def test_a_loss_on_a_link_is_explained_by_the_link() -> None:
    found = balance(line(5, 3, 3))
    assert found.unexplained == 0
    assert found.accounts[0].lost_on_the_way == {"link 0 to 1": 2}
    assert found.links[0].lost == 2


def test_drops_at_one_destination_do_not_explain_losses_at_another() -> None:
    books = line(5, 5, 3, row("dropped:import", 2))
    assert balance(books).accounts[0].destinations[0].dropped == {"import": 2}
    assert balance(books).unexplained == 0
    books.append(Books(2, 0.0, {"a": 1.0}, [row("delivered", 3)]))
    assert [one.unexplained for one in balance(books).accounts[0].destinations] == [0, 2]


def test_waiting_and_dropped_publications_explain_what_is_missing() -> None:
    books = line(5, 5, 1, row("dropped:parked_expired", 1), row("dropped:hops", 1))
    books[0] = Books(0, 0.0, {}, books[0].rows, [row("waiting", 2)])
    found = balance(books)
    assert found.unexplained == 0
    assert (found.accounts[0].waiting, found.accounts[0].lost_on_the_way) == (
        2,
        {"hops": 1, "parked_expired": 1},
    )


def test_publications_that_became_unwanted_on_the_way_explain_what_is_missing() -> None:
    """The route led there when it was sent, because the origin did not know yet that the last member had left."""
    books = line(5, 3, 3)
    books[0] = Books(
        0, 0.0, {}, [row("published", 5), row("forwarded", 3, neighbour=1), row("forwarded", 2, neighbour=2)]
    )
    books.append(Books(2, 0.0, {}, [row("received", 2, neighbour=0), row("unwanted", 2)]))
    found = balance(books)
    assert (found.unexplained, found.accounts[0].lost_on_the_way) == (0, {"unwanted": 2})


def test_a_frame_that_the_link_refused_was_not_sent() -> None:
    books = line(5, 3, 3)
    books[0] = Books(0, 0.0, {}, [*books[0].rows, row("dropped:link", 2, neighbour=1)])
    found = balance(books)
    assert (found.unexplained, found.links[0].sent, found.links[0].lost) == (0, 3, 0)
    assert found.accounts[0].lost_on_the_way == {"link": 2}


@pytest.mark.parametrize(
    ("since", "started", "says"),
    [(20.0, 0.0, "its interest began after"), (15.0, 20.0, "its federator's count began after")],
)
def test_a_destination_that_joined_later_cannot_be_compared(since: float, started: float, says: str) -> None:
    books = line(5, 5, 3, interest_since=since)
    books[1] = Books(1, started, books[1].interest, books[1].rows)
    (destination,) = balance(books).accounts[0].destinations
    assert destination.unexplained is None
    assert destination.why.startswith(says)
    assert balance(books).unexplained == 0


def test_a_restarted_destination_gives_the_reason_also_if_its_link_seems_to_have_lost_the_rest() -> None:
    books = line(6, 2, 2)
    books[1] = Books(1, 20.0, books[1].interest, books[1].rows)
    (destination,) = balance(books).accounts[0].destinations
    assert (destination.missing, destination.unexplained) == (4, None)
    assert destination.why == "its federator's count began after the first publication"


def test_a_destination_is_compared_with_the_first_publication_that_the_origin_counted() -> None:
    books = line(5, 5, 3, interest_since=20.0)
    books[0] = Books(0, 0.0, {}, [*books[0].rows, row("published", 1, since=30.0)])
    assert balance(books).accounts[0].destinations[0].unexplained is None


def test_a_destination_whose_interest_ended_is_shown_without_a_verdict() -> None:
    books = line(5, 5, 3)
    books[1] = Books(1, 0.0, {}, books[1].rows)
    (destination,) = balance(books).accounts[0].destinations
    assert (destination.delivered, destination.unexplained, destination.why) == (3, None, "its interest has ended")


def test_repeats_show_as_a_negative_number_of_missing_publications() -> None:
    found = balance(line(5, 7, 7))
    assert (found.accounts[0].destinations[0].missing, found.unexplained) == (-2, 0)


def test_a_link_to_a_silent_or_restarted_federator_gives_the_reason_in_place_of_a_loss() -> None:
    books = line(5, 3, 3)
    assert "federator 1 does not answer" in balance(books[:1]).links[0].why
    books[1] = Books(1, 20.0, books[1].interest, books[1].rows)
    assert "federator 1 began to count later" in balance(books).links[0].why


def test_the_federators_own_groups_have_no_destinations() -> None:
    assert is_internal("$hanse/management")
    assert is_internal(OTHER_GROUPS[0])
    assert not is_internal("$hanse/telemetry/#")
    books = [Books(0, 0.0, {}, [row("published", 3, group="$hanse/management"), row("forwarded", 3, neighbour=1)])]
    assert (balance(books).accounts, len(balance(books).links)) == ((), 1)


def test_accounts_left_off_by_pages_are_reported() -> None:
    assert balance([Books(0, 0.0, {}, [], [], 7)]).left_off == 7
