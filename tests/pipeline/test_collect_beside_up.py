"""`hanse up --collect`: the collector subscribes before its federator can hear it, and gets everybody's telemetry."""

from pathlib import Path

import pytest
from tests.federation import RunningFederation, eventually
from tests.pipeline.collecting import spooled

from hanse.telemetry.topic import parse_topic

pytestmark = pytest.mark.processes


def reporters(spool: Path) -> set[tuple[str, str]]:
    """Return kind and reporter of everything in the spool."""
    rows = [row for producer in spool.iterdir() if producer.is_dir() for row in spooled(spool, producer.name)]
    found = [parse_topic(row["topic"]) for row in rows]
    return {(topic.kind, topic.reporter) for topic in found}


def test_the_telemetry_of_all_federators_is_collected(tmp_path: Path) -> None:
    with RunningFederation(tmp_path, 2, "--collect"):
        spool = tmp_path / "run" / "spool"
        eventually(
            lambda: {reporter for kind, reporter in reporters(spool) if kind != "health"} >= {"0", "1"},
            "rows of both federators are in the spool",
        )
