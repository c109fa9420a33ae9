"""The gateway's connections to federators, for reports of interest and for replays.

A worker has one `Federators`, one `SessionRecords`, one `ConnectedClients`, one `WillReports`, and one `Replays` for
clients that have moved:

    replay = await replays.ask(broker_id, former_broker_id, filters, age_ms)

`hanse.federator.gateways` is the other side.
"""

from hanse.gateway.federators.clients import ConnectedClients
from hanse.gateway.federators.connection import FederatorConnection, FederatorLogin
from hanse.gateway.federators.federators import Federators
from hanse.gateway.federators.replays import Replay, Replays
from hanse.gateway.federators.reports import Held, Reporter
from hanse.gateway.federators.sessions import SessionRecord, SessionRecords
from hanse.gateway.federators.wills import WillReports

__all__ = [
    "ConnectedClients",
    "FederatorConnection",
    "FederatorLogin",
    "Federators",
    "Held",
    "Replay",
    "Replays",
    "Reporter",
    "SessionRecord",
    "SessionRecords",
    "WillReports",
]
