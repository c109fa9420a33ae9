"""The federators' own words: counters before and after, gauges, drops; and what the kernel says of their memory."""

import asyncio
import os
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanse.errors import HanseError, Unavailable
from hanse.local.client import Connection
from hanse.local.http import get, get_json

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})? ([0-9.eE+-]+)")
_DROPPED = "hanse_federator_dropped_total"
# Gauges of what waits; "retained" is none of them, for it stays a while on purpose.
_UNDER_WAY = ("host_unacknowledged", "parked", "custody", "outbox")
_BROKER_DROPPED = "$SYS/broker/publish/messages/dropped"
# Retained from the broker's first second on, unlike a counter that is still 0: when it comes, the counter has come.
_BROKER_VERSION = "$SYS/broker/version"
_ASK_S = 1.0


@dataclass(frozen=True, slots=True)
class Page:
    """One federator at one moment; a restart begins its counters anew, with another epoch."""

    epoch: int
    samples: Mapping[str, float]
    broker_dropped: int = 0

    @property
    def under_way(self) -> dict[str, float]:
        """What the federator still holds for somebody, by gauge; in peace there is nothing."""
        return {
            name: value
            for name, value in self.samples.items()
            if value and "_total" not in name and any(word in name for word in _UNDER_WAY)
        }


def parse(text: str) -> dict[str, float]:
    """Prometheus' text format as name (with labels) to value; histograms are left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is not None and not match[1].endswith(("_bucket", "_sum", "_count")):
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


async def read(metrics_url: str, broker_url: str) -> Page | None:
    """One federator's page and its broker's drops; None where the federator does not answer."""
    try:
        health, text = await asyncio.gather(get_json(f"{metrics_url}/healthz"), get(f"{metrics_url}/metrics"))
    except Unavailable:
        return None
    return Page(int(health["epoch"]), parse(text), await broker_dropped(broker_url))


async def broker_dropped(broker_url: str) -> int:
    """What the broker says it dropped, where it says so (Mosquitto does); else 0."""
    try:
        async with asyncio.timeout(_ASK_S), Connection(broker_url) as connection:
            await connection.subscribe([_BROKER_DROPPED, _BROKER_VERSION])
            async for packet in connection.messages():
                return int(bytes(packet.payload or b"0")) if packet.topic == _BROKER_DROPPED else 0
    except (TimeoutError, HanseError, ValueError):
        pass
    return 0


def changes(before: Page | None, after: Page | None) -> dict[str, float]:
    """What grew (or shrank) between two pages of one federator; all of it, if it was restarted meanwhile."""
    if after is None:
        return {}
    old = before.samples if before is not None and before.epoch == after.epoch else {}
    found = {name: value - old.get(name, 0.0) for name, value in after.samples.items()}
    return {name: value for name, value in sorted(found.items()) if value}


def drops(before: Sequence[Page | None], after: Sequence[Page | None]) -> dict[str, int]:
    """All drops of all federators and brokers meanwhile, by site and reason."""
    found: dict[str, int] = {}
    for site, (old, new) in enumerate(zip(before, after, strict=True)):
        for name, value in changes(old, new).items():
            reason = name.partition('reason="')[2].partition('"')[0]
            # Control that is dropped is said again with the next round, and is no publication.
            if name.startswith(_DROPPED) and not reason.startswith("control"):
                found[f"federator {site}: {reason}"] = round(value)
        if old is not None and new is not None:
            # A broker that was killed begins at 0 again.
            grown = new.broker_dropped - old.broker_dropped
            grown = new.broker_dropped if grown < 0 else grown
            if grown:
                found[f"broker {site}"] = grown
    return found


def resident_bytes(pid: int) -> int | None:
    """The memory of a process; None when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return None


def processor_s(pid: int) -> float | None:
    """User and system time of a process; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
