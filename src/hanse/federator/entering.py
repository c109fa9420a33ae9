"""Entry into the federation: from the settings to the federator's id."""

import dataclasses
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hanse.errors import LocalError
from hanse.federator.manager_client import ManagerClient
from hanse.federator.membership import Door, Entry, Identity
from hanse.federator.settings import FederatorSettings
from hanse.federator.store import StateDirectory
from hanse.mqtt import urls

# Reads the settings again, with the manager's values below flags, environment and file.
ReadAgain = Callable[[Mapping[str, object]], FederatorSettings]


@dataclass(frozen=True, slots=True)
class Entrance:
    """Result of entering the federation, and the client with which the federator may enter again."""

    door: Door
    entry: Entry


async def enter(settings: FederatorSettings, state: StateDirectory) -> Entrance:
    """Join the federation, or resume the state on disk; retry until one of them succeeds.

    Raises:
        LocalError: The manager refuses, and there is no state on disk.
    """
    client = ManagerClient(settings.manager, settings.manager_ca_file)
    door = Door(client, identity_of(settings), settings.join_token, state.path)
    return Entrance(door, await door.enter())


def identity_of(settings: FederatorSettings) -> Identity:
    """Return the federator's own statement of its identity."""
    ip = settings.advertised_listener or str(urls.parse(settings.broker))
    link = None
    if settings.link == "direct":
        listen = settings.listen_address()
        link = settings.link_advertised or (None if listen is None else str(listen))
    return Identity(ip, link, settings.health_probe, settings.id)


def with_link_port(settings: FederatorSettings) -> FederatorSettings:
    """Choose the port of a link listener on port 0 now, because the manager must know it before anything listens."""
    listen = settings.listen_address()
    if listen is None or listen.port or settings.link_advertised is not None:
        return settings
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((listen.host, 0))
            port = int(probe.getsockname()[1])
    except OSError as error:
        raise LocalError(f"link_listen is {listen}: {error.strerror}; name an address of this machine.") from error
    return dataclasses.replace(settings, link_listen=str(dataclasses.replace(listen, port=port)))


def with_handed_out(settings: FederatorSettings, entrance: Entrance, read_again: ReadAgain | None) -> FederatorSettings:
    """Return the settings with the manager's values, for those that the operator left open."""
    word = entrance.entry.membership.word
    if read_again is None:
        return settings
    anew = read_again(word.settings)
    # The chosen port stays, whatever the new settings say.
    return dataclasses.replace(anew, link_listen=settings.link_listen)
