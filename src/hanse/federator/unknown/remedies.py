"""Subscriptions at the host broker that its log never showed: the remedies, and the warning if they do not suffice.

A client that subscribed before the federator listened, or while it could not, is not in the broker's log topics. Such a
client gets nothing from other brokers. The ledger (`hanse.interest.ledger`) counts such subscriptions; this module
finds them if possible, and reports the others to the operator.

Rules:

1. At the start the log lists the remedies, and their consequences.
2. The log has one line when unknown subscriptions appear or their number grows, and one line when there are none left.
3. The warning names the operator's remedies.
4. If the broker publishes no counts, one line says that unknown subscriptions cannot be noticed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hanse.errors import LocalError
from hanse.federator.unknown.broker_output import BrokerOutput
from hanse.federator.unknown.hints import Hints
from hanse.federator.unknown.learning import Learning
from hanse.federator.unknown.snapshots import SOURCE, Snapshots
from hanse.interest import MosquittoLogAdapter, Report
from hanse.interest.ledger import LedgerState, plain_filter
from hanse.protocol.topics import matches

LOOK_EVERY_S = 0.5
# Mosquitto's default `sys_interval` is 10 s, and the comparison needs three ticks.
WITHOUT_COUNTS_S = 60.0
REMEDY = (
    "Until their clients subscribe again (a restart of the clients does that), these get nothing from other brokers"
)
SETTING = "With `broker_output` the federator finds them by itself"
_SHOWN = "the number of unknown ones is shown on /healthz and as hanse_federator_interest_unknown"
_log = logging.getLogger(__name__)


class UnknownInterest:
    """The remedies, and the warning.

    Args:
        adapter: the reader of the broker's log and counts; None if the federator has none.
        output: where the broker prints its subscription tree; None if that cannot be read.
        log, database: the broker's log file and database; None if they cannot be read.
        own_prefix: prefix of the client ids of federators.
        is_host_up: returns whether the host broker is connected.
        is_listening: returns whether the federator receives the broker's log.
        prompt: makes the broker log more than a block of its output.
        take: called with a source and its reports.
        held: returns client, filter and QoS of the interest of a source.
    """

    # Set if topics of unknown subscriptions may be learned.
    learning: Learning | None = None

    def __init__(
        self,
        adapter: MosquittoLogAdapter | None,
        *,
        output: BrokerOutput | None,
        log: Path | None,
        database: Path | None,
        own_prefix: str,
        is_host_up: Callable[[], bool],
        is_listening: Callable[[], bool],
        prompt: Callable[[], None],
        take: Callable[[str, list[Report]], None],
        held: Callable[[str], Iterable[tuple[str, str, int]]],
    ) -> None:
        self._adapter = adapter
        self._take = take
        self._snapshots = None
        if adapter is not None and output is not None:
            self._snapshots = Snapshots(
                output,
                adapter.ledger,
                is_listening=is_listening,
                prompt=prompt,
                take=take,
                held=lambda: held(SOURCE),
            )
        self._hints = None
        if adapter is not None and (log is not None or database is not None):
            self._hints = Hints(
                log, database, own_prefix=own_prefix, ledger=adapter.ledger, source=adapter.source, take=take
            )
        self._is_host_up = is_host_up
        # Number in the last log line.
        self._told_unknown = 0
        self._is_told_of_no_counts = False
        self._connected_since: float | None = None

    def state(self) -> LedgerState | None:
        """Return the comparison with the broker's counts; None without one."""
        if self._adapter is None:
            return None
        state = self._adapter.ledger.state
        if state.unknown is None or self._snapshots is None:
            return state
        return replace(state, unknown=max(0, state.unknown - self._snapshots.shared_covered))

    def unknown(self) -> int | None:
        """Return how many subscriptions are unknown; None while that is not known."""
        state = self.state()
        return None if state is None else state.unknown

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
            "ticks": 0 if self._adapter is None else self._adapter.ledger.ticks,
            "learned": 0 if self.learning is None else self.learning.topics,
            "remedy": self._remedy() + "." if state.unknown else None,
        }

    def _remedy(self) -> str:
        return f"{REMEDY}. {SETTING}" if self._snapshots is None else REMEDY

    def unmatched(self, unmatched: list[tuple[int, str]]) -> None:
        """Take numbers and topics of publications that nobody at the broker subscribes to."""
        if self.learning is not None:
            self.learning.unmatched(unmatched)
        if self._adapter is None or not self._adapter.ledger.is_uncertain:
            return
        for _, topic in unmatched:
            reports = self._adapter.ledger.unmatched(lambda wanted: matches(plain_filter(wanted), topic))  # noqa: B023
            if reports:
                self._take(self._adapter.source, reports)

    def watch(self) -> list[Coroutine[Any, Any, None]]:
        """Return the work that runs until cancelled."""
        if self._adapter is None:
            return []
        self._announce()
        # The tree shows everything, so the files are needed only where it cannot be read.
        remedies = (self._snapshots or self._hints, self.learning)
        return [self._look_again(), *(remedy.watch() for remedy in remedies if remedy is not None)]

    def _announce(self) -> None:
        """Log the remedies (rule 1)."""
        try:
            if self._snapshots is not None:
                pid = self._snapshots.check()
                _log.info(
                    "all subscriptions at the host broker can be read from its subscription tree (process %d)", pid
                )
            elif self._hints is not None:
                _log.info(
                    "subscriptions from before now can be read from %s, if these still hold them; %s",
                    " and ".join(self._hints.check()),
                    _SHOWN,
                )
            else:
                _log.info(
                    "subscriptions that were made before now, or while the federator was away, are known only if they "
                    "are in its own state: neither broker_output nor broker_log or broker_database is set; %s",
                    _SHOWN,
                )
            if self.learning is not None:
                _log.info("what is still unknown is learned from the broker's acknowledgements (unknown_interest)")
        except LocalError as error:
            _log.warning("subscriptions that were made before now cannot be read from the broker yet: %s", error)

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.look(loop.time())
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self, now_s: float) -> None:
        """Log the changes since the last look."""
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
            _log.warning(
                "The host broker holds %d subscriptions that are not known here. %s.", state.unknown, self._remedy()
            )
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
