from hanse.protocol.changes import Changes
from hanse.protocol.effects import Emit, SubscribeHost, UnsubscribeHost
from hanse.protocol.grouping import Grouping
from hanse.protocol.hostside import HostSide
from hanse.protocol.settings import MANAGEMENT_GROUP, Settings


def host_side(**settings: object) -> tuple[HostSide, Changes]:
    changes = Changes()
    host = HostSide(5, Settings(**settings), changes)  # type: ignore[arg-type]
    assert changes.take_groups() == [MANAGEMENT_GROUP]
    return host, changes


def test_a_group_is_of_interest_until_its_last_filter_goes() -> None:
    host, changes = host_side(grouping=Grouping.parse("prefix:1"))
    host.on_subscribed("a/b")
    host.on_subscribed("a/c")
    host.on_subscribed("a/c")
    assert host.interest == {MANAGEMENT_GROUP: 1, "a/#": 2}
    assert changes.take_groups() == ["a/#"]
    assert changes.is_table_changed
    assert host.on_unsubscribed("a/b") is None
    assert changes.take_groups() == ["a/#"]
    assert host.on_unsubscribed("a/c") == "a/#"
    assert host.interest == {MANAGEMENT_GROUP: 1}


def test_an_unknown_filter_cannot_be_removed() -> None:
    host, changes = host_side()
    assert host.on_unsubscribed("a") is None
    assert not changes.is_unsettled
    assert not changes.is_table_changed


def test_refused_filters_are_counted_and_change_nothing() -> None:
    host, changes = host_side(groups_max=1)
    for filter_ in ("a/#/b", "$SYS/x", "$hanse/federator/6", "a", "b"):
        host.on_subscribed(filter_)
    assert host.interest.keys() == {MANAGEMENT_GROUP, "a"}
    assert changes.counters == {"rejected_filter": 1, "ignored_closed_filter": 2, "rejected_groups_max": 1}
    assert changes.effects == [Emit("limit_reached", group="b", detail="groups_max")]


def test_the_host_is_subscribed_once_and_unsubscribed_once_per_group() -> None:
    host, changes = host_side()
    for is_wanted in (False, True, True, False, False):
        host.subscribe("g", is_wanted=is_wanted)
    assert changes.effects == [SubscribeHost("g"), UnsubscribeHost("g")]


def test_groups_that_do_not_cross_are_never_subscribed_at_the_host() -> None:
    host, changes = host_side()
    host.subscribe(MANAGEMENT_GROUP, is_wanted=True)
    assert changes.effects == []
    assert host.subscriptions == set()
