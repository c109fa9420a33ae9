"""Subscriptions at the host broker that its log never showed: their discovery, and the warning about the others.

remedies        the remedies in their order, and the warning if they do not suffice
snapshots       the broker's subscription tree, when it is needed; `broker_output` asks for it
hints           the broker's log file and database
learning        the broker's acknowledgements
"""

from hanse.federator.unknown.broker_output import broker_output
from hanse.federator.unknown.learning import Learning
from hanse.federator.unknown.remedies import UnknownInterest

__all__ = ["Learning", "UnknownInterest", "broker_output"]
