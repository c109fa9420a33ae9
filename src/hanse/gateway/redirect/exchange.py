"""The gateway's side of a redirect (figure 2 of the TD-MQTT paper), without IO.

    client -> CONNECT      gateway -> CONNACK 0x00                                    or CONNACK 0x9C, 0x9D
    client -> SUBSCRIBE    gateway -> SUBACK, DISCONNECT 0x9C, 0x9D with a reference   or SUBACK, DISCONNECT 0x8F
    client -> PUBLISH      gateway -> DISCONNECT 0x9C, 0x9D with a reference

It has the interface of a `Session`, so that the front serves it like any client.

Rules:

1. The driver decides at CONNECT: `accept`, `name`, or `give_up`, after which the client is proxied with everything that
   it has sent so far. Until then its data is kept, within a bound.
2. After `accept`, proxying is impossible, because the client has its CONNACK. It gets the address of a broker, or
   learns that the server is busy.
3. SUBACK says 0x8F for each filter that is not accepted. A client none of whose filters is accepted gets DISCONNECT
   0x8F and no reference.
4. A PUBLISH is never acknowledged here, so at QoS 1 and 2 the client sends it again at its broker. At QoS 0 it is lost
   and counted.
5. The will of the CONNECT is not published: the client keeps it for its broker.
6. A client without requests gets the address of a broker after `idle_s`.
"""

from collections.abc import Callable
from typing import Final

from hanse.errors import RemoteError
from hanse.gateway.discovery.packets import PUBLISH, Packet, Reader
from hanse.gateway.front.connect import Connect, refuse
from hanse.gateway.session.counters import Counters
from hanse.gateway.session.events import TopicsAsked
from hanse.gateway.session.requests import read_request
from hanse.gateway.session.session import LIVE, WAITING, Session
from hanse.gateway.session.settings import Settings
from hanse.mqtt.limits import CONNECT_BYTES_MAX
from hanse.mqtt.properties import varint
from hanse.mqtt.reference import FILTER_NOT_ACCEPTED
from hanse.mqtt.refusal import (
    MALFORMED_PACKET,
    PACKET_TOO_LARGE,
    SERVER_BUSY,
    TOPIC_NAME_INVALID,
    Refusal,
    protocol_error,
)
from hanse.protocol.topics import check_filter, check_name

IDLE_S: Final = 5.0
# UNSUBACK for a subscription that does not exist (MQTT 5, 3.11.3).
_NO_SUBSCRIPTION: Final = 0x11


