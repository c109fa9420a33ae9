"""Settings and bounds of one client's session at the gateway. Each bound says what a larger value costs."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

# Subscriptions per client that the gateway remembers. A larger table makes a failover slower: about 1 us per filter.
SUBSCRIPTIONS_MAX: Final = 10_000

# Bytes of SUBSCRIBE and UNSUBSCRIBE packets that a broker has not answered yet. Beyond it the client is refused.
UNANSWERED_BYTES_MAX: Final = 1 << 20

# Bytes of a broker's packet that is no PUBLISH. SUBACK has at most one byte per filter of a request.
ANSWER_BYTES_MAX: Final = 1 << 20

# Filters per SUBSCRIBE that the gateway sends by itself at another broker.
FILTERS_PER_PACKET: Final = 64

# Bytes of QoS 0 publications and of requests that wait while no broker is attached. Beyond it the client's socket is
# not read. Larger values keep more through a failover, and cost that much memory per client.
PENDING_BYTES_MAX: Final = 256 * 1024

# Bytes of publications that wait for the end of a replay, or for a client that acknowledges slowly. Beyond it the
# broker's socket is not read.
LATE_BYTES_MAX: Final = 1 << 20

# Bytes of a replay that the client may lack. Beyond it the rest of the replay is dropped and counted. A federator
# retains 64 MiB for all its neighbours together.
REPLAY_BYTES_MAX: Final = 8 << 20

# A client without a broker for longer than this is counted: `attached_late`.
ATTACHED_S: Final = 2.0

# For this time after a return, messages in the queue of the former session are compared with those that the client has.
DRAIN_S: Final = 10.0

# Timeout for CONNACK and the SUBACKs of a broker that a client moves to. Afterwards another broker is tried.
RESTORE_TIMEOUT_S: Final = 5.0

# Publications that may be outstanding before MQTT 5, in both directions: Mosquitto's default.
WINDOW_BEFORE_MQTT_5: Final = 20

# A broker that has answered nothing to a client's will within this time will not answer.
WILL_TIMEOUT_S: Final = 10.0


def make_client_id() -> bytes:
    """Return an id for a client that sent an empty one."""
    return b"hanse-" + secrets.token_hex(8).encode()


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the gateway for its clients.

    Attributes:
        failover: keep what a move to another broker needs. False: pass packets through, and read only what the
            gateway has to know.
        hold_bytes: a packet towards the client is passed on whole up to this size, and in pieces above it.
        packet_bytes_max: a packet of a client above this size is refused.
        kept_bytes_max: publications of QoS 1 and 2 of one client that wait for the broker's acknowledgement. Beyond it
            the client's socket is not read, and a single larger publication is passed on without being kept.
        replay_window_s: publications that were acknowledged within this time before a crash are sent again.
        replay_window_bytes: how much of them is kept per client.
        retention_s: how long the gateway remembers what the client received. It must cover the time that federators
            retain publications.
        hashes_max: how many publications per client it remembers (8 bytes each).
        will: `gateway` takes the will out of CONNECT and publishes it when the client is gone; `broker` leaves it.
        qos2_in_doubt: what to do with a publication of QoS 2 that the lost broker may have delivered: send it again, or
            close the client.
        drain_old: whether messages that an old session queued are delivered (`missing`) or dropped (`discard`).
        settle_s: how long an orderly move waits for outstanding acknowledgements.
        overlap_s: maximum difference between the times at which one publication arrives at two brokers.
        lag_s: the same for publications whose content occurs only once in the replay.
        watch_s: how long after a replay the new broker's publications are compared with what the client has.
        replay_timeout_s: how long the new broker's publications wait for the replay.
        subscribe_barrier: hold SUBACK until `barrier_passed`.
        make_client_id: makes the id of a client that sent an empty one.
    """

    failover: bool = True
    hold_bytes: int = 64 * 1024
    packet_bytes_max: int = 268_435_460
    kept_bytes_max: int = 4 << 20
    replay_window_s: float = 1.0
    replay_window_bytes: int = 1 << 20
    retention_s: float = 10.0
    hashes_max: int = 65_536
    will: Literal["gateway", "broker"] = "gateway"
    qos2_in_doubt: Literal["resend", "close"] = "resend"
    drain_old: Literal["missing", "discard"] = "missing"
    settle_s: float = 2.0
    overlap_s: float = 0.5
    lag_s: float = 2.0
    watch_s: float = 3.0
    replay_timeout_s: float = 5.0
    subscribe_barrier: bool = False
    make_client_id: Callable[[], bytes] = make_client_id
