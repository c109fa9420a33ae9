"""The groups that each core claims: one versioned set per core, told to all federators as deltas.

The rules (docs/protocol.md R18 to R20):

- Only the core changes its set, and each change is one version. A delta fits if it begins where the receiver is.
- A federator that is behind asks. It gets the changes it lacks if they are remembered, else the whole set in parts.
- The old set holds until the set of a new epoch is whole, so a core that restarts does not lose its groups meanwhile.
"""

from hanse.protocol.messages import ClaimChange, ClaimDelta, ClaimPart


class ClaimSet:
    """The claims of one core, as known here, or our own."""

    __slots__ = ("_log", "_log_max", "_snapshot", "_snapshot_version", "_whole", "core", "epoch", "groups", "version")

    def __init__(self, core: int, epoch: int, log_max: int) -> None:
        self.core = core
        self.epoch = epoch
        self.version = 0
        self.groups: dict[str, ClaimChange] = {}
        # The newest changes: between `log_max` and twice as many.
        self._log: list[ClaimChange] = []
        self._log_max = log_max
        # The whole set at one version, kept while neighbours fetch it part by part.
        self._snapshot: tuple[ClaimChange, ...] = ()
        self._snapshot_version = -1
        # The whole set as the single part that was told last. Every neighbour is told the same.
        self._whole: ClaimPart | None = None

    def change(self, change: ClaimChange) -> None:
        """Make the next version: one claim made, altered or withdrawn."""
        self.version += 1
        self._log.append(change)
        if len(self._log) > 2 * self._log_max:
            del self._log[: self._log_max]
        if change.rank is None:
            self.groups.pop(change.group, None)
        else:
            self.groups[change.group] = change

    def reset_epoch(self, epoch: int) -> None:
        """Begin a new epoch of our own set and keep its contents."""
        self.epoch = epoch
        self.version += 1
        self._log.clear()

    def replace(self, epoch: int, version: int, claims: tuple[ClaimChange, ...]) -> set[str]:
        """Replace the whole set and return the groups that differ."""
        groups = {claim.group: claim for claim in claims}
        before = self.groups
        differing = set(groups)
        if before:
            differing = {group for group in before.keys() | groups.keys() if before.get(group) != groups.get(group)}
        self.groups, self.epoch, self.version = groups, epoch, version
        self._log.clear()
        return differing

    def pass_on(self, whole: ClaimPart) -> None:
        """Remember that the set equals this part, so that neighbours can be sent the part as it came."""
        self._whole = whole

    def delta_since(self, version: int, changes_max: int) -> ClaimDelta | None:
        """Return the changes after `version`, or None if there are none or they are no longer remembered."""
        behind = self.version - version
        if not 0 < behind <= len(self._log):
            return None
        first = len(self._log) - behind
        return ClaimDelta(self.core, self.epoch, version, tuple(self._log[first : first + changes_max]))

    def part(self, snapshot_version: int, offset: int, claims_max: int) -> ClaimPart:
        """Return the part at `offset` of the snapshot that the asker began with, or the first part of a new one."""
        whole = self._whole
        if (
            snapshot_version < 0
            and whole is not None
            and (whole.epoch, whole.version) == (self.epoch, self.version)
            and whole.total <= claims_max
        ):
            return whole
        if snapshot_version < 0 or snapshot_version != self._snapshot_version or offset > len(self._snapshot):
            if snapshot_version != self.version:
                offset = 0
            self._snapshot = tuple(self.groups[group] for group in sorted(self.groups))
            self._snapshot_version = self.version
        claims = self._snapshot[offset : offset + claims_max]
        total = len(self._snapshot)
        part = ClaimPart(self.core, self.epoch, self._snapshot_version, offset, total, claims)
        if offset + len(claims) == total:
            self._snapshot, self._snapshot_version = (), -1
        self._whole = part if len(claims) == total else None
        return part


class Fetch:
    """A claim set that is being fetched from a neighbour, part by part."""

    __slots__ = ("asked_at", "claims", "epoch", "neighbour", "version")

    def __init__(self, neighbour: int, epoch: int, asked_at: float) -> None:
        self.neighbour = neighbour
        self.epoch = epoch
        self.asked_at = asked_at
        # The snapshot's version; -1 until its first part has come.
        self.version = -1
        self.claims: list[ClaimChange] = []

    def accept(self, part: ClaimPart) -> bool:
        """Add the next part. Return True when the set is whole."""
        if part.offset == 0:
            self.version, self.epoch = part.version, part.epoch
            self.claims = []
        if (part.version, part.epoch, part.offset) != (self.version, self.epoch, len(self.claims)):
            return False
        self.claims.extend(part.claims)
        return len(self.claims) == part.total
