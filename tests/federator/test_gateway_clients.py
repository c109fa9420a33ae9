"""The register of connected clients: of two connections of one id at two brokers, the older one ends."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import RemoteError
from hanse.federator import gateway_clients
from hanse.federator.gateway_clients import CLOCK_MS, GatewayClients, Register
from hanse.federator.gateways import GatewayName, Gateways
from hanse.request_channel import Request, RequestChannel

A, B = GatewayName("a", "1", 0), GatewayName("b", "1", 0)


def register(*gone: GatewayName) -> Register:
    return Register(lambda owner: owner not in gone)


def test_the_older_of_two_connections_at_two_brokers_ends_in_either_order() -> None:
    for first, second in (((A, 1), (B, 2)), ((B, 2), (A, 1))):
        made = register()
        assert made.put(first[0], "c", first[1], first[0].gateway) is None
        assert made.put(second[0], "c", second[1], second[0].gateway) == (A, 1)
        # Told again, the older one is ended again, and never the newer one.
        assert made.put(A, "c", 1, "a") == (A, 1)
        assert made.put(B, "c", 2, "b") is None


def test_connections_of_the_same_time_are_ordered_by_the_gateway() -> None:
    for first, second in ((A, B), (B, A)):
        made = register()
        made.put(first, "c", 1, first.gateway)
        assert made.put(second, "c", 1, second.gateway) == (A, 1)


def test_nobody_is_told_of_connections_that_the_broker_itself_ends() -> None:
    made = register()
    made.put(A, "c", 1, "x")
    assert made.put(B, "c", 2, "x") is None
    # The gateway of the older one did not hear of its end, and moves it.
    assert made.put(A, "c", 1, "y") == (A, 1)


def test_a_client_that_reconnects_through_its_own_gateway_is_not_ended() -> None:
    made = register()
    made.put(A, "c", 1, "x")
    assert made.put(A, "c", 2, "y") is None
    # The end of the former connection does not remove the new one.
    made.put(A, "c", 1, "")
    assert made.put(B, "c", 3, "x") == (A, 2)
    made.put(B, "c", 3, "")
    assert made.put(A, "c", 2, "y") is None, "nobody else is connected any more"


def test_rows_of_a_gateway_that_is_gone_do_not_count() -> None:
    gone: list[GatewayName] = []
    made = Register(lambda owner: owner not in gone)
    made.put(B, "c", 9, "x")
    gone.append(B)
    assert made.put(A, "c", 1, "y") is None


def test_the_register_is_bounded_and_makes_room_from_gateways_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_clients, "ROWS_MAX", 2)
    gone: list[GatewayName] = []
    made = Register(lambda owner: owner not in gone)
    for client in ("c", "d", "e"):
        made.put(A, client, 1, "x")
    assert (len(made), made.refused) == (2, 1)
    made.put(A, "c", 2, "y")
    assert made.refused == 1, "a known one is replaced"
    gone.append(A)
    made.put(B, "e", 1, "x")
    assert (len(made), made.refused) == (1, 1)


@given(
    at=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    order=st.permutations([(who, where) for who in range(2) for where in range(2)] * 2),
    lost=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 7))),
)
def test_two_connects_at_once_leave_exactly_one_whatever_the_order(
    at: tuple[int, int], order: list[tuple[int, int]], lost: set[tuple[int, int]]
) -> None:
    """Report each of two connections twice to two federators that may restart in between; carry out what they say."""
    made = [register(), register()]
    connected = {0, 1}
    for step, (who, where) in enumerate(order):
        if (where, step) in lost:
            made[where] = register()
        # A gateway reports an ended connection no more. A federator that restarted hears of all others anew.
        for again in (0, 1) if (where, step) in lost else (who,):
            if again in connected:
                found = made[where].put((A, B)[again], "c", at[again], "xy"[again])
                if found is not None:
                    connected.discard((A, B).index(found[0]))
                    for other in made:
                        other.put(found[0], "c", found[1], "")
    assert connected == {0 if at[0] > at[1] else 1}


class Peer:
    """A gateway's connection, and what it was told."""

    def __init__(self, name: GatewayName) -> None:
        self.name = name
        self.told: list[Any] = []
        self.channel = self

    async def ask(self, kind: str, fields: dict[str, Any], *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.told.append((kind, fields["rows"]))


class Scene:
    def __init__(self) -> None:
        self.gateways = Gateways(1)
        self.counters: Counter[str] = Counter()
        self.clients = GatewayClients(self.gateways, self.counters, lambda: 1_000.0)
        self.peers = {name: Peer(name) for name in (A, B)}
        self.gateways.peers.update(self.peers)  # type: ignore[arg-type]

    async def put(self, name: GatewayName, rows: object, **fields: object) -> dict[str, Any]:
        put: Callable[..., Any] = self.gateways._offers["client_put"]
        request = Request(RequestChannel({}), 1, "client_put", {"now_ms": 1_000_000, "rows": rows, **fields}, b"")
        answer = await put(self.peers[name], request)
        await asyncio.sleep(0)
        fields_: dict[str, Any] = answer.fields
        return fields_


def test_gateways_are_told_in_the_answer_or_by_a_request() -> None:
    async def story() -> None:
        scene = Scene()
        assert await scene.put(A, [["c", 1, "x"]]) == {"ended": [], "refused": 0}
        assert await scene.put(B, [["c", 2, "y"]]) == {"ended": [], "refused": 0}
        assert scene.peers[A].told == [("client_ended", [["c", 1]])]
        assert (await scene.put(A, [["c", 1, "x"]]))["ended"] == [["c", 1]]
        assert scene.peers[B].told == []
        assert scene.counters["gateway_clients_ended"] == 2
        # A connection that begins anew has no other clients than it says.
        await scene.put(B, [], first=True)
        assert (await scene.put(A, [["c", 1, "x"]]))["ended"] == []

    asyncio.run(story())


def test_a_time_in_the_future_does_not_win() -> None:
    async def story() -> None:
        scene = Scene()
        assert (await scene.put(A, [["c", 1_000_000 + CLOCK_MS + 1, "x"]]))["refused"] == 1
        assert (await scene.put(B, [["c", 1_000_000, "y"]]))["ended"] == []
        assert scene.counters["gateway_clients_refused"] == 1

    asyncio.run(story())


@pytest.mark.parametrize("now_ms", [1_000_000 - CLOCK_MS - 1, 1_000_000 + CLOCK_MS + 1, None, True])
def test_a_gateway_with_a_wrong_clock_is_refused(now_ms: object) -> None:
    with pytest.raises(RemoteError):
        asyncio.run(Scene().put(A, [["c", 1, "x"]], now_ms=now_ms))


@pytest.mark.parametrize("rows", [None, "c", [["c", 1]], [["", 1, "x"]], [["c" * 65, 1, "x"]], [["c", "1", "x"]]])
def test_malformed_rows_are_refused(rows: object) -> None:
    with pytest.raises(RemoteError):
        asyncio.run(Scene().put(A, rows))


def test_no_more_rows_than_a_request_may_have_are_taken() -> None:
    with pytest.raises(RemoteError):
        asyncio.run(Scene().put(A, [["c", 1, "x"]] * (gateway_clients.ROWS_PER_REQUEST + 1)))
