"""Simulated brokers that answer probes as the test says, in memory: the manager's logic without a network."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from hanse.topology.api import create_app
from hanse.topology.health import Answer, Exchange, Observation, Outcome
from hanse.topology.manager import Manager
from hanse.topology.model import Probe
from hanse.topology.probes import Target
from hanse.topology.settings import ManagerSettings
from hanse.topology.store import Store
from hanse.topology.store_sqlite import SqliteStore


class SimulatedBrokers:
    """All brokers of a federation; `down` holds the addresses of those that are down."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.probed: list[int] = []
        self.published: list[tuple[int, str, bytes]] = []
        # Answer of federators about their clocks; None as from older federators, which give none.
        self.answer: Answer | None = None

    async def probe(self, targets: Sequence[Target], timeout_s: float) -> list[Observation]:
        del timeout_s
        self.probed += [target.id for target in targets]
        return [self._observe(target) for target in targets]

    def _observe(self, target: Target) -> Observation:
        if target.key in self.down:
            return Observation(target.id, Outcome.FAILED, exchange=Exchange(1))
        if target.key in self.silent and target.probe is Probe.FEDERATOR:
            return Observation(target.id, Outcome.SILENT, 1.0)
        exchange = Exchange(1, 2, self.answer)
        return Observation(target.id, Outcome.WELL, 1.0 + target.id / 10, exchange=exchange)

    async def publish(self, target: Target, topic: str, payload: bytes, timeout_s: float) -> bool:
        del timeout_s
        if target.key in self.down:
            return False
        self.published.append((target.id, topic, payload))
        return True

    async def keep(self, nodes: Sequence[int]) -> None:
        del nodes

    async def close(self) -> None:
        pass


class Running:
    """Manager with its simulated brokers, and a client of its HTTP interface that opens no socket."""

    def __init__(self, manager: Manager, brokers: SimulatedBrokers, client: httpx.AsyncClient) -> None:
        self.manager = manager
        self.brokers = brokers
        self.client = client

    async def join(self, number: int, **more: object) -> dict[str, Any]:
        answer = await self.client.post("/api/v1/join", json={"ip": f"tcp://b{number}:1883", **more})
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    async def get(self, path: str) -> Any:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def running(store: Path | Store, *, requires_token: bool = False, **settings: Any) -> AsyncIterator[Running]:
    """Run a manager that leads. Its health rounds run when the test asks for them."""
    settings = {"health_interval_s": 3600.0, "lease_s": 60.0, **settings}
    opened: Store = await SqliteStore.open(store / "topology.db") if isinstance(store, Path) else store
    brokers = SimulatedBrokers()

    def make(manager_id: str, on_lost: Callable[[int], None]) -> SimulatedBrokers:
        del manager_id, on_lost
        return brokers

    manager = Manager(ManagerSettings(**settings), opened, make, requires_token=requires_token)
    await manager.start()
    try:
        transport = httpx.ASGITransport(create_app(manager), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://manager", timeout=30) as client:
            yield Running(manager, brokers, client)
    finally:
        await manager.stop()
        if isinstance(store, Path):
            await opened.close()
