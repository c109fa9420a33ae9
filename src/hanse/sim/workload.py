"""Clients of a simulated federation: subscribers and publishers that come and go.

Filters overlap on purpose: exact ones, `+`, `#`, and some that cover others. A publication whose topic matches several
groups must still reach each subscriber once. Publications come in bursts, as a federator reads them from its broker.
"""

from dataclasses import dataclass

from hanse.sim.federation import Federation
from hanse.sim.host import Client

SITES = ("berth", "crane", "gate", "yard")
KINDS = ("temp", "level", "door")
TOPICS = tuple(f"port/{site}/{kind}" for site in SITES for kind in KINDS)
FILTERS = (
    *TOPICS,
    *(f"port/{site}/+" for site in SITES),
    *(f"port/+/{kind}" for kind in KINDS),
    "port/crane/#",
    "port/#",
    "+/yard/temp",
    "#",
)
# Overlapping filters are the interesting ones. The widest ones are rare in practice.
FILTER_WEIGHTS = (*([4] * len(TOPICS)), *([2] * len(SITES)), *([2] * len(KINDS)), 2, 2, 1, 1)


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """Activity of the clients. Rates are per announcement interval."""

    subscribers: int = 24
    # Subscribers that leave and are replaced.
    turnover: float = 0.15
    bursts: float = 1.4
    burst_messages_max: int = 5
    # Time before clients begin, in announcement intervals.
    warm_up_a: float = 0.5


class Workload:
    """Driver of the clients of one federation, until told to stop."""

    def __init__(self, federation: Federation, profile: WorkloadProfile) -> None:
        self._federation = federation
        self._engine = federation.engine
        self._random = federation.random
        self._a = federation.interval_s
        self._profile = profile
        self._brokers = federation.overlay.identities
        self._clients: list[Client] = []
        self._made = 0
        self.messages = 0
        self.is_publishing = True
        self.is_changing = True

    def start(self) -> None:
        """Add the first clients and schedule the rest."""
        for _ in range(self._profile.subscribers):
            delay_s = self._random.uniform(0.0, self._profile.warm_up_a) * self._a
            self._engine.after(delay_s, self._come)
        self._engine.after(self._profile.warm_up_a * self._a, self._burst)
        if self._profile.turnover:
            self._engine.after(self._wait(self._profile.turnover), self._turn_over)

    def _wait(self, rate: float) -> float:
        return self._random.expovariate(rate) * self._a

    def _come(self) -> None:
        self._made += 1
        client = Client(f"client-{self._made}", self._random.choice(self._brokers))
        self._clients.append(client)
        for topic_filter in self._random.choices(FILTERS, FILTER_WEIGHTS, k=self._random.choice((1, 1, 2))):
            self._federation.subscribe(client, topic_filter)

    def _turn_over(self) -> None:
        """Remove a client, add a client. Sometimes do only one of the two."""
        if not self.is_changing:
            return
        if self._clients and self._random.random() < 0.7:
            client = self._clients.pop(self._random.randrange(len(self._clients)))
            for topic_filter in list(client.since_s):
                self._federation.unsubscribe(client, topic_filter)
        if len(self._clients) < self._profile.subscribers or self._random.random() < 0.3:
            self._come()
        self._engine.after(self._wait(self._profile.turnover), self._turn_over)

    def _burst(self) -> None:
        """Publish a few messages at one broker at once, on one topic or several."""
        if not self.is_publishing:
            return
        random = self._random
        broker = random.choice(self._brokers)
        topics = random.choices(TOPICS, k=random.choice((1, 1, 2, 3)))
        burst = []
        for _ in range(random.randint(1, self._profile.burst_messages_max)):
            self.messages += 1
            burst.append((self.messages, random.choice(topics), random.choice((0, 1, 1, 2))))
        self._federation.publish(broker, burst)
        self._engine.after(self._wait(self._profile.bursts), self._burst)
