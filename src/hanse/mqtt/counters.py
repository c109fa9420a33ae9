"""Counts of packets that passed over a connection, and of those that did not, by reason. Plain numbers."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Counters that only grow, also over reconnects."""

    bytes_in: int = 0
    bytes_out: int = 0
    reads: int = 0
    writes: int = 0
    packets_in: int = 0
    publications_in: int = 0
    publications_out: int = 0
    acknowledged: int = 0
    retransmitted: int = 0
    connects: int = 0
    disconnects: int = 0
    # Publications sent to a 3.1.1 peer without their properties.
    properties_lost: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count publications that were not passed on."""
        self.drops[reason] = self.drops.get(reason, 0) + count

    def refuse(self, reason: str) -> None:
        """Count a peer, or one of its packets, that was refused."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
