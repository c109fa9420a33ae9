"""Membership of a federator in a managed federation: it joins, follows the manager, reports, and leaves.

`roster` and `dialling` decide. This module is the shell that talks to the manager and keeps the time.

Rules:

1. Joining comes first, because it gives the id. Without an answer, the federator starts from its cache on disk. Without
   that it asks again, less and less often, because without an id it can do nothing.
2. One poll is always open. A federator that reaches the manager again first reports, so that the manager knows its own
   links before it replies with neighbours.
3. A report is sent when links change or are lost, and regularly. Groups are included only when they changed.
4. A refusal differs from absence. 404: report. 409: join again; with another id, the agent restarts. 401 and 403: join
   with the token. If that is refused as well, tell the operator and keep asking. Links stay: if this federator was
   revoked, its neighbours close them. A manager that lost its secret refuses everybody, which must not stop the data.
"""

import asyncio
import contextlib
import json
import logging
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.federator import membership_cache
from hanse.federator.dialling import Dialling
from hanse.federator.manager_client import ManagerClient, ManagerRefused
from hanse.federator.membership_cache import PEERS_KEPT_MAX, Membership
from hanse.federator.roster import Roster
from hanse.federator.words import (
    ANNOUNCEMENT_TOPIC,
    PROBE_FILTER,
    OverlayMap,
    Word,
    probe_answer,
    read_announcement,
    read_map,
    read_word,
)
from hanse.settings import parse_duration_s

