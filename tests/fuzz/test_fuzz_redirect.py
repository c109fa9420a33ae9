"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The targets are the inputs of redirects and discovery: packets of redirected clients, packets of brokers during
discovery, and documents of federators, managers and brokers. Wherever the reads cut, the outcome is the same, and a
client gets no server except the one that the gateway names.
"""

import json

import pytest
from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.gateway import packets as p

from hanse.gateway.discovery.packets import Packet, Reader
from hanse.gateway.discovery.topics import Topics
from hanse.gateway.redirect.exchange import Redirection
from hanse.gateway.redirect.groups import Groups
from hanse.gateway.redirect.knowledge import parse_vitals
from hanse.gateway.session import Counters, Settings
from hanse.gateway.session.events import Close, TopicsAsked

SETTINGS = Settings(make_client_id=lambda: b"made")
REFERENCE = "b.example:1883"
TOPICS = st.sampled_from([b"a", b"a/b", b"a/+", b"$share/g/a", b"$SYS/x", b""])
FROM_CLIENTS = st.one_of(
    st.builds(p.publish, TOPICS, st.binary(max_size=300), st.integers(0, 2), st.integers(1, 9)),
    st.builds(p.subscribe, st.integers(1, 9), st.tuples(TOPICS, st.integers(0, 2))),
    st.builds(p.unsubscribe, st.integers(1, 9), TOPICS),
    st.builds(p.ack, st.sampled_from([0x40, 0x50, 0x62, 0x70]), st.integers(1, 9)),
    st.sampled_from([b"\xc0\x00", p.disconnect(), p.connect(5, b"c1").packet]),
)
FROM_BROKERS = st.one_of(
    st.builds(p.publish, TOPICS, st.binary(max_size=300), st.integers(0, 2), st.integers(1, 9)),
    st.builds(p.suback, st.integers(1, 9), st.sampled_from([0, 1, 2, 0x80])),
    st.sampled_from([b"\xd0\x00", p.disconnect(0x8E), p.disconnect(0x9C)]),
)
NAMES = st.sampled_from(["a", "a/b", "a/+", "#", "", "$share/g/a"])
IDS = st.one_of(st.integers(-1, 5), st.none(), st.just("0"))
ROLES = st.sampled_from(["core", "member", "outsider"])
PAGES = st.fixed_dictionaries(
    {
        "id": IDS,
        "groups": st.lists(st.fixed_dictionaries({"group": NAMES, "role": ROLES, "distance": IDS}), max_size=5),
    }
)
MEMBERS = st.fixed_dictionaries({"id": IDS, "mesh": st.lists(IDS, max_size=2)})
ROWS = st.fixed_dictionaries(
    {
        "groups": st.lists(
            st.fixed_dictionaries(
                {
                    "group": NAMES,
                    "cores": st.lists(IDS, max_size=2),
                    "members": st.lists(
                        st.fixed_dictionaries({"id": IDS, "mesh": st.lists(IDS, max_size=2)}), max_size=3
                    ),
                }
            ),
            max_size=4,
        ),
        "links": st.lists(st.fixed_dictionaries({"a": IDS, "b": IDS}), max_size=4),
    }
)


def pieces(data: bytes) -> list[list[bytes]]:
    """The data in whole, in small reads, and byte by byte."""
    sizes = [len(data) or 1, 1 + sum(data) % 37] + ([1] if len(data) < 400 else [])
    return [[data[k : k + size] for k in range(0, len(data), size)] for size in sizes]


def redirect(reads: list[bytes]) -> tuple[bytes, list[object]]:
    """Redirect a client at its first request; return its bytes, and the events."""
    session = Redirection(SETTINGS, Counters(), 0.0, is_accepted_filter=lambda filter_: not filter_.startswith("$SYS"))
    session.start(p.connect(5, b"c1"), b"", 0.0)
    session.accept(0.0)
    told = bytearray()
    events: list[object] = []
    for read in reads:
        session.client_data(read, 0.0)
        told += b"".join(session.to_client)
        session.to_client.clear()
        for event in session.events:
            events.append(event)
            if isinstance(event, TopicsAsked):
                assert event.filters or not event.is_publisher
        session.events.clear()
        assert not session.to_broker
    return bytes(told), [event for event in events if isinstance(event, TopicsAsked | Close)]


def take_client(data: bytes) -> None:
    outcomes = [redirect(reads) for reads in pieces(data)]
    assert all(one == outcomes[0] for one in outcomes), "it must not matter where the reads cut"
    told, events = outcomes[0]
    assert len(told) < 100 + 4 * len(data)
    assert sum(isinstance(event, TopicsAsked) for event in events) <= 1
    assert REFERENCE.encode() not in told


def read(reads: list[bytes], wanted_bytes_max: int) -> tuple[list[Packet], int]:
    """The packets of a broker, and the code with which the stream was refused."""
    reader = Reader(wanted_bytes_max=wanted_bytes_max)
    found: list[Packet] = []
    for one in reads:
        found += reader.feed(one)
        assert reader.waiting_bytes < 140_000
    return found, 0 if reader.refusal is None else reader.refusal.reason_code


def take_broker(data: bytes) -> None:
    for wanted_bytes_max in (0, 200):
        outcomes = [read(reads, wanted_bytes_max) for reads in pieces(data)]
        assert all(one == outcomes[0] for one in outcomes), "it must not matter where the reads cut"
    table = Topics(topics_max=50)
    for packet in outcomes[0][0]:
        if packet.kind == 3:
            table.saw("b", packet.topic.decode(), 0.0, is_retained=packet.is_retained)
            table.presence(packet.topic.decode() or "#")
    assert table.count <= 50


def take_page(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    groups = Groups(rows_max=20)
    groups.take_federator("0", document)
    rows = document.get("groups") if isinstance(document, dict) else None
    groups.take_manager(["0", "1"], rows if isinstance(rows, list) else [], document)
    assert len(groups) <= 20
    for filter_ in ("a", "a/b", "$share/g/a"):
        standing = groups.standing("0", filter_)
        assert standing is None or standing.role in ("", "core", "member")
        assert groups.standing("9", filter_) is None


def take_vitals(data: bytes) -> None:
    vitals = parse_vitals(data)
    assert vitals is None or all(one is None or 0 <= one <= 1 for one in vitals)


def test_whatever_a_client_sends() -> None:
    fuzz("redirect", st.lists(FROM_CLIENTS, max_size=8).map(b"".join), take_client)


def test_whatever_a_broker_sends() -> None:
    fuzz("redirect", st.lists(FROM_BROKERS, max_size=8).map(lambda parts: p.connack() + b"".join(parts)), take_broker)


def test_whatever_a_federator_or_a_manager_shows() -> None:
    fuzz("redirect", st.one_of(PAGES, ROWS).map(lambda page: json.dumps(page).encode()), take_page)


def test_whatever_a_broker_reports() -> None:
    values = st.one_of(st.floats(0, 1), st.none(), st.booleans(), st.just(1e999), st.text(max_size=3))
    reports = st.dictionaries(st.sampled_from(["load", "memory_free", "battery", "x"]), values)
    fuzz("redirect", reports.map(lambda report: json.dumps(report).encode()), take_vitals)


@pytest.mark.slow
def test_a_megabyte_is_read_in_linear_time() -> None:
    publication = p.publish(b"a", b"x" * 10)
    assert_linear(lambda size: p.connack() + publication * (size // len(publication)),
                  lambda data: [Reader().feed(data)])  # fmt: skip
    assert_linear(lambda size: p.connack() + p.publish(b"a", bytes(size)),
                  lambda data: read([data[k : k + 700] for k in range(0, len(data), 700)], 0))  # fmt: skip
