"""Notices of the protocol: counted and logged."""

import logging

import pytest

from hanse.federator.notices import Notices
from hanse.protocol.effects import Emit


def test_a_notice_is_counted_and_logged_with_its_details(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    notices = Notices()
    notices.take(Emit("core_elected", group="a/#", core=0))
    notices.take(Emit("core_elected", group="b", core=0))
    notices.take(Emit("limit_reached", neighbour=3, detail="groups"))
    assert notices.counts == {"core_elected": 2, "limit_reached": 1}
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "core_elected group=a/# core=0"),
        ("INFO", "core_elected group=b core=0"),
        ("WARNING", "limit_reached detail=groups neighbour=3"),
    ]


def test_a_disabled_log_level_costs_no_formatting(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    notices = Notices()
    notices.take(Emit("core_elected", group="a"))
    assert notices.counts["core_elected"] == 1
    assert caplog.records == []
