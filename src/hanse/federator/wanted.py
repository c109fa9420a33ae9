"""What others want of this broker: the federator's subscriptions at it, and on disk.

Rules: a group that somebody elsewhere wants is subscribed to under the names that this broker's clients know
(`crossing`), several of which may be one; what is wanted is on disk soon after it changed, so that the process after
this one hears its host before the claims have come in again.
"""

from collections.abc import Callable, Iterable

from hanse.federator.crossing import Crossing, FilterCounts
from hanse.federator.host import HostSession

_QOS = 2


class Wanted:
    """The wishes of the others.

    Args:
        host: the session that subscribes.
        crossing: what may leave this broker, and under which names.
        groups: all that is wanted by now.
        write: keeps them on disk.
    """

    def __init__(
        self,
        host: HostSession,
        *,
        crossing: Crossing,
        groups: Callable[[], Iterable[str]],
        write: Callable[[Iterable[str]], None],
    ) -> None:
        self._host = host
        self._inward = FilterCounts(crossing.inward_filter)
        self._groups = groups
        self._write = write
        self._standing = crossing.standing_filters
        self._is_dirty = False

    def start(self) -> None:
        """Subscribe to what is wanted always: clients publish there for the federation."""
        for filter_ in self._standing:
            self._host.want(filter_)

    def begin(self, group: str) -> None:
        """Somebody elsewhere wants a group."""
        self._apply([(group, _QOS)], [])

    def end(self, group: str) -> None:
        """Nobody does any longer."""
        self._apply([], [group])

    def _apply(self, wanted: list[tuple[str, int]], ended: list[str]) -> None:
        asked, released = self._inward.apply(wanted, ended)
        for filter_, _ in asked:
            self._host.want(filter_)
        for filter_ in released:
            self._host.release(filter_)
        self._is_dirty = True

    def save_if_changed(self) -> None:
        """Keep it, if there is anything new to keep."""
        if self._is_dirty:
            self.save()

    def save(self) -> None:
        """Keep it."""
        self._is_dirty = False
        self._write(self._groups())
