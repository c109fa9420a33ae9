"""`hanse gateway explain`: where a client is placed and why."""

from collections.abc import Mapping
from typing import Any

from hanse.gateway.brokers.directory import Directory
from hanse.gateway.placement import HASH, Query, Ranking, rank
from hanse.gateway.session import BrokerLimits, minimum_of
from hanse.gateway.settings import GatewaySettings


def explain(
    settings: GatewaySettings,
    directory: Directory,
    limits: Mapping[str, BrokerLimits],
    client: str,
    topic: str | None,
    *,
    is_clean: bool,
) -> dict[str, Any]:
    """Return the ranking for a client, as JSON can carry it.

    `topic` is the filter of a client that is redirected; the place of a proxied client does not depend on it.
    `is_clean` says that the client has no session before and after its connection.
    """
    members = directory.members
    ranking = rank(Query(client.encode(), is_transient=is_clean), members, settings.policy)
    contract = minimum_of([limits[view.broker.id] for view in members if view.broker.id in limits])
    return {
        "client": client,
        "key": settings.placement_key,
        "site": settings.site,
        "version": directory.version,
        "policy": ranking.policy,
        "policy_reason": ranking.policy_reason,
        "topic": _on_topic(settings, topic),
        "broker": ranking.chosen.id if ranking.chosen is not None else None,
        "ranking": rows(ranking),
        "contract": {
            "receive_max": contract.receive_max,
            "qos_max": contract.qos_max,
            "packet_bytes_max": contract.packet_bytes_max,
            "keep_alive_s": contract.keep_alive_s,
        },
    }


def rows(ranking: Ranking) -> list[dict[str, Any]]:
    """Return each broker's place, with the reason."""
    return [
        {
            "broker": entry.broker.id,
            "url": entry.broker.url,
            "takes_clients": entry.is_candidate,
            "score": f"{entry.score:016x}",
            "reason": entry.reason,
        }
        for entry in ranking.entries
    ]


def _on_topic(settings: GatewaySettings, topic: str | None) -> str | None:
    if topic is None:
        return None
    if not any((one.mode or settings.mode) != "proxy" for one in settings.listeners()):
        return f"no part in the choice: the gateway proxies, and the broker is chosen by {HASH} before SUBSCRIBE"
    return topic
