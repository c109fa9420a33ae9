"""What has been measured and not yet been sent: rows by kind, bounded, handed out as publications.

Pure: no clock and no socket. Whoever owns the connection calls `flush` at its report interval and publishes what it
gets; what does not fit is dropped and counted, for telemetry must never cost the data path its memory.
"""

from hanse.errors import LocalError
from hanse.telemetry.contracts import Contract
from hanse.telemetry.encoding import ROWS_MAX, encode_batches
from hanse.telemetry.registry import KINDS, kind_of
from hanse.telemetry.topic import topic_for

_KIND_OF = {contract: kind_of(contract) for contract in KINDS.values()}


class Reporter:
    """Collects one federator's (or manager's) rows between two reports.

    Args:
        reporter: The id that stands in the topic.
        rows_max: Rows kept of each kind until the next flush. Larger outlasts a longer pause of the connection;
            a row of Python objects takes some 300 bytes.
    """

    def __init__(self, reporter: str, rows_max: int = ROWS_MAX) -> None:
        if rows_max < 1:
            raise LocalError(f"rows_max is {rows_max}; a reporter keeps at least one row of each kind.")
        self._topics = {kind: topic_for(kind, reporter) for kind in KINDS}
        self._rows: dict[str, list[Contract]] = {kind: [] for kind in KINDS}
        self.rows_max = rows_max
        self.dropped: dict[str, int] = dict.fromkeys(KINDS, 0)
        """Rows that did not fit, by kind, since the start."""

    def add(self, row: Contract) -> bool:
        """Keeps `row` for the next flush; False if there is no room, and the row is counted as dropped."""
        kind = _KIND_OF[type(row)]
        rows = self._rows[kind]
        if len(rows) >= self.rows_max:
            self.dropped[kind] += 1
            return False
        rows.append(row)
        return True

    def flush(self) -> list[tuple[str, bytes]]:
        """Topics and payloads of all that was added since the last flush, in the order of the kinds.

        Raises:
            LocalError: A row holds what cannot be encoded. All rows of this flush are gone then: the same row would
                fail the next one too.
        """
        taken, self._rows = self._rows, {kind: [] for kind in KINDS}
        return [(self._topics[kind], payload) for kind, rows in taken.items() for payload in encode_batches(kind, rows)]
