"""Every reason for which a federator drops a publication, in one metric: `hanse_federator_dropped_total{reason}`.

Each reason exists from the start with 0, so an alert on its rate also fires for the first drop. The parts count drops
where they happen, in counters of their own; this module knows which counter means which reason. A reason that is not
listed here is shown as soon as it is counted, so nothing is hidden.
"""

from collections.abc import Mapping

# Reason to its meaning, as `docs/operating.md` shows it.
REASONS = {
    "link_full": "QoS 0, and a link was slower than the stream",
    "link_down": "QoS 0, and the link to a neighbour was down",
    "disconnected": "QoS 0, and the host broker was away",
    "slow_peer": "QoS 0, and the host broker was slower than the stream",
    "parked_full": "QoS 0 without a route, and more than 1 MiB waited for one",
    "parked_expired": "QoS 0, and no route appeared in time",
    "unknown_group": "no federator claims a group for the topic",
    "hops": "beyond the limit of hops",
    "too_large": "larger than 16 MiB, the limit of the federation",
    "packet_too_large": "larger than the session at the host broker accepts",
    "too_large_for_peer": "larger than the host broker's Maximum Packet Size",
    "refused_by_peer": "the host broker answered that it does not accept the publication",
    "properties": "from the host broker, with too many properties",
    "topic_name": "from an MQTT 3.1.1 broker, with a topic that is not valid",
    "outbox_oldest": "the outbox was full, with `outbox_overflow = drop-oldest`",
    "outbox_newest": "the outbox was full, with `outbox_overflow = drop-newest`",
    "expired_in_outbox": "its Message Expiry Interval passed in the outbox",
    "gate_malformed": "from a neighbour, and malformed",
    "gate_closed_topic": "from a neighbour, on a topic that never crosses",
    "gate_unportable": "from a neighbour, with a control character, for which Mosquitto ends the session",
    "control_link_full": "a control frame, not a publication; the next round sends it again",
    "acknowledgements_untold": "an acknowledgement, not a publication; the neighbour sends its publication again",
}
# Counters that have another name than their reason: those of the protocol, and those of the agent.
_PROTOCOL = {
    "dropped_too_large": "too_large",
    "dropped_hops": "hops",
    "dropped_unknown_group": "unknown_group",
    "dropped_link_down": "link_down",
    "dropped_parked_full": "parked_full",
    "parked_expired": "parked_expired",
}
_AGENT = {
    "dropped_outbox_oldest": "outbox_oldest",
    "dropped_outbox_newest": "outbox_newest",
    **{name: name for name in ("expired_in_outbox", "gate_malformed", "gate_closed_topic", "gate_unportable")},
}
# Duplicates that the session at the host finds: the first one of each was handed on.
_DUPLICATES = frozenset({"double_qos2", "answered_already", "held_already"})


def drops_by_reason(
    *, protocol: Mapping[str, int], agent: Mapping[str, int], sessions: tuple[Mapping[str, int], ...]
) -> dict[str, int]:
    """Return how many publications were dropped for each reason, 0 where none was.

    Args:
        protocol: counters of the machine.
        agent: counters of the agent and its parts.
        sessions: drops by reason, of links and of the session at the host broker.
    """
    found = dict.fromkeys(REASONS, 0)
    for drops in sessions:
        for reason, count in drops.items():
            if reason not in _DUPLICATES:
                found[reason] = found.get(reason, 0) + count
    for counters, names in ((protocol, _PROTOCOL), (agent, _AGENT)):
        for name, reason in names.items():
            found[reason] += counters.get(name, 0)
    return found
