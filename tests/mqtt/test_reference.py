"""Server References are text from a peer: parsed strictly, and written in a form that parses again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import LocalError, RemoteError
from hanse.mqtt.reference import REFERENCES_MAX, Reference, format_reference, parse_references


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("myserver.example.org", "myserver.example.org", None),
        ("myserver.example.org:8883", "myserver.example.org", 8883),
        ("plant_7.local:1", "plant_7.local", 1),
        ("10.10.151.22:8883", "10.10.151.22", 8883),
        ("[fe80::9610:3eff:fe1c]:1883", "fe80::9610:3eff:fe1c", 1883),
        ("[::1]", "::1", None),
        ("::1", "::1", None),
        ("localhost.", "localhost.", None),
    ],
)
def test_each_form_of_the_specification_is_read(text: str, host: str, port: int | None) -> None:
    assert parse_references(text) == [Reference(host, port)]


def test_several_references_keep_their_order() -> None:
    assert parse_references("a:1  [::1]:2 c") == [Reference("a", 1), Reference("::1", 2), Reference("c")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        " ".join(["a"] * (REFERENCES_MAX + 1)),
        "a:0",
        "a:65536",
        "a:+1",
        "a:1 b:",
        "a:\N{ARABIC-INDIC DIGIT ONE}",
        "user:secret@host:1883",
        "mqtt://host:1883",
        "_mqtt._tcp.example.org",
        "host/path",
        "host\0",
        "host\r\nx",
        "-a",
        "h\N{CYRILLIC SMALL LETTER O}st:1",
        "a" * 254,
        "[::1",
        "[::1]x",
        "[::1]:",
        "[host]:1",
        "[fe80::1%eth0]:1",
        "::1%lo",
    ],
)
def test_an_invalid_reference_is_refused_with_a_short_message(text: str) -> None:
    with pytest.raises(RemoteError) as refused:
        parse_references(text)
    assert "expected" in str(refused.value)
    assert len(str(refused.value)) < 600


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_references(text)
    except RemoteError:
        return
    assert parse_references(" ".join(map(str, found))) == found


@given(st.sampled_from(["broker-1.example.org", "127.0.0.1", "::1"]), st.integers(1, 65_535))
def test_written_references_parse_again(host: str, port: int) -> None:
    assert parse_references(format_reference(host, port)) == [Reference(host, port)]


@pytest.mark.parametrize(("host", "port"), [("", 1), ("a b", 1), ("a", 0), ("a", 65_536), ("a/b", 1), ("a:b", 1)])
def test_an_impossible_reference_is_a_local_error(host: str, port: int) -> None:
    with pytest.raises(LocalError, match="do not make a Server Reference"):
        format_reference(host, port)
