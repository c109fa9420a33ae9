"""What passed over a connection, and what did not, by reason. Plain numbers: whoever shows them reads them."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """They only grow, over reconnects too."""

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
    # Publications that a 3.1.1 peer got without their properties.
    properties_lost: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, count: int = 1) -> None:
        """A publication that was not passed on."""
        self.drops[reason] = self.drops.get(reason, 0) + count

    def refuse(self, reason: str) -> None:
        """A peer, or a packet of its, that was turned away."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
