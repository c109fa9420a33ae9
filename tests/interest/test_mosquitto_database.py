"""Reader of Mosquitto's database: a file of a real broker, and data that is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import RemoteError
from hanse.interest.mosquitto_database import parse

# Saved by Mosquitto 2.0.11. The session of client `dis` ends at `ENDS_S`; that of `b (x)` does not expire.
SAVED = bytes.fromhex(
    "00b5006d6f7371756974746f2064620000000000000006000000010000001056000000000000000008000000000000000000"
    "060000001d0000000000000000ffffffff000000054dc70000000000006220287829000000060000001bb384fe6a00000000"
    "000003e8000000034dc700000000000064697300000005000000160000000000050005020000006220287829612f622f2300"
    "0000050000001600000000000500050000000062202878292f782f2f79000000050000001200000000000500010100000062"
    "2028782923000000050000001400000000000500030100000062202878292b2f610000000500000015000000000003000601"
    "000000646973617761792f23"
)
ENDS_S = 0x6AFE84B3
KEPT = [("b (x)", "a/b/#", 2), ("b (x)", "/x//y", 0), ("b (x)", "#", 1), ("b (x)", "+/a", 1)]


def test_subscriptions_of_a_real_database_are_read() -> None:
    assert parse(SAVED, ENDS_S - 1) == [*KEPT, ("dis", "away/#", 1)]


def test_subscriptions_of_an_expired_session_are_left_out() -> None:
    assert parse(SAVED, ENDS_S + 1) == KEPT


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a database"),
        (b"SQLite format 3\0", "not a database"),
        (SAVED[:22] + b"\x05" + SAVED[23:], "format 5; 6 can be read"),
        (SAVED[:-3], "breaks off"),
        (SAVED[:27], "breaks off"),
    ],
)
def test_other_data_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(RemoteError, match=says):
        parse(data, 0)


@given(st.integers(23, len(SAVED) - 1), st.binary(min_size=1, max_size=4))
def test_damage_is_refused_or_gives_other_subscriptions(at: int, damage: bytes) -> None:
    try:
        found = parse(SAVED[:at] + damage + SAVED[at + len(damage) :], 0)
    except RemoteError:
        return
    assert len(found) <= 6
    assert all(qos in {0, 1, 2} for _, _, qos in found)
