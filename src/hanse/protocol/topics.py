"""Topic names and topic filters: validity, matching, covering, and which may leave their broker.

The rules:

- Text is compared code point by code point (MQTT 5, 4.7.3). Nothing is normalised, folded, trimmed or stripped: NFC and
  NFD of one word are two topics, and U+FEFF is a character like any other (1.5.4).
- What MQTT says MUST be refused is refused: the empty string, U+0000, lone surrogates, more than 65,535 bytes of UTF-8,
  a misplaced wildcard. What a receiver MAY refuse (control characters, non-characters) is accepted: the host broker let
  it pass, and a federation that dropped it would lose what one broker delivers.
- A shared subscription, `$share/<name>/<filter>`, matches and covers as the filter behind it does.
- `matches` is the plain reading of the MQTT rules and the yardstick for the trie. It is not made fast.

Except for the `check_` functions and `split_share`, arguments are expected to be valid.
"""

import re
from functools import lru_cache

from hanse.errors import RemoteError

# MQTT 5, 1.5.4: a string's length is two bytes on the wire. It cannot be larger, and a smaller bound would lose topics
# that brokers accept.
TOPIC_BYTES_MAX = 65_535

# More levels cost trie nodes and time for each level that a stranger sends. Fewer refuse deep but honest trees.
# Mosquitto has the same bound, since a topic of 65,535 slashes overflowed its stack.
LEVELS_MAX = 200

SHARE_PREFIX = "$share/"

# The only `$` tree that crosses, so that a collector anywhere can subscribe to it.
TELEMETRY_PREFIX = "$hanse/telemetry/"

# Control traffic of the link and the manager, and the manager's health probes. If they crossed, one broker's probe
# would be answered at another, and announcements would come from federators that are no neighbours.
NEVER_FEDERATED = ("federator/#", "federated_topology_ann", "hanse/probe/#")

# The same for names, which the data path looks up: a lookup and a comparison of prefixes.
_CLOSED_NAMES = frozenset(closed.removesuffix("/#") for closed in NEVER_FEDERATED)
_CLOSED_PREFIXES = tuple(closed.removesuffix("#") for closed in NEVER_FEDERATED if closed.endswith("#"))

# Nearly every filter: plain ASCII without a wildcard or a `$`, and too short to have too many levels.
_PLAIN = re.compile(rf"[ -\"%-*,-~]{{1,{LEVELS_MAX - 1}}}").fullmatch

_SHOWN_CHARACTERS_MAX = 60


def check_name(topic: str) -> None:
    """Refuse what cannot be the topic name of a publication.

    Raises:
        RemoteError: With a sentence that says which rule the name breaks.
    """
    _check_text(topic, "topic name")
    _check_levels(topic, "topic name", topic)
    if "+" in topic or "#" in topic:
        raise RemoteError(
            f"The topic name {_shown(topic)} holds a wildcard; + and # are for filters only, publish to a name "
            "without them."
        )


def check_filter(filter_: str) -> None:
    """Refuse what cannot be the topic filter of a subscription, shared or not.

    The levels of a shared subscription are counted behind its share name.

    Raises:
        RemoteError: With a sentence that says which rule the filter breaks.
    """
    if _PLAIN(filter_):
        return
    _check_text(filter_, "topic filter")
    _, behind = split_share(filter_)
    _check_levels(behind, "topic filter", filter_)
    if "+" not in behind and "#" not in behind:
        return
    levels = behind.split("/")
    if "#" in behind and (levels[-1] != "#" or behind.count("#") > 1):
        raise RemoteError(
            f"The topic filter {_shown(filter_)} has a misplaced #; it must be the whole last level, as in a/#."
        )
    for level in levels:
        if "+" in level and level != "+":
            raise RemoteError(
                f"The topic filter {_shown(filter_)} has + beside other characters; it must be a whole level, "
                "as in a/+/b."
            )


def split_share(filter_: str) -> tuple[str | None, str]:
    """Split a filter into the share name, or None, and the filter behind it (MQTT 5, 4.8.2).

    Raises:
        RemoteError: If it begins with `$share/` and is not `$share/<name>/<filter>`.
    """
    if not filter_.startswith(SHARE_PREFIX):
        return None, filter_
    share, _, behind = filter_[len(SHARE_PREFIX) :].partition("/")
    if not share or "+" in share or "#" in share or not behind:
        raise RemoteError(
            f"The shared subscription {_shown(filter_)} is malformed; expected $share/<name>/<filter> with a name "
            "that is not empty and holds no wildcard, and a filter that is not empty."
        )
    if behind.startswith(SHARE_PREFIX):
        raise RemoteError(
            f"The shared subscription {_shown(filter_)} shares a shared subscription; expected a plain filter "
            "behind the share name."
        )
    return share, behind


