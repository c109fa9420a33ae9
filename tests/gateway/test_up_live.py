"""`hanse up` starts one gateway, and its URL is in the state file."""

from pathlib import Path

import pytest
from tests.federation import Client, RunningFederation, eventually
from tests.gateway.placing import name_at
from tests.gateway.test_redirect_live import redirected
from tests.gateways import Gateway, wait_until

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
        # A client that says that it follows is sent to the broker of its topics.
        with Client(federation.port(1)) as there:
            there.subscribe("up/redirect")
            names = (b"follows%d" % k for k in range(1_000))
            follows = ((b"server-reference", b"follow"),)
            target = (0x9C, f"127.0.0.1:{federation.port(1)}")

            def is_known() -> bool:
                # One alone may be chance: without the groups, clients are spread.
                return all(redirected(port, next(names), b"up/redirect", say=follows) == target for _ in range(5))

            wait_until(is_known, "the gateway knows the groups")
        for k in range(2):
            log = tmp_path / "run" / f"site-{k}" / "federator" / "output.log"
            wait_until(lambda log=log: "connected from" in log.read_text(), "the gateway at the federator")  # type: ignore[misc]
        # A gateway that knows nothing but the manager learns where federators listen.
        words = ("--manager", federation.state["manager"], "--manager-interval", "200ms")
        with Gateway(tmp_path / "second", words=words) as second:
            wait_until(lambda: second.log.count("connected to federator") == 2, "connections to both federators")
