"""The manager's store, as commands open it that an operator runs beside the manager."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from hanse.topology.settings import StoreSettings
from hanse.topology.store import Store
from hanse.topology.stores import open_store

T = TypeVar("T")

LIST_WIDTH = 220  # independent of the terminal: one line per row, so that a list can be searched


def with_store(settings: StoreSettings, act: Callable[[Store], Awaitable[T]], *, may_create: bool = False) -> T:
    """Open the store, run `act` on it and close it. Only a command that adds something may create the store."""

    async def main() -> T:
        store = await open_store(settings, may_create=may_create)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(main())


def format_moment(moment_s: float) -> str:
    """Return a time as lists show it, in UTC."""
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M:%SZ}"
