"""A TCP relay in front of a broker. It can fall silent, like a partition of the network."""

import asyncio
import threading
from typing import Self


class _End(asyncio.Protocol):
    """One side of one relayed connection."""

    def __init__(self, relay: "Relay", peer: "_End | None" = None) -> None:
        self.relay = relay
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.relay.ends.add(self)
        if self.peer is None:
            self.relay.dial(self)
        else:
            self.peer.met(self)

    def met(self, peer: "_End") -> None:
        """Hand over the bytes that came before the other side was there."""
        self.peer = peer
        for data in self._early:
            peer.send(data)

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.relay.is_cut:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.relay.is_cut:
            return
        if self.peer is None:
            self._early.append(data)
        else:
            self.peer.send(data)

    def eof_received(self) -> bool:
        return self.relay.is_cut

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the other side learns of it
        self.relay.ends.discard(self)
        self.transport = None
        if self.peer is not None and self.peer.transport is not None and not self.relay.is_cut:
            self.peer.transport.close()


class Relay:
    """`with Relay(broker.port) as relay: connect(relay.port); relay.cut()`. It runs in a thread of its own."""

    def __init__(self, target: int) -> None:
        self.is_cut = False
        self.ends: set[_End] = set()
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Pass nothing on from now on, in both directions, without closing. New connections are silent as well."""
        self.is_cut = True

    def dial(self, near: _End) -> None:
        """Connect to the broker for a client."""
        if not self.is_cut:
            task = self._loop.create_task(self._dial(near))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _dial(self, near: _End) -> None:
        try:
            await self._loop.create_connection(lambda: _End(self, near), "127.0.0.1", self._target)
        except OSError:
            if near.transport is not None:
                near.transport.abort()

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(lambda: _End(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        for end in list(self.ends):
            if end.transport is not None:
                end.transport.abort()
        await asyncio.sleep(0.05)
