"""The log format of every Hanse process: one event per line, for people (`plain`) or for machines (`json`).

A line is written with plain `logging`. The message is a fixed sentence; values go into `extra`:

    _log.info("link is up", extra={"neighbour": 7, "address": str(address)})
    2026-01-31T12:00:00.123Z INFO  federator.links link is up neighbour=7 address=mqtt://127.0.0.1:1884
    {"time":"2026-01-31T12:00:00.123Z","level":"info","logger":"hanse.federator.links","event":"link is up",...}

Rules:

1. No secrets. A field whose name looks like a secret's is replaced, and so are credentials within a URL, anywhere in
   a line. Payloads are never logged; that is the caller's rule.
2. Text from outside (topics, client ids, errors) cannot forge a line or move a terminal's cursor. Everything that is
   not printable is escaped, and a field is cut at `FIELD_CHARACTERS_MAX`.
3. A line that cannot be written never stops the process.
4. Libraries (uvicorn, asyncio, pymongo) log in the same format, from WARNING upward.
5. Security events go to `SECURITY` with a field `security` that names the event, so that one filter finds all of them.
"""

import json
import logging
import math
import re
import sys
import time
from typing import Final, TextIO

# The values of the settings `log_format` and `log_level`, which every command has.
FORMATS: Final = ("plain", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
FORMAT_HELP: Final = "Format of log lines."
LEVEL_HELP: Final = "The least severe level that is logged."

# A topic may have 65,535 bytes; this much of it tells which one it is.
FIELD_CHARACTERS_MAX = 1_000

# Rule 5.
SECURITY: Final = logging.getLogger("hanse.security")

_ROOT = "hanse"
_SECRET_NAME = re.compile(r"passw(or)?d|secret|token|credential|private|(^|_)key($|_password)", re.IGNORECASE)
# Up to the last @ before a slash or blank: a password may hold an @ itself.
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
_HIDDEN = "***"
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_NEEDS_QUOTES = re.compile(r"[\s\"=]")


class _Handler(logging.StreamHandler[TextIO]):
    """The one handler that `configure` adds, so that it can find and replace it."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or sys.stderr)
        self._is_given = stream is not None

    def emit(self, record: logging.LogRecord) -> None:
        """Write to what is standard error now: a live table on the terminal replaces it while it is shown."""
        if not self._is_given:
            self.stream = sys.stderr
        super().emit(record)


def configure(form: str, level: str, stream: TextIO | None = None) -> None:
    """Send all logs of this process to standard error, or to `stream`. A second call replaces the first."""
    assert form in FORMATS, form
    assert level in LEVELS, level
    # Rule 3, for broken pipes and full disks. The library would print a traceback in place of each line.
    logging.raiseExceptions = False
    handler = _Handler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger(_ROOT).setLevel(level.upper())
    # Rule 4. Libraries say at INFO what only their own developers want to know.
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))


def note_security(event: str, message: str, *, level: int = logging.WARNING, **fields: object) -> None:
    """Log a security event: rule 5.

    Args:
        event: Its name, the same as the label of the counter beside it.
        message: What happened, as a fixed sentence.
        level: WARNING where an operator should look, INFO for what happens in an ordinary day.
        fields: What varies.
    """
    SECURITY.log(level, message, extra={"security": event, **fields})


class LineLimit:
    """Limit on log lines that a stranger can cause: at most `lines_max` per `window_s`; the others are counted.

    A stranger must neither fill a disk nor push the lines of others out of a log.
    """

    __slots__ = ("_left_out", "_lines", "_lines_max", "_since_s", "_window_s")

    def __init__(self, lines_max: int = 20, window_s: float = 10.0) -> None:
        self._lines_max = lines_max
        self._window_s = window_s
        self._since_s = float("-inf")
        self._lines = 0
        self._left_out = 0

    def take(self, now_s: float) -> dict[str, int] | None:
        """Return None if a line must be left out now, else the fields that say how many were since the last line."""
        if now_s - self._since_s >= self._window_s:
            self._since_s, self._lines = now_s, 0
        if self._lines >= self._lines_max:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return {"lines_left_out": left_out} if left_out else {}


class RepeatLimit:
    """Limit on a line about a state that lasts: one when its reason changes, then one per `repeat_s`."""

    __slots__ = ("_left_out", "_logged_s", "_reason", "_repeat_s")

    def __init__(self, repeat_s: float = 300.0) -> None:
        self._repeat_s = repeat_s
        self._reason: str | None = None
        self._logged_s = 0.0
        self._left_out = 0

    def take(self, reason: str, now_s: float) -> str | None:
        """Return None if a line must be left out now, else what it says at its end about those that were."""
        if reason == self._reason and now_s - self._logged_s < self._repeat_s:
            self._left_out += 1
            return None
        self._reason, self._logged_s = reason, now_s
        left_out, self._left_out = self._left_out, 0
        return f" (and {left_out} times more since the last line)" if left_out else ""

    def end(self) -> bool:
        """Note that the state has ended, and return whether it lasted until now."""
        lasted, self._reason, self._left_out = self._reason is not None, None, 0
        return lasted


class PlainFormatter(logging.Formatter):
    """Writes time, level, module, event, and the fields as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; a traceback follows it, indented."""
        where = record.name.removeprefix(f"{_ROOT}.")
        head = f"{_time(record)} {record.levelname:<5} {where} {_clean(record.getMessage())}"
        shown = [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        line = " ".join([head, *shown])
        trace = _trace(record)
        return line if trace is None else "\n".join([line, *(f"    {part}" for part in trace)])


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object. A field that has the name of a standard key gets a trailing underscore."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _clean(record.getMessage()),
        }
        for name, value in _fields(record).items():
            line[f"{name}_" if name in line or name == "traceback" else name] = value
        trace = _trace(record)
        if trace is not None:
            line["traceback"] = trace
        # ASCII: a log collector's idea of the encoding does not matter, and no control character remains.
        return json.dumps(line, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _fields(record: logging.LogRecord) -> dict[str, str | int | float | bool | None]:
    found: dict[str, str | int | float | bool | None] = {}
    for name, value in vars(record).items():
        if name in _STANDARD:
            continue
        if _SECRET_NAME.search(name):
            found[_clean(name)] = _HIDDEN
        elif value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            found[_clean(name)] = value
        else:
            found[_clean(name)] = _clean(str(value))
    return found


def _trace(record: logging.LogRecord) -> list[str] | None:
    if not record.exc_info or record.exc_info[1] is None:
        return None
    text = logging.Formatter().formatException(record.exc_info)
    return [_clean(line) for line in text.splitlines()]


def _clean(text: str) -> str:
    """Remove credentials, escape control characters and cut the length (rules 1 and 2)."""
    # The credentials go first: a cut must not part them from the @ by which they are known.
    hidden = _URL_CREDENTIALS.sub(f"{_HIDDEN}@", text) if "://" in text else text
    cut = hidden if len(hidden) <= FIELD_CHARACTERS_MAX else hidden[:FIELD_CHARACTERS_MAX] + "..."
    if cut.isprintable():
        return cut
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in cut)


def _quoted(value: str | float | bool | None) -> str:
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if value and not _NEEDS_QUOTES.search(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
