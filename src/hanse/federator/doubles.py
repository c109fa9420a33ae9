"""Detection of two federators with one id, by the processes that their links come from.

Each process sends a token of its own with every link.

Rules:

1. The process whose link is open keeps it. Another process with the same id is refused until that link has ended. A
   neighbour that restarts is refused only while its former connection is not known to be dead: until the keep-alive
   ends it.
2. A refusal is a conflict when the open link has delivered frames after the first refusal: both processes run then.
   That is reported once per link.
3. Nothing is remembered once the link has ended, so the process that dials next gets the place.
"""

import secrets
from collections.abc import Mapping

# Name of the property in the handshake.
PROCESS = "process"
THIS_PROCESS = secrets.token_hex(8)


class Doubles:
    """One federator's record of processes that were refused because another one has the link of their id."""

    def __init__(self) -> None:
        # By id: number of reads of the open link at the first refusal.
        self._refused: dict[int, int] = {}
        self._reported: set[int] = set()

    def end(self, identity: int) -> None:
        """Note that a neighbour's link has ended."""
        self._refused.pop(identity, None)
        self._reported.discard(identity)

    def refusal(self, identity: int, present: Mapping[str, str], newer: Mapping[str, str], reads: int) -> str | None:
        """Return why a process gets no link: another one with its id has an open link. None if it is the same one.

        Args:
            identity: id of both.
            present: handshake properties of the open link.
            newer: handshake properties of the process that wants a link.
            reads: how often frames were read from the open link so far.
        """
        if present.get(PROCESS, "") == newer.get(PROCESS, ""):
            return None
        self._refused.setdefault(identity, reads)
        return (
            f"federator id {identity} is linked from another process, and gets a new link when that one ends; "
            "if both run, give one of the two another --id"
        )

    def is_new_conflict(self, identity: int, reads: int) -> bool:
        """Apply rule 2: return whether the open link was alive after the first refusal, once."""
        if identity in self._reported or reads <= self._refused.get(identity, reads):
            return False
        self._reported.add(identity)
        return True
