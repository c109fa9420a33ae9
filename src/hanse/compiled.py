"""Choice of the form in which the hot path runs: its sources, or the mypyc extensions from `tools/compile`.

Rules:

- The sources decide. Extensions are used only if their stamp matches the sources beside them. After an edit the sources
  run, and a line on standard error says so.
- `HANSE_PURE=1` always runs the sources: for tests that replace a method, and for debugging.
- Both forms behave the same. The tests run the sources in their own process, and the extensions in the processes that
  they start.
"""

import hashlib
import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

STAMP = ".compiled"

# Modules on the path of every publication, and their subclasses. Compiling the rest would gain nothing.
_MQTT = (
    "connection",
    "counters",
    "endpoints",
    "exchange",
    "framing",
    "gathering",
    "keepalive",
    "likeness",
    "limits",
    "link",
    "properties",
    "publication",
    "receiving",
    "refusal",
    "sending",
    "skipping",
    "v311",
)
_FEDERATOR = (
    "agent",
    "batches",
    "copies",
    "delivery",
    "effects",
    "gate",
    "host",
    "links",
    "metrics",
    "obligations",
    "onward",
    "pieces",
    "ring",
    "slots",
    "turns",
)
# Per read of a client or a broker: 16 us of processor time per message of 200 connections, 13 us with these compiled.
_GATEWAY = ("brokers/connection", "front/client", "front/websocket", "redirect/exchange")
# Modules used in every step of a simulation: a seed takes 2.3 s of CPU time, or 3.4 s if only the protocol is compiled.
_SIM = (
    "checkers",
    "convergence",
    "disk",
    "elsewhere",
    "engine",
    "federation",
    "halves",
    "host",
    "ledger",
    "links",
    "packets",
)


def modules(package: Path) -> list[Path]:
    """Return the sources that are compiled: the whole protocol, and the hot modules of its drivers."""
    protocol = sorted((package / "protocol").glob("*.py"))
    shells = {"mqtt": _MQTT, "federator": _FEDERATOR, "gateway": _GATEWAY, "sim": _SIM}
    hot = [package / room / f"{name}.py" for room, names in shells.items() for name in names]
    # One class and its subclasses go through all of them. `__init__` would be found through its parent's directory.
    sessions = sorted((package / "gateway" / "session").glob("[a-z]*.py"))
    return [package / "errors.py", *protocol, *hot, *sessions]


def digest(package: Path) -> str:
    """Return a digest of the extensions' sources and of the interpreter for which they are compiled."""
    found = hashlib.sha256(sys.version.encode())
    for path in modules(package):
        found.update(path.read_bytes())
    return found.hexdigest()


def write_stamp(package: Path, named: str) -> None:
    """Record that the existing extensions were compiled from the sources with this digest."""
    (package / STAMP).write_text(named, encoding="utf-8")


def is_current(package: Path) -> bool:
    """Return whether extensions of these sources exist."""
    try:
        return (package / STAMP).read_text(encoding="utf-8") == digest(package)
    except OSError:
        return False


def choose(package: Path) -> bool:
    """Make this process import the right form; return True for the compiled one."""
    if not any(package.glob("*.so")) and not (package / STAMP).exists():
        return False
    if not os.environ.get("HANSE_PURE"):
        if is_current(package):
            return True
        print(
            f"hanse: the extensions in {package} do not match the sources beside them, which run instead; "
            "`tools/compile` builds new ones.",
            file=sys.stderr,
        )
    for directory in {path.parent for path in modules(package)}:
        sys.path_importer_cache[str(directory)] = FileFinder(str(directory), (SourceFileLoader, SOURCE_SUFFIXES))
    return False
