"""The gateway's connections to federators: interest goes there, replays come from there."""

from hanse.gateway.federators.connection import FederatorConnection, FederatorLogin

__all__ = ["FederatorConnection", "FederatorLogin"]
