"""The simulated host broker and its packets."""

import pytest

from hanse.errors import RemoteError
from hanse.protocol.packets import check_body, topic_of
from hanse.sim.host import Client, HostBroker, matches
from hanse.sim.packets import publish_packet, read_packets


@pytest.mark.parametrize(
    ("topic_filter", "topic", "is_match"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("+/+", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/b", True),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
        ("a/+/c", "a/b/d", False),
        ("+", "", True),
    ],
)
def test_filters_match_as_mqtt_says(topic_filter: str, topic: str, is_match: bool) -> None:
    assert matches(topic_filter, topic) is is_match


def test_interest_begins_with_the_first_client_and_ends_with_the_last() -> None:
    host = HostBroker()
    anna, ben = Client("anna", 0), Client("ben", 0)
    assert host.subscribe(anna, "a/+", 1.0)
    assert not host.subscribe(anna, "a/+", 2.0)
    assert not host.subscribe(ben, "a/+", 2.0)
    assert host.interest == {"a/+": 2}
    assert not host.unsubscribe(anna, "a/+")
    assert not host.unsubscribe(anna, "a/+")
    assert host.unsubscribe(ben, "a/+")
    assert host.clients == {}


def test_a_client_with_overlapping_filters_gets_a_message_once_and_is_entitled_since_the_earlier_one() -> None:
    host = HostBroker()
    anna = Client("anna", 0)
    host.subscribe(anna, "a/#", 1.0)
    host.subscribe(anna, "a/b", 3.0)
    assert host.receivers("a/b") == [anna]
    assert anna.wants_since("a/b") == 1.0
    assert anna.wants_since("b") is None


def test_the_federator_hears_only_what_it_subscribed_to() -> None:
    host = HostBroker()
    assert not host.tells_federator("a/b")
    host.federator_filters.add("a/+")
    assert host.tells_federator("a/b")
    assert not host.tells_federator("b")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("text", [b"", b"x" * 300])
def test_packets_are_publish_packets_that_the_protocol_can_read(qos: int, text: bytes) -> None:
    one, other = publish_packet("port/ä", qos, 7, text), publish_packet("b", qos, 8)
    check_body(one + other, 2, qos)
    assert topic_of(one) == "port/ä"
    assert list(read_packets(one + other)) == [(7, "port/ä", one), (8, "b", other)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x20\x02\0\0", "packet type 2"),
        (b"\x30", "broken remaining length"),
        (b"\x30\xff\xff\xff\xff\x01", "broken remaining length"),
        (publish_packet("a", 1, 1)[:-1], "ends inside the packet"),
    ],
)
def test_a_body_with_incomplete_packets_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(RemoteError, match=message):
        list(read_packets(body))
