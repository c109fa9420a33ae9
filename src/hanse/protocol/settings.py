"""Every number that bounds or paces the protocol, in one place.

`docs/protocol.md` has the same table with the reasons. A test compares the two.
"""

from dataclasses import dataclass, field

from hanse.errors import LocalError
from hanse.protocol.grouping import Grouping

FEDERATOR_ID_MAX = 2**32 - 1
EPOCH_MAX = 2**48 - 1
SEQUENCE_MAX = 2**62 - 1
RANK_DEFAULT = 100
RANK_MAX = 1_000

MANAGEMENT_GROUP = "$hanse/management"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an operator. Durations are seconds, sizes bytes."""

    # A. Shorter finds losses sooner and costs one frame per link and round. Babel's default hello interval is 4 s.
    announcement_interval_s: float = 1.0
    # K. Rounds that may be missed before an entry is dropped. OSPF's dead interval is 4 hellos, Babel's 3.5.
    expiry_factor: int = 3
    # Parents that a member keeps on shortest paths to a core. 1 saves traffic; more survive more losses without a gap.
    redundancy: int = 2
    # After a triggered frame, later changes for that neighbour wait this long and travel together.
    coalescing_s: float = 0.005
    # Time for which the memberships of a neighbour that was lost without a goodbye are kept.
    absence_s: float = 3600.0
    # Size of the QoS 0 publications that may wait for a route to their core.
    parked_bytes_max: int = 1 << 20
    # Ids are remembered this long after they were last seen, and a later duplicate is refused. So may be a publication
    # that waited in an outbox for longer: twice `absence_s` covers one absence and the way that follows it.
    seen_s: float = 7200.0
    seen_ids_max: int = 1 << 24

    # B. How long a client may take to repeat its interest. Together with (K + 2)·A, how long publications of QoS 1 and
    # 2 are retained for neighbours that a new mesh edge shows to have missed them.
    beacon_interval_s: float = 1.0
    retention_bytes_max: int = 64 << 20
    # Unacknowledged amount that one destination may have under way. More waits behind it. 16 MiB is 160 ms at 100 MB/s;
    # with 4 MiB, 10 KiB publications reached 0.77 of a bridge's rate instead of 0.89.
    window_bytes: int = 16 << 20
    # Publications without a route go to the outbox after the first time, unacknowledged ones after the second.
    outbox_after_s: float = 0.1
    stuck_after_s: float = 1.0
    # A publication without an acknowledgement is sent again after K·A times this. Links that lose nothing while they
    # are up need it only against mistakes: with 1, a kill amid 20,000 messages had 66,000 sent again over TCP.
    retransmission_factor: int = 1

    groups_max: int = 1_000_000
    cores_max: int = 100_000
    neighbours_max: int = 256
    message_bytes_max: int = 16 << 20
    # A control frame carries at most this much of a set or of claims. The rest follows on request.
    items_per_frame_max: int = 1_000
    # Changes of a claim set that are remembered for neighbours that missed some. A neighbour that missed more fetches
    # the whole set.
    claim_log_max: int = 4_096

    grouping: Grouping = field(default_factory=lambda: Grouping.parse("filter"))
    # Whether the "smallest" or the "largest" id wins among equal ranks. The 2020 paper leaves the choice.
    election: str = "smallest"
    # An outsider sends to "all_parents" (2022) or "one_parent" (2020).
    outsider: str = "all_parents"
    # One announcement "per_core", or "per_group" as in the papers.
    announcements: str = "per_core"

    def __post_init__(self) -> None:
        _one_of("election", self.election, ("smallest", "largest"))
        _one_of("outsider", self.outsider, ("all_parents", "one_parent"))
        _one_of("announcements", self.announcements, ("per_core", "per_group"))
        for name, smallest in (
            ("announcement_interval_s", 0.001),
            ("expiry_factor", 2),
            ("redundancy", 1),
            ("coalescing_s", 0.0),
            ("absence_s", 0.0),
            ("beacon_interval_s", 0.0),
            ("retention_bytes_max", 0),
            ("window_bytes", 1),
            ("outbox_after_s", 0.0),
            ("stuck_after_s", 0.0),
            ("retransmission_factor", 1),
            ("groups_max", 1),
            ("cores_max", 1),
            ("neighbours_max", 1),
            ("items_per_frame_max", 1),
            ("claim_log_max", 1),
        ):
            value = getattr(self, name)
            if value < smallest:
                raise LocalError(f"{name} is {value}; it must be at least {smallest}.")

    @property
    def expiry_s(self) -> float:
        """K·A: the time without a refresh after which something counts as gone."""
        return self.expiry_factor * self.announcement_interval_s

    @property
    def retention_s(self) -> float:
        """(K + 2)·A + B: the time it takes to notice a loss and repair the mesh."""
        return (self.expiry_factor + 2) * self.announcement_interval_s + self.beacon_interval_s

    @property
    def retention_s_max(self) -> float:
        """10·K·A: the time that the meshes of several cores of one group have to find each other."""
        return 10 * self.expiry_s

    @property
    def retransmission_s(self) -> float:
        """Time after which an unacknowledged publication is sent again over a link that is up."""
        return self.retransmission_factor * self.expiry_s

    @property
    def asking_s(self) -> float:
        """Time after which an unacknowledged summary is sent again.

        It is short because publications are not kept for long.
        """
        return self.retransmission_factor * self.announcement_interval_s


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise LocalError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.")
