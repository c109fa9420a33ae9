"""Announcements to a federator on its host broker, under the topic `federated_topology_ann`, as in the papers.

One announcement is one instruction: add or remove a neighbour. It also carries

- all current neighbours, so the loss of one announcement does no harm,
- the epoch, by which a federator recognises an announcement of a deposed manager,
- a MAC under the receiver's credential, because any client of the broker can publish there, but cannot make the MAC.
"""

import json
from collections.abc import Sequence

from hanse.topology.changes import Announcement
from hanse.topology.model import Federator, Topology
from hanse.topology.tokens import announcement_mac

TOPIC = "federated_topology_ann"


def neighbor_of(one: Federator) -> dict[str, object]:
    """Return a neighbour in the form for federators: the two fields of the papers, and the address of its link."""
    return {"id": one.id, "ip": one.ip, "link": one.link}


def compose(
    announcement: Announcement, topology: Topology, around: Sequence[int], credential: str, manager: str
) -> bytes:
    """Return the payload for a receiver with the neighbours `around`: JSON, whose `mac` covers all other fields."""
    named = topology.federators[announcement.neighbor]
    neighbors = [neighbor_of(topology.federators[node]) for node in around]
    body = {
        "epoch": topology.epoch,
        "manager": manager,
        "id": announcement.to,
        "action": announcement.action,
        "neighbor": neighbor_of(named),
        "neighbors": neighbors,
        "neighborsAmount": len(neighbors),
    }
    signed = canonical(body)
    return canonical({**body, "mac": announcement_mac(credential, signed)})


def canonical(body: dict[str, object]) -> bytes:
    """Return the canonical spelling that is signed: keys sorted, no spaces, ASCII."""
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def is_genuine(payload: bytes, credential: str) -> bool:
    """Return whether the manager made this announcement for the holder of the credential. For federators."""
    import hmac  # noqa: PLC0415 - only federators need this

    try:
        body = json.loads(payload)
        shown = body.pop("mac", None) if isinstance(body, dict) else None
        # A text that is not ASCII is not a MAC, and cannot be compared in constant time.
        if not isinstance(shown, str) or not shown.isascii():
            return False
        return hmac.compare_digest(shown, announcement_mac(credential, canonical(body)))
    except (ValueError, RecursionError):  # any client of the broker may have written it
        return False
