"""Readiness of a federation: messages published at one of its brokers reach the others.

Pure: health pages of federators and the manager's topology go in, and sentences about what is not ready come out.
"""

from collections.abc import Mapping
from typing import Any

# Sentences at most; the rest is counted.
_SHOWN_MAX = 10


def missing_at_federators(pages: Mapping[str, Mapping[str, Any] | None], count: int | None = None) -> list[str]:
    """Return what is not ready at federators.

    Args:
        pages: URL of each federator's metrics to its `/healthz`; None if it does not answer.
        count: number of federators that the federation has; None if it is not known.
    """
    missing: list[str] = []
    around: dict[int, set[int]] = {}
    cores: dict[int, int | None] = {}
    for url, page in sorted(pages.items()):
        try:
            if page is None:
                missing.append(f"{url} does not answer")
                continue
            identity, neighbours = int(page["id"]), {int(one) for one in page["neighbours"]}
            core = page["management_core"]
            if page["broker"] != "connected":
                missing.append(f"federator {identity} is not connected to its host broker")
            missing += [f"federator {identity} has no link to its neighbour {one}" for one in page.get("unlinked", ())]
        except (KeyError, TypeError, ValueError):
            missing.append(f"{url} is not the page of a federator")
            continue
        if identity in around:
            missing.append(f"{url} is federator {identity}, which another address is, too")
        around[identity] = neighbours
        cores[identity] = core
    missing += [
        f"federator {identity} knows no core of the federation" for identity in cores if cores[identity] is None
    ]
    known = {core for core in cores.values() if core is not None}
    if len(known) > 1:
        missing.append(f"the federators disagree on the core of the federation: {', '.join(map(str, sorted(known)))}")
    missing += _apart(around)
    if count is not None and not missing and len(found := _all(around)) < count:
        missing.append(f"{len(found)} of {count} federators are linked")
    return missing


def missing_at_manager(view: Mapping[str, Any], count: int | None = None) -> list[str]:
    """Return what is not ready in the topology of a manager."""
    try:
        living = [one for one in view["federators"] if one["state"] not in {"left", "revoked"}]
        missing = [f"federator {one['id']} is {one['state']}" for one in living if one["state"] != "up"]
        if not view["isLeading"]:
            missing.append("the manager does not lead")
        if len(living) < (count or 1):
            missing.append(f"{len(living)} of {count or 1} federators have joined")
        elif not view["isConnected"]:
            missing.append("the overlay is not connected")
    except (KeyError, TypeError):
        return ["the answer is not a manager's topology"]
    return missing


def shown(missing: list[str]) -> str:
    """Return the first sentences, and how many more there are."""
    more = len(missing) - _SHOWN_MAX
    return "; ".join(missing[:_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def _all(around: Mapping[int, set[int]]) -> set[int]:
    return set(around).union(*around.values())


def _apart(around: Mapping[int, set[int]]) -> list[str]:
    """Return which federators are not linked with the first one, over any number of links that both ends see."""
    if len(around) < 2:
        return []
    links: dict[int, set[int]] = {one: set() for one in _all(around)}
    for one, neighbours in around.items():
        for other in neighbours:
            if other not in around or one in around[other]:
                links[one].add(other)
                links[other].add(one)
    first = min(around)
    reached, left = {first}, [first]
    while left:
        for other in links[left.pop()] - reached:
            reached.add(other)
            left.append(other)
    return [f"federator {one} has no route to federator {first}" for one in sorted(set(around) - reached)]
