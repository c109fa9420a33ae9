"""Interest from EMQX's event messages: `$SYS/brokers/<node>/clients/<client>/subscribed` and its like.

EMQX publishes them when `sys_topics.sys_event_messages` says so, and lets only clients on its own machine read them,
unless its ACL is changed. Nothing is replayed: what happened while the federator was away is a gap, which the list of
the adapter `poll` has not. Written after the vendor's documentation of EMQX 5; not run against one.

Rules: the client's id is taken from the payload, since one may hold a slash; a shared subscription comes with its
group beside the topic, or within it; what cannot be read is counted and yields nothing.
"""

import json
from collections import Counter

from hanse.interest.reports import ClientBack, ClientLeft, Gap, Report, Session, Subscribed, Unsubscribed

TOPIC = "$SYS/brokers/+/clients/#"
_PAYLOAD_BYTES_MAX = 140_000  # the largest filter and the largest client id, with room for the other fields
# Clients whose sessions are known to outlive them, or not; beyond it the oldest is forgotten and its end is unknown.
CLIENTS_MAX = 1_000_000
# The session expiry interval that means that the session does not expire (MQTT 5, 3.1.2.11.2).
_NO_EXPIRY = 0xFFFF_FFFF


class EmqxAdapter:
    """Messages of `topics()` in, reports out."""

    source = "emqx"

    def __init__(self, own_prefix: str) -> None:
        """`own_prefix`: what every client id of the federator begins with, so that it does not hear itself."""
        self.counters: Counter[str] = Counter()
        self._own_prefix = own_prefix
        # Client to the time in seconds that its session outlives its connection.
        self._sessions: dict[str, int] = {}

    def topics(self) -> list[str]:
        """What the host session has to subscribe to."""
        return [TOPIC]

    def message(self, topic: str, payload: bytes) -> list[Report]:
        """One event; an unreadable one is counted and yields nothing."""
        kind = topic.rpartition("/")[2]
        if kind not in {"subscribed", "unsubscribed", "connected", "disconnected"}:
            self.counters["messages_of_no_concern"] += 1
            return []
        try:
            fields = json.loads(payload) if len(payload) <= _PAYLOAD_BYTES_MAX else None
        except (ValueError, RecursionError):
            fields = None
        client = fields.get("clientid") if isinstance(fields, dict) else None
        if not isinstance(fields, dict) or not isinstance(client, str) or not client:
            return self._refuse()
        if client.startswith(self._own_prefix):
            self.counters["own_sessions"] += 1
            return []
        if kind == "connected":
            return self._connected(client, fields)
        if kind == "disconnected":
            return [self._left(client)]
        return self._subscription(kind, client, fields)

    def _left(self, client: str) -> Report:
        expiry_s = self._sessions.pop(client, None)
        if expiry_s is None:
            return ClientLeft(client, Session.UNKNOWN)
        if expiry_s <= 0:
            return ClientLeft(client, Session.ENDED)
        return ClientLeft(client, Session.KEPT, None if expiry_s >= _NO_EXPIRY else float(expiry_s))

    def _connected(self, client: str, fields: dict[str, object]) -> list[Report]:
        expiry, is_clean = fields.get("expiry_interval"), fields.get("clean_start")
        if not isinstance(is_clean, bool):
            return self._refuse()
        self._sessions.pop(client, None)
        if type(expiry) is int:
            self._sessions[client] = expiry
            if len(self._sessions) > CLIENTS_MAX:
                del self._sessions[next(iter(self._sessions))]
        return [ClientBack(client, session_kept=not is_clean)]

    def _subscription(self, kind: str, client: str, fields: dict[str, object]) -> list[Report]:
        wanted, options = fields.get("topic"), fields.get("subopts")
        if not isinstance(wanted, str) or not wanted:
            return self._refuse()
        options = options if isinstance(options, dict) else {}
        share = options.get("share")
        if isinstance(share, str) and share and not wanted.startswith("$share/"):
            wanted = f"$share/{share}/{wanted}"
        if kind == "unsubscribed":
            return [Unsubscribed(client, wanted)]
        qos = options.get("qos", 2)
        if type(qos) is not int or not 0 <= qos <= 2:
            return self._refuse()
        return [Subscribed(client, wanted, qos)]

    def _refuse(self) -> list[Report]:
        self.counters["events_malformed"] += 1
        return []

    def lost(self) -> list[Report]:
        """The connection to the host was lost, so events were missed."""
        self._sessions.clear()
        return [Gap()]
