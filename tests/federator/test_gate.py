"""The host broker gets only packets that any broker accepts, on topics that cross."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.net import packet

from hanse.federator.gate import Gate
from hanse.mqtt.publication import encode
from hanse.protocol.packets import split

GOOD = encode("a/b", b"x", qos=1)


def admitted(*packets: bytes, gate: Gate | None = None) -> tuple[list[bytes], Counter[str]]:
    counters: Counter[str] = Counter()
    gate = gate or Gate(counters)
    body = b"".join(packets)
    kept, count = gate.admit(body, len(packets))
    spans = split(kept)
    assert len(spans) == count
    return [kept[start:end] for start, end in spans], counters


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (encode("$SYS/broker/uptime", b"", qos=1), "gate_closed_topic"),
        (encode("$CONTROL/dynamic-security/v1", b"", qos=1), "gate_closed_topic"),
        (encode("federator/core_ann/1/2", b"", qos=1), "gate_closed_topic"),
        (encode("federated_topology_ann", b"", qos=1), "gate_closed_topic"),
        (encode("hanse/probe/self/1", b"", qos=1), "gate_closed_topic"),
        (encode("$share/g/a", b"", qos=1), "gate_closed_topic"),
        (packet("a/+", qos=1), "gate_malformed"),
        (packet("#", qos=1), "gate_malformed"),
        (packet("", qos=1), "gate_malformed"),
        (packet("a\0b", qos=1), "gate_malformed"),
        (packet("/" * 200, qos=1), "gate_malformed"),
        (packet("a\x01b", qos=1), "gate_unportable"),
        (packet("a\x7fb", qos=1), "gate_unportable"),
        (packet("a\uffff", qos=1), "gate_unportable"),
        (b"\x32\x02\x00\x00", "gate_malformed"),
        (b"\x32\x00", "gate_malformed"),
        (b"\x32\x06\xff\xff\x61\x00\x00\x00", "gate_malformed"),
        (b"\x32\x06\x00\x01\xff\x00\x00\x00", "gate_malformed"),  # a topic that is not UTF-8
        (b"\x32\x06\x00\x01\x61\x00\x01\x00", "gate_malformed"),  # a packet identifier: not canonical
        (b"\x32\x08\x00\x01\x61\x00\x00\x02\x01\x02", "gate_malformed"),  # payload format indicator 2
        (b"\x32\x09\x00\x01\x61\x00\x00\x03\x23\x00\x01", "gate_malformed"),  # topic alias
        (b"\x32\x08\x00\x01\x61\x00\x00\x02\x0b\x01", "gate_malformed"),  # subscription identifier
        (encode("a", b"", qos=1, response_topic="r").replace(b"\x08\0\x01r", b"\x08\0\x01+"), "gate_malformed"),
        (encode("a", b"", qos=1, content_type="a\x02"), "gate_unportable"),
        (encode("a", b"", qos=1, user_properties=[("k", "v"), ("k", "\x9f")]), "gate_unportable"),
        (encode("a", b"", qos=1, user_properties=[("k", "v")] * 1_001), "gate_malformed"),
    ],
)
def test_only_the_invalid_packet_of_a_run_is_dropped(bad: bytes, reason: str) -> None:
    kept, counters = admitted(GOOD, bad, GOOD, bad)
    assert kept == [GOOD, GOOD]
    assert counters == {reason: 2}


@pytest.mark.parametrize(
    "good",
    [
        encode("a", b"", qos=1),
        encode("/", b"", qos=1),
        encode("//", b"", qos=1),
        encode("e\u0301/\u00e9", b"", qos=1),
        encode("../%2e/<script>", b"", qos=1),
        encode("x" * 65_535, b"", qos=1),
        encode("/" * 199, b"", qos=1),
        encode("$hanse/telemetry/v1/hop_traces/1", b"", qos=1),
        encode("\ufeffa", b"", qos=1),
        encode("a", b"x" * 100_000, qos=1),
        encode("a", b"", qos=1, expiry_s=0, response_topic="b", correlation_data=b"\0", user_properties=[("", "ü")]),
    ],
)
def test_strange_but_valid_packets_pass_byte_for_byte(good: bytes) -> None:
    kept, counters = admitted(good, good, GOOD)
    assert kept == [good, good, GOOD]
    assert not counters


def test_a_bad_packet_of_the_same_size_does_not_pass_behind_a_good_one() -> None:
    """The fast path compares every packet of a run with the first, not only the first itself."""
    counters: Counter[str] = Counter()
    gate = Gate(counters)
    good, bad = packet("a/bcd", b"12"), packet("$SYS/", b"12")
    assert len(good) == len(bad)
    for _ in range(3):
        assert gate.admit(good * 3, 3) == (good * 3, 3)
        assert gate.admit(good + bad + good, 3) == (good * 2, 2)
        assert gate.admit(bad * 3, 3) == (b"", 0)
    assert counters == {"gate_closed_topic": 12}


def test_the_cache_of_topics_is_limited() -> None:
    gate = Gate(Counter())
    for number in range(40_000):
        gate.admit(packet(f"t/{number}"), 1)
    assert len(gate._good) <= 16_384


@given(st.lists(st.sampled_from([GOOD, encode("c", b"", qos=1), packet("$SYS/x", qos=1), b"\x32\x00"]), min_size=1))
def test_the_fast_path_agrees_with_the_slow_path(packets: list[bytes]) -> None:
    counters: Counter[str] = Counter()
    gate = Gate(counters)
    first, _ = admitted(*packets, gate=gate)
    again, _ = admitted(*packets, gate=gate)
    assert first == again == [one for one in packets if one in (GOOD, encode("c", b"", qos=1))]
