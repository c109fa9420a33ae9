"""Security events at the link listener, and links that cannot be dialled."""

import logging

import pytest

from hanse.errors import Unavailable
from hanse.federator.link_events import EVENTS, REPEAT_S, LinkEvents


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_refused_peer_is_logged_with_its_address_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    events = LinkEvents()
    assert set(events.counts) == set(EVENTS)
    events.refused("link_refused", "10.0.0.9:77", "the manager does not know federator 9", claimed_id="9")
    assert events.counts["link_refused"] == 1
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("hanse.security", logging.WARNING)
    assert vars(record)["security"] == "link_refused"
    assert (vars(record)["address"], vars(record)["claimed_id"]) == ("10.0.0.9:77", "9")


def test_a_crowd_is_counted_and_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    events = LinkEvents(clock)
    for number in range(500):
        events.refused("tls_refused", f"10.0.0.9:{number}", "no TLS")
    assert events.counts["tls_refused"] == 500
    assert len(caplog.records) < 50
    clock.now_s += 60
    events.refused("tls_refused", "10.0.0.9:1", "no TLS")
    assert vars(caplog.records[-1])["lines_left_out"] > 400


def test_an_id_in_use_is_counted_at_each_attempt_and_logged_once_per_link(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    events = LinkEvents(clock)
    for port in range(120):
        events.refused("link_id_in_use", f"10.0.0.9:{port}", "in use", claimed_id="3")
        clock.now_s += 1
    assert (events.counts["link_id_in_use"], len(caplog.records)) == (120, 1)
    clock.now_s += REPEAT_S
    events.refused("link_id_in_use", "10.0.0.9:1", "in use", claimed_id="3")
    assert len(caplog.records) == 2
    events.ended(3)
    events.refused("link_id_in_use", "10.0.0.9:1", "in use", claimed_id="3")
    assert len(caplog.records) == 3


def test_a_failing_link_warns_once_for_each_reason_and_then_rarely(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    events = LinkEvents(clock)
    for _ in range(10):
        events.failed("mqtt://a", Unavailable("refused"))
    events.failed("mqtt://a", Unavailable("no answer"))
    events.failed("mqtt://b", Unavailable("refused"))
    assert [record.getMessage() for record in caplog.records] == [
        "link to mqtt://a failed: refused",
        "link to mqtt://a failed: no answer (and 9 times more since the last line)",
        "link to mqtt://b failed: refused",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    clock.now_s += REPEAT_S
    events.failed("mqtt://b", Unavailable("refused"))
    assert len(caplog.records) == 4
    events.succeeded("mqtt://b")
    events.failed("mqtt://b", Unavailable("refused"))
    assert len(caplog.records) == 5
