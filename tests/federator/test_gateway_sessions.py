"""The store of sessions that gateways must find again."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hanse.errors import RemoteError
from hanse.federator import gateway_sessions
from hanse.federator.gateway_sessions import CONNECTED_S, GatewaySessions
from hanse.federator.gateways import Gateways
from hanse.request_channel import Answer, Request, RequestChannel

FILTERS = [["a/#", 1, 0x05, 7]]


class Store:
    """A store with a clock that tests set; each call is one request."""

    def __init__(self, path: Path) -> None:
        self._runner = asyncio.Runner()
        self.now = 1_000.0
        self.counters: Counter[str] = Counter()
        self.path = path / "sessions.db"
        self.open()

    def open(self) -> None:
        gateways = Gateways(1)
        self.store = GatewaySessions(self.path, gateways, self.counters, lambda: self.now)
        self._offers: dict[str, Callable[[Any, Request], Awaitable[Answer]]] = gateways._offers  # type: ignore[assignment]

    def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        return self._runner.run(self._ask(kind, fields)).fields

    async def _ask(self, kind: str, fields: dict[str, Any]) -> Answer:
        return await self._offers[kind](None, Request(RequestChannel({}), 1, kind, fields, b""))

    def close(self) -> None:
        self.store.close()
        self._runner.close()

    def put(
        self, client: str, version: int, broker: str = "a", expiry_s: int | None = 60, connected: bool = True
    ) -> int:
        row = [client, version, broker, expiry_s, connected, FILTERS]
        return int(self.ask("session_put", rows=[row])["refused"])

    def brokers(self, *clients: str) -> list[str]:
        return [row[2] for row in self.ask("session_get", clients=list(clients))["rows"]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.close()


def test_the_newest_record_is_found_also_after_a_restart(store: Store) -> None:
    assert store.brokers("c1") == []
    assert not store.path.exists(), "a question makes no file"
    store.put("c1", 5, "a")
    store.put("c1", 4, "old")
    store.put("c2", 1, "b")
    store.store.close()
    store.open()
    assert store.brokers("c1", "c2", "c3") == ["a", "b"]
    (row,) = store.ask("session_get", clients=["c1"])["rows"]
    assert row == ["c1", 5, "a", 60, True, FILTERS]


def test_a_record_ends_with_its_session(store: Store) -> None:
    store.put("gone", 1, expiry_s=60, connected=False)
    store.put("here", 1, expiry_s=60, connected=True)
    store.put("never", 1, expiry_s=None, connected=False)
    store.put("ended", 1)
    store.put("ended", 2, expiry_s=0)
    assert store.brokers("gone", "here", "never", "ended") == ["a"] * 3
    store.now += 61
    assert store.brokers("gone", "here", "never") == ["a"] * 2
    store.now += CONNECTED_S
    assert store.brokers("gone", "here", "never") == ["a"]


def test_records_are_bounded_and_what_is_refused_is_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_sessions, "ROWS_MAX", 2)
    assert [store.put(client, 1) for client in ("a", "b", "c")] == [0, 0, 1]
    assert store.put("a", 2) == 0, "a known one is replaced"
    assert store.counters["gateway_sessions_refused"] == 1
    monkeypatch.setattr(gateway_sessions, "ROW_BYTES_MAX", 10)
    assert store.put("a", 3) == 1
    # Rows that have ended make place.
    store.now += CONNECTED_S * 2
    monkeypatch.undo()
    monkeypatch.setattr(gateway_sessions, "ROWS_MAX", 2)
    assert store.put("d", 1) == 0


def test_a_damaged_file_is_put_aside(store: Store) -> None:
    store.path.write_bytes(b"no database" * 1_000)
    assert store.put("c", 1) == 0
    assert store.brokers("c") == ["a"]
    assert list(store.path.parent.glob("*.damaged*"))


@pytest.mark.parametrize("row", [[], ["c", 1, "a", -1, True, []], ["c", "1", "a", 1, True, []], "row"])
def test_malformed_rows_are_refused(store: Store, row: object) -> None:
    with pytest.raises(RemoteError):
        store.ask("session_put", rows=[row])
    with pytest.raises(RemoteError):
        store.ask("session_get", clients="c")
