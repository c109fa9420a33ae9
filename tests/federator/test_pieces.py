"""Runs cut apart and put together again."""

import asyncio
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.federator.agent import Agent
from hanse.federator.pieces import joined, singles
from hanse.federator.settings import FederatorSettings
from hanse.federator.store import StateDirectory
from hanse.mqtt.publication import encode
from hanse.protocol.messages import Run
from hanse.protocol.packets import split


def run_of(count: int, first: int = 7) -> Run:
    body = b"".join(encode("t", b"%d" % (first + offset), qos=2) for offset in range(count))
    return Run(8, 1, first, count, 2, 3, ("g",), body)


def test_a_run_is_the_sum_of_its_publications() -> None:
    run = run_of(5)
    assert [(single.first, single.length) for single in singles(run)] == [(number, 1) for number in range(7, 12)]
    assert joined(singles(run)) == [run]
    assert joined([]) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_what_is_left_keeps_its_ids_in_as_few_runs_as_possible(is_kept: list[bool]) -> None:
    kept = [single for single, keep in zip(singles(run_of(len(is_kept))), is_kept, strict=True) if keep]
    pieces = joined(kept)
    assert [single for piece in pieces for single in singles(piece)] == kept
    for piece in pieces:
        assert len(split(piece.body)) == piece.length
        assert piece._replace(first=0, length=0, body=b"") == run_of(1)._replace(first=0, length=0, body=b"")
    assert all(one.first + one.length < other.first for one, other in pairwise(pieces))


def test_the_journal_and_the_ring_name_what_was_delivered_where_a_crossing_leaves_something_out(tmp_path: Path) -> None:
    """Of five of QoS 2 the second and the fourth may not enter this broker."""

    async def steps(state: StateDirectory) -> None:
        settings = FederatorSettings(id=1, metrics="off", insecure=True, import_deny=("no",))
        agent = Agent(settings, state)
        names = ("yes", "no", "yes", "no", "yes")
        packets = [encode(name, b"%d" % number, qos=2) for number, name in enumerate(names)]
        agent._deliver([Run(8, 50, 10, 5, 2, 3, ("#",), b"".join(packets))], 1)
        assert sorted(message for message, _ in agent.host._exact.values()) == [(8, 50, 10), (8, 50, 12), (8, 50, 14)]
        assert agent.host.client.unacknowledged == 3
        agent.host.on_received([(number, number) for number in agent.host._exact])
        assert sorted(agent.custodian.ring.entries()) == [(8, 50, 10, 1), (8, 50, 12, 1), (8, 50, 14, 1)]
        agent.custodian.stop()

    with StateDirectory(tmp_path) as state:
        asyncio.run(steps(state))
