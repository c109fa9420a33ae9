"""One client's session across brokers, without IO: bytes and times in; bytes and events out.

There is one `Session` per client connection, and at most one broker connection per session at a time. `now` is a
monotonic time in seconds.

The driver:

1. `new_session(settings, counters, now)`, then `start(connect, rest, now)`. `client_id` is then set, also for a client
   that sent an empty one; place the client by it.
2. Dial the broker, then `attach(now, limits)`, where `limits` is `contract.minimum_of` the brokers to which the client
   may move. Or `refuse(code, now)`.
3. Per read: `client_data(data, now)` or `broker_data(data, now)`, with `bytes`. Discard data of a former broker
   connection.
4. After every call of any method, flush: write `to_client` and `to_broker` and clear them; stop or resume reading the
   client's socket by `holds_client` and the broker's by `holds_broker` (and by the driver's own back-pressure); then
   handle and clear `events`, in order. An event handler may call methods again, and flushes after that.
5. `tick(now)` about once per second for every session, and every 100 ms while `is_moving`. No timer per session.
6. When the client's connection ends: `client_lost(now)`, also after a `Close`. Then go on until `Ended`: with
   `will = gateway` the broker connection stays open until the will is published.
7. When the broker's connection ends: wait until the gateway has judged the broker. If it is dead: `detach(now)`, write
   the returned bytes to the old connection if that still takes bytes, close it, dial another broker, `attach`. If it is
   not: `broker_lost(now)`, which ends the client, because a client that its broker has ended must not be continued
   elsewhere.
8. For an orderly move (drain, return): `begin_move(now)`, go on until `ReadyToMove`, then as for a dead broker.

Each class of the module `events` describes what the driver must do for it. The driver also judges brokers, and controls
the pace of failovers, timeouts of dialling and of CONNECT, and limits on connections and rates.
"""

from hanse.gateway.session.contract import BrokerLimits, limits_of_connack, minimum_of
from hanse.gateway.session.counters import Counters
from hanse.gateway.session.events import Event, Subscription
from hanse.gateway.session.keeping import Keeping
from hanse.gateway.session.passing import PassThrough
from hanse.gateway.session.session import Session
from hanse.gateway.session.settings import Settings

__all__ = [
    "BrokerLimits",
    "Counters",
    "Event",
    "Session",
    "Settings",
    "Subscription",
    "limits_of_connack",
    "minimum_of",
    "new_session",
]


def new_session(settings: Settings, counters: Counters, now: float) -> Session:
    """Return the session of a client that has just connected."""
    return (Keeping if settings.failover else PassThrough)(settings, counters, now)
