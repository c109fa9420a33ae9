"""paho-mqtt that follows MQTT 5 Server References, to servers that you list.

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.on_connect = ...       # subscribe here, as always with paho
    redirects = Redirects(client, "gateway.example.org", 1883, follow={"broker-a.example.org", "broker-b.example.org"})
    redirects.connect()
    client.loop_forever(retry_first_connection=True)

paho ignores the references itself: it would connect to the gateway again, for ever. Set your callbacks first;
`Redirects` calls them. 0x9C holds for one connection, 0x9D for good. TLS stays as `tls_set` made it, and paho checks
the name of the new server.
"""

from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

USE_ANOTHER_SERVER, SERVER_MOVED = 0x9C, 0x9D


class Redirects:
    """Follows the references that one client is given.

    Args:
        client: A client of MQTT 5 with callbacks of version 2.
        host: The gateway.
        port: Its port, and that of a reference without one.
        follow: The hosts, or `host:port`, to which the client may be sent. They get its login.
        hops_max: References that are followed in a row.
    """

    def __init__(self, client: mqtt.Client, host: str, port: int, *, follow: set[str], hops_max: int = 3) -> None:
        self.client = client
        self.home = self.current = (host, port)
        self.follow = follow
        self.hops_max = hops_max
        self._port = port
        self._hops = 0
        self._given: tuple[int, str] | None = None
        self._is_moving_home = False
        self._callbacks: Any = client.on_connect, client.on_disconnect, client.on_connect_fail
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_connect_fail = self._on_connect_fail

    def connect(self, keepalive: int = 60) -> None:
        """Let the client connect when its loop begins, and say in CONNECT that it follows references."""
        self._keepalive = keepalive
        self._dial(self.home)

    def _dial(self, server: tuple[str, int]) -> None:
        self.current = server
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.UserProperty = ("server-reference", "follow")
        self.client.connect_async(*server, keepalive=self._keepalive, properties=properties)

    def _on_connect(
        self, client: mqtt.Client, data: object, flags: object, code: ReasonCode, properties: object
    ) -> None:
        self._note(code, properties)
        if not code.is_failure and self._is_moving_home:
            self.home, self._is_moving_home = self.current, False
        if self._callbacks[0]:
            self._callbacks[0](client, data, flags, code, properties)

    def _on_disconnect(
        self, client: mqtt.Client, data: object, flags: object, code: ReasonCode, properties: object
    ) -> None:
        self._note(code, properties)
        self._move()
        if self._callbacks[1]:
            self._callbacks[1](client, data, flags, code, properties)

    def _on_connect_fail(self, client: mqtt.Client, data: object) -> None:
        self._move()
        if self._callbacks[2]:
            self._callbacks[2](client, data)

    def _note(self, code: ReasonCode, properties: object) -> None:
        reference = getattr(properties, "ServerReference", None)
        if code.value in {USE_ANOTHER_SERVER, SERVER_MOVED} and reference:
            self._given = code.value, reference

    def _move(self) -> None:
        """Choose where paho's next attempt goes, after a connection has ended or failed."""
        given, self._given = self._given, None
        self._is_moving_home = False
        if given is not None and self._hops < self.hops_max:
            for word in given[1].split():
                server = self._server(word)
                if server is not None and server != self.current:
                    self._hops += 1
                    self._is_moving_home = given[0] == SERVER_MOVED
                    self._dial(server)
                    return
        self._hops = 0
        if self.current != self.home:
            self._dial(self.home)

    def _server(self, word: str) -> tuple[str, int] | None:
        """Return host and port of a reference, if it may be followed."""
        bare = word.count(":") > 1 and not word.startswith("[")  # an IPv6 address without a port
        host, colon, port = (word, "", "") if bare or word.endswith("]") else word.rpartition(":")
        if not colon:
            host = host or port
            port = str(self._port)
        host = host.strip("[]")
        if not port.isdigit() or not {host, f"{host}:{port}"} & self.follow:
            return None
        return host, int(port)