class Redirection(Session):
    """One client to redirect.

    Args:
        is_accepted_filter: says whether a well-formed filter is accepted (rule 3).
        idle_s: rule 6.
    """

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        now: float,
        *,
        is_accepted_filter: Callable[[str], bool] = lambda _: True,
        idle_s: float = IDLE_S,
    ) -> None:
        super().__init__(settings, counters, now)
        self.wish: TopicsAsked | None = None
        # Publications of QoS 0 that were lost (rule 4).
        self.lost = 0
        self.has_given_up = False
        self._is_accepted_filter = is_accepted_filter
        self._idle_s = idle_s
        self._idle_since = now
        self._early: list[bytes] = []
        self._early_bytes = 0
        self._reader = Reader(first=None)

    # --- the decision at CONNECT --------------------------------------------------------------------------------------

    def start(self, connect: Connect, rest: bytes, now: float) -> None:
        """Take the client's CONNECT and the bytes that came behind it."""
        super().start(connect, b"", now)
        self.holds_client = False
        if rest:
            self._keep(rest)

    def give_up(self) -> bytes:
        """End this object; return what the client has sent behind its CONNECT (rule 1)."""
        self.has_given_up = True
        rest = b"".join(self._early)
        self._early.clear()
        return rest

    def accept(self, now: float) -> None:
        """Answer CONNECT with success, and wait for the client's request."""
        if self._phase != WAITING:
            return
        properties = b""
        if not self.connect.client_id:
            properties = b"\x12" + len(self.client_id).to_bytes(2, "big") + self.client_id
        body = b"\0\0" + varint(len(properties)) + properties
        self.to_client.append(b"\x20" + varint(len(body)) + body)
        self._phase = LIVE
        self._idle_since = now
        early = b"".join(self._early)
        self._early.clear()
        if early:
            self.client_data(early, now)

    def name(self, code: int, reference: str) -> None:
        """Tell the client its broker: in CONNACK if it has none yet, else in DISCONNECT."""
        if self._phase == WAITING:
            self.to_client.append(refuse(5, code, server_reference=reference.encode()))
            self._end_client(code, "redirected")
        elif self.is_accepted:
            self._say_disconnect(code, reference)
            self._end_client(code, "redirected")

    def not_accepted(self) -> None:
        """Tell an accepted client that its topics are not accepted here (table I of the paper)."""
        if self.is_accepted:
            self._say_disconnect(FILTER_NOT_ACCEPTED)
            self._end_client(FILTER_NOT_ACCEPTED, "filter_not_accepted")

    def no_broker(self, now: float) -> None:
        """Tell an accepted client that no broker takes it now (rule 2)."""
        self.disconnect(SERVER_BUSY, now)

    # --- requests of the client ---------------------------------------------------------------------------------------

    def _keep(self, data: bytes) -> None:
        self._early_bytes += len(data)
        if self._early_bytes > CONNECT_BYTES_MAX:
            self._end_client(PACKET_TOO_LARGE, "early_bytes")
        else:
            self._early.append(data)

    def client_data(self, data: bytes, now: float) -> None:  # noqa: ARG002 - as in the base class
        """Take one read from the client."""
        if self._phase == WAITING:
            self._keep(data)
            return
        if self._phase != LIVE:
            return
        reader = self._reader
        try:
            for packet in reader.feed(data):
                self._take(packet)
                if self._phase != LIVE:
                    return
            if reader.refusal is not None:
                raise reader.refusal
        except Refusal as refusal:
            self._offended(refusal)

    def _take(self, packet: Packet) -> None:
        kind = packet.kind
        if kind == PUBLISH:
            topic = packet.topic.decode()
            try:
                check_name(topic)
            except RemoteError as error:
                raise Refusal(TOPIC_NAME_INVALID, str(error)) from None
            if not packet.qos:
                self.lost += 1
            self._ask((topic,), is_publisher=True)
        elif kind == 8:
            self._subscribe(packet.body)
        elif kind == 10:
            request = read_request(_whole(0xA2, packet.body), 5)
            codes = bytes((_NO_SUBSCRIPTION,)) * len(request.filters)
            self.to_client.append(_whole(0xB0, request.packet_id.to_bytes(2, "big") + b"\0" + codes))
        elif kind == 12:
            self.to_client.append(b"\xd0\x00")
        elif kind == 14:
            self._end_client(0, "closed_by_client")
        elif kind not in (4, 5, 6, 7):
            # PUBREL may belong to a session that the client believes in; nothing here waits for acknowledgements.
            raise protocol_error(f"a packet of type {kind} came after CONNECT, where the client may not send one")

    def _subscribe(self, body: bytes) -> None:
        request = read_request(_whole(0x82, body), 5)
        accepted: list[str] = []
        codes = bytearray()
        for raw, options in request.filters:
            text = raw.decode()
            try:
                check_filter(text)
            except RemoteError as error:
                raise Refusal(MALFORMED_PACKET, str(error)) from None
            if options & 3 == 3 or options >= 0x40:
                raise protocol_error(f"the options of a filter are {options:#04x}, which MQTT forbids")
            if self._is_accepted_filter(text):
                accepted.append(text)
                codes.append(options & 3)
            else:
                codes.append(FILTER_NOT_ACCEPTED)
        self.to_client.append(_whole(0x90, request.packet_id.to_bytes(2, "big") + b"\0" + bytes(codes)))
        if accepted:
            self._ask(tuple(accepted), is_publisher=False)
        elif self.wish is None:
            self.not_accepted()

    def _ask(self, filters: tuple[str, ...], *, is_publisher: bool) -> None:
        # The first request decides: the answer to it may be on its way.
        if self.wish is None:
            self.wish = TopicsAsked(filters, is_publisher)
            self.events.append(self.wish)

    # --- the end ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Check whether the client requests nothing (rule 6)."""
        if self._phase == LIVE and self.wish is None and now - self._idle_since >= self._idle_s:
            self.wish = TopicsAsked((), False)
            self.events.append(self.wish)

    def _part(self, now: float) -> None:  # noqa: ARG002 - as in the base class
        self._over("none")


def _whole(head: int, body: bytes) -> bytes:
    return bytes((head,)) + varint(len(body)) + body
