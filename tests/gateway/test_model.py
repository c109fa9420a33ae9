"""Equations 1 to 7 of the TD-MQTT paper against values computed by hand.

The packets on a link of 1 Mbit/s, where one byte takes 8 µs:

    CONNECT    50 bytes  0.400 ms        PUBLISH    120 bytes  0.960 ms
    CONNACK    25 bytes  0.200 ms        PUBACK      25 bytes  0.200 ms
    SUBSCRIBE  40 bytes  0.320 ms        DISCONNECT  30 bytes  0.240 ms
    SUBACK     25 bytes  0.200 ms
"""

import math

import pytest

from hanse.errors import LocalError
from hanse.gateway import model

SIZES = model.PacketSizes(
    connect_bytes=50,
    connack_bytes=25,
    subscribe_bytes=40,
    suback_bytes=25,
    publish_bytes=120,
    puback_bytes=25,
    disconnect_bytes=30,
)
TIMES = model.packet_times(SIZES, 1e6)
exactly = pytest.approx


def test_equation_1_message_time_is_size_by_throughput() -> None:
    # 125 bytes are 1,000 bits; at 1 Mbit/s they take 1 ms.
    assert model.message_time_s(125, 1e6) == exactly(0.001)
    assert model.message_time_s(0, 1e6) == 0
    assert model.PacketTimes(0.0004, 0.0002, 0.00032, 0.0002, 0.00096, 0.0002, 0.00024) == TIMES


def test_equation_2_broker_time_grows_with_the_load() -> None:
    # µ = 1,000/s, so D = 1 ms. λ = 0: 1 ms / 1. λ = 500/s: 1 ms / 0.5 = 2 ms. λ = 900/s: 1 ms / 0.1 = 10 ms.
    assert model.broker_time_s(0, 1_000) == exactly(0.001)
    assert model.broker_time_s(500, 1_000) == exactly(0.002)
    assert model.broker_time_s(900, 1_000) == exactly(0.010)


@pytest.mark.parametrize("arrivals_per_s", [1_000, 1_000.0001, 5_000])
def test_a_load_of_one_or_more_is_refused(arrivals_per_s: float) -> None:
    with pytest.raises(LocalError, match="expected less than 1"):
        model.broker_time_s(arrivals_per_s, 1_000)


def test_equation_3_topic_discovery_is_seven_packets() -> None:
    # 0.400 + 0.200 + 0.320 + 0.200 + 0.960 + 0.200 + 0.240 ms = 2.520 ms
    assert model.topic_discovery_s(TIMES) == exactly(0.00252)


def test_equation_4_broker_discovery_waits_for_every_other_address() -> None:
    # N = 10, TimeOut = 500 ms, T_TCP = 0.32 ms, T_TCPA = 0.48 ms: 5 x 500 ms + 10 x 0.8 ms = 2,508 ms
    assert model.broker_discovery_s(10, 0.5, 0.00032, 0.00048) == exactly(2.508)
    # N = 5: 2.5 x 500 ms + 5 x 0.8 ms = 1,254 ms
    assert model.broker_discovery_s(5, 0.5, 0.00032, 0.00048) == exactly(1.254)
    assert model.broker_discovery_s(0, 0.5, 0.00032, 0.00048) == 0


def test_equation_5_a_moved_topic_costs_a_discovery_and_a_subscription() -> None:
    # T_TD 2.520 ms + T_TTS 2.480 ms = 5.000 ms
    assert model.topic_change_s(TIMES) == exactly(0.005)


def test_equation_6_a_transparent_subscription_connects_twice() -> None:
    # 2 x (0.400 + 0.200 + 0.320 + 0.200) + 0.240 ms = 2 x 1.120 + 0.240 = 2.480 ms
    assert model.subscription_s(TIMES) == exactly(0.00248)


def test_equation_7_a_lost_broker_costs_a_timeout_and_both_discoveries() -> None:
    # 500 ms + 2.480 ms + 2,508 ms + 10 x 2.520 ms = 3,035.680 ms
    assert model.broker_change_s(TIMES, 10, 0.5, 0.00032, 0.00048) == exactly(3.03568)


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf])
def test_values_outside_the_domain_are_refused(wrong: float) -> None:
    with pytest.raises(LocalError, match="size_bytes"):
        model.message_time_s(wrong, 1e6)
    with pytest.raises(LocalError, match="throughput_bits_per_s"):
        model.message_time_s(1, wrong if wrong != -1 else 0)
    with pytest.raises(LocalError, match="services_per_s"):
        model.broker_time_s(1, wrong)
    with pytest.raises(LocalError, match="timeout_s"):
        model.broker_discovery_s(1, wrong, 0, 0)
    with pytest.raises(LocalError, match="puback_s"):
        model.PacketTimes(0, 0, 0, 0, 0, wrong, 0)
