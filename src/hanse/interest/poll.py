"""Interest from a broker's list of subscriptions, asked for again and again.

For any broker that offers such a list. Only the difference from the last one is reported, so a quiet broker costs a
request and a comparison. Pure: lists in, reports out; `fetch` asks, the shell owns the clock.

Rules:
1. What is new is reported; what is gone has ended, unless the list does not show clients that are away (NATS): of such
   a client it is only known that it left.
2. While the list cannot be had, what was known is unconfirmed (`failed`); the first list after that confirms all of it.
3. What was known before a restart is compared with the first list too (`restore`).
4. The federator's own sessions are no interest.
"""

from collections import Counter
from collections.abc import Iterable

from hanse.interest.listing import Listing, Row
from hanse.interest.reports import ClientLeft, Gap, Report, Session, Subscribed, Unsubscribed


class PollAdapter:
    """Lists of one broker in, reports out."""

    source = "poll"

    def __init__(self, listing: Listing, own_prefix: str) -> None:
        """`own_prefix`: what every client id of the federator begins with."""
        self.listing = listing
        self.counters: Counter[str] = Counter()
        self._own_prefix = own_prefix
        # Client to filter to QoS, as of the last list.
        self._known: dict[str, dict[str, int]] = {}
        self._is_confirmed = False

    def restore(self, rows: Iterable[Row]) -> None:
        """What the registry holds of this source from before a restart."""
        for client, wanted, qos in rows:
            self._known.setdefault(client, {})[wanted] = qos

    def listed(self, rows: Iterable[Row]) -> list[Report]:
        """A whole list came."""
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
        """No list was to be had."""
        self.counters["lists_failed"] += 1
        if not self._is_confirmed:
            return []
        self._is_confirmed = False
        return [Gap()]
