import dataclasses

import pytest

from hanse.errors import LocalError
from hanse.telemetry import Contract, Reporter, ResourceSample, TopologyEvent, decode

SAMPLE = ResourceSample(2, 1, "h", "federator", 3, 4)
EVENT = TopologyEvent(1, "join", "7", None, None)


def test_a_flush_hands_out_each_row_once_on_the_topic_of_its_kind() -> None:
    reporter = Reporter("7")
    rows: list[Contract] = [SAMPLE, EVENT, dataclasses.replace(SAMPLE, at_us=3)]
    assert all(reporter.add(row) for row in rows)
    sent = reporter.flush()
    assert [topic for topic, _ in sent] == ["$hanse/telemetry/v1/topology/7", "$hanse/telemetry/v1/resource/7"]
    assert [row for topic, payload in sent for row in decode(topic, payload)] == [EVENT, rows[0], rows[2]]
    assert reporter.flush() == []


def test_rows_beyond_the_limit_are_dropped_and_counted_by_kind() -> None:
    reporter = Reporter("7", rows_max=2)
    assert [reporter.add(SAMPLE) for _ in range(4)] == [True, True, False, False]
    assert reporter.add(EVENT)
    assert (reporter.dropped["resource"], reporter.dropped["topology"]) == (2, 0)
    reporter.flush()
    assert reporter.add(SAMPLE)


def test_a_bad_row_fails_one_flush_and_not_the_next() -> None:
    reporter = Reporter("7")
    reporter.add(dataclasses.replace(SAMPLE, cpu_us=-1))
    with pytest.raises(LocalError, match="got -1"):
        reporter.flush()
    reporter.add(SAMPLE)
    assert len(reporter.flush()) == 1


def test_a_reporter_needs_an_id_that_fits_a_topic_and_capacity_for_a_row() -> None:
    with pytest.raises(LocalError, match="cannot report telemetry"):
        Reporter("a/b")
    with pytest.raises(LocalError, match="rows_max is 0"):
        Reporter("7", rows_max=0)
