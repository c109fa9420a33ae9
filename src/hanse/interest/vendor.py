"""What a broker's own configuration needs, so that its subscriptions become known: one text a vendor."""

from hanse.errors import LocalError
from hanse.interest.mosquitto_log import CONNECTION, LOG

MOSQUITTO_LOG_TYPES = ("error", "warning", "notice", "information", "subscribe", "unsubscribe")


def mosquitto(*, log_file: str | None = None) -> str:
    """The lines for `mosquitto.conf`, 1.4 to 2.1; with `log_file` for the `mosquitto-file` adapter."""
    destination = f"log_dest file {log_file}" if log_file else "log_dest topic"
    types = "\n".join(f"log_type {kind}" for kind in MOSQUITTO_LOG_TYPES)
    reader = (
        "# The federator's user has to be allowed to read that file."
        if log_file
        else f"# With an ACL, its user needs:\n#   topic read {LOG}#\n#   topic read {CONNECTION}+/state"
    )
    return f"""\
# Hanse: what lets a federator know of subscriptions. One line each for subscribe, unsubscribe, connect, disconnect.
{destination}
# `log_dest` adds up, but one of them replaces the default: repeat where else the log should go.
log_dest stderr
# Any `log_type` replaces the default set, so the usual ones are repeated beside the two that are needed.
{types}
# Connects and disconnects tell when a subscription ends with its session.
connection_messages true
{reader}
"""


# Vendor word to its text.
VENDORS = {"mosquitto": mosquitto}


def lines(vendor: str, *, log_file: str | None = None) -> str:
    """The configuration of a vendor.

    Raises:
        LocalError: no such vendor.
    """
    text = VENDORS.get(vendor)
    if text is None:
        raise LocalError(
            f"No configuration is known for vendor {vendor!r}; expected one of: {', '.join(sorted(VENDORS))}. "
            "For other brokers use static filters, beacons, or the gateway."
        )
    return text(log_file=log_file)
