"""Links of one federator, of the kind that the operator chose, and their neighbours at the start.

Rules:

1. `direct`: it listens on the operator's address, and dials the neighbours in the settings. `broker`: its frames go
   through the neighbours' brokers, and theirs arrive through its own broker.
2. A neighbour must use the same version of the protocol, and the manager, if there is one, must know it.
3. With a manager, the links follow its instructions from then on (`membership`, `dialling`).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from hanse import __version__
from hanse.federator.dialling import Dialling
from hanse.federator.doubles import PROCESS, THIS_PROCESS
from hanse.federator.links import LinkBook
from hanse.federator.links_by_broker import BrokerLinkBook
from hanse.federator.membership import MembershipShell
from hanse.federator.settings import FederatorSettings
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.link import Frame
from hanse.protocol import codec

Links = LinkBook | BrokerLinkBook
_log = logging.getLogger(__name__)


def make_links(
    identity: int,
    settings: FederatorSettings,
    client_settings: ClientSettings,
    *,
    epoch: Callable[[], int],
    admit: Callable[[int], str | None],
    on_link: Callable[[int, bool], None],
    on_frames: Callable[[int, list[Frame]], None],
    on_taken: Callable[[int, list[int]], None],
    on_double: Callable[[int, str], None],
    client_id_at: Callable[[int], str],
) -> Links:
    """Return the links, none of them up yet.

    Args:
        identity: id of this federator.
        settings: settings with the kind of links.
        client_settings: settings of the session at the host broker, the pattern for those at others' brokers.
        epoch: function that returns the current boot epoch.
        admit: function that returns a sentence why a federator must not link to us; None if it may.
        on_link: called with a neighbour, and whether its link is up.
        on_frames: called with frames of a neighbour.
        on_taken: called with the frames that a neighbour has acknowledged.
        on_double: called once per link with an id that two processes use, and the message to the refused one.
        client_id_at: function that returns the client id of the session at a neighbour's broker.
    """

    def may_link(other: int, properties: Mapping[str, str]) -> str | None:
        return refusal(other, properties) or admit(other)

    def up(neighbour: int) -> None:
        on_link(neighbour, True)

    def down(neighbour: int) -> None:
        on_link(neighbour, False)

    if settings.link == "broker":
        return BrokerLinkBook(
            identity,
            client_settings,
            epoch=epoch,
            on_up=up,
            on_down=down,
            on_frames=on_frames,
            on_taken=on_taken,
            client_id_at=client_id_at,
        )
    return LinkBook(
        identity,
        properties=properties,
        admit=may_link,
        on_up=up,
        on_down=down,
        on_frames=on_frames,
        on_taken=on_taken,
        on_double=on_double,
        tls=settings.link_tls(),
    )


def properties() -> dict[str, str]:
    """Return the properties for the handshake."""
    return {"hanse": __version__, "protocol": str(codec.VERSION), PROCESS: THIS_PROCESS}


def refusal(other: int, told: Mapping[str, str]) -> str | None:
    """Return why a federator with these handshake properties is not compatible; None if it is."""
    if told.get("protocol") != str(codec.VERSION):
        return f"federator {other} speaks protocol {told.get('protocol')!r}, this one {codec.VERSION}"
    return None


async def link_up(links: Links, settings: FederatorSettings, hear_host: Callable[[Iterable[str]], None]) -> None:
    """Listen for neighbours, and dial those in the settings; `hear_host` subscribes at the host broker."""
    if isinstance(links, BrokerLinkBook):
        hear_host(links.filters())
        for neighbour in settings.neighbours():
            assert neighbour.id is not None, "the settings ask for it"
            await links.add(neighbour.id, str(neighbour.address))
        return
    address = settings.listen_address()
    if address is not None:
        _log.info("listening for neighbours on %s", await links.listen(address))
    for neighbour in settings.neighbours():
        links.dial(str(neighbour.address))


def unlinked(links: Links, settings: FederatorSettings, silent: Collection[int] = ()) -> list[str]:
    """Return the neighbours in the settings whose link is not up: their ids, or else their hosts and ports.

    A neighbour that is `silent` has no link either: a link by broker stands also while the neighbour does not run.
    """
    found: list[str] = []
    for neighbour in settings.neighbours():
        is_up = neighbour.id is not None and neighbour.id not in silent and links.is_up(neighbour.id)
        if not is_up and isinstance(links, LinkBook) and neighbour.id is None:
            is_up = links.is_linked(str(neighbour.address))
        if not is_up:
            address = neighbour.address
            found.append(f"{address.host}:{address.port}" if neighbour.id is None else str(neighbour.id))
    return found


def follow_manager(
    membership: MembershipShell,
    identity: int,
    links: Links,
    settings: FederatorSettings,
    forget: Callable[[int], None],
) -> None:
    """Let the manager's instructions determine the links; `forget` is called for a removed neighbour."""
    if isinstance(links, BrokerLinkBook):
        links.on_stranger = membership.invite
    membership.start(
        Dialling(
            identity,
            links,
            is_listening=settings.link_listen is not None,
            is_insecure=settings.insecure,
            forget=forget,
        )
    )
