"""Plan of a run of the load generator, checked before anything starts."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from hanse.errors import LocalError
from hanse.load.packets import STAMP_BYTES

COUNT_MAX = 50_000_000
PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
CLIENTS_MAX = 10_000
# Packet ids have 16 bits and are reused in turn. With at most half of them under way, none is ambiguous.
WINDOW_MAX = 32_767


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a broker, in its parts."""

    host: str
    port: int
    username: str | None = None
    password: str | None = None


def parse_url(url: str) -> Address:
    """Return the address in `mqtt://[user:password@]host[:port]`, or `tcp://`.

    Raises:
        LocalError: the text is not such a URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LocalError(f"The URL of a broker is malformed ({error}); expected mqtt://host:port.") from error
    if parts.scheme not in {"mqtt", "tcp"} or not parts.hostname:
        raise LocalError(
            f"The URL of a broker begins with {parts.scheme!r}; "
            "the load generator supports mqtt://host:port, without TLS."
        )
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Address(parts.hostname, port or 1883, user, password)


@dataclass(frozen=True, slots=True)
class Load:
    """Plan of one run.

    Attributes:
        publish_urls: brokers to which the publishers connect, in turn.
        subscribe_urls: brokers of the subscribers, likewise. Each subscriber should receive every message.
        publishers: number of publishing connections.
        subscribers: number of subscribing connections.
        count: messages per publisher.
        size_bytes: size of a payload, stamp included.
        qos: QoS of the publications.
        subscribe_qos: QoS of the subscriptions; None is the same as `qos`.
        rate_per_s: rate of all publishers together; None is as fast as possible.
        window: largest number of unacknowledged QoS 1 and 2 messages per publisher. The broker may ask for fewer. None
            is a value that suits Mosquitto: a large one at QoS 1, a small one at QoS 2, where Mosquitto searches a list
            for each packet (12,000 messages/s with 100 under way, 6,000 with 10,000).
        topic: `{publisher}` becomes the publisher's number, `{topic}` one of `topics` numbers, in turn.
        topics: number of distinct topics per publisher.
        filter: filter of the subscriptions; None derives it from `topic`.
        warm_up: first messages of each publisher, which count for loss, but not for rate and latency.
        settle_s: wait between the last SUBACK and the first message, because interest has to spread.
        idle_s: time without arrivals after which a waiting subscriber gives up.
        verify: whether every byte of a payload is compared, or only its stamp and length.
        processes: number of processes of the publishers, and of the subscribers.
    """

    publish_urls: tuple[str, ...]
    subscribe_urls: tuple[str, ...]
    publishers: int = 1
    subscribers: int = 1
    count: int = 100_000
    size_bytes: int = 64
    qos: int = 0
    subscribe_qos: int | None = None
    rate_per_s: float | None = None
    window: int | None = None
    topic: str = "load/{publisher}"
    topics: int = 1
    filter: str | None = None
    warm_up: int = 0
    settle_s: float = 0.5
    idle_s: float = 5.0
    verify: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("publishers", 1, CLIENTS_MAX),
            ("subscribers", 0, CLIENTS_MAX),
            ("count", 1, COUNT_MAX),
            ("size_bytes", STAMP_BYTES, PAYLOAD_BYTES_MAX),
            ("qos", 0, 2),
            ("window_or_default", 1, WINDOW_MAX),
            ("topics", 1, 100_000),
            ("warm_up", 0, self.count - 1),
            ("processes", 1, 64),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise LocalError(f"The load's {name.removesuffix('_or_default')} is {value}; expected {low} to {high}.")
        if self.subscribe_qos not in {None, 0, 1, 2}:
            raise LocalError(f"The load's subscribe_qos is {self.subscribe_qos}; expected 0, 1 or 2.")
        if self.rate_per_s is not None and self.rate_per_s <= 0:
            raise LocalError(f"The load's rate is {self.rate_per_s}/s; expected more than 0, or no rate.")
        if self.topics > 1 and "{topic}" not in self.topic:
            raise LocalError(f"{self.topics} topics were requested, but {self.topic!r} has no {{topic}} in it.")
        if not self.publish_urls or not self.subscribe_urls:
            raise LocalError("The load has no broker to publish to, or none to subscribe at; name one of each.")
        for url in (*self.publish_urls, *self.subscribe_urls):
            parse_url(url)

    @property
    def window_or_default(self) -> int:
        """Window, chosen by QoS if none was given."""
        if self.window is not None:
            return self.window
        return 100 if self.qos == 2 else 10_000

    def topics_of(self, publisher: int) -> list[str]:
        """Return the topics that a publisher uses in turn."""
        return [
            self.topic.replace("{publisher}", str(publisher)).replace("{topic}", str(number))
            for number in range(self.topics)
        ]

    def subscription(self) -> str:
        """Filter of the subscribers."""
        if self.filter is not None:
            return self.filter
        # A wildcard stands for a whole level, whatever else is in it.
        levels = self.topic.split("/")
        return "/".join("+" if "{publisher}" in level or "{topic}" in level else level for level in levels)
