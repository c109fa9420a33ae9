"""Batches that the host broker handed in at QoS 1 and 2 and waits to hear of.

Rules:

1. A batch has a number, by which the protocol says that all of it has arrived or is on disk (R55). The host hears so in
   the order in which it sent (`obligations.AckOrder`).
2. Which id each packet got is kept until then, for the process after this one: what a host hands in again keeps its id,
   so that nobody takes it for another (R58). It is cleared just before the acknowledgement leaves (`slots`).
"""

from collections.abc import Callable

from hanse.federator.obligations import AckOrder
from hanse.federator.slots import PacketSlots
from hanse.mqtt.publication import Publication
from hanse.protocol.machine import Machine


class HostBatches:
    """Those of one session.

    Args:
        machine: whose epoch the ids bear.
        slots: packet identifiers and ids, in a file.
        ack: acknowledges receipts at the host.
    """

    def __init__(self, machine: Machine, slots: PacketSlots, ack: Callable[[list[int]], None]) -> None:
        self._machine = machine
        self._slots = slots
        self._order = AckOrder(ack)
        # What tells the host, and the receipts: their lower 16 bits are packet identifiers.
        self._open: dict[int, tuple[Callable[[], None], list[int]]] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, receipts: list[int]) -> int:
        """A batch came; its number."""
        number = self._next
        self._next = number + 1
        self._open[number] = (self._order.begin(receipts), receipts)
        return number

    def finish(self, number: int) -> None:
        """The host may forget a batch."""
        finish, receipts = self._open.pop(number)
        self._slots.clear([receipt & 0xFFFF for receipt in receipts])
        finish()

    def forget(self) -> None:
        """The host has lost the session: its packet identifiers begin anew, and what is open frees none of them."""
        self._slots.clear_all()
        self._open = {number: (finish, []) for number, (finish, _) in self._open.items()}

    def note(self, publications: list[Publication], batch: list[Publication], is_aligned: bool, first: int) -> None:
        """Keep which id each packet gets.

        Args:
            publications: as they came, some of them copies.
            batch: without the copies; the same list where there are none.
            is_aligned: whether all of the batch get ids, one after the other.
            first: the first id.
        """
        if not is_aligned:
            return  # some may not leave this broker: which ids the others get is not worth the search
        slots, epoch = self._slots, self._machine.epoch
        if batch is publications:
            owed = [publication for publication in batch if publication[5]]
            if len(owed) == len(batch):
                slots.note([p[5] & 0xFFFF for p in batch], epoch, first, [p[0] for p in batch])
                return
        at = -1
        for publication in publications:
            if at + 1 < len(batch) and publication is batch[at + 1]:
                at += 1
            if publication[5] and at >= 0:  # a copy is of the one before it
                slots.note([publication[5] & 0xFFFF], epoch, first + at, [publication[0]])

    def former_id(self, publication: Publication) -> tuple[int, int] | None:
        """`(epoch, number)` that a former process gave to what the host hands in again; None for what is new."""
        return self._slots.find(publication.packet_id, publication[0]) if publication[4] else None
