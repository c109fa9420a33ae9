"""Client ids that nobody can guess: a broker gives the session of a client id to anyone who connects with it.

Rules:

1. A client id ends in 128 bits that follow from a secret. The secret is in a file of mode 0600, so that a restarted
   process finds its sessions again.
2. Each role (the session itself, the bulk connection, a session at another broker, ...) has an id of its own. Nobody
   can compute one from another, so an id that a broker shows in its log betrays that one session only.
3. An operator may name the ids with a pattern. A pattern without `{random}` gives ids that can be guessed; the broker
   must then decide by itself who may use them.
"""

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.errors import LocalError

RANDOM = "{random}"
ID = "{id}"
# Mosquitto cuts lines of its log at 1,000 bytes, and a line of interest holds a filter beside the id.
CLIENT_ID_BYTES_MAX = 200
# Shorter beginnings would take clients of others for our own in the broker's log.
PREFIX_BYTES_MIN = 3
_SECRET_BYTES = 32
_RANDOM_DIGITS = 32
_ROLE_BYTES_MAX = 32
_FILE_BYTES_MAX = 1 << 16


def check_pattern(pattern: str) -> str:
    """Return the pattern if client ids can be made from it.

    Raises:
        LocalError: It cannot be used.
    """
    rest = pattern.replace(ID, "").replace(RANDOM, "")
    if "{" in rest or "}" in rest:
        raise LocalError(f"The client id {pattern[:100]!r} has braces; it may hold {ID} and {RANDOM}, and no others.")
    if not rest.isascii() or not rest.isprintable() or any(one in rest for one in " /+#"):
        raise LocalError(
            f"The client id {pattern[:100]!r} has a character that brokers or their ACLs do not take; use letters, "
            "digits and -_.:@ only."
        )
    if len(rest) + _RANDOM_DIGITS + _ROLE_BYTES_MAX > CLIENT_ID_BYTES_MAX or pattern.count(RANDOM) > 1:
        raise LocalError(
            f"The client id {pattern[:100]!r} is too long or has {RANDOM} twice; give up to "
            f"{CLIENT_ID_BYTES_MAX - _RANDOM_DIGITS - _ROLE_BYTES_MAX} characters and {RANDOM} once."
        )
    if len(prefix_of(pattern)) < PREFIX_BYTES_MIN:
        raise LocalError(
            f"The client id {pattern[:100]!r} has fewer than {PREFIX_BYTES_MIN} characters before {ID} and {RANDOM}; "
            "the federator knows its own sessions in the broker's log by them."
        )
    return pattern


def prefix_of(pattern: str) -> str:
    """Return what all client ids of a pattern begin with, whatever the id and the random bits are."""
    return pattern.split("{", 1)[0]


@dataclass(frozen=True, slots=True)
class ClientIds:
    """The client ids of one process, by role."""

    pattern: str
    identity: str
    secret: bytes = field(repr=False)

    def of(self, role: str = "") -> str:
        """Return the client id for a role; the main session has none."""
        digest = hmac.new(self.secret, role.encode(), hashlib.sha256).hexdigest()[:_RANDOM_DIGITS]
        name = self.pattern.replace(ID, self.identity).replace(RANDOM, digest)
        return f"{name}-{role}" if role else name


def new_secret() -> bytes:
    """Return a secret that nobody has."""
    return secrets.token_bytes(_SECRET_BYTES)


@dataclass(slots=True)
class SessionRecord:
    """Stored record about the sessions of one process.

    Attributes:
        secret: bytes from which the client ids are derived.
        current: the client id of the session in use; empty before the first.
        ending: client ids whose sessions the broker still has to forget.
    """

    secret: bytes = field(default_factory=new_secret, repr=False)
    current: str = ""
    ending: list[str] = field(default_factory=list)


def read_record(path: Path) -> SessionRecord | None:
    """Return what the file holds; None if there is no file.

    Raises:
        LocalError: The file cannot be read, or it is damaged.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}; check its rights.") from error
    try:
        found: dict[str, Any] = json.loads(raw[:_FILE_BYTES_MAX])
        secret = bytes.fromhex(found["secret"])
        record = SessionRecord(secret, str(found["current"]), [str(one) for one in found["ending"]])
    except (ValueError, KeyError, TypeError) as error:
        raise LocalError(
            f"{path} is damaged ({type(error).__name__}); expected JSON with secret, current and ending. Restore it "
            "or remove it: what waits in the session at the broker is lost then."
        ) from error
    if len(secret) != _SECRET_BYTES:
        raise LocalError(f"{path} is damaged: its secret has {len(secret)} bytes instead of {_SECRET_BYTES}.")
    return record


def write_record(path: Path, record: SessionRecord) -> None:
    """Write the file; when this returns it is on disk, readable by its owner alone.

    Raises:
        LocalError: The disk refuses.
    """
    document = {
        "secret": record.secret.hex(),
        "current": record.current,
        "ending": record.ending,
    }
    beside = path.with_name(path.name + ".new")
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(file, 0o600)
            os.write(file, json.dumps(document).encode())
            os.fsync(file)
        finally:
            os.close(file)
        beside.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise LocalError(f"{path} cannot be written: {error.strerror}; check space and rights.") from error
