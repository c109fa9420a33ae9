"""HTTP answers, good and bad, in memory; and the order of the managers that are asked."""

import asyncio
import json
from typing import Any

import pytest

from hanse.errors import LocalError, Unavailable
from hanse.federator import manager_client
from hanse.federator.manager_client import BODY_BYTES_MAX, ManagerClient, ManagerRefused, parse_manager
from hanse.http_address import HttpAddress


def answer(data: bytes) -> tuple[int, bytes]:
    async def run() -> tuple[int, bytes]:
        reader = asyncio.StreamReader(limit=manager_client.HEAD_BYTES_MAX)
        reader.feed_data(data)
        reader.feed_eof()
        return await manager_client._read_answer(reader)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\n{}and what follows",
        b"HTTP/1.1 200\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\nTrailer: x\r\n\r\n",
    ],
)
def test_a_body_ends_by_length_by_chunks_or_with_the_connection(data: bytes) -> None:
    assert answer(data) == (200, b"{}")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
)
def test_a_malformed_answer_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)):
        answer(data)


def test_addresses_are_parsed_with_their_ports() -> None:
    assert parse_manager("http://m") == HttpAddress("m", 80, False)
    assert parse_manager("https://m/") == HttpAddress("m", 443, True)
    assert str(parse_manager("https://[::1]:8443/hanse/")) == "https://[::1]:8443/hanse"
    assert parse_manager("m:80") == HttpAddress("m", 80, False)
    for bad in ("m", "mqtt://m", "http://", "http://u:p@m", "http://m:99999", "http://m/?x", "http://a b"):
        with pytest.raises(LocalError):
            parse_manager(bad)


class Managers:
    """Replacement of the network: the answer of each manager, and the managers that were asked."""

    def __init__(self, said: dict[str, tuple[int, dict[str, Any]] | None]) -> None:
        self.said = said
        self.asked: list[str] = []

    def client(self, monkeypatch: pytest.MonkeyPatch, *urls: str) -> ManagerClient:
        async def ask_one(_: ManagerClient, address: HttpAddress, *__: object) -> tuple[int, dict[str, Any]]:
            self.asked.append(str(address))
            found = self.said.get(str(address))
            if found is None:
                raise Unavailable(f"{address} is away.")
            return found

        monkeypatch.setattr(ManagerClient, "_ask_one", ask_one)
        return ManagerClient(urls)


def ask(client: ManagerClient) -> dict[str, Any]:
    return asyncio.run(client.ask("GET", "/x", shown="secret", timeout_s=1))


def test_the_leader_that_a_standby_names_is_asked_and_then_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    managers = Managers({"http://a:1": (503, {"leader": "http://b:1"}), "http://b:1": (200, {"x": 1})})
    client = managers.client(monkeypatch, "http://a:1")
    assert ask(client) == {"x": 1}
    assert ask(client) == {"x": 1}
    assert managers.asked == ["http://a:1", "http://b:1", "http://b:1"]
    assert client.address == "http://b:1"


def test_the_next_manager_is_asked_if_one_is_away_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    managers = Managers({"http://b:1": (503, {"leader": "http://a:1"})})
    client = managers.client(monkeypatch, "http://a:1", "http://b:1", "http://c:1")
    with pytest.raises(Unavailable, match=r"a:1 is away.*b:1 answered 503.*c:1 is away"):
        ask(client)
    assert managers.asked == ["http://a:1", "http://b:1", "http://c:1"]


def test_a_refusal_is_reported_with_its_reason_and_no_other_manager_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    managers = Managers({"http://a:1": (403, {"detail": "was revoked"})})
    with pytest.raises(ManagerRefused, match="403: was revoked") as caught:
        ask(managers.client(monkeypatch, "http://a:1", "http://b:1"))
    assert caught.value.status == 403
    assert managers.asked == ["http://a:1"]


@pytest.mark.parametrize("leader", ["http://evil:1", 7, "not an address", None])
def test_attack_a_leader_without_tls_is_not_followed_from_https(
    monkeypatch: pytest.MonkeyPatch, leader: object
) -> None:
    managers = Managers({"https://a:1": (503, {"leader": leader}), "http://evil:1": (200, {})})
    with pytest.raises(Unavailable):
        ask(managers.client(monkeypatch, "https://a:1"))
    assert managers.asked == ["https://a:1"]


def test_an_answer_that_is_not_an_object_is_not_from_a_manager() -> None:
    address = parse_manager("http://a:1")
    assert manager_client._read_json(address, 200, json.dumps({"a": 1}).encode()) == {"a": 1}
    assert manager_client._read_json(address, 502, b"<html>") == {}
    for body in (b"<html>", b"[]", b"[" * 100_000):
        with pytest.raises(Unavailable, match="is it a topology manager"):
            manager_client._read_json(address, 200, body)
