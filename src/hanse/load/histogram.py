"""Latencies, counted in buckets whose width grows with the value: bounded memory, 1.6 % error, exact extremes."""

from collections import Counter
from collections.abc import Iterable

# 64 buckets per doubling: neighbouring bounds differ by 1/64.
_BITS = 6
_LINEAR = 1 << _BITS + 1


class Histogram:
    """Counts of durations in ns."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0

    def add(self, value_ns: int, times: int = 1) -> None:
        """Count one value. A clock never runs backwards, but a message of an earlier run may seem to."""
        value_ns = max(0, value_ns)
        if value_ns < _LINEAR:
            bucket = value_ns
        else:
            shift = value_ns.bit_length() - _BITS - 1
            bucket = (shift << _BITS) + (value_ns >> shift)
        self.buckets[bucket] += times
        self.count += times
        self.total_ns += value_ns * times
        self.max_ns = max(self.max_ns, value_ns)

    def add_since(self, now_ns: int, stamps_ns: Iterable[int]) -> None:
        """Count the time from each stamp until now. Stamps of one block are equal, so they are counted first."""
        for stamp_ns, times in Counter(stamps_ns).items():
            self.add(now_ns - stamp_ns, times)

    def merge(self, other: "Histogram") -> None:
        """Add another histogram's counts."""
        self.buckets.update(other.buckets)
        self.count += other.count
        self.total_ns += other.total_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def percentile_ns(self, percent: float) -> int:
        """Return the smallest value that at least so many percent do not exceed; 0 without any values."""
        wanted = self.count * percent / 100
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return min(_middle(bucket), self.max_ns)
        return self.max_ns

    def to_json(self) -> dict[str, object]:
        """Return a document for another process."""
        return {
            "buckets": sorted(self.buckets.items()),
            "count": self.count,
            "total_ns": self.total_ns,
            "max_ns": self.max_ns,
        }

    @classmethod
    def from_json(cls, document: dict[str, object]) -> "Histogram":
        """Return the histogram of a document from `to_json`."""
        histogram = cls()
        rows = document["buckets"]
        assert isinstance(rows, list)
        histogram.buckets = Counter({int(bucket): int(times) for bucket, times in rows})
        for name in ("count", "total_ns", "max_ns"):
            value = document[name]
            assert isinstance(value, int)
            setattr(histogram, name, value)
        return histogram


def _middle(bucket: int) -> int:
    if bucket < _LINEAR:
        return bucket
    shift = (bucket >> _BITS) - 1
    low = (bucket - (shift << _BITS)) << shift
    return low + (1 << shift >> 1)
