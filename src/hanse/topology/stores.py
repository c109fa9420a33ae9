"""Opens the store that the settings name; each kind is imported only where it is used."""

from hanse.topology.settings import StoreSettings
from hanse.topology.store import Store


async def open_store(settings: StoreSettings) -> Store:
    """The store that the settings name."""
    if settings.mongo_url is not None:
        # pymongo is needed only here, and slow to import.
        from hanse.topology.store_mongo import MongoStore  # noqa: PLC0415

        return await MongoStore.open(settings.mongo_url)
    from hanse.topology.store_sqlite import SqliteStore  # noqa: PLC0415

    return await SqliteStore.open(settings.store)
