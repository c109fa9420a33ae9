"""Rules of the lease among several managers. Pure: the stored lease and a monotonic time in, the decision out.

Rules:

1. The holder increments the beat every third of `lease_s`. If it has not succeeded for `lease_s`, counted from the
   beginning of its last success, it stops leading by itself.
2. A watcher takes the lease if it was released, or if its term and beat stood still for `lease_s` by the watcher's own
   clock. The watcher saw the last beat after the holder began to write it, so the holder has stopped by then.
"""

from dataclasses import dataclass

from hanse.topology.store import Lease


@dataclass(slots=True)
class Watch:
    """One manager's view of the lease that another may hold."""

    lease_s: float
    _seen: Lease | None = None
    _since_s: float = 0.0

    def may_take(self, now_s: float, lease: Lease | None) -> bool:
        """Return whether to try to take the lease just read (rule 2)."""
        if lease is None or not lease.holder:
            return True
        if lease != self._seen:
            self._seen, self._since_s = lease, now_s
            return False
        return now_s - self._since_s >= self.lease_s


@dataclass(frozen=True, slots=True)
class Held:
    """Lease that this manager holds, and the beginning of its last renewal."""

    lease: Lease
    renewed_s: float

    def is_over(self, now_s: float, lease_s: float) -> bool:
        """Return whether the lease is over (rule 1)."""
        return now_s - self.renewed_s >= lease_s

    def is_due(self, now_s: float, lease_s: float) -> bool:
        """Return whether it is time to renew."""
        return now_s - self.renewed_s >= lease_s / 3
