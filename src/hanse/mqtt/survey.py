"""What a 3.1.1 broker does not say of itself, found out by a short session of its own.

A CONNACK of 3.1.1 tells nothing but yes or no. Before a session that lasts is opened at such a broker, three
questions are asked, under a topic of the caller's:

1. Which QoS is granted to a subscription that asks for 2? A broker that grants 1 takes no publication of QoS 2 either
   (NATS closes the connection on one, RabbitMQ answers with a PUBACK), and numbers what it sends again anew.
2. How many copies come of a publication that two subscriptions match? One (RabbitMQ), or one for each (NATS).
3. Is a dot in a topic a dot? Brokers that keep topics as dotted names refuse it (NATS), or give the topic out with a
   slash there (RabbitMQ). A space is asked for too.

Rules: what may not be asked is taken for the worse (`UNKNOWN`), so that at most something is lowered or left out, never
sent round in a loop; a broker that does not answer is asked again, a few times; the answer is one of facts the broker
showed, never of its name; everything is done on one connection with a clean session, within a deadline.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import mqtt5

from hanse.errors import HanseError, Unavailable
from hanse.mqtt import codec, v311
from hanse.mqtt.connection import Connection
from hanse.mqtt.counters import Counters
from hanse.mqtt.framing import Splitter
from hanse.mqtt.limits import CONNECT_BYTES_MAX
from hanse.mqtt.publication import PUBLISH, encode
from hanse.mqtt.refusal import Refusal, protocol_error
from hanse.mqtt.v311 import V311

# After the copy that came for the second subscription or not, a broker that sends a copy for each has this many round
# trips to send it. Both come from one turn of the broker; one round trip is what they take.
_ROUND_TRIPS: Final = 2
_SUBSCRIBE_ID: Final = 1


@dataclass(frozen=True, slots=True)
class Traits:
    """What a broker can do.

    Attributes:
        version: 5, or 4 for 3.1.1.
        qos_max: the largest QoS that it takes and sends.
        has_no_local: whether it keeps a session's own publications from it, and tells which subscription one is for.
        sends_copies: whether a publication comes once for each subscription that it matches.
        refused_characters: characters that a topic cannot hold there without being refused or altered.
    """

    version: int = 5
    qos_max: int = 2
    has_no_local: bool = True
    sends_copies: bool = True
    refused_characters: str = ""


# Of a 3.1.1 broker that was not asked, or did not answer.
UNKNOWN: Final = Traits(version=4, qos_max=1, has_no_local=False, sends_copies=True, refused_characters=".*")


class Survey:
    """The owner of the connection; `found` once `done` is set without a `failure`.

    Args:
        connect: the CONNECT packet, with a clean session.
        topic: under which to ask; without one the session is only opened and closed, which clears what it held.
    """

    def __init__(self, connect: bytes, topic: str | None) -> None:
        self.done = asyncio.Event()
        self.failure: HanseError | None = None
        self.refusal_code = 0
        self.found = UNKNOWN
        # Whether all that was asked is answered, or may not be asked.
        self.is_answered = False
        self._connect = connect
        self._topic = topic
        self._wire = V311(Counters())
        self._connection: Connection | None = None
        self._is_accepted = False
        self._qos_max = 0
        self._refused = ""
        self._copies = 0
        self._is_dotted: bool | None = None
        self._is_pinged = False
        self._round_trips = 0

    def make(self) -> Connection:
        """The protocol for the transport."""
        splitter = Splitter(CONNECT_BYTES_MAX, first_kind=codec.CONNACK)
        self._connection = Connection(self, splitter, Counters(), says_disconnect=False)
        return self._connection

    def give_up(self) -> None:
        """Nobody waits any more."""
        if self._connection is not None:
            self._connection.abort()

    def on_open(self, connection: Connection) -> None:
        """CONNECT."""
        connection.write(self._connect)
        connection.flush()

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """One read."""
        for start, end in offsets:
            if self.done.is_set():
                return
            packet = data[start:end]
            if not self._is_accepted:
                self._admitted(packet)
            elif packet[0] & 0xF0 == PUBLISH:
                self._arrived(packet)
            elif packet[:2] == b"\x40\x02":
                pass  # PUBACK
            else:
                self._answered(self._wire.decode(packet))

    def _admitted(self, packet: bytes) -> None:
        answer = v311.connack(packet)
        code = int(answer.reason_code)
        if code:
            self.refusal_code = code
            self._end(Unavailable(f"the session was refused: {answer.reason_code.name.lower().replace('_', ' ')}."))
            return
        self._is_accepted = True
        if self._topic is None:
            self._end(None)
            return
        filters = [
            mqtt5.TopicFilter(wanted, max_qos=mqtt5.QoS(2))
            for wanted in (f"{self._topic}/#", f"{self._topic}/x", f"{self._topic}/a.b", f"{self._topic}/a b")
        ]
        self._write(mqtt5.SubscribePacket(_SUBSCRIBE_ID, filters).write())

    def _answered(self, packet: mqtt5.Packet) -> None:
        if isinstance(packet, mqtt5.SubAckPacket):
            wide, narrow, dot, space = (*map(int, packet.reason_codes), 0x80, 0x80, 0x80, 0x80)[:4]
            if wide >= 0x80 or narrow >= 0x80:
                self._end(None)  # it may not be asked here: the worse is assumed
                return
            refused = " " if space >= 0x80 else ""
            self._qos_max, self._refused = wide, refused
            self._write(encode(f"{self._topic}/x", b""))
            if dot >= 0x80:
                self._is_dotted = True
            else:
                self._write(encode(f"{self._topic}/a.b", b""))
        elif isinstance(packet, mqtt5.PingRespPacket):
            self._round_trips += 1
            self._conclude()
        else:
            raise protocol_error(f"a {type(packet).__name__} came that was not asked for")

    def _arrived(self, packet: bytes) -> None:
        try:
            topic = self._wire.reader.read(packet, 0, len(packet)).topic
        except Refusal:
            topic = ""  # a name that the broker altered beyond what a name can be
        if topic == f"{self._topic}/x":
            self._copies += 1
        elif self._is_dotted is None:
            self._is_dotted = topic != f"{self._topic}/a.b"
        if self._copies and self._is_dotted is not None and not self._is_pinged:
            self._is_pinged = True
            self._write(codec.PING)

    def _conclude(self) -> None:
        if self._copies < 2 and self._round_trips < _ROUND_TRIPS:
            self._write(codec.PING)
            return
        self.found = replace(
            UNKNOWN,
            qos_max=self._qos_max,
            sends_copies=self._copies > 1,
            refused_characters=(".*" if self._is_dotted else "") + self._refused,
        )
        self._end(None)

    def _write(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.write(self._wire.outward(data))

    def _end(self, failure: HanseError | None) -> None:
        self.failure = failure
        self.is_answered = failure is None
        assert self._connection is not None
        self._connection.end(failure, b"" if failure else v311.DISCONNECT)

    def on_lost(self, error: HanseError | None) -> None:
        """The end, wanted or not. A broker that closes when it is asked has given no answer."""
        if not self._is_accepted and self.failure is None:
            self.failure = error or Unavailable("the connection was closed before CONNACK.")
        self.done.set()

    def on_writable(self) -> None:
        """Nothing waits here."""


async def survey(
    dial: Callable[[Callable[[], Connection]], object], connect: bytes, topic: str | None, timeout_s: float
) -> Survey:
    """Ask; the caller looks at `failure`, which is only about getting in."""
    asked = Survey(connect, topic)
    try:
        async with asyncio.timeout(timeout_s):
            await dial(asked.make)  # type: ignore[misc]
            await asked.done.wait()
    except TimeoutError:
        if not asked._is_accepted:  # noqa: SLF001 - the two halves of one thing
            asked.failure = Unavailable(f"there was no answer within {timeout_s} s.")
        asked.give_up()
    except BaseException:
        asked.give_up()
        raise
    return asked
