"""A collector in a managed federation: its id admits it, and the manager's health checks reach it."""

from pathlib import Path

import pytest
from tests.federation import Client, eventually
from tests.managed import Managed
from tests.pipeline.collecting import LeafProcess

from hanse.telemetry import FILTER_ALL, HealthCheck, decode

pytestmark = pytest.mark.processes

LEAF = 1_000
INTERVAL = ("--announcement-interval", "500ms")


def checks(leaf: LeafProcess) -> list[tuple[dict[str, object], HealthCheck]]:
    """Return the health checks in the spool, each with its row."""
    return [
        (row, check)
        for row in leaf.rows()
        if "/health/" in row["topic"]
        for check in decode(row["topic"], row["payload"])
        if isinstance(check, HealthCheck)
    ]


@pytest.mark.slow
def test_a_leaf_unknown_to_the_manager_is_admitted_by_its_id_and_gets_health_checks(tmp_path: Path) -> None:
    with Managed(tmp_path, 2, federator_words=("--leaf", str(LEAF))) as federation:
        link = federation.link_url(1)
        with (
            LeafProcess(LEAF, [link], tmp_path / "spool", f"{FILTER_ALL},let/#", *INTERVAL) as leaf,
            LeafProcess(LEAF + 1, [link], tmp_path / "stranger", "let/#", *INTERVAL) as stranger,
        ):
            eventually(lambda: leaf.is_collecting, "the leaf has a link")
            eventually(lambda: "is not among the neighbours" in stranger.log, "another one is refused")

            def well() -> set[str]:
                return {one.target for _, one in checks(leaf) if one.is_ok}

            eventually(lambda: well() == {"0", "1"}, "a check of each federator is in the spool")
            for row, one in checks(leaf):
                assert str(row["topic"]).startswith("$hanse/telemetry/v1/health/manager-")
                assert row["origin_broker"] in {"0", "1"}
                if one.is_ok:
                    # One machine, one clock: the four times are in order, whichever process recorded them.
                    moments = (one.sent_at_us, one.received_at_us, one.answered_at_us, one.returned_at_us)
                    assert list(moments) == sorted(moment for moment in moments if moment is not None)
                    assert one.host == one.target_host
            # The manager does not know the leaf, and does not close its link either.
            assert set(federation.states()) == {0, 1}
            assert federation.linked(1) == {0, LEAF}
            with Client(federation.broker_ports[0]) as publisher:
                eventually(lambda: federation.knows("let/#"), "all know what it wants")
                publisher.publish("let/x", b"in", 1)
            eventually(lambda: any(row["topic"] == "let/x" for row in leaf.rows()), "what it wants arrives")
            federation.kill("federator 0")
            eventually(
                lambda: any(one.target == "0" and not one.is_ok for _, one in checks(leaf)), "a failed check", 30
            )
            (failed, *_) = [one for _, one in checks(leaf) if not one.is_ok]
            assert (failed.reason, failed.target_host, failed.returned_at_us) == ("federator", failed.host, None)
