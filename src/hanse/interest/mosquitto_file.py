"""Interest from Mosquitto's log file: the lines of `mosquitto_log`, which a restarted federator can read again.

The adapter takes the file's bytes in chunks of any size; `follow.LogFollower` reads them. Timestamps, epoch or ISO, are
optional. A file has no topics, so the wording of a line and the connected clients determine its kind.
"""

from collections import Counter

from hanse.interest.mosquitto_lines import LINE_BYTES_CUT, MosquittoLines
from hanse.interest.reports import Gap, Report

# A longer line without an end is not a log line of Mosquitto. It is dropped up to its end.
_LINE_BYTES_MAX = 4 * LINE_BYTES_CUT


class MosquittoFileAdapter:
    """Adapter: chunks of the log file in, reports out."""

    source = "mosquitto-file"

    def __init__(self, own_prefix: str) -> None:
        """Take the prefix of all client ids of the federator."""
        self._lines = MosquittoLines(own_prefix)
        self._rest = b""
        self._is_skipping = False

    @property
    def counters(self) -> Counter[str]:
        """Refused and ignored lines, by reason."""
        return self._lines.counters

    def feed(self, chunk: bytes) -> list[Report]:
        """Handle the next bytes of the file. An incomplete last line waits for its end."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if self._is_skipping and lines:
            lines.pop(0)
            self._is_skipping = False
        if len(self._rest) > _LINE_BYTES_MAX:
            self.counters["lines_without_end"] += not self._is_skipping
            self._rest = b""
            self._is_skipping = True
        reports: list[Report] = []
        for line in lines:
            text = self._lines.text(line.rstrip(b"\r"))
            if text:
                reports += self._lines.any_kind(text)
        return reports

    def began_anew(self) -> list[Report]:
        """Begin another file (rotation). An incomplete line of the old one will not be completed."""
        if self._rest:
            self.counters["lines_unfinished"] += 1
        self._rest = b""
        self._is_skipping = False
        return []

    def lost(self) -> list[Report]:
        """Report missed lines: the file was truncated, or is read from its start again."""
        self.began_anew()
        self._lines.forget()
        return [Gap()]