def matches(filter_: str, topic: str) -> bool:
    """Return whether a subscription to `filter_` receives what is published to `topic` (MQTT 5, 4.7)."""
    wanted = split_share(filter_)[1].split("/")
    levels = topic.split("/")
    # 4.7.2: a wildcard at the first level does not match a name that begins with $.
    if wanted[0] in ("+", "#") and topic.startswith("$"):
        return False
    for position, level in enumerate(wanted):
        if level == "#":
            return True  # 4.7.1.2: any number of further levels, and none (the parent)
        if position == len(levels) or level not in ("+", levels[position]):
            return False
    return len(wanted) == len(levels)


def covers(wide: str, narrow: str) -> bool:
    """Return whether `wide` matches every topic that `narrow` matches."""
    outer = split_share(wide)[1].split("/")
    inner = split_share(narrow)[1].split("/")
    if outer[0] in ("+", "#") and inner[0].startswith("$"):
        return False
    if inner == ["#"]:
        # Every name has a first level, so +/# means the same as #. Deeper down, a/+/# lacks the parent that a/# has.
        return outer in (["#"], ["+", "#"])
    for position, level in enumerate(outer):
        if level == "#":
            return True
        if position == len(inner) or inner[position] == "#" or level not in ("+", inner[position]):
            return False
    return len(outer) == len(inner)


def meet(one: str, other: str) -> bool:
    """Return whether there is a topic that both filters match."""
    left, right = split_share(one)[1].split("/"), split_share(other)[1].split("/")
    # 4.7.2, as in `matches`.
    if (left[0] in ("+", "#") and right[0].startswith("$")) or (right[0] in ("+", "#") and left[0].startswith("$")):
        return False
    for position in range(max(len(left), len(right))):
        # `#` also stands for no level at all: a/# and a meet.
        if (position < len(left) and left[position] == "#") or (position < len(right) and right[position] == "#"):
            return True
        if position == len(left) or position == len(right):
            return False
        if left[position] != right[position] and "+" not in (left[position], right[position]):
            return False
    return True


def may_cross(topic: str) -> bool:
    """Return whether a publication to `topic` may leave its broker if another federator wants it."""
    if topic.startswith("$"):
        return topic.startswith(TELEMETRY_PREFIX)
    return topic not in _CLOSED_NAMES and not topic.startswith(_CLOSED_PREFIXES)


@lru_cache(maxsize=65_536)
def filter_may_cross(filter_: str) -> bool:
    """Return whether `filter_` matches any topic that may cross.

    It may match others as well, as `#` does. Each name is checked by itself with `may_cross`.
    """
    behind = split_share(filter_)[1]
    if not behind.startswith("$"):
        return not any(covers(closed, behind) for closed in NEVER_FEDERATED)
    root, *below = behind.split("/")
    if root != "$hanse" or not below:
        return False
    return below[0] == "#" or (below[0] in ("+", "telemetry") and len(below) > 1)


def _check_text(text: str, what: str) -> None:
    if not text:
        raise RemoteError(f"The {what} is empty; expected at least one character.")
    # A character takes at least one byte, so a text that is far too long is refused before it is encoded.
    size_bytes = len(text)
    if size_bytes <= TOPIC_BYTES_MAX and not text.isascii():
        try:
            size_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise RemoteError(
                f"The {what} {_shown(text)} holds a lone surrogate at character {error.start}; expected text that "
                "UTF-8 can carry."
            ) from None
    if size_bytes > TOPIC_BYTES_MAX:
        raise RemoteError(
            f"The {what} {_shown(text)} takes {size_bytes} bytes or more; at most {TOPIC_BYTES_MAX} are allowed, "
            "shorten it."
        )
    if "\0" in text:
        raise RemoteError(f"The {what} {_shown(text)} holds U+0000, which MQTT forbids; leave it out.")


def _check_levels(text: str, what: str, whole: str) -> None:
    levels = text.count("/") + 1
    if levels > LEVELS_MAX:
        raise RemoteError(
            f"The {what} {_shown(whole)} has {levels} levels; at most {LEVELS_MAX} are allowed, use fewer slashes."
        )


def _shown(text: str) -> str:
    """Return as much of `text` as an error should repeat, with everything escaped that could forge a log line."""
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return ascii(text)
    return ascii(text[:_SHOWN_CHARACTERS_MAX]) + "..."
