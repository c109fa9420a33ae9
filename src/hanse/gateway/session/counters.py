"""Counters of all sessions of one gateway worker."""

from hanse.mqtt.refusal import Refusal


class Counters:
    """Plain numbers that only grow. The metrics page reads them.

    Attributes:
        from_clients: publications that clients sent.
        to_clients: publications that clients received.
        drops: publications that were not passed on, by reason.
        closes: client connections that a session ended, by reason.
        moves: actions of failovers, by name: `resent`, `replayed`, `removed`, `in_doubt`, ...
    """

    def __init__(self) -> None:
        self.from_clients = 0
        self.to_clients = 0
        self.drops: dict[str, int] = {}
        self.closes: dict[str, int] = {}
        self.moves: dict[str, int] = {}

    def drop(self, reason: str, count: int = 1) -> None:
        """Count publications that were not passed on."""
        self.drops[reason] = self.drops.get(reason, 0) + count

    def close(self, reason: str) -> None:
        """Count a client connection that a session ended."""
        self.closes[reason] = self.closes.get(reason, 0) + 1

    def refuse(self, refusal: Refusal) -> None:
        """Count a client connection that broke a rule."""
        self.close(refusal.counted_as)

    def move(self, name: str, count: int = 1) -> None:
        """Count something that a move to another broker did."""
        if count:
            self.moves[name] = self.moves.get(name, 0) + count
