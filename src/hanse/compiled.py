"""Which form of the hot path runs: the sources, or what mypyc made of them (`tools/compile`).

Rules:

- The sources decide. Extensions stand beside them and are taken only while their stamp names these very sources; after
  an edit the sources run, and a line on standard error says so.
- `HANSE_PURE=1` runs the sources whatever there is: for tests that replace a method, and for who looks for a bug.
- Both forms do the same. The tests run the sources in their own process and the extensions in those that they start.
"""

import hashlib
import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

STAMP = ".compiled"

# Whatever a publication passes, and what is derived from that. The rest would gain nothing.
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
# What every step of a simulation passes: a seed takes 2.3 s of a processor, 3.4 s with the protocol alone compiled.
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
    """The sources that are compiled: the whole protocol, and of what drives it what is hot."""
    protocol = sorted((package / "protocol").glob("*.py"))
    shells = {"mqtt": _MQTT, "federator": _FEDERATOR, "sim": _SIM}
    hot = [package / room / f"{name}.py" for room, names in shells.items() for name in names]
    return [package / "errors.py", *protocol, *hot]


def digest(package: Path) -> str:
    """What names the sources of the extensions, and the interpreter that they are for."""
    found = hashlib.sha256(sys.version.encode())
    for path in modules(package):
        found.update(path.read_bytes())
    return found.hexdigest()


def write_stamp(package: Path, named: str) -> None:
    """The extensions that stand there are of the sources with this digest."""
    (package / STAMP).write_text(named, encoding="utf-8")


def is_current(package: Path) -> bool:
    """Whether there are extensions of these sources."""
    try:
        return (package / STAMP).read_text(encoding="utf-8") == digest(package)
    except OSError:
        return False


def choose(package: Path) -> bool:
    """Let this process import the right form; whether that is the compiled one."""
    if not any(package.glob("*.so")) and not (package / STAMP).exists():
        return False
    if not os.environ.get("HANSE_PURE"):
        if is_current(package):
            return True
        print(
            f"hanse: the extensions in {package} are not of the sources beside them, which run instead; "
            "`tools/compile` makes new ones.",
            file=sys.stderr,
        )
    for directory in {path.parent for path in modules(package)}:
        sys.path_importer_cache[str(directory)] = FileFinder(str(directory), (SourceFileLoader, SOURCE_SUFFIXES))
    return False
