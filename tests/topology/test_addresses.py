import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import RemoteError
from hanse.topology.addresses import ADDRESS_LENGTH_MAX, ADDRESS_PATTERN, Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:1883", Address("127.0.0.1", 1883, False)),
        ("mqtt://Broker.Example", Address("broker.example", 1883, False)),
        ("ssl://b", Address("b", 8883, True)),
        ("mqtts://[::1]:9883/", Address("::1", 9883, True)),
        ("tcp://my_host-1:1", Address("my_host-1", 1, False)),
    ],
)
def test_the_spellings_of_the_papers_and_ours_are_accepted(text: str, address: Address) -> None:
    assert parse_address(text) == address


def test_two_spellings_of_one_address_have_one_url() -> None:
    assert parse_address("tcp://B:1883").url == parse_address("mqtt://b/").url == "mqtt://b:1883"
    assert parse_address("ssl://[FE80::1]").url == "mqtts://[fe80::1]:8883"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "broker",
        "http://b:1883",
        "tcp://",
        "tcp://:1883",
        "tcp://b:0",
        "tcp://b:65536",
        "tcp://b:x",
        "tcp://b:1883/path",
        "tcp://b:1883?x=1",
        "tcp://b:1883#x",
        " tcp://b",
        "tcp://b c",
        "tcp://b\x00",
        "tcp://b\n:1883",
        "tcp://../../etc",
        "tcp://<script>",
        "tcp://[::1",
        "tcp://" + "a" * 400,
    ],
)
def test_any_other_address_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(RemoteError, match="expected tcp://host:port"):
        parse_address(text)


def test_an_address_with_a_login_is_refused_and_not_repeated() -> None:
    with pytest.raises(RemoteError) as caught:
        parse_address("tcp://admin:geheim@b:1883")
    assert "geheim" not in str(caught.value)


@given(st.from_regex(ADDRESS_PATTERN))
def test_addresses_that_match_the_documented_pattern_are_accepted(text: str) -> None:
    text = text.removesuffix("\n")
    if len(text) <= ADDRESS_LENGTH_MAX:
        parse_address(text)


@given(st.text(max_size=60) | st.from_regex(r"(tcp|mqtt|ssl|mqtts)://[^@]{0,30}", fullmatch=True))
def test_any_text_is_refused_or_an_address_that_parses_again(text: str) -> None:
    try:
        address = parse_address(text)
    except RemoteError:
        return
    assert parse_address(address.url) == address
