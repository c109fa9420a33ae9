"""Publications that come back through a foreign bridge are cancelled, once for each time that they went out."""

import pytest

from hanse.federator import echoes
from hanse.federator.echoes import DELIVERED_S, SENT_S, EchoMemory
from hanse.mqtt.publication import encode

PACKET = encode("t", b"x")


def test_a_delivery_cancels_one_equal_arrival() -> None:
    memory = EchoMemory()
    memory.remember(0.0, PACKET)
    assert memory.is_echo(0.1, PACKET)
    assert not memory.is_echo(0.2, PACKET)


def test_a_sent_publication_cancels_one_equal_arrival() -> None:
    memory = EchoMemory()
    assert not memory.is_echo(0.0, PACKET)
    assert memory.is_echo(0.1, PACKET)


def test_a_publication_from_a_joined_federator_under_another_id_is_not_delivered_again() -> None:
    """The bridge was quicker than the link: the neighbour took the bridge's duplicate for a new publication."""
    memory = EchoMemory()
    assert not memory.is_echo(0.0, PACKET)
    other = encode("t", b"y")
    assert memory.without_echoes(0.1, PACKET + other + PACKET) == (other + PACKET, 2)
    memory.remember(0.2, other + PACKET)
    assert memory.without_echoes(0.3, PACKET + other) == (b"", 0)


def test_echoes_at_the_host_and_on_links_are_counted_separately() -> None:
    memory = EchoMemory()
    memory.remember(0.0, PACKET)
    assert memory.without_echoes(0.1, PACKET) == (b"", 0)
    assert memory.is_echo(0.2, PACKET)


def test_a_bridge_that_changes_qos_or_properties_does_not_hide_an_echo() -> None:
    memory = EchoMemory()
    memory.remember(0.0, encode("t", b"x", qos=2, user_properties=[("a", "b")]))
    assert memory.is_echo(0.1, PACKET)


def test_every_packet_of_a_run_is_remembered() -> None:
    memory = EchoMemory()
    others = [encode("t", b"%d" % number) for number in range(5)]
    memory.remember(0.0, b"".join(others))
    assert all(memory.is_echo(0.1, other) for other in others)


def test_an_entry_cancels_as_many_arrivals_as_it_has_echoes() -> None:
    memory = EchoMemory()
    memory.echoes = 3
    memory.remember(0.0, PACKET)
    assert [memory.is_echo(0.1, PACKET) for _ in range(4)] == [True, True, True, False]


def test_another_topic_or_payload_is_no_echo() -> None:
    memory = EchoMemory()
    memory.remember(0.0, PACKET)
    assert not memory.is_echo(0.1, encode("u", b"x"))
    assert not memory.is_echo(0.1, encode("t", b"y"))


@pytest.mark.parametrize("is_delivered", [True, False])
def test_an_entry_ends_with_its_span(is_delivered: bool) -> None:
    memory = EchoMemory()
    if is_delivered:
        memory.remember(0.0, PACKET)
    else:
        memory.is_echo(0.0, PACKET)
    assert not memory.is_echo((DELIVERED_S if is_delivered else SENT_S) + 0.1, PACKET)


def test_a_used_entry_does_not_shorten_the_lifetime_of_a_later_equal_one() -> None:
    memory = EchoMemory()
    memory.remember(0.0, PACKET)
    assert memory.is_echo(0.1, PACKET)
    memory.remember(DELIVERED_S - 1, PACKET)
    assert memory.is_echo(DELIVERED_S + 1, PACKET)


def test_a_host_that_only_receives_is_remembered_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echoes, "ENTRIES_MAX", 10)
    memory = EchoMemory()
    for number in range(100):
        memory.remember(0.0, encode("t", b"%d" % number))
    assert len(memory._delivered) == 10
    assert len(memory._delivered._counts) == 10
    assert memory.is_echo(0.1, encode("t", b"99"))
    assert not memory.is_echo(0.1, encode("t", b"1"))


def test_nothing_is_kept_beyond_its_span() -> None:
    memory = EchoMemory()
    for number in range(100):
        memory.remember(float(number), encode("t", b"%d" % number))
        memory.is_echo(float(number), encode("u", b"%d" % number))
    assert len(memory._delivered) <= DELIVERED_S + 1
    assert len(memory._sent) <= SENT_S + 1
    assert not memory._delivered._taken
