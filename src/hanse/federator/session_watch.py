"""Second session at the host broker, which notices that the first one is taken over.

The first session cannot learn of its own takeover: the broker sends the log line to the client that took it over. The
second session has a client id of its own with random bits, keeps nothing at the broker, and receives the log lines
about new connections, and the broker's uptime, whose last tick is retained.
"""

import asyncio
import re
from collections.abc import Callable, Collection
from dataclasses import replace

from hanse.errors import HanseError
from hanse.federator.takeovers import Takeovers
from hanse.interest.mosquitto_log import NOTICE
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, payload_of
from hanse.mqtt.subscriptions import Subscription

UPTIME = "$SYS/broker/uptime"
_CONNECTED = re.compile(rb"New client connected from (\S+) as (\S+) \(")


class SessionWatch(ClientHandler):
    """The second session.

    Args:
        settings: settings of the first session.
        client_id: the client id of the second one.
        watched: returns the client id of the first one.
        others: client ids of this federator's sessions that hold nothing.
        takeovers: receives the log lines and ticks.
    """

    def __init__(
        self,
        settings: ClientSettings,
        client_id: str,
        watched: Callable[[], str],
        others: Collection[str],
        takeovers: Takeovers,
    ) -> None:
        self._watched = watched
        self._others = frozenset(others) | {client_id}
        self._takeovers = takeovers
        self._client = Client(
            # A broker that sends its log must not get a limit on packets: see `hanse.mqtt.skipping`.
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
        for publication in publications:
            payload = payload_of(publication.packet)
            if publication.topic == UPTIME:
                self._takeovers.watched_tick(payload)
                continue
            line = _CONNECTED.search(payload)
            if line is None:
                continue
            address, client_id = (one.decode("utf-8", "replace") for one in line.groups())
            if client_id == self._watched():
                self._takeovers.admitted(now_s, address[:60])
            elif client_id in self._others:
                self._takeovers.other_admitted(address[:60])
