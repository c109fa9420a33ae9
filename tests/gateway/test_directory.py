from hanse.gateway.brokers.directory import HUNG, REFUSED, UP, Directory
from hanse.gateway.placement import Broker, Query, choose


def brokers(*ids: str, site: str = "") -> list[Broker]:
    return [Broker(one, f"mqtt://{one}:1883", site) for one in ids]


def ids(directory: Directory) -> list[str]:
    return [view.broker.id for view in directory.members if not view.obstacle]


def test_a_verdict_takes_effect_at_once() -> None:
    directory = Directory()
    assert directory.update(1, brokers("b", "a"))
    assert ids(directory) == ["a", "b"]
    assert directory.judge("a", REFUSED)
    assert ids(directory) == ["b"]
    assert not directory.judge("a", REFUSED)
    assert directory.judge("a", UP)
    assert ids(directory) == ["a", "b"]


def test_with_a_manager_a_broker_returns_only_by_an_agreed_version() -> None:
    directory = Directory(is_sole=False)
    directory.update(1, brokers("a", "b"), up=["a", "b"])
    directory.judge("a", HUNG)
    directory.judge("a", UP)
    assert ids(directory) == ["b"]
    assert not directory.update(0, brokers("a", "b"), up=["a", "b"])
    assert ids(directory) == ["b"]
    assert directory.update(2, brokers("a", "b"), up=["a", "b"])
    assert ids(directory) == ["a", "b"]


def test_a_drained_broker_takes_no_clients() -> None:
    directory = Directory()
    directory.update(1, brokers("a", "b"))
    assert directory.set_drained("a", is_drained=True)
    assert ids(directory) == ["b"]
    assert directory.update(2, brokers("a", "b"), drained=["b"])
    assert ids(directory) == ["a"]


def test_only_the_site_is_the_set() -> None:
    directory = Directory("here")
    directory.update(1, [*brokers("a", "b", site="here"), *brokers("c", site="there")])
    assert ids(directory) == ["a", "b"]
    assert len(directory.views) == 3


def test_the_former_set_is_remembered() -> None:
    directory = Directory()
    directory.update(1, brokers("a", "b", "c"))
    before = choose(Query(b"x"), directory.members)
    directory.update(2, brokers("a", "b", "c", "d", "e", "f"))
    assert directory.former_choice(b"x") == before
    assert [one.id for one in directory.former_set] == ["a", "b", "c"]
    assert before is not None
    directory.judge(before.id, REFUSED)
    assert directory.former_choice(b"x") != before


def test_another_address_under_the_same_id_is_another_broker() -> None:
    directory = Directory()
    directory.update(1, brokers("a"))
    directory.judge("a", HUNG)
    directory.update(2, [Broker("a", "mqtt://elsewhere:1883")])
    assert ids(directory) == ["a"]


def test_a_worker_restores_what_the_supervisor_knows() -> None:
    directory = Directory()
    directory.update(1, brokers("a", "b", "c"))
    directory.update(2, brokers("a", "b", "d"))
    directory.judge("a", HUNG)
    directory.set_drained("b", is_drained=True)
    directory.set_offers("d", "QoS 1")
    worker = Directory()
    worker.update(1, brokers("a", "b", "c"))
    view = worker.view("a")
    assert view is not None
    view.connections = 7
    worker.restore(directory.snapshot())
    assert worker.snapshot() == directory.snapshot()
    assert worker.view("a") is view
    assert view.connections == 7


def test_new_address_of_a_federator_changes_nothing_that_was_measured() -> None:
    directory = Directory(is_sole=False)
    directory.update(1, [Broker("a", "mqtt://h:1")], up=["a"])
    directory.judge("a", REFUSED)
    directory.update(2, [Broker("a", "mqtt://h:1", federator="tls://h:7")], up=["a"])
    view = directory.view("a")
    assert view is not None
    assert (view.verdict, view.broker.federator) == (REFUSED, "tls://h:7")
    directory.update(3, [Broker("a", "mqtt://h:2", federator="tls://h:7")], up=["a"])
    view = directory.view("a")
    assert view is not None
    assert view.verdict == UP
