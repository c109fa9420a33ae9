"""One run of topic discovery at one broker: figure 1 of the TD-MQTT paper.

    gateway -> CONNECT        broker -> CONNACK
    gateway -> SUBSCRIBE #    broker -> SUBACK
                              broker -> PUBLISH (each topic)
    gateway -> PUBACK
    gateway -> DISCONNECT

Rules:

1. A run ends after its time, or when it has received `bytes_max`. Its result says which.
2. Publications of QoS 1 are acknowledged at once, so the broker keeps nothing for this session. Payloads are skipped.
3. The subscription requests QoS 1, as in the paper. MQTT 5 is tried first, then 3.1.1.
4. A broker with a federator must not be listened to with `#`: the federator would see a local subscriber to everything,
   and the whole federation's traffic would come to this broker. Its topics are its federator's groups.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from hanse.errors import Unavailable
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.discovery.asking import Connection
from hanse.gateway.discovery.packets import (
    CONNACK,
    PUBLISH,
    SUBACK,
    Packet,
    connack_code,
    connect,
    puback,
    suback_codes,
    subscribe,
)
from hanse.gateway.front.connect import MQTT_3_1_1, MQTT_5
from hanse.gateway.placement import Broker
from hanse.mqtt.properties import read_varint

EVERYTHING: Final = ("#",)
LISTEN_S: Final = 5.0
# For one run. Mosquitto sends some 100 MB/s to a fast reader: discovery listens to a busy broker only part of the time.
RUN_BYTES_MAX: Final = 64 << 20
# Mosquitto keeps no more than this in flight and 1,000 more in its queue, and drops its other retained messages.
# Without a value it assumes 20.
_RECEIVE_MAX: Final = 65_534
_PACKET_ID: Final = 1
_BAD_VERSION: Final = frozenset({1, 0x84})

TIME: Final = "time"
BYTES: Final = "bytes"
ENOUGH: Final = "enough"
REFUSED: Final = "refused"
LOST: Final = "lost"

# Called with topic and whether the publication was a retained one.
OnTopic = Callable[[str, bool], None]
# Called with the payload of each small publication.
OnPayload = Callable[[bytes], None]
PAYLOAD_BYTES_MAX: Final = 4_096


class Credentials(NamedTuple):
    """The login of discovery at the brokers."""

    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r})"


class Run(NamedTuple):
    """Result of a run.

    Attributes:
        ended: `time`, `bytes`, `enough` (the requested topics have arrived), `refused` (by CONNACK or SUBACK) or
            `lost`.
        detail: reason of a refusal or a loss.
        publications: number of received publications.
        received_bytes: number of received bytes.
    """

    ended: str
    detail: str = ""
    publications: int = 0
    received_bytes: int = 0

    @property
    def is_good(self) -> bool:
        """Return whether the run could listen to the broker."""
        return self.ended in (TIME, BYTES, ENOUGH)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON can carry it."""
        return self._asdict()


