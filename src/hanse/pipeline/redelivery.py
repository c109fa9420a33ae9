"""Which redeliveries are copies of rows that are spooled already. Pure: no clock, no files.

MQTT does not acknowledge an acknowledgement, so after a lost connection or a killed collector the broker sends
again what it holds as unacknowledged, with DUP and the same packet identifier, and some of that is spooled. Rules:

1. Only a PUBLISH with DUP in a resumed session can be a copy. Equal content otherwise is two rows.
2. Brokers acknowledge and redeliver in order, so the copies, if there are any, are exactly the last rows spooled:
   a run, in order, that reaches the end. Each must equal its row in packet identifier and content.
3. A run that breaks off before the end was no run of copies: all of it is new. So a constant reading whose packet
   identifiers come round again is never taken for a copy of the last round's.
4. Until the run is decided its publications are neither spooled nor acknowledged. What cannot be decided (the
   broker falls silent within a run) counts as new: twice is better than not at all.

With a broker that hands packet identifiers out in a circle (Mosquitto and most others) this is exact: the window is
smaller than the circle. With one that hands out the lowest free identifier it is exact where contents differ; an
equal reading under an equal identifier, received and not yet spooled when the collector was killed, cannot be told
from a copy by anyone, and is taken for one.

A message's expiry counts down at the broker, so it is no part of the content.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(slots=True)
class Sorted(Generic[Item]):
    """What became of publications: rows to spool, in order, and copies to acknowledge only."""

    new: list[Item] = field(default_factory=list)
    copies: list[Item] = field(default_factory=list)


class Redelivery(Generic[Item]):
    """Remembers, for each packet identifier, the last row spooled under it; sorts what comes with DUP."""

    def __init__(self) -> None:
        self._content = array("q", bytes(8 * 65536))
        # The row's place in the session's sequence of spooled QoS 1 and 2 rows, from 1; 0: no such row.
        self._place = array("Q", bytes(8 * 65536))
        self._spooled = 0
        self._run_end = 0
        self._next = 0
        self._held: list[Item] = []
        self.is_open = False

    @property
    def held(self) -> int:
        """Publications that wait for the run to be decided."""
        return len(self._held)

    def forget(self) -> None:
        """The broker's session is new: its packet identifiers mean other publications now."""
        self._place = array("Q", bytes(8 * 65536))
        self._spooled = 0
        self._close()

    def spooled(self, rows: Iterable[tuple[int, int]]) -> None:
        """Rows that are durable, in order, as (packet identifier, content); 0 as identifier is QoS 0."""
        content, place, count = self._content, self._place, self._spooled
        for packet_id, value in rows:
            if packet_id:
                count += 1
                content[packet_id] = value
                place[packet_id] = count
        self._spooled = count

    def resumed(self) -> None:
        """The session goes on over a new connection: what comes with DUP now may be copies."""
        # What was held is unacknowledged, and comes again.
        self._close()
        self._run_end, self._next, self.is_open = self._spooled, 0, self._spooled > 0

    def sort(self, publications: Sequence[tuple[Item, bool, int, int]]) -> Sorted[Item]:
        """Sort one read's publications, each as (item, has DUP, packet identifier or 0, content)."""
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
                # Rule 3. What follows is new too: copies come first or not at all.
                found.new += self._close()
                found.new.append(item)
        return found

    def give_up(self) -> list[Item]:
        """Nothing more has come: what is held counts as new."""
        return self._close()

    def _close(self) -> list[Item]:
        held, self._held = self._held, []
        self.is_open = False
        return held
