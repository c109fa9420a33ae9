from hanse.protocol.changes import Changes
from hanse.protocol.claimbook import LEFT_TO_OTHERS, REMEMBERED, ClaimBook, ClaimWatchers
from hanse.protocol.messages import ClaimChange, ClaimDelta, ClaimPart, ClaimRequest
from hanse.protocol.neighbour import Neighbour
from hanse.protocol.settings import MANAGEMENT_GROUP, Settings


class Shelf:
    """A claim book of federator 5 on its own, with the calls that its watchers got."""

    def __init__(self, **settings: int) -> None:
        self.changes = Changes()
        self.heard: list[tuple[object, ...]] = []
        self.book = ClaimBook(5, 1_000, Settings(**settings), self.changes)  # type: ignore[arg-type]
        self.book.watch(
            ClaimWatchers(
                claimed=lambda core, group: self.heard.append(("claimed", core, group)),
                ended=lambda core, group: self.heard.append(("ended", core, group)),
                withdrawn=lambda now, group: self.heard.append(("withdrawn", now, group)),
                remembered=lambda until, group: self.heard.append(("remembered", until, group)),
                emptied=lambda core: self.heard.append(("emptied", core)),
                fetched=lambda: self.heard.append(("fetched",)),
            )
        )
        self.neighbour = Neighbour(1)

    def tell(self, start: int, *changes: tuple[str, int | None], epoch: int = 1_000, now: float = 0.0) -> None:
        delta = ClaimDelta(9, epoch, start, tuple(ClaimChange(group, rank) for group, rank in changes))
        self.book.on_delta(now, self.neighbour, delta)

    def is_fetching(self) -> bool:
        return self.book.is_fetching


def test_claimants_and_the_index_follow_the_claim_sets() -> None:
    shelf = Shelf()
    shelf.tell(0, ("a/+", 100), ("b", 100))
    shelf.book.change_own("a/+", 100)
    assert shelf.book.claimants("a/+") == (5, 9)
    assert shelf.book.match("a/x") == ("a/+",)
    shelf.tell(2, ("a/+", None))
    assert shelf.book.claimants("a/+") == (5,)
    shelf.book.change_own("a/+", None)
    assert shelf.book.claimants("a/+") == ()
    assert shelf.book.match("a/x") == ()
    assert set(shelf.book.groups()) == {"b"}


def test_watchers_learn_of_each_change_in_order() -> None:
    shelf = Shelf()
    shelf.tell(0, ("a", 100), ("a", None), ("b", 100), now=3.0)
    assert shelf.heard == [
        ("claimed", 9, "a"),
        ("ended", 9, "a"),
        ("withdrawn", 3.0, "a"),
        ("emptied", 9),
        ("claimed", 9, "b"),
    ]


def test_withdrawing_all_of_our_own_claims_does_not_make_us_a_lost_core() -> None:
    shelf = Shelf()
    shelf.book.change_own("a", 100)
    shelf.book.change_own("a", None)
    assert shelf.heard == [("claimed", 5, "a"), ("ended", 5, "a")]


def test_claims_are_requested_once_per_interval_and_awaited_as_long() -> None:
    shelf = Shelf()
    shelf.book.ask(0.0, 9, shelf.neighbour)
    shelf.book.ask(0.5, 9, shelf.neighbour)
    assert shelf.neighbour.claim_requests == [ClaimRequest(9, 0, 0, -1, 0)]
    assert shelf.is_fetching()
    shelf.book.age(0.9)
    assert shelf.is_fetching()
    shelf.book.age(1.0)
    assert not shelf.is_fetching()
    assert shelf.heard == [("fetched",)]


def test_a_set_in_parts_counts_when_it_is_whole() -> None:
    shelf = Shelf()
    shelf.tell(0, ("old", 100))
    shelf.book.ask(0.0, 9, shelf.neighbour)
    shelf.neighbour.claim_requests.clear()
    shelf.book.on_part(0.1, shelf.neighbour, ClaimPart(9, 1_000, 4, 0, 2, (ClaimChange("a", 100),)))
    assert shelf.book.claimants("old") == (9,)
    assert shelf.neighbour.claim_requests == [ClaimRequest(9, 1_000, 1, 4, 1)]
    shelf.book.on_part(0.2, shelf.neighbour, ClaimPart(9, 1_000, 4, 1, 2, (ClaimChange("b", 100),)))
    assert set(shelf.book.sets[9].groups) == {"a", "b"}
    assert shelf.book.claimants("old") == (REMEMBERED,)
    assert not shelf.is_fetching()


