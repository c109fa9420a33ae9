"""Choice of the subscriptions that count as interest in the federation, and their filters.

Rules:
1. `$share/<name>/<filter>` is interest in `<filter>` (MQTT 5, section 4.8.2).
2. `$...` topics never leave their broker, except `$hanse/telemetry/...`. The federation's control topics do not either.
3. Filters that MQTT does not allow are refused (sections 4.7.1 and 4.7.3), and so are those beyond our limits.
"""

from hanse.errors import RemoteError

FILTER_BYTES_MAX = 65_535
# The federation supports topics of at most 200 levels. Mosquitto refuses deeper ones as malformed.
FILTER_LEVELS_MAX = 200
TELEMETRY_PREFIX = "$hanse/telemetry/"
CONTROL_FIRST_LEVEL = "federator"
CONTROL_TOPICS = frozenset({"federated_topology_ann", "NEW_REGULAR_TOPIC"})


class NotFederated(RemoteError):  # noqa: N818 - it names a state: this filter stays at its broker
    """The filter is valid, but publications that match it never leave the broker."""


def split_share(text: str) -> tuple[str | None, str]:
    """Return the share name (None for an ordinary subscription) and the filter behind it.

    Raises:
        RemoteError: `$share/` without a name or without a filter.
    """
    if not text.startswith("$share/"):
        return None, text
    name, slash, inner = text[len("$share/") :].partition("/")
    if not name or not slash or not inner or "+" in name or "#" in name:
        raise RemoteError(f"Saw a shared subscription of {len(text)} characters; expected `$share/<name>/<filter>`.")
    return name, inner


def check_filter(text: str) -> None:
    """Raise for a filter that the federation cannot forward.

    Raises:
        NotFederated: it is a valid filter, for topics that never leave the broker.
        RemoteError: it is not a filter, or beyond the limits.
    """
    if not text:
        raise RemoteError("Saw an empty filter; MQTT requires at least one character.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise RemoteError("Saw a filter with a lone surrogate, which MQTT forbids.") from error
    if size > FILTER_BYTES_MAX:
        raise RemoteError(f"Saw a filter of more than {FILTER_BYTES_MAX} bytes, the limit of MQTT.")
    if "\0" in text:
        raise RemoteError("Saw a filter with NUL, which MQTT forbids.")
    levels = text.split("/")
    if len(levels) > FILTER_LEVELS_MAX:
        raise RemoteError(f"Saw a filter of {len(levels)} levels; at most {FILTER_LEVELS_MAX} are federated.")
    if "#" in text or "+" in text:
        _check_wildcards(levels)
    if text.startswith("$") and not text.startswith(TELEMETRY_PREFIX):
        raise NotFederated("Topics that begin with `$` stay at their broker.")
    if levels[0] == CONTROL_FIRST_LEVEL or text in CONTROL_TOPICS:
        raise NotFederated("The federation does not forward its own control topics for clients.")


def _check_wildcards(levels: list[str]) -> None:
    for position, level in enumerate(levels):
        if "#" in level and (level != "#" or position != len(levels) - 1):
            raise RemoteError("Saw `#` within a level or before the last one; it must be a whole level, at the end.")
        if "+" in level and level != "+":
            raise RemoteError("Saw `+` within a level; it must be a whole level.")
