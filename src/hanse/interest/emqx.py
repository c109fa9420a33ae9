"""Interest from EMQX's event messages: `$SYS/brokers/<node>/clients/<client>/subscribed` and similar topics.

EMQX publishes them if `sys_topics.sys_event_messages` is set, and lets only clients on its own machine read them,
unless its ACL is changed. Nothing is replayed: events during the federator's absence are a gap. The list of the adapter
`poll` has no such gaps. Written from the vendor's documentation of EMQX 5; not tested with one.

Rules: the client id comes from the payload, because it may contain a slash. A shared subscription has its group beside
the topic, or within it. Unreadable messages are counted and give no report.
"""

import json
from collections import Counter

from hanse.interest.reports import ClientBack, ClientLeft, Gap, Report, Session, Subscribed, Unsubscribed

TOPIC = "$SYS/brokers/+/clients/#"
_PAYLOAD_BYTES_MAX = 140_000  # the largest filter and the largest client id, with space for the other fields
# Clients whose sessions are known to outlive their connections, or not. Beyond it the oldest is forgotten, and the fate
# of its session is unknown.
CLIENTS_MAX = 1_000_000
# The session expiry interval of a session that does not expire (MQTT 5, 3.1.2.11.2).
_NO_EXPIRY = 0xFFFF_FFFF


class EmqxAdapter:
    """Adapter: messages of `topics()` in, reports out."""

    source = "emqx"

    def __init__(self, own_prefix: str) -> None:
        """Take the prefix of all client ids of the federator, whose own subscriptions are left out."""
        self.counters: Counter[str] = Counter()
        self._own_prefix = own_prefix
        # Client to the time in seconds by which its session outlives its connection.
        self._sessions: dict[str, int] = {}

    def topics(self) -> list[str]:
        """Return the topics that the host session must subscribe to."""
        return [TOPIC]

    def message(self, topic: str, payload: bytes) -> list[Report]:
        """Handle one event. An unreadable one is counted and gives no report."""
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
        """Report a gap: the connection to the host broker was lost, so events were missed."""
        self._sessions.clear()
        return [Gap()]
