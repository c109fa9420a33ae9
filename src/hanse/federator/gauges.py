"""Gauges of a federator for Prometheus: each with its help text and the function that reads it at a scrape."""

from collections.abc import Callable

from hanse.federator.host import HostSession
from hanse.federator.membership import MembershipShell
from hanse.federator.outbox import Outbox
from hanse.federator.retained import RetainedState
from hanse.interest.ledger import LedgerState
from hanse.protocol.machine import Machine

# Name to help text and reader.
Gauges = dict[str, tuple[str, Callable[[], float]]]


def gauges(
    machine: Machine,
    host: HostSession,
    outbox: Outbox,
    *,
    filters: Callable[[], int],
    unknown: Callable[[], LedgerState | None],
    membership: Callable[[], MembershipShell | None],
    retained: Callable[[], RetainedState],
) -> Gauges:
    """Return all gauges; `unknown` is None without an adapter that counts, `membership` without a manager."""
    return {
        **_of_protocol(machine),
        **_of_host(host),
        **_of_disk(outbox),
        **_of_interest(unknown),
        **_of_manager(membership),
        **_of_retained(retained),
        "filters": ("Filters of local interest.", filters),
    }


def _of_interest(unknown: Callable[[], LedgerState | None]) -> Gauges:
    def is_counted() -> bool:
        state = unknown()
        return state is not None and state.unknown is not None

    def read(name: str) -> Callable[[], float]:
        return lambda: getattr(unknown(), name, None) or 0

    return {
        "interest_counted": (
            "1 while the host broker's count of subscriptions is compared with those that are known.",
            is_counted,
        ),
        "interest_unknown": (
            "Subscriptions that the host broker counts and that are unknown here; nothing crosses for them.",
            read("unknown"),
        ),
        "interest_ended_unseen": (
            "Known subscriptions that the host broker does not count any more.",
            read("ended_unseen"),
        ),
        "interest_doubtful": ("Known subscriptions that may have ended.", read("doubtful")),
    }


def _of_protocol(machine: Machine) -> Gauges:
    return {
        "groups": ("Groups known.", lambda: len(machine.groups())),
        "neighbours": ("Neighbours whose link is up.", lambda: len(machine.neighbours())),
        "parked_bytes": ("Publications of QoS 0 that wait for a route.", lambda: machine.parked_bytes),
        "in_custody": (
            "Publications of QoS 1 and 2 that some destination has not acknowledged.",
            lambda: machine.in_custody,
        ),
        "retained_bytes": ("Publications kept for a while after their delivery.", lambda: machine.retained_bytes),
        "epoch": ("The boot epoch.", lambda: machine.epoch),
    }


def _of_host(host: HostSession) -> Gauges:
    client = host.client
    return {
        "host_connected": ("1 while the host broker is connected.", lambda: client.is_connected),
        "host_subscriptions_refused": (
            "Subscriptions that the host broker refused by its ACL or a limit.",
            lambda: host.refused_subscriptions,
        ),
        "host_lane": ("1 while streams of QoS 0 use the bulk connection to the host broker.", lambda: host.uses_lane),
        "host_unacknowledged": ("Deliveries that the host broker has not acknowledged.", lambda: client.unacknowledged),
        "host_mqtt_version": ("Protocol level at the host broker: 5, or 4 (3.1.1).", lambda: client.traits.version),
    }


def _of_disk(outbox: Outbox) -> Gauges:
    return {
        "outbox_bytes": ("Bytes that wait on disk.", lambda: outbox.bytes),
        "outbox_records": ("Batches that wait on disk.", lambda: outbox.records),
    }


def _of_retained(retained: Callable[[], RetainedState]) -> Gauges:
    return {
        "retained_topics": ("Topics in the book of retained state.", lambda: retained().topics),
        "retained_lingering": (
            "Filters without a subscriber whose copies are kept fresh.",
            lambda: retained().lingering,
        ),
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
