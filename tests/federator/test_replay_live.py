"""Replays of real federators to a gateway."""

import os
import signal
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.client.stories import run, until
from tests.federation import Client
from tests.federators import ring, running

from hanse.errors import RemoteError
from hanse.gateway.federators import FederatorConnection, FederatorLogin
from hanse.gateway.session.publication import read_publish
from hanse.local import ports
from hanse.protocol.packets import split
from hanse.request_channel import Answer, Endpoint

pytestmark = pytest.mark.processes


async def replayed(
    connection: FederatorConnection, *filters: str, **more: object
) -> list[tuple[str, bytes, int, bool]]:
    """Return topic, payload, age in ms and presence of each publication, in order; nothing but `late` for the host."""
    parts: list[Answer] = []
    fields = {"filters": list(filters), "age_ms": 60_000, **more}
    parts.append(await connection.ask("replay", fields, timeout_s=10, on_part=parts.append))
    found = []
    for part in parts:
        packets = [part.body[start:end] for start, end in split(part.body)]
        for _, _, _, count, age_ms, is_sent in part.fields["rows"]:
            if not is_sent:
                found += [("", b"", age_ms, False)] * count
                continue
            for packet in packets[:count]:
                one = read_publish(packet, 5)
                found.append((one.topic.decode(), one.payload, age_ms, True))
            del packets[:count]
        assert not packets
    return found


def test_a_federator_replays_retained_publications_and_names_those_that_its_broker_lacks(tmp_path: Path) -> None:
    listeners = [Endpoint("127.0.0.1", port) for port in ports.free(2)]
    words = [["--interest", "gateway", "--gateway-listen", str(one), "--gateway-token", "secret"] for one in listeners]

    async def story() -> None:
        login = FederatorLogin("g", "first", 0, token="secret")
        near, far = (FederatorConnection(one, login) for one in listeners)
        for connection in (near, far):
            connection.start()
        await until(lambda: near.is_open and far.is_open, "both connections")
        with Client(brokers[0].port) as subscriber, Client(brokers[1].port) as publisher:
            subscriber.subscribe("a/#", 1)
            rows = [["here", "c", True, 0], ["subscribed", "c", "a/#", 1, 0]]
            await near.ask("interest", {"snapshot": "begin", "rows": rows}, timeout_s=10)
            await near.ask("interest", {"snapshot": "end", "rows": []}, timeout_s=10)
            await far.ask("claims", {"groups": ["a/#"], "wait_ms": 20_000}, timeout_s=30)
            publisher.publish("a/0", b"qos 0", 0)
            for k in range(30):
                publisher.publish(f"a/{k % 3}", b"%d" % k, 1 + k % 2)
            subscriber.expect(31)
            for connection in (near, far):
                found = await replayed(connection, "a/1", "a/2", "$SYS/#")
                assert [(topic, payload) for topic, payload, _, _ in found] == [
                    (f"a/{k % 3}", b"%d" % k) for k in range(30) if k % 3
                ]
                ages = [age for _, _, age, _ in found]
                assert ages == sorted(ages, reverse=True)
                assert 0 <= ages[-1] <= ages[0] < 10_000
            assert await replayed(near, "a/#", age_ms=0) == []
            with pytest.raises(RemoteError, match="age_ms"):
                await replayed(near, "a/#", age_ms="old")
            # The broker hangs: what it has not acknowledged will come from there, and is named only.
            os.kill(brokers[0].pid, signal.SIGSTOP)
            publisher.publish("a/9", b"held", 1)
            found = []
            while not found:
                found = await replayed(near, "a/9")
            assert [one[1] for one in found] == [b"held"], "a client elsewhere gets it"
            found = await replayed(near, "a/9", is_host=True)
            assert [(one[1], one[3]) for one in found] == [(b"", False)]
            os.kill(brokers[0].pid, signal.SIGCONT)
            subscriber.expect(32)
            found = await replayed(near, "a/9", is_host=True)
            assert [one[1] for one in found] == [b"held"]
        for connection in (near, far):
            await connection.stop()

    with Mosquitto() as one, Mosquitto() as two:
        brokers = (one, two)
        with running(ring([one, two], tmp_path, words)):
            run(story)
