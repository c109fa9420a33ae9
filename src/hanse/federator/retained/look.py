"""Looks at the host broker: reads of its retained messages under some filters.

Rules:

1. A look is complete or it fails. A look that ended early would treat everything that it missed as deleted.
2. The first subscription has QoS 0. Mosquitto drops retained messages beyond `max_queued_messages` for a subscription
   of QoS 1 or 2, and at QoS 0 it sends all of them before the answer to the next request. That answer, UNSUBACK, ends
   the look. Other brokers may answer sooner, so `QUIET_S` must pass after the last message there.
3. QoS 0 hides the QoS of the messages. A second subscription to the exact topics finds the unknown ones, for at most
   `EXACT_MAX` topics. For the others, the QoS stays 0.
4. The broker's uptime arrives with each look, and shows whether the broker has restarted.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from hanse.errors import Unavailable
from hanse.federator.takeovers import uptime_of
from hanse.interest.mosquitto_log import UPTIME
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication, payload_of
from hanse.mqtt.subscriptions import Subscription
from hanse.protocol.topics import covers

# Time of a whole look. 100,000 messages take some 2 s.
LOOK_S = 30.0
QUIET_S = 0.1
EXACT_MAX = 500
# A topic that the second subscription does not bring in this time is gone, or the broker does not send it.
EXACT_S = 1.0
_REFUSED = 0x80


class Seen(NamedTuple):
    """The result of a look: packets by topic, the broker's uptime if it tells it, and what it refused to show."""

    found: dict[str, bytes]
    uptime_s: int | None
    refused: frozenset[str]


class _Handler(ClientHandler):
    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.refused: set[str] = set()
        self.uptime_s: int | None = None
        self.last_s = 0.0
        self.changed = asyncio.Event()
        self.unanswered = 0

    def on_publications(self, publications: list[Publication]) -> None:
        for publication in publications:
            if publication.topic == UPTIME:
                self.uptime_s = uptime_of(payload_of(publication.packet))
            elif publication.retain:  # publications of clients meanwhile are not part of the look
                self.found[publication.topic] = publication.packet
                self.last_s = asyncio.get_running_loop().time()
        self.changed.set()

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self.refused.update(item.filter for item, code in answers if code >= _REFUSED)
        self.last_s = asyncio.get_running_loop().time()
        self._answered(len(answers))

    def on_unsubscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        self._answered(len(answers))

    def _answered(self, count: int) -> None:
        self.unanswered -= count
        self.changed.set()

    async def until(self, is_done: Callable[[], bool]) -> None:
        """Return as soon as a condition holds."""
        while not is_done():
            self.changed.clear()
            await self.changed.wait()


async def look(
    settings: ClientSettings, filters: Iterable[str], qos_of: Callable[[str, bytes], int | None] = lambda *_: None
) -> Seen:
    """Return what a broker retains under some filters.

    Args:
        settings: settings of a separate session.
        filters: as clients of the broker name them. None: only the uptime is read.
        qos_of: the QoS of a message by topic and packet, if it is known.

    Raises:
        HanseError: The broker does not accept the session.
        TimeoutError: It did not show everything within `LOOK_S`.
    """
    handler = _Handler()
    client = Client(replace(settings, clean_start=True, session_expiry_s=0, auto_ack=True), handler)
    async with asyncio.timeout(LOOK_S):
        await client.start(must_connect=True)
        try:
            await _take(client, handler, [*_widest(filters), UPTIME], 0)
            if handler.uptime_s is None:  # rule 2
                while (left_s := handler.last_s + QUIET_S - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(left_s)
            if not client.is_connected:
                raise Unavailable(f"{client.where} ended the connection during a look.")
            found = dict(handler.found)
            await _learn_qos(client, handler, found, qos_of)
        finally:
            await client.stop()
    return Seen(found, handler.uptime_s, frozenset(handler.refused - {UPTIME}))


async def _take(client: Client, handler: _Handler, filters: list[str], qos: int) -> None:
    """Subscribe and unsubscribe; return when both are answered."""
    handler.unanswered = len(filters)
    client.subscribe(
        Subscription(one, qos=qos, no_local=False, retain_as_published=False, retain_handling=0) for one in filters
    )
    await handler.until(lambda: handler.unanswered <= 0)
    handler.unanswered = len(filters)
    client.unsubscribe(filters)
    await handler.until(lambda: handler.unanswered <= 0)


async def _learn_qos(
    client: Client, handler: _Handler, found: dict[str, bytes], qos_of: Callable[[str, bytes], int | None]
) -> None:
    """Apply rule 3."""
    unknown = []
    for topic, packet in found.items():
        qos = qos_of(topic, packet)
        if qos is None:
            unknown.append(topic)
        else:
            found[topic] = with_qos(packet, qos)
    unknown = unknown[:EXACT_MAX]
    if not unknown:
        return
    handler.found.clear()
    handler.unanswered = len(unknown)
    client.subscribe(
        Subscription(topic, qos=2, no_local=False, retain_as_published=False, retain_handling=0) for topic in unknown
    )
    try:
        async with asyncio.timeout(EXACT_S):
            await handler.until(lambda: handler.found.keys() >= set(unknown))
    except TimeoutError:
        pass
    again: Mapping[str, bytes] = handler.found
    for topic in unknown:
        if topic in again and payload_of(again[topic]) == payload_of(found[topic]):
            found[topic] = again[topic]


def with_qos(packet: bytes, qos: int) -> bytes:
    """Return a canonical packet of QoS 0 as one of another QoS."""
    if not qos or packet[0] & 0x06:
        return packet
    at = 1
    while packet[at] >= 0x80:
        at += 1
    at += 1
    end = at + 2 + int.from_bytes(packet[at : at + 2])
    rest = packet[at:end] + b"\0\0" + packet[end:]
    length = bytearray()
    size = len(rest)
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes((packet[0] | qos << 1,)) + bytes(length) + rest


def _widest(filters: Iterable[str]) -> list[str]:
    """Return the filters without those that another one covers, so that each message arrives once."""
    distinct = sorted(set(filters))
    wild = [one for one in distinct if "+" in one or "#" in one]
    return [
        one
        for one in distinct
        if not any(covers(wide, one) and (not covers(one, wide) or wide < one) for wide in wild if wide != one)
    ]
