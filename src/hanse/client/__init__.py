"""An async MQTT client for applications.

    async with Client("mqtt://localhost") as client:
        await client.publish("hello/world", "hi")
        async for message in client.messages("hello/#"):
            print(message.topic, message.text())

It needs nothing but the base of Hanse, and works with any broker.
"""

from hanse.client.client import Client, Messages
from hanse.client.errors import Closed, ConnectRefused, PublishInDoubt, PublishRefused, SubscribeRefused
from hanse.client.events import Connected, Disconnected, Event, Redirected
from hanse.client.message import Message
from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.mqtt.backoff import BackoffSettings
from hanse.mqtt.client import Will
from hanse.mqtt.tls import TlsSettings

__all__ = [
    "BackoffSettings",
    "Client",
    "Closed",
    "ConnectRefused",
    "Connected",
    "Disconnected",
    "Event",
    "HanseError",
    "LocalError",
    "Message",
    "Messages",
    "PublishInDoubt",
    "PublishRefused",
    "Redirected",
    "RemoteError",
    "SubscribeRefused",
    "TlsSettings",
    "Unavailable",
    "Will",
]
