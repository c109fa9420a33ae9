"""Interest from a broker's list of subscriptions, requested repeatedly.

For any broker that offers such a list. Only the difference to the last list is reported, so a quiet broker costs one
request and one comparison. Pure: lists in, reports out. `fetch` sends the request, and the shell owns the clock.

Rules:

1. New subscriptions are reported. Missing ones have ended, unless the list does not show absent clients (NATS). Then it
   is only known that the client left.
2. While the list is not available, the known subscriptions are unconfirmed (`failed`). The next list confirms all.
3. Subscriptions known from before a restart are compared with the first list as well (`restore`).
4. The federator's own sessions are not interest.
"""

from collections import Counter
from collections.abc import Iterable

from hanse.interest.listing import Listing, Row
from hanse.interest.reports import ClientLeft, Gap, Report, Session, Subscribed, Unsubscribed


class PollAdapter:
    """Adapter: lists of one broker in, reports out."""

    source = "poll"

    def __init__(self, listing: Listing, own_prefix: str) -> None:
        """Take the prefix of all client ids of the federator."""
        self.listing = listing
        self.counters: Counter[str] = Counter()
        self._own_prefix = own_prefix
        # Client to filter to QoS, from the last list.
        self._known: dict[str, dict[str, int]] = {}
        self._is_confirmed = False

    def restore(self, rows: Iterable[Row]) -> None:
        """Take the registry's subscriptions of this source from before a restart."""
        for client, wanted, qos in rows:
            self._known.setdefault(client, {})[wanted] = qos

    def listed(self, rows: Iterable[Row]) -> list[Report]:
        """Compare a complete list with the last one."""
        now: dict[str, dict[str, int]] = {}
        for client, wanted, qos in rows:
            if not client.startswith(self._own_prefix):
                held = now.setdefault(client, {})
                if wanted:
                    held[wanted] = max(qos, held.get(wanted, 0))
        reports: list[Report] = []
        for client, held in self._known.items():
            if client not in now and not self.listing.shows_absent:
                reports.append(ClientLeft(client, Session.UNKNOWN))
                continue
            kept = now.get(client, {})
            reports += [Unsubscribed(client, wanted) for wanted in held if wanted not in kept]
        for client, held in now.items():
            before = self._known.get(client, {}) if self._is_confirmed else {}
            reports += [Subscribed(client, wanted, qos) for wanted, qos in held.items() if before.get(wanted) != qos]
        self._known = now
        self._is_confirmed = True
        self.counters["lists"] += 1
        return reports

    def failed(self) -> list[Report]:
        """Report a gap, because no list was available."""
        self.counters["lists_failed"] += 1
        if not self._is_confirmed:
            return []
        self._is_confirmed = False
        return [Gap()]
