"""Ending a session at a broker without taking it up.

A session of MQTT 3 that lasts cannot be ended by its own connection: only a clean connection of the same id ends it.
"""

import asyncio
from typing import Final, cast

from hanse.errors import Unavailable
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.front.connect import Connect
from hanse.gateway.placement import Broker

ANSWER_S: Final = 5.0
_DISCONNECT: Final = b"\xe0\x00"


class _Ending(asyncio.Protocol):
    """One such connection."""

    def __init__(self, packet: bytes) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._packet = packet
        self._have = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._packet)

    def data_received(self, data: bytes) -> None:
        """Read the code of CONNACK; the session is gone when it is 0."""
        self._have = (self._have + data)[:16]
        if len(self._have) >= 4 and not self.ended.done():
            assert self._transport is not None
            self._transport.write(_DISCONNECT)
            self._transport.close()
            self.ended.set_result(self._have[3])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the answer counts
        if not self.ended.done():
            self.ended.set_exception(Unavailable("The broker closed the connection before CONNACK."))

    def close(self) -> None:
        """Give up."""
        if self._transport is not None:
            self._transport.abort()


async def end_session(dialler: Dialler, broker: Broker, connect: Connect, client_id: bytes) -> None:
    """End the session of a client at a broker, with the client's credentials.

    Raises:
        Unavailable: The broker did not take the connection.
    """
    ending = _Ending(connect.encode(client_id=client_id, clean_start=True, session_expiry_s=0, strip_will=True))
    await dialler.dial(broker.url, lambda: ending)
    try:
        async with asyncio.timeout(ANSWER_S):
            code = await ending.ended
    except TimeoutError:
        raise Unavailable(f"Broker {broker.id} did not answer within {ANSWER_S:g} s.") from None
    finally:
        ending.close()
    if code:
        raise Unavailable(f"Broker {broker.id} refused the connection with code {code}.")
