"""Links to the neighbours, dialled by either side: one per neighbour, frames in and out.

Rules:

- Either side may dial. If both do, the link that the smaller id dialled stays; the other is refused or closed.
- Control frames go at QoS 0 of the link and before all data: the protocol repeats important ones. Data frames with QoS
  1 or 2 carry a *token* and go at QoS 1 of the link. They wait, in order, while the link has no capacity. Frames that
  were unacknowledged when a link ended are up to the protocol, which has them in custody. Data frames with only QoS 0
  are dropped and counted if there is no capacity.
- A receipt is valid for one link: an acknowledgement that arrives after the link was replaced is dropped.
- A newer link of a neighbour replaces the present one if it comes from the same process. Another process gets the
  neighbour's place only when the present link has ended (`doubles`).
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.federator.doubles import Doubles
from hanse.federator.link_events import LinkEvents
from hanse.mqtt.endpoints import LinkDialler, LinkGreeting, LinkListener, LinkListenerHandler
from hanse.mqtt.link import Frame, Link
from hanse.mqtt.tls import TlsSettings
from hanse.mqtt.urls import Address, parse
from hanse.protocol import codec
from hanse.protocol.messages import ControlFrame
from hanse.protocol.settings import FEDERATOR_ID_MAX

CONTROL_TOPIC = "c"
DATA_TOPIC = "d"
PROBE_TOPIC = "p"
_NOT_VALID, _NOT_AUTHORISED = 0x85, 0x87
# Hosts of neighbours that are remembered, the newest.
_HOSTS_MAX = 1_024
_log = logging.getLogger(__name__)


class _Peer:
    """Link of one neighbour, and its waiting frames."""

    __slots__ = ("identity", "link", "owed", "reads", "receipts", "waiting")

    def __init__(self, identity: int, link: Link) -> None:
        self.identity = identity
        self.link = link
        # How often frames were read.
        self.reads = 0
        # Number of a frame under way to its token.
        self.owed: dict[int, int] = {}
        self.waiting: deque[tuple[bytes, int]] = deque()
        # Receipts in the protocol's numbering, over all links, to those of this link.
        self.receipts: dict[int, int] = {}


class LinkBook(LinkListenerHandler):
    """All links of one federator.

    Args:
        properties: function that returns the properties for the handshake.
        admit: function that returns why the peer with an id and properties is refused, or None.
        on_double: called once per link with an id that two processes use, and the message to the refused one.
    """

    def __init__(
        self,
        identity: int,
        *,
        properties: Callable[[], Mapping[str, str]],
        admit: Callable[[int, Mapping[str, str]], str | None],
        on_up: Callable[[int], None],
        on_down: Callable[[int], None],
        on_frames: Callable[[int, list[Frame]], None],
        on_taken: Callable[[int, list[int]], None],
        on_double: Callable[[int, str], None],
        tls: TlsSettings | None = None,
    ) -> None:
        self._identity = identity
        self._tell_double = on_double
        self._doubles = Doubles()
        self._properties = properties
        self._admit = admit
        self._tell_up = on_up
        self._tell_down = on_down
        self._take_frames = on_frames
        self._tell_taken = on_taken
        self._next_receipt = 1
        self._tls = tls
        self._peers: dict[int, _Peer] = {}
        self._by_link: dict[Link, _Peer] = {}
        self._diallers: dict[str, LinkDialler] = {}
        self._listener: LinkListener | None = None
        # Drops by reason, shown by the agent.
        self.drops: dict[str, int] = {}
        self.events = LinkEvents()
        # Hosts that had a link or are dialled: strangers do not take their places at the listener.
        self._hosts: dict[str, None] = {}

    # --- start and end ------------------------------------------------------------------------------------------------

    async def listen(self, address: Address) -> str:
        """Listen for neighbours, and return the URL with the chosen port."""
        self._listener = LinkListener(str(self._identity), self)
        self._listener.listener.is_known_host = lambda host: host in self._hosts
        self._listener.listener.on_refused_tls = lambda peer, event, reason: self.events.refused(event, peer, reason)
        await self._listener.start(address.host, address.port, self._tls if address.is_tls else None)
        return f"{'mqtts' if address.is_tls else 'mqtt'}://{address.host}:{self._listener.port}"

    def dial(self, url: str) -> None:
        """Dial a neighbour, and keep the link."""
        if url in self._diallers:
            return
        dialler = LinkDialler(
            url,
            str(self._identity),
            self,
            properties=self._properties,
            on_failed=lambda error: self.events.failed(url, error),
            tls=self._tls if parse(url).is_tls else None,
        )
        self._diallers[url] = dialler
        self._note_host(parse(url).host)
        dialler.start()

    async def hang_up(self, url: str) -> None:
        """Stop dialling a neighbour, and end the link that resulted."""
        dialler = self._diallers.pop(url, None)
        self.events.succeeded(url)
        if dialler is not None:
            await dialler.stop()

    def _note_host(self, host: str) -> None:
        self._hosts.pop(host, None)
        self._hosts[host] = None
        if len(self._hosts) > _HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]

    async def stop(self) -> None:
        """End all links."""
        for url in list(self._diallers):
            await self.hang_up(url)
        if self._listener is not None:
            await self._listener.stop()

    def is_up(self, identity: int) -> bool:
        """Return whether a link to the neighbour is up, dialled by either side."""
        return identity in self._peers

    def is_linked(self, url: str) -> bool:
        """Return whether a link to the federator at an address that is dialled is up, dialled by either side."""
        dialler = self._diallers.get(url)
        identity = None if dialler is None else _identity_of(dialler.peer_id)
        return identity is not None and identity in self._peers

    def is_dialled(self, identity: int) -> bool:
        """Return whether the link is up and this side dialled it."""
        peer = self._peers.get(identity)
        return peer is not None and peer.link.is_dialled

    def owed(self, identity: int) -> int:
        """Return how many frames the neighbour has not acknowledged."""
        peer = self._peers.get(identity)
        return 0 if peer is None else len(peer.owed) + len(peer.waiting)

    def has_room(self, identity: int) -> bool:
        """Return whether a frame sent now goes to the link itself, which has a limit, and does not wait here."""
        peer = self._peers.get(identity)
        return peer is not None and not peer.waiting and peer.link.credit_bytes > 0

    def has_unread(self, identity: int) -> bool:
        """Return whether a neighbour has sent data that nobody has read yet."""
        peer = self._peers.get(identity)
        return peer is not None and peer.link.has_unread

    def close(self, identity: int, reason: str) -> None:
        """End the link to one neighbour."""
        peer = self._peers.get(identity)
        if peer is not None:
            peer.link.close(reason=reason)

    # --- out ------------------------------------------------------------------------------------------------------

    def send_control(self, identity: int, frame: ControlFrame) -> int:
        """Send a control frame, and return its size. Drop it if it cannot go, because the next round repeats it."""
        peer = self._peers.get(identity)
        if peer is None:
            return 0
        payload = codec.encode_control(frame)
        try:
            peer.link.send(CONTROL_TOPIC, payload, control=True, qos=0)
        except Unavailable:
            self._drop("control_link_full", 1)
            return 0
        return len(payload)

    def send_data(self, identity: int, payload: bytes, count: int, token: int, body: bytes = b"") -> bool:
        """Send a data frame, `payload` and behind it `body`. With a token, `on_taken` reports its acknowledgement."""
        peer = self._peers.get(identity)
        if peer is None:
            self._drop("link_down", count)
            return False
        if not token:
            try:
                peer.link.send(DATA_TOPIC, payload, qos=0, body=body)
            except Unavailable:
                self._drop("link_full", count)
                return False
            return True
        if peer.waiting or not self._send_owed(peer, payload, token, body):
            peer.waiting.append((payload + body, token))
        return True

    def send_probe(self, identity: int, payload: bytes) -> bool:
        """Send a probe behind the waiting data, as a publication of QoS 0 would go."""
        peer = self._peers.get(identity)
        if peer is None:
            return False
        try:
            peer.link.send(PROBE_TOPIC, payload, qos=0)
        except (Unavailable, LocalError):  # full, or larger than the neighbour accepts
            return False
        return True

    def ack(self, identity: int, receipt: int) -> None:
        """Acknowledge a neighbour's frame, if its link is still up."""
        peer = self._peers.get(identity)
        if peer is not None and peer.link.is_open:
            known = peer.receipts.pop(receipt, 0)
            if known:
                peer.link.ack((known,))

    def _send_owed(self, peer: _Peer, payload: bytes, token: int, body: bytes = b"") -> bool:
        try:
            peer.owed[peer.link.send(DATA_TOPIC, payload, body=body)] = token
        except Unavailable:
            return False
        return True

    def _drop(self, reason: str, count: int) -> None:
        self.drops[reason] = self.drops.get(reason, 0) + count

    # --- callbacks of links -------------------------------------------------------------------------------------------

    def on_greeting(self, greeting: LinkGreeting) -> None:
        """Answer a federator's request for a link."""
        identity = _identity_of(greeting.peer_id)
        if identity is None or identity == self._identity:
            reason = f"{greeting.peer_id[:20]!r} cannot be a neighbour of federator {self._identity}"
            self._refuse(greeting, _NOT_VALID, "link_id_invalid", reason)
            return
        double = self._double(identity, greeting.peer)
        refusal = double or self._admit(identity, greeting.peer)
        if refusal is not None:
            self._refuse(greeting, _NOT_AUTHORISED, "link_refused" if double is None else "link_id_in_use", refusal)
            return
        peer = self._peers.get(identity)
        if peer is not None and peer.link.is_dialled and self._identity < identity:
            greeting.refuse(_NOT_VALID, f"federator {self._identity} has dialled this link already")
            return
        greeting.accept(self._properties())

    def _refuse(self, greeting: LinkGreeting, code: int, event: str, reason: str) -> None:
        self.events.refused(event, greeting.peer_address, reason, claimed_id=greeting.peer_id)
        greeting.refuse(code, reason)

    def _double(self, identity: int, peer: Mapping[str, str]) -> str | None:
        present = self._peers.get(identity)
        if present is None or not present.link.is_open:
            return None
        double = self._doubles.refusal(identity, present.link.peer, peer, present.reads)
        if double is not None and self._doubles.is_new_conflict(identity, present.reads):
            self._tell_double(identity, double)
        return double

    def on_link(self, link: Link) -> None:
        """Handle a new link."""
        identity = _identity_of(link.peer_id)
        if identity is None or identity == self._identity:
            link.close(reason=f"{link.peer_id[:20]!r} cannot be a neighbour of federator {self._identity}")
            return
        double = self._double(identity, link.peer)
        refusal = double or (self._admit(identity, link.peer) if link.is_dialled else None)
        former = self._peers.get(identity)
        if refusal is None and former is not None and link.is_dialled and self._identity > identity:
            refusal = "the neighbour has dialled this link already"
        if refusal is not None:
            if double is not None:
                self.events.refused("link_id_in_use", link.peer_address, double, claimed_id=link.peer_id)
            else:
                _log.warning("link to federator %d not kept: %s", identity, refusal)
            link.close(reason=refusal)
            return
        if former is not None:
            self._remove(former)
            former.link.close(reason="replaced by a newer link")
        peer = self._peers[identity] = self._by_link[link] = _Peer(identity, link)
        self._note_host(link.peer_address.rpartition(":")[0])
        _log.info("link to federator %d up (%s)", identity, link.peer_address)
        self._tell_up(peer.identity)

    def on_frames(self, link: Link, frames: list[Frame]) -> None:
        """Handle one read of one link."""
        peer = self._by_link.get(link)
        if peer is None:
            return
        peer.reads += 1
        for position, frame in enumerate(frames):
            if frame[4]:
                receipt = self._next_receipt
                self._next_receipt = receipt + 1
                peer.receipts[receipt] = frame[4]
                frames[position] = frame._replace(receipt=receipt)
        self._take_frames(peer.identity, frames)

    def on_acknowledged(self, link: Link, numbers: list[int]) -> None:
        """Note frames that the neighbour has acknowledged."""
        peer = self._by_link.get(link)
        if peer is None:
            return
        tokens = [peer.owed.pop(number, 0) for number in numbers]
        self._tell_taken(peer.identity, tokens)
        self.on_credit(link)

    def on_credit(self, link: Link) -> None:
        """Send waiting frames, because there is capacity again."""
        peer = self._by_link.get(link)
        while peer is not None and peer.waiting:
            payload, token = peer.waiting[0]
            if not self._send_owed(peer, payload, token):
                return
            peer.waiting.popleft()

    def on_closed(self, link: Link, error: HanseError | None, unacknowledged: list[int]) -> None:  # noqa: ARG002
        """Note that a link ended, and forget its unacknowledged frames."""
        peer = self._by_link.get(link)
        if peer is not None:
            level = logging.INFO if error is None else logging.WARNING
            _log.log(level, "link to federator %d down: %s", peer.identity, error or "closed")
            self._remove(peer)

    def _remove(self, peer: _Peer) -> None:
        del self._by_link[peer.link]
        del self._peers[peer.identity]
        self._doubles.end(peer.identity)
        self.events.ended(peer.identity)
        self._tell_down(peer.identity)


def _identity_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= FEDERATOR_ID_MAX else None
