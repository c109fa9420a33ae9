"""Static bridges of the hosts beside the federation: extra duplicates, at most one per bridge path, and no loops.

(Three Mosquittos with a full triangle of bridges loop by themselves, with or without us. The bridges here form no loop
of their own; only the federation closes one.)
"""

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.brokers import Mosquitto, free_port
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, is_meshed, ring, running

pytestmark = pytest.mark.processes

MESSAGES = 20
# Two reads of all counters this far apart show whether anything still loops: a round takes milliseconds.
STILL_S = 1.0
# Not `forwarded`: federators send the names of their bridges every few seconds.
TRAFFIC = ("host_publications", "delivered")


def bridge(port: int) -> tuple[str, ...]:
    name = f"to-{port}"
    return (
        f"connection {name}",
        f"address 127.0.0.1:{port}",
        "topic # both 1",
        "bridge_protocol_version mqttv50",
        "notifications true",
    )


def traffic(federators: Sequence[Federator]) -> list[int]:
    return [federator.counters().get(name, 0) for federator in federators for name in TRAFFIC]


def stands_still(federators: Sequence[Federator]) -> bool:
    before = traffic(federators)
    time.sleep(STILL_S)
    return traffic(federators) == before


def knows_its_bridges(federators: Sequence[Federator], bridges: list[tuple[int, int]]) -> bool:
    """Return whether all brokers with a bridge are joined with each other, as in each layout."""
    joined = {k for pair in bridges for k in pair}
    return all({one.id, *one.page("/healthz")["joined_by_bridges"]} == joined for one in federators if one.id in joined)


# Brokers, and the bridges between them: between any two, there is at most one path of bridges alone.
LAYOUTS = {
    "one bridge between two of two": (2, [(1, 0)]),
    "one bridge between two of three": (3, [(1, 0)]),
    "two bridges in a line over three": (3, [(1, 0), (2, 1)]),
}


@pytest.mark.parametrize(
    "layout",
    [
        "one bridge between two of two",
        pytest.param("one bridge between two of three", marks=pytest.mark.slow),
        "two bridges in a line over three",
    ],
)
def test_a_static_bridge_beside_the_federation_does_not_make_it_spin(layout: str, tmp_path: Path) -> None:
    count, bridges = LAYOUTS[layout]
    ports = [free_port() for _ in range(count)]
    with contextlib.ExitStack() as stack:
        brokers = []
        for k, port in enumerate(ports):
            lines = [line for a, b in bridges if a == k for line in bridge(ports[b])]
            brokers.append(stack.enter_context(Mosquitto(*LOG_LINES, "max_queued_messages 0", *lines, port=port)))
        federators = stack.enter_context(running(ring(brokers, tmp_path)))
        eventually(lambda: knows_its_bridges(federators, bridges), "all know who is joined by bridges")
        subscribers = [stack.enter_context(Client(port, name=f"subscriber-{port}")) for port in ports]
        for subscriber in subscribers:
            subscriber.subscribe("loop/#")
        eventually(lambda: is_meshed(federators, "loop/#"), "all are in the mesh of loop/#")

        for k, port in enumerate(ports):
            with Client(port, name=f"publisher-{port}") as publisher:
                for number in range(MESSAGES):
                    publisher.publish("loop/x", b"%d-%d" % (k, number), 1)
        eventually(lambda: stands_still(federators), "the federators' counters stand still")

        copies_max = 1 + len(bridges)
        for subscriber in subscribers:
            copies = Counter(message.payload for message in subscriber.messages)
            assert len(copies) == count * MESSAGES
            assert max(copies.values()) <= copies_max, copies.most_common(3)
