"""Unacknowledged publications from the host broker: packet identifier to message id, found again after a kill.

A broker that delivers again after our restart keeps the packet identifier and sets DUP. The message may have been
forwarded under its old id before the kill, so it must not get a new one: every receiver would take it for a new
message.

A slot has three words:

    number | checksum of the packet, check of the slot | epoch, 1 for "in use"

- `note` frees the slot, writes the first two words, then the last. After a kill in between, the slot is free: nothing
  of that message has left, and a new id is right.
- `clear` frees a slot with one write: at QoS 1 just before PUBACK leaves, at QoS 2 when PUBREL has arrived, after which
  the broker sends no PUBLISH again. After a kill between `clear` and PUBACK, the message arrives again and gets a new
id: a repeat, which QoS 1 allows. In the other order, a slot would be left over. The next message with that identifier,
if it is equal and arrives with DUP, would be taken for the old one and be lost.
- For the same reason, `clear_all` belongs to a broker that has lost the session: its identifiers restart.
- A slot does not apply to a packet with other content: the length and a checksum are compared.

Packets must be converted to one form before the comparison: without DUP and packet identifier.
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
    """Table in a file, by packet identifier.

    Args:
        path: created if it is missing; put aside and replaced by a new one if it is damaged.

    Raises:
        LocalError: The file cannot be created or mapped.
    """

    def __init__(self, path: Path) -> None:
        self._table = MappedTable(path, _KIND, _SLOT_WORDS, _SLOTS)
        self._words = self._table.words

    def note(self, packet_ids: Sequence[int], epoch: int, first: int, packets: Sequence[bytes]) -> None:
        """Note that the packets with these identifiers got the ids `(epoch, first)` and on. 0.5 us each."""
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
        """Return `(epoch, number)` of this packet under this identifier; None if it is another packet, or unknown."""
        slot = packet_id * _SLOT_WORDS
        number, checks, last = self._words[slot : slot + _SLOT_WORDS]
        epoch = last >> 16
        is_it = last & 0xFFFF == _IN_USE and checks == _checks(packet, epoch, number)
        return (epoch, number) if is_it else None

    def clear(self, packet_ids: Sequence[int]) -> None:
        """Free slots of acknowledged packets; ignore identifiers that are already free. 0.1 us each."""
        words = self._words
        for packet_id in packet_ids:
            words[packet_id * 3 + 2] = 0

    def clear_all(self) -> None:
        """Free all slots, because the broker has lost the session: its next deliveries are all new."""
        self.clear(range(_SLOTS))

    def close(self) -> None:
        """Close the table; the file stays."""
        self._words.release()
        self._table.close()


def _checks(packet: bytes, epoch: int, number: int) -> int:
    """Return the second word: the checksum of the packet, and the check of the slot."""
    return checksum_of(packet) << 32 | (number ^ number >> 32 ^ epoch ^ len(packet) << 8) & 0xFFFFFFFF
