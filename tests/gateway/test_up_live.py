"""`hanse up` starts one gateway, and its URL is in the state file."""

from pathlib import Path

import pytest
from tests.federation import Client, RunningFederation, eventually
from tests.gateway.placing import name_at

pytestmark = pytest.mark.processes


def test_clients_of_the_gateway_meet_over_the_federation(tmp_path: Path) -> None:
    with RunningFederation(tmp_path, 2, gateway=True) as federation:
        url = federation.state["gateway"]
        port = int(url.rpartition(":")[2])
        with Client(port, name=name_at("0", "01")) as reader, Client(port, name=name_at("1", "01")) as writer:
            reader.subscribe("up/#")
            eventually(lambda: federation.knows("up/#"), "both federators know the group")
            writer.publish("up/there", b"hi")
            assert [message.payload for message in reader.expect(1)] == [b"hi"]
