"""A TCP relay in front of a broker that notes the packets of both directions in their order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hanse.mqtt.framing import Splitter

_NAMES = (
    "CONNECT CONNACK PUBLISH PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE UNSUBACK PINGREQ PINGRESP "
    "DISCONNECT AUTH"
)
NAMES = dict(enumerate(_NAMES.split(), start=1))


class Recorder:
    """Recorded packets.

    Attributes:
        port: where clients connect in place of the broker.
        packets: `> CONNECT` towards the broker, `< CONNACK` from it, each with its bytes.
    """

    def __init__(self, broker_port: int) -> None:
        self.port = 0
        self.packets: list[tuple[str, bytes]] = []
        self._broker_port = broker_port
        self._passed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def until(self, name: str, deadline_s: float = 60.0) -> None:
        """Wait until a packet of this name has passed."""
        async with asyncio.timeout(deadline_s):
            while name not in self.names:
                self._passed.clear()
                await self._passed.wait()

    @property
    def names(self) -> list[str]:
        """The packets without their bytes."""
        return [name for name, _ in self.packets]

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._broker_port)
        self._writers.append(other_writer)
        await asyncio.gather(self._relay(">", reader, other_writer), self._relay("<", other_reader, writer))

    async def _relay(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = Splitter(1 << 28)
        try:
            while data := await reader.read(1 << 16):
                found, offsets = splitter.feed(data)
                self.packets += [(f"{way} {NAMES[found[at] >> 4]}", found[at:end]) for at, end in offsets]
                self._passed.set()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()


@asynccontextmanager
async def recorded(broker_port: int) -> AsyncIterator[Recorder]:
    """Run a relay in front of a broker."""
    recorder = Recorder(broker_port)
    server = await asyncio.start_server(recorder._begin, "127.0.0.1", 0)
    recorder.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield recorder
        finally:
            for writer in recorder._writers:
                writer.close()
            await asyncio.gather(*recorder._tasks, return_exceptions=True)
