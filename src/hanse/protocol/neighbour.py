"""The state of one neighbour: its link, the sets that the link carries, and what waits to be sent."""

from hanse.protocol.linkset import MirroredSet, OwnedSet
from hanse.protocol.messages import ClaimPart, ClaimRequest, HandOver, Solicit


class Neighbour:
    """One neighbour. It outlives its link: a neighbour that was lost without a goodbye is *absent*, not gone (R38)."""

    __slots__ = (
        "absent_since",
        "claim_parts",
        "claim_requests",
        "claim_resends",
        "connected",
        "connecting",
        "echoed_at",
        "echoed_number",
        "epoch",
        "hand_overs",
        "has_spoken",
        "has_stale_steps",
        "heard_at",
        "identity",
        "is_up",
        "is_usable",
        "joined",
        "joining",
        "needs_full",
        "number",
        "solicits",
        "told",
        "up_at",
    )

    def __init__(self, identity: int, generation: int = 1) -> None:
        self.identity = identity
        self.is_up = False
        # Within K announcement intervals we have heard it, and it has heard us (R7).
        self.is_usable = False
        # Its first frame since the link came up has been handled.
        self.has_spoken = False
        self.epoch = 0
        self.number = 0
        self.up_at = self.heard_at = self.echoed_at = 0.0
        self.echoed_number = 0
        self.absent_since: float | None = None

        # The neighbour's memberships with us, and ours with it.
        self.joined = MirroredSet()
        self.joining = OwnedSet(generation)
        # Which of ours it says reach their core, and which of its memberships we say reach theirs.
        self.connected = MirroredSet()
        self.connecting = OwnedSet(generation)
        # Steps that were already unacknowledged a round ago are sent again.
        self.has_stale_steps = False

        # Core to (epoch, version): the claims that the neighbour has, as far as we know.
        self.told: dict[int, tuple[int, int]] = {}

        # Contents of the next frame.
        self.needs_full = False
        self.claim_requests: list[ClaimRequest] = []
        self.claim_parts: list[ClaimPart] = []
        # Core to the version from which it asked for changes again.
        self.claim_resends: dict[int, int] = {}
        self.solicits: dict[int, Solicit] = {}
        self.hand_overs: list[HandOver] = []

    def come_up(self, now: float) -> None:
        """Mark the link as up. The neighbour counts as heard and as hearing us until it has had time to speak."""
        self.is_up = self.is_usable = self.needs_full = True
        self.has_spoken = False
        self.absent_since = None
        self.up_at = self.heard_at = self.echoed_at = now
        self.joining.rewind()
        self.connecting.rewind()

    def go_down(self, now: float) -> None:
        """Mark the link as down, and drop what was about to be sent."""
        self.is_up = self.is_usable = self.has_spoken = self.needs_full = False
        self.absent_since = now
        self.drop_pending()

    def told_version(self, core: int, epoch: int) -> int:
        """Return the version of a core's claims that this neighbour is known or believed to have."""
        told_epoch, version = self.told.get(core, (0, 0))
        return version if told_epoch == epoch else 0

    def note_told(self, core: int, epoch: int, version: int) -> None:
        """Note that the neighbour named this version, or was sent it."""
        if (epoch, version) > self.told.get(core, (0, 0)):
            self.told[core] = (epoch, version)

    def drop_pending(self) -> None:
        """Drop what the next frame would have carried."""
        self.claim_requests.clear()
        self.claim_parts.clear()
        self.claim_resends.clear()
        self.solicits.clear()
        self.hand_overs.clear()

    @property
    def has_pending(self) -> bool:
        """True if something waits that is for this neighbour alone."""
        return bool(
            self.needs_full
            or self.joining.has_unsent
            or self.connecting.has_unsent
            or self.claim_requests
            or self.claim_parts
            or self.claim_resends
            or self.solicits
            or self.hand_overs
        )
