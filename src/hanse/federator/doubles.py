"""Detection of two federators with one id, by the processes that their links come from.

Each process sends a token of its own with every link. A federator that restarts comes with another token while its old
link may still be up. That link is replaced without suspicion. A replaced process must be dead, so if its token appears
again, two processes use one id. From then on, the process that was first is refused, and the log reports it.
"""

import secrets
from collections.abc import Mapping

# Name of the property in the handshake.
PROCESS = "process"
THIS_PROCESS = secrets.token_hex(8)
# Replaced processes to remember. Beyond it, the oldest are forgotten.
REPLACED_MAX = 1_000


class Doubles:
    """One federator's record of its neighbours' processes."""

    def __init__(self) -> None:
        self._replaced: dict[tuple[int, str], None] = {}

    def replace(self, identity: int, former: Mapping[str, str], newer: Mapping[str, str]) -> None:
        """Note that a neighbour's link is replaced by a newer one."""
        token = former.get(PROCESS, "")
        if token and token != newer.get(PROCESS):
            self._replaced[identity, token] = None
            if len(self._replaced) > REPLACED_MAX:
                del self._replaced[next(iter(self._replaced))]

    def refusal(self, identity: int, peer: Mapping[str, str]) -> str | None:
        """Return why a neighbour gets no link: its process was replaced, but is alive. None for all others."""
        if (identity, peer.get(PROCESS, "")) not in self._replaced:
            return None
        return f"federator id {identity} is in use by another process; give one of the two another --id"
