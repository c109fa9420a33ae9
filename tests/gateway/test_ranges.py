"""Addresses that a scan may try."""

import pytest

from hanse.errors import LocalError
from hanse.gateway.discovery.ranges import Port, Target, parse_ports, parse_targets

PLAIN = [Port(1883)]


def hosts(*ranges: str, targets_max: int = 4096) -> list[str]:
    return [one.host for one in parse_targets(ranges, PLAIN, targets_max)]


def test_a_network_gives_its_hosts() -> None:
    assert hosts("10.0.0.0/29") == [f"10.0.0.{k}" for k in range(1, 7)]
    assert hosts("10.0.0.0/31") == ["10.0.0.0", "10.0.0.1"]
    assert hosts("10.0.0.9/32") == ["10.0.0.9"]
    assert hosts("2001:db8::/126") == ["2001:db8::1", "2001:db8::2", "2001:db8::3"]


def test_a_span_and_one_address() -> None:
    assert hosts("10.0.0.254-10.0.1.1") == ["10.0.0.254", "10.0.0.255", "10.0.1.0", "10.0.1.1"]
    assert hosts("::1", "127.0.0.1") == ["::1", "127.0.0.1"]


def test_each_port_of_each_address_is_tried_once() -> None:
    ports = parse_ports("1883, 8883/tls,1883-1884")
    assert ports == [Port(1883), Port(8883, True), Port(1884)]
    targets = parse_targets(["10.0.0.1", "10.0.0.1-10.0.0.2"], ports)
    assert len(targets) == 6
    assert [one.url for one in targets[:3]] == ["mqtt://10.0.0.1:1883", "mqtts://10.0.0.1:8883", "mqtt://10.0.0.1:1884"]
    assert Target("::1", 1883).url == "mqtt://[::1]:1883"


def test_a_range_above_the_limit_is_refused_before_it_is_listed() -> None:
    with pytest.raises(LocalError, match="would try 18446744073709551615 addresses"):
        hosts("2001:db8::/64")
    with pytest.raises(LocalError, match="would try 5080 addresses and ports; at most 4096"):
        parse_targets(["10.0.0.0/24"], parse_ports("1880-1899"))
    assert len(hosts("10.0.0.0/16", targets_max=65_534)) == 65_534


@pytest.mark.parametrize(
    "text", ["", "10.0.0.0/33", "10.0.0.1/24", "10.0.0.5-10.0.0.4", "10.0.0.1-::2", "example.org", "10.0.0.1-", "a-b"]
)
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(LocalError, match="no range of addresses"):
        hosts(text)


@pytest.mark.parametrize("text", ["", "0", "65536", "1883/ssl", "2-1", "x", "1883,", "1-2-3", "²"])
def test_an_invalid_port_is_refused(text: str) -> None:
    with pytest.raises(LocalError, match="no port"):
        parse_ports(text)
