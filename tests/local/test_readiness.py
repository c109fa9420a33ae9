"""Obstacles to readiness, from health pages and from the manager's topology."""

from typing import Any

import pytest

from hanse.local.readiness import missing_at_federators, missing_at_manager, shown


def page(identity: int, neighbours: list[int], **more: Any) -> dict[str, Any]:
    return {"id": identity, "neighbours": neighbours, "management_core": 0, "broker": "connected", **more}


def test_line_of_three_is_ready() -> None:
    pages = {"a": page(0, [1]), "b": page(1, [0, 2]), "c": page(2, [1])}
    assert missing_at_federators(pages) == []
    assert missing_at_federators(pages, 3) == []
    assert missing_at_federators(pages, 4) == ["3 of 4 federators are linked"]


def test_federators_may_be_linked_through_one_that_was_not_asked() -> None:
    assert missing_at_federators({"a": page(0, [1]), "c": page(2, [1])}, 3) == []


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (None, "b does not answer"),
        ({}, "b is not the page of a federator"),
        (page(1, [0], broker="away"), "federator 1 is not connected to its host broker"),
        (page(1, [0], management_core=None), "federator 1 knows no core of the federation"),
        (page(1, [0], management_core=1), "the federators disagree on the core of the federation: 0, 1"),
        (page(1, [0], unlinked=["7"]), "federator 1 has no link to its neighbour 7"),
        (page(1, []), "federator 1 has no route to federator 0"),
        (page(0, [1]), "b is federator 0, which another address is, too"),
    ],
)
def test_obstacles_at_a_federator_are_named(second: dict[str, Any] | None, says: str) -> None:
    assert missing_at_federators({"a": page(0, [1]), "b": second}) == [says]


def view(*states: str, **more: Any) -> dict[str, Any]:
    federators = [{"id": k, "state": state} for k, state in enumerate(states)]
    return {"federators": federators, "isLeading": True, "isConnected": True, **more}


@pytest.mark.parametrize(
    ("found", "count", "missing"),
    [
        (view("up", "up", "left", "revoked"), 2, []),
        (view("up", "gone"), None, ["federator 1 is gone"]),
        (view(), None, ["0 of 1 federators have joined"]),
        (view("up"), 3, ["1 of 3 federators have joined"]),
        (view("up", isLeading=False), None, ["the manager does not lead"]),
        (view("up", isConnected=False), None, ["the overlay is not connected"]),
        ({"detail": "no"}, None, ["the answer is not a manager's topology"]),
    ],
)
def test_obstacles_at_the_manager_are_named(found: dict[str, Any], count: int | None, missing: list[str]) -> None:
    assert missing_at_manager(found, count) == missing


def test_many_sentences_are_cut() -> None:
    assert shown(["a", "b"]) == "a; b"
    assert shown(["a"] * 12) == "a; a; a; a; a; a; a; a; a; a; and 2 more"
