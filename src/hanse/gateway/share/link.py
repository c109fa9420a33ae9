"""The second session of a client, at one serving broker.

Rules:

1. It equals the client's own session except in three things: its id is `ID~share`, it has no will, and it is clean and
   ends with the connection. An absent member therefore keeps no turns.
2. It speaks the client's version of MQTT, so that a PUBLISH passes unchanged except for its packet identifier.
3. It pings by itself: the client's PINGREQ goes to the client's own broker. A broker that does not answer within the
   keep-alive has lost the session.
4. It is not read while too much waits for the client.
5. A PUBREL is answered at once: the publication that it releases has reached the client.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from hanse.errors import RemoteError, Unavailable
from hanse.gateway.front.connect import Connect
from hanse.gateway.session.contract import read_connack
from hanse.gateway.session.publication import body_of
from hanse.gateway.session.requests import codes_of, write_subscribe, write_unsubscribe
from hanse.gateway.session.stream import Stream, end_of
from hanse.mqtt.limits import PACKET_BYTES_MAX
from hanse.mqtt.refusal import PACKET_TOO_LARGE, Refusal, malformed

SUFFIX: Final = b"~share"
# Where the client has no keep-alive, the second session has this one.
KEEP_ALIVE_S: Final = 60
ANSWER_S: Final = 5.0
# Filters per SUBSCRIBE.
FILTERS_PER_PACKET: Final = 64

_CONNACK, _PUBLISH, _PUBREL, _SUBACK, _UNSUBACK, _PINGRESP, _DISCONNECT = 0x20, 0x30, 0x60, 0x90, 0xB0, 0xD0, 0xE0
_PINGREQ: Final = b"\xc0\x00"
# Reasons to refuse CONNECT that may pass: unavailable, busy, shutting down, quota, use another server, rate.
_TEMPORARY: Final = frozenset({0x88, 0x89, 0x8B, 0x97, 0x9C, 0x9F})


class ShareLink(asyncio.Protocol):
    """One second session.

    Args:
        broker_id: id of the serving broker.
        connect: the client's CONNECT.
        client_id: the client's id, also where CONNECT has none.
        owner: client of the second session.
        on_publication: gets a whole PUBLISH, its QoS and its packet identifier.
        on_lost: called once, when the connection has ended or was given up.

    Attributes:
        filters: the filters that the broker has granted, with options and QoS.
        heard_at: time of the last data from the broker.
        is_hung: the broker was judged hung, and the owner ends the session.
    """

    def __init__(
        self,
        broker_id: str,
        connect: Connect,
        client_id: bytes,
        owner: object,
        on_publication: Callable[["ShareLink", bytes, int, int], None],
        on_lost: Callable[["ShareLink"], None],
    ) -> None:
        self.broker_id = broker_id
        self.client_id = client_id + SUFFIX
        self.owner = owner
        self.filters: dict[bytes, tuple[int, int]] = {}
        self.is_open = False
        self.is_hung = False
        self._connect = connect
        self._version = connect.level
        self._keep_alive_s = connect.keep_alive_s or KEEP_ALIVE_S
        self._on_publication = on_publication
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._stream = Stream()
        self._accepted: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._next_id = 1
        self.heard_at = self._sent_at = 0.0
        self._is_reading = True
        self._is_ended = False

    # --- requests of the owner ----------------------------------------------------------------------------------------

    async def wait_accepted(self) -> None:
        """Wait until the broker has accepted the session.

        Raises:
            RemoteError: It refused.
            Unavailable: It did not answer.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._accepted
        except TimeoutError:
            self.abort()
            raise Unavailable(f"Broker {self.broker_id} did not answer the CONNECT of {self.client_id!r}.") from None

    async def subscribe(self, filters: Sequence[tuple[bytes, int]], identifier: int) -> list[int]:
        """Subscribe; return the reason codes.

        Raises:
            Unavailable: The connection ended, or there was no answer.
        """
        codes: list[int] = []
        for at in range(0, len(filters), FILTERS_PER_PACKET):
            part = list(filters[at : at + FILTERS_PER_PACKET])
            packet_id = self._number()
            answer = await self._ask(packet_id, write_subscribe(packet_id, part, self._version, identifier))
            codes += answer[: len(part)] + b"\x80" * (len(part) - len(answer))
        for (pattern, options), code in zip(filters, codes, strict=True):
            if code < 0x80:
                self.filters[pattern] = options, code
        return codes

    async def unsubscribe(self, filters: Sequence[bytes]) -> list[int]:
        """Unsubscribe; return the reason codes, 0 before MQTT 5.

        Raises:
            Unavailable: The connection ended, or there was no answer.
        """
        for pattern in filters:
            self.filters.pop(pattern, None)
        packet_id = self._number()
        answer = await self._ask(packet_id, write_unsubscribe(packet_id, list(filters), self._version))
        return list(answer[: len(filters)] + b"\0" * (len(filters) - len(answer)))

    def acknowledge(self, kind: int, broker_id: int, code: int) -> None:
        """Send PUBACK or PUBREC for a publication."""
        if code and self._version == 5:
            self._write(bytes((kind, 3)) + broker_id.to_bytes(2, "big") + bytes((code,)))
        else:
            self._write(bytes((kind, 2)) + broker_id.to_bytes(2, "big"))

    def set_reading(self, is_wanted: bool) -> None:
        """Continue reading, or stop (rule 4)."""
        if is_wanted == self._is_reading or self._transport is None:
            return
        self._is_reading = is_wanted
        if is_wanted:
            self.heard_at = self._loop.time()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def tick(self, now: float) -> None:
        """Ping, or give up a silent broker (rule 3). Called about once per second."""
        if not self.is_open:
            return
        if self._is_reading and now - self.heard_at > 1.5 * self._keep_alive_s:
            self.abort()
        elif now - self._sent_at >= self._keep_alive_s / 2:
            self._write(_PINGREQ)

    def close(self) -> None:
        """End the session in order."""
        transport = self._transport
        if transport is not None:
            if self.is_open:
                transport.write(b"\xe0\x00")
            self.is_open = False
            transport.close()
        self._end()

    def abort(self) -> None:
        """End the session now."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        self._end()

    # --- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        # uvloop's transports are such by behaviour, not by inheritance.
        self._transport = cast("asyncio.Transport", transport)
        if self._is_ended:
            # Not here: uvloop would close the socket twice.
            self._loop.call_soon(transport.close)
            return
        self.heard_at = self._sent_at = self._loop.time()
        is_5 = self._version == 5
        self._transport.write(
            self._connect.encode(
                client_id=self.client_id,
                clean_start=True,
                keep_alive_s=self._keep_alive_s,
                session_expiry_s=0 if is_5 else None,
                topic_alias_max=0 if is_5 else None,
                strip_will=True,
            )
        )

    def data_received(self, data: bytes) -> None:
        """Take each whole packet."""
        self.heard_at = self._loop.time()
        try:
            self._walk(self._stream.take(data))
        except Refusal:
            self.abort()

    def _walk(self, data: bytes) -> None:
        size = len(data)
        i = 0
        while i + 2 <= size:
            end = end_of(data, i, size)
            if end - i > PACKET_BYTES_MAX:
                raise Refusal(PACKET_TOO_LARGE, f"a packet of {end - i} bytes was announced")
            if not end or end > size:
                break
            self._take(data[i:end])
            i = end
        if i < size:
            rest = data[i:]
            self._stream.keep(rest, (end_of(data, i, size) or i + len(rest) + 1) - i)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the directory judges the broker
        """Tell the owner."""
        self.is_open = False
        self._transport = None
        self._end()

    # --- packets ------------------------------------------------------------------------------------------------------

    def _take(self, packet: bytes) -> None:
        kind = packet[0] & 0xF0
        if kind == _PUBLISH:
            body = body_of(packet, 0)
            at = body + 2 + (packet[body] << 8 | packet[body + 1]) if body + 2 <= len(packet) else len(packet) + 1
            qos = packet[0] >> 1 & 3
            if at + (2 if qos else 0) > len(packet):
                raise malformed("the broker's PUBLISH ends before its payload")
            self._on_publication(self, packet, qos, packet[at] << 8 | packet[at + 1] if qos else 0)
        elif kind == _PUBREL:
            self._write(b"\x70\x02" + packet[2:4])
        elif kind in (_SUBACK, _UNSUBACK):
            packet_id, codes = codes_of(packet, self._version)
            answer = self._answers.get(packet_id)
            if answer is not None and not answer.done():
                answer.set_result(codes)
        elif kind == _CONNACK:
            connack = read_connack(packet, self._version)
            if self._accepted.done():
                return
            if connack.code:
                why = (
                    f"Broker {self.broker_id} refused {self.client_id!r}: {connack.code:#04x} {connack.reason}".rstrip()
                )
                if connack.code in _TEMPORARY:
                    self._accepted.set_exception(Unavailable(f"{why}."))
                else:
                    self._accepted.set_exception(RemoteError(f"{why}; an ACL by client id must allow it."))
                self._accepted.exception()
                self.abort()
                return
            if connack.limits.keep_alive_s:
                self._keep_alive_s = connack.limits.keep_alive_s
            self.is_open = True
            self._accepted.set_result(None)
        elif kind == _DISCONNECT:
            self.abort()

    async def _ask(self, packet_id: int, packet: bytes) -> bytes:
        if not self.is_open:
            raise Unavailable(f"The session {self.client_id!r} at broker {self.broker_id} has ended.")
        answer = self._answers[packet_id] = self._loop.create_future()
        try:
            self._write(packet)
            async with asyncio.timeout(ANSWER_S):
                found: bytes = await answer
                return found
        except TimeoutError:
            raise Unavailable(f"Broker {self.broker_id} did not answer a request of {self.client_id!r}.") from None
        finally:
            del self._answers[packet_id]

    def _number(self) -> int:
        while self._next_id in self._answers:
            self._next_id = self._next_id % 65_535 + 1
        number, self._next_id = self._next_id, self._next_id % 65_535 + 1
        return number

    def _write(self, data: bytes) -> None:
        if self.is_open and self._transport is not None:
            self._sent_at = self._loop.time()
            self._transport.write(data)

    def _end(self) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        ended = Unavailable(f"The session {self.client_id!r} at broker {self.broker_id} has ended.")
        waiting: list[asyncio.Future[Any]] = [self._accepted, *self._answers.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(ended)
                future.exception()
        self._on_lost(self)
