"""Survey of a 3.1.1 broker: a short session that detects the traits that the broker does not announce.

A CONNACK of 3.1.1 tells only yes or no. Before a lasting session begins at such a broker, the survey asks three
questions, under a topic that the caller gives:

1. Which QoS does a subscription get that asks for 2? A broker that grants 1 also accepts no publication of QoS 2 (NATS
   closes the connection on one, RabbitMQ answers with a PUBACK), and renumbers publications that it sends again.
2. How many duplicates come of a publication that matches two subscriptions? One (RabbitMQ), or one per subscription
   (NATS).
3. Is a dot in a topic a dot? Brokers that keep topics as dotted names refuse it (NATS), or deliver the topic with a
   slash in its place (RabbitMQ). The survey also tries a space.

Rules: a trait that the broker does not let us test is assumed to be the worse one (`UNKNOWN`). At most something is
then lowered or left out, but nothing is ever sent in a loop. A broker that does not answer is asked again a few times.
The result follows from the behaviour of the broker, never from its name. Everything happens on one connection with a
clean session, within a deadline.
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

# A broker that sends one publication per matching subscription gets this many round trips after the first to send the
# second. Both come from one turn of the broker, and take one round trip.
_ROUND_TRIPS: Final = 2
_SUBSCRIBE_ID: Final = 1


@dataclass(frozen=True, slots=True)
class Traits:
    """Capabilities of a broker.

    Attributes:
        version: protocol level: 5, or 4 for 3.1.1.
        qos_max: highest QoS that it accepts and sends.
        has_no_local: whether it keeps a session's own publications from it, and names the matching subscription.
        sends_copies: whether it sends a publication once per matching subscription.
        refused_characters: characters that it refuses or alters in topics.
    """

    version: int = 5
    qos_max: int = 2
    has_no_local: bool = True
    sends_copies: bool = True
    refused_characters: str = ""


# Traits of a 3.1.1 broker that was not surveyed, or did not answer.
UNKNOWN: Final = Traits(version=4, qos_max=1, has_no_local=False, sends_copies=True, refused_characters=".*")


class Survey:
    """Owner of the survey's connection. `found` is valid once `done` is set without a `failure`.

    Args:
        connect: CONNECT packet, with a clean session.
        topic: topic of the questions. Without one, the session is only opened and closed, which clears the old one.
    """

    def __init__(self, connect: bytes, topic: str | None) -> None:
        self.done = asyncio.Event()
        self.failure: HanseError | None = None
        self.refusal_code = 0
        self.found = UNKNOWN
        # Whether all questions are answered, or are not allowed.
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
        """Return the protocol for the transport."""
        splitter = Splitter(CONNECT_BYTES_MAX, first_kind=codec.CONNACK)
        self._connection = Connection(self, splitter, Counters(), says_disconnect=False)
        return self._connection

    def give_up(self) -> None:
        """End the survey, because nobody waits for it any more."""
        if self._connection is not None:
            self._connection.abort()

    def on_open(self, connection: Connection) -> None:
        """Send CONNECT."""
        connection.write(self._connect)
        connection.flush()

    def on_packets(self, data: bytes, offsets: Sequence[tuple[int, int]]) -> None:
        """Handle one read."""
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
                self._end(None)  # the question is not allowed here: assume the worse
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
            raise protocol_error(f"a {type(packet).__name__} came without a request")

    def _arrived(self, packet: bytes) -> None:
        try:
            topic = self._wire.reader.read(packet, 0, len(packet)).topic
        except Refusal:
            topic = ""  # a name that the broker altered into an invalid one
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
        """Handle the end, wanted or not. A broker that closes the connection on a question has not answered it."""
        if not self._is_accepted and self.failure is None:
            self.failure = error or Unavailable("the connection was closed before CONNACK.")
        self.done.set()

    def on_writable(self) -> None:
        """Do nothing: nothing waits here."""


async def survey(
    dial: Callable[[Callable[[], Connection]], object], connect: bytes, topic: str | None, timeout_s: float
) -> Survey:
    """Run a survey. The caller checks `failure`, which only concerns the start of the session."""
    asked = Survey(connect, topic)
    try:
        async with asyncio.timeout(timeout_s):
            await dial(asked.make)  # type: ignore[misc]
            await asked.done.wait()
    except TimeoutError:
        if not asked._is_accepted:  # noqa: SLF001 - the survey is part of this module
            asked.failure = Unavailable(f"there was no answer within {timeout_s} s.")
        asked.give_up()
    except BaseException:
        asked.give_up()
        raise
    return asked
