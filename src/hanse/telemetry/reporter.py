"""Measured rows that have not been sent yet, by kind, bounded, and handed out as publications.

Pure: no clock and no socket. The owner of the connection calls `flush` at its report interval and publishes the result.
Rows beyond the limit are dropped and counted, because telemetry must never cost the data path its memory.
"""

from hanse.errors import LocalError
from hanse.telemetry.contracts import Contract
from hanse.telemetry.encoding import ROWS_MAX, encode_batches
from hanse.telemetry.registry import KINDS, kind_of
from hanse.telemetry.topic import topic_for

_KIND_OF = {contract: kind_of(contract) for contract in KINDS.values()}


class Reporter:
    """Collector of one federator's (or manager's) rows between two reports.

    Args:
        reporter: Id in the topic.
        rows_max: Rows kept per kind until the next flush. A larger value outlasts a longer pause of the connection; a
            row of Python objects takes some 300 bytes.
    """

    def __init__(self, reporter: str, rows_max: int = ROWS_MAX) -> None:
        if rows_max < 1:
            raise LocalError(f"rows_max is {rows_max}; it must be at least 1.")
        self._topics = {kind: topic_for(kind, reporter) for kind in KINDS}
        self._rows: dict[str, list[Contract]] = {kind: [] for kind in KINDS}
        self.rows_max = rows_max
        self.dropped: dict[str, int] = dict.fromkeys(KINDS, 0)
        """Rows dropped for lack of capacity, by kind, since the start."""

    def add(self, row: Contract) -> bool:
        """Keep `row` for the next flush. Return False if there is no capacity; the row is then counted as dropped."""
        kind = _KIND_OF[type(row)]
        rows = self._rows[kind]
        if len(rows) >= self.rows_max:
            self.dropped[kind] += 1
            return False
        rows.append(row)
        return True

    def flush(self) -> list[tuple[str, bytes]]:
        """Return topics and payloads of all rows added since the last flush, in the order of the kinds.

        Raises:
            LocalError: A row cannot be encoded. All rows of this flush are then lost, because the same row would fail
                the next flush as well.
        """
        taken, self._rows = self._rows, {kind: [] for kind in KINDS}
        return [(self._topics[kind], payload) for kind, rows in taken.items() for payload in encode_batches(kind, rows)]
