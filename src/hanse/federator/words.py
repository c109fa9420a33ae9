"""Strict parser of the topology manager's messages: its replies, announcements, and map of the overlay. Pure.

Rules:

1. A message that differs from `docs/topology.md` is a `RemoteError`, and nothing of it is used. Unknown fields are
   skipped, because an older agent must work with a newer manager.
2. An announcement counts only with the MAC that this federator's credential makes: any client of the broker can publish
   on its topic.
3. A login in an address is refused, because addresses are shown.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hanse.errors import LocalError, RemoteError
from hanse.mqtt import urls
from hanse.protocol.settings import FEDERATOR_ID_MAX

ANNOUNCEMENT_TOPIC = "federated_topology_ann"
PROBE_FILTER = "hanse/probe/+/+"
NEIGHBOURS_MAX = 256  # the same as the protocol's `neighbours_max`
PEERS_MAX = 100_000  # the largest value of a manager's `federators_max`
EPOCH_MAX = 2**53 - 1  # largest integer that JSON parsers keep exactly
_TEXT_MAX = 300
_CREDENTIAL_MAX = 200
_SETTINGS_MAX = 100
_HOST_MAX = 253  # the longest DNS name


@dataclass(frozen=True, slots=True)
class Peer:
    """Federator as the manager names it: its host broker, and the address of its link listener, if it has one."""

    id: int
    ip: str
    link: str | None = None

    def document(self) -> dict[str, object]:
        """Return the document that the manager reads and writes."""
        return {"id": self.id, "ip": self.ip, "link": self.link}


@dataclass(frozen=True, slots=True)
class Word:
    """Reply of the manager. `credential` only after a join."""

    id: int
    epoch: int
    changed_epoch: int
    state: str
    neighbours: tuple[Peer, ...]
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    manager: str = ""
    credential: str | None = None

    @property
    def is_up(self) -> bool:
        """Return whether the manager counts this federator as part of the overlay."""
        return self.state == "up"


@dataclass(frozen=True, slots=True)
class Announcement:
    """One instruction on the host broker, with all neighbours beside it."""

    epoch: int
    neighbours: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class OverlayMap:
    """All federators that are up, and their links: the input of relinking while no manager answers."""

    epoch: int = 0
    peers: Mapping[int, Peer] = field(default_factory=dict)
    links: frozenset[tuple[int, int]] = frozenset()


def read_word(document: Mapping[str, Any]) -> Word:
    """Parse the manager's reply to a join, a poll or a report."""
    credential = document.get("credential")
    return Word(
        _number(document, "id", FEDERATOR_ID_MAX),
        _number(document, "epoch", EPOCH_MAX),
        _number(document, "changedEpoch", EPOCH_MAX),
        _text(document, "state"),
        _neighbours(document),
        _settings(document.get("settings", {})),
        _text(document, "manager"),
        None if credential is None else _text(document, "credential", _CREDENTIAL_MAX),
    )


def read_announcement(payload: bytes, identity: int, credential: str | None) -> Announcement | None:
    """Parse an announcement for this federator; return None if it is for another one.

    Raises:
        RemoteError: It is malformed, or the manager did not make it.
    """
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise RemoteError(f"An announcement on {ANNOUNCEMENT_TOPIC} is not a JSON object.")
    if body.get("id") != identity:
        return None
    if not _is_genuine(body, body.pop("mac", None), credential):
        raise RemoteError(f"An announcement on {ANNOUNCEMENT_TOPIC} is not from the manager: its mac is wrong.")
    return Announcement(_number(body, "epoch", EPOCH_MAX), _neighbours(body))


def _is_genuine(body: Mapping[str, object], shown: object, credential: str | None) -> bool:
    if credential is None or not isinstance(shown, str) or not shown.isascii():
        return False
    try:
        return hmac.compare_digest(shown, announcement_mac(credential, body))
    except RecursionError:  # nested too deep to be written, though it was parsed
        return False


def probe_answer(host: str, received_us: int) -> bytes:
    """Return the answer to a probe: when it was received and, in the same turn, answered, by the clock of `host`."""
    return json.dumps({"host": host[:_HOST_MAX], "received_us": received_us, "answered_us": received_us}).encode()


def announcement_mac(credential: str, body: Mapping[str, object]) -> str:
    """Return the HMAC-SHA256 over the body without `mac`: keys sorted, no spaces, ASCII."""
    signed = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return base64.b64encode(hmac.new(credential.encode(), signed, hashlib.sha256).digest()).decode()


def read_map(document: Mapping[str, Any]) -> OverlayMap:
    """Parse the manager's `/topology`; leave out federators that are not up."""
    rows = document.get("federators")
    links = document.get("links")
    if not isinstance(rows, list) or not isinstance(links, list) or len(rows) > PEERS_MAX:
        raise RemoteError("The topology has no list of federators and links, or one that is too long.")
    peers = [_peer(row) for row in rows if isinstance(row, dict) and row.get("state") == "up"]
    known = {peer.id: peer for peer in peers}
    pairs = set()
    for row in links:
        if not isinstance(row, dict):
            raise RemoteError("A link of the topology is not a JSON object.")
        a, b = _number(row, "a", FEDERATOR_ID_MAX), _number(row, "b", FEDERATOR_ID_MAX)
        if a in known and b in known and a != b:
            pairs.add((min(a, b), max(a, b)))
    return OverlayMap(_number(document, "epoch", EPOCH_MAX), known, frozenset(pairs))


def _neighbours(document: Mapping[str, Any]) -> tuple[Peer, ...]:
    rows = document.get("neighbors")
    if not isinstance(rows, list) or len(rows) > NEIGHBOURS_MAX:
        raise RemoteError(f"`neighbors` is not a list of at most {NEIGHBOURS_MAX}.")
    peers = {peer.id: peer for peer in map(_peer, rows)}
    return tuple(peers[identity] for identity in sorted(peers))


def _peer(row: object) -> Peer:
    if not isinstance(row, dict):
        raise RemoteError("A federator in the manager's answer is not a JSON object.")
    link = row.get("link")
    return Peer(
        _number(row, "id", FEDERATOR_ID_MAX), _address(row, "ip"), None if link is None else _address(row, "link")
    )


def _number(document: Mapping[str, Any], name: str, maximum: int) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise RemoteError(f"`{name}` in the manager's answer is {str(value)[:40]!r}; expected 0 to {maximum}.")
    return value


def _text(document: Mapping[str, Any], name: str, length_max: int = _TEXT_MAX) -> str:
    value = document.get(name)
    if not isinstance(value, str) or len(value) > length_max or not value.isprintable():
        raise RemoteError(f"`{name}` in the manager's answer is not a text of at most {length_max} characters.")
    return value


def _address(document: Mapping[str, Any], name: str) -> str:
    """Apply rule 3."""
    text = _text(document, name)
    try:
        address = urls.parse(text)
    except LocalError as error:
        raise RemoteError(f"`{name}` in the manager's answer: {error}") from error
    if address.username is not None:
        raise RemoteError(f"`{name}` in the manager's answer holds a login; an address is shown to others.")
    return text


def _settings(value: object) -> dict[str, str | int | float | bool]:
    if not isinstance(value, dict) or len(value) > _SETTINGS_MAX:
        raise RemoteError("`settings` in the manager's answer is not a JSON object of a few settings.")
    return {
        name: one for name, one in value.items() if isinstance(name, str) and isinstance(one, str | int | float | bool)
    }
