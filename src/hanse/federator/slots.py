"""What the host delivered to us and is not acknowledged yet: packet identifier to message id, found again after a kill.

A host that delivers again after our restart keeps the packet identifier and sets DUP. The message may have been sent
on under its old id before the kill, so it must not get a new one: every receiver would take it for another message.

A slot is three words:

    number | checksum of the packet, check of the slot | epoch, 1 for "in use"

- `note` makes the slot free, writes the first two words, then the last. Killed in between, the slot is free: nothing
  of that message had left yet, and as a new one it is right.
- `clear` frees a slot with one write: at QoS 1 just before PUBACK leaves, at QoS 2 when PUBREL has come, after which
  the host sends no PUBLISH again. Killed between `clear` and PUBACK, the message comes again and gets a new id: a
  repeat, which QoS 1 allows. In the other order a slot would be left over, and the identifier's next message, if
  it is equal and comes with DUP, would be taken for the old one and be lost.
- For the same reason `clear_all` belongs to a host that has lost the session: its identifiers begin anew.
- A slot says nothing of a packet with other content: the length and a checksum are compared.

The packets that are compared must be brought to one form before: without DUP and packet identifier.
"""

from collections.abc import Sequence
from pathlib import Path

from hanse.federator.mapped import MappedTable
from hanse.mqtt.likeness import checksum_of

_KIND = b"HANSESL1"
_SLOT_WORDS = 3
_SLOTS = 1 << 16
_IN_USE = 1


class PacketSlots:
    """The table in a file, by packet identifier.

    Args:
        path: made if it is missing; put aside and begun anew if it is damaged.

    Raises:
        LocalError: The file cannot be made or mapped.
    """

    def __init__(self, path: Path) -> None:
        self._table = MappedTable(path, _KIND, _SLOT_WORDS, _SLOTS)
        self._words = self._table.words

    def note(self, packet_ids: Sequence[int], epoch: int, first: int, packets: Sequence[bytes]) -> None:
        """The packets with these identifiers got the ids `(epoch, first)` and on. 0.5 us each."""
        words = self._words
        last = epoch << 16 | _IN_USE
        number = first
        for packet_id, packet in zip(packet_ids, packets, strict=True):
            slot = packet_id * 3
            words[slot + 2] = 0
            words[slot] = number
            words[slot + 1] = _checks(packet, epoch, number)
            words[slot + 2] = last
            number += 1

    def find(self, packet_id: int, packet: bytes) -> tuple[int, int] | None:
        """`(epoch, number)` that this packet got under this identifier; None where it is another, or unknown."""
        slot = packet_id * _SLOT_WORDS
        number, checks, last = self._words[slot : slot + _SLOT_WORDS]
        epoch = last >> 16
        is_it = last & 0xFFFF == _IN_USE and checks == _checks(packet, epoch, number)
        return (epoch, number) if is_it else None

    def clear(self, packet_ids: Sequence[int]) -> None:
        """These were acknowledged; an identifier that is free already is no harm. 0.1 us each."""
        words = self._words
        for packet_id in packet_ids:
            words[packet_id * 3 + 2] = 0

    def clear_all(self) -> None:
        """The host has lost the session: nothing that it delivers now was delivered before."""
        self.clear(range(_SLOTS))

    def close(self) -> None:
        """Let go of it; the file stays."""
        self._words.release()
        self._table.close()


def _checks(packet: bytes, epoch: int, number: int) -> int:
    """The second word: the checksum of the packet, and the check of the slot."""
    return checksum_of(packet) << 32 | (number ^ number >> 32 ^ epoch ^ len(packet) << 8) & 0xFFFFFFFF
