"""Clients that were redirected a moment ago.

Rules:

1. A client that is back within `window_s` of its redirect did not follow it, or could not. It is proxied. There is
   therefore at most one redirect in a row, and a client whose library ignores references is served after one
   reconnection.
2. Each connection that is proxied for this reason renews the window, so a client that reconnects again and again is
   not redirected in between.
3. A client is known by its id, or without one by its address and user name. The table is bounded: beyond it the
   oldest entries are forgotten, whose clients may be redirected a second time.
"""

import hashlib
from collections import OrderedDict
from typing import Final, NamedTuple

from hanse.gateway.front.connect import Connect

RETURN_S: Final = 30.0
# About 250 bytes each.
ENTRIES_MAX: Final = 100_000
# After the window, the broker from which a client came still counts in the choice for this time.
REMEMBERED_S: Final = 600.0


class Sent(NamedTuple):
    """A client's last redirect."""

    at: float
    broker_id: str
    reference: str


class Returns:
    """Table of one worker, which also gets the other workers' redirects.

    Args:
        window_s: rule 1.
    """

    def __init__(self, window_s: float, entries_max: int = ENTRIES_MAX) -> None:
        self._window_s = window_s
        self._entries_max = entries_max
        self._sent: OrderedDict[bytes, Sent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    @staticmethod
    def key(connect: Connect, address: str) -> bytes:
        """Return the key of a client (rule 3)."""
        if connect.client_id:
            return hashlib.blake2b(connect.client_id, digest_size=16, person=b"id").digest()
        text = address.encode() + b"\0" + (connect.username or b"")
        return hashlib.blake2b(text, digest_size=16, person=b"address").digest()

    def note(self, key: bytes, broker_id: str, reference: str, now: float) -> None:
        """Remember a redirect."""
        self._sent[key] = Sent(now, broker_id, reference)
        self._sent.move_to_end(key)
        while len(self._sent) > self._entries_max:
            self._sent.popitem(last=False)
        while self._sent and now - next(iter(self._sent.values())).at > REMEMBERED_S:
            self._sent.popitem(last=False)

    def is_back(self, key: bytes, now: float) -> bool:
        """Return whether the client must be proxied (rules 1 and 2)."""
        sent = self._sent.get(key)
        if sent is None or now - sent.at >= self._window_s:
            return False
        self.note(key, sent.broker_id, sent.reference, now)
        return True

    def last(self, key: bytes, now: float) -> Sent | None:
        """Return a client's last redirect; None if there was none, or not recently."""
        sent = self._sent.get(key)
        return None if sent is None or now - sent.at > REMEMBERED_S else sent
