"""The gateway's connections to federators: interest goes there, replays come from there.

A worker has one `Federators`. Ask a broker's federator like this:

    connection = federators.connection(broker_id)      # None if the broker has no federator
    if connection is not None and connection.is_open:
        answer = await connection.ask("replay", {...}, timeout_s=2, on_part=take)

`hanse.federator.gateways` is the other side.
"""

from hanse.gateway.federators.connection import FederatorConnection, FederatorLogin
from hanse.gateway.federators.federators import Federators
from hanse.gateway.federators.reports import Held, Reporter

__all__ = ["FederatorConnection", "FederatorLogin", "Federators", "Held", "Reporter"]
