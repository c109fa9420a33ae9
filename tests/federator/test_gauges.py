"""Values of gauges at the time of the scrape."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.protocol.net import Network

from hanse.federator.gauges import gauges
from hanse.federator.host import HostSession
from hanse.federator.journal import DeliveryJournal
from hanse.federator.outbox import Outbox
from hanse.federator.retained import RetainedState
from hanse.federator.ring import DeliveredRing
from hanse.interest.ledger import LedgerState
from hanse.mqtt.client import ClientSettings


def _nothing(*words: object) -> None:
    del words


def test_gauges_follow_the_values_that_they_show(tmp_path: Path) -> None:
    async def steps() -> None:
        net = Network(2, [(0, 1)])
        net.run(3.0)
        host = HostSession(
            ClientSettings("mqtt://127.0.0.1:1", "f"),
            on_publications=_nothing,
            on_internal=_nothing,
            on_state=_nothing,
            on_credit=_nothing,
            journal=DeliveryJournal(tmp_path / "journal"),
            ring=DeliveredRing(tmp_path / "delivered"),
        )
        outbox = Outbox(tmp_path / "outbox", bytes_max=1 << 20)
        wanted = ["a"]
        states: list[LedgerState | None] = [None]
        found = gauges(
            net.machines[0],
            host,
            outbox,
            filters=lambda: len(wanted),
            unknown=lambda: states[-1],
            membership=lambda: None,
            retained=lambda: cast("RetainedState", SimpleNamespace(topics=4, lingering=2)),
        )

        def read() -> dict[str, float]:
            return {name: value() for name, (_, value) in found.items()}

        before = read()
        assert before["neighbours"] == 1
        assert before["filters"] == 1
        assert (before["retained_topics"], before["retained_lingering"]) == (4, 2)
        assert before["host_connected"] == 0
        assert before["outbox_records"] == 0
        assert before["manager_away"] == before["own_links"] == 0
        assert before["epoch"] == net.machines[0].epoch
        assert before["interest_counted"] == before["interest_unknown"] == 0
        states.append(LedgerState(known=9, unknown=3, ended_unseen=2, doubtful=1))
        after = read()
        assert (after["interest_counted"], after["interest_unknown"]) == (1, 3)
        assert (after["interest_ended_unseen"], after["interest_doubtful"]) == (2, 1)
        wanted.append("b")
        outbox.append(1, [b"record"])
        host.refused_subscriptions += 1
        net.subscribe(0, "a")
        net.run(3.0)
        after = read()
        assert after["groups"] == before["groups"] + 1
        changed = {"filters": 2, "host_subscriptions_refused": 1, "outbox_records": 1}
        assert {name: after[name] for name in changed} == changed
        assert after["outbox_bytes"] > before["outbox_bytes"]
        assert all(words.endswith(".") for words, _ in found.values())
        outbox.close()

    asyncio.run(steps())
