"""Interest learned from the host broker's acknowledgements (`unknown_interest = learn`).

An MQTT 5 broker acknowledges a publication of QoS 1 with "no matching subscribers" exactly if nobody subscribes to its
topic. A federator that delivers everything for a while therefore finds the topics of unknown subscriptions.

Rules:

1. While the broker's counts show unknown subscriptions that no other remedy explains, the federator claims `#`, for a
   limited time. It does so again only if more become unknown.
2. Meanwhile it delivers publications of QoS 0 at QoS 1, because only these are answered.
3. A topic with a subscriber at the broker that no known filter matches becomes interest. The number of such topics is
   limited.
4. A topic that matches a subscription of the federator's own is left out: the broker counts it as a subscriber.
5. Learned interest in a topic ends when the broker answers that nobody subscribes to it, and all of it when no
   subscription is unknown any more.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from hanse.interest import Report, Subscribed, Unsubscribed
from hanse.mqtt.publication import split, topic_of, with_qos

SOURCE = "learned"
CLIENT = "(learned)"
LOOK_EVERY_S = 0.5
# Other remedies get this time to explain unknown subscriptions.
PATIENCE_S = 3.0
TOPICS_MAX = 10_000
# Publications whose acknowledgements are awaited.
_SENT_MAX = 20_000
# Topics that were judged; further ones are judged again.
_JUDGED_MAX = 20_000
# Share of the processor for comparing topics with known filters.
_JUDGING_SHARE = 0.05
_QOS = 2
_log = logging.getLogger(__name__)


class Learning:
    """Learner of one host broker.

    Args:
        learn_s: maximum time of a claim.
        unknown: returns the number of unknown subscriptions; None while it is not known.
        claim: called with whether everything is wanted.
        is_known: returns whether a filter of a client matches a topic.
        is_own: returns whether a subscription of the federator's own matches a topic.
        take: called with a source and its reports.
        held: returns client, filter and QoS of the interest of a source.
        counters: counts `interest_learned` and `interest_learned_max`.
    """

    def __init__(
        self,
        learn_s: float,
        *,
        unknown: Callable[[], int | None],
        claim: Callable[[bool], None],
        is_known: Callable[[str], bool],
        is_own: Callable[[str], bool],
        take: Callable[[str, list[Report]], None],
        held: Callable[[str], Iterable[tuple[str, str, int]]],
        counters: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learn_s = learn_s
        self._unknown = unknown
        self._claim = claim
        self._is_known = is_known
        self._is_own = is_own
        self._take = take
        self._held = held
        self._counters = counters
        self._clock = clock
        self.is_active = False
        self._until_s = 0.0
        self._unknown_since_s: float | None = None
        # Number of unknown subscriptions when the last claim ended: they cannot be learned.
        self._given_up = 0
        self._topics: set[str] = set()
        # Number of a publication to its topic.
        self._sent: dict[int, str] = {}
        self._judged: set[str] = set()
        self._free_at_s = 0.0

    @property
    def topics(self) -> int:
        """Number of learned topics."""
        return len(self._topics)

    async def watch(self) -> None:
        """Claim and release as the counts demand, until cancelled."""
        self.restore()
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def restore(self) -> None:
        """Restore the topics that a former process has learned."""
        self._topics = {wanted for _, wanted, _ in self._held(SOURCE)}

    def look(self) -> None:
        """Begin or end the claim (rules 1 and 5)."""
        unknown, now_s = self._unknown(), self._clock()
        if unknown is None:
            return
        if not unknown:
            self._unknown_since_s = None
            self._given_up = 0
            self._end()
            self._forget(sorted(self._topics))
        elif self.is_active:
            if now_s >= self._until_s:
                self._given_up = unknown
                self._end()
        elif self._unknown_since_s is None:
            self._unknown_since_s = now_s
        elif now_s - self._unknown_since_s >= PATIENCE_S and unknown > self._given_up:
            self._begin(now_s, unknown)

    def _begin(self, now_s: float, unknown: int) -> None:
        _log.info(
            "%d subscriptions at the host broker are unknown: for %g s all publications are delivered there, to learn "
            "which topics are wanted",
            unknown,
            self._learn_s,
        )
        self.is_active = True
        self._until_s = now_s + self._learn_s
        self._judged.clear()
        self._claim(True)

    def _end(self) -> None:
        if self.is_active:
            self.is_active = False
            self._sent.clear()
            self._claim(False)
            _log.info("learning has ended; %d topics are interest because of it", len(self._topics))

    # --- publications -------------------------------------------------------------------------------------------------

    def raised(self, body: bytes) -> bytes:
        """Return publications of QoS 0 at QoS 1 (rule 2)."""
        return b"".join([with_qos(body[start:end], 1) for start, end in split(body)])

    def sent(self, first_number: int, body: bytes) -> None:
        """Note publications of QoS 1 that were handed to the broker."""
        for offset, (start, _) in enumerate(split(body)):
            topic = topic_of(body, start)
            if topic not in self._judged and len(self._sent) < _SENT_MAX:
                self._sent[first_number + offset] = topic

    def unmatched(self, unmatched: list[tuple[int, str]]) -> None:
        """Note that nobody at the broker subscribes to the topics of these publications."""
        for number, topic in unmatched:
            self._sent.pop(number, None)
            if topic in self._topics:
                self._forget([topic])

    def acknowledged(self, numbers: Iterable[int]) -> None:
        """Note that the broker has these publications; somebody subscribes to those that were not unmatched."""
        if not self._sent:
            return
        new = [topic for number in numbers if (topic := self._sent.pop(number, None)) and self._is_wanted(topic)]
        if not new:
            return
        learned = [topic for topic in dict.fromkeys(new) if topic not in self._topics]
        learned, left_out = learned[: TOPICS_MAX - len(self._topics)], learned[TOPICS_MAX - len(self._topics) :]
        self._counters["interest_learned_max"] += len(left_out)
        self._counters["interest_learned"] += len(learned)
        self._topics.update(learned)
        self._take(SOURCE, [Subscribed(CLIENT, topic, _QOS) for topic in learned])

    def _is_wanted(self, topic: str) -> bool:
        """Judge a topic that somebody subscribes to (rules 3 and 4), within a share of the processor's time."""
        begun_s = self._clock()
        if topic in self._judged or begun_s < self._free_at_s:
            return False
        is_wanted = not self._is_own(topic) and not self._is_known(topic)
        if len(self._judged) >= _JUDGED_MAX:
            self._judged.clear()
        self._judged.add(topic)
        self._free_at_s = begun_s + (self._clock() - begun_s) / _JUDGING_SHARE
        return is_wanted

    def _forget(self, topics: list[str]) -> None:
        if topics:
            self._topics.difference_update(topics)
            self._judged.difference_update(topics)
            self._take(SOURCE, [Unsubscribed(CLIENT, topic) for topic in topics])
