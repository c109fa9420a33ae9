"""What this broker's clients want: from the adapters' reports to the protocol, to the disk and to those who ask.

Rules:

1. Adapters report, the registry merges (`hanse.interest`), and the protocol hears of a filter when the first wants it
   and when the last no longer does, under the name that the federation knows (`crossing`).
2. What is wanted is told to the keeper of retained state, which fetches it from the others. When the last client no
   longer wants a filter, interest in it may linger: it ends when the keeper says so (`release`).
3. Interest is on disk soon after it changed: a client that stays subscribed does not say so again (R38).
4. Each source is read in its own way until the federator ends: messages of the host (`hear`), log files and lists
   (`watch`). A list that cannot be had is counted, told once, and asked for again.
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
# slices delay these; shorter ones lengthen the whole, because each pause costs a turn of the event loop.
SLICE_S = 0.01
PAUSE_S = 0.002
# Filters of a part, the least that is applied at once: 0.3 ms each without compiled modules.
_PART = 16
# Changes of at least this many filters have a line in the log.
_LOGGED_FROM = 100
_log = logging.getLogger(__name__)


class LocalInterest:
    """The interest of one broker's clients.

    Args:
        machine: asked which groups are of interest here.
        sources: the adapters.
        state: where interest is kept.
        registry: merges their reports; others may read it.
        crossing: which filters may go out, and under which names.
        poll_interval_s: between two lists.
        step: gives the protocol an event.
        note: told of a group, and whether local interest in it began (or ended).
        want_retained: told of filters that are wanted, by their names in the federation.
        unwant_retained: told of a filter that is not wanted any more; calls `release`, perhaps later.
        on_bridges: given reports, takes note of the host's bridges among them.
        on_shares: called when a share name is new here.
        counters: to count into: `lists_failed`.
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
        # Known, and wanted by nobody any more.
        self._lingering: set[str] = set()
        self._on_bridges = on_bridges
        self._on_shares = on_shares
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        # As the federation has them, and as the protocol was told.
        self._known: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_dirty = False
        # As saved last.
        self._ledger_changes = 0
        self._gateway_changes = 0
        self._is_restored = False
        self._is_stopped = False
        # Filters whose QoS is still to be applied (None: no client wants it), and when that goes on.
        self._waiting: dict[str, int | None] = {}
        self._work: asyncio.TimerHandle | None = None
        self._is_working = False

    def __len__(self) -> int:
        """How many filters the protocol was told of."""
        return len(self._known)

    # --- life ---------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Take up what the process before this one knew."""
        document = self._state.read_interest()
        if document is not None:
            try:
                self._change(self._registry.load(self._loop.time(), time.time(), document))
            except LocalError as error:  # JSON, and not ours: it never stops a start
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
        """What the host session has to hear."""
        return self._sources.topics()

    def start(self) -> None:
        """Take what is known without hearing anything."""
        self._take(self._sources.start())

    def watch(self) -> list[Coroutine[Any, Any, None]]:
        """What reads files and asks for lists, to be run until the end."""
        followers = [self._follow(*source) for source in self._sources.files]
        return [*followers, *(self._poll(*source) for source in self._sources.polls)]

    def stop(self) -> None:
        """Nothing runs out any more."""
        self._is_stopped = True
        self._arm_expiry()
        if self._work is not None:
            self._work.cancel()
            self._work = None

    def save_if_changed(self) -> None:
        """Keep it, if there is anything new to keep."""
        adapter = self._sources.counted
        # The ledger may have changed although the registry did not.
        gateway = self._sources.gateway
        is_ledger_new = adapter is not None and adapter.ledger.changes != self._ledger_changes
        if self._is_dirty or is_ledger_new or (gateway is not None and gateway.changes != self._gateway_changes):
            self.save()

    def save(self) -> None:
        """Keep it (rule 3)."""
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
        """Take the messages of one read from the host, for the adapters."""
        source, reports = "", list[Report]()
        for publication in publications:
            for its_source, its_reports in self._sources.hear(publication):
                if its_source != source:
                    self._report(source, reports)
                    source, reports = its_source, []
                reports += its_reports
        self._report(source, reports)

    def lose_host(self) -> None:
        """The host was away: adapters may have missed something."""
        self._take(self._sources.lost())

    def _take(self, reported: Iterable[tuple[str, list[Report]]]) -> None:
        for source, reports in reported:
            self._report(source, reports)

    def take(self, source: str, reports: list[Report]) -> None:
        """Take reports that no adapter read from the host."""
        self._report(source, reports)

    def _report(self, source: str, reports: list[Report]) -> None:
        if reports:
            self._change(self._registry.apply(self._loop.time(), source, reports))
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
        """Ask the broker for its subscriptions, again and again."""
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
                    _log.warning("subscriptions are not to be had: %s", error)
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
            # What was restored is whole before the first link.
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
            self._tell(Subscribed(filter_))
        self._want_retained([filter_ for filter_, _ in wanted])

    def release(self, filter_: str) -> None:
        """Interest in a filter has ended for good."""
        if filter_ in self._lingering:
            self._lingering.discard(filter_)
            self._known.discard(filter_)
            self._tell(Unsubscribed(filter_))

    def _tell(self, event: Subscribed | Unsubscribed) -> None:
        """Tell the protocol, and who notes it where this broker's interest in the group began or ended with it."""
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
        self._arm_expiry()
