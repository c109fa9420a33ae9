"""Structured logs: one event a line, for people (`plain`) or for machines (`json`).

A line is written with plain `logging`: the message is a fixed sentence, what varies goes into `extra`:

    _log.info("link is up", extra={"neighbour": 7, "address": str(address)})
    2026-01-31T12:00:00.123Z INFO  federator.links link is up neighbour=7 address=mqtt://127.0.0.1:1884
    {"time":"2026-01-31T12:00:00.123Z","level":"info","logger":"hanse.federator.links","event":"link is up",...}

Rules:

1. No secrets: a field whose name says that it is one is replaced, and so are credentials within a URL, wherever
   they stand in a line. Payloads are not logged at all: that is the caller's rule.
2. What others wrote (topics, client ids, errors) cannot forge a line or move a terminal's cursor: everything but
   printable text is escaped, and a field is cut at `FIELD_CHARACTERS_MAX`.
3. A line that cannot be written never stops the federator.
"""

import json
import logging
import math
import re
import sys
import time
from typing import TextIO

# A topic may have 65,535 bytes; this much of it tells which one it is.
FIELD_CHARACTERS_MAX = 1_000

_ROOT = "hanse"
_SECRET_NAME = re.compile(r"passw(or)?d|secret|token|credential|private|(^|_)key($|_password)", re.IGNORECASE)
# Up to the last @ before a slash or blank: a password may hold an @ itself.
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
_HIDDEN = "***"
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_NEEDS_QUOTES = re.compile(r"[\s\"=]")


def configure(form: str, level: str, stream: TextIO | None = None) -> None:
    """Send the logs of all of Hanse to standard error, or to `stream`; calling it again replaces the old way."""
    assert form in {"plain", "json"}, form
    # Broken pipes and full disks: rule 3. The library would print a traceback in place of each line.
    logging.raiseExceptions = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    logger = logging.getLogger(_ROOT)
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


class PlainFormatter(logging.Formatter):
    """Time, level, where, what, and the fields as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and behind it the traceback, indented, where there is one."""
        where = record.name.removeprefix(f"{_ROOT}.")
        head = f"{_time(record)} {record.levelname:<5} {where} {_clean(record.getMessage())}"
        shown = [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        line = " ".join([head, *shown])
        trace = _trace(record)
        return line if trace is None else "\n".join([line, *(f"    {part}" for part in trace)])


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The object; fields that are named like one of its own get a trailing underscore."""
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
    """Without credentials, in one line, of bounded length (rules 1 and 2)."""
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
