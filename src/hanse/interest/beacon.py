"""Interest from beacons, as in the papers of 2022 and 2023: subscribers publish to `federator/beacon/<topic>`.

A beacon names no client and no QoS. All beacons for a topic are one subscriber here, at QoS 2 so that no publication is
lowered. The interest ends K beacon intervals after the last beacon. The topic of a publication holds no wildcard, so a
beacon cannot request one. A retained beacon is refused, because it would report a subscriber for ever.
"""

from collections import Counter

from hanse.errors import LocalError
from hanse.interest.reports import Report, Subscribed

PREFIX = "federator/beacon/"
CLIENT = "(beacons)"


class BeaconAdapter:
    """Adapter: beacons in, reports with a TTL out."""

    source = "beacon"

    def __init__(self, beacon_interval_s: float = 2.0, expiry_factor: int = 3, qos: int = 2) -> None:
        """Take the interval of the beacons, and the protocol's K as `expiry_factor`."""
        if beacon_interval_s <= 0 or expiry_factor < 1:
            raise LocalError(
                f"Beacon interval {beacon_interval_s} s and expiry factor {expiry_factor} were given; the interval "
                "must be above 0 and the factor at least 1."
            )
        self.counters: Counter[str] = Counter()
        self._ttl_s = beacon_interval_s * expiry_factor
        self._qos = qos

    def topics(self) -> list[str]:
        """Return the topics that the host session must subscribe to."""
        return [f"{PREFIX}#"]

    def message(self, topic: str, payload: bytes, *, is_retained: bool = False) -> list[Report]:  # noqa: ARG002
        """Handle one beacon. Its payload has no meaning, as in the papers."""
        wanted = topic.removeprefix(PREFIX)
        if wanted == topic or not wanted:
            self.counters["messages_of_no_concern"] += 1
            return []
        if is_retained:
            self.counters["beacons_retained"] += 1
            return []
        return [Subscribed(CLIENT, wanted, self._qos, self._ttl_s)]

    def lost(self) -> list[Report]:
        """Return no reports: subscribers that remain send new beacons, and other interest expires."""
        return []
