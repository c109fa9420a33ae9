"""Cache of the membership on disk, from which a federator starts while no manager answers.

`membership.json` in the state directory is readable only by its owner, because it holds the credential. A file that
cannot be parsed is put aside, and the federator joins again.
"""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.errors import LocalError, RemoteError
from hanse.federator.words import OverlayMap, Word, read_map, read_word

FILE_NAME = "membership.json"
FILE_BYTES_MAX = 16 << 20
PEERS_KEPT_MAX = 2_000  # peers of the map; relinking reaches only a few links far
_VERSION = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Membership:
    """Last reply of the manager with its credential, and the map."""

    word: Word
    overlay: OverlayMap


def read(directory: Path) -> Membership | None:
    """Return the last written membership; None without a usable one."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            return _parse(file.read(FILE_BYTES_MAX + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}; check its rights.") from error
    except (ValueError, KeyError, AttributeError, RecursionError, RemoteError) as error:
        aside = path.with_name(f"{FILE_NAME}.damaged")
        path.replace(aside)
        _log.warning("%s cannot be used (%s); it is now %s, and the federator joins again", path, error, aside.name)
        return None


def _parse(raw: bytes) -> Membership:
    if len(raw) > FILE_BYTES_MAX:
        raise RemoteError(f"more than {FILE_BYTES_MAX} bytes")
    document: Any = json.loads(raw)
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise RemoteError(f"expected version {_VERSION}")
    return Membership(read_word(document["word"]), read_map(document["topology"]))


def write(directory: Path, membership: Membership) -> None:
    """Write the membership; when this returns it is on disk.

    Raises:
        LocalError: The disk refuses.
    """
    word, overlay = membership.word, membership.overlay
    document = {
        "version": _VERSION,
        "word": {
            "id": word.id,
            "epoch": word.epoch,
            "changedEpoch": word.changed_epoch,
            "state": word.state,
            "neighbors": [peer.document() for peer in word.neighbours],
            "settings": dict(word.settings),
            "manager": word.manager,
            "credential": word.credential,
        },
        "topology": {
            "epoch": overlay.epoch,
            "federators": [{**overlay.peers[one].document(), "state": "up"} for one in sorted(overlay.peers)],
            "links": [{"a": a, "b": b} for a, b in sorted(overlay.links)],
        },
    }
    path = directory / FILE_NAME
    beside = directory / f"{FILE_NAME}.new"
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise LocalError(
            f"The membership could not be saved in {path}: {error.strerror}; check space and rights."
        ) from error
