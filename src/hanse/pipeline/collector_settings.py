"""Settings of a collector, given by `hanse collect` or by the data source for its helper process.

Rules: every value is checked once, here, and the error says what to do. The password is never shown and never put on a
command line; the helper reads these settings from its standard input.
"""

import hashlib
import json
import os
import re
import socket
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from hanse.errors import LocalError
from hanse.mqtt.urls import parse
from hanse.pipeline.spool.format import check_name

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def default_spool() -> str:
    """Return the default spool directory, in the user's data directory as the XDG rules define it."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return str(Path(data) / "hanse" / "spool")


def parse_duration_s(name: str, text: str) -> float:
    """Convert a duration such as `500ms`, `2s`, `1m`, `1h` or `7d` to seconds."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise LocalError(f"{name} is {text!r}; expected a duration such as 500ms, 2s, 10m, 1h or 7d.")
    return float(match[1]) * _UNIT_S[match[2]]


def check_url(url: str) -> str:
    """Return the broker's address; reject a login in it, because addresses are shown and logged."""
    if parse(url).username is not None:
        raise LocalError("The url holds a login, but addresses are logged. Give username and password instead.")
    return url


def check_filter(text: str) -> str:
    """Return the topic filter if it is valid according to MQTT 5, section 4.7."""
    levels = text.split("/")
    if not text or "\0" in text or len(text.encode("utf-8", "surrogatepass")) > 65535:
        raise LocalError(
            f"The topic filter {text[:80]!r} is empty, too long or holds NUL; expected one like a/+/b or a/#."
        )
    for n, level in enumerate(levels):
        if ("#" in level and (level != "#" or n != len(levels) - 1)) or ("+" in level and level != "+"):
            raise LocalError(
                f"The topic filter {text[:80]!r} has a wildcard in the wrong place: + stands for one whole level, "
                "# for all the last ones (MQTT 5, section 4.7.1)."
            )
    return text


def split_filters(text: str) -> tuple[str, ...]:
    """Split the comma-separated filters of an option, check each, and leave out a filter that another one covers.

    Brokers may send a publication once for every matching subscription, so `a/#,a/b` would duplicate `a/b`.
    """
    found = list(dict.fromkeys(check_filter(part.strip()) for part in text.split(",") if part.strip()))
    if not found:
        raise LocalError(
            f"topics is {text!r}; expected topic filters, separated by commas, such as sensors/#,plant/+/state."
        )
    return tuple(one for one in found if not any(other != one and covers(other, one) for other in found))


def covers(wide: str, narrow: str) -> bool:
    """Return whether `wide` matches every topic that `narrow` matches."""
    ours, theirs = wide.split("/"), narrow.split("/")
    if ours[0] in {"#", "+"} and theirs[0].startswith("$"):
        return False
    for n, level in enumerate(ours):
        if level == "#":
            return True
        if n >= len(theirs) or theirs[n] == "#" or (level != "+" and level != theirs[n]):
            return False
    return len(ours) == len(theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSettings:
    """Settings that all collectors share: the topics, and the location and limits of the spool."""

    topics: tuple[str, ...]
    spool: str = field(default_factory=default_spool)
    client_id: str = ""
    """Name of the session at the broker and of the producer in the spool; stable over restarts. Derived if empty: the
    session's name then ends in 128 random bits, which the spool keeps."""
    commit_interval_s: float = 0.015
    """Longest wait for more messages before a commit. Larger: fewer syncs; smaller: earlier PUBACKs."""
    commit_bytes_max: int = 1024 * 1024
    retention_s: float = 7 * 86400.0
    spool_bytes_max: int | None = None
    free_bytes_min: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for one in self.topics:
            check_filter(one)
        if not self.topics:
            raise LocalError("There are no topics to collect; give at least one filter, such as sensors/#.")
        if not 0.001 <= self.commit_interval_s <= 1.0:
            raise LocalError(f"The commit interval is {self.commit_interval_s} s; expected 0.001 to 1 s.")
        object.__setattr__(self, "client_id", check_name("producer", self.client_id or self._derived_client_id()))

    @property
    def has_derived_id(self) -> bool:
        """Return whether the client id follows from the other settings, so that others can compute it."""
        return self.client_id == self._derived_client_id()

    def _derived_client_id(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings(SpoolSettings):
    """Settings of a collector that is a client of a broker: connection, session and QoS."""

    url: str
    qos: int = 1
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    session_expiry_s: int = 7 * 86400
    """Time for which the broker keeps the session and its queue while no collector is connected."""

    def __post_init__(self) -> None:
        check_url(self.url)
        # Called by name: `slots` creates a second class, and `super()` would start from the first one.
        SpoolSettings.__post_init__(self)
        if self.qos not in (0, 1, 2):
            raise LocalError(f"qos is {self.qos}; expected 0 (best effort), 1 or 2.")
        if self.password is not None and self.username is None:
            raise LocalError("There is a password without a username; give both or neither.")
        if (self.cert_file is None) != (self.key_file is None):
            raise LocalError("A client certificate needs both certFile and keyFile.")
        for name in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise LocalError(f"{name} is {path!r}, which is not a file on this machine.")

    def _derived_client_id(self) -> str:
        # Two machines or two spools must not take over each other's session; a restart must find its own again.
        parts = [
            socket.gethostname(),
            str(Path(self.spool).absolute()),
            self.url,
            self.username or "",
            *sorted(self.topics),
        ]
        return "hanse-" + hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def to_json(self) -> str:
        """Return all settings as JSON, including the password: only for the helper's standard input."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the settings back from the output of `to_json`."""
        value: dict[str, Any] = json.loads(text)
        known: dict[str, Any] = {one.name: value[one.name] for one in fields(cls) if one.name in value}
        return cls(**(known | {"topics": tuple(value["topics"])}))
