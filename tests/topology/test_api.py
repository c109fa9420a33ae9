import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.topology.simulated import Running, running

from hanse.topology import changes
from hanse.topology.admission import expel
from hanse.topology.announcements import TOPIC, is_genuine
from hanse.topology.api import create_app
from hanse.topology.limits import BODY_BYTES_MAX
from hanse.topology.repair import graph_of, is_two_connected
from hanse.topology.rounds import now
from hanse.topology.store_sqlite import SqliteStore
from hanse.topology.tokens import make_token

With = Callable[[Callable[[Running], Awaitable[None]]], None]


def with_manager(tmp_path: Path, body: Callable[[Running], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with running(tmp_path, **settings) as here:
            await body(here)

    asyncio.run(main())


def test_listing_1_answers_id_neighbours_and_settings(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        listing_1 = '{"ip": "tcp://127.0.0.1:1883"}'
        headers = {"Content-Type": "application/json"}
        first = (await here.client.post("/api/v1/join", content=listing_1, headers=headers)).json()
        assert (first["id"], first["neighbors"]) == (0, [])
        second = await here.join(1, link="mqtt://b1:1893")
        assert second["id"] == 1
        assert second["neighbors"] == [{"id": 0, "ip": "tcp://127.0.0.1:1883", "link": None}]
        assert second["settings"] == {
            "announcement_interval": "2s",
            "beacon_interval": "2s",
            "redundancy": 3,
            "overlay_degree_max": 5,
            "health_interval": "3600s",
        }
        assert second["epoch"] > first["epoch"]

    with_manager(tmp_path, body, announcement_interval_s=2.0, redundancy=3)


def test_a_federator_is_shown_as_listing_2_field_for_field(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        await here.join(0)
        await here.join(1)
        await here.manager.rounds.check()
        text = (await here.client.get("/api/v1/federators/0")).text
        document = json.loads(text)
        assert list(document) == ["id", "ip", "neighbors", "neighborsAmount", "latency", "latestHealthCheck"]
        assert document["neighbors"] == [{"id": 1, "ip": "tcp://b1:1883"}]
        assert document["neighborsAmount"] == 1
        assert document["latency"] == 1.0
        assert time.strptime(document["latestHealthCheck"][:19], "%Y-%m-%d %H:%M:%S")
        assert document["latestHealthCheck"].endswith("Z")
        assert await here.get("/api/v1/federators") == [document, await here.get("/api/v1/federators/1")]

    with_manager(tmp_path, body)


def test_joining_again_with_another_spelling_of_the_address_gives_the_same_id(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        assert (await here.join(0))["id"] == 0
        again = await here.client.post("/api/v1/join", json={"ip": "mqtt://B0"})
        assert again.json()["id"] == 0
        assert len((await here.get("/api/v1/topology"))["federators"]) == 1

    with_manager(tmp_path, body)


def test_200_joins_in_parallel_have_distinct_ids_and_one_component(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        joined = await asyncio.gather(*(here.join(number) for number in range(200)))
        assert sorted(one["id"] for one in joined) == list(range(200))
        shown = await here.get("/api/v1/topology")
        assert shown["isConnected"]
        assert shown["isTwoConnected"]
        assert len(shown["federators"]) == 200
        again = await asyncio.gather(*(here.join(number) for number in range(200)))
        assert {one["id"] for one in again} == set(range(200))

    with_manager(tmp_path, body)


def test_one_address_joining_many_times_at_once_is_one_federator(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        joined = await asyncio.gather(*(here.join(7) for _ in range(50)))
        assert {one["id"] for one in joined} == {0}

    with_manager(tmp_path, body)


def test_neighbours_get_notices_on_their_brokers_and_can_prove_it(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        first = await here.join(0)
        await here.join(1)
        await asyncio.sleep(0)
        told = [(topic, payload) for node, topic, payload in here.brokers.published if node == 0]
        assert len(told) == 1
        topic, payload = told[0]
        assert topic == TOPIC == "federated_topology_ann"
        told_body = json.loads(payload)
        assert told_body["action"] == "add"
        assert told_body["id"] == 0
        assert told_body["neighbor"] == {"id": 1, "ip": "tcp://b1:1883", "link": None}
        assert told_body["neighborsAmount"] == 1
        assert told_body["epoch"] == (await here.get("/api/v1/topology"))["epoch"]
        assert is_genuine(payload, first["credential"])

    with_manager(tmp_path, body)


def test_attack_a_forged_announcement_is_recognised(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        first, second = await here.join(0), await here.join(1)
        await asyncio.sleep(0)
        payload = next(payload for node, _, payload in here.brokers.published if node == 0)
        assert not is_genuine(payload.replace(b'"add"', b'"remove"'), first["credential"])
        assert not is_genuine(payload, second["credential"])
        for junk in (b"", b"[]", b"{}", b'{"mac": 1}', b"\xff", payload[:-2]):
            assert not is_genuine(junk, first["credential"])

    with_manager(tmp_path, body)


def test_leaving_unlinks_and_is_remembered(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(4):
            await here.join(number)
        answer = await here.client.post("/api/v1/leave", json={"id": 1})
        assert answer.json()["state"] == "left"
        assert answer.json()["neighbors"] == []
        shown = await here.get("/api/v1/topology")
        assert {one["id"]: one["state"] for one in shown["federators"]} == {0: "up", 1: "left", 2: "up", 3: "up"}
        assert [one["id"] for one in await here.get("/api/v1/federators")] == [0, 2, 3]
        assert (await here.join(1))["id"] == 1

    with_manager(tmp_path, body)


def test_a_poll_answers_as_soon_as_the_neighbours_change(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        first = await here.join(0)
        path = f"/api/v1/federators/0/neighbors?after={first['changedEpoch']}&wait=20"
        poll = asyncio.create_task(here.get(path))
        await asyncio.sleep(0)
        assert not poll.done()
        await here.join(1)
        word = await asyncio.wait_for(poll, 10)
        assert [one["id"] for one in word["neighbors"]] == [1]
        assert word["changedEpoch"] > first["changedEpoch"]
        quiet = await here.get(f"/api/v1/federators/0/neighbors?after={word['changedEpoch']}&wait=0")
        assert quiet["neighbors"] == word["neighbors"]

    with_manager(tmp_path, body)


def test_a_change_elsewhere_does_not_wake_a_poll(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(8):
            await here.join(number)
        topology = here.manager.topology
        far = next(n for n in topology.living() if n not in topology.neighbors(0) and n != 0)
        one = topology.federators[far]
        before = one.changed_epoch
        poll = asyncio.create_task(here.get(f"/api/v1/federators/{far}/neighbors?after={topology.epoch}&wait=0.2"))
        await here.join(0, link="mqtt://elsewhere:1")
        word = await poll
        assert word["changedEpoch"] == before

    with_manager(tmp_path, body)


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/api/v1/join", b"", 422),
        ("POST", "/api/v1/join", b"{", 400),
        ("POST", "/api/v1/join", b"[" * 100_000, 400),
        ("POST", "/api/v1/join", b'{"a":' * 50_000, 400),
        ("POST", "/api/v1/join", b"\xff\xfe", 400),
        ("POST", "/api/v1/join", b"[]", 422),
        ("POST", "/api/v1/join", b"{}", 422),
        ("POST", "/api/v1/join", b'{"ip": 7}', 422),
        ("POST", "/api/v1/join", b'{"ip": null}', 422),
        ("POST", "/api/v1/join", b'{"ip": ""}', 422),
        ("POST", "/api/v1/join", b'{"ip": "broker"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "http://b:1"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://u:p@b:1"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b:1883/../x"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://<script>"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b\\u0000:1883"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b:1883", "rank": 1}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b:1883", "id": -1}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b:1883", "id": 4294967296}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b:1883", "id": "0"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b:1883", "link": "x"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b:1883", "probe": "none"}', 422),
        ("POST", "/api/v1/join", b'{"ip": "tcp://b:1883", "token": "guess"}', 403),
        ("POST", "/api/v1/join", b'{"ip": "tcp://' + b"b" * 400 + b'"}', 422),
        ("POST", "/api/v1/join", b" " * (BODY_BYTES_MAX + 1), 413),
        ("POST", "/api/v1/leave", b'{"id": 5}', 404),
        ("POST", "/api/v1/leave", b"{}", 422),
        ("POST", "/api/v1/federators/5/report", b"{}", 422),
        ("POST", "/api/v1/federators/x/report", b'{"ip": "tcp://b:1", "epoch": 1}', 422),
        ("POST", "/api/v1/federators/5/report", b'{"ip": "tcp://b:1", "epoch": -1}', 422),
        ("POST", "/api/v1/federators/5/report", b'{"ip": "tcp://b:1", "epoch": 9007199254740992}', 422),
        ("POST", "/api/v1/federators/5/report", b'{"ip": "tcp://b:1", "epoch": 9007199254740991}', 409),
        ("GET", "/api/v1/federators/5", b"", 404),
        ("GET", "/api/v1/federators/..%2f..%2fetc", b"", 404),
        ("GET", "/api/v1/federators/4294967296", b"", 422),
        ("GET", "/api/v1/federators/-1", b"", 422),
        ("GET", "/api/v1/federators/5/neighbors", b"", 404),
        ("GET", "/api/v1/federators/0/neighbors?wait=1e9", b"", 422),
        ("GET", "/api/v1/federators/0/neighbors?wait=nan", b"", 422),
        ("GET", "/api/v1/groups?limit=0", b"", 422),
        ("GET", "/api/v1/nothing", b"", 404),
        ("PUT", "/api/v1/join", b"{}", 405),
        ("DELETE", "/api/v1/federators/0", b"", 405),
    ],
)
def test_bad_input_is_a_problem_document_and_nothing_is_stored(
    tmp_path: Path, method: str, path: str, content: bytes, status: int
) -> None:
    async def body(here: Running) -> None:
        before = here.manager.topology
        headers = {"Content-Type": "application/json"} if content else {}
        answer = await here.client.request(method, path, content=content, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status
        assert problem["type"].startswith("urn:hanse:problem:")
        assert problem["title"]
        assert problem["detail"]
        assert len(answer.content) < 20_000, "an answer does not repeat what it refuses"
        assert here.manager.topology == before

    with_manager(tmp_path, body)


def test_a_body_without_a_length_is_counted_and_refused(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        async def endless() -> Any:
            for _ in range(11):
                yield b" " * 1024 * 1024

        answer = await here.client.post("/api/v1/join", content=endless())
        assert answer.status_code == 413

    with_manager(tmp_path, body)


def test_a_refusal_does_not_repeat_a_login(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        answer = await here.client.post("/api/v1/join", json={"ip": "tcp://admin:geheim@b:1883"})
        assert "geheim" not in answer.text

    with_manager(tmp_path, body)


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def add(here: Running, **how: Any) -> str:
    token, text = make_token(**{"role": "join", "label": "", "now_s": time.time(), "ttl_s": 60.0, "uses": 1, **how})
    await here.manager._store.add_token(token)
    return text


def test_required_tokens_admit_nobody_without_one(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for method, path, content in [
            ("POST", "/api/v1/join", {"ip": "tcp://b:1883"}),
            ("GET", "/api/v1/topology", None),
            ("GET", "/api/v1/federators", None),
            ("GET", "/api/v1/groups", None),
            ("GET", "/api/v1/events", None),
            ("GET", "/metrics", None),
            ("POST", "/api/v1/federators/0/report", {"ip": "tcp://b:1883", "epoch": 0}),
        ]:
            answer = await here.client.request(method, path, json=content)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            wrong = await here.client.request(method, path, json=content, headers=bearer("hanse-0-guess"))
            assert wrong.status_code == 403, path
        assert (await here.client.get("/healthz")).status_code == 200
        assert not here.manager.topology.federators

    with_manager(tmp_path, body, requires_token=True)


def test_a_token_admits_a_federator_and_the_credential_identifies_it_afterwards(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        text = await add(here)
        joined = await here.client.post("/api/v1/join", json={"ip": "tcp://b0:1883"}, headers=bearer(text))
        assert joined.status_code == 200
        credential = joined.json()["credential"]
        for path in ("/api/v1/topology", "/api/v1/federators/0/neighbors", "/metrics"):
            assert (await here.client.get(path, headers=bearer(credential))).status_code == 200
        told = {"ip": "tcp://b0:1883", "epoch": joined.json()["epoch"]}
        report = await here.client.post("/api/v1/federators/0/report", json=told, headers=bearer(credential))
        assert report.status_code == 200
        again = await here.client.post("/api/v1/join", json={"ip": "tcp://b0:1883"}, headers=bearer(credential))
        assert again.json()["id"] == 0

    with_manager(tmp_path, body, requires_token=True)


def test_attack_a_credential_does_not_identify_another_federator(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        many = await add(here, uses=None)
        joined = [
            (await here.client.post("/api/v1/join", json={"ip": f"tcp://b{n}:1883"}, headers=bearer(many))).json()
            for n in range(2)
        ]
        other = bearer(joined[1]["credential"])
        told = {"ip": "tcp://b0:1883", "epoch": 1}
        assert (await here.client.post("/api/v1/leave", json={"id": 0}, headers=other)).status_code == 403
        assert (await here.client.post("/api/v1/federators/0/report", json=told, headers=other)).status_code == 403
        assert (await here.client.get("/api/v1/federators/0/neighbors", headers=other)).status_code == 403
        assert (await here.client.post("/api/v1/join", json={"ip": "tcp://b0:1883"}, headers=other)).status_code == 403
        # A join token does not identify anybody either.
        assert (await here.client.post("/api/v1/leave", json={"id": 0}, headers=bearer(many))).status_code == 403

    with_manager(tmp_path, body, requires_token=True)


def test_a_wrong_expired_or_used_token_is_refused_and_nothing_stored(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        used, expired, reading = await add(here), await add(here, ttl_s=-1.0), await add(here, role="read")
        first = await here.client.post("/api/v1/join", json={"ip": "tcp://b0:1883", "token": used})
        assert first.status_code == 200
        for token in (used, expired, reading, used[:-1] + "_", "x" * 100):
            answer = await here.client.post("/api/v1/join", json={"ip": "tcp://b1:1883", "token": token})
            assert answer.status_code == 403
        assert list(here.manager.topology.federators) == [0]
        assert (await here.client.get("/api/v1/topology", headers=bearer(reading))).status_code == 200

    with_manager(tmp_path, body, requires_token=True)


def test_of_many_joins_with_one_single_use_token_exactly_one_wins(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        text = await add(here)
        answers = await asyncio.gather(
            *(here.client.post("/api/v1/join", json={"ip": f"tcp://b{n}:1883", "token": text}) for n in range(30))
        )
        assert sorted(answer.status_code for answer in answers) == [200] + [403] * 29
        assert len(here.manager.topology.federators) == 1

    with_manager(tmp_path, body, requires_token=True)


def test_a_refused_join_does_not_use_its_token_up(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        text = await add(here)
        bad = await here.client.post("/api/v1/join", json={"ip": "nonsense", "token": text})
        assert bad.status_code == 422
        assert (await here.client.post("/api/v1/join", json={"ip": "tcp://b:1", "token": text})).status_code == 200

    with_manager(tmp_path, body, requires_token=True)


def test_a_revoked_token_expels_its_federators_and_their_neighbours_learn_of_it(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        good, bad = await add(here, uses=None), await add(here)
        for number in range(3):
            await here.client.post("/api/v1/join", json={"ip": f"tcp://b{number}:1883", "token": good})
        joined = await here.client.post("/api/v1/join", json={"ip": "tcp://b3:1883", "token": bad})
        credential = bearer(joined.json()["credential"])
        around = here.manager.topology.neighbors(3)
        await here.manager._store.revoke_token(bad.split("-")[1])
        assert (await here.client.get("/api/v1/federators/3/neighbors", headers=credential)).status_code == 403
        here.brokers.published.clear()
        await here.manager.rounds.check()
        await asyncio.sleep(0)
        assert here.manager.topology.federators[3].state == "revoked"
        removals = {n for n, _, p in here.brokers.published if json.loads(p)["neighbor"]["id"] == 3}
        assert removals == set(around)
        told = {"ip": "tcp://b3:1883", "epoch": 1}
        again = await here.client.post("/api/v1/federators/3/report", json=told, headers=credential)
        assert again.status_code == 403
        again = await here.client.post("/api/v1/join", json={"ip": "tcp://b3:1883"}, headers=credential)
        assert again.status_code == 403
        fresh = await add(here)
        back = await here.client.post("/api/v1/join", json={"ip": "tcp://b3:1883", "token": fresh})
        assert back.json()["id"] == 3

    with_manager(tmp_path, body, requires_token=True)


def test_groups_are_shown_with_cores_and_meshes(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(3):
            await here.join(number)
        epoch = here.manager.topology.epoch
        for number, parents in ((0, []), (1, [0])):
            groups = [
                {"group": "sensors/+/temp", "core": 0, "parents": parents, "mesh": [1 - number], "interest": True},
                {"group": "a/<script>", "core": number},
            ]
            told = {"ip": f"tcp://b{number}:1883", "epoch": epoch, "groups": groups}
            answer = await here.client.post(f"/api/v1/federators/{number}/report", json=told)
            assert answer.status_code == 200, answer.text
        shown = await here.get("/api/v1/groups")
        assert shown["total"] == 2
        assert shown["groups"][0]["cores"] == [0, 1]
        assert shown["groups"][1]["cores"] == [0]
        assert [one["parents"] for one in shown["groups"][1]["members"]] == [[], [0]]
        assert (await here.get("/api/v1/groups?offset=1&limit=1"))["groups"] == shown["groups"][1:]

    with_manager(tmp_path, body)


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        await here.join(0)
        answer = await here.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.text.splitlines()
        assert 'hanse_manager_federators{state="up"} 1' in lines
        assert "hanse_manager_joins_total 1" in lines
        names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
        assert all(name.startswith("hanse_manager_") for name in names)
        assert answer.text.count("# TYPE") >= len(names)

    with_manager(tmp_path, body)


def test_a_manager_that_lost_its_store_rebuilds_it_from_reports(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "before").mkdir()
        (tmp_path / "after").mkdir()
        secret = "kept outside the store"
        async with running(tmp_path / "before", requires_token=True, secret=secret) as old:
            many = await add(old, uses=None)
            joined = [
                (await old.client.post("/api/v1/join", json={"ip": f"tcp://b{n}:1883", "token": many})).json()
                for n in range(12)
            ]
            truth = old.manager.topology
            words = [old.manager.word(node) for node in range(12)]
        async with running(tmp_path / "after", requires_token=True, secret=secret) as new:
            for node, word in enumerate(words):
                told = {"ip": f"tcp://b{node}:1883", "epoch": word["epoch"], "neighbors": word["neighbors"]}
                headers = bearer(joined[node]["credential"])
                answer = await new.client.post(f"/api/v1/federators/{node}/report", json=told, headers=headers)
                assert answer.status_code == 200, answer.text
                assert answer.json()["epoch"] > word["epoch"]
            assert new.manager.topology.links.keys() == truth.links.keys()
            stranger = await new.client.post("/api/v1/join", json={"ip": "tcp://b99:1883", "token": many})
            assert stranger.status_code == 403, "the old store's tokens went with it"
            rejoined = await new.client.post(
                "/api/v1/join", json={"ip": "tcp://b5:1883"}, headers=bearer(joined[5]["credential"])
            )
            assert rejoined.json()["id"] == 5

    asyncio.run(main())


def test_a_federator_that_joins_with_its_credential_after_a_lost_store_keeps_its_id(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        credential = here.manager.credentials.issue(7, "mqtt://b7:1883", "0a0a0a0a")
        answer = await here.client.post("/api/v1/join", json={"ip": "tcp://b7:1883"}, headers=bearer(credential))
        assert answer.json()["id"] == 7

    with_manager(tmp_path, body, requires_token=True)


def test_the_second_of_two_federators_with_one_id_is_refused_with_an_alarm(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        await here.join(0)
        told = {"ip": "tcp://other:1883", "epoch": here.manager.topology.epoch}
        answer = await here.client.post("/api/v1/federators/0/report", json=told)
        assert answer.status_code == 409
        assert here.manager.events._ring[-1].kind == "conflict"
        assert +Counter(here.manager.counters.refusals) == {"conflict": 1}
        await here.client.post("/api/v1/join", content=b" " * (BODY_BYTES_MAX + 1))
        await here.client.get("/api/v1/nothing")
        assert +Counter(here.manager.counters.refusals) == {"conflict": 1, "too-large": 1, "not-found": 1}

    with_manager(tmp_path, body)


def test_a_standby_names_the_leader_and_shows_its_topology(tmp_path: Path) -> None:
    async def main() -> None:
        store, other = await SqliteStore.open(tmp_path / "t.db"), await SqliteStore.open(tmp_path / "t.db")
        try:
            async with running(store, advertised_url="https://first") as first:
                await first.join(0)
                async with running(other, advertised_url="https://second") as second:
                    answer = await second.client.post("/api/v1/join", json={"ip": "tcp://b1:1883"})
                    assert answer.status_code == 503
                    assert answer.json()["leader"] == "https://first"
                    assert answer.headers["retry-after"] == "1"
                    shown = await second.get("/api/v1/topology")
                    assert [one["ip"] for one in shown["federators"]] == ["tcp://b0:1883"]
                    assert not shown["isLeading"]
                    assert shown["leader"] == "https://first"
                    assert (await second.get("/healthz"))["status"] == "standby"
        finally:
            await store.close()
            await other.close()

    asyncio.run(main())


def test_a_store_that_fails_is_503_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "t.db")
        try:
            async with running(store) as here:
                await here.join(0)
                before = here.manager.topology
                await store._call(lambda: store._connection.execute("DROP TABLE federators"))  # type: ignore[union-attr]
                answer = await here.client.post("/api/v1/join", json={"ip": "tcp://b1:1883"})
                assert answer.status_code == 503
                assert answer.headers["content-type"] == "application/problem+json"
                assert here.manager.topology is before
        finally:
            await store.close()

    asyncio.run(main())


def test_an_error_of_the_manager_itself_is_a_problem_document(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        transport = httpx.ASGITransport(create_app(here.manager), raise_app_exceptions=False)
        here.manager.groups = None  # type: ignore[assignment]
        async with httpx.AsyncClient(transport=transport, base_url="http://manager") as client:
            answer = await client.get("/api/v1/groups")
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "application/problem+json"
        assert "NoneType" not in answer.text

    with_manager(tmp_path, body)


def test_expelling_one_of_many_that_used_a_token_leaves_the_others(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        text, admin = await add(here, uses=None), bearer(await add(here, role="admin"))
        credentials = []
        for number in range(4):
            joined = await here.client.post("/api/v1/join", json={"ip": f"tcp://b{number}:1883", "token": text})
            credentials.append(bearer(joined.json()["credential"]))
        around = here.manager.topology.neighbors(3)
        here.brokers.published.clear()
        answer = await here.client.post("/api/v1/federators/3/revoke", json={}, headers=admin)
        identity = text.split("-")[1]
        assert answer.json() == {"id": 3, "ip": "tcp://b3:1883", "state": "revoked", "closedToken": identity}
        await asyncio.sleep(0)
        told = {n for n, _, p in here.brokers.published if json.loads(p)["neighbor"]["id"] == 3}
        assert told == set(around)
        assert (await here.client.get("/api/v1/federators/3/neighbors", headers=credentials[3])).status_code == 403
        again = {"ip": "tcp://b3:1883"}
        assert (await here.client.post("/api/v1/join", json=again, headers=credentials[3])).status_code == 403
        for ip in ("tcp://b3:1883", "tcp://elsewhere:1883"):
            assert (await here.client.post("/api/v1/join", json={"ip": ip, "token": text})).status_code == 403
        for number in range(3):
            path = f"/api/v1/federators/{number}/neighbors"
            assert (await here.client.get(path, headers=credentials[number])).status_code == 200
        assert (await here.client.post("/api/v1/federators/9/revoke", json={}, headers=admin)).status_code == 404
        back = await here.client.post("/api/v1/join", json={**again, "token": await add(here)})
        assert back.json()["id"] == 3
        # Its first credential stays refused, because somebody may have copied it.
        assert (await here.client.get("/api/v1/federators/3/neighbors", headers=credentials[3])).status_code == 403

    with_manager(tmp_path, body, requires_token=True)


def test_an_expulsion_may_leave_the_token_open_and_still_covers_the_address(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        text, admin = await add(here, uses=None), bearer(await add(here, role="admin"))
        await here.client.post("/api/v1/join", json={"ip": "tcp://b0:1883", "token": text})
        answer = await here.client.post("/api/v1/federators/0/revoke", json={"keepToken": True}, headers=admin)
        assert answer.json()["closedToken"] is None
        again = await here.client.post("/api/v1/join", json={"ip": "tcp://b0:1883", "token": text})
        assert again.status_code == 403
        other = await here.client.post("/api/v1/join", json={"ip": "tcp://b1:1883", "token": text})
        assert other.status_code == 200

    with_manager(tmp_path, body, requires_token=True)


def test_an_expulsion_outlasts_the_remembered_federator(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        admin = bearer(await add(here, role="admin"))
        await here.join(0)
        await here.client.post("/api/v1/federators/0/revoke", json={}, headers=admin)
        assert 0 in here.manager.topology.federators
        await here.manager.change(lambda before: changes.forget(before, now() + timedelta(days=30), timedelta(days=7)))
        assert here.manager.topology.federators == {}
        answer = await here.client.post("/api/v1/join", json={"ip": "tcp://b0:1883"})
        assert answer.status_code == 403
        assert "was revoked" in answer.json()["detail"]

    with_manager(tmp_path, body)


def test_only_an_admin_token_expels_even_if_no_token_is_required(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        await here.join(0)
        path = "/api/v1/federators/0/revoke"
        assert (await here.client.post(path, json={})).status_code == 401
        for role in ("join", "read"):
            assert (
                await here.client.post(path, json={}, headers=bearer(await add(here, role=role)))
            ).status_code == 403
        assert here.manager.topology.federators[0].state == "up"
        admin = bearer(await add(here, role="admin"))
        assert (await here.client.get("/api/v1/topology", headers=admin)).status_code == 200
        joining = await here.client.post("/api/v1/join", json={"ip": "tcp://b1:1883"}, headers=admin)
        assert joining.status_code == 403

    with_manager(tmp_path, body)


def test_an_expulsion_in_the_store_takes_effect_with_the_next_health_round(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        text = await add(here, uses=None)
        for number in range(3):
            await here.join(number, token=text)
        one = here.manager.topology.federators[1]
        await expel(here.manager._store, one, keep_token=False)
        await here.manager.rounds.check()
        states = {node: one.state for node, one in here.manager.topology.federators.items()}
        assert states == {0: "up", 1: "revoked", 2: "up"}
        assert "hanse_manager_revoked_total 1\n" in (await here.client.get("/metrics")).text

    with_manager(tmp_path, body)


def test_a_revoked_federator_needs_a_token_to_return_even_if_none_is_required(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        text = await add(here)
        await here.join(0)
        await here.join(1, token=text)
        await here.manager._store.revoke_token(text.split("-")[1])
        await here.manager.rounds.check()
        assert here.manager.topology.federators[1].state == "revoked"
        answer = await here.client.post("/api/v1/join", json={"ip": "tcp://b1:1883"})
        assert answer.status_code == 403

    with_manager(tmp_path, body)


def test_the_overlay_of_a_full_federation_is_two_connected_at_any_degree(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        for number in range(20):
            await here.join(number)
        topology = here.manager.topology
        assert is_two_connected(graph_of(topology.living(), topology.links))
        assert max(len(around) for around in topology.neighbor_map().values()) <= 2

    with_manager(tmp_path, body, overlay_degree_max=2)


def test_the_openapi_document_names_problem_documents_for_errors(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        document = await here.get("/api/v1/openapi.json")
        answers = document["paths"]["/api/v1/join"]["post"]["responses"]
        assert list(answers["422"]["content"]) == ["application/problem+json"]
        assert "HTTPValidationError" not in document["components"]["schemas"]

    with_manager(tmp_path, body)
