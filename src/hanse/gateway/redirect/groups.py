"""Brokers that carry the groups of the federation, and the distance of each from a group's core.

A group is the unit that one mesh serves: by default one subscription filter. A broker carries it if its federator is
the core or a member of the mesh. Federators show their groups at `/groups`; the manager shows all groups that it knows.

Rules:

1. The table is bounded in rows over all brokers. Further rows are counted and left out.
2. A filter belongs to the group of the same name, or else to one that covers it. Only some covering groups are tried:
   those that replace the end of the filter by `#` or one of its levels by `+`. The cost of a question therefore does
   not depend on the number of groups.
3. Only brokers that the gateway knows are kept, even if a document names others.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hanse.protocol.topics import split_share

ROWS_MAX: Final = 200_000
CORE: Final = "core"
MEMBER: Final = "member"

_LEVELS_MAX: Final = 32


class Standing(NamedTuple):
    """Relation of a broker to a group.

    Attributes:
        group: the group that a filter belongs to.
        role: `core`, `member`, or empty for a broker outside the mesh.
        hops: to the group's core; None if it is not known.
    """

    group: str
    role: str
    hops: int | None


class Groups:
    """The table of one gateway.

    Attributes:
        dropped: rows that were left out.
        unreadable: rows that could not be read.
        version: grows with every document.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._rows: dict[str, dict[str, tuple[str, int | None]]] = {}
        self.dropped = 0
        self.unreadable = 0
        self.version = 0

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def take_federator(self, broker_id: str, document: object) -> int:
        """Take over the `/groups` page of a broker's federator; return how many rows could not be read."""
        rows: dict[str, tuple[str, int | None]] = {}
        left = self._rows_max - len(self) + len(self._rows.get(broker_id, ()))
        unreadable = 0
        for row in _list(document, "groups"):
            group, role, hops = _field(row, "group", str), _field(row, "role", str), _field(row, "distance", int)
            if group is None or role is None:
                unreadable += 1
            elif len(rows) >= left:
                self.dropped += 1
            else:
                rows[group] = (role if role in (CORE, MEMBER) else "", hops)
        self._rows[broker_id] = rows
        self.version += 1
        self.unreadable += unreadable
        return unreadable

    def take_manager(self, broker_ids: Iterable[str], groups: Iterable[object], topology: object) -> None:
        """Take over the manager's groups.

        Args:
            broker_ids: brokers that the gateway knows; for federators these are the ids (rule 3).
            groups: rows of `/api/v1/groups`, from all its pages.
            topology: the document of `/api/v1/topology`, whose links give the hops.
        """
        known = set(broker_ids)
        rows: dict[str, dict[str, tuple[str, int | None]]] = {broker_id: {} for broker_id in known}
        links = _links(topology)
        hops_from: dict[str, dict[str, int]] = {}
        count = 0
        for row in groups:
            group = _field(row, "group", str)
            if group is None:
                continue
            cores = sorted({str(one) for one in _list(row, "cores") if isinstance(one, int)})
            # Federators outside the mesh also know the group.
            members = {
                str(found)
                for one in _list(row, "members")
                if (found := _field(one, "id", int)) is not None and (_list(one, "mesh") or one.get("interest") is True)
            }
            for core in cores:
                if core not in hops_from:
                    hops_from[core] = _hops(core, links)
            for broker_id in known:
                near = [hops_from[core][broker_id] for core in cores if broker_id in hops_from[core]]
                hops = min(near, default=None)
                role = CORE if broker_id in cores else MEMBER if broker_id in members else ""
                if not role and hops is None:
                    continue
                if count >= self._rows_max:
                    self.dropped += 1
                    continue
                rows[broker_id][group] = (role, hops)
                count += 1
        self._rows = rows
        self.version += 1

    def forget(self, broker_id: str) -> None:
        """Forget a broker."""
        self._rows.pop(broker_id, None)

    def standing(self, broker_id: str, filter_: str) -> Standing | None:
        """Return a broker's relation to the group of a filter; None if it knows no such group (rule 2)."""
        rows = self._rows.get(broker_id)
        if not rows:
            return None
        for group in _covering(split_share(filter_)[1]):
            found = rows.get(group)
            if found is not None:
                return Standing(group, *found)
        return None


@lru_cache(maxsize=4_096)
def _covering(filter_: str) -> tuple[str, ...]:
    """Return the filter itself, and the filters of rule 2 that cover it, the narrowest first."""
    found = [filter_]
    levels = filter_.split("/")
    if len(levels) <= _LEVELS_MAX and not filter_.startswith("$"):
        last = len(levels) - 1
        singles = (k for k in range(last, -1, -1) if levels[k] not in ("+", "#"))
        found += ["/".join([*levels[:k], "+", *levels[k + 1 :]]) for k in singles]
        found += ["/".join([*levels[:k], "#"]) for k in range(last if levels[-1] == "#" else last + 1, 0, -1)]
        found.append("#")
    return tuple(found)


def _links(topology: object) -> dict[str, set[str]]:
    links: dict[str, set[str]] = {}
    for link in _list(topology, "links"):
        a, b = _field(link, "a", int), _field(link, "b", int)
        if a is not None and b is not None:
            links.setdefault(str(a), set()).add(str(b))
            links.setdefault(str(b), set()).add(str(a))
    return links


def _hops(start: str, links: Mapping[str, set[str]]) -> dict[str, int]:
    found = {start: 0}
    edge = [start]
    while edge:
        further: list[str] = []
        for one in edge:
            for other in links.get(one, ()):
                if other not in found:
                    found[other] = found[one] + 1
                    further.append(other)
        edge = further
    return found


def _list(document: object, name: str) -> list[Any]:
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, list) else []


def _field(document: object, name: str, kind: type) -> Any:  # noqa: ANN401 - of the type asked for, or None
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, kind) and not isinstance(found, bool) else None
