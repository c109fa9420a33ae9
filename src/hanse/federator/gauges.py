"""The gauges that a federator shows Prometheus: each with the words that explain it and what reads it at a scrape."""

from collections.abc import Callable

from hanse.federator.host import HostSession
from hanse.federator.membership import MembershipShell
from hanse.federator.outbox import Outbox
from hanse.protocol.machine import Machine

# Name to words, and what reads it.
Gauges = dict[str, tuple[str, Callable[[], float]]]


def gauges(
    machine: Machine,
    host: HostSession,
    outbox: Outbox,
    *,
    filters: Callable[[], int],
    membership: Callable[[], MembershipShell | None],
) -> Gauges:
    """All of them; `filters` are those of local interest, `membership` is there with a manager."""
    return {**_of_protocol(machine), **_of_host(host), **_of_disk(outbox), **_of_manager(membership)} | {
        "filters": ("Filters of local interest.", filters)
    }


def _of_protocol(machine: Machine) -> Gauges:
    return {
        "groups": ("Groups known.", lambda: len(machine.groups())),
        "neighbours": ("Neighbours whose link is up.", lambda: len(machine.neighbours())),
        "parked_bytes": ("Publications of QoS 0 that wait for a way.", lambda: machine.parked_bytes),
        "in_custody": ("Publications of QoS 1 and 2 that some way has yet to take.", lambda: machine.in_custody),
        "retained_bytes": ("Publications kept for a while after.", lambda: machine.retained_bytes),
        "epoch": ("The boot epoch.", lambda: machine.epoch),
    }


def _of_host(host: HostSession) -> Gauges:
    client = host.client
    return {
        "host_connected": ("1 while the host broker lets us in.", lambda: client.is_connected),
        "host_subscriptions_refused": (
            "Subscriptions that the host refused: its ACL, or a limit of its.",
            lambda: host.refused_subscriptions,
        ),
        "host_lane": ("1 while streams of QoS 0 go to the host by the lane.", lambda: host.uses_lane),
        "host_unacknowledged": ("Deliveries that the host has not taken.", lambda: client.unacknowledged),
        "host_mqtt_version": ("The protocol level at the host: 5, or 4 (3.1.1).", lambda: client.traits.version),
        "host_properties_lost": (
            "Publications that the host, which speaks 3.1.1, got without their properties.",
            lambda: client.counters.properties_lost,
        ),
    }


def _of_disk(outbox: Outbox) -> Gauges:
    return {
        "outbox_bytes": ("What waits on disk.", lambda: outbox.bytes),
        "outbox_records": ("Batches that wait on disk.", lambda: outbox.records),
    }


def _of_manager(membership: Callable[[], MembershipShell | None]) -> Gauges:
    def is_away() -> bool:
        shell = membership()
        return shell is not None and shell.is_away

    def own_links() -> int:
        shell = membership()
        return 0 if shell is None else shell.own_links

    return {
        "manager_away": ("1 while no manager answers.", is_away),
        "own_links": ("Links made while no manager answered.", own_links),
    }
