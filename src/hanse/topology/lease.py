"""Who of several managers leads. Pure: what was read from the store and a monotonic time in, what to do out.

Rules:

1. The holder counts the beat up every third of `lease_s`. If it has not managed to for `lease_s`, measured from
   before its last success began, it stops leading on its own.
2. Who watches takes the lease when it was given back, or when its term and beat stood still for `lease_s` by the
   watcher's own clock. It saw the last beat after the holder began to write it, so the holder has stopped by then.
"""

from dataclasses import dataclass

from hanse.topology.store import Lease


@dataclass(slots=True)
class Watch:
    """A manager's view of the lease that another may hold."""

    lease_s: float
    _seen: Lease | None = None
    _since_s: float = 0.0

    def may_take(self, now_s: float, lease: Lease | None) -> bool:
        """Rule 2: whether to try to take the lease, as just read."""
        if lease is None or not lease.holder:
            return True
        if lease != self._seen:
            self._seen, self._since_s = lease, now_s
            return False
        return now_s - self._since_s >= self.lease_s


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that this manager holds, and when its last renewal began."""

    lease: Lease
    renewed_s: float

    def is_over(self, now_s: float, lease_s: float) -> bool:
        """Rule 1."""
        return now_s - self.renewed_s >= lease_s

    def is_due(self, now_s: float, lease_s: float) -> bool:
        """Whether it is time to renew."""
        return now_s - self.renewed_s >= lease_s / 3
