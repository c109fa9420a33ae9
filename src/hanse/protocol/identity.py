"""The identity of a federator over time: epochs, and the key by which cores are elected."""

import math

from hanse.errors import LocalError
from hanse.protocol.settings import EPOCH_MAX, FEDERATOR_ID_MAX

# An election key. The smaller one wins.
ElectionKey = tuple[int, int]


def check_federator_id(identity: int) -> None:
    """Raise LocalError for an id that no federator can have."""
    if not 0 <= identity <= FEDERATOR_ID_MAX:
        raise LocalError(f"The federator id is {identity}; it must be between 0 and {FEDERATOR_ID_MAX}.")


def private_group(identity: int) -> str:
    """Return the group in which only this federator may be interested. Others reach it alone by this group."""
    return f"$hanse/federator/{identity}"


def boot_epoch(stored: int, wall_s: int, heard: int = -1) -> int:
    """Return the epoch of a new boot, larger than any that this federator can have used (R1).

    Any one of the three sources is enough: the disk may be lost, the clock may be wrong, the neighbours may have
    restarted.
    """
    return min(max(stored + 1, wall_s, heard + 1), EPOCH_MAX)


def election_key(rank: int, identity: int, election: str) -> ElectionKey:
    """Return the key of a claim. The smallest wins (R8)."""
    return (rank, identity if election == "smallest" else FEDERATOR_ID_MAX - identity)


def claim_delay_s(key: ElectionKey, interval_s: float) -> float:
    """Return how long a federator waits before it claims after a lost core: up to A/2, least for the winner (R11)."""
    return interval_s / 2 * (1 - 1 / (1 + math.log2(1 + key[1])))
