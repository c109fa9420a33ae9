"""The wording of Mosquitto's log, 2.0 and 2.1, and the report that each line stands for.

Lines as version 2.0.11 writes them; 2.1 adds an address in brackets, and the reason after a colon:

    New client connected from 127.0.0.1:41558 as my client (p2, c1, k60).
    my client 1 a b/+/#                               (subscribe: client, granted QoS, filter)
    my client a b/+/#                                 (unsubscribe: client, filter)
    Client my client disconnected.
    Client my client has exceeded timeout, disconnecting.
    Client my client [127.0.0.1:41558] disconnected: connection closed by client.
    Client my client already connected, closing old connection.        (2.0, as an error: a take-over)
    Expiring client my client due to timeout.

Rules:
1. Client ids may contain spaces and digits, so a subscribe line can often be split in several ways. The split with a
   client that is known to be connected wins; otherwise the leftmost one does, and the ambiguity is counted.
2. The broker cuts lines at 999 bytes, because it builds them in a buffer of 1,000. A line of that length is refused and
   counted, because the rest of the filter is unknown. A filter of about 1,000 bytes is therefore never heard.
3. A clean session of MQTT 3 ends with its connection. An MQTT 5 session ends when its expiry interval says, which the
   log never tells; so the fate of the session is unknown when its client leaves.
4. "Expiring client" says that a session has ended.
5. A disconnect line that names another address than the client's present one belongs to a connection that was taken
   over, and is ignored.
"""

import re
from collections import Counter, OrderedDict
from dataclasses import dataclass

from hanse.interest.reports import ClientBack, ClientLeft, Report, Session, Subscribed, Unsubscribed

# Mosquitto's buffer is 1,000 bytes with the final NUL; a line of 999 may have been longer.
LINE_BYTES_CUT = 999
# Connected clients remembered, to tell splits apart. Beyond it the oldest is forgotten, and counted.
CLIENTS_KNOWN_MAX = 100_000
# Broker 2.0 prints internal numbers (1: MQTT 3.1, 2: 3.1.1, 5: 5), 2.1 prints the version (3, 4, 5).
PROTOCOL_5 = 5

