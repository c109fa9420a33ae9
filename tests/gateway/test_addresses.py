import pytest

from hanse.errors import LocalError
from hanse.gateway.addresses import parse_broker, parse_brokers, parse_dial, parse_listen
from hanse.gateway.settings import GatewaySettings
from hanse.settings import read_settings


@pytest.mark.parametrize(
    ("text", "host", "port", "url"),
    [
        ("mqtt://127.0.0.1:1883", "127.0.0.1", 1883, "mqtt://127.0.0.1:1883"),
        ("mqtts://[::1]", "::1", 8883, "mqtts://[::1]:8883"),
        ("ws://localhost:8083", "localhost", 8083, "ws://localhost:8083/mqtt"),
        ("wss://0.0.0.0:8084/other?mode=auto", "0.0.0.0", 8084, "wss://0.0.0.0:8084/other"),
        ("mqtt://127.0.0.1:0", "127.0.0.1", 0, "mqtt://127.0.0.1:0"),
    ],
)
def test_reads_listeners(text: str, host: str, port: int, url: str) -> None:
    found = parse_listen(text)
    assert (found.host, found.port, found.url()) == (host, port, url)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:1883", "http://a:1", "mqtt://", "mqtt://a:1/x", "ws://a?mode=x", "mqtt://a:x"]
)
def test_refuses_other_listeners(text: str) -> None:
    with pytest.raises(LocalError, match="write mqtt://HOST:PORT"):
        parse_listen(text)


def test_reads_brokers() -> None:
    one = parse_broker("a=mqtts://10.0.0.1?site=kiel&reference=a.example:8883&federator=tls://10.0.0.1:9090")
    assert one.as_tuple() == ("a", "mqtts://10.0.0.1", "kiel", "a.example:8883", "tls://10.0.0.1:9090")
    assert str(parse_dial(one.url)) == "mqtts://10.0.0.1:8883"
    assert parse_broker("mqtt://h:1").id == "mqtt://h:1"
    assert parse_dial("unix:/run/b.sock").socket_path == "/run/b.sock"
    assert str(parse_dial("unix:///run/b.sock")) == "unix:/run/b.sock"


@pytest.mark.parametrize(
    "text",
    ["a=http://h", "a=mqtt://", "a=unix:run", "a=mqtt://h:1?x=1", "a b=mqtt://h:1", "a=mqtt://h:0", "a=mqtt://h:1/p"],
)
def test_refuses_other_brokers(text: str) -> None:
    with pytest.raises(LocalError):
        parse_broker(text)


def test_a_login_in_a_brokers_address_is_refused_and_not_shown() -> None:
    with pytest.raises(LocalError, match="bring their own credentials") as caught:
        parse_broker("a=mqtt://anna:secret@h:1883")
    assert "secret" not in str(caught.value)


def test_an_id_belongs_to_one_broker() -> None:
    with pytest.raises(LocalError, match="the id 'a'"):
        parse_brokers(("a=mqtt://h:1", "a=mqtt://h:2"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, "knows no brokers"),
        ({"broker": ["a=mqtt://h:1"], "manager": ["http://m:1"]}, "give one of them"),
        ({"broker": ["a=mqtt://h:1"], "listen": ["mqtt://0.0.0.0:1883"]}, "--insecure"),
        ({"broker": ["a=mqtt://h:1"], "listen": ["mqtts://127.0.0.1:1883"]}, "needs a certificate"),
        ({"broker": ["a=mqtt://h:1"], "site": "kiel"}, "site=kiel"),
        ({"broker": ["a=mqtt://h:1?federator=tcp://10.0.0.1:7"]}, "without TLS"),
        ({"broker": ["a=mqtt://h:1"], "subscribe_barrier": True}, "names its federator"),
        ({"broker": ["a=mqtt://h:1"], "policy": "best"}, "one of hash"),
        ({"broker": ["a=mqtt://h:1"], "proxy_from": ["10.0.0.1/8"]}, "host bits set"),
    ],
)
def test_settings_that_do_not_fit_are_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(LocalError, match=words):
        read_settings(GatewaySettings, section="gateway", flags=flags)
