"""The brokers of one gateway: their set, those that accept clients, and the version that all gateways know.

Rules:

1. Going down is decided locally and takes effect at once. It is a verdict about the broker, never about one client's
   connection.
2. Coming back, being drained and belonging to the set are decided by the manager and numbered. A broker that was down
   takes clients again only in a version that every gateway has acknowledged. Without a manager this gateway decides
   alone. With a manager that does not answer, brokers that were down stay out.
3. After a change of the set the former one is remembered, because sessions are still where it placed them.
4. The directory does no IO. `snapshot` carries it to the workers, which never decide anything about a broker.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hanse.gateway.placement import Broker, BrokerView, Query, choose

UP: Final = "up"
REFUSED: Final = "refused"
HUNG: Final = "hung"
LOST: Final = "lost"


class Directory:
    """Knowledge of one gateway.

    Args:
        site: only brokers of this site are in the set; all if empty.
        is_sole: there is no manager, and this gateway alone decides which brokers have returned.
    """

    def __init__(self, site: str = "", *, is_sole: bool = True) -> None:
        self.site = site
        self.is_sole = is_sole
        # Version of the manager's document, or of the list.
        self.version = -1
        # Grows with every change of any kind, for the workers.
        self.revision = 0
        self._views: dict[str, BrokerView] = {}
        self.former_set: list[Broker] = []
        self._members: list[BrokerView] = []

    @property
    def members(self) -> list[BrokerView]:
        """Return the brokers among which clients are placed, in the order of their ids."""
        return self._members

    def view(self, broker_id: str) -> BrokerView | None:
        """Return the view of a broker; None if it does not exist."""
        return self._views.get(broker_id)

    @property
    def views(self) -> list[BrokerView]:
        """Return every broker, also those outside the set."""
        return list(self._views.values())

    def update(
        self, version: int, brokers: Iterable[Broker], *, drained: Iterable[str] = (), up: Iterable[str] | None = None
    ) -> bool:
        """Take over a newer version of the set; return whether anything changed.

        Args:
            version: one that is not newer is ignored.
            brokers: all brokers.
            drained: ids of those that are drained.
            up: ids of those that every gateway knows to be up; None if nobody but this gateway decides it.
        """
        if version <= self.version:
            return False
        self.version = version
        given = {one.id: one for one in sorted(brokers, key=_id)}
        out = frozenset(drained)
        agreed = None if up is None else frozenset(up)
        before = self.snapshot()
        members = [view.broker for view in self._members]
        views: dict[str, BrokerView] = {}
        for broker_id, broker in given.items():
            view = self._views.get(broker_id)
            if view is None:
                view = BrokerView(broker)
            elif view.broker.url == broker.url:
                view.broker = broker
            else:
                # Another address under the same id: former measurements do not apply to it.
                view = BrokerView(broker, connections=view.connections)
            view.is_drained = broker_id in out
            if agreed is not None:
                view.is_agreed = broker_id in agreed
            views[broker_id] = view
        self._views = views
        self._members = [view for view in views.values() if not self.site or view.broker.site == self.site]
        if members and {one.id for one in members} != {view.broker.id for view in self._members}:
            self.former_set = members
        return self._changed(before)

    def judge(self, broker_id: str, verdict: str) -> bool:
        """Take over a verdict of the health check; return whether it changed."""
        view = self._views.get(broker_id)
        if view is None or view.verdict == verdict:
            return False
        view.verdict = verdict
        if verdict != UP and not self.is_sole:
            # Rule 2: only a later version of the manager admits it again.
            view.is_agreed = False
        self.revision += 1
        return True

    def set_drained(self, broker_id: str, *, is_drained: bool) -> bool:
        """Begin or end a drain; return whether that changed anything."""
        view = self._views.get(broker_id)
        if view is None or view.is_drained == is_drained:
            return False
        view.is_drained = is_drained
        self.revision += 1
        return True

    def set_offers(self, broker_id: str, offers_less: str) -> bool:
        """Note the parts of the contract that a broker lacks; empty if none."""
        view = self._views.get(broker_id)
        if view is None or view.offers_less == offers_less:
            return False
        view.offers_less = offers_less
        self.revision += 1
        return True

    def former_choice(self, key: bytes) -> Broker | None:
        """Return the broker of a client in the former set, if it still accepts clients (rule 3)."""
        views = [view for one in self.former_set if (view := self._views.get(one.id)) is not None]
        return choose(Query(key), views)

    def snapshot(self) -> dict[str, Any]:
        """Return everything but measured values, as JSON can carry it."""
        return {
            "version": self.version,
            "brokers": [
                [*view.broker.as_tuple(), view.verdict, view.is_agreed, view.is_drained, view.offers_less]
                for view in self._views.values()
            ],
            "former": [one.id for one in self.former_set],
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take over the snapshot of another process's directory."""
        views: dict[str, BrokerView] = {}
        former = {view.broker.id: view.broker for view in self._views.values()} | {
            one.id: one for one in self.former_set
        }
        for broker_id, url, site, reference, federator, verdict, is_agreed, is_drained, offers_less in snapshot[
            "brokers"
        ]:
            broker = Broker(broker_id, url, site, reference, federator)
            view = self._views.get(broker_id)
            if view is None or view.broker != broker:
                view = BrokerView(broker, connections=view.connections if view is not None else 0)
            view.verdict = verdict
            view.is_agreed = is_agreed
            view.is_drained = is_drained
            view.offers_less = offers_less
            views[broker_id] = view
            former[broker_id] = broker
        self._views = views
        self._members = [view for view in views.values() if not self.site or view.broker.site == self.site]
        self.former_set = [former[one] for one in snapshot["former"] if one in former]
        self.version = snapshot["version"]
        self.revision += 1

    def _changed(self, before: Mapping[str, Any]) -> bool:
        after = self.snapshot()
        is_changed: bool = before["brokers"] != after["brokers"] or before["former"] != after["former"]
        if is_changed:
            self.revision += 1
        return is_changed


def _id(broker: Broker) -> str:
    return broker.id
