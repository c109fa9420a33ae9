"""Test whether anyone may read the broker's log, which names the client ids of all sessions.

A client id is a secret, because a broker gives the session to any client that connects with it. The federator cannot
see the broker's ACL, but it can connect once without a login, and listen. If log lines arrive, every client may read
them. If the broker does not admit it, the rights of other logins are unknown, and the log reports this.
"""

import asyncio
import contextlib
import logging
from dataclasses import replace
from enum import Enum

from hanse import logs
from hanse.errors import HanseError, LocalError
from hanse.interest.mosquitto_log import LOG, SUBSCRIBE
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication
from hanse.mqtt.subscriptions import Subscription
from hanse.mqtt.tls import TlsSettings
from hanse.mqtt.urls import parse

# A broker logs the second subscription right away.
LISTEN_S = 2.0
_log = logging.getLogger(__name__)


class Exposure(Enum):
    """Clients that may read the log."""

    ANYONE = "anyone"
    HIDDEN = "hidden from clients without a login"
    UNKNOWN = "clients without a login are refused"


class _Stranger(ClientHandler):
    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def on_publications(self, publications: list[Publication]) -> None:
        if any(publication.topic.startswith(LOG) for publication in publications):
            self.heard.set()


async def look(settings: ClientSettings, client_id: str) -> Exposure:
    """Return who may read the log of the broker of a session, as far as a client without a login can tell.

    Raises:
        HanseError: The broker cannot be reached.
    """
    stranger = _Stranger()
    tls = settings.tls
    client = Client(
        replace(
            settings,
            url=str(parse(settings.url)),  # without a login in it
            client_id=client_id,
            username=None,
            password=None,
            tls=None
            if tls is None
            else TlsSettings(ca_file=tls.ca_file, server_name=tls.server_name, prefix=tls.prefix),
            clean_start=True,
            session_expiry_s=0,
            auto_ack=True,
            # A broker that sends its log must not be told a limit of packets: see `hanse.mqtt.skipping`.
            tells_packet_max=False,
            probe_topic=None,
        ),
        stranger,
    )
    try:
        await client.start(must_connect=True)
    except LocalError:
        return Exposure.UNKNOWN
    try:
        # The broker logs the second one, and tells those who may hear it.
        client.subscribe([Subscription(f"{LOG}#", qos=0)])
        client.subscribe([Subscription(SUBSCRIBE, qos=0)])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stranger.heard.wait(), LISTEN_S)
    finally:
        await client.stop()
    return Exposure.ANYONE if stranger.heard.is_set() else Exposure.HIDDEN


async def report(settings: ClientSettings, client_id: str, identity: int) -> None:
    """Look, and log what was found; `identity` is this federator's id."""
    command = f"`hanse interest config --vendor mosquitto --acl --id {identity}`"
    try:
        found = await look(settings, client_id)
    except HanseError as error:
        _log.info("whether anyone may read the broker's log could not be found out: %s", error)
        return
    if found is Exposure.ANYONE:
        logs.note_security(
            "host_log_open",
            "any client of the host broker may read its log below $SYS/broker/log/, and so the client ids of all "
            "sessions: it could take over the federator's session with the messages that wait there. Hide the log with "
            f"an ACL ({command} prints one), or take it from a file "
            "(--interest mosquitto-file:PATH).",
        )
    elif found is Exposure.UNKNOWN:
        _log.info(
            "the host broker lets in nobody without a login; whether another login may read $SYS/broker/log/ cannot be "
            "found out from here. It should not (%s prints an ACL).",
            command,
        )
    else:
        _log.info("the host broker hides its log from clients without a login")
