"""The host broker's side: the interest of its clients, and the federator's subscriptions there.

The rules (docs/protocol.md R39, R53, R54):

- Only valid filters that may cross count, and our own private group. Their number is limited.
- A filter counts for the group that the grouping maps it to. A group is of interest while any filter of it is.
- The federator subscribes only to groups that another federator wants.
"""

from hanse.errors import RemoteError
from hanse.protocol.changes import Changes
from hanse.protocol.effects import Emit, SubscribeHost, UnsubscribeHost
from hanse.protocol.identity import private_group
from hanse.protocol.settings import MANAGEMENT_GROUP, Settings
from hanse.protocol.topics import check_filter, filter_may_cross


class HostSide:
    """Interest and host subscriptions of one federator.

    Attributes:
        interest: Group to the number of local filters in it. Other modules only read it. Every federator is
            interested in the management group.
        subscriptions: The groups that the federator is subscribed to at the host broker. Other modules only read it.
    """

    def __init__(self, identity: int, settings: Settings, changes: Changes) -> None:
        self._private_group = private_group(identity)
        self._settings = settings
        self._changes = changes
        self.interest: dict[str, int] = {MANAGEMENT_GROUP: 1}
        self.subscriptions: set[str] = set()
        self._filters: set[str] = set()
        changes.groups.add(MANAGEMENT_GROUP)

    def on_subscribed(self, filter_: str) -> str | None:
        """Add a filter of the clients. Return its group, unless the filter was known or does not count."""
        counters = self._changes.counters
        if filter_ in self._filters:
            return None
        try:
            check_filter(filter_)
        except RemoteError:
            counters["rejected_filter"] += 1
            return None
        if not filter_may_cross(filter_) and filter_ != self._private_group:
            counters["ignored_closed_filter"] += 1  # R54
            return None
        if len(self._filters) >= self._settings.groups_max:
            counters["rejected_groups_max"] += 1
            self._changes.effects.append(Emit("limit_reached", group=filter_, detail="groups_max"))
            return None
        self._filters.add(filter_)
        group = self._settings.grouping.group_of(filter_)
        self.interest[group] = self.interest.get(group, 0) + 1
        self._touch(group)
        return group

    def on_unsubscribed(self, filter_: str) -> str | None:
        """Remove a filter of the clients. Return its group if that is no longer of interest."""
        if filter_ not in self._filters:
            return None
        self._filters.remove(filter_)
        group = self._settings.grouping.group_of(filter_)
        self._touch(group)
        self.interest[group] -= 1
        if self.interest[group]:
            return None
        del self.interest[group]
        return group

    def subscribe(self, group: str, *, is_wanted: bool) -> None:
        """Subscribe to a group at the host broker if another federator wants it, and unsubscribe if none does (R53)."""
        if is_wanted == (group in self.subscriptions):
            return
        if not is_wanted:
            self.subscriptions.remove(group)
            self._changes.effects.append(UnsubscribeHost(group))
        elif filter_may_cross(group):
            self.subscriptions.add(group)
            self._changes.effects.append(SubscribeHost(group))

    def _touch(self, group: str) -> None:
        self._changes.groups.add(group)
        self._changes.is_table_changed = True
