"""The shell of tracing: real machines on a simulated network, with probes and reports carried by the test."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.protocol.net import Network

from hanse.errors import RemoteError
from hanse.federator import tracing
from hanse.federator.crossing import Crossing
from hanse.federator.private import PrivateGroup
from hanse.federator.tracing import REPORT_TOPIC, Tracing
from hanse.mqtt.publication import encode
from hanse.protocol import codec
from hanse.protocol.events import Subscribed, Unsubscribed
from hanse.protocol.identity import private_group
from hanse.protocol.messages import PathHop, Probe, Run

LINE = [(0, 1), (1, 2)]


class Federators:
    """Line of three whose machines have converged. Probes arrive at once, reports by the private group do as well."""

    def __init__(self, *, crossings: dict[int, Crossing] | None = None) -> None:
        self.net = Network(3, LINE)
        self.net.subscribe(2, "a/#")
        self.net.run(6.0)
        self.counters: Counter[str] = Counter()
        self.lossy: set[tuple[int, int]] = set()
        self.deaf: set[int] = set()
        self.hosts_down: set[int] = set()
        self.mute: set[int] = set()
        self.filters: dict[int, list[str]] = {2: ["a/#"]}
        self.shells = {k: self._shell(k, (crossings or {}).get(k, Crossing())) for k in range(3)}

    def _shell(self, k: int, crossing: Crossing) -> Tracing:
        group = private_group(k)
        private = PrivateGroup(lambda: self._change(k, Subscribed(group)), lambda: self._change(k, Unsubscribed(group)))
        return Tracing(
            self.net.machines[k],
            crossing=crossing,
            publish=lambda to, packets: self._publish(k, to, packets),
            ask_all=lambda message: self._ask(k, message),
            send=lambda neighbour, payload: self._send(k, neighbour, payload),
            is_host_up=lambda: k not in self.hosts_down,
            filters=lambda: self.filters.get(k, []),
            join=private.join,
            part=private.part,
            counters=self.counters,
        )

    def _change(self, k: int, event: Subscribed | Unsubscribed) -> None:
        self.net.step(k, event)
        self.net.run(0.1)

    def _publish(self, k: int, group: str, packets: list[bytes]) -> None:
        origin = int(group.rpartition("/")[2])
        for packet in packets if k not in self.mute else ():
            assert self.shells[origin].take_report(Run(k, 1, 1, 1, 1, 1, (group,), packet))

    def _ask(self, k: int, message: dict[str, Any]) -> None:
        for other, shell in self.shells.items():
            if other != k and other not in self.deaf:
                shell.on_question(k, json.loads(json.dumps(message)))

    def _send(self, k: int, neighbour: int, payload: bytes) -> bool:
        if (k, neighbour) in self.lossy:
            return False
        if neighbour not in self.deaf:
            asyncio.get_running_loop().call_soon(self.shells[neighbour].on_probe, k, payload)
        return True

    def trace(self, topic: str = "a/x", at: int = 0, **more: object) -> dict[str, Any]:
        async def ask() -> tuple[int, str, bytes | str]:
            return await self.shells[at].answer(json.dumps({"topic": topic, "wait_ms": 300, **more}).encode())

        status, _, body = asyncio.run(ask())
        found: dict[str, Any] = json.loads(body)
        assert (status == 200) == ("error" not in found)
        return found


def ends(found: dict[str, Any]) -> set[tuple[int, str, int | None]]:
    hops = [*found["hops"], *found["remarks"]]
    return {(hop["federator"], end["reason"], end["neighbour"]) for hop in hops for end in hop["ends"]}


def test_a_trace_reports_each_hop_and_leaves_the_private_group_again() -> None:
    made = Federators()
    found = made.trace()
    assert found["delivered_at"] == [2]
    assert [(hop["previous"], hop["federator"]) for hop in found["hops"]] == [(None, 0), (0, 1), (1, 2)]
    assert not made.net.machines[0].is_local(private_group(0))
    assert made.counters == {}


def test_a_link_that_accepts_nothing_is_named() -> None:
    made = Federators()
    made.lossy.add((1, 2))
    found = made.trace()
    assert (found["reason"], ends(found)) == ("link_down", {(1, "link_down", 2)})


def test_a_hop_without_a_report_has_no_answer() -> None:
    made = Federators()
    made.deaf.add(2)
    found = made.trace()
    assert (found["reason"], ends(found)) == ("no_answer", {(1, "no_answer", 2)})


def test_a_hop_whose_report_is_lost_is_known_from_the_path_of_the_next() -> None:
    made = Federators()
    made.mute.add(1)
    found = made.trace()
    assert found["delivered_at"] == [2]
    assert [hop["federator"] for hop in found["hops"]] == [0, 1, 2]
    assert ends(found) == set()


@pytest.mark.parametrize(
    ("at", "crossing", "topic", "expected"),
    [
        (0, Crossing(export_deny=["a/#"]), "a/x", ("export", {(0, "export", None)})),
        (0, Crossing(export_allow=["b/#"]), "a/x", ("export", {(0, "export", None)})),
        (0, Crossing(prefix="p"), "$SYS/x", ("never_crosses", {(0, "never_crosses", None)})),
        (2, Crossing(import_deny=["a/x"]), "a/x", ("import", {(2, "import", None)})),
        (2, Crossing(import_allow=["a/y"]), "a/x", ("import", {(2, "import", None)})),
    ],
)
def test_settings_of_the_operator_are_named_where_they_apply(
    at: int, crossing: Crossing, topic: str, expected: tuple[str, set[tuple[int, str, None]]]
) -> None:
    found = Federators(crossings={at: crossing}).trace(topic)
    assert (found["reason"], ends(found)) == expected


def test_a_probe_under_a_prefix_uses_its_federation_name() -> None:
    made = Federators(crossings={0: Crossing(prefix="a")})
    assert made.trace("x")["delivered_at"] == [2]
    assert made.trace("b")["topic"] == "b"


def test_interest_that_never_left_its_broker_is_a_remark() -> None:
    made = Federators(crossings={2: Crossing(import_deny=["hidden/#"])})
    made.filters[2] = ["hidden/+", "other"]
    found = made.trace("hidden/x")
    assert (found["reason"], ends(found)) == ("import", {(0, "no_interest", None), (2, "import", None)})
    assert found["remarks"][0]["ends"][0]["groups"] == ["hidden/+"]


def test_a_host_broker_that_is_down_is_recognised_at_either_end() -> None:
    made = Federators()
    made.hosts_down.add(2)
    found = made.trace()
    assert (found["reason"], ends(found)) == ("host_down", {(2, "host_down", None)})
    made.hosts_down.add(0)
    assert ends(made.trace()) == {(0, "host_down", None)}


def test_an_absent_distant_member_is_a_remark() -> None:
    made = Federators()
    made.net.crash(2)
    made.net.run(3.0)
    found = made.trace()
    assert found["reason"] == "link_down"
    assert (1, "link_down", 2) in ends(found)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "Expected JSON"),
        (b"[]", "Expected JSON"),
        (b'"a"', "Expected JSON"),
        (b"{}", "Expected JSON"),
        (b'{"topic": 1}', "must be a string"),
        (b'{"topic": "a", "wait_ms": true}', "a number"),
        (b'{"topic": "a", "wait_ms": 0}', "above 0"),
        (b'{"topic": "a", "wait_ms": 1e9}', "at most 10000"),
        (b'{"topic": "a", "wait_ms": NaN}', "above 0"),
        (b'{"topic": "a/#"}', "wildcard"),
        (b'{"topic": ""}', "empty"),
        (b'{"topic": "\\ud800"}', "surrogate"),
        (b'{"topic": "a\\u0000"}', "U+0000"),
    ],
)
def test_a_malformed_request_is_refused_with_a_sentence(body: bytes, says: str) -> None:
    async def ask() -> tuple[int, str, bytes | str]:
        return await made.shells[0].answer(body)

    made = Federators()
    status, _, answer = asyncio.run(ask())
    assert status == 400
    assert says in json.loads(answer)["error"]


def test_simultaneous_traces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "TRACES_MAX", 1)
    made = Federators()
    made.deaf.add(1)

    async def ask() -> list[int]:
        body = b'{"topic": "a/x", "wait_ms": 100}'
        answers = await asyncio.gather(*(made.shells[0].answer(body) for _ in range(3)))
        return sorted(status for status, _, _ in answers)

    assert asyncio.run(ask()) == [200, 503, 503]
    assert made.counters["traces_refused"] == 2


def probe(*path: int, origin: int = 0) -> bytes:
    hops = tuple(PathHop(federator, 1, 2) for federator in path)
    return codec.encode_probe(Probe(origin, 1, 1, "a/x", ("a/#",), hops))


@pytest.mark.parametrize(
    ("neighbour", "payload", "says"),
    [
        (0, b"\x01\x05", "cut short"),
        (0, b"\x01\x02\x00\x00", "type 2"),
        (0, probe(0, 2), "must end with its sender"),
        (7, probe(0, 7), "not a connected neighbour"),
    ],
)
def test_attack_a_forged_probe_is_refused_and_goes_nowhere(neighbour: int, payload: bytes, says: str) -> None:
    made = Federators()
    made.lossy.add((1, 2))
    with pytest.raises(RemoteError, match=says):
        made.shells[1].on_probe(neighbour, payload)


def test_attack_a_flood_of_probes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "HANDLED_A_SECOND_MAX", 3)
    monkeypatch.setattr("hanse.federator.tracing.time.monotonic", lambda: 7.0)
    sent: list[int] = []

    def send(neighbour: int, _: bytes) -> bool:
        sent.append(neighbour)
        return True

    async def flood() -> None:
        for _ in range(10):
            made.shells[1].on_probe(0, probe(0))
        await made.shells[1].stop()

    made = Federators()
    made.shells[1]._send = send
    asyncio.run(flood())
    assert made.counters["traces_refused"] == 7
    assert sent == [2]  # the second arrival is a duplicate


class Nested(NamedTuple):
    """JSON that opens many lists and closes none."""

    depth: int


GOOD: dict[str, Any] = {
    "id": [0, 1000, 1],
    "federator": 2,
    "previous": 1,
    "is_remark": False,
    "arrived_us": 5,
    "left_us": None,
    "delivered": ["a/#"],
    "forwarded": [],
    "ends": [],
    "path": [[0, 1, 2], [1, 3, 4]],
}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        {**GOOD, "id": [1, 2]},
        {**GOOD, "id": [0, 1000, 99]},
        {**GOOD, "arrived_us": "x"},
        {**GOOD, "forwarded": [3]},
        {**GOOD, "forwarded": [{"neighbour": 1}]},
        {**GOOD, "ends": [{"reason": "because", "groups": [], "neighbour": None, "detail": ""}]},
        {**GOOD, "path": [[1]]},
        {**GOOD, "arrived_us": float("inf")},
        {**GOOD, "detail": "x" * 2_000_000},
        Nested(100_000),
        {key: value for key, value in GOOD.items() if key != "delivered"},
    ],
)
def test_attack_a_forged_report_is_counted_and_dropped(wrong: object) -> None:
    made = Federators()
    text = "[" * wrong.depth if isinstance(wrong, Nested) else json.dumps(wrong)
    body = encode(REPORT_TOPIC, text.encode(), qos=1)

    async def ask() -> None:
        made.deaf.add(1)
        asking = asyncio.ensure_future(made.shells[0].answer(b'{"topic": "a/x", "wait_ms": 100}'))
        await asyncio.sleep(0)
        assert made.shells[0].take_report(Run(2, 1, 1, 1, 1, 1, ("x",), body))
        found = json.loads((await asking)[2])
        assert found["delivered_at"] == []

    asyncio.run(ask())
    assert made.counters["trace_reports_dropped"] == 1


@pytest.mark.parametrize("message", [{}, {"id": [0, 1, 2]}, {"id": 7, "topic": "a"}, {"id": [0, 1, 2], "topic": "#"}])
def test_attack_a_forged_question_raises_an_error_that_the_agent_counts(message: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Federators().shells[1].on_question(0, message)


def test_a_question_about_another_federators_trace_is_not_answered() -> None:
    made = Federators(crossings={2: Crossing(import_deny=["a/#"])})
    made._publish = lambda *_: pytest.fail("it was answered")  # type: ignore[method-assign]
    made.shells[2].on_question(1, {"id": [0, 1, 1], "topic": "a/x"})
    made.shells[2].on_question(2, {"id": [2, 1, 1], "topic": "a/x"})


def test_a_report_counts_only_for_its_sender() -> None:
    """The run's origin is the reporter, whatever the report says."""
    made = Federators()
    name = [0, made.net.machines[0].epoch, 1]
    body = encode(REPORT_TOPIC, json.dumps({**GOOD, "id": name, "federator": 77}).encode(), qos=1)

    async def ask() -> dict[str, Any]:
        made.deaf.add(1)
        asking = asyncio.ensure_future(made.shells[0].answer(b'{"topic": "a/x", "wait_ms": 100}'))
        await asyncio.sleep(0)
        made.shells[0].take_report(Run(2, 1, 1, 1, 1, 1, ("x",), body))
        found: dict[str, Any] = json.loads((await asking)[2])
        return found

    assert asyncio.run(ask())["delivered_at"] == [2]


def test_a_run_that_is_not_a_report_is_left_to_others() -> None:
    made = Federators()
    assert not made.shells[0].take_report(Run(2, 1, 1, 1, 1, 1, ("x",), encode("kept/x", b"", qos=1)))


def test_the_private_group_is_left_with_its_last_user() -> None:
    done: list[str] = []
    note: Callable[[str], Callable[[], None]] = lambda what: lambda: done.append(what)  # noqa: E731 - two similar functions
    private = PrivateGroup(note("join"), note("part"))
    private.join()
    private.join()
    private.part()
    assert done == ["join"]
    private.part()
    assert done == ["join", "part"]
