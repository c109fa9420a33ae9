"""Age of publications that waited on disk: their Message Expiry Interval continues (MQTT 5, 3.3.2.3.3)."""

from hanse.mqtt.publication import expiry_s, with_expiry
from hanse.protocol.messages import Run
from hanse.protocol.packets import split


def aged(run: Run, age_s: float) -> list[Run]:
    """Return the run after waiting, without expired publications, split where that leaves gaps in its ids."""
    waited_s = int(age_s)
    if waited_s <= 0:
        return [run]
    packets: list[bytes | None] = []
    is_changed = False
    for start, end in split(run.body):
        packet = run.body[start:end]
        left_s = expiry_s(packet)
        if left_s is None:
            packets.append(packet)
            continue
        is_changed = True
        packets.append(with_expiry(packet, left_s - waited_s) if left_s > waited_s else None)
    if not is_changed:
        return [run]
    pieces: list[Run] = []
    kept: list[bytes] = []
    for offset, maybe in enumerate([*packets, None]):
        if maybe is not None:
            kept.append(maybe)
        elif kept:
            first = run.first + offset - len(kept)
            pieces.append(run._replace(first=first, length=len(kept), body=b"".join(kept)))
            kept = []
    return pieces
