"""Notices of the protocol: counted and logged, many of one kind in one line."""

import logging
from collections.abc import Callable

import pytest

from hanse.federator.notices import Notices
from hanse.protocol.effects import Emit


class Scene:
    """Notices, and what they want to be called later."""

    def __init__(self, caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> None:
        # Another test of this process may have configured the logs of all of Hanse.
        caplog.set_level(level, logger="hanse")
        self._caplog = caplog
        self._calls: list[Callable[[], None]] = []
        self.notices = Notices(lambda _, call: self._calls.append(call))

    def pass_time(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    def said(self) -> list[tuple[str, str]]:
        found = [(record.levelname, record.message) for record in self._caplog.records]
        self._caplog.clear()
        return found


def test_notice_is_counted_and_logged_with_its_details(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(caplog)
    scene.notices.take(Emit("core_elected", group="a/#", core=0))
    scene.notices.take(Emit("core_elected", group="b", core=1))
    scene.notices.take(Emit("limit_reached", neighbour=3, detail="groups"))
    scene.notices.take(Emit("neighbour_lost", neighbour=3))
    assert scene.notices.counts == {"core_elected": 2, "limit_reached": 1, "neighbour_lost": 1}
    assert scene.said() == [
        ("INFO", "core_elected group=a/# core=0"),
        ("INFO", "core_elected group=b core=1"),
        ("WARNING", "limit_reached detail=groups neighbour=3"),
        ("INFO", "neighbour_lost neighbour=3"),
    ]
    scene.pass_time()
    assert scene.said() == []


def test_many_notices_of_one_kind_make_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(caplog)
    for k in range(1_000):
        scene.notices.take(Emit("core_elected", group=f"many/{k}", core=0))
    assert scene.said() == [("INFO", "core_elected group=many/0 core=0")]
    scene.pass_time()
    line = "core_elected core=0 for 999 more groups: many/1, many/2, many/3, ..."
    assert scene.said() == [("INFO", line)]
    assert scene.notices.counts["core_elected"] == 1_000
    scene.notices.take(Emit("core_elected", group="later", core=0))
    assert scene.said() == [("INFO", "core_elected group=later core=0")]


def test_few_notices_of_one_kind_are_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(caplog)
    for group in "abc":
        scene.notices.take(Emit("core_elected", group=group, core=0))
    scene.pass_time()
    assert [line for _, line in scene.said()] == [f"core_elected group={group} core=0" for group in "abc"]


def test_disabled_log_level_costs_no_formatting(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(caplog, logging.WARNING)
    scene.notices.take(Emit("core_elected", group="a"))
    assert scene.notices.counts["core_elected"] == 1
    assert scene.said() == []
