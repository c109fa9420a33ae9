"""The variant that passes packets through (`failover = off`).

It finds the packet boundaries in both directions, because it reads SUBSCRIBE, UNSUBSCRIBE and their answers (for
interest reports) and DISCONNECT. Everything else passes unchanged: a read is written in one piece, except for the start
of a packet that is not complete.
"""

from collections.abc import Sequence

from hanse.gateway.session.contract import NO_LIMITS, BrokerLimits
from hanse.gateway.session.events import Accepted, Subscription
from hanse.gateway.session.session import (
    CONNACK,
    DISCONNECT,
    LIVE,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Session,
)
from hanse.gateway.session.settings import ANSWER_BYTES_MAX
from hanse.gateway.session.stream import end_of
from hanse.mqtt.refusal import PACKET_TOO_LARGE, Refusal, protocol_error


class PassThrough(Session):
    """A client and its broker, with the gateway reading along."""

    def attach(
        self,
        now: float,  # noqa: ARG002 - both variants have the same shape
        limits: BrokerLimits = NO_LIMITS,
        clean: bool | None = None,
        known: Sequence[Subscription] = (),  # noqa: ARG002 - as above
    ) -> None:
        """Send CONNECT to a broker whose connection is open."""
        self._attach_first(limits, self._first_connect(strip_will=False, clean=clean, topic_alias_max=None))

    def _take_connack(self, packet: bytes, now: float) -> None:
        connack = self._read_connack(packet)
        if connack.code:
            self._refused_first(connack, packet)
            return
        if self.connect.client_id or self._version < 5:
            self.to_client.append(packet)
        else:
            self.to_client.append(connack.write(connack.limits, self.client_id))
        self._phase = LIVE
        self.events.append(Accepted(connack.session_present))
        self.holds_client = False
        self.client_data(b"", now)

    def _take_client(self, data: bytes, now: float) -> None:  # noqa: ARG002 - as above
        stream = self._from_client
        start = 0
        if stream.passing:
            if len(data) <= stream.passing:
                stream.passing -= len(data)
                self.to_broker.append(data)
                return
            start = stream.passing
            stream.passing = 0
        elif stream.pieces:
            data = stream.take(data)
        size = len(data)
        i = start
        count = 0
        done = 0
        try:
            while i + 2 <= size:
                length = data[i + 1]
                end = i + 2 + length if length < 128 else end_of(data, i, size)
                if not end or end > size:
                    break
                kind = data[i] & 0xF0
                if kind == PUBLISH:
                    count += 1
                elif kind in (SUBSCRIBE, UNSUBSCRIBE):
                    self._take_request(data[i:end])
                elif kind == DISCONNECT:
                    self._note_goodbye(data[i:end])
                elif kind < CONNACK:
                    raise protocol_error("a client sent CONNECT twice, or a packet of type 0")
                i = end
                done = i
            if i < size:
                done = self._keep_rest(data, i, size)
        finally:
            self.counters.from_clients += count
            if done == size:
                if size:
                    self.to_broker.append(data)
            elif done:
                self.to_broker.append(data[:done])

    def _keep_rest(self, data: bytes, start: int, size: int) -> int:
        """Keep the start of a packet, or let a large PUBLISH through; return how much may be written."""
        end = end_of(data, start, size) if start + 2 <= size else 0
        need = end - start if end else size - start + 1
        if need > self.settings.packet_bytes_max:
            raise Refusal(
                PACKET_TOO_LARGE,
                f"a packet of {need} bytes was announced; at most {self.settings.packet_bytes_max} are taken here",
            )
        if need > self.settings.hold_bytes:
            if data[start] & 0xF0 != PUBLISH:
                raise Refusal(
                    PACKET_TOO_LARGE,
                    f"a packet of type {data[start] >> 4} and {need} bytes was announced; "
                    f"{self.settings.hold_bytes} are taken of any but PUBLISH",
                )
            self.counters.from_clients += 1
            self._from_client.passing = end - size
            return size
        self._from_client.keep(data[start:] if start else data, need)
        return start

    def _take_broker(self, data: bytes, now: float) -> None:  # noqa: ARG002 - as above
        if self._phase != LIVE:
            return
        stream = self._from_broker
        start = 0
        if stream.passing:
            if len(data) <= stream.passing:
                stream.passing -= len(data)
                self.to_client.append(data)
                return
            start = stream.passing
            stream.passing = 0
        elif stream.pieces:
            data = stream.take(data)
        size = len(data)
        i = start
        written = 0
        count = 0
        try:
            while i + 2 <= size:
                length = data[i + 1]
                end = i + 2 + length if length < 128 else end_of(data, i, size)
                if not end or end > size:
                    break
                kind = data[i] & 0xF0
                if kind == PUBLISH:
                    count += 1
                elif kind in (SUBACK, UNSUBACK):
                    if not self._take_answer(data[i:end]):
                        if written < i:
                            self.to_client.append(data[written:i])
                        written = end
                elif kind == DISCONNECT:
                    self._is_goodbye_said = False
                i = end
            if i < size:
                i = self._keep_broker_rest(data, i, size)
        finally:
            # Packets before one that breaks a rule still pass.
            self.counters.to_clients += count
            if written < i:
                self.to_client.append(data if i - written == size else data[written:i])

    def _keep_broker_rest(self, data: bytes, start: int, size: int) -> int:
        """Keep the start of a packet, or let a large PUBLISH through; return how much may be written."""
        end = end_of(data, start, size) if start + 2 <= size else 0
        need = end - start if end else size - start + 1
        if need > self.settings.hold_bytes and data[start] & 0xF0 == PUBLISH:
            self.counters.to_clients += 1
            self._from_broker.passing = end - size
            return size
        if need > ANSWER_BYTES_MAX:
            raise Refusal(PACKET_TOO_LARGE, f"the broker announced a packet of {need} bytes that is no PUBLISH")
        self._from_broker.keep(data[start:] if start else data, need)
        return start
