"""Groups with their cores and meshes, as federators report them. Entries beyond a limit are dropped and counted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GROUPS_A_REPORT_MAX = 10_000
ENTRIES_MAX = 200_000  # about 100 MB; for more, use the pipeline's tables


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Group as one federator sees it: the core that it follows, its parents towards it, its mesh neighbours."""

    group: str
    core: int | None
    parents: tuple[int, ...] = ()
    mesh: tuple[int, ...] = ()
    has_interest: bool = False


class GroupBook:
    """Last report of each federator."""

    def __init__(self) -> None:
        self._reports: dict[int, Sequence[GroupReport]] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return sum(len(reports) for reports in self._reports.values())

    def note(self, node: int, reports: Iterable[GroupReport]) -> None:
        """Replace the last report of the federator."""
        self._reports.pop(node, None)
        room = min(GROUPS_A_REPORT_MAX, ENTRIES_MAX - len(self))
        every = list(reports)
        self.dropped += max(0, len(every) - room)
        self._reports[node] = every[:room]

    def forget(self, nodes: Iterable[int]) -> None:
        """Remove the groups of federators that are gone."""
        for node in nodes:
            self._reports.pop(node, None)

    def groups(self, *, offset: int, limit: int) -> tuple[int, list[dict[str, object]]]:
        """Return the number of groups, and some of them by name: cores, and the parents and mesh of each member."""
        by_group: dict[str, list[tuple[int, GroupReport]]] = {}
        for node, reports in sorted(self._reports.items()):
            for report in reports:
                by_group.setdefault(report.group, []).append((node, report))
        wanted = sorted(by_group)[offset : offset + limit]
        return len(by_group), [_describe(group, by_group[group]) for group in wanted]


def _describe(group: str, reports: Sequence[tuple[int, GroupReport]]) -> dict[str, object]:
    return {
        "group": group,
        "cores": sorted({report.core for _, report in reports if report.core is not None}),
        "members": [
            {
                "id": node,
                "core": report.core,
                "parents": list(report.parents),
                "mesh": list(report.mesh),
                "interest": report.has_interest,
            }
            for node, report in reports
        ],
    }
