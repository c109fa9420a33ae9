"""Dialling of the wanted neighbours, and end of the other links, for each kind of link.

Rules:

1. Of two federators that want each other, the one with the smaller id dials. The larger one also dials if there is no
   link after a while (the smaller may not reach it), and at once if the smaller cannot know its address (this side does
   not listen).
2. A dialler whose neighbour has connected from the other side is ended.
3. New links begin before old ones end. An unwanted link stays until the links that are wanted now are up, for at most
   `REPLACE_S`. Then the protocol learns that the neighbour is removed, and the link is closed when everything sent on
   it is acknowledged, at the latest after `DRAIN_S`.
4. A neighbour on another machine is not dialled without TLS, unless the operator set `insecure`.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from hanse.errors import HanseError
from hanse.federator.links import LinkBook
from hanse.federator.links_by_broker import BrokerLinkBook
from hanse.federator.settings import is_loopback
from hanse.federator.words import Peer
from hanse.mqtt import urls

DIAL_TOO_S = 2.0  # rule 1; a dial refused by a side that does not know this federator yet takes up to 1 s
REPLACE_S = 3.0
DRAIN_S = 2.0
_DRAIN_STEP_S = 0.02
_log = logging.getLogger(__name__)


class Dialling:
    """Links of one federator, compared with the wanted ones.

    Args:
        forget: function that tells the protocol that the overlay no longer has a link.
    """

    def __init__(
        self,
        identity: int,
        links: LinkBook | BrokerLinkBook,
        *,
        is_listening: bool,
        is_insecure: bool,
        forget: Callable[[int], None],
    ) -> None:
        self._identity = identity
        self._links = links
        self._is_listening = is_listening
        self._is_insecure = is_insecure
        self._forget = forget
        self._since_s: dict[int, float] = {}
        self._dialled: dict[int, str] = {}
        self._unwanted_s: dict[int, float] = {}
        self._refused: set[str] = set()

    def is_up(self, identity: int) -> bool:
        """Return whether a link is up."""
        return self._links.is_up(identity)

    async def settle(
        self, now: float, wanted: Mapping[int, Peer], guests: Mapping[int, Peer], up: Collection[int]
    ) -> None:
        """Dial wanted neighbours, and end links to others, except guests. `up` are the links that are up."""
        if isinstance(self._links, BrokerLinkBook):
            # Each side has its own half of such a link; a guest's half is made from here.
            wanted = {**guests, **wanted}
        for identity, peer in sorted(wanted.items()):
            self._unwanted_s.pop(identity, None)
            try:
                await self._want(now, identity, peer)
            except HanseError as error:
                _log.warning("federator %d cannot be dialled: %s", identity, error)
        missing = any(not self._links.is_up(identity) for identity in wanted)
        known = {*self._since_s, *self._dialled, *up}
        for identity in sorted(known - wanted.keys() - guests.keys()):
            first_s = self._unwanted_s.setdefault(identity, now)
            if not missing or now - first_s >= REPLACE_S or not self._links.is_up(identity):
                await self._end(identity)

    async def _want(self, now: float, identity: int, peer: Peer) -> None:
        since_s = self._since_s.setdefault(identity, now)
        url = peer.ip if isinstance(self._links, BrokerLinkBook) else peer.link
        former = self._dialled.get(identity)
        if isinstance(self._links, BrokerLinkBook):
            if former != url and url is not None and self._may_dial(url):
                if former is not None:
                    await self._links.remove(identity)
                self._dialled[identity] = url
                await self._links.add(identity, url)
            return
        if self._links.is_up(identity):
            self._since_s[identity] = now
            if former is not None and not self._links.is_dialled(identity):
                # Rule 2.
                await self._hang_up(identity)
            return
        if former is not None and former != url:
            await self._hang_up(identity)
            former = None
        is_ours = self._identity < identity or not self._is_listening or now - since_s >= DIAL_TOO_S
        if former is None and url is not None and is_ours and self._may_dial(url):
            self._dialled[identity] = url
            self._links.dial(url)

    def _may_dial(self, url: str) -> bool:
        """Apply rule 4."""
        address = urls.parse(url)
        if self._is_insecure or address.is_tls or is_loopback(address.host):
            return True
        if url not in self._refused and len(self._refused) < 1_000:
            self._refused.add(url)
            _log.warning(
                "%s is on another machine and without TLS, and is not dialled; let its federator listen on mqtts://, "
                "or allow it here with --insecure",
                address,
            )
        return False

    async def _end(self, identity: int) -> None:
        """Apply rule 3."""
        self._unwanted_s.pop(identity, None)
        self._since_s.pop(identity, None)
        self._forget(identity)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + DRAIN_S
        while self._links.owed(identity) and loop.time() < until_s:  # noqa: ASYNC110 - rare, and short
            await asyncio.sleep(_DRAIN_STEP_S)
        _log.info("federator %d is a neighbour no longer", identity)
        if isinstance(self._links, BrokerLinkBook):
            self._dialled.pop(identity, None)
            await self._links.remove(identity)
            return
        await self._hang_up(identity)
        self._links.close(identity, "the overlay no longer has this link")

    async def _hang_up(self, identity: int) -> None:
        url = self._dialled.pop(identity, None)
        if url is not None and isinstance(self._links, LinkBook):
            await self._links.hang_up(url)