ASK_S = 5.0  # timeout of an answer without waiting
POLL_WAIT_S = 25.0  # below the timeouts of proxies
PATIENCE_S = 5.0  # for a first answer, if there is a cache on disk
BACK_OFF_S = (0.25, 5.0)
REFUSED_S = 30.0
# Groups in one report. More would block the loop for more than a few ten ms, and the manager accepts 2 MiB. The rest is
# counted.
GROUPS_MAX = 5_000
GROUPS_BYTES_MAX = 1 << 20
HEALTH_INTERVAL_S = 5.0  # until the manager gives another
LEAVE_S = 2.0
_PROBE_PREFIX = PROBE_FILTER.removesuffix("+/+")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Federator's identity as it tells the manager.

    Args:
        ip: URL of the host broker for other machines.
        link: URL of the link listener; None without one.
        probe: `federator`, `broker` or `self`.
        claimed: id that it would like.
    """

    ip: str
    link: str | None
    probe: str
    claimed: int | None = None

    def document(self) -> dict[str, object]:
        """Return the fields that joins and reports have in common."""
        return {"ip": self.ip, "link": self.link, "probe": self.probe}


@dataclass(frozen=True, slots=True)
class Entry:
    """Result of entering: from the manager, or from the cache on disk."""

    membership: Membership
    is_from_disk: bool


class Door:
    """Joining: the credentials in their order, and the cache of the answer."""

    def __init__(self, client: ManagerClient, identity: Identity, token: str | None, directory: Path) -> None:
        self.client = client
        self.identity = identity
        self._token = token
        self._directory = directory

    async def enter(self) -> Entry:
        """Enter (rule 1).

        Raises:
            LocalError: The manager refuses, and there is no cache on disk.
        """
        kept = await asyncio.to_thread(membership_cache.read, self._directory)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        delay_s = BACK_OFF_S[0]
        while True:
            try:
                word = await self.join(kept.word if kept else None)
                return Entry(Membership(word, kept.overlay if kept else OverlayMap()), is_from_disk=False)
            except ManagerRefused as refusal:
                if kept is None:
                    raise LocalError(
                        f"The manager at {self.client.address} refuses this federator: {refusal.detail} "
                        "Give a token as HANSE_JOIN_TOKEN."
                    ) from refusal
                _log.error(
                    "the manager refuses this federator, which goes on with its cached membership: %s", refusal.detail
                )
                return Entry(kept, is_from_disk=True)
            except Unavailable as error:
                if kept is not None and loop.time() >= until_s:
                    _log.warning("no manager answers; starting from the cached membership: %s", error)
                    return Entry(kept, is_from_disk=True)
                _log.warning("no manager answers, asking again: %s", error)
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            delay_s = min(delay_s * 2, 1.0 if kept else BACK_OFF_S[1])

    async def join(self, former: Word | None) -> Word:
        """Join with the former credential, else the token, else nothing.

        Raises:
            ManagerRefused: All were refused; this is the last refusal.
            Unavailable: No manager answers.
        """
        credential = former.credential if former else None
        tried: list[str | None] = [shown for shown in (credential, self._token) if shown is not None] or [None]
        if self._token is None and credential is not None:
            tried.append(None)  # a manager without required tokens also admits federators whose credential it lost
        claimed = former.id if former else self.identity.claimed
        body = {**self.identity.document(), **({} if claimed is None else {"id": claimed})}
        for position, shown in enumerate(tried):
            try:
                answer = await self.client.ask("POST", "/api/v1/join", body, shown=shown, timeout_s=ASK_S)
                return read_word(answer)
            except ManagerRefused as refusal:
                if refusal.status not in {401, 403} or position == len(tried) - 1:
                    raise
            except RemoteError as error:
                raise Unavailable(f"{self.client.address} gave no usable reply: {error}") from error
        raise AssertionError("at least one attempt is made")


class MembershipShell:
    """Follows the manager while the agent runs.

    Args:
        expiry_s: time for which a neighbour may be unreachable before it counts as lost.
        counters: counters of the agent; those of this module begin with `manager_`.
        groups: function that returns the first rows of the agent's page of groups.
        publish: function that publishes at the host broker, at QoS 0.
        measure: function that publishes at the host broker, and calls back at the acknowledgement.
        gateway_listener: function that returns where gateways reach this federator; None for nowhere.
    """

    def __init__(
        self,
        door: Door,
        entry: Entry,
        directory: Path,
        *,
        announcement_interval_s: float,
        expiry_s: float,
        counters: "Counter[str]",
        groups: Callable[[int], list[dict[str, object]]],
        is_host_up: Callable[[], bool],
        publish: Callable[[str, bytes], int],
        measure: Callable[[Callable[[], None]], None],
        gateway_listener: Callable[[], str | None] = lambda: None,
    ) -> None:
        word = entry.membership.word
        self.identity = word.id
        self.word = word
        self.roster = Roster(word.id, expiry_s)
        self.must_restart = asyncio.Event()
        self.refusal: str | None = None
        self._counters = counters
        self._door = door
        self._client = door.client
        self._directory = directory
        self._step_s = min(1.0, max(0.05, announcement_interval_s / 4))
        self._host = platform.node() or "unknown"
        self._groups = groups
        self._is_host_up = is_host_up
        self._publish = publish
        self._measure = measure
        self._gateway_listener = gateway_listener
        self._latency_ms: float | None = None
        self._unanswered_s: float | None = None  # begin of a measurement that waits for the broker
        self._credential = word.credential
        self._told_groups: str | None = None
        self._told_lost: set[int] = set()
        self._told_own: set[int] = set()
        self._is_dirty = True
        self._is_in_contact = not entry.is_from_disk
        self._wants_map = asyncio.Event()
        self._wants_report = asyncio.Event()
        self._wants_settling = asyncio.Event()
        self._reporting = asyncio.Lock()
        self._dialling: Dialling | None = None
        self._up: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        now = self._now()
        self.roster.take_map(now - 3600, entry.membership.overlay)  # its age is unknown, so it is not fresh
        self.roster.take(now, word)
        if entry.is_from_disk:
            self.roster.lose_manager()
        self._wants_map.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self, dialling: Dialling) -> None:
        """Begin to dial, poll and report."""
        self._dialling = dialling
        tasks = {
            "dialling": self._keep_links,
            "polling": self._keep_contact,
            "reporting": self._keep_reporting,
            "mapping": self._keep_map,
        }
        self._tasks = [asyncio.create_task(self._guard(name, keep), name=name) for name, keep in tasks.items()]

    async def _guard(self, name: str, keep: Callable[[], Any]) -> None:
        """Run a task for ever: log unexpected errors, and go on. This is the edge of the shell."""
        while True:
            try:
                await keep()
            except Exception:  # noqa: BLE001 - see the docstring
                _log.exception("membership: %s", name)
                await asyncio.sleep(BACK_OFF_S[1])

    async def stop(self, *, is_leaving: bool) -> None:
        """Tell the manager that the federator leaves, and end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if is_leaving and self._is_in_contact:
            with contextlib.suppress(HanseError):
                body = {"id": self.identity}
                await self._client.ask("POST", "/api/v1/leave", body, shown=self._credential, timeout_s=LEAVE_S)
        with contextlib.suppress(LocalError):
            self._write()

    # --- input from the agent -----------------------------------------------------------------------------------------

    @staticmethod
    def topics() -> list[str]:
        """Return the topics that the session at the host broker needs."""
        return [ANNOUNCEMENT_TOPIC, PROBE_FILTER]

    def hear(self, topic: str, payload: bytes, *, is_retained: bool) -> bool:
        """Handle a message of the host broker; return False if it is for somebody else."""
        if topic.startswith(_PROBE_PREFIX):
            if not is_retained and topic.count("/") == 3:
                with contextlib.suppress(Unavailable):
                    self._publish(f"{topic}/{self.identity}", probe_answer(self._host, _now_us()))
                    self._counters["manager_probes_answered"] += 1
            return True
        if topic != ANNOUNCEMENT_TOPIC:
            return False
        if is_retained:
            self._counters["manager_announcements_refused"] += 1  # it may be of any age
            return True
        try:
            announcement = read_announcement(payload, self.identity, self._credential)
            if announcement is not None:
                self._counters["manager_announcements"] += 1
                if self.roster.take(self._now(), announcement):
                    self._note_change()
        except RemoteError as error:
            self._counters["manager_announcements_refused"] += 1
            _log.warning("%s", error)
        return True

    def link_up(self, identity: int) -> None:
        """Note that a link is up."""
        self._up.add(identity)
        self.roster.link_up(self._now(), identity)
        self._told_lost.discard(identity)
        self._note_link()

    def link_down(self, identity: int) -> None:
        """Note that a link is lost."""
        self._up.discard(identity)
        self.roster.link_down(self._now(), identity)
        self._wants_settling.set()

    def admit(self, identity: int) -> str | None:
        """Return why a federator that dials is refused; None to accept it."""
        refusal = self.roster.admit(self._now(), identity)
        if refusal is not None and not self.roster.is_map_fresh(self._now()):
            self._wants_map.set()
        return refusal

    def invite(self, identity: int) -> None:
        """Answer a federator that writes through the broker, where no handshake asks, if it may be a guest."""
        if self.admit(identity) is None and self.roster.invite(identity):
            self._wants_settling.set()

    @property
    def is_away(self) -> bool:
        """Return whether no manager answers."""
        return self.roster.is_away

    @property
    def own_links(self) -> int:
        """Return the links that this federator makes without the manager."""
        return len(self.roster.own)

    def unlinked(self) -> list[str]:
        """Return the ids of the manager's neighbours whose link is not up."""
        up = {peer.id for peer in self.roster.linked()}
        return [str(identity) for identity in sorted(self.roster.neighbours) if identity not in up]

    def page(self) -> dict[str, object]:
        """Return the part of the agent's health page."""
        return {
            "manager": self._client.address,
            "state": "refused" if self.refusal else "away" if self.roster.is_away else self.word.state,
            "refusal": self.refusal,
            "epoch": self.roster.epoch,
            "neighbours": sorted(self.roster.neighbours),
            "own_links": sorted(self.roster.own),
            "guests": sorted(self.roster.guests),
            "known_peers": len(self.roster.map.peers),
            "map_epoch": self.roster.map.epoch,
            "stale_words": self.roster.stale,
        }

    def _note_link(self) -> None:
        self._wants_report.set()
        self._wants_settling.set()

    def _note_change(self) -> None:
        self._is_dirty = True
        self._wants_map.set()
        self._wants_settling.set()

    # --- links ------------------------------------------------------------------------------------------------------

    async def _keep_links(self) -> None:
        assert self._dialling is not None
        while True:
            self._wants_settling.clear()
            now = self._now()
            wanted = self.roster.wanted(now)
            self._note_own(set(self.roster.own))
            await self._dialling.settle(now, wanted, self.roster.guests, set(self._up))
            lost = set(self.roster.lost(now))
            if lost - self._told_lost:
                _log.warning("neighbours cannot be reached: %s", sorted(lost))
                self._wants_report.set()
            self._told_lost = lost
            if self._is_dirty:
                await self._save()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._step_s):
                    await self._wants_settling.wait()

    def _note_own(self, own: set[int]) -> None:
        if own - self._told_own:
            self._counters["manager_relinks"] += 1
            _log.warning("no manager answers and neighbours are lost; linking to %s meanwhile", sorted(own))
        self._told_own = own

    async def _save(self) -> None:
        self._is_dirty = False
        try:
            await asyncio.to_thread(self._write)
        except LocalError as error:
            _log.error("%s", error)

    def _write(self) -> None:
        roster = self.roster
        word = replace(
            self.word,
            epoch=roster.epoch,
            changed_epoch=roster.changed_epoch,
            neighbours=tuple(roster.neighbours[one] for one in sorted(roster.neighbours)),
            credential=self._credential,
        )
        membership_cache.write(self._directory, Membership(word, roster.nearest(PEERS_KEPT_MAX)))

    # --- the manager --------------------------------------------------------------------------------------------------

    async def _keep_contact(self) -> None:
        delay_s = BACK_OFF_S[0]
        while True:
            try:
                if not self._is_in_contact:
                    await self._report()
                await self._poll()
                delay_s = BACK_OFF_S[0]
                continue
            except ManagerRefused as refusal:
                delay_s = BACK_OFF_S[0] if await self._is_mended(refusal) else REFUSED_S
            except Unavailable as error:
                self._lose_manager(error)
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - so that not all ask at once
            delay_s = min(2 * delay_s, BACK_OFF_S[1])

    async def _poll(self) -> None:
        after = self.roster.changed_epoch
        path = f"/api/v1/federators/{self.identity}/neighbors?after={after}&wait={POLL_WAIT_S:g}"
        started_s = self._now()
        answer = await self._client.ask("GET", path, shown=self._credential, timeout_s=POLL_WAIT_S + ASK_S)
        self._take(answer)
        if self.roster.changed_epoch == after and self._now() - started_s < 0.5:
            # Answered early with nothing new, as by a manager that ends.
            await asyncio.sleep(0.5)

    async def _report(self) -> None:
        """Report (rules 2 and 3)."""
        async with self._reporting:
            linked = self.roster.linked()
            own = [*self.roster.own, *self.roster.guests]
            rows, groups, left_out = fit_groups(self._groups(GROUPS_MAX))
            self._counters["manager_groups_left_out"] += left_out
            body: dict[str, object] = {
                **self._door.identity.document(),
                "epoch": self.roster.epoch,
                "neighbors": [peer.document() for peer in linked],
                "lost": self.roster.lost(self._now()),
            }
            listener = self._gateway_listener()
            if listener is not None:
                body["gateway"] = listener
            if self._door.identity.probe == "self":
                body["broker"] = {"ok": self._is_host_well(), "latency": self._latency_ms}
            if groups != self._told_groups or not self._is_in_contact:
                body["groups"] = rows
            path = f"/api/v1/federators/{self.identity}/report"
            answer = await self._client.ask("POST", path, body, shown=self._credential, timeout_s=ASK_S)
            self._told_groups = groups
            self._counters["manager_reports"] += 1
            reported = {peer.id for peer in linked} | set(own)
            if not self._is_in_contact:
                _log.info("the manager at %s answers", self._client.address)
                self._is_in_contact = True
                self._wants_map.set()
            self.refusal = None
            self.roster.find_manager()
            self._take(answer, reported)

    def _take(self, answer: dict[str, Any], reported: Collection[int] = ()) -> None:
        try:
            word = read_word(answer)
        except RemoteError as error:
            raise Unavailable(f"{self._client.address} gave no usable reply: {error}") from error
        before = self.roster.neighbours, self.roster.epoch
        if word.id != self.identity or not self.roster.take(self._now(), word, reported):
            return
        self._counters["manager_words"] += 1
        if word.settings != self.word.settings:
            _log.warning("the manager hands out other settings now; they apply from the next start on")
        self.word = replace(word, credential=self._credential)
        if before != (self.roster.neighbours, self.roster.epoch):
            self._note_change()

    def _lose_manager(self, error: Unavailable) -> None:
        if self._is_in_contact or not self.roster.is_away:
            _log.warning("no manager answers; going on without: %s", error)
        self._is_in_contact = False
        self.roster.lose_manager()
        self._wants_settling.set()

    async def _is_mended(self, refusal: ManagerRefused) -> bool:
        """Apply rule 4; return False if only the operator can help."""
        if refusal.status == 404:
            self._is_in_contact = False
            return True
        if refusal.status in {401, 403, 409}:
            try:
                word = await self._door.join(replace(self.word, credential=self._credential))
            except ManagerRefused as final:
                refusal = final
            except Unavailable as error:
                self._lose_manager(error)
                return True
            else:
                await self._enter_again(word)
                return True
        if self.refusal != refusal.detail:
            _log.error("the manager refuses this federator: %s", refusal.detail)
        self.refusal = refusal.detail
        return False

    async def _enter_again(self, word: Word) -> None:
        self.refusal = None
        self._credential = word.credential
        if word.id == self.identity:
            self._is_in_contact = False  # the links are reported before its reply counts
            self._is_dirty = True
            return
        _log.warning("this federator has another id now: %d, not %d; restarting", word.id, self.identity)
        self.word = word
        membership = Membership(word, self.roster.map)
        await asyncio.to_thread(membership_cache.write, self._directory, membership)
        self._is_dirty = False
        self.must_restart.set()

    async def _keep_reporting(self) -> None:
        while True:
            interval_s = self._report_interval_s()
            if self._door.identity.probe == "self":
                self._begin_measurement()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s * random.uniform(0.8, 1.0)):  # noqa: S311 - jitter
                    await self._wants_report.wait()
            await asyncio.sleep(min(0.05, self._step_s))  # changes that happen together are reported together
            self._wants_report.clear()
            if not self._is_in_contact or self.refusal is not None:
                continue  # the poll finds the manager again, or is admitted, and reports first
            try:
                await self._report()
            except ManagerRefused as refusal:
                _log.info("report: %s", refusal)  # the poll is refused as well, and resolves it
            except Unavailable as error:
                self._lose_manager(error)

    def _report_interval_s(self) -> float:
        interval_s = HEALTH_INTERVAL_S
        with contextlib.suppress(ValueError):
            interval_s = parse_duration_s(str(self.word.settings.get("health_interval", "")))
        if not self.word.is_up:
            return min(1.0, interval_s)  # the manager considered it gone: a report brings it back
        return max(0.05, interval_s) * (1.0 if self._door.identity.probe == "self" else 3.0)

    def _is_host_well(self) -> bool:
        """Return whether the host broker is healthy. It is not if it acknowledges nothing for a whole interval."""
        waits_s = 0.0 if self._unanswered_s is None else time.perf_counter() - self._unanswered_s
        return self._is_host_up() and waits_s < self._report_interval_s()

    def _begin_measurement(self) -> None:
        if not self._is_host_up():
            self._latency_ms = self._unanswered_s = None
            return
        if self._unanswered_s is not None:
            return
        begin_s = self._unanswered_s = time.perf_counter()

        def note() -> None:
            self._latency_ms = (time.perf_counter() - begin_s) * 1000
            self._unanswered_s = None

        try:
            self._measure(note)
        except Unavailable:
            self._unanswered_s = None

    async def _keep_map(self) -> None:
        """Fetch the map before it is needed, but not together with many others, which would burden the manager."""
        while True:
            await self._wants_map.wait()
            count = len(self.roster.map.peers)
            await asyncio.sleep(random.uniform(0, min(30.0, count / 50)))  # noqa: S311 - spread
            self._wants_map.clear()
            if self._is_in_contact:
                try:
                    answer = await self._client.ask(
                        "GET", "/api/v1/topology", shown=self._credential, timeout_s=2 * ASK_S
                    )
                    if self.roster.take_map(self._now(), read_map(answer)):
                        self._is_dirty = True
                except RemoteError as error:
                    _log.info("the manager's map cannot be used: %s", error)
                except Unavailable:
                    self._wants_map.set()
                    await asyncio.sleep(BACK_OFF_S[1])
            await asyncio.sleep(min(300.0, max(0.2, len(self.roster.map.peers) / 10)))


def _now_us() -> int:
    return time.time_ns() // 1000


def fit_groups(rows: Sequence[dict[str, object]]) -> tuple[list[dict[str, object]], str, int]:
    """Return the rows that fit into a report, their text, and the number of omitted rows: a larger body is refused."""
    kept, size = [], 2
    texts = []
    for row in rows:
        text = json.dumps(row, separators=(",", ":"))
        if size + len(text) + 1 <= GROUPS_BYTES_MAX:
            size += len(text) + 1
            texts.append(text)
            kept.append(row)
    return kept, ",".join(texts), len(rows) - len(kept)
