"""Links through the neighbours' brokers, as in the papers: the same frames, another endpoint.

A federator publishes messages for a neighbour on the neighbour's *broker*, where the neighbour's own session receives
them. Rules:

- Every control topic names its destination and its sender (`broker_link`). The sender's session at that broker holds no
  subscription.
- The broker's PUBACK says nothing about the federator behind it. A data frame that needs an acknowledgement carries the
  sender's epoch and a number, and `federator/ack/<to>/<from>` names the accepted numbers.
- A link is up while the session at the neighbour's broker is connected. The protocol finds out whether the neighbour
  itself receives (R7). Unacknowledged frames are up to the protocol, which has them in custody. An acknowledgement that
  cannot be sent waits for the session.
- Anybody with the right to publish on these topics at the broker can forge them: `hanse` prints an ACL that closes
  them.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.federator import broker_link
from hanse.federator.broker_link import CONTROL_KINDS, Kind
from hanse.federator.link_events import LinkEvents
from hanse.federator.links import CONTROL_TOPIC, DATA_TOPIC, PROBE_TOPIC
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.link import Frame
from hanse.mqtt.publication import Publication, encode, payload_of
from hanse.protocol import codec
from hanse.protocol.messages import ControlFrame

# Frames under way to one neighbour that wait for its acknowledgement, and acknowledgements that wait for the session at
# its broker. More are dropped and counted.
_OWED_MAX = 65_535
_log = logging.getLogger(__name__)


class _Neighbour(ClientHandler):
    """Session at one neighbour's broker."""

    def __init__(self, book: "BrokerLinkBook", identity: int, settings: ClientSettings) -> None:
        self.book = book
        self.identity = identity
        self.client = Client(settings, self)
        # Number of a frame under way to its token.
        self.owed: dict[int, int] = {}
        self.next_number = 1
        self.epoch = 0
        self.has_left = False
        # By the neighbour's epoch: numbers of its frames whose acknowledgement has not been sent.
        self.untold: dict[int, list[int]] = {}

    def on_connected(self, session_present: bool) -> None:  # noqa: ARG002 - the handler's signature
        self.book.come_up(self)

    def on_disconnected(self, error: HanseError | None) -> None:
        self.book.go_down(self, error)


