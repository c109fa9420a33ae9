"""Disk of a simulated federator. It outlives the process, unless a fault takes it.

- `epoch`, `interest` (filters of local clients) and `wanted` (groups that others want): like the state directory of a
  real federator.
- `outbox`: destination to records by position.
- `delivered`: ids that the host broker has acknowledged. `given`: ids that batches of the host broker got. `journal`:
  ids of QoS 2 that have a packet identifier at the host broker, until it has acknowledged them.
"""

from collections.abc import Sequence

from hanse.protocol.messages import Run
from hanse.protocol.packets import split

_Records = tuple[tuple[int, tuple[Run, ...]], ...]


class Disk:
    """Contents of one disk."""

    def __init__(self) -> None:
        self.epoch = 0
        self.interest: set[str] = set()
        self.wanted: frozenset[str] = frozenset()
        self.outbox: dict[int, dict[int, tuple[Run, ...]]] = {}
        self.ends: dict[int, int] = {}
        self.delivered: dict[tuple[int, int, int, int], None] = {}
        self.given: dict[int, tuple[int, int]] = {}
        self.journal: set[tuple[int, int, int]] = set()

    def store(self, way: int, position: int, records: Sequence[tuple[Run, ...]]) -> None:
        """Write records to the outbox of a destination."""
        assert position == self.ends.get(way, 0), "positions follow each other"
        log = self.outbox.setdefault(way, {})
        for offset, runs in enumerate(records):
            log[position + offset] = runs
        self.ends[way] = position + len(records)

    def fetch(self, way: int, start: int, end: int) -> _Records:
        """Return the records of a destination between two positions."""
        log = self.outbox.get(way, {})
        return tuple((position, log[position]) for position in range(start, end) if position in log)

    def discard(self, way: int, positions: Sequence[int]) -> None:
        """Remove records that are no longer needed."""
        log = self.outbox.get(way, {})
        for position in positions:
            log.pop(position, None)

    def outbox_ranges(self) -> dict[int, tuple[int, int]]:
        """Map each destination to its first remaining position and its end."""
        return {way: (min(self.outbox.get(way, {}), default=end), end) for way, end in self.ends.items()}

    def deliver(self, run: Run) -> None:
        """Note that the host broker has acknowledged a run."""
        if run.qos:
            self.delivered[run.origin, run.epoch, run.first, run.length] = None
        if run.qos == 2:
            self.journal.difference_update(_ids(run))

    def delivered_ranges(self) -> list[tuple[int, int, int, int]]:
        """Return the runs that the host broker has acknowledged."""
        return list(self.delivered)

    def assign(self, run: Run) -> list[Run]:
        """Give a run of QoS 2 packet identifiers.

        Return the parts that had none, because the broker recognises the others.
        """
        ids = _ids(run)
        is_new = [message_id not in self.journal for message_id in ids]
        self.journal.update(ids)
        if all(is_new):
            return [run]
        return [
            run._replace(first=run.first + k, length=1, body=run.body[start:end])
            for k, (start, end) in enumerate(split(run.body))
            if is_new[k]
        ]


def _ids(run: Run) -> list[tuple[int, int, int]]:
    return [(run.origin, run.epoch, run.first + k) for k in range(run.length)]
