"""Interest of the others in this broker: the federator's subscriptions at it, and their copy on disk.

Rules: a group that a federator elsewhere wants is subscribed to under the names that this broker's clients use
(`crossing`), several of which may be the same. The wanted groups are on disk soon after a change, so that the next
process subscribes at its host broker before the claims have arrived again.
"""

from collections.abc import Callable, Iterable

from hanse.federator.crossing import Crossing, FilterCounts
from hanse.federator.host import HostSession

_QOS = 2


class Wanted:
    """Groups that others want.

    Args:
        host: session that subscribes.
        crossing: rules and names for leaving this broker.
        groups: function that returns all groups wanted now.
        write: function that writes them to disk.
        watched: filters of this broker that are always subscribed to (`retained_watch`).
    """

    def __init__(
        self,
        host: HostSession,
        *,
        crossing: Crossing,
        groups: Callable[[], Iterable[str]],
        write: Callable[[Iterable[str]], None],
        watched: Iterable[str] = (),
    ) -> None:
        self._host = host
        self._inward = FilterCounts(crossing.inward_filter)
        self._groups = groups
        self._write = write
        self._standing = dict.fromkeys((*crossing.standing_filters, *watched))
        self._is_dirty = False

    def start(self) -> None:
        """Subscribe to the filters that are always wanted: clients publish there for the federation."""
        for filter_ in self._standing:
            self._host.want(filter_)

    def begin(self, group: str) -> None:
        """Subscribe, because a federator elsewhere wants a group."""
        self._apply([(group, _QOS)], [])

    def end(self, group: str) -> None:
        """Unsubscribe, because no federator wants the group any more."""
        self._apply([], [group])

    def _apply(self, wanted: list[tuple[str, int]], ended: list[str]) -> None:
        asked, released = self._inward.apply(wanted, ended)
        for filter_, _ in asked:
            self._host.want(filter_)
        for filter_ in released:
            if filter_ not in self._standing:
                self._host.release(filter_)
        self._is_dirty = True

    def save_if_changed(self) -> None:
        """Write the groups to disk if they changed."""
        if self._is_dirty:
            self.save()

    def save(self) -> None:
        """Write the groups to disk."""
        self._is_dirty = False
        self._write(self._groups())