class _Listener:
    """The asker of one connection."""

    def __init__(
        self,
        level: int,
        filters: Sequence[str],
        credentials: Credentials,
        bytes_max: int,
        on_topic: OnTopic,
        on_payload: OnPayload | None,
    ) -> None:
        self.level = level
        self.code: int | None = None
        self.ended = ""
        self.detail = ""
        self.publications = 0
        self.over = asyncio.Event()
        self._filters = filters
        self._credentials = credentials
        self._bytes_max = bytes_max
        self._on_topic = on_topic
        self._on_payload = on_payload

    def hello(self) -> bytes:
        username, password = self._credentials
        return connect(
            f"hanse-discover-{secrets.token_hex(8)}",
            self.level,
            None if username is None else username.encode(),
            None if password is None else password.encode(),
            receive_max=_RECEIVE_MAX,
        )

    def on_packets(self, connection: Connection, packets: list[Packet]) -> None:
        if self.ended:
            return  # the run closes the connection when its task is next scheduled; more may arrive until then
        answers = bytearray()
        for packet in packets:
            if packet.kind == PUBLISH:
                self.publications += 1
                self._on_topic(packet.topic.decode(), packet.is_retained)
                if self._on_payload is not None and packet.body:
                    self._on_payload(self._payload(packet.body))
                if packet.qos:
                    answers += puback(packet.packet_id)
            elif packet.kind == CONNACK:
                self.code = connack_code(packet.body)
                if self.code:
                    self._end(REFUSED, f"CONNACK with code {self.code:#04x}")
                    break
                answers += subscribe(_PACKET_ID, self._filters, 1, self.level)
            elif packet.kind == SUBACK:
                codes = suback_codes(packet.body, self.level)
                if all(code >= 0x80 for code in codes):
                    self._end(REFUSED, f"SUBACK with code {codes[0]:#04x}")
                    break
        if answers:
            connection.send(bytes(answers))
        if connection.received_bytes >= self._bytes_max:
            self._end(BYTES, "")

    def _payload(self, body: bytes) -> bytes:
        if self.level != MQTT_5:
            return body
        length, at = read_varint(body, 0, len(body))
        return body[at + length :]

    def _end(self, ended: str, detail: str) -> None:
        if not self.ended:
            self.ended, self.detail = ended, detail
            self.over.set()


async def listen(
    dialler: Dialler,
    broker: Broker,
    on_topic: OnTopic,
    *,
    filters: Sequence[str] = EVERYTHING,
    for_s: float = LISTEN_S,
    bytes_max: int = RUN_BYTES_MAX,
    credentials: Credentials = Credentials(),  # noqa: B008 - immutable
    enough: asyncio.Event | None = None,
    on_payload: OnPayload | None = None,
) -> Run:
    """Listen at a broker, and report each topic that a publication has.

    Args:
        dialler: opens connections to brokers.
        broker: a broker without a federator (rule 4).
        on_topic: called for each publication.
        filters: filters of the subscription.
        for_s: duration from the dial on.
        bytes_max: rule 1.
        credentials: of the session.
        enough: ends the run when it is set.
        on_payload: called with payloads of publications of at most `PAYLOAD_BYTES_MAX`; without it none is kept.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + for_s
    run = Run(LOST, "no attempt was made")
    for level in (MQTT_5, MQTT_3_1_1):
        listener = _Listener(level, filters, credentials, bytes_max, on_topic, on_payload)
        connection = Connection(listener, PAYLOAD_BYTES_MAX if on_payload is not None else 0)
        try:
            await dialler.dial(broker.url, lambda made=connection: made, max(0.001, until - loop.time()))  # type: ignore[misc]
            await _wait(until - loop.time(), listener.over, connection.ended, enough)
        except Unavailable as error:
            return Run(LOST, str(error))
        finally:
            is_open = connection.is_open
            connection.close()
        run = _outcome(listener, connection, enough, is_open=is_open)
        # A broker of 3.1.1 refuses the version, or closes without an answer.
        is_other_version = listener.code in _BAD_VERSION or (listener.code is None and not is_open)
        if not is_other_version:
            break
    return run


def _outcome(listener: _Listener, connection: Connection, enough: asyncio.Event | None, *, is_open: bool) -> Run:
    ended, detail = listener.ended, listener.detail
    if not ended:
        if listener.code is None:
            ended, detail = LOST, connection.failure or "there was no CONNACK"
        elif not is_open:
            ended, detail = LOST, connection.failure or "the broker closed the connection"
        else:
            ended = ENOUGH if enough is not None and enough.is_set() else TIME
    return Run(ended, detail, listener.publications, connection.received_bytes)


async def _wait(for_s: float, *events: asyncio.Event | None) -> None:
    """Wait until one of the events is set, at most for a time."""
    waits = [asyncio.ensure_future(one.wait()) for one in events if one is not None]
    try:
        await asyncio.wait(waits, timeout=max(0.0, for_s), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
