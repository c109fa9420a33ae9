"""The delays of the TD-MQTT paper, equations 1 to 7, as functions.

A master broker (here: a gateway) discovers brokers and topics and sends each subscriber to the broker of its topic. The
equations predict how long that takes from the sizes of packets, the throughput of the network, a timeout and the number
of brokers. All times are in seconds, sizes in bytes and throughput in bits per second.

Rules:

1. Nothing is measured and nothing is assumed: every figure comes from the caller, because the paper publishes none.
2. A value that is outside the equations' domain is refused, above all a load of 1 or more in equation 2. The queue of
   such a broker grows without end, and the equation would give a negative time.
"""

import math
from dataclasses import dataclass, fields

from hanse.errors import LocalError


@dataclass(frozen=True, slots=True)
class PacketSizes:
    """Size of each packet of the paper's procedures, in bytes with all headers that the throughput pays for."""

    connect_bytes: int
    connack_bytes: int
    subscribe_bytes: int
    suback_bytes: int
    publish_bytes: int
    puback_bytes: int
    disconnect_bytes: int


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """Time that each packet of the paper's procedures takes: T_C, T_CA, T_S, T_SA, T_P, T_PA and T_D."""

    connect_s: float
    connack_s: float
    subscribe_s: float
    suback_s: float
    publish_s: float
    puback_s: float
    disconnect_s: float

    def __post_init__(self) -> None:
        """Refuse a negative time."""
        for field in fields(self):
            _at_least(field.name, getattr(self, field.name), 0)


def message_time_s(size_bytes: float, throughput_bits_per_s: float) -> float:
    """Return the time to transmit a message (equation 1, T_message).

    Raises:
        LocalError: The size is negative, or the throughput is not above 0.
    """
    _at_least("size_bytes", size_bytes, 0)
    _above_zero("throughput_bits_per_s", throughput_bits_per_s)
    return size_bytes * 8 / throughput_bits_per_s


def packet_times(sizes: PacketSizes, throughput_bits_per_s: float) -> PacketTimes:
    """Return the time of each packet on a network of this throughput (equation 1 for each packet)."""
    return PacketTimes(
        *(message_time_s(getattr(sizes, field.name), throughput_bits_per_s) for field in fields(PacketSizes))
    )


def broker_time_s(arrivals_per_s: float, services_per_s: float) -> float:
    """Return the time that a message spends in a broker, waiting and served (equation 2, T_MR).

    The broker is an M/M/1 queue.

    Args:
        arrivals_per_s: λ, messages that arrive per second.
        services_per_s: µ, messages that the broker can serve per second; D = 1 / µ.

    Raises:
        LocalError: The load λD is 1 or more, or a rate is out of range.
    """
    _at_least("arrivals_per_s", arrivals_per_s, 0)
    _above_zero("services_per_s", services_per_s)
    load = arrivals_per_s / services_per_s
    if load >= 1:
        raise LocalError(
            f"{arrivals_per_s:g} messages per second at a broker that serves {services_per_s:g} are a load of "
            f"{load:g}; expected less than 1. Lower the rate of arrivals, or raise the rate of service."
        )
    return 1 / services_per_s / (1 - load)


def topic_discovery_s(times: PacketTimes) -> float:
    """Return the time to discover the topics of one broker (equation 3, T_TD): seven packets (figure 1)."""
    return (
        times.connect_s
        + times.connack_s
        + times.subscribe_s
        + times.suback_s
        + times.publish_s
        + times.puback_s
        + times.disconnect_s
    )


def broker_discovery_s(brokers: int, timeout_s: float, tcp_s: float, tcp_acknowledged_s: float) -> float:
    """Return the time to discover the brokers, one after another (equation 4, T_BD).

    The equation assumes that every other address answers only at the timeout.

    Args:
        brokers: N.
        timeout_s: How long the master broker waits for one address.
        tcp_s: T_TCP, time of a request for a TCP connection.
        tcp_acknowledged_s: T_TCPA, time of its acknowledgement.
    """
    _at_least("brokers", brokers, 0)
    _at_least("timeout_s", timeout_s, 0)
    _at_least("tcp_s", tcp_s, 0)
    _at_least("tcp_acknowledged_s", tcp_acknowledged_s, 0)
    return brokers / 2 * timeout_s + brokers * (tcp_s + tcp_acknowledged_s)


def topic_change_s(times: PacketTimes) -> float:
    """Return the time until a subscriber follows a topic to another broker (equation 5, T_change; figure 4)."""
    return topic_discovery_s(times) + subscription_s(times)


def subscription_s(times: PacketTimes) -> float:
    """Return the time of a transparent subscription (equation 6, T_TTS; figure 2).

    The subscriber connects and subscribes twice, at the master broker and at the broker of the topic. The master broker
    sends one DISCONNECT.
    """
    at_each = times.connect_s + times.connack_s + times.subscribe_s + times.suback_s
    return 2 * at_each + times.disconnect_s


def broker_change_s(
    times: PacketTimes, brokers: int, timeout_s: float, tcp_s: float, tcp_acknowledged_s: float
) -> float:
    """Return the time until a subscriber has replaced a lost broker (equation 7, T_brokerChange; figure 3).

    The arguments are those of `broker_discovery_s`. The subscriber waits for the same timeout before it gives up.
    """
    return (
        timeout_s
        + subscription_s(times)
        + broker_discovery_s(brokers, timeout_s, tcp_s, tcp_acknowledged_s)
        + brokers * topic_discovery_s(times)
    )


def _at_least(name: str, value: float, least: float) -> None:
    if not (math.isfinite(value) and value >= least):
        raise LocalError(f"{name} is {value}; expected a number of at least {least:g}.")


def _above_zero(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise LocalError(f"{name} is {value}; expected a number above 0.")
