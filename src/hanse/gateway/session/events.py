"""Events of a session, which tell its driver what to do or what has happened. They are rare; data never causes one."""

from typing import NamedTuple


class Subscription(NamedTuple):
    """One filter of a client.

    `options` is the byte of SUBSCRIBE (requested QoS, No Local, Retain As Published, Retain Handling); `qos` is the
    granted one. `identifier` is 0 where the client gave none.
    """

    filter: bytes
    qos: int
    options: int
    identifier: int


class Accepted(NamedTuple):
    """Success: CONNACK has gone to the client. This event comes once."""

    session_present: bool


class BrokerRefused(NamedTuple):
    """The broker answered CONNECT with a refusal, or with less than the client was promised.

    If it is final, the client has the refusal and `Close` follows. Otherwise close the connection to the broker, then
    `attach` another one or `refuse`.
    """

    code: int
    is_final: bool
    text: str


class Redial(NamedTuple):
    """Write `to_broker`, close the connection, dial the same broker again, and `attach`."""


class BrokerWanted(NamedTuple):
    """Dial any broker and `attach`: the client is gone, and its will must be published."""


class MoveAsked(NamedTuple):
    """The broker sent DISCONNECT 0x8B, 0x9C or 0x9D, which the client does not see: `detach`, then `attach` another."""

    code: int


class Close(NamedTuple):
    """Write `to_client`, close the client's connection, then call `client_lost`. `reason` is a bounded label."""

    code: int
    reason: str


class CloseBroker(NamedTuple):
    """Write `to_broker`, then close the connection to the broker."""


class Ended(NamedTuple):
    """The session is over: close what is open and drop the object.

    `will` states what happened to the client's will: `none`, `published`, `broker` (left to the broker), `cancelled` or
    `lost`.
    """

    will: str


class ReadyToMove(NamedTuple):
    """Nothing is outstanding any more, or `settle_s` has passed: `detach`, then `attach` another broker."""


class ReplayWanted(NamedTuple):
    """Ask the broker's federator for the publications it retains for these filters.

    Answer with `replayed` and `replay_ended`. `age_ms` is how far back the replay must reach.
    """

    filters: tuple[bytes, ...]
    age_ms: int


class Settled(NamedTuple):
    """A move to another broker is complete."""

    seconds: float
    resent: int
    replayed: int
    removed: int


class SubscriptionsWanted(NamedTuple):
    """The broker resumed a session whose filters are not known here; answer with `known_subscriptions`.

    If nobody knows them, the client is closed at a failover.
    """


class Subscribed(NamedTuple):
    """The broker granted these filters. With `subscribe_barrier`, SUBACK waits for `barrier_passed(token)`."""

    token: int
    subscriptions: tuple[Subscription, ...]


class Unsubscribed(NamedTuple):
    """The broker removed these filters."""

    filters: tuple[bytes, ...]


class TopicsAsked(NamedTuple):
    """Name a broker to a redirected client: the one of these filters, or of the topic that it publishes to.

    Without filters, the client has requested nothing for some time. Answer with `Redirection.name` or `no_broker`.
    """

    filters: tuple[str, ...]
    is_publisher: bool


Event = (
    Accepted
    | BrokerRefused
    | Redial
    | BrokerWanted
    | MoveAsked
    | Close
    | CloseBroker
    | Ended
    | ReadyToMove
    | ReplayWanted
    | Settled
    | SubscriptionsWanted
    | Subscribed
    | Unsubscribed
    | TopicsAsked
)
