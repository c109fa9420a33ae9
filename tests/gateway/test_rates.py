"""Limits on new connections."""

from hanse.gateway.front.rates import ADDRESSES_MAX, Rates


def admitted(rates: Rates, address: str, count: int, at_s: float) -> list[str]:
    return [rates.admit(address, at_s) for _ in range(count)]


def test_one_seconds_worth_comes_at_once_and_then_the_rate() -> None:
    rates = Rates(10)
    assert admitted(rates, "a", 12, 100.0) == [""] * 10 + ["connect_rate"] * 2
    assert admitted(rates, "a", 4, 100.25) == [""] * 2 + ["connect_rate"] * 2
    assert admitted(rates, "a", 12, 200.0) == [""] * 10 + ["connect_rate"] * 2


def test_an_address_beyond_its_rate_takes_nothing_from_the_others() -> None:
    rates = Rates(5, rate_per_address=2)
    assert admitted(rates, "a", 50, 100.0) == [""] * 2 + ["connect_rate_per_address"] * 48
    assert admitted(rates, "b", 2, 100.0) == [""] * 2


def test_open_connections_of_an_address_are_limited_until_they_end() -> None:
    rates = Rates(1_000, open_per_address=2)
    assert admitted(rates, "a", 3, 100.0) == ["", "", "connections_per_address"]
    # The refused connection is open as well, until it has read its answer.
    rates.release("a")
    assert admitted(rates, "a", 1, 100.0) == ["connections_per_address"]
    rates.release("a")
    rates.release("a")
    assert admitted(rates, "a", 1, 100.0) == [""]
    assert admitted(rates, "b", 1, 100.0) == [""]


def test_connections_at_other_workers_count() -> None:
    rates = Rates(1_000, open_per_address=3, is_shared=True)
    assert admitted(rates, "a", 1, 100.0) == [""]
    assert rates.changes() == {"a": 1}
    assert rates.changes() == {}
    rates.set_elsewhere({"a": 2})
    assert admitted(rates, "a", 1, 100.0) == ["connections_per_address"]
    rates.release("a")
    rates.set_elsewhere({"a": 0})
    assert admitted(rates, "a", 1, 100.0) == [""]
    assert rates.changes() == {"a": 2}


def test_the_memory_of_addresses_is_bounded() -> None:
    rates = Rates(1e9, rate_per_address=1)
    for k in range(ADDRESSES_MAX + 10):
        rates.admit(f"{k}", 100.0)
    # The oldest were forgotten, and have a fresh allowance; the newest are known.
    assert rates.admit("0", 100.0) == ""
    assert rates.admit(f"{ADDRESSES_MAX + 9}", 100.0) == "connect_rate_per_address"
