"""Subscriptions that the log never showed, read from the host broker's own subscription tree.

Rules:

1. The federator asks for the tree when it begins to receive the log, and after each gap: until then it may have missed
   anything. It asks again, at growing intervals, while the broker's counts show unknown subscriptions, or known ones
   whose end was missed. A subscription that one tree does not explain may never be explained.
2. The tree shows neither clients nor share names of shared subscriptions. If the broker counts more of them than the
   log showed, their filters are interest of a client without a name, until none is unknown any more. Levels above them,
   which may also be filters, become interest only if the broker counts more than these filters explain.
3. A failure is logged once, until the next success.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from hanse.errors import HanseError
from hanse.federator.unknown.broker_output import BrokerOutput
from hanse.interest import Report, Subscribed, Unsubscribed
from hanse.interest.ledger import Ledger
from hanse.interest.tree import Tree

SOURCE = "mosquitto-tree"
SHARED_CLIENT = "(shared)"
LOOK_EVERY_S = 0.1
# The broker stops for the output: 11 ms for 20,000 filters.
AGAIN_S = 10.0
AGAIN_S_MAX = 600.0
_QOS_SHARED = 2
_log = logging.getLogger(__name__)


class Snapshots:
    """Reader of the tree, when it is needed.

    Args:
        output: where the broker prints its tree.
        ledger: the known subscriptions, with the comparison with the broker's counts.
        is_listening: returns whether the federator receives the broker's log.
        prompt: makes the broker log more than a block of its output.
        take: called with a source and its reports.
        held: returns client, filter and QoS of the interest of this source.
    """

    def __init__(
        self,
        output: BrokerOutput,
        ledger: Ledger,
        *,
        is_listening: Callable[[], bool],
        prompt: Callable[[], None],
        take: Callable[[str, list[Report]], None],
        held: Callable[[], Iterable[tuple[str, str, int]]],
    ) -> None:
        self._prompt = prompt
        self._output = output
        self._ledger = ledger
        self._is_listening = is_listening
        self._take = take
        self._gaps_filled = -1
        self._next_s = 0.0
        self._again_s = AGAIN_S
        self._held = held
        # Filters of unknown shared subscriptions that are interest.
        self._shared: set[str] = set()
        # Unknown shared subscriptions that the filters of the last tree cover; None until they are counted.
        self._shared_covered: int | None = 0
        self._has_perhaps = False
        self._is_failing = False

    @property
    def shared_covered(self) -> int:
        """Number of the unknown shared subscriptions that are interest nevertheless."""
        return self._shared_covered or 0

    def check(self) -> int:
        """Return the broker's process id.

        Raises:
            LocalError: it cannot be found; the message says why.
        """
        return self._output.find()

    async def watch(self) -> None:
        """Read the tree whenever it is needed, until cancelled."""
        loop = asyncio.get_running_loop()
        self._shared = {wanted for _, wanted, _ in self._held()}  # of a former process
        while True:
            if self._is_listening() and self._is_due(loop.time()):
                await self._fill(loop.time())
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_due(self, now_s: float) -> bool:
        if self._gaps_filled != self._ledger.gaps:
            return not self._is_failing or now_s >= self._next_s
        self._follow_shared()
        state = self._ledger.state
        is_explained = not state.ended_unseen and (state.unknown or 0) <= self.shared_covered
        if is_explained:
            self._again_s = AGAIN_S
        return not is_explained and now_s >= self._next_s

    def _follow_shared(self) -> None:
        """Compare the number of unknown shared subscriptions with those that are covered (rule 2)."""
        state = self._ledger.state
        if state.unknown is None:
            return
        if self._shared_covered is None:
            is_all = self._has_perhaps or state.unknown_shared <= len(self._shared)
            self._shared_covered = state.unknown_shared if is_all else len(self._shared)
        self._shared_covered = min(self._shared_covered, state.unknown_shared)
        if not self._shared_covered and self._shared:
            self._want_shared(set())

    async def _fill(self, now_s: float) -> None:
        self._next_s = now_s + self._again_s
        self._again_s = min(2 * self._again_s, AGAIN_S_MAX)
        gaps = self._ledger.gaps
        self._ledger.begin_snapshot()
        try:
            tree = await self._output.tree(self._prompt)
            self._ledger.require_own(tree.subscriptions)
        except HanseError as error:
            self._ledger.abandon_snapshot()
            if not self._is_failing:
                _log.warning("the broker's subscription tree cannot be read: %s", error)
            self._is_failing = True
            return
        self._is_failing = False
        if gaps != self._ledger.gaps:  # another gap: subscriptions missed in it are missing in the comparison
            self._ledger.abandon_snapshot()
            return
        self._gaps_filled = gaps
        self._enter(tree)

    def _enter(self, tree: Tree) -> None:
        unknown_shared = self._ledger.state.unknown_shared
        reports = self._ledger.take_snapshot(tree.subscriptions, is_whole=tree.is_whole)
        new = sum(isinstance(report, Subscribed) for report in reports)
        ended = sum(isinstance(report, Unsubscribed) for report in reports)
        if new or ended:
            _log.info(
                "the broker's subscription tree shows %d subscriptions that were unknown or doubtful, and that %d have "
                "ended; %d in all",
                new,
                ended,
                len(tree.subscriptions),
            )
        self._take("mosquitto-log", reports)
        known = self._ledger.shared_filters()
        missing = tree.shared - known
        self._has_perhaps = unknown_shared > len(missing)
        self._want_shared(missing | (tree.shared_perhaps - known) if self._has_perhaps else missing)
        self._shared_covered = None

    def _want_shared(self, filters: Iterable[str]) -> None:
        wanted = set(filters)
        reports: list[Report] = [Unsubscribed(SHARED_CLIENT, one) for one in sorted(self._shared - wanted)]
        reports += [Subscribed(SHARED_CLIENT, one, _QOS_SHARED) for one in sorted(wanted - self._shared)]
        self._shared = wanted
        if reports:
            self._take(SOURCE, reports)
