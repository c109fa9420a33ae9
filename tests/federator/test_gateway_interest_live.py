"""Interest that a gateway reports, at real federators beside brokers that reveal nothing themselves."""

import asyncio
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.client.stories import run, until
from tests.federation import Client
from tests.federators import ring, running

from hanse.errors import Unavailable
from hanse.gateway.federators import FederatorConnection, FederatorLogin
from hanse.local import ports
from hanse.request_channel import Endpoint

pytestmark = pytest.mark.processes
LONG = "long/" + "x" * 2_000


def test_reported_interest_is_applied_kept_over_a_restart_and_awaited(tmp_path: Path) -> None:
    listeners = [Endpoint("127.0.0.1", port) for port in ports.free(2)]
    words = [["--interest", "gateway", "--gateway-listen", str(one), "--gateway-token", "secret"] for one in listeners]

    async def story() -> None:
        login = FederatorLogin("g", "first", 0, token="secret")
        near, far = (FederatorConnection(one, login) for one in listeners)
        for connection in (near, far):
            connection.start()
        await until(lambda: near.is_open and far.is_open, "both connections")
        await near.ask("interest", {"snapshot": "begin", "rows": []}, timeout_s=10)
        await near.ask("interest", {"snapshot": "end", "rows": []}, timeout_s=10)
        rows = [["here", "c", True, 0], ["subscribed", "c", LONG, 1, 0], ["subscribed", "c", "$SYS/#", 1, 0]]
        answer = await near.ask(
            "interest", {"rows": rows, "barrier": [LONG, "$SYS/#"], "wait_ms": 20_000}, timeout_s=30
        )
        assert answer.fields == {"taken": True, "groups": [LONG]}
        await far.ask("claims", {"groups": [LONG], "wait_ms": 20_000}, timeout_s=30)
        # The barrier has passed: the next message at the other broker arrives.
        with Client(brokers[0].port) as subscriber, Client(brokers[1].port) as publisher:
            subscriber.subscribe(LONG)
            publisher.publish(LONG, b"first")
            assert [message.payload for message in subscriber.expect(1)] == [b"first"]
            with pytest.raises(Unavailable, match="not ready"):
                await far.ask("claims", {"groups": ["nobody"], "wait_ms": 50}, timeout_s=10)
            # Interest on disk is known before a gateway reports it again.
            await asyncio.to_thread(federators[0].end)
            federators[0].start()
            await until(lambda: near.opened == 2, "the return")
            await until(
                lambda: federators[0].health() is not None and federators[0].knows(LONG), "the interest of before"
            )
            await near.ask("interest", {"snapshot": "begin", "rows": rows}, timeout_s=10)
            await near.ask("interest", {"snapshot": "end", "rows": []}, timeout_s=10)
            await near.ask("interest", {"rows": [["left", "c", 0]]}, timeout_s=10)
            await until(lambda: not federators[1].knows(LONG), "the end at the other federator")
        for connection in (near, far):
            await connection.stop()

    with Mosquitto() as one, Mosquitto() as two:
        brokers = (one, two)
        with running(ring([one, two], tmp_path, words)) as federators:
            run(story)
