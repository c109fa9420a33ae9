"""Batches of QoS 1 and 2 that the host broker handed in and whose acknowledgement it awaits.

Rules:

1. A batch has a number, by which the protocol reports that all of it has arrived or is on disk (R55). The host broker
   gets the acknowledgements in the order in which it sent (`obligations.AckOrder`).
2. The id of each packet is kept until then, for the next process. A publication that a host broker hands in again keeps
   its id, so that nobody takes it for another one (R58). The id is deleted just before the acknowledgement leaves
   (`slots`).
"""

from collections.abc import Callable

from hanse.federator.obligations import AckOrder
from hanse.federator.slots import PacketSlots
from hanse.mqtt.publication import Publication
from hanse.protocol.machine import Machine


class HostBatches:
    """Batches of one session.

    Args:
        machine: machine whose epoch is part of the ids.
        slots: packet identifiers and ids, in a file.
        ack: function that acknowledges receipts at the host broker.
    """

    def __init__(self, machine: Machine, slots: PacketSlots, ack: Callable[[list[int]], None]) -> None:
        self._machine = machine
        self._slots = slots
        self._order = AckOrder(ack)
        # Function that acknowledges the batch, and the receipts: their lower 16 bits are packet identifiers.
        self._open: dict[int, tuple[Callable[[], None], list[int]]] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, receipts: list[int]) -> int:
        """Register a new batch, and return its number."""
        number = self._next
        self._next = number + 1
        self._open[number] = (self._order.begin(receipts), receipts)
        return number

    def finish(self, number: int) -> None:
        """Let the host broker forget a batch."""
        finish, receipts = self._open.pop(number)
        self._slots.clear([receipt & 0xFFFF for receipt in receipts])
        finish()

    def forget(self) -> None:
        """Forget all batches: the broker lost the session, so its packet identifiers restart and free no old ones."""
        self._slots.clear_all()
        self._open = {number: (finish, []) for number, (finish, _) in self._open.items()}

    def note(self, publications: list[Publication], batch: list[Publication], is_aligned: bool, first: int) -> None:
        """Keep the id of each packet.

        Args:
            publications: publications as they arrived, with duplicates.
            batch: publications without the duplicates; the same list if there are none.
            is_aligned: whether all of the batch get consecutive ids.
            first: the first id.
        """
        if not is_aligned:
            return  # some must not leave this broker, and the ids of the others are not worth a search
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
            if publication[5] and at >= 0:  # a duplicate belongs to the publication before it
                slots.note([publication[5] & 0xFFFF], epoch, first + at, [publication[0]])

    def former_id(self, publication: Publication) -> tuple[int, int] | None:
        """Return `(epoch, number)` that a former process gave to a publication handed in again; None for a new one."""
        return self._slots.find(publication.packet_id, publication[0]) if publication[4] else None
