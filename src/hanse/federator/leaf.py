"""A federator without a host broker: a leaf, which hands its publications to a taker in its process.

To its neighbours it is an ordinary member of the overlay: the same machine, links, epochs, custody and ring. It belongs
in this package because it consists of its parts. The taker (a collector's spool) knows nothing of links.

Rules:

1. Its interest is given at the start, told before the first link, and does not change.
2. A batch of QoS 1 or 2 is acknowledged to the federation when the taker says so, and is in the ring before. Nothing of
   it is handed over twice, by this process or the next (R55, R57).
3. A batch that the taker does not acknowledge is never acknowledged, and waits with the neighbours, on their disks. A
   leaf writes nothing of its own to its outbox. The outbox is for messages between its neighbours, if it has several.
4. It ends without a message, as if its link were lost, so that its neighbours keep publications for it for `absence_s`
   (R38, R75). With `is_leaving` it announces its leave, and nothing is kept.
5. It publishes nothing, and avoids to be a core: any other federator that wants a group is elected before it.
"""

import asyncio
import json
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hanse.errors import LocalError, RemoteError
from hanse.federator import linking
from hanse.federator.crossing import Crossing
from hanse.federator.custodian import Custodian
from hanse.federator.effects import Effects
from hanse.federator.gate import Gate
from hanse.federator.links import CONTROL_TOPIC, PROBE_TOPIC, LinkBook
from hanse.federator.metrics import LinkTraffic
from hanse.federator.pieces import joined, singles
from hanse.federator.private import PrivateGroup
from hanse.federator.settings import FederatorSettings
from hanse.federator.store import StateDirectory
from hanse.federator.tracing import Tracing
from hanse.mqtt.link import Frame
from hanse.mqtt.publication import encode, payload_of
from hanse.protocol import codec, events
from hanse.protocol.effects import Emit
from hanse.protocol.forwarding import Routed
from hanse.protocol.identity import private_group
from hanse.protocol.machine import Machine
from hanse.protocol.messages import HOST, Run
from hanse.protocol.packets import split, topic_of
from hanse.protocol.settings import MANAGEMENT_GROUP, RANK_MAX
from hanse.protocol.topics import matches

_log = logging.getLogger(__name__)

_SUMMARIES = bytes((codec.SUMMARIES,))
_WARNED = frozenset({"identity_conflict", "limit_reached", "grouping_differs"})
# Measures of the accounts for duplicates: of its groups, and of a message already delivered for another group.
_COPIES = frozenset({"duplicate", "merged"})
# Topics whose match is cached, if groups are wider than the filters.
_TOPICS_MAX = 65_536

# Publications, in the order of their ids, and the function to call when they would survive a power cut.
Take = Callable[[list[Run], Callable[[], None]], None]


class _NoHost:
    """Placeholder without a broker to subscribe at."""

    def begin(self, group: str) -> None:
        """Do nothing."""

    def end(self, group: str) -> None:
        """Do nothing."""


