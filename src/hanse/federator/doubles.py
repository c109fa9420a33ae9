"""Two federators with one id: found out by the processes that their links come from.

Each process tells a token of its own with every link. A federator that restarts comes with another token while its old
link may still stand: that link is replaced, and nobody is suspected. But a process that was replaced is dead, so if its
token comes again, two processes use one id: the one that was there first is refused from then on, and the operator
hears of it.
"""

import secrets
from collections.abc import Mapping

# The word of the handshake.
PROCESS = "process"
THIS_PROCESS = secrets.token_hex(8)
# Processes remembered as replaced; beyond, the oldest are forgotten.
REPLACED_MAX = 1_000


class Doubles:
    """What one federator knows of its neighbours' processes."""

    def __init__(self) -> None:
        self._replaced: dict[tuple[int, str], None] = {}

    def replace(self, identity: int, former: Mapping[str, str], newer: Mapping[str, str]) -> None:
        """A neighbour's link that stood gives way to a newer one."""
        token = former.get(PROCESS, "")
        if token and token != newer.get(PROCESS):
            self._replaced[identity, token] = None
            if len(self._replaced) > REPLACED_MAX:
                del self._replaced[next(iter(self._replaced))]

    def refusal(self, identity: int, peer: Mapping[str, str]) -> str | None:
        """Why a neighbour gets no link: its process was replaced, and is alive. None for all others."""
        if (identity, peer.get(PROCESS, "")) not in self._replaced:
            return None
        return f"federator id {identity} is in use by another process; give one of the two another --id"
