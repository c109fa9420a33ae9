"""The server side against a client of another make (Paho), over real sockets."""

import asyncio
import socket
from collections.abc import Callable

import mqtt5
import paho.mqtt.client as paho
import pytest
import uvloop
from paho.mqtt.enums import CallbackAPIVersion

from hanse.errors import HanseError, LocalError
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, encode
from hanse.mqtt.server import Server, ServerConnection, ServerGreeting, ServerHandler

pytestmark = pytest.mark.processes


async def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError(what)


class House(ServerHandler):
    def __init__(self) -> None:
        self.connections: list[ServerConnection] = []
        self.publications: list[Publication] = []
        self.acknowledged: list[int] = []
        self.disconnected: list[HanseError | None] = []

    def on_connect(self, greeting: ServerGreeting, connect: mqtt5.ConnectPacket) -> None:
        if connect.password == b"wrong":
            greeting.refuse(mqtt5.ConnAckPacket(reason_code=mqtt5.ConnAckReasonCode.BAD_USER_NAME_OR_PASSWORD))
        else:
            self.connections.append(greeting.accept(mqtt5.ConnAckPacket(assigned_client_id="given"), auto_ack=True))

    def on_packet(self, connection: ServerConnection, packet: mqtt5.Packet) -> None:
        if isinstance(packet, mqtt5.SubscribePacket):
            connection.write(mqtt5.SubAckPacket(packet.packet_id, [mqtt5.SubAckReasonCode(2)]).write())
            connection.publish_run(b"".join(encode("to/you", str(n).encode(), qos=n) for n in range(3)))

    def on_publications(self, _connection: ServerConnection, publications: list[Publication]) -> None:
        self.publications += publications

    def on_acknowledged(self, _connection: ServerConnection, numbers: list[int]) -> None:
        self.acknowledged += numbers

    def on_disconnected(self, _connection: ServerConnection, error: HanseError | None) -> None:
        self.disconnected.append(error)


def test_paho_subscribes_publishes_and_is_redirected() -> None:
    async def story() -> None:
        house = House()
        server = Server(house)
        await server.start("127.0.0.1", 0)
        got: list[tuple[bytes, int]] = []
        told: list[int] = []
        client = paho.Client(CallbackAPIVersion.VERSION2, "", protocol=paho.MQTTv5)
        client.on_message = lambda _client, _data, message: got.append((bytes(message.payload), message.qos))
        client.on_disconnect = lambda _client, _data, _flags, reason, _properties: told.append(reason.value)
        client.connect("127.0.0.1", server.port)
        client.loop_start()
        try:
            await until(client.is_connected, "paho's CONNACK")
            client.subscribe("to/you", qos=2)
            await until(lambda: len(got) == 3, "three messages")
            assert sorted(got) == [(b"0", 0), (b"1", 1), (b"2", 2)]
            await until(lambda: len(house.acknowledged) == 2, "their acknowledgements")
            for qos in (0, 1, 2):
                client.publish("to/me", bytes([qos]) * 100_000, qos=qos)
            await until(lambda: len(house.publications) == 3, "paho's messages")
            assert sorted((p.qos, len(p.payload)) for p in house.publications) == [(n, 100_000) for n in range(3)]
            assert house.connections[0].client_id == "given"
            house.connections[0].disconnect(0x9D, server_reference="127.0.0.1:1")
            await until(lambda: told, "paho's goodbye")
            assert told[0] == 0x9D
        finally:
            client.loop_stop()
            client.disconnect()
            await server.stop()

    uvloop.run(story())


def test_a_peer_that_does_not_read_costs_a_bounded_amount_and_its_drops_are_counted() -> None:
    async def story() -> None:
        house = House()
        server = Server(house, write_bytes_max=1_000_000)
        await server.start("127.0.0.1", 0)
        peer = socket.create_connection(("127.0.0.1", server.port))
        try:
            peer.sendall(mqtt5.ConnectPacket("lazy").write())
            await until(lambda: house.connections, "CONNECT")
            run = encode("t", bytes(10_000)) * 20
            for _ in range(400):
                house.connections[0].publish_run(run, qos=0, count=20)
                await asyncio.sleep(0)
            connection = house.connections[0]._connection
            assert connection is not None
            assert connection.waiting_bytes() <= 1_000_000 + len(run)
            sent, dropped = server.counters.publications_out, server.counters.drops["slow_peer"]
            assert sent + dropped == 8000
            assert dropped > 0
        finally:
            peer.close()
            await server.stop()

    uvloop.run(story())


def test_a_port_in_use_and_a_wrong_password_are_reported_in_one_sentence() -> None:
    async def story() -> None:
        server, other = Server(House()), Server(House())
        await server.start("127.0.0.1", 0)
        try:
            with pytest.raises(LocalError, match="cannot listen"):
                await other.start("127.0.0.1", server.port)
            url = f"mqtt://me:wrong@127.0.0.1:{server.port}"
            with pytest.raises(LocalError, match="user name and password") as caught:
                await Client(ClientSettings(url=url, client_id="x"), ClientHandler()).start(must_connect=True)
            assert "wrong" not in str(caught.value).replace("wrong settings", "")
        finally:
            await server.stop()

    uvloop.run(story())
