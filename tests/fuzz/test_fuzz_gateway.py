"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a gateway's session that passes packets through. What a client sends is CONNECT and then anything; what a
broker sends is CONNACK and then anything. Of a packet that breaks a rule, nothing is forwarded; what came before it is
forwarded as it came, wherever the reads cut it.
"""

from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.gateway import packets as p

from hanse.gateway.front.connect import ConnectReader
from hanse.gateway.front.proxy_header import SIGNATURE, HeaderReader
from hanse.gateway.session import Counters, Session, Settings, new_session
from hanse.gateway.session.events import Accepted, Close
from hanse.mqtt.refusal import Refusal

SETTINGS = Settings(failover=False, packet_bytes_max=100_000, make_client_id=lambda: b"made")
TOPICS = st.sampled_from([b"a", b"a/b", b"$SYS/x", b""])
VERSIONS = st.sampled_from([3, 4, 5])
CONNECTS = st.builds(
    p.connect,
    VERSIONS,
    st.sampled_from([b"c1", b"x" * 200]),
    clean=st.booleans(),
    will=st.sampled_from([None, (b"w", b"gone", 1)]),
).map(lambda connect: connect.packet)
FROM_CLIENTS = st.one_of(
    st.builds(p.publish, TOPICS, st.binary(max_size=300), st.integers(0, 2), st.integers(1, 9)),
    st.builds(p.subscribe, st.integers(1, 9), st.tuples(TOPICS, st.integers(0, 2))),
    st.builds(p.unsubscribe, st.integers(1, 9), TOPICS),
    st.builds(p.ack, st.sampled_from([0x40, 0x50, 0x62, 0x70]), st.integers(1, 9)),
    st.sampled_from([b"\xc0\x00", p.disconnect(), p.disconnect(4)]),
)
FROM_BROKERS = st.one_of(
    st.builds(p.publish, TOPICS, st.binary(max_size=300), st.integers(0, 2), st.integers(1, 9)),
    st.builds(p.suback, st.integers(1, 9), st.sampled_from([0, 1, 2, 0x80])),
    st.builds(p.unsuback, st.integers(1, 9), st.sampled_from([0, 0x11])),
    st.builds(p.ack, st.sampled_from([0x40, 0x50, 0x62, 0x70]), st.integers(1, 9)),
    st.sampled_from([b"\xd0\x00", p.disconnect(0x8E), p.disconnect(0x8B)]),
)


class Outcome(NamedTuple):
    forwarded: bytes
    closed: tuple[int, str] | None


def flush(session: Session, out: list[bytes], is_client: bool) -> tuple[int, str] | None:
    """Take the packets to forward; return how the session was closed, if it was."""
    forwarded, back = (session.to_broker, session.to_client) if is_client else (session.to_client, session.to_broker)
    out += forwarded
    forwarded.clear()
    back.clear()
    closed = [(event.code, event.reason) for event in session.events if isinstance(event, Close)]
    session.events.clear()
    return closed[0] if closed else None


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[k : k + size] for k in range(0, len(data), size)]


def from_client(data: bytes, size: int) -> Outcome | None:
    """Return what a broker gets of a client's bytes, read in pieces; None if there is no CONNECT."""
    reader = ConnectReader(65_536)
    connect = None
    cut = pieces(data, size)
    while cut and connect is None:
        connect = reader.feed(cut.pop(0))
    if connect is None:
        return None
    counters = Counters()
    session = new_session(SETTINGS, counters, 0.0)
    session.start(connect, reader.rest, 0.0)
    session.attach(0.0)
    out: list[bytes] = []
    session.broker_data(p.connack(connect.level), 0.0)
    assert any(isinstance(event, Accepted) for event in session.events)
    closed = flush(session, out, is_client=True)
    for piece in cut:
        if closed is None:
            session.client_data(piece, 0.0)
            closed = flush(session, out, is_client=True)
    if closed is not None:
        assert sum(counters.closes.values()) == 1
    # The first is CONNECT, which may have been changed.
    return Outcome(b"".join(out[1:]), closed)