class Leaf:
    """One leaf, from `start` to `stop`.

    Args:
        settings: its id, its neighbours, and the federation's common settings; those of a broker are ignored.
        filters: wanted filters.
        state: state directory.
        take: function that receives publications.
        on_links: called with the number of links that are up, whenever it changes.
        delivered: ids that the taker has from an earlier process, beyond those in the ring.
    """

    def __init__(
        self,
        settings: FederatorSettings,
        filters: Sequence[str],
        state: StateDirectory,
        *,
        take: Take,
        on_links: Callable[[int], None],
        delivered: Iterable[tuple[int, int, int, int]] = (),
    ) -> None:
        if settings.id is None:
            raise LocalError("A leaf has no id; give --id N, one that no other federator has.")
        self.identity = settings.id
        self._settings = settings
        self._filters = tuple(filters)
        self._state = state
        self._take = take
        self._tell_links = on_links
        self._delivered = delivered
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = 0.0
        self._is_stopped = False
        self.counters: Counter[str] = Counter()
        # Rule 3: with unlimited patience, nothing for the taker goes to the outbox.
        protocol = replace(settings.protocol_settings(), stuck_after_s=math.inf)
        self.machine = Machine(
            self.identity,
            protocol,
            now=self._loop.time(),
            wall_s=int(time.time()),
            stored_epoch=state.read_epoch(),
        )
        # A grouping may make a group wider than its filter. At a broker, the broker would sort that out.
        self._is_exact = all(protocol.grouping.group_of(one) == one for one in self._filters)
        self._is_wanted: dict[str, bool] = {}
        self._whole_gate = Gate(Counter())
        self._single_gate = Gate(self.counters)
        self.custodian = Custodian(
            state.path,
            bytes_max=settings.outbox_bytes_max,
            overflow=settings.outbox_overflow,
            step=self._step,
            counters=self.counters,
        )
        self.links = LinkBook(
            self.identity,
            properties=linking.properties,
            admit=linking.refusal,
            on_up=self._on_up,
            on_down=self._on_down,
            on_frames=self._on_frames,
            on_taken=self._on_taken,
            on_double=self._on_double,
            tls=settings.link_tls(),
        )
        self._carry_out = Effects(
            links=self.links,
            custodian=self.custodian,
            wanted=_NoHost(),
            state=state,
            sent=defaultdict(LinkTraffic),
            send_runs=self._send_runs,
            deliver=self._deliver,
            finish_batch=lambda _: None,
            tell=self._tell,
        ).carry_out
        own = private_group(self.identity)
        self._internal = frozenset({MANAGEMENT_GROUP, own})
        private = PrivateGroup(lambda: self._step(events.Subscribed(own)), lambda: self._step(events.Unsubscribed(own)))
        self.tracing = Tracing(
            self.machine,
            crossing=Crossing(),
            publish=self._publish_to,
            ask_all=self._tell_all,
            send=self.links.send_probe,
            is_host_up=lambda: True,
            filters=lambda: self._filters,
            join=private.join,
            part=private.part,
            counters=self.counters,
        )

    @property
    def copies(self) -> int:
        """Number of duplicates, from any sender, which were not handed over again."""
        rows = (row for row in self.machine.accounts.rows() if row.measure in _COPIES)
        return sum(row.publications for row in rows if self._internal.isdisjoint(row.groups))

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start: epoch on disk, ids delivered before, interest, and then links."""
        now = self._loop.time()
        self._carry_out(self.machine.start(now))
        delivered = [*self.custodian.ring.entries(), *self._delivered]
        self._carry_out(self.machine.restore(now, delivered=delivered, outbox=self.custodian.outbox.ways()))
        grouping = self.machine.settings.grouping
        for group in sorted({grouping.group_of(one) for one in self._filters}):
            self._step(events.Ranked(group, RANK_MAX))  # rule 5
        for one in self._filters:
            self._step(events.Subscribed(one))
        for neighbour in self._settings.neighbours():
            self.links.dial(str(neighbour.address))
        self._arm()

    async def stop(self, *, is_leaving: bool = False) -> None:
        """Apply rule 4. The taker must not acknowledge anything after this."""
        await self.tracing.stop()
        if is_leaving:
            self._step(events.Leave())
            await asyncio.sleep(0.05)  # the leave messages go out with the loop's next turns
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self.links.stop()
        self.custodian.stop()

    # --- the machine --------------------------------------------------------------------------------------------------

    def _step(self, event: events.Event) -> None:
        if not self._is_stopped:
            self._carry_out(self.machine.step(self._loop.time(), event))
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.machine.is_stopped and not self._is_stopped:
            self._armed_at = self.machine.deadline
            self._timer = self._loop.call_at(self._armed_at, self._step, events.Tick())

    def _arm_if_sooner(self) -> None:
        if self.machine.deadline < self._armed_at:
            self._arm()

    def _tell(self, event: Emit) -> None:
        level = logging.WARNING if event.name in _WARNED else logging.DEBUG
        _log.log(level, "%s %s %s", event.name, event.group, event.detail)

    def _hand_on(self, routed: Routed) -> None:
        frames, deliveries, tokens, effects = routed
        for neighbour, runs in frames.items():
            self._send_runs(neighbour, runs, tokens.get(neighbour, 0))
        if deliveries:
            self._deliver(deliveries, tokens.get(HOST, 0))
        self._carry_out(effects)
        self._arm_if_sooner()

    def _send_runs(self, neighbour: int, runs: Sequence[Run], token: int) -> None:
        count = sum(run.length for run in runs)
        if self.links.send_data(neighbour, codec.encode_data(runs), count, token):
            self.counters["forwarded"] += count

    def _publish_to(self, group: str, packets: list[bytes]) -> None:
        """Publish packets of this leaf for other federators: reports on their probes."""
        for packet in packets:
            self._hand_on(self.machine.publish_to(self._loop.time(), group, packet[0] >> 1 & 3, [packet]))

    def _tell_all(self, message: dict[str, object]) -> None:
        self._publish_to(MANAGEMENT_GROUP, [encode(MANAGEMENT_GROUP, json.dumps(message).encode(), qos=1)])

    # --- links --------------------------------------------------------------------------------------------------------

    def _on_up(self, neighbour: int) -> None:
        self._step(events.LinkUp(neighbour))
        self._tell_links(len(self.machine.neighbours()))

    def _on_down(self, neighbour: int) -> None:
        self._step(events.LinkDown(neighbour))
        self._tell_links(len(self.machine.neighbours()))

    def _on_double(self, identity: int, told: str) -> None:
        self.counters["identity_conflicts"] += 1
        _log.warning("a link of federator %d is refused: %s", identity, told)

    def _on_taken(self, neighbour: int, tokens: list[int]) -> None:
        self._carry_out(self.machine.acknowledged(self._loop.time(), neighbour, tokens))
        self._arm_if_sooner()

    def _on_frames(self, neighbour: int, frames: list[Frame]) -> None:
        if self._is_stopped:
            return  # unacknowledged, so it is sent again
        for frame in frames:
            topic, payload, receipt = frame.topic, frame.payload, frame.receipt
            try:
                if topic == CONTROL_TOPIC:
                    self._step(events.Received(neighbour, codec.decode_control(payload)))
                elif payload[1:2] == _SUMMARIES:
                    self._step(events.Summarised(neighbour, codec.decode_summaries(payload), receipt))
                elif topic == PROBE_TOPIC:
                    self.tracing.on_probe(neighbour, payload)
                else:
                    runs = codec.decode_data(payload)
                    self._hand_on(self.machine.forward(self._loop.time(), neighbour, runs, receipt))
            except RemoteError as error:
                self.counters["frames_refused"] += 1
                _log.warning("frame of federator %d refused: %s", neighbour, error)
                self.links.ack(neighbour, receipt)

    # --- delivery to the taker
    # -----------------------------------------------------------------------------------------

    def _deliver(self, runs: Sequence[Run], token: int) -> None:
        wanted: list[Run] = []
        for run in runs:
            if run.groups[0] in self._internal:
                self._take_internal(run)
            else:
                wanted += self._admitted(run)
        if wanted:
            self._take(wanted, lambda: self._taken(wanted, token))
        else:
            self._taken([], token)

    def _taken(self, runs: list[Run], token: int) -> None:
        """Apply rule 2: first remember, then acknowledge."""
        for run in runs:
            if run.qos:
                self.custodian.ring.add(run.origin, run.epoch, run.first, run.length)
        if token:
            self._carry_out(self.machine.acknowledged(self._loop.time(), HOST, (token,)))
            self._arm_if_sooner()

    def _admitted(self, run: Run) -> list[Run]:
        """Return the well-formed and wanted part of a run, in pieces whose ids stay those of their publications."""
        is_whole = self._whole_gate.admit(run.body, run.length)[1] == run.length
        if is_whole and self._is_exact:
            return [run]
        good = [one for one in singles(run) if is_whole or self._single_gate.admit(one.body, 1)[1]]
        return joined(one for one in good if self._is_exact or self._wants(topic_of(one.body)))

    def _wants(self, topic: str) -> bool:
        known = self._is_wanted.get(topic)
        if known is None:
            if len(self._is_wanted) >= _TOPICS_MAX:
                self._is_wanted.clear()
            known = self._is_wanted[topic] = any(matches(one, topic) for one in self._filters)
        return known

    def _take_internal(self, run: Run) -> None:
        """Ignore messages between federators: a leaf has no retained messages, share names or bridges."""
        for start, end in split(run.body):
            packet = run.body[start:end]
            try:
                message = json.loads(payload_of(packet)) if topic_of(packet) == MANAGEMENT_GROUP else {}
                if message.get("kind") == "trace":
                    self.tracing.on_question(run.origin, message)
            except (ArithmeticError, AttributeError, LookupError, RecursionError, RemoteError, TypeError, ValueError):
                self.counters["management_refused"] += 1
