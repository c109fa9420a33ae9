import pytest

from hanse.errors import LocalError
from hanse.mqtt.urls import Address, parse


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://broker", Address("broker", 1883)),
        ("tcp://10.0.0.1:1884", Address("10.0.0.1", 1884)),
        ("mqtts://b.example", Address("b.example", 8883, True)),
        ("SSL://b:9/", Address("b", 9, True)),
        ("mqtt://[::1]:1883", Address("::1", 1883)),
        ("mqtt://me:p%40ss@b", Address("b", 1883, False, "me", "p@ss")),
    ],
)
def test_an_address_is_read(url: str, address: Address) -> None:
    assert parse(url) == address


def test_an_address_shows_itself_without_its_password() -> None:
    address = parse("mqtts://me:topsecret@[::1]:99")
    assert str(address) == "mqtts://[::1]:99"
    assert "topsecret" not in repr(address)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("broker:1883", "no known scheme"),
        ("http://broker", "no known scheme"),
        ("", "no known scheme"),
        ("mqtt://", "names no host"),
        ("mqtt://:1883", "names no host"),
        ("mqtt://b:0", "port 0"),
        ("mqtt://b:65536", "cannot be read"),
        ("mqtt://b:x", "cannot be read"),
        ("mqtt://b/path", "more than host and port"),
        ("mqtt://b?x=1", "more than host and port"),
        ("mqtt://a b", "names no host"),
        ("mqtt://[::1", "cannot be read"),
        ("htp://me:topsecret@b", "no known scheme"),
    ],
)
def test_a_wrong_address_is_reported_in_one_sentence(url: str, words: str) -> None:
    with pytest.raises(LocalError, match=words) as caught:
        parse(url)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address", "shown"),
    [
        ("ws://b", Address("b", 80, path="/mqtt"), "ws://b:80/mqtt"),
        ("wss://b/", Address("b", 443, True, path="/mqtt"), "wss://b:443/mqtt"),
        ("WSS://me:pw@b:1/x?key=topsecret", Address("b", 1, True, "me", "pw", "/x?key=topsecret"), "wss://b:1/x"),
    ],
)
def test_a_websocket_has_a_path_and_hides_its_query(url: str, address: Address, shown: str) -> None:
    found = parse(url, may_be_websocket=True)
    assert found == address
    assert str(found) == shown
    assert "topsecret" not in repr(found)
    with pytest.raises(LocalError, match="no known scheme"):
        parse(url)


@pytest.mark.parametrize("url", ["ws://b/x#y", "ws://b/a b", "ws://b/\u00e9", "ws://b/x\r\nHost: evil"])
def test_attack_path_cannot_hold_another_request_line(url: str) -> None:
    try:
        address = parse(url, may_be_websocket=True)
    except LocalError:
        return
    assert address.path.isascii()
    assert address.path.isprintable()
    assert " " not in address.path