def test_a_core_in_a_new_epoch_has_not_given_its_groups_up() -> None:
    """Its successor's claim may come later, by another route.

    What waits for the group must not become unwanted (R21).
    """
    shelf = Shelf()
    shelf.tell(0, ("a", 100), ("b", 100), ("c", 100))
    shelf.book.change_own("c", 100)
    shelf.heard.clear()
    shelf.tell(0, ("b", 100), epoch=1_001, now=4.0)
    assert shelf.book.claimants("a") == (REMEMBERED,)
    assert shelf.book.claimants("b") == (9,)
    assert shelf.book.claimants("c") == (5,)
    until = 4.0 + Settings().retention_s_max
    told = [heard for heard in shelf.heard if heard[0] == "remembered"]
    assert told == [("remembered", until, "a"), ("remembered", until, "b")]
    shelf.book.forget_remembered(until, "a")
    assert shelf.book.claimants("a") == ()


def test_forgetting_a_core_drops_its_claims() -> None:
    shelf = Shelf()
    shelf.tell(0, ("b", 100), ("a", 100))
    shelf.heard.clear()
    shelf.book.forget_core(9)
    shelf.book.forget_core(9)
    assert shelf.heard == [("ended", 9, "a"), ("ended", 9, "b")]
    assert not shelf.book.groups()


def test_a_group_beyond_the_limit_is_kept_nowhere() -> None:
    shelf = Shelf(groups_max=1)
    shelf.tell(0, ("a", 100), ("b", 100))
    assert set(shelf.book.groups()) == set(shelf.book.sets[9].groups) == {"a"}
    shelf.book.change_own("c", 100)
    assert not shelf.book.own.groups
    assert shelf.changes.counters["rejected_groups_max"] == 2


def test_a_group_left_to_others_is_remembered_unless_another_claimant_is_known() -> None:
    shelf = Shelf()
    for position, group in enumerate(("a", MANAGEMENT_GROUP)):
        shelf.tell(2 * position, (group, 100))
        change = ClaimChange(group, None, LEFT_TO_OTHERS)
        shelf.book.on_delta(0.0, shelf.neighbour, ClaimDelta(9, 1_000, 2 * position + 1, (change,)))
    assert shelf.book.claimants("a") == (REMEMBERED,)
    assert shelf.book.claimants(MANAGEMENT_GROUP) == ()
    shelf.book.forget_remembered(Settings().retention_s_max, "a")
    assert shelf.book.claimants("a") == ()


def test_a_group_given_up_twice_is_remembered_from_the_second_time() -> None:
    """The alarm of the first time must not end it. A publication under way would find the group unknown."""
    shelf = Shelf()
    left = ClaimChange("a", None, LEFT_TO_OTHERS)
    for position, now in ((0, 0.0), (2, 1.5)):
        shelf.tell(position, ("a", 100), now=now)
        shelf.book.on_delta(now, shelf.neighbour, ClaimDelta(9, 1_000, position + 1, (left,)))
    first, second = (now + Settings().retention_s_max for now in (0.0, 1.5))
    assert [heard[1:] for heard in shelf.heard if heard[0] == "remembered"] == [(first, "a"), (second, "a")]
    shelf.book.forget_remembered(first, "a")
    assert shelf.book.claimants("a") == (REMEMBERED,)
    shelf.book.forget_remembered(second, "a")
    assert shelf.book.claimants("a") == ()


def test_a_group_beyond_the_limit_is_not_remembered_either() -> None:
    shelf = Shelf(groups_max=1)
    shelf.book.remember("a", 3.0)
    shelf.book.remember("b", 3.0)
    assert set(shelf.book.groups()) == {"a"}
    assert [heard for heard in shelf.heard if heard[0] == "remembered"] == [("remembered", 3.0, "a")]


def test_a_core_is_announced_for_some_rounds_after_its_last_claim_and_no_longer() -> None:
    shelf = Shelf()
    shelf.book.change_own("a", 100)
    for now in range(20):
        shelf.book.age(now)
    assert shelf.book.is_announced
    shelf.book.change_own("a", None)
    rounds = Settings().expiry_factor + 2
    for now in range(20, 20 + rounds):
        assert shelf.book.is_announced
        shelf.book.age(now)
    assert not shelf.book.is_announced


def test_requests_to_a_lost_neighbour_are_forgotten_and_others_are_not() -> None:
    shelf, other = Shelf(), Neighbour(2)
    shelf.book.ask(0.0, 9, shelf.neighbour)
    shelf.book.ask(0.0, 8, other)
    shelf.book.forget_neighbour(1)
    shelf.book.ask(0.1, 9, other)
    shelf.book.ask(0.1, 8, other)
    assert other.claim_requests == [ClaimRequest(8, 0, 0, -1, 0), ClaimRequest(9, 0, 0, -1, 0)]