class BrokerLinkBook:
    """Links through brokers, with the interface of `LinkBook`."""

    def __init__(
        self,
        identity: int,
        client_settings: ClientSettings,
        *,
        epoch: Callable[[], int],
        on_up: Callable[[int], None],
        on_down: Callable[[int], None],
        on_frames: Callable[[int, list[Frame]], None],
        on_taken: Callable[[int, list[int]], None],
        client_id_at: Callable[[int], str],
    ) -> None:
        self._identity = identity
        self._client_id_at = client_id_at
        self._client_settings = client_settings
        self._epoch = epoch
        self._first_epoch = epoch()
        # Argument of `ack` to the neighbour's epoch and its number for the frame.
        self._receipts: dict[int, tuple[int, int]] = {}
        self._next_receipt = 1
        self._tell_up = on_up
        self._tell_down = on_down
        self._take_frames = on_frames
        self._tell_taken = on_taken
        self._neighbours: dict[int, _Neighbour] = {}
        self._up: set[int] = set()
        # Called with a sender that is not a neighbour.
        self.on_stranger: Callable[[int], None] | None = None
        self.drops: dict[str, int] = {}
        self.events = LinkEvents()

    def filters(self) -> list[str]:
        """Return the filters that the session at the own host broker needs."""
        return broker_link.subscriptions(self._identity)

    async def add(self, identity: int, url: str) -> None:
        """Link to a neighbour through its broker."""
        # The socket is that of the own host broker.
        settings = replace(
            self._client_settings,
            url=url,
            socket_path=None,
            client_id=self._client_id_at(identity),
            probe_client_id=None,
        )
        neighbour = self._neighbours[identity] = _Neighbour(self, identity, settings)
        await neighbour.client.start()

    async def remove(self, identity: int) -> None:
        """End the link to a neighbour."""
        neighbour = self._neighbours.get(identity)
        if neighbour is not None:
            await neighbour.client.stop()
            self.go_down(neighbour, None)
            self._neighbours.pop(identity, None)

    def is_up(self, identity: int) -> bool:
        """Return whether the session at the neighbour's broker is connected."""
        return identity in self._up

    def owed(self, identity: int) -> int:
        """Return how many frames the neighbour has not acknowledged."""
        neighbour = self._neighbours.get(identity)
        return 0 if neighbour is None else len(neighbour.owed)

    def has_room(self, identity: int) -> bool:
        """Return whether the session at the neighbour's broker accepts a frame of QoS 1 now."""
        neighbour = self._neighbours.get(identity)
        return neighbour is not None and identity in self._up and neighbour.client.credit > 0

    def has_unread(self, identity: int) -> bool:  # noqa: ARG002 - the same for all neighbours
        """Return False: all neighbours' frames arrive over one session, in order."""
        return False

    async def stop(self) -> None:
        """End all links."""
        for neighbour in self._neighbours.values():
            await neighbour.client.stop()

    def close(self, identity: int, reason: str) -> None:
        """Stop sending to a neighbour that broke a rule."""
        neighbour = self._neighbours.get(identity)
        if neighbour is not None:
            _log.warning("link to federator %d closed: %s", identity, reason)
            neighbour.client.abort()

    # --- out ------------------------------------------------------------------------------------------------------

    def send_control(self, identity: int, frame: ControlFrame) -> int:
        """Publish a control frame at the neighbour's broker, memberships on the papers' topic; return its size."""
        if identity not in self._up:
            return 0
        payload = codec.encode_control(frame)
        if not self._publish(identity, broker_link.kind_of(frame), payload, qos=0):
            self._drop("control_link_full", 1)
            return 0
        return len(payload)

    def send_data(self, identity: int, payload: bytes, count: int, token: int, body: bytes = b"") -> bool:
        """Publish a data frame at the neighbour's broker, in two parts. With a token, `on_taken` reports it."""
        neighbour = self._neighbours.get(identity)
        if neighbour is None or identity not in self._up:
            self._drop("link_down", count)
            return False
        number = 0
        if token:
            number, neighbour.next_number = neighbour.next_number, neighbour.next_number + 1
            if len(neighbour.owed) >= _OWED_MAX:
                del neighbour.owed[next(iter(neighbour.owed))]  # it is sent again, under another number
            neighbour.owed[number] = token
        frame = broker_link.encode_data(self._epoch(), number, payload + body)
        if not self._publish(identity, Kind.ROUTING, frame, qos=1 if number else 0):
            self._drop("link_full", 0 if token else count)  # with a token it is sent again
            neighbour.owed.pop(number, None)
            return bool(token)
        return True

    def send_probe(self, identity: int, payload: bytes) -> bool:
        """Publish a probe at the neighbour's broker."""
        return self._publish(identity, Kind.PROBE, payload, qos=0)

    def ack(self, identity: int, receipt: int) -> None:
        """Tell a neighbour that its frame was accepted."""
        found = self._receipts.pop(receipt, None)
        neighbour = self._neighbours.get(identity)
        if found is None or neighbour is None:
            return
        epoch, number = found
        if epoch >= neighbour.epoch and not self._tell(identity, epoch, [number]):
            if sum(map(len, neighbour.untold.values())) < _OWED_MAX:
                neighbour.untold.setdefault(epoch, []).append(number)
            else:
                self._drop("acknowledgements_untold", 1)

    def _tell(self, identity: int, epoch: int, numbers: list[int]) -> bool:
        payloads = broker_link.encode_acknowledgements(epoch, numbers)
        return all(self._publish(identity, Kind.ACKNOWLEDGEMENT, payload, qos=1) for payload in payloads)

    def _publish(self, identity: int, kind: Kind, payload: bytes, *, qos: int) -> bool:
        neighbour = self._neighbours.get(identity)
        if neighbour is None or identity not in self._up:
            return False
        topic = broker_link.topic_for(kind, identity, self._identity)
        # The session drops QoS 0 if its broker is slow, and counts one drop per frame, whatever the frame contains.
        drops = neighbour.client.counters.drops
        dropped = sum(drops.values())
        try:
            neighbour.client.publish_run(encode(topic, payload, qos=qos), qos=qos, count=1)
        except Unavailable:
            return False
        return sum(drops.values()) == dropped

    def _drop(self, reason: str, count: int) -> None:
        self.drops[reason] = self.drops.get(reason, 0) + count

    # --- in -------------------------------------------------------------------------------------------------------

    def hear(self, publication: Publication) -> bool:
        """Handle a message of the own host broker; return False if it does not belong to a link.

        Raises:
            RemoteError: it is malformed, retained, or not from a neighbour.
        """
        route = broker_link.accept(self._identity, publication.topic, is_retained=publication.retain)
        if route is None:
            return False
        sender = route.from_
        neighbour = self._neighbours.get(sender)
        if neighbour is None and self.on_stranger is not None:
            self.on_stranger(sender)
        if neighbour is None:
            self.events.counts["link_refused"] += 1
        if neighbour is None or sender not in self._up:
            raise RemoteError(f"A frame came from federator {sender}, which is not a connected neighbour.")
        payload = payload_of(publication.packet)
        if route.kind in CONTROL_KINDS:
            self._take_frames(sender, [Frame.of(CONTROL_TOPIC, broker_link.control_payload(route, payload))])
        elif route.kind is Kind.ROUTING:
            epoch, number, frame = broker_link.decode_data(payload)
            receipt = 0
            if number:
                receipt, self._next_receipt = self._next_receipt, self._next_receipt + 1
                self._receipts[receipt] = (epoch, number)
            self._take_frames(sender, [Frame.of(DATA_TOPIC, frame, receipt)])
        elif route.kind is Kind.PROBE:
            self._take_frames(sender, [Frame.of(PROBE_TOPIC, payload)])
        else:
            self._take_acks(neighbour, payload)
        return True

    def _take_acks(self, neighbour: _Neighbour, payload: bytes) -> None:
        epoch, numbers = broker_link.decode_acknowledgement(payload, _OWED_MAX)
        if epoch < self._first_epoch:
            return  # of a former run of this federator; numbers continue when the epoch is raised in this one
        self._tell_taken(neighbour.identity, [neighbour.owed.pop(number, 0) for number in numbers])

    # --- callbacks of sessions
    # -----------------------------------------------------------------------------------------

    def come_up(self, neighbour: _Neighbour) -> None:
        """Note that the session at a neighbour's broker is connected."""
        self._up.add(neighbour.identity)
        _log.info("link to federator %d up (by its broker)", neighbour.identity)
        self._tell_up(neighbour.identity)
        untold, neighbour.untold = neighbour.untold, {}
        for epoch, numbers in untold.items():
            self._tell(neighbour.identity, epoch, numbers)

    def note_epoch(self, identity: int, epoch: int) -> None:
        """Note the neighbour's epoch from a control frame. A new one is a new run, which owes nothing."""
        neighbour = self._neighbours.get(identity)
        if neighbour is not None and epoch > neighbour.epoch:
            if neighbour.epoch:
                self.forgive(identity)
            neighbour.epoch = epoch
            neighbour.untold.clear()
            if neighbour.has_left and identity in self._up:
                # The neighbour left and is back. Our session at its broker stayed connected and reports nothing.
                neighbour.has_left = False
                self._tell_down(identity)
                self._tell_up(identity)

    def note_left(self, identity: int) -> None:
        """Note that a neighbour announced its leave."""
        neighbour = self._neighbours.get(identity)
        if neighbour is not None:
            neighbour.has_left = True
            neighbour.owed.clear()

    def forgive(self, identity: int) -> None:
        """Forget frames that a neighbour will no longer acknowledge."""
        neighbour = self._neighbours.get(identity)
        if neighbour is not None:
            neighbour.owed.clear()

    def go_down(self, neighbour: _Neighbour, error: HanseError | None) -> None:
        """Note that the session is gone, and forget its unacknowledged frames."""
        if neighbour.identity not in self._up:
            return
        self._up.discard(neighbour.identity)
        level = logging.INFO if error is None else logging.WARNING
        _log.log(level, "link to federator %d down: %s", neighbour.identity, error or "closed")
        self._tell_down(neighbour.identity)
        neighbour.owed.clear()
