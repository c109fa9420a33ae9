"""QoS 2 deliveries to the host broker under way: message id to packet identifier, and whether PUBREL may be sent.

A process that is killed in the middle of the handshake must continue it, not start again. With another packet
identifier, the broker would take the message for a different one. A slot has four words:

    number | order of assignment | origin, check of the slot | epoch, state

The state is in the last word, which changes in one write. A slot is therefore always in one of these states, whenever
the kill happens:

- *free*. Before `assign` has returned, no part of the packet was written to the connection. After a restart the message
  comes again from upstream, or from the outbox, and is sent as new. `assign` frees the slot, writes the first three
  words, then the last.
- *assigned*. PUBLISH may have left or not. It is sent (again) with the same identifier and DUP. A broker that has it
  answers with PUBREC and does not deliver it twice.
- *released*. PUBREC arrived. The state is written before PUBREL leaves, so the broker still holds the identifier while
  the state is *assigned*, and PUBLISH is never sent again after the broker may have forgotten it. After a restart, only
  PUBREL is sent. If PUBCOMP was under way, the broker answers that it does not know the identifier, which also ends the
  handshake. The id goes into the `DeliveredRing` next, and after a restart once more. A message in the ring but not
  released would be treated as delivered when it arrives again, and never be released.
- *free* again, by `complete`, after PUBCOMP. The id must be in the `DeliveredRing` before. In the other order, a kill
  between the two would leave a delivery that nobody remembers, and a second one when the message arrives again from
  upstream.

If the broker has lost the session, assigned messages go out under new identifiers. `assign` frees the former slot of a
message first, so a message never has two. A power cut may restore older states. A handshake that the broker has
finished is then started again, which may duplicate the message. The message is never lost, because upstream got no
acknowledgement.

A damaged slot, or a lost file, leaves identifiers at the broker for messages that nobody knows: `lost`. The broker
counts them against its Receive Maximum until they are released, and ends the session when more arrive. So they are
released, and such a message may be delivered twice: by this, and when it arrives again from upstream.
"""

from pathlib import Path

from hanse.errors import LocalError
from hanse.federator.mapped import MappedTable

_KIND = b"HANSEJN1"
_SLOT_WORDS = 4
_SLOTS = 1 << 16
# States that no damaged byte makes of one another.
_ASSIGNED = 0x5AA5
_RELEASED = 0xA55A
# States as older versions wrote them.
_OLD_STATES = {1: _ASSIGNED, 2: _RELEASED}

# Message id: origin, epoch, number.
MessageId = tuple[int, int, int]


class DeliveryJournal:
    """The table in a file, by packet identifier.

    Args:
        path: created if it is missing; put aside and replaced by a new one if it is damaged.
        is_expected: whether a former process has made the file.

    Attributes:
        lost: identifiers that the broker may hold for messages that nobody knows any more.

    Raises:
        LocalError: The file cannot be created or mapped.
    """

    def __init__(self, path: Path, *, is_expected: bool = False) -> None:
        self._table = MappedTable(path, _KIND, _SLOT_WORDS, _SLOTS)
        self._words = self._table.words
        self._packet_ids: dict[MessageId, int] = {}
        self._messages: dict[int, MessageId] = {}
        self._order = 0
        self.lost: list[int] = []
        self._recover()
        if self._table.is_new and is_expected:
            self.lost = list(range(1, _SLOTS))
        self._table.rest()

    def __len__(self) -> int:
        return len(self._messages)

    def assign(self, packet_id: int, origin: int, epoch: int, number: int) -> None:
        """Note, before PUBLISH is written, that this message goes out under this identifier.

        Raises:
            LocalError: There is no such packet identifier.
        """
        if not 1 <= packet_id < _SLOTS:
            raise LocalError(f"{packet_id} is not a packet identifier; expected 1 to {_SLOTS - 1}.")
        message = (origin, epoch, number)
        former = self._packet_ids.get(message)
        if former is not None:
            self.complete(former)
        if packet_id in self._messages:
            self.complete(packet_id)
        words = self._words
        slot = packet_id * _SLOT_WORDS
        self._order += 1
        words[slot + 3] = 0
        words[slot] = number
        words[slot + 1] = self._order
        words[slot + 2] = origin << 32 | _check(packet_id, origin, epoch, number, self._order)
        words[slot + 3] = epoch << 16 | _ASSIGNED
        self._packet_ids[message] = packet_id
        self._messages[packet_id] = message

    def release(self, packet_id: int) -> None:
        """Note PUBREC before PUBREL is written. Ignore an identifier that is free."""
        message = self._messages.get(packet_id)
        if message is not None:
            self._words[packet_id * _SLOT_WORDS + 3] = message[1] << 16 | _RELEASED

    def complete(self, packet_id: int) -> None:
        """Note PUBCOMP or a refusal, after the id is in the ring. Ignore an identifier that is free."""
        message = self._messages.pop(packet_id, None)
        if message is not None:
            self._words[packet_id * _SLOT_WORDS + 3] = 0
            del self._packet_ids[message]

    def open(self) -> list[tuple[int, MessageId, bool]]:
        """Return packet identifier, message id and whether it is released, in the order of assignment."""
        words = self._words
        found = [
            (words[packet_id * _SLOT_WORDS + 1], packet_id, message) for packet_id, message in self._messages.items()
        ]
        return [
            (packet_id, message, _state_of(words[packet_id * _SLOT_WORDS + 3]) == _RELEASED)
            for _, packet_id, message in sorted(found)
        ]

    def packet_id_of(self, origin: int, epoch: int, number: int) -> int | None:
        """Return the identifier under which a message is under way."""
        return self._packet_ids.get((origin, epoch, number))

    def close(self) -> None:
        """Close the table; the file stays."""
        self._words.release()
        self._table.close()

    def _recover(self) -> None:
        words = self._words
        for packet_id in range(1, _SLOTS):
            slot = packet_id * _SLOT_WORDS
            last = words[slot + 3]
            if not last:
                continue
            number, order, third = words[slot], words[slot + 1], words[slot + 2]
            origin, epoch = third >> 32, last >> 16
            message = (origin, epoch, number)
            is_whole = third & 0xFFFFFFFF == _check(packet_id, origin, epoch, number, order)
            if not is_whole or _state_of(last) not in {_ASSIGNED, _RELEASED} or message in self._packet_ids:
                words[slot + 3] = 0
                self.lost.append(packet_id)
                continue
            self._packet_ids[message] = packet_id
            self._messages[packet_id] = message
            self._order = max(self._order, order)


def _state_of(word: int) -> int:
    state = word & 0xFFFF
    return _OLD_STATES.get(state, state)


def _check(packet_id: int, origin: int, epoch: int, number: int, order: int) -> int:
    """Return the checksum by which a slot is recognised whose words were not written together."""
    mixed = ((packet_id * 31 + origin) * 1_000_003 + epoch) * 1_000_003 + number
    mixed = mixed * 1_000_003 + order
    return (mixed ^ mixed >> 32 ^ mixed >> 64) & 0xFFFFFFFF
