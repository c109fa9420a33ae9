import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.topology.simulated import Running, running
from tests.topology.test_api import add, bearer

from hanse.errors import Unavailable
from hanse.topology import changes
from hanse.topology.audit import LINKS_SHOWN_MAX, Actor, entries_of, expulsion, operator
from hanse.topology.changes import Change, Happening
from hanse.topology.model import Topology
from hanse.topology.rounds import now
from hanse.topology.settings import ManagerSettings

Body = Callable[[Running], Awaitable[None]]


def with_manager(folder: Path, body: Body, **settings: Any) -> None:
    async def main() -> None:
        async with running(folder, **settings) as here:
            await body(here)

    asyncio.run(main())


async def read(here: Running, admin: str, **query: int) -> Any:
    answer = await here.client.get("/api/v1/audit", headers=bearer(admin), params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_change_has_an_entry_with_author_action_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A broker that fails its check is checked again after this time, before it counts as gone.
    monkeypatch.setattr(ManagerSettings, "probe_timeout_s", 0.05)

    async def body(here: Running) -> None:
        admin, text = await add(here, role="admin", uses=None), await add(here, uses=None)
        for number in range(3):
            await here.join(number, token=text)
        await here.client.post("/api/v1/leave", json={"id": 2})
        here.brokers.down.add(here.manager.topology.federators[0].key)
        await here.manager.rounds.check()
        await here.client.post("/api/v1/federators/1/revoke", json={}, headers=bearer(admin))
        found = await read(here, admin)
        told = [(one["actor"], one["action"], one["subject"]) for one in reversed(found["entries"])]
        me = f"manager {here.manager.id}"
        by_admin, identity = f"admin token {admin.split('-')[1]}", text.split("-")[1]
        assert told == [
            (me, "leading", "term 1"),
            ("federator 0", "joined", "federator 0"),
            ("federator 1", "joined", "federator 1"),
            ("federator 2", "joined", "federator 2"),
            ("federator 2", "left", "federator 2"),
            (me, "gone", "federator 0"),
            (by_admin, "expelled", "federator 1"),
            (by_admin, "token-closed", f"token {identity}"),
            (by_admin, "revoked", "federator 1"),
        ]
        joined = found["entries"][-4]
        assert joined["source"] == "127.0.0.1"
        assert joined["detail"]["admitted_by"] == identity
        assert joined["detail"]["linked"] == "0-2, 1-2"
        assert joined["time"].endswith("Z")
        assert found["entries"][3]["source"] == ""
        assert found["total"] == 9
        page = await read(here, admin, offset=8, limit=5)
        assert [one["action"] for one in page["entries"]] == ["leading"]

    with_manager(tmp_path, body)


def test_the_audit_log_needs_an_admin_token_everywhere(tmp_path: Path) -> None:
    async def body(here: Running) -> None:
        assert (await here.client.get("/api/v1/audit")).status_code == 401
        reader = bearer(await add(here, role="read", uses=None))
        assert (await here.client.get("/api/v1/audit", headers=reader)).status_code == 403

    with_manager(tmp_path, body)


def test_a_refused_request_has_a_log_line_and_a_count_and_no_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(here: Running) -> None:
        admin = await add(here, role="admin", uses=None)
        before = (await read(here, admin))["total"]
        metrics = (await here.client.get("/metrics", headers=bearer(admin))).text
        assert 'hanse_manager_refusals_total{reason="token-not-valid"} 0' in metrics
        with caplog.at_level(logging.WARNING, "hanse.security"):
            wrong = bearer("hanse-00000000-" + "x" * 43)
            answer = await here.client.post("/api/v1/join", json={"ip": "tcp://b:1883"}, headers=wrong)
            assert answer.status_code == 403
        line = caplog.records[-1]
        assert (line.levelname, vars(line)["security"], vars(line)["reason"]) == (
            "WARNING",
            "refused",
            "token-not-valid",
        )
        assert vars(line)["source"] == "127.0.0.1"
        assert vars(line)["request"] == "POST /api/v1/join"
        assert "x" * 43 not in str(vars(line))
        assert (await read(here, admin))["total"] == before
        metrics = (await here.client.get("/metrics", headers=bearer(admin))).text
        assert 'hanse_manager_refusals_total{reason="token-not-valid"} 1' in metrics

    with_manager(tmp_path, body, requires_token=True)


def test_attack_a_flood_of_refusals_fills_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(here: Running) -> None:
        with caplog.at_level(logging.WARNING, "hanse.security"):
            for _ in range(200):
                assert (await here.client.get("/api/v1/topology")).status_code == 401
        assert 0 < len(caplog.records) <= 40
        assert here.manager.counters.refusals["token-needed"] == 200

    with_manager(tmp_path, body, requires_token=True)


def test_joins_and_expulsions_are_security_events_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(here: Running) -> None:
        admin = await add(here, role="admin", uses=None)
        with caplog.at_level(logging.INFO, "hanse.security"):
            await here.join(0)
            await here.client.post("/api/v1/federators/0/revoke", json={}, headers=bearer(admin))
        events = [vars(one)["security"] for one in caplog.records if one.name == "hanse.security"]
        assert events == ["joined", "expelled", "revoked"]

    with_manager(tmp_path, body)


def test_a_change_remains_even_if_its_entry_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(here: Running) -> None:
        async def fail(entries: object) -> None:
            raise Unavailable(f"no capacity for {entries}")

        monkeypatch.setattr(here.manager._store, "add_audit", fail)
        assert (await here.join(0))["id"] == 0
        assert here.manager.topology.living() == [0]
        assert "hanse_manager_audit_errors_total 1" in (await here.client.get("/metrics")).text

    with_manager(tmp_path, body)


def test_a_repair_of_links_alone_is_one_entry() -> None:
    links = tuple(Happening("linked", {"a": 0, "b": k, "kind": "repair"}) for k in range(1, LINKS_SHOWN_MAX + 11))
    change = Change(Topology(), (0,), happenings=links)
    (entry,) = entries_of(change, Actor("manager a"), 5.0)
    assert (entry.at_s, entry.action, entry.subject) == (5.0, "relinked", "overlay")


def test_the_links_of_a_change_are_shown_up_to_a_limit() -> None:
    links = tuple(Happening("unlinked", {"a": 0, "b": k}) for k in range(1, LINKS_SHOWN_MAX + 11))
    change = Change(Topology(), (0,), happenings=(Happening("gone", {"id": 0, "cause": "silent"}), *links))
    (entry,) = entries_of(change, Actor("manager a"), 5.0)
    assert entry.detail["cause"] == "silent"
    assert str(entry.detail["unlinked"]).startswith("0-1, 0-2, ")
    assert str(entry.detail["unlinked"]).endswith(" and 10 more")


def test_a_change_that_is_empty_has_no_entry() -> None:
    assert entries_of(Change(Topology()), Actor("a"), 1.0) == []


def test_a_federator_that_renews_its_address_has_an_entry() -> None:
    before, node = changes.join(Topology(), changes.Peer("tcp://a:1", "mqtt://a:1"), changes.Rules(), now())
    after, _ = changes.join(
        before.topology, changes.Peer("tcp://a:1", "mqtt://a:1", link="mqtt://a:2"), changes.Rules(), now()
    )
    (entry,) = entries_of(after, Actor(f"federator {node}"), 1.0)
    assert (entry.action, entry.subject) == ("renewed", "federator 0")


def test_an_expulsion_without_a_token_to_close_is_one_entry() -> None:
    before, _ = changes.join(Topology(), changes.Peer("tcp://a:1", "mqtt://a:1"), changes.Rules(), now())
    (entry,) = expulsion(before.topology.federators[0], None, Actor("operator a"), 1.0)
    assert (entry.action, entry.detail) == ("expelled", {"ip": "tcp://a:1"})


def test_a_command_names_the_person_behind_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "root")
    monkeypatch.setenv("SUDO_USER", "anna")
    assert operator().name == "operator anna as root"
    monkeypatch.delenv("SUDO_USER")
    assert operator().name == "operator root"
    assert operator().source
