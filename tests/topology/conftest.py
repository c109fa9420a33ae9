import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.topology import ferretdb

from hanse.topology.store import Store
from hanse.topology.store_mongo import MongoStore
from hanse.topology.store_sqlite import SqliteStore

Open = Callable[[], Awaitable[Store]]
Body = Callable[[Open], Awaitable[None]]
OnStore = Callable[[Body], None]


_databases = itertools.count()


@pytest.fixture(scope="session")
def mongo_url() -> Iterator[str]:
    """Return the URL of a server that speaks MongoDB's protocol."""
    if os.environ.get("MONGO_URL"):
        yield os.environ["MONGO_URL"].rstrip("/")
        return
    binary = ferretdb.find()
    if binary is None:
        pytest.skip("no MongoDB: set MONGO_URL, or run `pytest -m slow tests/topology` once, which builds FerretDB")
    with ferretdb.running(binary) as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("mongo", marks=pytest.mark.processes)])
def on_store(request: pytest.FixtureRequest, tmp_path: Path) -> OnStore:
    """Run a test's body with a way to open the same store any number of times, and close all of them."""
    if request.param == "mongo":
        database = f"{request.getfixturevalue('mongo_url')}/hanse_test_{os.getpid()}_{next(_databases)}"

        async def make() -> Store:
            return await MongoStore.open(database)
    else:

        async def make() -> Store:
            return await SqliteStore.open(tmp_path / "topology.db")

    def run(body: Body) -> None:
        async def main() -> None:
            opened: list[Store] = []

            async def opener() -> Store:
                opened.append(await make())
                return opened[-1]

            try:
                await body(opener)
            finally:
                for store in opened:
                    await store.close()

        asyncio.run(main())

    return run