# DOTALL below: text that a client chose may hold a line's end, where a topic brings it.
_TIMESTAMP = re.compile(r"(?:\d{9,11}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^ ]*): ")
_CONNECTED = re.compile(
    r"New (?P<kind>client|bridge) connected from (?P<address>\S+) as (?P<client>.*)"
    r" \(p(?P<protocol>\d+), c(?P<clean>[01]), k\d+(?:, u'.*')?\)\.?",
    re.DOTALL,
)
_LEFT = re.compile(
    r"Client (?P<client>.+?)(?: \[(?P<address>[^\]]*)\])? "
    r"(?:disconnected(?:(?: due to|,|:) .*)?|closed its connection|has exceeded timeout, disconnecting)\.?",
    re.DOTALL,
)
_TAKEN_OVER = re.compile(
    r"Client (?P<client>.+?)(?: \[[^\]]*\])? already connected, closing old connection\.?", re.DOTALL
)
_EXPIRED = re.compile(r"Expiring client (?P<client>.+?)(?: \[[^\]]*\])? due to timeout\.?", re.DOTALL)
_BROKEN = re.compile(
    r"(?:Bad socket read/write|Socket error) on client (?P<client>.+?)(?:: .*|, disconnecting\.?)", re.DOTALL
)
_SPLIT = re.compile(r" ([012]) (?=.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Connected:
    address: str
    session: Session


class MosquittoLines:
    """Reader of log lines, which remembers who is connected and with what kind of session.

    Args:
        own_prefix: prefix of the federators' client ids, whose lines are left out; None leaves nothing out.

    Attributes:
        counters: lines that were refused or ignored, by reason.
    """

    def __init__(self, own_prefix: str | None) -> None:
        self.counters: Counter[str] = Counter()
        self._own_prefix = own_prefix
        self._connected: OrderedDict[str, _Connected] = OrderedDict()

    def forget(self) -> None:
        """Forget who is connected, because lines may have been missed."""
        self._connected.clear()

    def text(self, line: bytes) -> str | None:
        """Return the line without its timestamp, or None and count it if it was cut or is not UTF-8."""
        if len(line) >= LINE_BYTES_CUT:
            self.counters["lines_cut"] += 1
            return None
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self.counters["lines_not_utf8"] += 1
            return None
        stamp = _TIMESTAMP.match(text)
        return text[stamp.end() :] if stamp else text

    def subscribe(self, text: str) -> list[Report]:
        """Read `<client> <qos> <filter>`."""
        splits = [(text[: m.start()], int(m[1]), text[m.end() :]) for m in _SPLIT.finditer(text) if m.start()]
        if not splits:
            self.counters["lines_unreadable"] += 1
            return []
        known = [split for split in splits if split[0] in self._connected]
        if len(known or splits) > 1:
            self.counters["lines_ambiguous"] += 1
        client, qos, wanted = (known or splits)[0]
        return [] if self._is_own(client) else [Subscribed(client, wanted, qos)]

    def unsubscribe(self, text: str) -> list[Report]:
        """Read `<client> <filter>`."""
        spaces = [position for position, character in enumerate(text) if character == " " and position > 0]
        if not spaces:
            self.counters["lines_unreadable"] += 1
            return []
        known = [position for position in spaces if text[:position] in self._connected]
        if len(known or spaces) > 1:
            self.counters["lines_ambiguous"] += 1
        space = (known or spaces)[0]
        client, given_up = text[:space], text[space + 1 :]
        return [] if self._is_own(client) else [Unsubscribed(client, given_up)]

    def notice(self, text: str) -> list[Report]:
        """Read a line about a connection or a session; every other notice or error gives no report."""
        if match := _CONNECTED.fullmatch(text):
            return self._came(match)
        return self._left(text) or []

    def any_kind(self, text: str) -> list[Report]:
        """Read a line from a file, which does not tell its kind.

        A client chooses its own id, and could choose one that reads like another client's disconnect line. Therefore a
        connected client that the line begins with takes precedence.
        """
        client = self._known_at_the_start_of(text)
        if client is not None:
            rest = text[len(client) + 1 :]
            if rest[:1] in {"0", "1", "2"} and rest[1:2] == " " and len(rest) > 2:
                return [] if self._is_own(client) else [Subscribed(client, rest[2:], int(rest[0]))]
            return [] if self._is_own(client) else [Unsubscribed(client, rest)]
        if match := _CONNECTED.fullmatch(text):
            return self._came(match)
        if (reports := self._left(text)) is not None:
            return reports
        # The log may begin after this client's connect line. `Warning: ...` and similar lines are not clients.
        word, _, rest = text.partition(" ")
        if rest[:1] in {"0", "1", "2"} and rest[1:2] == " " and len(rest) > 2 and word and not word.endswith(":"):
            return [] if self._is_own(word) else [Subscribed(word, rest[2:], int(rest[0]))]
        self.counters["lines_of_no_concern"] += 1
        return []

    def _left(self, text: str) -> list[Report] | None:
        """Read a line about the end of a connection or session; None if it is another line."""
        if match := _EXPIRED.fullmatch(text):
            client = match["client"]
            return [] if self._is_own(client) else [ClientLeft(client, Session.ENDED)]
        match = _TAKEN_OVER.fullmatch(text) or _LEFT.fullmatch(text) or _BROKEN.fullmatch(text)
        return None if match is None else self._went(match["client"], match.groupdict().get("address"))

    def _known_at_the_start_of(self, text: str) -> str | None:
        found = None
        for position, character in enumerate(text):
            if character == " " and text[:position] in self._connected:
                # An id may be a prefix of another one. The longest is right, unless a QoS follows the shorter one: then
                # the shorter one subscribed.
                if found is not None and text[len(found) + 1 : len(found) + 3] in {"0 ", "1 ", "2 "}:
                    self.counters["lines_ambiguous"] += 1
                    break
                found = text[:position]
        return found

    def _came(self, match: re.Match[str]) -> list[Report]:
        client = match["client"]
        if self._is_own(client):
            return []
        is_clean = match["clean"] == "1"
        session = Session.KEPT if not is_clean else Session.ENDED
        if int(match["protocol"]) == PROTOCOL_5:
            session = Session.UNKNOWN
        self._connected[client] = _Connected(match["address"], session)
        self._connected.move_to_end(client)
        if len(self._connected) > CLIENTS_KNOWN_MAX:
            self._connected.popitem(last=False)
            self.counters["clients_forgotten"] += 1
        return [ClientBack(client, session_kept=not is_clean)]

    def _went(self, client: str, address: str | None) -> list[Report]:
        if self._is_own(client):
            return []
        known = self._connected.get(client)
        if known is not None and address is not None and address != known.address:
            self.counters["disconnects_of_taken_over_connections"] += 1
            return []
        self._connected.pop(client, None)
        return [ClientLeft(client, known.session if known else Session.UNKNOWN)]

    def _is_own(self, client: str) -> bool:
        is_own = self._own_prefix is not None and client.startswith(self._own_prefix)
        if is_own:
            self.counters["lines_of_our_own"] += 1
        return is_own
