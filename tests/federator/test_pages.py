"""The pages of federators whose machines have converged: their statements about themselves and the groups."""

import json
from collections import Counter
from typing import Any

from tests.protocol.net import Network

from hanse.federator.http import Reply
from hanse.federator.pages import Pages

LINE = [(0, 1), (1, 2)]


def pages_of(
    net: Network,
    k: int,
    *,
    is_host_up: bool = True,
    membership: dict[str, object] | None = None,
    unlinked: tuple[str, ...] = (),
) -> Pages:
    return Pages(
        net.machines[k],
        is_host_up=lambda: is_host_up,
        joined=lambda: frozenset({9, 3}),
        unlinked=lambda: list(unlinked),
        counters=Counter(delivered=5),
        interest=lambda: {"unknown": 2},
        membership=lambda: membership,
        metrics=lambda: "hanse_up 1\n",
        accounts=lambda: '{"accounts": []}',
    )


def line() -> Network:
    net = Network(3, LINE)
    net.subscribe(0, "a/#")
    net.subscribe(1, "a/#")
    net.run(6.0)
    return net


def document(reply: Reply, status: int = 200) -> dict[str, Any]:
    assert reply[0] == status
    found = json.loads(reply[2])
    assert isinstance(found, dict)
    return found


def test_health_shows_the_broker_the_links_and_the_counts() -> None:
    net = line()
    found = document(pages_of(net, 1, membership={"state": "up"}).health())
    assert found["id"] == 1
    assert found["broker"] == "connected"
    assert found["neighbours"] == [0, 2]
    assert found["management_core"] == 0
    assert found["joined_by_bridges"] == [3, 9]
    assert found["membership"] == {"state": "up"}
    assert found["interest"] == {"unknown": 2}
    assert found["counters"]["delivered"] == 5
    assert found["counters"].items() >= {key: count for key, count in net.machines[1].counters.items() if count}.items()


def test_a_federator_whose_broker_is_away_is_unhealthy() -> None:
    found = document(pages_of(line(), 1, is_host_up=False).health(), 503)
    assert found["broker"] == "away"
    assert found["membership"] is None


def test_a_federator_is_ready_only_with_a_link_to_each_neighbour_that_it_should_have() -> None:
    net = line()
    assert document(pages_of(net, 1).health())["ready"] is True
    found = document(pages_of(net, 1, unlinked=("10.0.0.9:1884",)).health())
    assert found["ready"] is False
    assert found["unlinked"] == ["10.0.0.9:1884"]


def test_each_federator_shows_its_own_place_in_a_group() -> None:
    net = line()
    rows = [
        next(row for row in document(pages_of(net, k).groups())["groups"] if row["group"] == "a/#") for k in range(3)
    ]
    assert [row["role"] for row in rows] == ["core", "member", "outsider"]
    assert [row["core"] for row in rows] == [0, 0, 0]
    assert [row["distance"] for row in rows] == [0, 1, 2]
    assert [row["parents"] for row in rows] == [[], [0], [1]]
    assert [row["mesh"] for row in rows] == [[1], [0], []]
    assert [row["interest"] for row in rows] == [True, True, False]


def test_the_manager_gets_fewer_fields_and_a_limited_number_of_rows() -> None:
    net = line()
    pages = pages_of(net, 1)
    every = pages.reported_groups(100)
    assert {"group": "a/#", "core": 0, "parents": [0], "mesh": [0], "interest": True} in every
    assert len(every) > 1, "the management group is one too"
    assert pages.reported_groups(1) == every[:1]


def test_every_route_is_answered() -> None:
    routes = pages_of(line(), 0).routes()
    assert {path: route()[0] for path, route in routes.items()} == dict.fromkeys(
        ("/metrics", "/healthz", "/groups", "/accounts"), 200
    )
    assert routes["/metrics"]()[2] == "hanse_up 1\n"
    assert routes["/accounts"]()[2] == '{"accounts": []}'
