"""What the protocol wants people to know: counted by name, and logged with what it is about."""

import logging
from collections import Counter

from hanse.protocol.effects import Emit

# An operator has to act on these.
_WARNINGS = frozenset({"identity_conflict", "limit_reached"})
_log = logging.getLogger(__name__)


class Notices:
    """Those of one federator; `counts` has how many of each name there were."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def take(self, event: Emit) -> None:
        """Something happened."""
        self.counts[event.name] += 1
        if _log.isEnabledFor(logging.INFO):
            words = {"group": event.group, "detail": event.detail}
            numbers = {"core": event.core, "neighbour": event.neighbour}
            shown = [f"{key}={value}" for key, value in words.items() if value]
            shown += [f"{key}={value}" for key, value in numbers.items() if value >= 0]
            level = logging.WARNING if event.name in _WARNINGS else logging.INFO
            _log.log(level, "%s %s", event.name, " ".join(shown))
