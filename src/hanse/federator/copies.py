"""One publication out of the copies that overlapping host subscriptions bring.

A broker may send a publication once for each subscription of ours that it matches (Mosquitto does), each copy with
the identifier of one subscription, one directly after the other. The rule: a publication whose canonical packet
equals the one before it, and which came for a subscription that the one before has not come for, is a copy of it.
Two equal publications in a row are told apart by the identifier that repeats, or by one that was not yet asked for
when the first of them came: identifiers only ever rise.
"""

from hanse.mqtt.publication import Publication


class CopyMerger:
    """Remembers the last publication, also from one read to the next."""

    __slots__ = ("_identifiers", "_newest", "_packet")

    def __init__(self) -> None:
        self._packet = b""
        self._identifiers: tuple[int, ...] = ()
        self._newest = 0

    def merge(self, publications: list[Publication], newest: int) -> list[Publication]:
        """The publications without the copies; the caller still acknowledges each copy's receipt.

        Args:
            publications: one read of the host.
            newest: the largest identifier that was asked for by now.
        """
        packet, identifiers, bound = self._packet, self._identifiers, self._newest
        originals = []
        for publication in publications:
            ids = publication[6]
            if publication[0] == packet and ids and _is_copy(ids, identifiers, bound):
                identifiers += ids
                continue
            packet, identifiers, bound = publication[0], ids, newest
            originals.append(publication)
        self._packet, self._identifiers, self._newest = packet, identifiers, bound
        return originals


def _is_copy(ids: tuple[int, ...], before: tuple[int, ...], bound: int) -> bool:
    return all(identifier <= bound and identifier not in before for identifier in ids)
