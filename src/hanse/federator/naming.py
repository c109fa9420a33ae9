"""Publications under another name or dropped, if the operator set a prefix or rules for crossing.

Only federators with such a setting use this module. The hot path of others skips it (`Crossing.is_trivial`).
"""

from collections.abc import Iterable

from hanse.federator.crossing import Crossing
from hanse.mqtt.properties import varint
from hanse.mqtt.publication import Publication as HostPublication
from hanse.mqtt.publication import topic_bytes_of
from hanse.protocol.messages import Publication
from hanse.protocol.packets import split, topic_of


def renamed(packet: bytes, topic: str) -> bytes:
    """Return one canonical packet with another topic."""
    position = 1
    while packet[position] >= 0x80:
        position += 1
    name = topic.encode()
    rest = packet[position + 3 + len(topic_bytes_of(packet)) :]
    body = len(name).to_bytes(2) + name + rest
    return packet[:1] + varint(len(body)) + body


def exported(crossing: Crossing, publications: Iterable[HostPublication]) -> list[Publication]:
    """Return the publications that leave this broker, under their federation names."""
    leaving = []
    for publication in publications:
        name = crossing.leave(publication.topic)
        if name is not None:
            packet = publication.packet if name == publication.topic else renamed(publication.packet, name)
            leaving.append(Publication(name, publication.qos, packet))
    return leaving


def imported(crossing: Crossing, body: bytes) -> tuple[bytes, int]:
    """Return the part of a run that enters this broker, under its local names, and its number of publications."""
    entering = []
    for start, end in split(body):
        packet = body[start:end]
        topic = topic_of(packet)
        name = crossing.enter(topic)
        if name is not None:
            entering.append(packet if name == topic else renamed(packet, name))
    return b"".join(entering), len(entering)


def local_copies(crossing: Crossing, publications: Iterable[HostPublication]) -> list[bytes]:
    """Return the publications that must also appear at this broker, because they came as `federated/<topic>`."""
    copies = []
    for publication in publications:
        name = crossing.local_copy(publication.topic)
        if name is not None:
            copies.append(renamed(publication.packet, name))
    return copies
