"""A host that speaks MQTT 3.1.1: which of the publications that it sends are its clients'.

Such a host has no No Local, no subscription identifiers, no Retain Handling and no Retain As Published. So what it
sends holds more than what its clients published, and this takes the rest out:

- what is for the agent itself, told by its topic instead of an identifier;
- *replays*: a new subscription brings the retained messages under it. RETAIN is set on those and on nothing else
  (3.3.1.3), so whatever has it set is old. (And a client's RETAIN on a live publication is not to be seen.)
- *copies*: a host may send a publication once for each subscription that it matches (`Traits.sends_copies`), one after
  another or not. Of n subscriptions that the host has granted n copies are awaited, and the first is the publication.
- *returns*: what we publish there comes back through our own subscriptions. Each publication that was written while
  one of our subscriptions matched it cancels one equal arrival.

Rules: contents are known by a hash; an entry lives `RETURNED_S` longer than things take to come back at present, not
counting the time that the host was away, and cancels as many arrivals as it stands for: of equal publications the
number stays right. Where an awaited arrival never comes, an honest publication with the same topic and payload within
that time is taken for it; the page on brokers says so. What is taken out is counted, and acknowledged at once.

How long things take is measured on one publication at a time. A host with a long queue before us would otherwise
outlast the memory, and two such hosts would hand the same publication to each other for ever.
"""

from collections import Counter
from collections.abc import Iterable

from hanse.federator.echoes import DELIVERED_S, ContentMemory, key_of
from hanse.mqtt.publication import Publication, split, topic_bytes_of
from hanse.mqtt.survey import Traits
from hanse.mqtt.v311 import Written
from hanse.protocol.trie import FilterIndex, MatchCache

# As long as the memory for bridges; copies of one publication are sent together, but a queue may stand before them.
RETURNED_S = DELIVERED_S
# A host that takes longer than this to send something back is not waited for.
LAG_S_MAX = 600.0
# Some 150 bytes each, those included that came back within their time: 20,000 a second for ten seconds.
RETURNS_MAX = 200_000


class OlderHost:
    """What the session at such a host has to know.

    Args:
        asked: the filters of the federation that are subscribed to already.
        own: the agent's own.
        counters: where to count what is taken out.
    """

    def __init__(self, asked: Iterable[str], own: Iterable[str], counters: Counter[str]) -> None:
        self._counters = counters
        # From the moment that a filter is asked for until the host has confirmed its end: something may come for it.
        self._asked = FilterIndex()
        self._asked_matches = MatchCache(self._asked)
        self._own = FilterIndex()
        self._own_matches = MatchCache(self._own)
        # Those that the host has granted: only for these it sends copies.
        self._granted: set[str] = set()
        self._released: set[str] = set()
        self._traits = Traits()
        self._returns = ContentMemory(RETURNED_S, RETURNS_MAX)
        # The publication on which it is measured how long things take to come back, and when it left.
        self._measured: tuple[int, float] | None = None
        self._copies = ContentMemory(RETURNED_S)
        for wanted in asked:
            self._asked.add(wanted)
        self.listen(own)

    def listen(self, topics: Iterable[str]) -> None:
        """Filters of the agent's own."""
        for topic in topics:
            self._own.add(topic)

    def connected(self, traits: Traits, *, session_present: bool, away_s: float) -> None:
        """The host let us in; its session is the old one, with what it has yet to send, or is not."""
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
        """A filter of the federation is being subscribed to."""
        self._released.discard(filter_)
        self._asked.add(filter_)

    def released(self, filter_: str) -> None:
        """It is being given up: until the host has confirmed it, publications for it may come."""
        self._released.add(filter_)

    def granted(self, filter_: str) -> None:
        """The host has granted a subscription."""
        self._granted.add(filter_)

    def ended(self, filter_: str) -> None:
        """The host has ended a subscription."""
        self._granted.discard(filter_)
        if filter_ in self._released:
            self._released.discard(filter_)
            self._asked.discard(filter_)

    def written(self, now: float, publications: list[Written]) -> None:
        """These went out to the host. Those that one of our own subscriptions matches will come back."""
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
            # It was never sent back; let another one tell, and begin with the usual time.
            self._measured = None
            returns.span_s = RETURNED_S

    def sift(
        self, now: float, publications: list[Publication]
    ) -> tuple[list[Publication], list[Publication], list[Publication]]:
        """Those for the agent itself, those of the host's clients, and the rest."""
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
                # NATS lets `#` match topics that begin with `$`, its own inner traffic.
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
        # With DUP it may be one that came back before: we had no time to acknowledge it.
        return self._returns.take(now, key) or (publication[4] and self._returns.was_taken(key))

    def carried(self, run: bytes, count: int) -> tuple[bytes, int]:
        """What of a run this host can carry under its own topics, and how many they are."""
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
