"""Interest of this broker's clients: from the adapters' reports to the protocol, the disk and other modules.

Rules:

1. Adapters report, and the registry merges (`hanse.interest`). The protocol is told when the first client wants a
   filter and when the last no longer does, under the name in the federation (`crossing`).
2. The keeper of retained state is told of wanted filters, and fetches their retained messages from the others. When the
   last client no longer wants a filter, interest in it may linger: it ends when the keeper says so (`release`).
3. Interest is on disk soon after a change: a client that stays subscribed does not report it again (R38).
4. Each source is read in its own way until the federator ends: messages of the host broker (`hear`), log files and
   lists (`watch`). An unavailable list is counted, logged once, and requested again.
5. The reports of one read make one change. A change of many filters is applied in slices, so that a client that
   subscribes to thousands of filters at once delays neither links nor the federator's pages.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from hanse.errors import HanseError, LocalError
from hanse.federator.crossing import Crossing, FilterCounts
from hanse.federator.sources import InterestSources
from hanse.federator.store import StateDirectory
from hanse.interest import Change, InterestRegistry, MosquittoFileAdapter, PollAdapter, Report
from hanse.interest.fetch import ListAddress, fetch
from hanse.interest.follow import LogFollower
from hanse.interest.follow import reports as reports_of
from hanse.mqtt.publication import Publication
from hanse.protocol.events import Subscribed, Unsubscribed
from hanse.protocol.machine import Machine

FOLLOW_EVERY_S = 0.1
# A change of many filters is applied in slices of this length, with pauses in which links and HTTP are served. Longer
# slices delay these. Shorter ones prolong the change, because each pause costs a turn of the event loop.
SLICE_S = 0.01
PAUSE_S = 0.002
# Smallest number of filters that is applied at once: 0.3 ms each without compiled modules.
_PART = 16
# Changes of at least this many filters have a line in the log.
_LOGGED_FROM = 100
_log = logging.getLogger(__name__)


class LocalInterest:
    """Interest of one broker's clients.

    Args:
        machine: machine that knows which groups are of interest here.
        sources: adapters.
        state: state directory that keeps the interest.
        registry: registry that merges their reports; others may read it.
        crossing: rules and names for leaving filters.
        poll_interval_s: interval between requests of a list.
        step: function that gives the protocol an event.
        note: called with a group, and whether local interest in it began (or ended).
        want_retained: called with wanted filters, by their names in the federation.
        unwant_retained: called with a filter that is no longer wanted; calls `release`, perhaps later.
        on_bridges: called with reports; notes the host broker's bridges among them.
        on_shares: called when a share name is new here.
        counters: counters of `lists_failed`.
    """

    def __init__(
        self,
        machine: Machine,
        sources: InterestSources,
        state: StateDirectory,
        *,
        registry: InterestRegistry,
        crossing: Crossing,
        poll_interval_s: float,
        step: Callable[[Subscribed | Unsubscribed], None],
        note: Callable[[str, bool], None],
        want_retained: Callable[[list[str]], None],
        unwant_retained: Callable[[str], None],
        on_bridges: Callable[[Sequence[Report]], None],
        on_shares: Callable[[], None],
        counters: Counter[str],
    ) -> None:
        self._machine = machine
        self._sources = sources
        self._state = state
        self._registry = registry
        self._outward = FilterCounts(crossing.outward_filter)
        self._poll_interval_s = poll_interval_s
        self._step = step
        self._note = note
        self._want_retained = want_retained
        self._unwant_retained = unwant_retained
        # Known filters that nobody wants any more.
        self._lingering: set[str] = set()
        self._on_bridges = on_bridges
        self._on_shares = on_shares
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        # Filters in the names of the federation, as reported to the protocol.
        self._known: set[str] = set()
        # Filters that are wanted beside those of clients, and without their retained messages.
        self._claimed: list[str] = []
        self._claim_filters = crossing.outward_filter
        self._timer: asyncio.TimerHandle | None = None
        self._is_dirty = False
        # State at the last save.
        self._ledger_changes = 0
        self._gateway_changes = 0
        self._is_restored = False
        self._is_stopped = False
        # Filters whose QoS must still be applied (None: no client wants it), and when that continues.
        self._waiting: dict[str, int | None] = {}
        self._work: asyncio.TimerHandle | None = None
        self._is_working = False

    def __len__(self) -> int:
        """Return the number of filters that the protocol knows."""
        return len(self._known)

    # --- start and end ------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Load the interest of the former process."""
        document = self._state.read_interest()
        if document is not None:
            try:
                self._change(self._registry.load(self._loop.time(), time.time(), document))
            except LocalError as error:  # JSON of another kind: it never stops a start
                self._state.drop_interest(str(error))
            else:
                self._restore_ledger(document)
                self._restore_gateways(document)
        self._is_restored = True

    def _restore_ledger(self, document: dict[str, Any]) -> None:
        adapter = self._sources.counted
        if adapter is None:
            return
        rows = document.get("ledger")
        if rows is None:  # written by a version without a ledger
            rows = [[client, False, [[text, qos]]] for client, text, qos in self._registry.held_of(adapter.source)]
        adapter.ledger.load(rows)

    def _restore_gateways(self, document: dict[str, Any]) -> None:
        adapter = self._sources.gateway
        if adapter is None:
            return
        rows, saved_at_s = document.get("gateway", []), document["saved_at_s"]
        away_s = max(0.0, time.time() - saved_at_s)
        held = self._registry.held_of(adapter.source)
        self._report(adapter.source, adapter.load(self._loop.time(), away_s, rows, held))

    def topics(self) -> list[str]:
        """Return the topics that the host session needs."""
        return self._sources.topics()

    def start(self) -> None:
        """Apply the interest that needs no message."""
        self._take(self._sources.start())

    def watch(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks that read files and request lists until the end."""
        followers = [self._follow(*source) for source in self._sources.files]
        return [*followers, *(self._poll(*source) for source in self._sources.polls)]

    def stop(self) -> None:
        """Stop the expiry of interest."""
        self._is_stopped = True
        self._arm_expiry()
        if self._work is not None:
            self._work.cancel()
            self._work = None

    def save_if_changed(self) -> None:
        """Save the interest if it changed."""
        adapter = self._sources.counted
        # The ledger may have changed although the registry did not.
        gateway = self._sources.gateway
        is_ledger_new = adapter is not None and adapter.ledger.changes != self._ledger_changes
        if self._is_dirty or is_ledger_new or (gateway is not None and gateway.changes != self._gateway_changes):
            self.save()

    def save(self) -> None:
        """Save the interest (rule 3)."""
        self._is_dirty = False
        document = self._registry.dump(self._loop.time(), time.time())
        if self._sources.counted is not None:
            document["ledger"] = self._sources.counted.ledger.dump()
            self._ledger_changes = self._sources.counted.ledger.changes
        if self._sources.gateway is not None:
            document["gateway"] = self._sources.gateway.dump(self._loop.time())
            self._gateway_changes = self._sources.gateway.changes
        self._state.write_interest(document)

    # --- sources ------------------------------------------------------------------------------------------------------

    def hear(self, publications: Iterable[Publication]) -> None:
        """Hand the messages of one read from the host broker to the adapters."""
        source, reports = "", list[Report]()
        for publication in publications:
            for its_source, its_reports in self._sources.hear(publication):
                if its_source != source:
                    self._report(source, reports)
                    source, reports = its_source, []
                reports += its_reports
        self._report(source, reports)

    def lose_host(self) -> None:
        """Note that the host broker was away, so adapters may have missed something."""
        self._take(self._sources.lost())

    def _take(self, reported: Iterable[tuple[str, list[Report]]]) -> None:
        for source, reports in reported:
            self._report(source, reports)

    def take(self, source: str, reports: list[Report]) -> None:
        """Apply reports that no adapter read from the host broker."""
        self._report(source, reports)

    def _report(self, source: str, reports: list[Report]) -> None:
        if reports:
            self._change(self._registry.apply(self._loop.time(), source, reports))
            self._count()
            self._on_bridges(reports)

    async def _follow(self, adapter: MosquittoFileAdapter, path: Path) -> None:
        """Read a broker's log file as it grows."""
        with closing(LogFollower(path)) as follower:
            while True:
                found = follower.poll()
                if found is None:
                    await asyncio.sleep(FOLLOW_EVERY_S)
                else:
                    self._report(adapter.source, reports_of(adapter, found))

    async def _poll(self, adapter: PollAdapter, address: ListAddress) -> None:
        """Request the broker's subscriptions repeatedly."""
        adapter.restore(self._registry.held_of(adapter.source))
        is_told = False
        while True:
            try:
                rows = await asyncio.to_thread(fetch, address, adapter.listing, adapter.counters)
                self._report(adapter.source, adapter.listed(rows))
                is_told = False
            except HanseError as error:
                self._report(adapter.source, adapter.failed())
                self._counters["lists_failed"] += 1
                if not is_told:
                    _log.warning("the list of subscriptions is not available: %s", error)
                is_told = True
            await asyncio.sleep(self._poll_interval_s)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _change(self, change: Change) -> None:
        if change.is_empty:
            return
        self._is_dirty = True
        if len(change.added) + len(change.removed) >= _LOGGED_FROM:
            _log.info(
                "interest in %d filters begins, and in %d ends: %s",
                len(change.added),
                len(change.removed),
                ", ".join([filter_ for filter_, _ in change.added[:3]] or change.removed[:3]) + ", ...",
            )
        self._waiting.update(change.added)
        self._waiting.update(change.changed)
        self._waiting.update(dict.fromkeys(change.removed))
        if not self._is_working and self._work is None:
            self._work_off()
        if change.shares_added:
            self._on_shares()
        self._arm_expiry()

    def _work_off(self) -> None:
        """Apply waiting changes for a short time, and the rest after others had their turn (rule 5)."""
        self._work = None
        self._is_working = True
        until_s = time.perf_counter() + SLICE_S
        try:
            # Restored interest is complete before the first link.
            while self._waiting:
                self._apply(list(itertools.islice(self._waiting.items(), _PART)))
                if self._is_restored and time.perf_counter() >= until_s:
                    break
        finally:
            self._is_working = False
            if self._waiting and not self._is_stopped:
                self._work = self._loop.call_later(PAUSE_S, self._work_off)

    def _apply(self, part: list[tuple[str, int | None]]) -> None:
        for filter_, _ in part:
            del self._waiting[filter_]
        wanted, ended = self._outward.apply(
            [(filter_, qos) for filter_, qos in part if qos is not None],
            [filter_ for filter_, qos in part if qos is None],
        )
        for filter_ in ended:
            self._lingering.add(filter_)
            self._unwant_retained(filter_)
        self._lingering.difference_update([filter_ for filter_, _ in wanted])
        added = [filter_ for filter_, _ in wanted if filter_ not in self._known]
        for filter_ in added:
            self._known.add(filter_)
            if filter_ not in self._claimed:
                self._tell(Subscribed(filter_))
        self._want_retained([filter_ for filter_, _ in wanted])

    def _count(self) -> None:
        """Show what the registry dropped and let expire, and what adapters refused."""
        for reason, count in self._registry.drops.items():
            self._counters[f"interest_dropped_{reason}"] = count
        for cause, count in self._registry.expired.items():
            self._counters[f"interest_expired_{cause}"] = count
        for what, count in self._sources.counters().items():
            self._counters[f"interest_{what}"] = count

    def release(self, filter_: str) -> None:
        """End the interest in a filter for good."""
        if filter_ in self._lingering:
            self._lingering.discard(filter_)
            self._known.discard(filter_)
            if filter_ not in self._claimed:
                self._tell(Unsubscribed(filter_))

    def claim(self, is_everything_wanted: bool) -> None:
        """Want everything that may enter this broker, or no longer, independently of clients."""
        claimed = self._claim_filters("#") if is_everything_wanted else []
        before, self._claimed = self._claimed, claimed
        for filter_ in sorted({*claimed} - {*before} - self._known):
            self._tell(Subscribed(filter_))
        for filter_ in sorted({*before} - {*claimed} - self._known):
            self._tell(Unsubscribed(filter_))

    def _tell(self, event: Subscribed | Unsubscribed) -> None:
        """Tell the protocol, and call `note` if this broker's interest in the group began or ended with it."""
        group = self._machine.settings.grouping.group_of(event.filter)
        was_local = self._machine.is_local(group)
        self._step(event)
        if self._machine.is_local(group) != was_local:
            self._note(group, not was_local)

    def _arm_expiry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._registry.next_expiry_s()
        if due is not None and not self._is_stopped:
            self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._change(self._registry.expire(self._loop.time()))
        self._count()
        self._arm_expiry()
