"""Three real federators in a line, and a fourth process with the id of one of them."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, Federator, running

pytestmark = pytest.mark.processes


@contextmanager
def line_and_stranger(directory: Path) -> Iterator[tuple[list[Federator], Federator, list[Mosquitto]]]:
    """Yield federators 0, 1 and 2, linked, a process with id 2 that dials 1 and does not run yet, and the brokers."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(Mosquitto(*LOG_LINES)) for _ in range(4)]
        federators = [Federator(k, brokers[k].url, directory) for k in range(3)]
        middle = federators[1].link_url
        federators[1].words += ["--link-listen", middle]
        for k in (0, 2):
            federators[k].words += ["--neighbour", middle]
        (directory / "stranger").mkdir()
        stranger = Federator(2, brokers[3].url, directory / "stranger", "--neighbour", middle)
        stack.callback(stranger.end)
        stack.enter_context(running(federators))
        yield federators, stranger, brokers


def test_a_stranger_with_a_neighbours_id_costs_no_message(tmp_path: Path) -> None:
    with (
        line_and_stranger(tmp_path) as (federators, stranger, brokers),
        Client(brokers[2].port) as subscriber,
        Client(brokers[0].port) as publisher,
    ):
        subscriber.subscribe("t/#", 1)
        eventually(lambda: all(one.knows("t/#") for one in federators), "the filter is known")
        stranger.start()
        eventually(lambda: "from another process" in stranger.log, "the stranger is refused")
        for number in range(20):
            publisher.publish("t/x", b"%d" % number, 1)
        eventually(lambda: len(subscriber.messages) == 20, "all messages arrive while the stranger dials")
        stranger.end(signal.SIGKILL)
        assert federators[1].neighbours() == [0, 2]
        assert "link to federator 2 down" not in federators[1].log
        # However often it tried: the refusal, and the report that both run.
        assert sum("WARN" in line and "another process" in line for line in federators[1].log.splitlines()) <= 2
