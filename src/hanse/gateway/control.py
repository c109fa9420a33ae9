"""The channel between the supervisor and a worker: one JSON object per line, over a pair of Unix sockets.

Rules: a line is bounded; a channel that ends tells its owner once; both sides run the same code, because a worker is
started by its supervisor from the same installation.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, cast

# The largest message is the directory: about 150 bytes per broker, and 10,000 brokers at most.
LINE_BYTES_MAX: Final = 16 << 20

Message = dict[str, Any]


class Channel(asyncio.Protocol):
    """One end.

    Args:
        on_message: called with each message.
        on_closed: called once when the other side is gone.
    """

    def __init__(self, on_message: Callable[[Message], None], on_closed: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._rest = b""

    @property
    def is_open(self) -> bool:
        """Return whether messages can reach the other side."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON can carry
        """Send a message; harmless when the channel has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """End the channel."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand out each whole line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        assert len(self._rest) <= LINE_BYTES_MAX, "a message between the gateway's processes is too long"
        for line in lines:
            self._on_message(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the end is the end
        """Tell the owner."""
        self._transport = None
        self._on_closed()
