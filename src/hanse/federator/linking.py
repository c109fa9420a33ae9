"""The links of one federator, of the kind that the operator chose, and whom they lead to at the start.

Rules:

1. `direct`: it listens where the operator said, and dials the neighbours that he named. `broker`: its frames go by way
   of the neighbours' brokers, and it hears its own broker for theirs.
2. A neighbour is let in that speaks the same version of the protocol and that the manager, where there is one, knows.
3. With a manager the links follow its word from then on (`membership`, `dialling`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping

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
    """The links, none of them up yet.

    Args:
        identity: this federator's.
        settings: which kind.
        client_settings: of the session at the host broker, after which those at others' brokers are made.
        epoch: the boot epoch of this moment.
        admit: a sentence why not, given a federator's id; None for one that may link to us.
        on_link: told of a neighbour, and whether its link is up.
        on_frames: given what a neighbour sent.
        on_taken: told which frames it has acknowledged.
        on_double: told of an id that two processes use, and what the refused one is told.
        client_id_at: the client id of the session at a neighbour's broker.
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
    """What the handshake tells the other side."""
    return {"hanse": __version__, "protocol": str(codec.VERSION), PROCESS: THIS_PROCESS}


def refusal(other: int, told: Mapping[str, str]) -> str | None:
    """Why a federator that told this in the handshake cannot be understood; None for one that can."""
    if told.get("protocol") != str(codec.VERSION):
        return f"federator {other} speaks protocol {told.get('protocol')!r}, this one {codec.VERSION}"
    return None


async def link_up(links: Links, settings: FederatorSettings, hear_host: Callable[[Iterable[str]], None]) -> None:
    """Listen for neighbours, and dial those that the operator named; `hear_host` subscribes at the host broker."""
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


def follow_manager(
    membership: MembershipShell,
    identity: int,
    links: Links,
    settings: FederatorSettings,
    forget: Callable[[int], None],
) -> None:
    """Let the manager's word say whom the links lead to; `forget` is told of a neighbour that the overlay drops."""
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
