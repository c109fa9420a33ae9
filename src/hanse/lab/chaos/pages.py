"""The federators' own figures: counters before and after, gauges, drops; and the kernel's figures of their memory."""

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
# Gauges of messages that wait. "retained" is not one of them, because those messages stay for a while on purpose.
_UNDER_WAY = ("host_unacknowledged", "parked", "custody", "outbox")
_BROKER_DROPPED = "$SYS/broker/publish/messages/dropped"
# Retained from the broker's first second on, unlike a counter that is still 0: once it has arrived, so has the counter.
_BROKER_VERSION = "$SYS/broker/version"
_ASK_S = 1.0


@dataclass(frozen=True, slots=True)
class Page:
    """One federator's page at one time. A restart resets its counters, and changes the epoch."""

    epoch: int
    samples: Mapping[str, float]
    broker_dropped: int = 0

    @property
    def under_way(self) -> dict[str, float]:
        """Messages that the federator still holds, by gauge. Without traffic there are none."""
        return {
            name: value
            for name, value in self.samples.items()
            if value and "_total" not in name and any(word in name for word in _UNDER_WAY)
        }


def parse(text: str) -> dict[str, float]:
    """Return values by name (with labels) from Prometheus' text format, without histograms."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is not None and not match[1].endswith(("_bucket", "_sum", "_count")):
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


async def read(metrics_url: str, broker_url: str) -> Page | None:
    """Return one federator's page and its broker's drops; None if the federator does not answer."""
    try:
        health, text = await asyncio.gather(get_json(f"{metrics_url}/healthz"), get(f"{metrics_url}/metrics"))
    except Unavailable:
        return None
    return Page(int(health["epoch"]), parse(text), await broker_dropped(broker_url))


async def broker_dropped(broker_url: str) -> int:
    """Return the number of drops that the broker reports, if it does (Mosquitto does); otherwise 0."""
    try:
        async with asyncio.timeout(_ASK_S), Connection(broker_url) as connection:
            await connection.subscribe([_BROKER_DROPPED, _BROKER_VERSION])
            async for packet in connection.messages():
                return int(bytes(packet.payload or b"0")) if packet.topic == _BROKER_DROPPED else 0
    except (TimeoutError, HanseError, ValueError):
        pass
    return 0


def changes(before: Page | None, after: Page | None) -> dict[str, float]:
    """Return the changes between two pages of one federator, or all values if it was restarted meanwhile."""
    if after is None:
        return {}
    old = before.samples if before is not None and before.epoch == after.epoch else {}
    found = {name: value - old.get(name, 0.0) for name, value in after.samples.items()}
    return {name: value for name, value in sorted(found.items()) if value}


def drops(before: Sequence[Page | None], after: Sequence[Page | None]) -> dict[str, int]:
    """Return all drops of all federators and brokers in the meantime, by site and reason."""
    found: dict[str, int] = {}
    for site, (old, new) in enumerate(zip(before, after, strict=True)):
        for name, value in changes(old, new).items():
            reason = name.partition('reason="')[2].partition('"')[0]
            # Dropped control messages are repeated in the next round, and are not publications.
            if name.startswith(_DROPPED) and not reason.startswith("control"):
                found[f"federator {site}: {reason}"] = round(value)
        if old is not None and new is not None:
            # A killed broker starts again at 0.
            grown = new.broker_dropped - old.broker_dropped
            grown = new.broker_dropped if grown < 0 else grown
            if grown:
                found[f"broker {site}"] = grown
    return found


def resident_bytes(pid: int) -> int | None:
    """Return the memory of a process; None if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return None


def processor_s(pid: int) -> float | None:
    """Return the user and system time of a process; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
