"""From settings to a place in the federation: what the agent does before it knows its id."""

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

# The settings anew, with what the manager hands out below flags, environment and file.
ReadAgain = Callable[[Mapping[str, object]], FederatorSettings]


@dataclass(frozen=True, slots=True)
class Entrance:
    """How the federator came in, and the door through which it may come in again."""

    door: Door
    entry: Entry


async def enter(settings: FederatorSettings, state: StateDirectory) -> Entrance:
    """Join the federation, or take up what was kept on disk; asks until one of them is possible.

    Raises:
        LocalError: The manager refuses, and there is nothing on disk.
    """
    client = ManagerClient(settings.manager, settings.manager_ca_file)
    door = Door(client, identity_of(settings), settings.join_token, state.path)
    return Entrance(door, await door.enter())


def identity_of(settings: FederatorSettings) -> Identity:
    """How this federator names itself."""
    ip = settings.advertised_listener or str(urls.parse(settings.broker))
    link = None
    if settings.link == "direct":
        listen = settings.listen_address()
        link = settings.link_advertised or (None if listen is None else str(listen))
    return Identity(ip, link, settings.health_probe, settings.id)


def with_link_port(settings: FederatorSettings) -> FederatorSettings:
    """A link listener on port 0 gets its port here: the manager is told it before anything listens."""
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
    """The settings with what the manager hands out, where the operator said nothing himself."""
    word = entrance.entry.membership.word
    if read_again is None:
        return settings
    anew = read_again(word.settings)
    # The port that was chosen stays, whatever is read.
    return dataclasses.replace(anew, link_listen=settings.link_listen)
