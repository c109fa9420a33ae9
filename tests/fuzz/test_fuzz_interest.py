"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is the sources of interest: lines of Mosquitto's log, by topic and by file, beacons, announcements. The
registry applies any report of the adapters, keeps its limits, and wants only filters that the protocol accepts.
"""

from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz

from hanse.interest import (
    AnnounceAdapter,
    BeaconAdapter,
    InterestRegistry,
    InterestSettings,
    MosquittoFileAdapter,
    MosquittoLogAdapter,
)
from hanse.interest import mosquitto_log as log
from hanse.protocol import events
from hanse.protocol.machine import Machine
from hanse.protocol.settings import Settings
from hanse.protocol.topics import check_filter

CLIENTS = st.sampled_from(
    ["a", "my client", "x 1 y", "Client", "hanse-federator-3", "ü", "New client connected from x as"]
)
FILTERS = st.sampled_from(["a", "a b/+/#", "$share/g/a/#", "federator/#", "#", "$SYS/#", "1 a"])
LINES = st.one_of(
    st.builds("{} {} {}".format, CLIENTS, st.integers(0, 2), FILTERS),
    st.builds("{} {}".format, CLIENTS, FILTERS),
    st.builds(
        "New client connected from 127.0.0.1:{} as {} (p{}, c{}, k60).".format,
        st.integers(1, 9),
        CLIENTS,
        st.integers(1, 5),
        st.integers(0, 1),
    ),
    st.builds("Client {} disconnected.".format, CLIENTS),
    st.builds("Client {} [127.0.0.1:{}] disconnected: connection closed by client.".format, CLIENTS, st.integers(1, 9)),
    st.builds("1700000000: {} {} {}".format, CLIENTS, st.integers(0, 2), FILTERS),
    st.builds("Socket error on client {}, disconnecting.".format, CLIENTS),
    st.builds('{{"topic": "{}", "role": "subscriber", "client": "{}", "qos": 1}}'.format, FILTERS, CLIENTS),
)
TEXTS = st.lists(LINES, min_size=1, max_size=6).map("\n".join).map(str.encode)
LIMITS = InterestSettings(filters_max=20, clients_max=10, filters_per_client_max=5)


def take(data: bytes) -> None:
    registry = InterestRegistry(LIMITS)
    topics, file = MosquittoLogAdapter("hanse-federator-"), MosquittoFileAdapter("hanse-federator-")
    beacons, announcements = BeaconAdapter(), AnnounceAdapter()
    machine = Machine(1, Settings(), now=0.0, wall_s=1_000)
    now = 0.0
    for line in data.split(b"\n"):
        text = line.decode("utf-8", "replace")
        for source, reports in (
            (topics.source, topics.message(log.SUBSCRIBE, line)),
            (topics.source, topics.message(log.UNSUBSCRIBE, line[::-1])),
            (topics.source, topics.message(log.NOTICE, line)),
            (topics.source, topics.message(f"$SYS/broker/connection/{text}/state", line[:1])),
            (beacons.source, beacons.message(f"federator/beacon/{text}", b"", is_retained=len(line) % 2 == 0)),
            (announcements.source, announcements.message("NEW_REGULAR_TOPIC", line)),
            (file.source, file.feed(line + b"\n"[: len(line) % 5])),
        ):
            now += 0.5
            change = registry.apply(now, source, reports)
            for wanted, qos in (*change.added, *change.changed):
                check_filter(wanted)
                assert qos in (0, 1, 2)
                machine.step(now, events.Subscribed(wanted))
            for ended in change.removed:
                machine.step(now, events.Unsubscribed(ended))
    assert len(machine.groups()) <= LIMITS.filters_max + 1
    # Any stored registry loads again.
    InterestRegistry(LIMITS).load(0.0, 1_000.0, registry.dump(now, 1_000.0))
    registry.expire(1e9)


def test_any_report_of_a_broker_about_its_clients_is_applied_or_ignored() -> None:
    fuzz("interest", TEXTS, take)


def test_a_megabyte_of_log_is_read_in_linear_time() -> None:
    def feed(data: bytes) -> None:
        adapter = MosquittoFileAdapter("hanse-federator-")
        for at in range(0, len(data), 4_096):
            adapter.feed(data[at : at + 4_096])

    for line in (
        b"x 1 a\n",
        b"Client " * 100 + b"\n",
        b"1 " * 400 + b"\n",
        b"x",
        b"\n",
        b"New client connected from x as (p1, c1, " * 20 + b"\n",
    ):
        assert_linear(lambda size, line=line: line * (size // len(line)), feed, large=1 << 18)  # type: ignore[misc]

    def announce(data: bytes) -> None:
        AnnounceAdapter().message("NEW_REGULAR_TOPIC", data)

    assert_linear(lambda size: b'{"topic":' + b"[" * size, announce)
