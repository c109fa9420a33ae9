"""The page of accounts: it parses again, and a malformed page is refused."""

import json
from typing import Any

import pytest
from tests.protocol.net import Desk, packet, publication

from hanse.errors import RemoteError
from hanse.federator import accounting
from hanse.federator.accounting import Accounting, read
from hanse.federator.reporter import FederatorReporter
from hanse.protocol.events import LinkDown
from hanse.protocol.messages import Announcement, ClaimChange, ClaimDelta, Run
from hanse.telemetry import FLOW_MEASURES


def desk() -> Desk:
    """Return federator 5, with the core 8 of `a/#` behind 1; two publications went there, one waits."""
    made = Desk()
    claims = (ClaimDelta(8, 1_000, 0, (ClaimChange("a/#", 100),)),)
    made.say(1, announcements=(Announcement(8, 1_000, 1, 1, 1),), claim_deltas=claims)
    made.machine.publish(3.0, [publication("a/x"), publication("a/y")])
    made.step(LinkDown(1))
    made.machine.publish(4.0, [publication("a/x")])
    return made


def test_a_page_parses_to_the_books_that_it_was_made_of() -> None:
    made = desk()
    page = Accounting(made.machine, lambda: 10.0)
    page.note_interest("b", is_added=True)
    page.note_interest("gone", is_added=True)
    page.note_interest("gone", is_added=False)
    page.note_interest("$hanse/federator/5", is_added=True)
    document = json.loads(page.page())
    books = read(document)
    assert (books.identity, list(books.interest), books.left_off) == (5, ["b"], 0)
    assert {row[:6] for row in books.rows} == {row[:6] for row in made.machine.accounts.rows()}
    assert [(row.groups, row.publications) for row in books.waiting] == [(("a/#",), 1)]
    (forwarded,) = [row for row in books.rows if row.measure == "forwarded"]
    assert document["at_us"] - forwarded.since == 7_000_000


def test_a_page_is_bounded_and_reports_its_omissions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "ROWS_MAX", 1)
    made = desk()
    page = Accounting(made.machine, lambda: 10.0)
    for group in ("b", "c"):
        page.note_interest(group, is_added=True)
    books = read(json.loads(page.page()))
    assert (len(books.rows), len(books.interest), len(books.waiting)) == (1, 1, 1)
    assert books.left_off == len(made.machine.accounts.rows()) - 1 + 1
    assert books.rows[0].publications == max(row.publications for row in made.machine.accounts.rows())


@pytest.mark.parametrize(
    "change",
    [
        {"accounts": [["published", 1]]},
        {"accounts": [["invented", 1, 1, ["a"], None, 1, 1, 1]]},
        {"accounts": [["published", "x", 1, ["a"], None, 1, 1, 1]]},
        {"accounts": 7},
        {"interest": [["a"]]},
        {"waiting": [[1]]},
        {"id": None},
    ],
)
def test_a_malformed_page_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(Accounting(desk().machine, lambda: 10.0).page())
    read(document)
    with pytest.raises(RemoteError, match="page of accounts is malformed"):
        read({**document, **change})


def test_telemetry_reports_flows_with_its_own_measures() -> None:
    made = desk()
    made.machine.forward(5.0, 2, [Run(8, 900, 0, 2, 0, 200, ("a/#",), packet("a/x") * 2)])
    reporter = FederatorReporter(
        5, is_wanted=lambda _: True, publish=lambda *_: None, flows=lambda: made.machine.flows, links=dict
    )
    found = {
        (row.origin, row.measure, row.reason): (row.destination, row.publications) for row in reporter._flow_rows()
    }
    assert found == {
        ("5", "published", None): (None, 3),
        ("5", "forwarded", None): (None, 2),
        ("8", "dropped", "hops"): ("5", 2),
    }
    assert {measure for _, measure, _ in found} <= set(FLOW_MEASURES)
