"""Subscriptions at the host broker that nothing reported: the warning about them.

A client that subscribed before the federator listened, or while it could not, is not in the broker's log topics. Such a
client gets nothing from other brokers. The ledger (`hanse.interest.ledger`) knows how many such subscriptions there
are; this module tells the operator.

Rules:

1. The log has one line when unknown subscriptions appear or their number grows, and one line when there are none left.
2. The warning says what the operator can do.
3. If the broker publishes no counts, one line says that unknown subscriptions cannot be noticed.
"""

import asyncio
import logging
from collections.abc import Callable

from hanse.interest import MosquittoLogAdapter
from hanse.interest.ledger import LedgerState

LOOK_EVERY_S = 0.5
# Mosquitto's default `sys_interval` is 10 s, and the comparison needs three ticks.
WITHOUT_COUNTS_S = 60.0
REMEDY = (
    "Until their clients subscribe again (a restart of the clients or of the broker does that), these get nothing from "
    "other brokers"
)
_log = logging.getLogger(__name__)


class UnknownInterest:
    """The warning about unknown subscriptions.

    Args:
        adapter: the reader of the broker's log and counts; None if the federator has none.
        is_host_up: returns whether the host broker is connected.
    """

    def __init__(self, adapter: MosquittoLogAdapter | None, *, is_host_up: Callable[[], bool]) -> None:
        self._adapter = adapter
        self._is_host_up = is_host_up
        # As said in the log.
        self._told_unknown = 0
        self._is_told_of_no_counts = False
        self._connected_since: float | None = None

    def state(self) -> LedgerState | None:
        """Return the comparison with the broker's counts; None if nothing compares."""
        return None if self._adapter is None else self._adapter.ledger.state

    def page(self) -> dict[str, object] | None:
        """Return the part of `/healthz`."""
        state = self.state()
        if state is None:
            return None
        return {
            "known": state.known,
            "unknown": state.unknown,
            "ended_unseen": state.ended_unseen,
            "doubtful": state.doubtful,
            "remedy": REMEDY + "." if state.unknown else None,
        }

    async def watch(self) -> None:
        """Look at the comparison until cancelled."""
        if self._adapter is None:
            return
        loop = asyncio.get_running_loop()
        while True:
            self.look(loop.time())
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self, now_s: float) -> None:
        """Log what changed since the last look."""
        state = self.state()
        if state is None:
            return
        if not self._is_host_up():
            self._connected_since = None
        elif self._connected_since is None:
            self._connected_since = now_s
        if state.unknown is None:
            self._tell_of_no_counts(now_s)
            return
        if state.unknown > self._told_unknown:
            _log.warning("The host broker holds %d subscriptions that are not known here. %s.", state.unknown, REMEDY)
        elif not state.unknown and self._told_unknown:
            _log.info("All subscriptions at the host broker are known again.")
        self._told_unknown = state.unknown

    def _tell_of_no_counts(self, now_s: float) -> None:
        since = self._connected_since
        if since is None or now_s - since < WITHOUT_COUNTS_S or self._is_told_of_no_counts:
            return
        self._is_told_of_no_counts = True
        _log.warning(
            "The host broker publishes no count of its subscriptions, so subscriptions that are not known here cannot "
            "be noticed; set sys_interval to 10 in mosquitto.conf, and let the federator's login read "
            "$SYS/broker/subscriptions/count and the other topics that `hanse interest config` names."
        )
