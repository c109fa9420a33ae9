"""What closes a broker's control topics to clients: one access list a vendor. docs/security.md shows it.

Mosquitto's list grants what it names and nothing else, so it is complete: whoever is not in it may do nothing.
"""

from collections.abc import Sequence

from hanse.errors import LocalError
from hanse.interest.mosquitto_log import CONNECTION, COUNT_TOPICS, LOG

# What a neighbour publishes here where links go by way of brokers: `federator/<kind>/<home>/<neighbour>`.
_CONTROL_KINDS = ("core_ann", "memb_ann", "routing", "ack", "probe")


def mosquitto_acl(identity: int, neighbours: Sequence[int] = (), *, user_prefix: str = "hanse-") -> str:
    """The `acl_file` of the broker where federator `identity` is at home; clients' own lines go below.

    Args:
        identity: the federator beside this broker.
        neighbours: the federators that come to this broker, where links go by way of brokers; none with direct links.
        user_prefix: what the federators' logins begin with; the id follows.
    """
    counts = "\n".join(f"topic read {topic}" for topic in COUNT_TOPICS)
    parts = [
        f"""\
# The federator at home: it hears what clients subscribe to and what is addressed to it, and carries the rest.
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
# Federator {neighbour} says here what it has to say, in its own name, and reads nothing.
user {user_prefix}{neighbour}
{topics}
"""
        )
    parts.append("""\
# Every login: beacons, and nothing else below federator/.
pattern write federator/beacon/#

# Clients follow. Give each the trees that it needs, never `topic readwrite #`: that would open federator/ again.
# user app
# topic readwrite plant/#
""")
    return "\n".join(parts)


# Vendor word to its text.
ACLS = {"mosquitto": mosquitto_acl}


def acl_lines(vendor: str, identity: int, neighbours: Sequence[int] = ()) -> str:
    """The access list of a vendor.

    Raises:
        LocalError: no such vendor.
    """
    text = ACLS.get(vendor)
    if text is None:
        raise LocalError(
            f"No access list is known for vendor {vendor!r}; expected one of: {', '.join(sorted(ACLS))}. Close the "
            "topics below federator/ to clients by that broker's own means."
        )
    return text(identity, neighbours)
