"""The variant that keeps packets of both directions for a move to another broker (`failover = on`).

Rules:

1. The client gets whole packets. A PUBLISH above `hold_bytes` goes in pieces; its client is closed if the broker dies
   inside it.
2. The client's publications of QoS 1 and 2 go to the broker whole, and are kept until the broker has them for good. The
   amount that waits for a broker is bounded; beyond the bound the client is not read.
3. The two sides never wait for each other in a circle: acknowledgements of the client are always read while the broker
   is held, except for those behind more publications than may wait.
4. The bytes of one read are written in one piece where nothing in them changes.
"""

from hanse.gateway.session import deliveries, outgoing
from hanse.gateway.session.events import MoveAsked
from hanse.gateway.session.moving import Late, Moving
from hanse.gateway.session.outgoing import Publication
from hanse.gateway.session.publication import body_of, check_alias, read_publish, with_id
from hanse.gateway.session.received import LARGE_BYTES, LargeDigest, digest
from hanse.gateway.session.session import (
    AUTH,
    DISCONNECT,
    LIVE,
    PARTING,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RESTORING,
    SUBACK,
    SUBSCRIBE,
    TAKEN_OVER,
    UNSUBACK,
    UNSUBSCRIBE,
)
from hanse.gateway.session.settings import ANSWER_BYTES_MAX, LATE_BYTES_MAX, PENDING_BYTES_MAX
from hanse.gateway.session.stream import end_of
from hanse.gateway.session.table import NO_LOCAL
from hanse.mqtt.properties import read_varint
from hanse.mqtt.refusal import PACKET_TOO_LARGE, Refusal, malformed, protocol_error

_PINGRESP = b"\xd0\x00"
# A DISCONNECT of the broker with one of these moves the client (shutting down, use another server, server moved).
_MOVES = frozenset({0x8B, 0x9C, 0x9D})


