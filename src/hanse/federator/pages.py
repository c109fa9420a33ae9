"""Pages behind a federator's HTTP routes.

    /metrics    metrics for Prometheus
    /healthz    its health, in one object; 503 while the host broker is not connected
    /groups     each group's core, and this federator's place in its mesh
    /accounts   outcomes of publications (`accounting`)

Rules: a page is made from the machine and the counters on request, and changes nothing. It is made on the event loop,
so its size is bounded by the limits of the protocol.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping

from hanse.federator.http import JSON, Reply
from hanse.protocol.machine import Machine
from hanse.protocol.settings import MANAGEMENT_GROUP
from hanse.telemetry import prometheus

# Fields of a group's row for the manager.
_REPORTED = ("group", "core", "parents", "mesh", "interest")


class Pages:
    """The pages of one federator.

    Args:
        machine: machine whose state they show.
        is_host_up: function that returns whether the host broker is connected.
        joined: function that returns the federators whose brokers are joined with this one by bridges.
        unlinked: function that returns the neighbours that it should have, and whose link is not up.
        counters: the agent's own counters, beside the machine's.
        interest: part of `/healthz` on unreported subscriptions; None if nothing counts them.
        membership: the manager's part of `/healthz`; None without a manager.
        metrics: function that returns the page `/metrics`.
        accounts: function that returns the page `/accounts`.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        is_host_up: Callable[[], bool],
        joined: Callable[[], frozenset[int]],
        unlinked: Callable[[], list[str]],
        counters: Counter[str],
        interest: Callable[[], Mapping[str, object] | None],
        membership: Callable[[], Mapping[str, object] | None],
        metrics: Callable[[], str],
        accounts: Callable[[], str],
    ) -> None:
        self._machine = machine
        self._is_host_up = is_host_up
        self._joined = joined
        self._unlinked = unlinked
        self._counters = counters
        self._interest = interest
        self._membership = membership
        self._metrics = metrics
        self._accounts = accounts

    def routes(self) -> dict[str, Callable[[], Reply]]:
        """Return the handlers by path."""
        return {
            "/metrics": lambda: (200, prometheus.MEDIA_TYPE, self._metrics()),
            "/healthz": self.health,
            "/groups": self.groups,
            "/accounts": lambda: (200, JSON, self._accounts()),
        }

    def health(self) -> Reply:
        """Return the health of this federator."""
        machine = self._machine
        is_healthy = self._is_host_up()
        unlinked = self._unlinked()
        body = {
            "id": machine.identity,
            "epoch": machine.epoch,
            # Publications can cross: with a link each, and with the core that all of them agree on.
            "ready": is_healthy and not unlinked and machine.core_of(MANAGEMENT_GROUP) is not None,
            "broker": "connected" if is_healthy else "away",
            "neighbours": list(machine.neighbours()),
            "unlinked": unlinked,
            "management_core": machine.core_of(MANAGEMENT_GROUP),
            "joined_by_bridges": sorted(self._joined()),
            "interest": self._interest(),
            "counters": dict(machine.counters + self._counters),
            "membership": self._membership(),
        }
        return 200 if is_healthy else 503, JSON, json.dumps(body)

    def groups(self) -> Reply:
        """Return all groups, one row each."""
        return 200, JSON, json.dumps({"id": self._machine.identity, "groups": self._rows()})

    def reported_groups(self, count_max: int) -> list[dict[str, object]]:
        """Return the groups for the manager: fewer rows, and only the fields that it needs."""
        return [{name: row[name] for name in _REPORTED} for row in self._rows(count_max)]

    def _rows(self, count_max: int | None = None) -> list[dict[str, object]]:
        machine = self._machine
        rows: list[dict[str, object]] = []
        for group in machine.groups()[:count_max]:
            core = machine.core_of(group)
            rows.append(
                {
                    "group": group,
                    "role": self._role(group, core),
                    "core": core,
                    "distance": None if core is None else machine.distance_to(core),
                    "parents": [] if core is None else list(machine.parents_of(core)),
                    "mesh": list(machine.mesh_neighbours(group)),
                    "interest": machine.is_local(group),
                }
            )
        return rows

    def _role(self, group: str, core: int | None) -> str:
        if core == self._machine.identity:
            return "core"
        return "member" if self._machine.is_member(group) else "outsider"
