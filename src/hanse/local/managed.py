"""Topology manager of a federation on one machine: its command, the initial overlay, and its view.

Rules:

1. A federation that `hanse up` starts is a new one. The manager's store is removed first, and so is the agents' memory
   of an earlier manager. The state of the brokers and of interest stays.
2. A given overlay is reported to the manager before the agents join, in the same form in which federators report to a
   manager that lost its store. It is only the start: from then on the manager repairs lost links and completes the
   overlay.
"""

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.federator import membership_cache
from hanse.federator.manager_client import ManagerClient
from hanse.local import overlay, ports
from hanse.local.http import get_json
from hanse.local.ports import LOOPBACK
from hanse.local.supervise import Service, Site

READY_S = 30.0
_ASK_S = 5.0
_POLL_S = 0.05


class LocalManager:
    """One manager beside the sites.

    Args:
        health_interval: as for `hanse manager`; None for its default.
    """

    def __init__(
        self, directory: Path, shape: str, health_interval: str | None = None, port: int | None = None
    ) -> None:
        if importlib.util.find_spec("fastapi") is None:
            raise LocalError(
                "The topology manager needs packages that are not installed; `pip install hanse[manager]`, or start "
                "without it: --no-manager."
            )
        self._directory = directory / "manager"
        self._shape = shape
        self._health_interval = health_interval
        self.url = f"http://{LOOPBACK}:{port or ports.free(1)[0]}"
        self._client = ManagerClient([self.url])

    def service(self) -> Service:
        """Return the service for the supervisor to run."""
        listen = self.url.removeprefix("http://")
        words = [sys.executable, "-m", "hanse", "manager", "--listen", listen, "--advertised-url", self.url]
        words += ["--store", str(self._directory / "topology.db")]
        if self._health_interval is not None:
            words += ["--health-interval", self._health_interval]
        return Service("manager", self.url, words)

    def clear(self, sites: Sequence[Site]) -> None:
        """Remove the state of earlier runs (rule 1)."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in self._directory.glob("topology.db*"):
                path.unlink()
            for site in sites:
                (site.directory / "federator" / membership_cache.FILE_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise LocalError(
                f"{self._directory} could not be cleared ({error.strerror}); choose another --dir."
            ) from error

    async def prepare(self, sites: Sequence[Site]) -> None:
        """Wait for the manager and report the overlay (rule 2), before the agents start."""
        await self._wait_ready()
        if self._shape == overlay.MANAGED:
            return
        links = overlay.edges(self._shape, len(sites))
        around = overlay.neighbours(links, len(sites))
        for site in sites:
            neighbours = [_named(sites[other]) for other in around[site.k]]
            # Its broker is running and its agent is not: until the agent joins, the broker's answer is enough.
            body = {**_named(site), "probe": "broker", "epoch": 0, "neighbors": neighbours}
            del body["id"]
            path = f"/api/v1/federators/{site.k}/report"
            try:
                await self._client.ask("POST", path, body, shown=None, timeout_s=_ASK_S)
            except RemoteError as error:
                raise Unavailable(f"The manager refused the overlay {self._shape}: {error}") from error

    async def is_converged(self, sites: Sequence[Site]) -> bool:
        """Return whether all are up and connected, have their assigned links and agree on the core."""
        try:
            view, *pages = await asyncio.gather(
                self.topology(), *(get_json(f"{site.metrics_url}/healthz") for site in sites)
            )
        except (Unavailable, RemoteError):
            return False
        up = [one["id"] for one in view["federators"] if one["state"] == "up"]
        cores = {page["management_core"] for page in pages}
        return (
            sorted(up) == sorted(site.k for site in sites)
            and bool(view["isConnected"])
            and len(cores) == 1
            and None not in cores
            and all(_is_settled(page, view) for page in pages)
        )

    async def topology(self) -> dict[str, Any]:
        """Return the manager's view."""
        return await self._client.ask("GET", "/api/v1/topology", shown=None, timeout_s=_ASK_S)

    async def _wait_ready(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + READY_S
        while True:
            try:
                health = await self._client.ask("GET", "/healthz", shown=None, timeout_s=_ASK_S)
                if health.get("isLeading"):
                    return
            except (Unavailable, RemoteError) as error:
                if loop.time() > until_s:
                    raise Unavailable(
                        f"The manager was not ready within {READY_S:g} s; see {self._directory / 'output.log'}."
                    ) from error
            await asyncio.sleep(_POLL_S)


def _named(site: Site) -> dict[str, Any]:
    return {"id": site.k, "ip": site.broker_shown, "link": site.link_url}


def _is_settled(page: dict[str, Any], view: dict[str, Any]) -> bool:
    """Return whether an agent is connected to its broker and has the links that the manager assigned to it."""
    mine = page["id"]
    meant = sorted(one["b"] if one["a"] == mine else one["a"] for one in view["links"] if mine in (one["a"], one["b"]))
    return page["broker"] == "connected" and sorted(page["neighbours"]) == meant
