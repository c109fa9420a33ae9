"""A broker may name another server, but our client goes only where its settings say."""

import asyncio
from typing import Self

import mqtt5
import pytest

from hanse.mqtt.backoff import BackoffSettings
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.endpoints import LinkDialler
from hanse.mqtt.link import LinkHandler

USE_ANOTHER, MOVED = 0x9C, 0x9D


class Server:
    """Server that sends the same bytes to each connection and closes it."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.connections = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.read(4_096)
        writer.write(self.answer)
        writer.close()


def refusal(code: int, elsewhere: str) -> bytes:
    return mqtt5.ConnAckPacket(reason_code=mqtt5.ConnAckReasonCode(code), server_reference=elsewhere).write()


def goodbye(code: int, elsewhere: str) -> bytes:
    farewell = mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode(code), server_reference=elsewhere)
    return mqtt5.ConnAckPacket(user_properties=[("hanse-id", "2")]).write() + farewell.write()


@pytest.mark.parametrize("make", [refusal, goodbye])
@pytest.mark.parametrize("code", [USE_ANOTHER, MOVED])
@pytest.mark.parametrize("who", ["client", "dialler"])
def test_attack_a_poisoned_redirect_is_not_followed(make: type, code: int, who: str) -> None:
    quick = BackoffSettings(first_s=0.01, max_s=0.01)

    async def story() -> None:
        async with Server(b"") as evil:
            async with Server(make(code, f"127.0.0.1:{evil.port}")) as broker:
                url = f"mqtt://127.0.0.1:{broker.port}"
                shell: Client | LinkDialler
                if who == "client":
                    shell = Client(ClientSettings(url, "c", backoff=quick), ClientHandler())
                    await shell.start()
                else:
                    shell = LinkDialler(url, "1", LinkHandler(), backoff=quick)
                    shell.start()
                while broker.connections < 3:  # noqa: ASYNC110 - the client comes back to the configured server
                    await asyncio.sleep(0.01)
                await shell.stop()
            assert evil.connections == 0

    asyncio.run(asyncio.wait_for(story(), 30))
