"""Detection of redeliveries that are already in the spool. Pure: no clock, no files.

MQTT does not acknowledge an acknowledgement. After a lost connection or a killed collector, the broker therefore sends
every message again that it still holds as unacknowledged, with DUP and the same packet identifier. Some of these
messages are in the spool already. Rules:

1. Only a PUBLISH with DUP in a resumed session can be a duplicate. Otherwise equal content makes two rows.
2. Brokers acknowledge and redeliver in order. If there are duplicates, they are exactly the last rows spooled: a run of
   messages, in order, that ends with the last row. Each must equal its row in packet identifier and content.
3. If a run ends before the last row, none of it was a duplicate and all of it is new. A constant reading whose packet
   identifiers are reused is therefore never taken for a duplicate of the previous cycle.
4. The publications of an undecided run are neither spooled nor acknowledged. If the broker falls silent within a run,
   they count as new: a duplicate row is better than a lost one.

This is exact for brokers that assign packet identifiers cyclically (Mosquitto and most others), because the window is
smaller than the cycle. For brokers that assign the lowest free identifier, it is exact if contents differ. Suppose such
a broker sends an equal reading under an equal identifier, and the collector is killed before it spools the reading.
Nothing distinguishes that reading from a duplicate, so it is treated as one.

A message's expiry counts down at the broker, so it is not part of the content.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(slots=True)
class Sorted(Generic[Item]):
    """Result of sorting: rows to spool, in order, and duplicates that are only acknowledged."""

    new: list[Item] = field(default_factory=list)
    copies: list[Item] = field(default_factory=list)


class Redelivery(Generic[Item]):
    """Remembers the last row spooled under each packet identifier, and sorts messages that arrive with DUP."""

    def __init__(self) -> None:
        self._content = array("q", bytes(8 * 65536))
        # The row's place in the session's sequence of spooled QoS 1 and 2 rows, counted from 1; 0 means no row.
        self._place = array("Q", bytes(8 * 65536))
        self._spooled = 0
        self._run_end = 0
        self._next = 0
        self._held: list[Item] = []
        self.is_open = False

    @property
    def held(self) -> int:
        """Number of publications that wait until the run is decided."""
        return len(self._held)

    def forget(self) -> None:
        """Forget all rows, because a new session of the broker reuses their packet identifiers."""
        self._place = array("Q", bytes(8 * 65536))
        self._spooled = 0
        self._close()

    def spooled(self, rows: Iterable[tuple[int, int]]) -> None:
        """Record rows that are durable, in order, as (packet identifier, content); identifier 0 means QoS 0."""
        content, place, count = self._content, self._place, self._spooled
        for packet_id, value in rows:
            if packet_id:
                count += 1
                content[packet_id] = value
                place[packet_id] = count
        self._spooled = count

    def resumed(self) -> None:
        """Start a new connection in the same session; messages with DUP may now be duplicates."""
        # Held publications are unacknowledged, so the broker sends them again.
        self._close()
        self._run_end, self._next, self.is_open = self._spooled, 0, self._spooled > 0

    def sort(self, publications: Sequence[tuple[Item, bool, int, int]]) -> Sorted[Item]:
        """Sort the publications of one read, each given as (item, has DUP, packet identifier or 0, content)."""
        found: Sorted[Item] = Sorted()
        for item, dup, packet_id, content in publications:
            if not packet_id or not self.is_open:
                found.new.append(item)
                continue
            place = self._place[packet_id]
            is_next = dup and 0 < place <= self._run_end and self._content[packet_id] == content
            if is_next and self._next in {0, place}:
                self._held.append(item)
                self._next = place + 1
                if place == self._run_end:
                    found.copies += self._close()
            else:
                # Rule 3. Everything after this is new too: duplicates come first or not at all.
                found.new += self._close()
                found.new.append(item)
        return found

    def give_up(self) -> list[Item]:
        """Return the held publications as new, because the run did not continue."""
        return self._close()

    def _close(self) -> list[Item]:
        held, self._held = self._held, []
        self.is_open = False
        return held
