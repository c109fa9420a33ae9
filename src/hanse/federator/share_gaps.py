"""Choice of the one gateway that fills the gap of a share group whose serving broker was lost, once.

Request `share_gap` of gateways (`hanse.federator.gateways`): `group` is the shared subscription as its members write
it, `lost` the id of the broker that served it. The first one to ask gets `granted: true`; others within `HELD_S` do
not. Gateways ask the federator of the new serving broker, so all of them ask the same one.
"""

import time
from collections import Counter
from typing import Final

from hanse.errors import RemoteError
from hanse.federator.gateways import GatewayPeer, Gateways
from hanse.request_channel import Answer, Request

# Gateways notice the loss of a broker within seconds of each other. Longer hides a second loss of the same broker.
HELD_S: Final = 20.0
GAPS_MAX: Final = 10_000
TEXT_MAX: Final = 70_000


class ShareGaps:
    """Grants that were given lately.

    Args:
        gateways: whose requests are answered.
        counters: to count into: `share_gaps`.
    """

    def __init__(self, gateways: Gateways, counters: Counter[str]) -> None:
        self._counters = counters
        # Group and lost broker, to when the grant was given; oldest first.
        self._granted: dict[tuple[str, str], float] = {}
        gateways.offer("share_gap", self._share_gap)

    async def _share_gap(self, _peer: GatewayPeer, request: Request) -> Answer:
        group, lost = request.fields.get("group"), request.fields.get("lost")
        if not isinstance(group, str) or not isinstance(lost, str) or len(group) + len(lost) > TEXT_MAX:
            raise RemoteError("A gateway's share_gap has no group and lost broker.")
        return Answer({"granted": self.grant(group, lost, time.monotonic())})

    def grant(self, group: str, lost: str, now: float) -> bool:
        """Return whether the one who asks fills this gap."""
        while self._granted:
            oldest = next(iter(self._granted))
            if now - self._granted[oldest] <= HELD_S and len(self._granted) < GAPS_MAX:
                break
            del self._granted[oldest]
        if (group, lost) in self._granted:
            return False
        self._granted[group, lost] = now
        self._counters["share_gaps"] += 1
        return True
