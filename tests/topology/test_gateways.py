"""Facts that the manager sends to all gateways: states of brokers, versions, drains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import Unavailable
from hanse.topology.gateways import (
    DOWN,
    GATEWAYS_MAX,
    LEASE_S,
    RETURNING,
    UP,
    Drain,
    GatewayBook,
    GatewayReport,
)

BROKERS = ("0", "1", "2")


def begun(now_s: float = 1_000.0) -> GatewayBook:
    book = GatewayBook()
    book.begin(now_s)
    return book


def say(
    book: GatewayBook,
    gateway: str,
    *,
    known: int | None = None,
    down: tuple[str, ...] = (),
    held: tuple[str, ...] = (),
    drains: dict[str, Drain] | None = None,
    at_s: float = 1_000.0,
    brokers: tuple[str, ...] = BROKERS,
) -> None:
    told = GatewayReport(
        book.version if known is None else known, frozenset(down), frozenset(held), drains if drains is not None else {}
    )
    book.report(gateway, told, brokers, at_s)


def test_the_first_brokers_are_up_and_versions_begin_with_the_clock() -> None:
    book = begun()
    say(book, "a", known=0)
    assert [book.state(one) for one in BROKERS] == [UP] * 3
    assert book.version > 1_000 << 16
    version = book.version
    say(book, "a")
    assert book.version == version, "nothing has changed"
    book.begin(1_000.0)
    assert book.version > version, "also within the same second"


def test_listeners_of_federators_are_announced_under_a_new_version_until_the_broker_is_gone() -> None:
    book = begun()
    say(book, "a")
    before = book.version
    book.note_listener("1", "tls://h:1")
    assert book.version > before
    version = book.version
    book.note_listener("1", "tls://h:1")
    assert (book.listener("1"), book.listener("0"), book.version) == ("tls://h:1", None, version)
    book.note_listener("1", None)
    assert (book.listener("1"), book.version) == (None, version + 1)
    book.note_listener("2", "tls://h:2")
    say(book, "a", brokers=("0", "1"))
    assert book.listener("2") is None


def test_a_broker_is_down_as_soon_as_one_gateway_says_so() -> None:
    book = begun()
    say(book, "a")
    say(book, "b")
    before = book.version
    say(book, "a", down=("1",))
    assert book.state("1") == DOWN
    assert book.version > before
    say(book, "b")
    assert book.state("1") == DOWN, "that b sees it does not matter"


def test_a_broker_is_up_again_when_every_gateway_knows_that_it_returned() -> None:
    book = begun()
    say(book, "a")
    say(book, "b")
    say(book, "a", down=("1",))
    old = book.version
    say(book, "a", held=("1",))
    assert book.state("1") == RETURNING
    say(book, "a", held=("1",))
    assert book.state("1") == RETURNING, "b does not know yet"
    say(book, "b", known=old)
    assert book.state("1") == RETURNING
    say(book, "b")
    assert book.state("1") == UP


def test_a_returning_broker_that_fails_again_is_down() -> None:
    book = begun()
    say(book, "a")
    say(book, "b", down=("1",))
    say(book, "b", held=("1",))
    assert book.state("1") == RETURNING
    say(book, "a", down=("1",))
    assert book.state("1") == DOWN


def test_a_broker_that_was_down_too_briefly_to_be_reported_returns_anew() -> None:
    book = begun()
    say(book, "a")
    say(book, "b")
    before = book.version
    say(book, "a", held=("1",))
    assert book.state("1") == RETURNING
    say(book, "b")
    say(book, "a", held=("1",))
    assert book.state("1") == UP
    assert book.version > before
    # It has not applied this version yet, so it still says so; that is no new reason.
    say(book, "a", known=before, held=("1",))
    assert book.state("1") == UP


def test_a_gateway_that_is_cut_off_takes_no_broker_from_the_others() -> None:
    book = begun()
    say(book, "a")
    say(book, "b")
    say(book, "a", down=("0", "1"))
    assert [book.state(one) for one in BROKERS] == [UP] * 3
    say(book, "b", down=("0",))
    assert [book.state(one) for one in BROKERS] == [DOWN, UP, UP]
    say(book, "b", down=("0", "1", "2"))
    assert [book.state(one) for one in BROKERS] == [DOWN] * 3, "nobody says otherwise"


def test_a_gateway_that_is_gone_holds_nothing_up() -> None:
    book = begun()
    say(book, "a")
    say(book, "b", down=("1",))
    say(book, "a", at_s=1_001.0)
    assert book.state("1") == DOWN
    say(book, "a", at_s=1_000.0 + LEASE_S + 1)
    assert [name for name, _ in book.gateways] == ["a"]
    assert book.state("1") == RETURNING
    say(book, "a", at_s=1_000.0 + LEASE_S + 1)
    assert book.state("1") == UP


def test_a_broker_that_joins_later_waits_until_all_know_it() -> None:
    book = begun()
    say(book, "a")
    say(book, "b")
    say(book, "a", brokers=(*BROKERS, "3"))
    assert book.state("3") == RETURNING
    say(book, "a", brokers=(*BROKERS, "3"))
    say(book, "b", brokers=(*BROKERS, "3"))
    assert book.state("3") == UP
    say(book, "b", brokers=BROKERS)
    assert book.state("3") == DOWN, "it is gone"


def test_the_latest_word_on_a_drain_counts_and_comes_back_from_the_gateways() -> None:
    book = begun()
    say(book, "a", drains={"1": Drain(True, 5.0, 20.0)})
    say(book, "b", drains={"1": Drain(False, None, 10.0), "9": Drain(True, None, 30.0)})
    assert book.drain("1") == Drain(True, 5.0, 20.0)
    assert book.drain("9") is None, "there is no such broker"
    say(book, "b", drains={"1": Drain(False, None, 21.0)})
    assert book.drain("1") == Drain(False, None, 21.0)
    later = begun(2_000.0)
    say(later, "a", drains={"1": Drain(True, 5.0, 20.0)})
    assert later.drain("1") == Drain(True, 5.0, 20.0)


def test_gateways_are_bounded() -> None:
    book = begun()
    for k in range(GATEWAYS_MAX):
        say(book, f"g{k}")
    with pytest.raises(Unavailable):
        say(book, "one more")
    say(book, "g0")


REPORTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.booleans(),
        st.frozensets(st.sampled_from(BROKERS), max_size=2),
        st.frozensets(st.sampled_from(BROKERS), max_size=2),
        st.floats(0, 3),
    ),
    max_size=40,
)


@given(REPORTS)
def test_whatever_is_reported_a_broker_is_never_up_while_a_gateway_says_it_is_down(reports: list[tuple]) -> None:  # type: ignore[type-arg]
    book = begun()
    at_s = 1_000.0
    said: dict[str, tuple[frozenset[str], float]] = {}
    versions = [book.version]
    for gateway, is_current, down, held, wait_s in reports:
        at_s += wait_s
        say(book, gateway, known=book.version if is_current else 0, down=tuple(down), held=tuple(held), at_s=at_s)
        said[gateway] = (down, at_s)
        versions.append(book.version)
        for bad, seen_s in said.values():
            if at_s - seen_s <= LEASE_S and 2 * len(bad) <= len(BROKERS):
                assert all(book.state(one) == DOWN for one in bad)
    assert versions == sorted(versions)
    # Once all gateways agree that all is well, everything is up within three reports each.
    for _ in range(3):
        for gateway in sorted(said):
            say(book, gateway, at_s=at_s)
    if said:
        assert all(book.state(one) == UP for one in BROKERS)
