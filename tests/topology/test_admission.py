from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.topology.admission import check_listen, is_loopback
from hanse.topology.settings import ManagerSettings, split_listen

CERTIFICATE, KEY = Path("c.pem"), Path("k.pem")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_neither_tls_nor_token(host: str) -> None:
    assert is_loopback(host)
    assert check_listen(host, None, None, require_token=False, insecure=False) is False
    assert check_listen(host, None, None, require_token=True, insecure=False) is True


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "plant.example", "::ffff:10.0.0.1"])
def test_listening_beyond_loopback_is_refused_without_tls(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(LocalError, match="--tls-certificate"):
        check_listen(host, None, None, require_token=True, insecure=False)


def test_beyond_loopback_with_tls_a_token_is_always_required() -> None:
    assert check_listen("0.0.0.0", CERTIFICATE, KEY, require_token=False, insecure=False) is True


def test_insecure_allows_plain_listening_beyond_loopback() -> None:
    assert check_listen("0.0.0.0", None, None, require_token=False, insecure=True) is False


def test_half_a_certificate_is_refused() -> None:
    with pytest.raises(LocalError, match="give both or neither"):
        check_listen("127.0.0.1", CERTIFICATE, None, require_token=False, insecure=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:8080", ("127.0.0.1", 8080)), ("[::1]:0", ("::1", 0)), ("0.0.0.0:1", ("0.0.0.0", 1))],
)
def test_a_listening_address_is_read(text: str, expected: tuple[str, int]) -> None:
    assert split_listen(text) == expected


@pytest.mark.parametrize("text", ["", "8080", ":8080", "a:", "a:x", "a:65536", "a:-1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_listen(text)


def test_settings_for_federators_have_the_names_of_their_own_settings() -> None:
    assert ManagerSettings(announcement_interval_s=0.5).handed_out()["announcement_interval"] == "500ms"
    assert ManagerSettings(health_interval_s=4.0).probe_timeout_s == 1.0
