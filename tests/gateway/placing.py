"""Client ids that the hash places where a test wants them."""

from collections.abc import Iterable

from hanse.gateway.placement import hash_key, score


def place(client_id: str, brokers: Iterable[str]) -> str:
    """Return the id of the broker that a client is placed at."""
    return max(brokers, key=lambda one: score(hash_key(one), client_id.encode()))


def name_at(broker: str, brokers: Iterable[str], start: str = "c") -> str:
    """Return a client id that is placed at a broker."""
    known = list(brokers)
    return next(name for k in range(1_000) if place(name := f"{start}{k}", known) == broker)
