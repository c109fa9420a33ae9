"""Federators of a federation on one machine: their command line, and the test for convergence."""

import asyncio
import sys
from collections.abc import Sequence

from hanse.errors import Unavailable
from hanse.local.http import get_json
from hanse.local.supervise import Site

# Kinds of links that a federation on one machine supports.
LINKS = ("direct", "broker")


def agent_command(
    site: Site, link: str = "direct", manager: str | None = None, gateway_listen: str | None = None
) -> list[str]:
    """Return the command line of a site's federator; with a manager, it names no neighbours."""
    words = [sys.executable, "-m", "hanse.federator", "--id", str(site.k)]
    if not site.has_login:  # otherwise the environment holds the URL
        words += ["--broker", site.broker_url]
    if site.broker_socket is not None:
        words += ["--broker-socket", str(site.broker_socket)]
    if site.broker_output is not None:
        words += ["--broker-output", str(site.broker_output)]
    if site.lane_port is not None:
        words += ["--broker-lane", f"ws://127.0.0.1:{site.lane_port}"]
    words += ["--state-dir", str(site.directory / "federator"), "--metrics", f"127.0.0.1:{site.metrics_port}"]
    if gateway_listen is not None:
        words += ["--gateway-listen", gateway_listen]
    if link == "direct":
        words += ["--link-listen", site.link_url]
        neighbours = list(site.neighbours)
    else:
        words += ["--link", "broker"]
        neighbours = [f"{k}={url}" for k, url in site.neighbour_brokers]
    if manager is not None:
        words += ["--manager", manager]
        if site.has_login:
            words += ["--health-probe", "self"]  # the manager has no login at the broker
        return words
    for neighbour in neighbours:
        words += ["--neighbour", neighbour]
    return words


async def is_converged(sites: Sequence[Site]) -> bool:
    """Return whether every federator has its broker and neighbours, and all agree on the management group's core."""
    try:
        pages = await asyncio.gather(*(get_json(f"{site.metrics_url}/healthz") for site in sites))
    except Unavailable:
        return False
    cores = {page["management_core"] for page in pages}
    is_linked = all(
        page["broker"] == "connected" and len(page["neighbours"]) == len(site.neighbours_all)
        for page, site in zip(pages, sites, strict=True)
    )
    return is_linked and len(cores) == 1 and None not in cores
