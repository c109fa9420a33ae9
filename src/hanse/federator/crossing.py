"""Rules for leaving and entering this broker, and the names on both sides.

There are two name spaces. A *local* name is the one that clients of this broker see. A *federation* name is the one
that links and groups use. Without a prefix they are the same. With the prefix P:

1. *Outward.* The local name T is always P/T in the federation, even if T itself begins with P.
2. *Inward.* The federation name P/T is T here, so that others reach this broker's own topics (`plants/7/cmd` arrives as
   `cmd`). Every other federation name keeps its name here. So `inward(outward(T)) == T`. Foreign and own names share
   the broker's one name space, so an own topic with the name of another broker's topic looks the same here.
   Only this broker is affected.
3. *Local interest* in the filter L is interest in each federation name whose local name matches L: those of P/L, and
   those that match L and lie outside P. `outward_filter` gives filters that cover exactly these or a little more.
   Publications in excess are published here under a name without subscribers.
4. *Interest elsewhere* in the federation filter G needs from this broker the local names T for which P/T matches G: at
   most one filter before the rules below, and often none, because no topics outside P can come from here.
5. Telemetry, `$hanse/telemetry/…`, names its origin itself and takes no prefix.

Permissions:

6. `export_…` and `import_…` apply to local names. A name crosses if no deny filter matches it, and an allow filter does
   or there is none. Telemetry needs no allow filter, but a deny filter that names it holds.
7. Filters are narrowed accordingly. With `import_allow` of `a/#`, a local `#` requests only `a/#` from the others.
   Filters of the others beyond `export_allow` are not even subscribed to at the host broker.
8. A topic that `topics.may_cross` closes stays closed under either name: `P/federator/…` does not become `federator/…`.
9. `federated_prefix`: a local `federated/T` is a publication on T (paper of 2022). The host session subscribes to
   `standing_filters`, exports the publication as T, and publishes `local_copy` for the subscribers of T here.

Arguments are valid names and filters. This module does no IO. It caches results, because a batch needs each name.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from hanse.errors import LocalError, RemoteError
from hanse.protocol.topics import (
    LEVELS_MAX,
    TELEMETRY_PREFIX,
    TOPIC_BYTES_MAX,
    check_filter,
    check_name,
    covers,
    filter_may_cross,
    matches,
    may_cross,
    split_share,
)

FEDERATED_PREFIX = "federated/"

# Names cached in each direction, with their answers: about 2 MB. More helps a broker with more hot topics than that.
_REMEMBERED_NAMES_MAX = 8_192


class Crossing:
    """Rules of one federator.

    Attributes:
        is_trivial: Nothing is configured: names stay the same, and only `topics.may_cross` applies. standing_filters:
            Filters that the host session subscribes to independently of interest elsewhere.
    """

    def __init__(
        self,
        *,
        export_allow: Sequence[str] = (),
        export_deny: Sequence[str] = (),
        import_allow: Sequence[str] = (),
        import_deny: Sequence[str] = (),
        prefix: str | None = None,
        federated_prefix: bool = False,
    ) -> None:
        """Refuse an invalid filter or prefix.

        Raises:
            LocalError: With a sentence that names it.
        """
        try:
            for filter_ in (*export_allow, *export_deny, *import_allow, *import_deny):
                check_filter(filter_)
            if prefix is not None:
                check_name(prefix)
        except RemoteError as error:
            raise LocalError(f"A setting of exports or imports is wrong: {error}") from error
        self._export_allow, self._export_deny = tuple(export_allow), tuple(export_deny)
        self._import_allow, self._import_deny = tuple(import_allow), tuple(import_deny)
        self._prefix = prefix or ""
        self._under = f"{prefix}/" if prefix else ""
        self._understands_federated = federated_prefix
        self.is_trivial = not (export_allow or export_deny or import_allow or import_deny or prefix or federated_prefix)
        self.standing_filters: tuple[str, ...] = (f"{FEDERATED_PREFIX}#",) if federated_prefix else ()
        # The hot path calls these once per publication. Each gives the permission and the name in one.
        self.leave: Callable[[str], str | None] = lru_cache(_REMEMBERED_NAMES_MAX)(self._leave)
        self.enter: Callable[[str], str | None] = lru_cache(_REMEMBERED_NAMES_MAX)(self._enter)

    # --- names ------------------------------------------------------------------------------------------------------

    def exports(self, topic: str) -> bool:
        """Return whether a publication to the local name `topic` may leave."""
        return self.leave(topic) is not None

    def imports(self, topic: str) -> bool:
        """Return whether a publication with the federation name `topic` may enter."""
        return self.enter(topic) is not None

    def outward(self, topic: str) -> str:
        """Return the federation name of a local one, even if it may not leave."""
        name = self._plain(topic)
        return name if name.startswith(TELEMETRY_PREFIX) else self._under + name

    def inward(self, topic: str) -> str | None:
        """Return the local name of a federation name, even if it may not enter; None if it has none (rule 8)."""
        if not may_cross(topic):
            return None
        if not self._under or not topic.startswith(self._under):
            return topic
        name = topic[len(self._under) :]
        return name if name and may_cross(name) and not name.startswith("$") else None

    def local_copy(self, topic: str) -> str | None:
        """Return the other name under which a host publication must appear there (rule 9); None for none."""
        name = self._plain(topic)
        return name if name is not topic and may_cross(name) else None

    def _leave(self, topic: str) -> str | None:
        """Return the federation name of a publication at the host; None if it stays."""
        name = self._plain(topic)
        if not may_cross(name) or not may_cross(topic):
            return None
        if not _is_allowed(name, self._export_allow, self._export_deny):
            return None
        outward = self.outward(topic)
        return outward if outward == topic or _fits(outward) else None

    def _enter(self, topic: str) -> str | None:
        """Return the local name of a publication from elsewhere; None if it may not enter."""
        name = self.inward(topic)
        return name if name is not None and _is_allowed(name, self._import_allow, self._import_deny) else None

    def _plain(self, topic: str) -> str:
        if self._understands_federated and topic.startswith(FEDERATED_PREFIX):
            return topic[len(FEDERATED_PREFIX) :] or topic
        return topic

    # --- filters ----------------------------------------------------------------------------------------------------

    def outward_filter(self, filter_: str) -> list[str]:
        """Return the federation filters for the local interest `filter_` (rules 3 and 7), sorted."""
        _, wanted = split_share(filter_)
        found: set[str] = set()
        for narrow in _narrowed(wanted, self._import_allow, self._import_deny):
            if not self._under or narrow.startswith("$"):
                found.add(narrow)
                continue
            if _fits(self._under + narrow):
                found.add(self._under + narrow)
            # A filter wholly below P has another name here. P itself, which P/# also matches, lies outside.
            if not covers(f"{self._under}#", narrow) or matches(narrow, self._prefix):
                found.add(narrow)
        return _widest(filter(filter_may_cross, found))

    def inward_filter(self, filter_: str) -> list[str]:
        """Return the host subscriptions for the interest elsewhere in `filter_` (rules 4 and 7), sorted."""
        _, wanted = split_share(filter_)
        if not filter_may_cross(wanted):
            return []
        local = wanted if wanted.startswith("$") else self._below_prefix(wanted)
        if local is None:
            return []
        return _widest(_narrowed(local, self._export_allow, self._export_deny))

    def _below_prefix(self, wanted: str) -> str | None:
        """Return the filter of the names T for which P/T matches `wanted`; None if there are none."""
        if not self._under:
            return wanted
        levels = wanted.split("/")
        ours = self._prefix.split("/")
        for level, own in zip(levels, ours, strict=False):
            if level == "#":
                return "#"
            if level not in ("+", own):
                return None
        rest = levels[len(ours) :]
        if not rest:
            return None
        local = "/".join(rest)
        # An empty rest is the name P/, which has no name here. A `$` at the front never leaves under another name.
        return None if not local or local.startswith("$") else local


class FilterCounts:
    """Filters of one name space held by filters of the other. Several may map to one, which ends with the last.

    Args:
        mapping: `Crossing.outward_filter` for interest, `Crossing.inward_filter` for host subscriptions.
    """

    def __init__(self, mapping: Callable[[str], list[str]]) -> None:
        self._mapping = mapping
        self._holders: dict[str, dict[str, int]] = {}
        self._held: dict[str, list[str]] = {}

    def apply(
        self, wanted: Iterable[tuple[str, int]], removed: Iterable[str]
    ) -> tuple[list[tuple[str, int]], list[str]]:
        """Add filters with their QoS, new or changed, and remove filters that ended.

        Returns:
            Mapped filters that are new or whose largest QoS changed, and those that no filter holds any more; sorted.
        """
        before: dict[str, int | None] = {}
        for filter_ in removed:
            for mapped in self._held.pop(filter_, ()):
                before.setdefault(mapped, self._qos(mapped))
                del self._holders[mapped][filter_]
        for filter_, qos in wanted:
            if filter_ not in self._held:
                self._held[filter_] = self._mapping(filter_)
            for mapped in self._held[filter_]:
                before.setdefault(mapped, self._qos(mapped))
                self._holders.setdefault(mapped, {})[filter_] = qos
        changed: list[tuple[str, int]] = []
        ended: list[str] = []
        for mapped in sorted(before):
            qos_now = self._qos(mapped)
            if qos_now is None:
                self._holders.pop(mapped, None)
                if before[mapped] is not None:
                    ended.append(mapped)
            elif qos_now != before[mapped]:
                changed.append((mapped, qos_now))
        return changed, ended

    def filters(self) -> dict[str, int]:
        """Return all mapped filters with their largest QoS, sorted."""
        return {mapped: max(holders.values()) for mapped, holders in sorted(self._holders.items())}

    def _qos(self, mapped: str) -> int | None:
        holders = self._holders.get(mapped)
        return max(holders.values()) if holders else None


def intersection(one: str, other: str) -> str | None:
    """Return the filter of the names that both match; None if there are none. It is never more than one filter."""
    mine, theirs = one.split("/"), other.split("/")
    # MQTT 5, 4.7.2: a wildcard at the first level does not match a name that begins with $.
    if (mine[0] in ("+", "#") and theirs[0].startswith("$")) or (theirs[0] in ("+", "#") and mine[0].startswith("$")):
        return None
    both: list[str] = []
    for position in range(max(len(mine), len(theirs)) + 1):
        # 4.7.1.2: # matches any number of levels, and none, so the rest of the other filter is the intersection.
        if mine[position : position + 1] == ["#"]:
            return "/".join(both + theirs[position:])
        if theirs[position : position + 1] == ["#"]:
            return "/".join(both + mine[position:])
        if position == len(mine) or position == len(theirs):
            break
        if mine[position] != theirs[position] and "+" not in (mine[position], theirs[position]):
            return None
        both.append(theirs[position] if mine[position] == "+" else mine[position])
    return "/".join(both) if len(mine) == len(theirs) else None


def _is_allowed(name: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> bool:
    if any(matches(filter_, name) for filter_ in deny):
        return False
    return not allow or name.startswith(TELEMETRY_PREFIX) or any(matches(filter_, name) for filter_ in allow)


def _narrowed(wanted: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> list[str]:
    """Return the parts of a filter that the rules leave.

    Deny filters cut nothing out, because names are checked as well.
    """
    parts: list[str] = [wanted]
    if allow and not wanted.startswith("$"):
        parts = [part for filter_ in allow if (part := intersection(wanted, filter_)) is not None]
    return [part for part in parts if filter_may_cross(part) and not any(covers(filter_, part) for filter_ in deny)]


def _widest(filters: Iterable[str]) -> list[str]:
    """Return the filters that no other one covers, sorted."""
    distinct = sorted(set(filters))
    return [
        one
        for one in distinct
        # Of two that cover each other (`#` and `+/#`), the first stays.
        if not any(covers(other, one) and (not covers(one, other) or other < one) for other in distinct if other != one)
    ]


def _fits(text: str) -> bool:
    return text.count("/") < LEVELS_MAX and len(text.encode()) <= TOPIC_BYTES_MAX