def from_broker(data: bytes, size: int, version: int) -> Outcome:
    """Return what a client gets of a broker's bytes."""
    session = new_session(SETTINGS, Counters(), 0.0)
    session.start(p.connect(version, b"c1"), p.subscribe(1, (b"a", 1), version=version), 0.0)
    session.attach(0.0)
    flush(session, [], is_client=False)
    out: list[bytes] = []
    closed = None
    for piece in pieces(data, size):
        if closed is None:
            session.broker_data(piece, 0.0)
            closed = flush(session, out, is_client=False)
    return Outcome(b"".join(out), closed)


def sizes(data: bytes) -> list[int]:
    return [len(data) or 1, 1 + sum(data) % 37] + ([1] if len(data) < 400 else [])


def take_client(data: bytes) -> None:
    found = [from_client(data, size) for size in sizes(data)]
    whole = found[0]
    assert all(one == whole for one in found), "it must not matter where the reads cut"
    if whole is not None:
        assert whole.forwarded in data
        if whole.closed is None:
            # Less than one packet waits.
            assert len(data) - data.index(whole.forwarded) - len(whole.forwarded) <= len(data)


def take_broker(data: bytes) -> None:
    for version in (4, 5):
        found = [from_broker(data, size, version) for size in sizes(data)]
        # The gateway's own DISCONNECT follows what it had forwarded.
        assert all(one == found[0] for one in found), "it must not matter where the reads cut"


def take_header(data: bytes) -> None:
    outcomes = []
    for size in (len(data) or 1, 1, 7):
        reader = HeaderReader()
        taken = 0
        try:
            while taken < len(data) and not reader.is_complete:
                taken += reader.feed(data[taken : taken + size])
            outcomes.append((taken if reader.is_complete else -1, reader.address))
        except Refusal as refusal:
            outcomes.append((-2, str(refusal.reason_code)))
            last = refusal
    assert len(set(outcomes)) == 1, outcomes
    if outcomes[0][0] == -2:
        raise last


def test_whatever_a_client_sends() -> None:
    streams = st.tuples(CONNECTS, st.lists(FROM_CLIENTS, max_size=8))
    fuzz("gateway", streams.map(lambda parts: parts[0] + b"".join(parts[1])), take_client)


def test_whatever_a_broker_sends() -> None:
    connacks = st.sampled_from([p.connack(5), p.connack(4), p.connack(5, 0x87), p.connack(5, properties=b"\x21\0\x05")])
    streams = st.tuples(connacks, st.lists(FROM_BROKERS, max_size=8))
    fuzz("gateway", streams.map(lambda parts: parts[0] + b"".join(parts[1])), take_broker)


def test_whatever_a_balancer_sends() -> None:
    headers = st.sampled_from(
        [
            b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 1883\r\n",
            b"PROXY UNKNOWN\r\n",
            SIGNATURE + b"\x21\x11\x00\x0c\xc0\0\2\7\xc6\x33\x64\1\x30\x39\x07\x5b",
            SIGNATURE + b"\x20\x00\x00\x00",
        ]
    )
    fuzz("gateway", headers, take_header)


@pytest.mark.slow
def test_a_megabyte_is_read_in_linear_time() -> None:
    connect = p.connect(4, b"c1").packet
    publication = p.publish(b"a", b"x" * 10, version=4)
    assert_linear(lambda size: connect + publication * (size // len(publication)), lambda data: from_client(data, 700))
    assert_linear(lambda size: connect + p.publish(b"a", bytes(80_000), version=4) * (size // 80_000),
                  lambda data: from_client(data, 700))  # fmt: skip
    assert_linear(lambda size: p.connack(4) + publication * (size // len(publication)),
                  lambda data: from_broker(data, 700, 4))  # fmt: skip
