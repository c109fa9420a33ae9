"""Shared subscriptions: interest in the filter behind the share name, and a warning if two brokers share a name."""

from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, ring, running

pytestmark = pytest.mark.processes

COUNTER = 'hanse_federator_agent_total{what="share_names_at_two_brokers"}'


def test_a_shared_subscription_is_interest_in_its_filter_and_one_name_at_two_brokers_is_warned_of(
    tmp_path: Path,
) -> None:
    with (
        Mosquitto(*LOG_LINES) as one,
        Mosquitto(*LOG_LINES) as two,
        running(ring([one, two], tmp_path)) as federators,
        Client(two.port) as first,
        Client(two.port) as second,
        Client(one.port) as publisher,
    ):
        first.subscribe("$share/workers/jobs/#")
        second.subscribe("$share/workers/jobs/#")
        eventually(lambda: federators[0].knows("jobs/#"), "jobs/# is known")
        for number in range(20):
            publisher.publish("jobs/x", b"%d" % number)
        eventually(lambda: len(first.messages) + len(second.messages) == 20, "each job arrives once")
        assert first.messages
        assert second.messages
        assert COUNTER not in federators[1].metrics()

        with Client(one.port) as third:
            third.subscribe("$share/workers/jobs/#")
            for federator in federators:
                eventually(
                    lambda federator=federator: f"{COUNTER} 1" in federator.metrics(),  # type: ignore[misc]
                    "the warning is counted",
                )
        assert all("share name 'workers' is also in use at federator" in federator.log for federator in federators)
        # Reported again every few seconds, but warned of once.
        assert federators[0].log.count("share name 'workers'") == 1
