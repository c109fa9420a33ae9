"""Detection of local subscriptions: adapters turn a broker's messages into reports, a registry merges the reports.

Adapters and registry are pure: messages or bytes in, reports and changes out. The shell (the federator) owns the
sockets, the clock and the disk:

1. It subscribes at the host broker to `adapter.topics()`, or follows the file with `follow.LogFollower`, or requests
   the list with `fetch.fetch`.
2. It hands each message to `adapter.message(topic, payload)`, or each chunk to `adapter.feed(chunk)`.
3. It hands the reports to `InterestRegistry.apply(now_s, adapter.source, reports)` and acts on the change.
4. It calls `adapter.lost()` whenever lines may have been missed, and `registry.expire(now_s)` when it is due.
5. It saves `registry.dump(...)` with `store.save`, and hands the result of `store.read` to `registry.load(...)`.

What Mosquitto's log does not tell follows from its counts (`ledger`), and from three forms in which it shows what it
holds: its subscription tree (`tree`), its database (`mosquitto_database`) and its log file (`log_replay`).
"""

from hanse.interest.announce import AnnounceAdapter
from hanse.interest.beacon import BeaconAdapter
from hanse.interest.emqx import EmqxAdapter
from hanse.interest.mosquitto_file import MosquittoFileAdapter
from hanse.interest.mosquitto_log import MosquittoLogAdapter
from hanse.interest.poll import PollAdapter
from hanse.interest.registry import Change, InterestRegistry, InterestSettings
from hanse.interest.reports import (
    BridgeGone,
    BridgeSeen,
    ClientBack,
    ClientLeft,
    Confirmed,
    Gap,
    Report,
    Session,
    Subscribed,
    Unsubscribed,
)
from hanse.interest.static import StaticAdapter

__all__ = [
    "AnnounceAdapter",
    "BeaconAdapter",
    "BridgeGone",
    "BridgeSeen",
    "Change",
    "ClientBack",
    "ClientLeft",
    "Confirmed",
    "EmqxAdapter",
    "Gap",
    "InterestRegistry",
    "InterestSettings",
    "MosquittoFileAdapter",
    "MosquittoLogAdapter",
    "PollAdapter",
    "Report",
    "Session",
    "StaticAdapter",
    "Subscribed",
    "Unsubscribed",
]
