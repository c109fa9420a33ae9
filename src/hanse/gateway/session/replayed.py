"""One publication that federators replay, decoded once for all sessions."""

from typing import NamedTuple

from hanse.gateway.session.publication import read_publish
from hanse.gateway.session.received import digest
from hanse.mqtt.refusal import Refusal


class Replayed(NamedTuple):
    """A publication of QoS 1 or 2.

    `time` is when a federator first had it, on the gateway's clock. `packet` is a PUBLISH of MQTT 5; its packet
    identifier means nothing. `is_at_host`: the client's broker has it, so it is unlikely to come from there.
    """

    time: float
    qos: int
    content: int
    topic: bytes
    packet: bytes
    is_at_host: bool = True


def read_replayed(packet: bytes, time: float) -> Replayed | None:
    """Return the content of a packet; None if it has QoS 0 or cannot be read."""
    try:
        found = read_publish(packet, 5)
    except Refusal:
        return None
    if not found.qos:
        return None
    return Replayed(time, found.qos, digest(found.topic, found.payload), found.topic, packet)
