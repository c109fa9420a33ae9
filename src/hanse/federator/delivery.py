"""Deliveries to the host broker: publications of the federation for its clients, and their acknowledgements.

Rules:

1. A batch is handed over as a whole: its runs of QoS 0 leave as one piece, the others run by run. The protocol gets the
   *token* of the batch when the host broker has acknowledged all of them (R55).
2. Ids that were acknowledged at QoS 1 go into the ring of delivered ids before the protocol learns of it. Whatever then
   happens to this process, they are delivered (R57). For QoS 2, the session does so at PUBREC.
3. While the host broker has no capacity for QoS 1 and 2, these wait here, in order, and none overtakes. The protocol's
   window bounds their number. The client drops and counts QoS 0.
4. The host broker gets publications that pass the gate (`gate`), may enter (`crossing`) and are not echoes (`echoes`),
   under the names that its clients use. Others are counted by reason.
5. Runs of the federators' own groups go to no broker: they are handed to `take_internal`.
6. The version of a retained publication decides whether it is published with RETAIN (R83). The book is told when the
   host broker has acknowledged it; at QoS 0, when it has acknowledged a later probe.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence

from hanse.errors import Unavailable
from hanse.federator.crossing import Crossing
from hanse.federator.echoes import EchoMemory
from hanse.federator.gate import Gate
from hanse.federator.host import HostSession
from hanse.federator.naming import imported
from hanse.federator.obligations import Obligation
from hanse.federator.pieces import joined, singles
from hanse.federator.retained import RetainedState
from hanse.federator.ring import DeliveredRing
from hanse.protocol.balance import INTERNAL_PREFIX
from hanse.protocol.machine import Machine
from hanse.protocol.messages import HOST, Run
from hanse.protocol.packets import topic_of
from hanse.protocol.retained.keeper import DUPLICATE
from hanse.protocol.retained.values import with_retain
from hanse.protocol.retained.versions import FOUND, Version
from hanse.protocol.topics import TELEMETRY_PREFIX


class Delivery:
    """Deliveries to one host broker.

    Args:
        machine: machine that is told which publications were delivered and which were not.
        host: session at the host broker.
        gate, crossing, echoes: checks of entering publications.
        ring: ring of ids that the host broker has acknowledged.
        counters: counters of `delivered`, `echoes_cancelled`.
        clock: function that returns seconds, for the memory of echoes.
        on_taken: called when the destination `HOST` has acknowledged everything with a token.
        take_internal: function that handles a run for the federators themselves.
        retained: keeper that decides about retained publications.
    """

    def __init__(
        self,
        machine: Machine,
        host: HostSession,
        *,
        gate: Gate,
        crossing: Crossing,
        echoes: EchoMemory,
        ring: DeliveredRing,
        counters: Counter[str],
        clock: Callable[[], float],
        on_taken: Callable[[int, Sequence[int]], None],
        take_internal: Callable[[Run], None],
        retained: Callable[[], RetainedState],
    ) -> None:
        self._machine = machine
        self._host = host
        self._gate = gate
        self._crossing = crossing
        self._echoes = echoes
        self._ring = ring
        self._counters = counters
        self._clock = clock
        self._on_taken = on_taken
        self._take_internal = take_internal
        self._retained = retained
        # Injections of QoS 0 whose fence the host broker has not answered.
        self._unfenced: set[tuple[int, ...]] = set()
        self._fenced_next: list[int] = []
        # Rule 3.
        self._waiting: deque[tuple[Run, Obligation]] = deque()

    def deliver(self, runs: list[Run], token: int) -> None:
        """Publish a batch of the federation at the host broker; with a token of 0, nobody waits for it."""
        obligation = self._owe(runs, token) if token else None
        loose: list[Run] = []
        for run in runs:
            if run[6][0].startswith(INTERNAL_PREFIX) and not run[6][0].startswith(TELEMETRY_PREFIX):
                self._take_internal(run)
            elif run[9]:
                loose = self._deliver_stamped(run, loose, obligation)
            elif not run[4]:
                loose += self._for_host(run)
            else:
                assert obligation is not None, "a run of QoS 1 or 2 has a token"
                for piece in self._for_host(run):
                    self._deliver_owed(piece, obligation)
        if loose:
            self._deliver_loose(loose)
        if obligation is not None:
            obligation.settle()

    def _deliver_loose(self, loose: list[Run]) -> None:
        drops = self._host.client.counters.drops
        dropped = sum(drops.values())
        body, count = loose[0][7], loose[0][3]
        if len(loose) > 1:
            body, count = b"".join([run[7] for run in loose]), sum([run[3] for run in loose])
        self._host.deliver_loose(body, count, [run[6] for run in loose])
        self._note_loose(body, count)
        # Such a batch leaves whole, or not at all.
        measure = "delivered" if sum(drops.values()) == dropped else "dropped:host"
        for run in loose:
            self._machine.count_here(measure, run)

    # --- retained publications
    # -----------------------------------------------------------------------------------------

    def _deliver_stamped(self, run: Run, loose: list[Run], obligation: Obligation | None) -> list[Run]:
        """Publish a run with retained publications; return its QoS 0 publications that still wait to be published."""
        pieces: list[Run] = []
        retained: list[tuple[int, tuple[str, Version, bytes]]] = []
        for single in singles(run):
            stamp = run.stamp_base + single.first
            for piece in self._for_host(single):
                if stamp >= FOUND:
                    self._retained().found(topic_of(single.body), Version(stamp - FOUND, run.origin), single.body)
                    self._machine.count_here("merged", piece)
                    continue
                if single.body[0] & 1:
                    retained.append((len(pieces), (topic_of(single.body), Version(stamp, run.origin), single.body)))
                pieces.append(piece)
        numbers: dict[int, int] = {}
        for (place, _), number in zip(retained, self._retained().arrive([one for _, one in retained]), strict=True):
            if number is not None:
                numbers[place] = number
            pieces[place] = pieces[place]._replace(body=with_retain(pieces[place].body, is_set=number is not None))
        for place, piece in enumerate(pieces):
            number = numbers.get(place)
            if number == DUPLICATE:
                self._machine.count_here("merged", piece)
                continue
            if not piece.qos:
                if number is None:
                    loose.append(piece)
                    continue
                if loose:
                    self._deliver_loose(loose)
                    loose = []
                if self._inject_loose(piece, number):
                    self._fence_soon(number)
                    self._machine.count_here("delivered", piece)
                else:
                    self._machine.count_here("dropped:host", piece)
                continue
            assert obligation is not None, "a run of QoS 1 or 2 has a token"
            if number is None:
                self._deliver_owed(piece, obligation)
            else:
                self._inject_owed(piece, number, obligation)
        return loose

    def inject(self, packet: bytes, number: int) -> None:
        """Publish a packet of the keeper of retained state, and tell the keeper when the host broker has it."""
        qos = packet[0] >> 1 & 3
        run = Run(self._machine.identity, self._machine.epoch, 0, 1, qos, 0, (), packet)
        if qos:
            obligation = Obligation(_nothing)
            self._inject_owed(run, number, obligation)
            obligation.settle()
        elif self._inject_loose(run, number):
            self._fence_soon(number)

    def _inject_owed(self, run: Run, number: int, obligation: Obligation) -> None:
        obligation.owe()

        def release() -> None:
            (self._retained().refused if self._host.is_refusing else self._retained().injected)([number])
            obligation.settle()

        own = Obligation(release)
        self._deliver_owed(run, own)
        own.settle()

    def _inject_loose(self, run: Run, number: int) -> bool:
        """Publish at QoS 0, over the session and not the bulk connection; return whether it has left."""
        drops = self._host.client.counters.drops
        dropped = sum(drops.values())
        self._host.deliver(run.body, 0, 1, None)
        self._note_loose(run.body, 1)
        if sum(drops.values()) == dropped and self._host.client.is_connected:
            return True
        self._retained().uncertain([number])
        return False

    def _fence_soon(self, number: int) -> None:
        """Apply rule 6, with one probe for everything that is injected in one turn of the loop."""
        if not self._fenced_next:
            asyncio.get_running_loop().call_soon(self._fence)
        self._fenced_next.append(number)

    def _fence(self) -> None:
        numbers, self._fenced_next = tuple(self._fenced_next), []
        self._unfenced.add(numbers)

        def passed() -> None:
            if numbers in self._unfenced:
                self._unfenced.discard(numbers)
                self._retained().injected(numbers)

        try:
            self._host.fence("retained", passed)
        except Unavailable:
            self._unfenced.discard(numbers)
            self._retained().uncertain(numbers)

    def lose_host(self) -> None:
        """Note that the connection has ended, so injections of QoS 0 may be lost."""
        lost, self._unfenced = self._unfenced, set()
        self._retained().uncertain([number for numbers in sorted(lost) for number in numbers])

    def deliver_own(self, packet: bytes, qos: int) -> None:
        """Publish one packet for which no neighbour and no client waits for an acknowledgement."""
        if not qos:
            self._host.deliver(packet, 0, 1, None)
            self._note_loose(packet, 1)
            return
        obligation = Obligation(_nothing)
        run = Run(self._machine.identity, self._machine.epoch, 0, 1, qos, 0, (), packet)
        self._deliver_owed(run, obligation)
        obligation.settle()

    def on_credit(self) -> None:
        """Publish waiting runs, because the host broker has capacity again."""
        while self._waiting:
            run, obligation = self._waiting[0]
            try:
                self._deliver_exactly(run, obligation)
            except Unavailable:
                return
            self._waiting.popleft()
            obligation.settle()

    def _owe(self, runs: list[Run], token: int) -> Obligation:
        return Obligation(lambda: self._host_took(runs, token))

    def _host_took(self, runs: list[Run], token: int) -> None:
        """Apply rule 2."""
        for run in runs:
            if run[4] == 1:
                self._ring.add(run[0], run[1], run[2], run[3])
        self._on_taken(HOST, (token,))

    # --- choice of publications
    # ----------------------------------------------------------------------------------------

    def _for_host(self, run: Run) -> list[Run]:
        """Return the part of a run that this host broker gets, in the form for its clients.

        The part is split if publications of QoS 2 are left out, because the journal and the ring rely on their ids
        (R57).
        """
        if run[4] == 2 and run[3] > 1:
            return joined([piece for single in singles(run) for piece in self._for_host(single)])
        run = self._gate.admit_run(run)
        if run[3] and not self._crossing.is_trivial:
            body, length = imported(self._crossing, run.body)
            self._count_kept_out("dropped:import", run, length)
            run = run._replace(body=body, length=length)
        if run[3] and run[0] in self._echoes.joined:
            body, length = self._echoes.without_echoes(self._clock(), run.body)
            self._counters["echoes_cancelled"] += run.length - length
            self._count_kept_out("dropped:echo", run, length)
            run = run._replace(body=body, length=length)
        return [run] if run[3] else []

    def _count_kept_out(self, measure: str, run: Run, length: int) -> None:
        if length < run.length:
            self._machine.count_here(measure, run._replace(length=run.length - length, body=b""))

    def _note_loose(self, body: bytes, count: int) -> None:
        if self._echoes.is_active:
            self._echoes.remember(self._clock(), body)
        self._counters["delivered"] += count

    def _deliver_owed(self, run: Run, obligation: Obligation) -> None:
        obligation.owe()
        if self._waiting:
            self._waiting.append((run, obligation))
            return
        try:
            self._deliver_exactly(run, obligation)
        except Unavailable:
            self._waiting.append((run, obligation))
            return
        obligation.settle()

    def _deliver_exactly(self, run: Run, obligation: Obligation) -> None:
        if run.groups:
            self._host.deliver_run(run, obligation)
        else:
            self._host.deliver(run.body, run.qos, run.length, obligation)
        if self._echoes.is_active:
            self._echoes.remember(self._clock(), run.body)
        self._counters["delivered"] += run.length
        if run.groups:
            self._machine.count_delivered(run)


def _nothing() -> None:
    """Return an obligation to nobody, for a publication of our own."""
