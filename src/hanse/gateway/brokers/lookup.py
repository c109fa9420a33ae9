"""Search for a client's session at the broker where the former set of brokers would have placed it.

When a broker joins or leaves the set, the hash places some clients elsewhere. Those that are connected are moved. One
that is away comes back later, and what was queued for it waits at its former broker.

Rules:

1. The question is the client's own CONNECT, with its credentials and without its will: the broker then says in CONNACK
   whether there is a session. MQTT 3.1 has no such answer, so no session is searched for.
2. A session that this question has made is removed again: by an expiry of 0 in DISCONNECT, or before MQTT 5 by a second
   CONNECT that is clean.
3. A broker that refuses, or does not answer in time, has no session for the client.
"""

import asyncio
from typing import Final, cast

from hanse.errors import Unavailable
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.front.connect import MQTT_3_1, MQTT_5, Connect
from hanse.mqtt.framing import Splitter

TIMEOUT_S: Final = 2.0

_ANSWER_BYTES_MAX: Final = 16 << 20
_DISCONNECT: Final = b"\xe0\x00"
# Session Expiry Interval 0.
_DISCONNECT_FOR_GOOD: Final = b"\xe0\x07\x00\x05\x11\0\0\0\0"


class _Question(asyncio.Protocol):
    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self._splitter = Splitter(_ANSWER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._packet)

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            # Queued messages: they are not acknowledged, so they stay there.
            return
        found, offsets = self._splitter.feed(data)
        if offsets:
            start, end = offsets[0]
            self.answer.set_result(bytes(found[start:end]))
        elif self._splitter.refusal is not None:
            self.answer.set_result(b"")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the end is an answer
        if not self.answer.done():
            self.answer.set_result(b"")

    def end(self, last: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(last)
            self._transport.close()


async def has_session(dialler: Dialler, url: str, connect: Connect, client_id: bytes) -> bool:
    """Return whether a broker has a session of this client."""
    if connect.level == MQTT_3_1 or connect.auth_method is not None:
        return False
    try:
        async with asyncio.timeout(TIMEOUT_S):
            # A Receive Maximum of 1 keeps the broker from sending the queue to a client that does not accept it.
            receive_max = 1 if connect.level == MQTT_5 else None
            packet = connect.encode(client_id=client_id, strip_will=True, receive_max=receive_max)
            code, is_present, question = await _ask(dialler, url, packet)
            if code:
                question.end(b"")
                return False
            if is_present:
                question.end(_DISCONNECT)
                return True
            question.end(_DISCONNECT_FOR_GOOD if connect.level == MQTT_5 else _DISCONNECT)
            if connect.level != MQTT_5:
                clean = connect.encode(client_id=client_id, strip_will=True, clean_start=True)
                _, _, question = await _ask(dialler, url, clean)
                question.end(_DISCONNECT)
            return False
    except (TimeoutError, Unavailable):
        return False


async def _ask(dialler: Dialler, url: str, packet: bytes) -> tuple[int, bool, _Question]:
    question = _Question(packet)
    try:
        await dialler.dial(url, lambda: question)
        answer = await question.answer
    except BaseException:
        question.end(b"")
        raise
    # CONNACK: 20 length flags code.
    if len(answer) < 4 or answer[0] != 0x20:
        return 0x80, False, question
    return answer[3], bool(answer[2] & 1), question
