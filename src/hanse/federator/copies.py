"""Merger of the duplicates that overlapping host subscriptions cause.

A broker may send a publication once for each matching subscription of ours (Mosquitto does), each time with the
identifier of one subscription, directly one after the other. The rule: a publication is a duplicate of the one before
it if both canonical packets are equal and its subscription identifier is new among those of the earlier ones. Two
separate but equal publications in a row are recognised by a repeated identifier, or by one that was not yet requested
when the first of them arrived: identifiers only ever grow.
"""

from hanse.mqtt.publication import Publication


class CopyMerger:
    """Memory of the last publication, also from one read to the next."""

    __slots__ = ("_identifiers", "_newest", "_packet")

    def __init__(self) -> None:
        self._packet = b""
        self._identifiers: tuple[int, ...] = ()
        self._newest = 0

    def merge(self, publications: list[Publication], newest: int) -> list[Publication]:
        """Return the publications without the duplicates; the caller still acknowledges every receipt.

        Args:
            publications: one read of the host broker.
            newest: the largest identifier requested so far.
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
