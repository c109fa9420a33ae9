"""Log lines and counts of links that were refused or failed.

Rules:

1. A refusal at the link listener is a security event: one line with the peer's address, and a count by event.
2. A stranger causes at most 20 lines in ten seconds; the others are counted in the next line.
3. An id that another process uses is such a line when it is first refused, and then every `REPEAT_S` while the link of
   that process lasts.
4. A link that cannot be dialled is a warning when its reason changes, and then every `REPEAT_S`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

from hanse import logs
from hanse.errors import HanseError

REPEAT_S = 300.0
# Refused TLS and certificates; ids that are no neighbour's or this federator's own; ids that the manager or the version
# does not admit; ids that two processes use. They are counted from 0 on, so that a first one is seen as a change.
EVENTS = (
    "tls_refused",
    "tls_unknown_authority",
    "tls_wrong_purpose",
    "link_id_invalid",
    "link_refused",
    "link_id_in_use",
)
_log = logging.getLogger(__name__)


class LinkEvents:
    """The events of one federator's links; `counts` holds the security events."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(EVENTS, 0))
        self._clock_s = clock_s
        self._limit = logs.LineLimit()
        self._in_use: dict[str, logs.RepeatLimit] = {}  # by id; each has a link
        self._failures: dict[str, logs.RepeatLimit] = {}  # by URL

    def refused(self, event: str, address: str, reason: str, *, claimed_id: str | None = None) -> None:
        """Note a peer that got no link."""
        self.counts[event] += 1
        if event == "link_id_in_use" and claimed_id is not None:
            again = self._in_use.setdefault(claimed_id, logs.RepeatLimit(REPEAT_S)).take(reason, self._clock_s())
            if again is None:
                return
            reason += again
        more = self._limit.take(self._clock_s())
        if more is not None:
            fields: dict[str, object] = {"address": address, "reason": reason}
            if claimed_id is not None:
                fields["claimed_id"] = claimed_id[:40]
            logs.note_security(event, "a peer got no link", level=logging.WARNING, **fields, **more)

    def ended(self, identity: int) -> None:
        """Note that the link of a neighbour has ended, so that a later refusal of its id is news."""
        self._in_use.pop(str(identity), None)

    def failed(self, url: str, error: HanseError) -> None:
        """Note an attempt to dial a neighbour that failed."""
        limit = self._failures.setdefault(url, logs.RepeatLimit(REPEAT_S))
        more = limit.take(str(error), self._clock_s())
        if more is not None:
            _log.warning("link to %s failed: %s%s", url, error, more)

    def succeeded(self, url: str) -> None:
        """Note that a neighbour is not dialled any more, or its link is up."""
        self._failures.pop(url, None)