class Keeping(Moving):
    """A client that can be moved, and the packets between it and its broker."""

    # Bytes of the client that are dropped: the rest of a packet of which the lost broker has the beginning.
    _skip = 0
    # Whether the client, or the broker, waits with a packet that may not go through in pieces now.
    _is_client_stuck = False
    _is_broker_stuck = False
    # The digest of the large publication that is passing to the client.
    _large: LargeDigest | None = None

    # --- packets of the client ----------------------------------------------------------------------------------------

    def client_data(self, data: bytes, now: float) -> None:
        """Take one read from the client."""
        super().client_data(data, now)
        self._hold()

    def _hold(self) -> None:
        """Decide which side is read."""
        phase = self._phase
        if not LIVE <= phase <= RESTORING:
            return
        is_waiting = self._is_settling or phase != LIVE
        self.holds_client = (is_waiting and (self._waiting_bytes > PENDING_BYTES_MAX or self._is_client_stuck)) or (
            self._out.kept_bytes > self.settings.kept_bytes_max and not self.holds_broker
        )
        self.holds_broker = self._is_broker_stuck or (
            self._late_bytes > LATE_BYTES_MAX and not self._own_requests and phase >= LIVE
        )

    def _take_client(self, data: bytes, now: float) -> None:
        stream = self._from_client
        self._is_client_stuck = False
        start = 0
        if self._skip:
            start = min(self._skip, len(data))
            self._skip -= start
            if self._skip:
                return
        elif stream.passing:
            start = min(stream.passing, len(data))
            stream.passing -= start
            self.to_broker.append(data[:start] if start < len(data) else data)
            if stream.passing:
                return
        elif stream.pieces:
            data = stream.take(data)
        size = len(data)
        if self._phase == LIVE and not self._is_settling:
            i = self._walk_client(data, start, size, now)
        else:
            i = self._keep_waiting(data, start, size, now)
        if i < size and LIVE <= self._phase <= RESTORING:
            self._keep_client_rest(data, i, size)

    def _walk_client(self, data: bytes, start: int, size: int, now: float) -> int:  # noqa: C901 - hot: nothing is called per packet
        """Pass on all whole packets of a read; return where they end."""
        live = self._in.live
        is_5 = self._version == 5
        has_no_local = self._table.has_no_local
        count = 0
        i = written = start
        try:
            while i + 2 <= size:
                length = data[i + 1]
                if length < 128:
                    body = i + 2
                    end = body + length
                else:
                    end = end_of(data, i, size)
                    if not end:
                        break
                    body = body_of(data, i)
                if end > size:
                    break
                head = data[i]
                kind = head & 0xF0
                if kind == PUBLISH:
                    qos = head >> 1 & 3
                    at = after = body + 2 + (data[body] << 8 | data[body + 1]) if body + 2 <= end else end + 1
                    if qos:
                        after += 2
                    if after > end or qos == 3 or (is_5 and after >= end):
                        raise malformed("a PUBLISH ends before its payload, or has QoS 3")
                    if is_5 and data[after]:
                        check_alias(data, after, end)
                    if qos and not self._keep_outgoing(data[i:end], data[at] << 8 | data[at + 1], qos):
                        if written < i:
                            self.to_broker.append(data[written:i])
                        written = end
                    count += 1
                    if has_no_local and qos:
                        self._published.add([self._digest_of(data[i:end])], now)
                elif kind == PUBACK and end - body >= 2 and self._in.is_plain and not self._late:
                    live.pop(data[body] << 8 | data[body + 1], None)
                else:
                    # The rest is rare, or changes something.
                    if written < i:
                        self.to_broker.append(data[written:i])
                    written = end
                    self._client_packet(data[i:end], body - i, now)
                    if self._phase != LIVE or self._is_settling:
                        return end
                i = end
        finally:
            self.counters.from_clients += count
            if written < i:
                self.to_broker.append(data[written:i] if written or i < size else data)
            if i > start:
                self._to_broker_at = now
        return i

    def _keep_outgoing(self, packet: bytes, packet_id: int, qos: int) -> bool:
        """Keep a publication; return False if the broker has it already, or must not get it."""
        if not packet_id:
            raise protocol_error("a PUBLISH of QoS 1 or 2 has packet identifier 0")
        out = self._out
        former = out.kept.get(packet_id)
        if former is not None and former.qos == qos == 2 and former.at_client >= outgoing.RECEIVED:
            # The client repeats a publication for which it has a PUBREC.
            self.to_client.append(b"\x50\x02" + packet_id.to_bytes(2, "big"))
            return False
        publication = Publication(packet, qos)
        if former is not None:
            publication.at_broker = former.at_broker
        out.keep(packet_id, publication)
        return True

    def _client_packet(self, packet: bytes, body: int, now: float) -> None:
        """Take a packet of the client that is no PUBLISH."""
        kind = packet[0] & 0xF0
        if kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            if len(packet) - body < 2:
                raise malformed("an acknowledgement ends before its packet identifier")
            packet_id = packet[body] << 8 | packet[body + 1]
            if kind == PUBREL:
                self._release(packet, packet_id)
            else:
                self._acknowledge(kind, packet, body, packet_id, now)
        elif kind == PINGREQ:
            if self._is_attached and self._phase == LIVE:
                self._pings.append(True)
                self.to_broker.append(packet)
            else:
                self.to_client.append(_PINGRESP)
        elif kind == DISCONNECT:
            self._note_goodbye(packet)
            self._goodbye = packet
            self._end_client(0, "goodbye")
        elif kind in (SUBSCRIBE, UNSUBSCRIBE):
            self._take_request(packet)
            self.to_broker.append(packet)
        elif kind == AUTH and self._version == 5:
            self.to_broker.append(packet)
        else:
            raise protocol_error(f"a client sent a packet of type {kind >> 4}, which only a server may send, or twice")

    def _release(self, packet: bytes, packet_id: int) -> None:
        """Take the client's PUBREL."""
        publication = self._out.kept.get(packet_id)
        if publication is None:
            if self._is_attached and self._phase == LIVE:
                self.to_broker.append(packet)
            else:
                # Nobody knows this exchange: it is over.
                self.to_client.append(b"\x70\x02" + packet_id.to_bytes(2, "big"))
            return
        publication.at_client = outgoing.RELEASED
        if publication.at_broker == outgoing.RECEIVED and self._is_attached:
            publication.at_broker = outgoing.RELEASED
            self.to_broker.append(packet)

    def _acknowledge(self, kind: int, packet: bytes, body: int, client_id: int, now: float) -> None:
        """Take the client's PUBACK, PUBREC or PUBCOMP."""
        into = self._in
        goes_on = kind == PUBREC and not (len(packet) - body > 2 and packet[body + 2] >= 0x80)
        if client_id in into.own:
            if goes_on:
                into.own[client_id] = deliveries.RELEASED
                self.to_client.append(b"\x62\x02" + client_id.to_bytes(2, "big"))
            else:
                del into.own[client_id]
                self._flush_late(now)
            return
        if client_id not in into.live:
            # It belongs to a session from before this connection, or to no exchange: the broker decides.
            if self._is_attached and self._phase == LIVE and client_id not in into.to_client:
                self.to_broker.append(packet)
            return
        broker_id = into.to_broker.get(client_id, client_id)
        if goes_on:
            into.live[client_id] = deliveries.RECEIVED
        else:
            into.finish(client_id)
        if broker_id != client_id:
            packet = packet[:body] + broker_id.to_bytes(2, "big") + packet[body + 2 :]
        self.to_broker.append(packet)
        if not goes_on:
            self._flush_late(now)

    def _keep_waiting(self, data: bytes, start: int, size: int, now: float) -> int:
        """Take the client's acknowledgements; keep its other packets for the next broker. Return where they end."""
        i = start
        while i + 2 <= size and LIVE <= self._phase <= RESTORING:
            end = end_of(data, i, size)
            if not end or end > size:
                break
            kind = data[i] & 0xF0
            packet = data[i:end]
            if kind in (PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ, DISCONNECT):
                self._client_packet(packet, body_of(packet, 0), now)
                if self._phase == LIVE and not self._is_settling:
                    return self._walk_client(data, end, size, now)
            else:
                self._waiting.append(packet)
                self._waiting_bytes += len(packet)
            i = end
        return i

    def _keep_client_rest(self, data: bytes, start: int, size: int) -> None:
        """Keep the start of a packet, or let a large PUBLISH go through in pieces."""
        end = end_of(data, start, size) if start + 2 <= size else 0
        need = end - start if end else size - start + 1
        settings = self.settings
        head = data[start]
        if need > settings.packet_bytes_max:
            raise Refusal(
                PACKET_TOO_LARGE,
                f"a packet of {need} bytes was announced; at most {settings.packet_bytes_max} are taken here",
            )
        if need > settings.hold_bytes and head & 0xF0 != PUBLISH:
            raise Refusal(
                PACKET_TOO_LARGE,
                f"a packet of type {head >> 4} and {need} bytes was announced; "
                f"{settings.hold_bytes} are taken of any but PUBLISH",
            )
        rest = data[start:] if start else data
        if need > (settings.kept_bytes_max if head & 6 else settings.hold_bytes):
            found = _header_of(rest, self._version)
            if found is None:
                need = len(rest) + 1
            elif self._phase == LIVE and not self._is_settling:
                if self._version == 5:
                    check_alias(rest, found[1], found[2])
                self.counters.from_clients += 1
                if head & 6:
                    self._unkept.add(found[3])
                    self.counters.move("not_kept")
                self._from_client.passing = end - size
                self.to_broker.append(rest)
                return
            elif head & 6:
                self._is_client_stuck = True
            else:
                self.counters.from_clients += 1
                self.counters.drop("no_broker")
                self._skip = end - size
                return
        self._from_client.keep(rest, need)

    def _drop_half_sent(self) -> None:
        stream = self._from_client
        if stream.passing:
            self._skip = stream.passing
            stream.passing = 0
            if not self._unkept:
                self.counters.drop("half_sent")

    # --- packets of the broker ----------------------------------------------------------------------------------------

    def broker_data(self, data: bytes, now: float) -> None:
        """Take one read from the current broker."""
        self._broker_at = now
        super().broker_data(data, now)
        self._hold()

    def _take_broker(self, data: bytes, now: float) -> None:
        if self._phase == PARTING:
            self._take_parting(data, now)
            return
        if self._phase not in (LIVE, RESTORING):
            return
        stream = self._from_broker
        start = 0
        if stream.passing:
            start = min(stream.passing, len(data))
            piece = data[:start]
            stream.passing -= start
            self.to_client.append(piece)
            if self._large is not None:
                self._large.add(piece)
                if not stream.passing:
                    self._received.add([self._large.value()], now)
                    self._large = None
            if stream.passing:
                return
        elif stream.pieces:
            data = stream.take(data)
        self._is_broker_stuck = False
        size = len(data)
        i = start
        while i + 2 <= size and self._phase in (LIVE, RESTORING):
            if self._is_plain:
                i = self._walk_broker(data, i, size, now)
                if i + 2 > size:
                    break
            end = end_of(data, i, size)
            if not end or end > size or self._phase not in (LIVE, RESTORING):
                break
            self._broker_packet(data[i:end], now)
            i = end
        if i < size and self._phase in (LIVE, RESTORING):
            self._keep_broker_rest(data, i, size)
        if self._is_settling:
            self._look_settled(now)

    def _walk_broker(self, data: bytes, start: int, size: int, now: float) -> int:  # noqa: C901 - hot, as above
        """Pass on publications and their acknowledgements as they come; return where anything else begins."""
        live = self._in.live
        kept = self._out.kept
        quiet = self._table.quiet
        is_5 = self._version == 5
        digests: list[int] = []
        count = 0
        i = start
        while i + 2 <= size:
            length = data[i + 1]
            if length < 128:
                body = i + 2
                end = body + length
            else:
                end = end_of(data, i, size)
                if not end:
                    break
                body = body_of(data, i)
            if end > size:
                break
            head = data[i]
            kind = head & 0xF0
            if kind == PUBLISH:
                if head & 1 and quiet:
                    break
                count += 1
                if head & 6:
                    at = body + 2 + (data[body] << 8 | data[body + 1]) if body + 2 <= end else end + 1
                    after = at + 2
                    if after > end or (is_5 and after >= end):
                        raise malformed("the broker's PUBLISH ends before its payload")
                    if is_5:
                        if data[after]:
                            skipped, after = read_varint(data, after, end)
                            after += skipped
                        else:
                            after += 1
                    live[data[at] << 8 | data[at + 1]] = head >> 1 & 3
                    if end - body < LARGE_BYTES:
                        digests.append(hash((data[body + 2 : at], data[after:end])))
                    else:
                        digests.append(digest(data[body + 2 : at], data[after:end]))
            elif kind == PUBACK and end - body >= 2:
                packet_id = data[body] << 8 | data[body + 1]
                publication = kept.get(packet_id)
                if publication is None or publication.is_own or end - body > 2:
                    break
                self._out.drop(packet_id)
                self._out.remember(publication, now, self.settings.replay_window_bytes)
            else:
                break
            i = end
        if digests:
            self._received.add(digests, now)
        self.counters.to_clients += count
        if start < i:
            self.to_client.append(data[start:i] if start or i < size else data)
        return i

    def _broker_packet(self, packet: bytes, now: float) -> None:
        """Take one packet of the broker in any state."""
        kind = packet[0] & 0xF0
        body = body_of(packet, 0)
        if kind == PUBLISH:
            self._incoming(packet, now)
            return
        if kind == PINGRESP:
            if not self._pings or self._pings.popleft():
                self.to_client.append(packet)
            return
        if kind == DISCONNECT:
            self._broker_goodbye(packet)
            return
        if kind == AUTH and self._version == 5:
            self.to_client.append(packet)
            return
        if kind not in (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK):
            raise protocol_error(
                f"the broker sent a packet of type {kind >> 4}, which only a client may send, or twice"
            )
        if len(packet) < body + 2:
            raise malformed("an answer of the broker ends before its packet identifier")
        packet_id = packet[body] << 8 | packet[body + 1]
        if kind in (SUBACK, UNSUBACK):
            if packet_id in self._own_requests:
                self._own_answer(packet, packet_id, now)
            elif self._take_answer(packet):
                self.to_client.append(packet)
        elif kind == PUBREL:
            self._broker_released(packet, body, packet_id)
        else:
            is_refused = len(packet) > body + 2 and packet[body + 2] >= 0x80
            self._broker_acknowledged(kind, packet, packet_id, is_refused, now)

    def _broker_acknowledged(self, kind: int, packet: bytes, packet_id: int, is_refused: bool, now: float) -> None:
        """Take PUBACK, PUBREC or PUBCOMP for a publication of the client."""
        out = self._out
        publication = out.kept.get(packet_id)
        if publication is None:
            if kind != PUBREC or is_refused:
                self._unkept.discard(packet_id)
            self.to_client.append(packet)
        elif kind == PUBREC and not is_refused:
            publication.at_broker = outgoing.RECEIVED
            if publication.at_client == outgoing.SENT:
                publication.at_client = outgoing.RECEIVED
                self.to_client.append(packet)
            elif publication.at_client == outgoing.RELEASED:
                publication.at_broker = outgoing.RELEASED
                self.to_broker.append(b"\x62\x02" + packet_id.to_bytes(2, "big"))
            return
        else:
            out.drop(packet_id)
            if kind == PUBACK and not is_refused and not publication.is_own:
                out.remember(publication, now, self.settings.replay_window_bytes)
            if publication.is_own:
                if is_refused:
                    self.counters.drop("refused_after_move")
            elif kind == PUBREC and publication.at_client != outgoing.SENT:
                # The client has a PUBREC of the lost broker. It can no longer learn of the refusal.
                self.counters.drop("refused_after_move")
                if publication.at_client == outgoing.RELEASED:
                    self.to_client.append(b"\x70\x02" + packet_id.to_bytes(2, "big"))
            else:
                self.to_client.append(packet)
        self._go_on(now)

    def _broker_released(self, packet: bytes, body: int, broker_id: int) -> None:
        """Take PUBREL."""
        into = self._in
        client_id = into.to_client.get(broker_id, broker_id)
        if broker_id in into.swallowed or (client_id not in into.live and (self._was_moved or client_id in into.own)):
            # The client has never seen it, or has finished it.
            into.swallowed.discard(broker_id)
            self.to_broker.append(b"\x70\x02" + broker_id.to_bytes(2, "big"))
            self._update_plain()
            return
        into.live[client_id] = deliveries.RELEASED
        if client_id != broker_id:
            packet = packet[:body] + client_id.to_bytes(2, "big") + packet[body + 2 :]
        self.to_client.append(packet)

    def _broker_goodbye(self, packet: bytes) -> None:
        """Take DISCONNECT."""
        code = packet[2] if len(packet) > 2 else 0
        if code in _MOVES:
            self.events.append(MoveAsked(code))
            return
        self._is_taken_over = code == TAKEN_OVER
        self.to_client.append(packet)

    # --- publications for the client that are examined one by one -----------------------------------------------------

    def _incoming(self, packet: bytes, now: float) -> None:
        """Take a PUBLISH of the broker that may need more than passing on."""
        found = read_publish(packet, self._version)
        if self._is_unwanted(found.topic, found.payload, found.qos, found.retain, now):
            self._swallow(found.qos, found.packet_id)
            self._update_plain()
            return
        late = Late(packet, found.qos, found.packet_id)
        if found.qos:
            content = digest(found.topic, found.payload)
            if self._replay is not None:
                self._replay.came_live(content, now, late)
            elif not self._is_replay_due:
                self._received.add([content], now)
        if self._is_replay_due:
            self._late_live.append(late)
            self._late_bytes += len(packet)
            if self._late_bytes > LATE_BYTES_MAX and self._own_requests:
                # The broker cannot be held, because its SUBACK is behind this. Its publications overtake the replay.
                self.counters.move("unordered", len(self._late_live))
                self._release_live(now)
                self._flush_late(now)
        elif self._late or (found.qos and len(self._in) >= self._window()):
            self._late.append(late)
            self._late_bytes += len(packet)
        else:
            self._deliver(late)
        self._update_plain()

    def _is_unwanted(self, topic: bytes, payload: bytes, qos: int, retain: bool, now: float) -> bool:
        """Return whether the client must not get this publication."""
        table = self._table
        if retain and table.quiet and all(one.filter in table.quiet for one in table.matching(topic)):
            self.counters.move("retained_again")
            return True
        if self._watch_until is None and self._phase == LIVE:
            return False
        if now > (self._watch_until or now):
            self._end_watch()
            return False
        if not qos:
            return False
        content = digest(topic, payload)
        count = self._expected.get(content, 0)
        if count:
            if count > 1:
                self._expected[content] = count - 1
            else:
                del self._expected[content]
            if self._phase == LIVE:
                self.counters.move("removed")
            else:
                self._removed += 1
            return True
        if content in self._repeatable:
            self._repeatable.discard(content)
            self.counters.move("repeated")
        if table.has_no_local and content in self._published.by_content():
            wanting = table.matching(topic)
            if wanting and all(one.options & NO_LOCAL for one in wanting):
                self.counters.move("own")
                return True
        return False

    def _deliver(self, late: Late) -> None:
        packet = late.packet
        if late.qos:
            into, broker_id = self._in, late.broker_id
            client_id = into.begin(broker_id, late.qos) if broker_id else into.begin_own(late.qos)
            if client_id != broker_id:
                packet = with_id(packet, client_id)
        self.counters.to_clients += 1
        self.to_client.append(packet)

    def _flush_late(self, now: float) -> None:
        """Send waiting publications, as far as the client's Receive Maximum allows."""
        late = self._late
        window = self._window()
        while late and (not late[0].qos or len(self._in) < window):
            self._late_bytes -= len(late[0].packet)
            self._deliver(late.popleft())
        self._update_plain()
        if self._is_broker_stuck and not late and not self._is_replay_due:
            pieces = self._from_broker.pieces
            self._from_broker.clear()
            self._take_broker(b"".join(pieces), now)
        self._hold()

    def _keep_broker_rest(self, data: bytes, start: int, size: int) -> None:
        """Keep the start of a packet, or let a large PUBLISH through in pieces."""
        end = end_of(data, start, size) if start + 2 <= size else 0
        need = end - start if end else size - start + 1
        rest = data[start:] if start else data
        if data[start] & 0xF0 != PUBLISH:
            if need > ANSWER_BYTES_MAX:
                raise Refusal(PACKET_TOO_LARGE, f"the broker announced a packet of {need} bytes that is no PUBLISH")
        elif need > self.settings.hold_bytes:
            found = _header_of(rest, self._version)
            if found is None:
                need = len(rest) + 1
            elif (self._late or self._is_replay_due) and not self._own_requests:
                self._is_broker_stuck = True
                need = len(rest)
            else:
                self._begin_large(rest, found)
                self._from_broker.passing = end - size
                return
        self._from_broker.keep(rest, need)

    def _begin_large(self, rest: bytes, found: tuple[bytes, int, int, int]) -> None:
        topic, _, payload_at, broker_id = found
        qos = rest[0] >> 1 & 3
        self.counters.to_clients += 1
        self._large = None
        if qos:
            self._large = LargeDigest(topic)
            self._large.add(rest[payload_at:])
            client_id = self._in.begin(broker_id, qos)
            if client_id != broker_id:
                rest = with_id(rest, client_id)
            if self._is_replay_due:
                self.counters.move("unordered")
            self._update_plain()
        self.to_client.append(rest)


def _header_of(data: bytes, version: int) -> tuple[bytes, int, int, int] | None:
    """Return topic, start of the properties, start of the payload and identifier of a PUBLISH that is not complete.

    None: its header is not complete either.
    """
    size = len(data)
    if size < 8:
        return None
    i = body_of(data, 0)
    at = i + 2 + (data[i] << 8 | data[i + 1])
    after = at + 2 if data[0] & 6 else at
    if after + 5 > size:
        return None
    first = after
    if version == 5:
        length, after = read_varint(data, after, size)
        after += length
        if after > size:
            return None
    return data[i + 2 : at], first, after, data[at] << 8 | data[at + 1] if data[0] & 6 else 0
