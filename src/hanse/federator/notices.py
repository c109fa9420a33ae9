"""Notices of the protocol for people: counted by name, and logged with their details."""

import logging
from collections import Counter

from hanse.protocol.effects import Emit

# Notices that need an action of the operator.
_WARNINGS = frozenset({"identity_conflict", "limit_reached"})
_log = logging.getLogger(__name__)


class Notices:
    """Notices of one federator; `counts` has the number of each name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def take(self, event: Emit) -> None:
        """Count and log a notice."""
        self.counts[event.name] += 1
        if _log.isEnabledFor(logging.INFO):
            words = {"group": event.group, "detail": event.detail}
            numbers = {"core": event.core, "neighbour": event.neighbour}
            shown = [f"{key}={value}" for key, value in words.items() if value]
            shown += [f"{key}={value}" for key, value in numbers.items() if value >= 0]
            level = logging.WARNING if event.name in _WARNINGS else logging.INFO
            _log.log(level, "%s %s", event.name, " ".join(shown))
