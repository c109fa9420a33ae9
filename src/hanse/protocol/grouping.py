"""The policy that maps a subscription filter to the group whose mesh serves it.

The rules:

- A group always covers the filters that it stands for, so no policy loses a matching publication. A wider group costs
  traffic that nobody asked for. A narrower one costs claims and memberships.
- `#` does not match topics that begin with `$` (MQTT 5, 4.7.2), so a filter that begins with `$` is never mapped to it.
- A group is a plain, valid filter. The share name of a shared subscription concerns the host broker only.
"""

from dataclasses import dataclass
from typing import Literal

from hanse.errors import LocalError
from hanse.protocol.topics import TOPIC_BYTES_MAX, split_share

# More levels would tell apart filters of which no broker has few enough to gain by it. `filter` serves those.
PREFIX_LEVELS_MAX = 32

_PREFIXES = {f"prefix:{levels}": levels for levels in range(1, PREFIX_LEVELS_MAX + 1)}


@dataclass(frozen=True, slots=True)
class Grouping:
    """Grouping policy.

    `filter` makes each filter a group. `prefix` cuts filters after so many levels, so that `a/b/c` and `a/b/d/e` share
    the group `a/b/#` at two. `single` puts all into `#`.

    Attributes:
        kind: Name of the policy.
        prefix_levels: Levels that are kept, from 1 to 32 with `prefix`, else 0.
    """

    kind: Literal["filter", "prefix", "single"] = "filter"
    prefix_levels: int = 0

    def __post_init__(self) -> None:
        if str(self) not in ("filter", "single") and str(self) not in _PREFIXES:
            raise LocalError(_refusal(str(self)))
        if self.kind != "prefix" and self.prefix_levels != 0:
            raise LocalError(
                f"The grouping {self.kind} was given {self.prefix_levels} prefix levels; only prefix takes any."
            )

    @classmethod
    def parse(cls, text: str) -> "Grouping":
        """Return the policy that `text` names: `filter`, `prefix:N` with N from 1 to 32, or `single`.

        Raises:
            LocalError: If it names none.
        """
        if text == "filter":
            return cls("filter")
        if text == "single":
            return cls("single")
        if text in _PREFIXES:
            return cls("prefix", _PREFIXES[text])
        raise LocalError(_refusal(text))

    def group_of(self, filter_: str) -> str:
        """Return the group that serves a valid filter.

        For a shared subscription, that is the group of the filter behind it.
        """
        _, behind = split_share(filter_)
        if self.kind == "prefix":
            return self._cut(behind)
        return behind if self.kind == "filter" or behind.startswith("$") else "#"

    def __str__(self) -> str:
        return f"prefix:{self.prefix_levels}" if self.kind == "prefix" else self.kind

    def _cut(self, filter_: str) -> str:
        levels = filter_.split("/")
        if len(levels) <= self.prefix_levels:
            return filter_
        group = "/".join([*levels[: self.prefix_levels], "#"])
        # `a/` becomes `a/#`, a byte longer, which may be the one byte that MQTT cannot carry.
        if len(group) > len(filter_) and len(group.encode()) > TOPIC_BYTES_MAX:
            return filter_
        return group


def _refusal(text: str) -> str:
    return (
        f"The grouping {text[:60]!a} is unknown; expected filter, single, or prefix:N with N from 1 to "
        f"{PREFIX_LEVELS_MAX}."
    )
