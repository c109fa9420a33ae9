import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.net import Desk

from hanse.errors import LocalError
from hanse.protocol.events import Subscribed
from hanse.protocol.identity import boot_epoch, check_federator_id, claim_delay_s, election_key, private_group
from hanse.protocol.machine import Machine
from hanse.protocol.settings import EPOCH_MAX, FEDERATOR_ID_MAX, Settings

IDS = st.integers(0, FEDERATOR_ID_MAX)


@given(st.integers(0, EPOCH_MAX - 1), st.integers(0, EPOCH_MAX), st.integers(-1, EPOCH_MAX - 1))
def test_a_boots_epoch_is_new_to_disk_and_neighbours(stored: int, wall_s: int, heard: int) -> None:
    epoch = boot_epoch(stored, wall_s, heard)
    assert epoch > stored
    assert epoch > heard
    assert wall_s <= epoch <= EPOCH_MAX


def test_the_last_epoch_is_not_exceeded() -> None:
    assert boot_epoch(EPOCH_MAX, 0) == EPOCH_MAX


@given(st.integers(0, 1_000), st.integers(0, 1_000), IDS, IDS)
def test_the_smaller_rank_wins_and_then_the_id(rank: int, other_rank: int, one: int, other: int) -> None:
    for election in ("smallest", "largest"):
        if rank < other_rank:
            assert election_key(rank, one, election) < election_key(other_rank, other, election)
    if one < other:
        assert election_key(rank, one, "smallest") < election_key(rank, other, "smallest")
        assert election_key(rank, one, "largest") > election_key(rank, other, "largest")


@given(IDS, IDS)
def test_a_better_key_waits_less_and_nobody_longer_than_half_an_interval(one: int, other: int) -> None:
    delays = [claim_delay_s(election_key(100, identity, "smallest"), 1.0) for identity in sorted((one, other))]
    assert 0 <= delays[0] <= delays[1] < 0.5


@pytest.mark.parametrize("identity", [-1, 2**32, 2**64])
def test_an_id_out_of_range_is_refused(identity: int) -> None:
    with pytest.raises(LocalError, match=f"^The federator id is {identity}; it must be between 0 and 4294967295.$"):
        check_federator_id(identity)
    with pytest.raises(LocalError):
        Machine(identity, Settings(), now=0.0, wall_s=0)


@pytest.mark.parametrize("identity", [0, 2**32 - 1])
def test_the_smallest_and_the_largest_id_are_valid(identity: int) -> None:
    check_federator_id(identity)
    assert Machine(identity, Settings(), now=0.0, wall_s=0).identity == identity


def test_a_federator_may_be_interested_in_its_own_private_group_only() -> None:
    desk = Desk(identity=5)
    desk.step(Subscribed(private_group(5)))
    desk.step(Subscribed(private_group(6)))
    assert desk.machine.is_local("$hanse/federator/5")
    assert not desk.machine.is_local("$hanse/federator/6")
    assert desk.machine.counters["ignored_closed_filter"] == 1
