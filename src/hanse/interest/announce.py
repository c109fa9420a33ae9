"""Interest from announcements, as in Spohn's paper (2021): clients publish new topics to `NEW_REGULAR_TOPIC`.

The paper says when a client announces (on a new subscription, or its first publication), but not in which form. The
adapter accepts two forms: the topic or filter itself as text, which counts as interest, and a JSON object

    {"topic": "plant/+/temp", "role": "subscriber", "client": "panel-7", "qos": 1}

in which only `topic` is required. `"role": "publisher"` announces the first publication: it is noted, but is not
interest. Nobody announces the end, so interest expires unless it is announced again.
"""

import json
from collections import Counter

from hanse.interest.reports import Report, Subscribed

TOPIC = "NEW_REGULAR_TOPIC"
CLIENT = "(announcements)"
# The largest filter, with space for the other fields.
_PAYLOAD_BYTES_MAX = 70_000
_CLIENT_CHARACTERS_MAX = 65_535


class AnnounceAdapter:
    """Adapter: announcements in, reports with a TTL out."""

    source = "announce"

    def __init__(self, ttl_s: float = 86_400.0, qos: int = 2) -> None:
        """Take the TTL of an announcement. It is made only once, so the default is a day.

        A shorter TTL loses clients that stay, a longer one keeps clients that left.
        """
        self.counters: Counter[str] = Counter()
        self._ttl_s = ttl_s
        self._qos = qos

    def topics(self) -> list[str]:
        """Return the topics that the host session must subscribe to."""
        return [TOPIC]

    def message(self, topic: str, payload: bytes) -> list[Report]:
        """Handle one announcement. A malformed one is counted and gives no report."""
        if topic != TOPIC:
            self.counters["messages_of_no_concern"] += 1
            return []
        if len(payload) > _PAYLOAD_BYTES_MAX:
            return self._refuse()
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            return self._refuse()
        return self._object(text) if text.lstrip().startswith("{") else self._plain(text)

    def lost(self) -> list[Report]:
        """Return no reports, because nobody knows of missed announcements."""
        return []

    def _plain(self, text: str) -> list[Report]:
        wanted = text.strip("\r\n")
        return [Subscribed(CLIENT, wanted, self._qos, self._ttl_s)] if wanted else self._refuse()

    def _object(self, text: str) -> list[Report]:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return self._refuse()
        wanted, role = fields.get("topic"), fields.get("role", "subscriber")
        client, qos = fields.get("client", CLIENT), fields.get("qos", self._qos)
        if not (isinstance(wanted, str) and wanted and isinstance(client, str) and client):
            return self._refuse()
        if type(qos) is not int or qos not in {0, 1, 2} or len(client) > _CLIENT_CHARACTERS_MAX:
            return self._refuse()
        if role == "publisher":
            self.counters["publishers_announced"] += 1
            return []
        return [Subscribed(client, wanted, qos, self._ttl_s)] if role == "subscriber" else self._refuse()

    def _refuse(self) -> list[Report]:
        self.counters["announcements_malformed"] += 1
        return []
