"""Worker processes: their start by the supervisor, and their main function.

Rules:

1. A worker inherits its listening sockets. They are the supervisor's: connections that a crashed worker had not
   accepted wait in them for its successor.
2. Settings, which hold secrets, go through a pipe; never through the command line or the environment.
3. A worker that ends unexpectedly is replaced after a pause that doubles. Its clients are disconnected.
4. A worker whose supervisor is gone ends.
"""

import asyncio
import logging
import os
import pickle
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from hanse import logs
from hanse.errors import LocalError
from hanse.gateway import garbage
from hanse.gateway.addresses import ListenAddress
from hanse.gateway.control import Channel, Message
from hanse.gateway.settings import GatewaySettings
from hanse.gateway.worker import STOP_S, Worker
from hanse.mqtt.tls import TlsSettings, server_context

_log = logging.getLogger(__name__)

# Between two reports of a worker. A verdict on a broker may be this late.
REPORT_S: Final = 0.1
_START_S: Final = 30.0
_PAUSE_MAX_S: Final = 5.0
# A worker that ran this long did not crash at its start.
_STEADY_S: Final = 10.0


class OtherProcess:
    """A worker in a process of its own, as the supervisor sees it.

    Args:
        index: from 0; it stays the same over restarts.
        sockets: one per listener.
        on_report: takes the messages of the worker that are not for this object.
        on_connected: called whenever a process can receive messages; it serves clients once it knows the brokers.
        on_gone: called with the last counts of a process that has ended.
    """

    def __init__(
        self,
        index: int,
        settings: GatewaySettings,
        listeners: Sequence[ListenAddress],
        sockets: Sequence[socket.socket],
        *,
        on_report: Callable[..., None],
        on_connected: Callable[["OtherProcess"], None],
        on_gone: Callable[["OtherProcess", dict[str, Any]], None],
    ) -> None:
        self.index = index
        self.restarts = 0
        self._settings = settings
        self._listeners = list(listeners)
        self._sockets = list(sockets)
        self._on_report = on_report
        self._on_connected = on_connected
        self._on_gone = on_gone
        self._channel: Channel | None = None
        self._counts: dict[str, Any] = {}
        self._heard: dict[str, float] = {}
        self._ready = asyncio.Event()
        self._is_stopping = False
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, and wait until it serves clients.

        Raises:
            LocalError: it ended instead.
        """
        self._running = asyncio.get_running_loop().create_task(self._run(), name=f"worker {self.index}")
        waiting = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((waiting, self._running), timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._ready.is_set():
            raise LocalError(f"Worker {self.index} did not start; its messages above say why.")

    def send(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON can carry
        """Send a message to the worker."""
        if self._channel is not None:
            self._channel.send(kind, **fields)

    def heard(self) -> dict[str, float]:
        """Return when it last heard each broker."""
        return self._heard

    def count(self) -> dict[str, Any]:
        """Return its counts up to its last report."""
        return self._counts

    async def stop(self) -> None:
        """End its clients and the process."""
        self._is_stopping = True
        self.send("stop")
        if self._running is not None:
            done, _ = await asyncio.wait((self._running,), timeout=2 * STOP_S + 1)
            if not done:
                self._running.cancel()
                await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = REPORT_S
        while True:
            began = loop.time()
            code = await self._run_once()
            if self._is_stopping or not self._ready.is_set():
                return
            _log.error("a worker has ended and is replaced", extra={"worker": self.index, "exit_code": code})
            self.restarts += 1
            pause_s = REPORT_S if loop.time() - began > _STEADY_S else min(2 * pause_s, _PAUSE_MAX_S)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> int:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        fds = [one.fileno() for one in self._sockets]
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "hanse.gateway.process", str(theirs.fileno()), str(reading), *map(str, fds),
                pass_fds=(theirs.fileno(), reading, *fds),
            )  # fmt: skip
            theirs.close()
            os.close(reading)
            reading = -1
            await loop.run_in_executor(
                None, _write, writing, pickle.dumps((self._settings, self._listeners, self.index))
            )
            writing = -1
            channel = Channel(self._on_message, lambda: None)
            await loop.create_connection(lambda: channel, sock=ours)
            self._channel = channel
            self._on_connected(self)
            return await process.wait()
        finally:
            theirs.close()
            for one in (reading, writing):
                if one >= 0:
                    os.close(one)
            if self._channel is not None:
                self._channel.close()
            else:
                ours.close()
            self._channel = None
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
            last, self._counts, self._heard = self._counts, {}, {}
            self._on_gone(self, last)

    def _on_message(self, message: Message) -> None:
        kind = message.pop("kind")
        if kind == "report":
            self._counts = message["counts"]
            self._heard = message["heard"]
            if message["addresses"]:
                self._on_report("addresses", worker=self.index, opened=message["addresses"])
        elif kind == "ready":
            self._ready.set()
        else:
            self._on_report(kind, worker=self.index, **message)


def _write(fd: int, data: bytes) -> None:
    with os.fdopen(fd, "wb") as pipe:
        pipe.write(data)


async def serve(channel_fd: int, settings_fd: int, socket_fds: list[int]) -> int:
    """Run one worker until it gets the request to stop, or its supervisor is gone."""
    with os.fdopen(settings_fd, "rb") as pipe:
        settings, listeners, index = pickle.load(pipe)  # noqa: S301 - written by the supervisor, which started this process
    logs.configure(settings.log_format, settings.log_level)
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    told = asyncio.Event()
    # A terminal sends SIGINT to the whole group; the supervisor decides what follows.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: None)

    def on_message(message: Message) -> None:
        if message["kind"] == "stop":
            ending.set()
        else:
            worker.on_message(message)
            told.set()

    def on_closed() -> None:
        ending.set()
        told.set()

    channel = Channel(on_message, on_closed)
    worker = Worker(settings, channel.send, settings.workers, index)
    await loop.create_connection(lambda: channel, sock=socket.socket(fileno=channel_fd))
    sockets = [socket.socket(fileno=fd) for fd in socket_fds]
    await told.wait()
    await worker.start(list(zip(listeners, sockets, strict=True)), tls_context(settings))
    garbage.tune()
    channel.send("ready")
    while not ending.is_set():
        channel.send("report", **worker.report())
        try:
            async with asyncio.timeout(REPORT_S):
                await ending.wait()
        except TimeoutError:
            continue
    await worker.stop()
    channel.send("report", **worker.report())
    # Let the last report leave before the process ends.
    await asyncio.sleep(0)
    return 0


def tls_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the context of the listeners with TLS; None if there are none."""
    if settings.cert_file is None:
        return None
    return server_context(TlsSettings(settings.ca_file, settings.cert_file, settings.key_file))


if __name__ == "__main__":
    import uvloop

    _channel, _settings, *_sockets = map(int, sys.argv[1:])
    sys.exit(uvloop.run(serve(_channel, _settings, _sockets)))
