"""The manager's audit log: every change in the federation, with its author and time.

Rules:

1. Every change that the store accepted has an entry, and so has every change by an operator's command that does not go
   through the manager.
2. A refused request has no entry. It changed nothing, and anybody could displace the real entries with refused
   requests. Refusals are counted and logged.
3. The store keeps the newest `store.AUDIT_ENTRIES_MAX` entries. Each entry is a log line as well, so that a log
   collector can keep more.
4. A change remains even if its entry could not be stored. The log line then has the entry, and a counter reports it.
"""

import getpass
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hanse import logs
from hanse.errors import HanseError
from hanse.topology.changes import Change
from hanse.topology.model import Federator
from hanse.topology.store import AuditEntry, Store

LINKS_SHOWN_MAX = 50  # a repair after the loss of a hub can move hundreds of links; the topology shows them all

# Actions that change the membership of the federation. They are security events; the others are daily repairs of the
# overlay.
_SECURITY = frozenset(
    ("joined", "adopted", "left", "revoked", "token-created", "token-revoked", "token-closed", "expelled")
)
_log = logging.getLogger("hanse.manager")


@dataclass(frozen=True, slots=True)
class Actor:
    """Author of a change: its name, and the address of the request."""

    name: str
    source: str = ""


class Audit:
    """Audit log of one manager, or of one command beside it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.errors = 0

    async def note(self, entries: Sequence[AuditEntry]) -> None:
        """Log the entries and store them (rule 4)."""
        for one in entries:
            write_line(one)
        if not entries:
            return
        try:
            await self._store.add_audit(entries)
        except HanseError as error:
            self.errors += len(entries)
            _log.error("%d audit entries were not stored: %s", len(entries), error)


def write_line(entry: AuditEntry) -> None:
    """Write an entry to the log."""
    fields = {"actor": entry.actor, "source": entry.source, "subject": entry.subject, **entry.detail}
    shown = {name: value for name, value in fields.items() if value not in ("", None)}
    if entry.action in _SECURITY:
        logs.note_security(entry.action, f"audit: {entry.action}", level=logging.INFO, **shown)
    else:
        _log.info("audit: %s", entry.action, extra=shown)


def entries_of(change: Change, actor: Actor, at_s: float) -> list[AuditEntry]:
    """Return the entries of a change: one per federator that changed, and its links with the first of them."""
    linked = [_ends(one.data) for one in change.happenings if one.kind == "linked"]
    unlinked = [_ends(one.data) for one in change.happenings if one.kind == "unlinked"]
    found = []
    for one in change.happenings:
        if one.kind not in ("linked", "unlinked"):
            detail = {name: value for name, value in one.data.items() if name != "id" and value is not None}
            found.append(AuditEntry(at_s, actor.name, actor.source, one.kind, f"federator {one.data['id']}", detail))
    if not found and not change.is_empty:
        # Links alone were repaired; or a federator came with a new address of its link, or a new token.
        action = "relinked" if linked or unlinked else "renewed"
        subject = "overlay" if linked or unlinked else ", ".join(f"federator {node}" for node in change.changed)
        found.append(AuditEntry(at_s, actor.name, actor.source, action, subject, {}))
    if found and (linked or unlinked):
        first = found[0]
        detail = {**first.detail, **_shown("linked", linked), **_shown("unlinked", unlinked)}
        found[0] = AuditEntry(first.at_s, first.actor, first.source, first.action, first.subject, detail)
    return found


def expulsion(one: Federator, closed: str | None, actor: Actor, at_s: float) -> list[AuditEntry]:
    """Return the entries of an expulsion: of the federator, and of the token that was closed with it."""
    found = [AuditEntry(at_s, actor.name, actor.source, "expelled", f"federator {one.id}", {"ip": one.ip})]
    if closed is not None:
        found.append(AuditEntry(at_s, actor.name, actor.source, "token-closed", f"token {closed}", {}))
    return found


def operator() -> Actor:
    """Return the person who runs this command, as the system names them."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = str(os.getuid())
    behind = os.environ.get("SUDO_USER")
    shown = f"{behind} as {name}" if behind and behind != name else name
    return Actor(f"operator {shown}", platform.node())


def _ends(data: Mapping[str, object]) -> str:
    return f"{data['a']}-{data['b']}"


def _shown(name: str, links: Sequence[str]) -> dict[str, object]:
    if not links:
        return {}
    more = f" and {len(links) - LINKS_SHOWN_MAX} more" if len(links) > LINKS_SHOWN_MAX else ""
    return {name: ", ".join(links[:LINKS_SHOWN_MAX]) + more}
