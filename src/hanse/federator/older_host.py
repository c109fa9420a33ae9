"""A host broker that speaks MQTT 3.1.1: recognition of its clients' publications among those that it sends.

Such a broker has no No Local, no subscription identifiers, no Retain Handling and no Retain As Published. It sends more
than its clients published, and this module takes the rest out:

- Messages for the agent itself, recognised by the topic instead of an identifier.
- *Replays*: a new subscription brings the retained messages under it. Only those have RETAIN set (3.3.1.3), so such a
  message is old. (The RETAIN of a client's live publication is not visible.)
- *Copies*: a broker may send a publication once per matching subscription (`Traits.sends_copies`), consecutively or
  not. With n granted subscriptions, n copies are expected, and the first is the publication.
- *Returns*: our own publications there come back through our own subscriptions. Each publication that was written while
  one of our subscriptions matched it cancels one equal arrival.

Rules: contents are identified by a hash. An entry lives `RETURNED_S` longer than returns take at present, without the
time of the broker's absence, and cancels as many arrivals as it stands for, so the number of equal publications stays
right. If an expected arrival never comes, an honest publication with the same topic and payload within that time is
mistaken for it; the page on brokers says so. Removed messages are counted, and acknowledged at once.

The delay of returns is measured on one publication at a time. Otherwise a broker with a long queue in front of us would
outlast the memory, and two such brokers would hand the same publication to each other for ever.
"""

from collections import Counter
from collections.abc import Iterable

from hanse.federator.echoes import DELIVERED_S, ContentMemory, key_of
from hanse.mqtt.publication import Publication, split, topic_bytes_of
from hanse.mqtt.survey import Traits
from hanse.mqtt.v311 import Written
from hanse.protocol.trie import FilterIndex, MatchCache

# As long as the memory for bridges. Copies of one publication are sent together, but a queue may delay them.
RETURNED_S = DELIVERED_S
# A return that takes longer than this is not waited for.
LAG_S_MAX = 600.0
# Some 150 bytes each, including those that came back within their time: 20,000 per second for ten seconds.
RETURNS_MAX = 200_000


class OlderHost:
    """State about the session at such a broker.

    Args:
        asked: filters of the federation that are subscribed to already.
        own: the agent's own filters.
        counters: counters of removed messages.
    """

    def __init__(self, asked: Iterable[str], own: Iterable[str], counters: Counter[str]) -> None:
        self._counters = counters
        # From the request of a filter until the broker has confirmed its end, publications may arrive for it.
        self._asked = FilterIndex()
        self._asked_matches = MatchCache(self._asked)
        self._own = FilterIndex()
        self._own_matches = MatchCache(self._own)
        # Granted filters: only for these, the broker sends copies.
        self._granted: set[str] = set()
        self._released: set[str] = set()
        self._traits = Traits()
        self._returns = ContentMemory(RETURNED_S, RETURNS_MAX)
        # The publication whose return delay is measured, and its sending time.
        self._measured: tuple[int, float] | None = None
        self._copies = ContentMemory(RETURNED_S)
        for wanted in asked:
            self._asked.add(wanted)
        self.listen(own)

    def listen(self, topics: Iterable[str]) -> None:
        """Add filters of the agent itself."""
        for topic in topics:
            self._own.add(topic)

    def connected(self, traits: Traits, *, session_present: bool, away_s: float) -> None:
        """Begin a connection. Its session is the old one, with messages that it still has to send, or a new one."""
        self._traits = traits
        if session_present:
            self._returns.wait(away_s)
            self._copies.wait(away_s)
            if self._measured is not None:
                self._measured = (self._measured[0], self._measured[1] + away_s)
            return
        self._measured = None
        self._returns.span_s = RETURNED_S
        self._returns.clear()
        self._copies.clear()
        self._granted.clear()
        for filter_ in self._released:
            self._asked.discard(filter_)
        self._released.clear()

    def asked(self, filter_: str) -> None:
        """Note that a filter of the federation is being requested."""
        self._released.discard(filter_)
        self._asked.add(filter_)

    def released(self, filter_: str) -> None:
        """Note that it is being given up. Until the broker has confirmed that, publications may arrive for it."""
        self._released.add(filter_)

    def granted(self, filter_: str) -> None:
        """Note that the broker has granted a subscription."""
        self._granted.add(filter_)

    def ended(self, filter_: str) -> None:
        """Note that the broker has ended a subscription."""
        self._granted.discard(filter_)
        if filter_ in self._released:
            self._released.discard(filter_)
            self._asked.discard(filter_)

    def written(self, now: float, publications: list[Written]) -> None:
        """Note publications sent to the broker. Those that match one of our own subscriptions will come back."""
        if not len(self._asked):
            return
        match = self._asked_matches.match
        returns = self._returns
        for topic, payload in publications:
            if match(topic.decode()):
                key = hash((topic, payload))
                if self._measured is None and not returns.is_awaited(key):
                    self._measured = (key, now)
                returns.add(now, key, 1)
        if self._measured is not None and now - self._measured[1] > returns.span_s:
            # The publication never came back. Measure with another one, and begin with the usual time.
            self._measured = None
            returns.span_s = RETURNED_S

    def sift(
        self, now: float, publications: list[Publication]
    ) -> tuple[list[Publication], list[Publication], list[Publication]]:
        """Return the messages for the agent itself, the publications of the broker's clients, and the others."""
        own: list[Publication] = []
        fresh: list[Publication] = []
        rest: list[Publication] = []
        counters = self._counters
        for publication in publications:
            topic = publication[1]
            if len(self._own) and self._own_matches.match(topic):
                own.append(publication)
                continue
            matched = self._asked_matches.match(topic)
            if not matched:
                # In NATS, `#` matches topics that begin with `$`, its own internal traffic.
                counters["host_unasked"] += 1
            elif publication[3]:
                counters["host_replays"] += 1
            elif self._is_copy(now, publication, matched):
                counters["host_copies"] += 1
            elif self._is_return(now, publication):
                counters["echoes_cancelled"] += 1
            else:
                fresh.append(publication)
                continue
            rest.append(publication)
        return own, fresh, rest

    def _is_copy(self, now: float, publication: Publication, matched: tuple[str, ...]) -> bool:
        if not self._traits.sends_copies:
            return False
        awaited = sum(1 for filter_ in matched if filter_ in self._granted) if len(matched) > 1 else 1
        if awaited <= 1 and not len(self._copies):
            return False
        key = hash(publication[0])
        if self._copies.take(now, key):
            return True
        if awaited > 1:
            self._copies.add(now, key, awaited - 1)
        return False

    def _is_return(self, now: float, publication: Publication) -> bool:
        if not len(self._returns):
            return False
        key = key_of(publication[0])
        if self._measured is not None and key == self._measured[0]:
            lag_s = now - self._measured[1]
            if lag_s <= self._returns.span_s:
                self._returns.span_s = RETURNED_S + min(lag_s, LAG_S_MAX)
            self._measured = None
        # With DUP it may be one that came back before, which we had no time to acknowledge.
        return self._returns.take(now, key) or (publication[4] and self._returns.was_taken(key))

    def carried(self, run: bytes, count: int) -> tuple[bytes, int]:
        """Return the part of a run that this broker supports under its own topics, and its number of publications."""
        refused = [character.encode() for character in self._traits.refused_characters]
        if not any(character in run for character in refused):
            return run, count
        kept = [
            run[start:end]
            for start, end in split(run)
            if not any(character in topic_bytes_of(run, start) for character in refused)
        ]
        self._counters["topics_not_carried"] += count - len(kept)
        return b"".join(kept), len(kept)
