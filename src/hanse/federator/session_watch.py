"""Second session at the host broker, which notices that the first one is taken over.

The first session cannot hear of its own takeover: the broker sends the log line to the client that took it over. The
second session has a client id of its own with random bits, keeps nothing at the broker, and hears two things: the log
lines about new connections, and the broker's uptime, whose last tick is retained.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from hanse.errors import HanseError
from hanse.federator.takeovers import Takeovers
from hanse.interest.mosquitto_log import NOTICE
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, payload_of
from hanse.mqtt.subscriptions import Subscription

UPTIME = "$SYS/broker/uptime"
_CONNECTED = b"New client connected from "


class SessionWatch(ClientHandler):
    """The second session.

    Args:
        settings: those of the first session.
        client_id: the client id of the second one.
        watched: returns the client id of the first one.
        takeovers: told of what is heard.
    """

    def __init__(
        self, settings: ClientSettings, client_id: str, watched: Callable[[], str], takeovers: Takeovers
    ) -> None:
        self._watched = watched
        self._takeovers = takeovers
        self._client = Client(
            # A broker that sends its log must not be told a limit of packets: see `hanse.mqtt.skipping`.
            replace(
                settings,
                client_id=client_id,
                clean_start=True,
                session_expiry_s=0,
                auto_ack=True,
                tells_packet_max=False,
                probe_topic=None,
            ),
            self,
        )

    async def start(self) -> None:
        """Listen until `stop`."""
        self._client.subscribe(Subscription(topic, qos=0, retain_handling=0) for topic in (NOTICE, UPTIME))
        await self._client.start()

    async def stop(self) -> None:
        """End the session."""
        await self._client.stop()

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Begin to compare once the broker sends its log."""
        if any(subscription.filter == NOTICE and code < 0x80 for subscription, code in answers):
            self._takeovers.watching()

    def on_disconnected(self, error: HanseError | None) -> None:  # noqa: ARG002 - the handler's signature
        """Stop comparing: connections may be missed."""
        self._takeovers.watching()

    def on_publications(self, publications: list[Publication]) -> None:
        """Read log lines and ticks."""
        now_s = asyncio.get_running_loop().time()
        marker = f" as {self._watched()} (".encode()
        for publication in publications:
            payload = payload_of(publication.packet)
            if publication.topic == UPTIME:
                self._takeovers.watched_tick(payload)
            elif marker in payload and _CONNECTED in payload:
                _, _, rest = payload.partition(_CONNECTED)
                address, _, _ = rest.partition(marker)
                self._takeovers.admitted(now_s, address.decode("ascii", "replace")[:60])
