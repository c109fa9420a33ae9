"""Valid and refused addresses of HTTP services."""

import pytest

from hanse.errors import LocalError
from hanse.http_address import HttpAddress, parse


def read(url: str, *, takes_query: bool = False) -> HttpAddress:
    return parse(url, "the address", "write http://HOST:PORT", takes_query=takes_query)


@pytest.mark.parametrize(
    ("url", "expected", "text"),
    [
        ("http://m", HttpAddress("m", 80, False), "http://m:80"),
        ("m:80", HttpAddress("m", 80, False), "http://m:80"),
        ("127.0.0.1:21981/a", HttpAddress("127.0.0.1", 21981, False, "/a"), "http://127.0.0.1:21981/a"),
        ("[::1]:21981", HttpAddress("::1", 21981, False), "http://[::1]:21981"),
        ("https://m/", HttpAddress("m", 443, True), "https://m:443"),
        ("HTTP://m:8080", HttpAddress("m", 8080, False), "http://m:8080"),
        ("https://[::1]:8443/a/b/", HttpAddress("::1", 8443, True, "/a/b/"), "https://[::1]:8443/a/b/"),
    ],
)
def test_an_address_is_read_with_its_port_and_path(url: str, expected: HttpAddress, text: str) -> None:
    assert read(url) == expected
    assert str(expected) == text


def test_a_query_is_read_if_accepted_and_never_shown() -> None:
    address = read("http://m:1/list?key=secret", takes_query=True)
    assert address == HttpAddress("m", 1, False, "/list", "key=secret")
    assert "secret" not in str(address)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("m", "has no http:// or https:// and host"),
        ("m:80?x", "has no http:// or https:// and host"),
        ("user:1@m:80", "has no http:// or https:// and host"),
        ("mqtt://m", "has no http:// or https:// and host"),
        ("http://", "has no http:// or https:// and host"),
        ("http://a b", "has no http:// or https:// and host"),
        ("http://m/a b", "has no http:// or https:// and host"),
        ("http://m/\x01", "has no http:// or https:// and host"),
        ("http://m:99999", "cannot be read"),
        ("http://[::1", "cannot be read"),
        ("http://user:secret@m", "has more than a host, a port and a path"),
        ("http://m/?secret", "has more than a host, a port and a path"),
        ("http://m/#secret", "has more than a host, a port and a path"),
    ],
)
def test_an_invalid_address_is_refused_with_the_expected_form(url: str, words: str) -> None:
    with pytest.raises(LocalError) as caught:
        read(url)
    assert str(caught.value).startswith("the address ")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; write http://HOST:PORT.")
    assert "user" not in str(caught.value)


def test_a_login_is_refused_even_if_a_query_is_accepted() -> None:
    with pytest.raises(LocalError) as caught:
        read("http://user:secret@m/?x", takes_query=True)
    assert "secret" not in str(caught.value)
