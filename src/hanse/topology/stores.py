"""Opens the store that the settings name. Each kind is imported only where it is used."""

from hanse.topology.settings import StoreSettings
from hanse.topology.store import Store


async def open_store(settings: StoreSettings, *, may_create: bool = True) -> Store:
    """Open the store that the settings name.

    A command that only reads or removes something does not create one: an empty store in the wrong directory looks
    like a federation without federators and without tokens.
    """
    if settings.mongo_url is not None:
        # pymongo is needed only here, and slow to import.
        from hanse.topology.store_mongo import MongoStore  # noqa: PLC0415

        return await MongoStore.open(settings.mongo_url)
    from hanse.topology.store_sqlite import SqliteStore  # noqa: PLC0415

    return await SqliteStore.open(settings.store, may_create=may_create)
