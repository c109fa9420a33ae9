"""Access lists that close a broker's control topics to clients, one per vendor. docs/security.md shows them.

Mosquitto's list grants only what it names, so it is complete: a user who is not in it may do nothing.
"""

from collections.abc import Sequence

from hanse.errors import LocalError
from hanse.interest.mosquitto_log import CONNECTION, COUNT_TOPICS, LOG

# Topics on which a neighbour publishes here if links go through brokers: `federator/<kind>/<home>/<neighbour>`.
_CONTROL_KINDS = ("core_ann", "memb_ann", "routing", "ack", "probe")


def mosquitto_acl(identity: int, neighbours: Sequence[int] = (), *, user_prefix: str = "hanse-") -> str:
    """Return the `acl_file` for the broker of federator `identity`. The lines of clients follow below.

    Args:
        identity: federator of this broker.
        neighbours: federators that connect to this broker if links go through brokers; none with direct links.
        user_prefix: beginning of the federators' logins; the id follows.
    """
    counts = "\n".join(f"topic read {topic}" for topic in COUNT_TOPICS)
    parts = [
        f"""\
# The federator of this broker reads the clients' subscriptions and its own messages, and forwards publications.
user {user_prefix}{identity}
topic read {LOG}#
topic read {CONNECTION}+/state
{counts}
topic readwrite $hanse/telemetry/#
topic readwrite #
"""
    ]
    for neighbour in sorted(set(neighbours) - {identity}):
        topics = "\n".join(f"topic write federator/{kind}/{identity}/{neighbour}" for kind in _CONTROL_KINDS)
        parts.append(
            f"""\
# Federator {neighbour} publishes here in its own name, and reads nothing.
user {user_prefix}{neighbour}
{topics}
"""
        )
    parts.append("""\
# Every login may publish beacons, and nothing else below federator/.
pattern write federator/beacon/#

# Clients follow. Give each the topics that it needs, never `topic readwrite #`: that would open federator/ again.
# user app
# topic readwrite plant/#
""")
    return "\n".join(parts)


# Text by vendor.
ACLS = {"mosquitto": mosquitto_acl}


def acl_lines(vendor: str, identity: int, neighbours: Sequence[int] = ()) -> str:
    """Return the access list of a vendor.

    Raises:
        LocalError: There is no list for the vendor.
    """
    text = ACLS.get(vendor)
    if text is None:
        raise LocalError(
            f"No access list is known for vendor {vendor!r}; expected one of: {', '.join(sorted(ACLS))}. Close the "
            "topics below federator/ to clients with the means of that broker."
        )
    return text(identity, neighbours)
