"""Notices of the protocol for people: counted by name, and logged with their details.

Rules:

1. Warnings are logged one by one.
2. Of other notices that differ only in their group, the first is logged at once. Those that follow within a while make
   one line with their number: a client that subscribes to thousands of filters must not fill the log.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hanse.protocol.effects import Emit

# Notices that need an action of the operator.
_WARNINGS = frozenset({"identity_conflict", "limit_reached"})
TOGETHER_S = 1.0
_EXAMPLES_MAX = 3
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Following:
    """Notices that followed one that was logged."""

    count: int
    groups: list[str]


class Notices:
    """Notices of one federator; `counts` has the number of each name.

    Args:
        later: calls a function after some seconds.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        self.counts: Counter[str] = Counter()
        self._later = later
        # By everything but the group.
        self._following: dict[tuple[str, str, int, int], _Following] = {}

    def take(self, event: Emit) -> None:
        """Count and log a notice."""
        self.counts[event.name] += 1
        if event.name in _WARNINGS:
            _log.warning("%s", _line(event, event.group))
            return
        if not _log.isEnabledFor(logging.INFO):
            return
        if not event.group:
            _log.info("%s", _line(event, ""))
            return
        kind = (event.name, event.detail, event.core, event.neighbour)
        following = self._following.get(kind)
        if following is None:
            self._following[kind] = _Following(0, [])
            self._later(TOGETHER_S, lambda: self._tell_following(event, kind))
            _log.info("%s", _line(event, event.group))
            return
        following.count += 1
        if len(following.groups) < _EXAMPLES_MAX:
            following.groups.append(event.group)

    def _tell_following(self, event: Emit, kind: tuple[str, str, int, int]) -> None:
        following = self._following.pop(kind)
        if following.count <= len(following.groups):
            for group in following.groups:
                _log.info("%s", _line(event, group))
            return
        shown = ", ".join(following.groups)
        _log.info("%s for %d more groups: %s, ...", _line(event, ""), following.count, shown)


def _line(event: Emit, group: str) -> str:
    words = {"group": group, "detail": event.detail}
    numbers = {"core": event.core, "neighbour": event.neighbour}
    shown = [f"{key}={value}" for key, value in words.items() if value]
    shown += [f"{key}={value}" for key, value in numbers.items() if value >= 0]
    return " ".join([event.name, *shown])
