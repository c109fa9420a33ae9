"""One publication out of the copies that overlapping host subscriptions bring.

A broker may send a publication once for each subscription of ours that it matches (Mosquitto does), each copy with
the identifier of one subscription, one directly after the other. The rule: a publication whose canonical packet
equals the one before it, and which came for a subscription that the one before has not come for, is a copy of it.
Two equal publications in a row are told apart by the identifier that repeats.
"""

from hanse.mqtt.publication import Publication


class CopyMerger:
    """Remembers the last publication, also from one read to the next."""

    __slots__ = ("_identifiers", "_packet")

    def __init__(self) -> None:
        self._packet = b""
        self._identifiers: set[int] = set()

    def merge(self, publications: list[Publication]) -> list[Publication]:
        """The publications without the copies; the caller still acknowledges each copy's receipt."""
        packet, identifiers = self._packet, self._identifiers
        originals = []
        for publication in publications:
            ids = publication[6]
            if publication[0] == packet and ids and identifiers.isdisjoint(ids):
                identifiers.update(ids)
                continue
            packet, identifiers = publication[0], set(ids)
            originals.append(publication)
        self._packet, self._identifiers = packet, identifiers
        return originals
