"""Interest from Mosquitto's log file: the lines of `mosquitto_log`, which a restarted federator can read again.

The adapter takes the file's bytes in chunks of any size; `follow.LogFollower` reads them. Timestamps, epoch or
ISO, are optional. A file gives no topics, so a line's kind is told by its wording and by who is connected.
"""

from collections import Counter

from hanse.interest.mosquitto_lines import LINE_BYTES_CUT, MosquittoLines
from hanse.interest.reports import Gap, Report

# A line that goes on beyond this without an end is not a log line of Mosquitto's: dropped up to its end.
_LINE_BYTES_MAX = 4 * LINE_BYTES_CUT


class MosquittoFileAdapter:
    """Chunks of the log file in, reports out."""

    source = "mosquitto-file"

    def __init__(self, own_prefix: str) -> None:
        """`own_prefix`: what every client id of the federator begins with."""
        self._lines = MosquittoLines(own_prefix)
        self._rest = b""
        self._is_skipping = False

    @property
    def counters(self) -> Counter[str]:
        """What was refused or ignored, by reason."""
        return self._lines.counters

    def feed(self, chunk: bytes) -> list[Report]:
        """The next bytes of the file; an unfinished last line waits for its end."""
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
        """The next chunk begins another file (rotation): a half line of the old one will not be finished."""
        if self._rest:
            self.counters["lines_unfinished"] += 1
        self._rest = b""
        self._is_skipping = False
        return []

    def lost(self) -> list[Report]:
        """Lines were missed: the file was truncated, or is read from its start again."""
        self.began_anew()
        self._lines.forget()
        return [Gap()]
