"""`hanse up` beside a broker that has clients already."""

from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import Client, RunningFederation, eventually
from tests.federators import LOG_LINES

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_unknown_subscriptions_are_shown_with_the_remedy(tmp_path: Path) -> None:
    with Mosquitto(*LOG_LINES, "sys_interval 1") as given, Client(given.port) as early:
        early.subscribe("early/#")
        words = ["--no-manager", "--broker-url", f"mqtt://127.0.0.1:{given.port}"]
        with RunningFederation(tmp_path, 1, *words):
            warning = "federator 1: 1 subscriptions at its broker are unknown. Until their clients subscribe again"
            eventually(lambda: warning in (tmp_path / "up.log").read_text(), "the warning is printed")
