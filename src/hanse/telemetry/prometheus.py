"""Counters, gauges and histograms, and their text for Prometheus (exposition format 0.0.4).

    metrics = Registry("federator")
    messages = metrics.counters("link_messages_total", "Publications on links.", labels=("link", "direction"))
    out = messages.labels("7", "out")      # once, when the link comes up
    out.inc(len(batch))                    # once per batch
    text = metrics.render()                # hanse_federator_link_messages_total{link="7",direction="out"} 412

Rules:

1. One naming scheme for all services: `hanse_<service>_<name>`. A counter ends in `_total` and a histogram in its unit.
   Base units are seconds and bytes. Metrics that all services share have no service in their names (`is_shared`;
   `telemetry.process` has them).
2. Labels are bounded: a label has a limit of distinct values, and a metric a limit of combinations. Updates beyond them
   count under `other`, and `hanse_<service>_metrics_overflow_total` counts how often. A flood of names costs one entry.
3. An update is one addition. Nothing is looked up, formatted or locked until a scrape. One thread.
4. Values that are counted elsewhere anyway are fetched at the scrape: `at_scrape`. A callback that fails costs its own
   figures, not the page.
"""

import logging
import math
import re
from bisect import bisect_left
from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from hanse.errors import LocalError

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"

# Distinct values of one label: the neighbours of a federator are at most 256, its reasons for drops some dozens.
LABEL_VALUES_MAX = 256
# Combinations of one metric: 256 links, two directions, three QoS. Each costs about 300 bytes, and a line per scrape.
COMBINATIONS_MAX = 2_048
LABEL_CHARACTERS_MAX = 200

# From a tenth of a millisecond, one hop on one machine, to the delay after which a client assumes a loss.
LATENCY_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# From a single reading to the largest message.
SIZE_BUCKETS_BYTES = (64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
BUCKETS_MAX = 50

_UNITS = ("_seconds", "_bytes", "_ratio", "_hops", "_messages")
_RESERVED = ("_total", "_count", "_sum", "_bucket")
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_log = logging.getLogger(__name__)


class Counter:
    """Metric that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Add to the counter. Once per batch is enough."""
        self.value += amount

    def set(self, total: float) -> None:
        """Set a total that is counted elsewhere. If that restarts at zero, Prometheus sees a restart."""
        self.value = total


class Gauge:
    """Metric that goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        """Set the current value."""
        self.value = value

    def inc(self, amount: float = 1) -> None:
        """Add to the value, or subtract from it."""
        self.value += amount


class Histogram:
    """Counts of measurements by bucket."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Record a measurement, or several equal ones."""
        # A bucket holds values up to and including its bound.
        self.counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def observe_many(self, values: Iterable[float]) -> None:
        """Record the measurements of a batch."""
        bounds, counts = self._bounds, self.counts
        total = 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.sum += total


Child = TypeVar("Child", Counter, Gauge, Histogram)


class Family(Generic[Child]):
    """Metric with labels: one child for each combination of their values."""

    def __init__(
        self,
        name: str,
        words: str,
        labels: tuple[str, ...],
        make: Callable[[], Child],
        on_overflow: Callable[[str], None],
        values_max: int,
        combinations_max: int,
    ) -> None:
        self.name = name
        self.help = words
        self.label_names = labels
        self._make: Callable[[], Child] = make
        self._on_overflow = on_overflow
        self._values_max = values_max
        self._combinations_max = combinations_max
        self._children: dict[tuple[str, ...], Child] = {}
        self._values: tuple[Multiset[str], ...] = tuple(Multiset() for _ in labels)

    def labels(self, *values: str | int) -> Child:
        """Return the child for these values, in the order of the label names. Keep it if updates are frequent."""
        if len(values) != len(self.label_names):
            raise LocalError(
                f"{self.name} got {len(values)} label values; it has the labels {', '.join(self.label_names)}."
            )
        key = tuple(map(_label_value, values))
        child = self._children.get(key)
        return child if child is not None else self._add(key)

    def remove(self, *values: str | int) -> None:
        """Remove a child, as when a neighbour is gone for good. Do nothing if there is none."""
        key = tuple(map(_label_value, values))
        if self._children.pop(key, None) is not None:
            for seen, value in zip(self._values, key, strict=True):
                seen[value] -= 1
                if not seen[value]:
                    del seen[value]

    def children(self) -> list[tuple[tuple[str, ...], Child]]:
        """Return all children with their label values, sorted."""
        return sorted(self._children.items(), key=lambda item: item[0])

    def _add(self, key: tuple[str, ...]) -> Child:
        bounded = tuple(
            value if value in seen or value == OTHER or len(seen) - (OTHER in seen) < self._values_max else OTHER
            for seen, value in zip(self._values, key, strict=True)
        )
        if bounded not in self._children and len(self._children) >= self._combinations_max:
            bounded = (OTHER,) * len(key)
        if bounded != key:
            self._on_overflow(self.name)
        child = self._children.get(bounded)
        if child is None:
            child = self._children[bounded] = self._make()
            for seen, value in zip(self._values, bounded, strict=True):
                seen[value] += 1
        return child


class Registry:
    """All metrics of one service.

    Args:
        service: Second part of every name, such as `federator`.
    """

    def __init__(self, service: str) -> None:
        if _NAME.fullmatch(service) is None:
            raise LocalError(f"The service {service!r} cannot be part of a metric's name; use small letters.")
        self._prefix = f"hanse_{service}_"
        self._counters: dict[str, Family[Counter]] = {}
        self._gauges: dict[str, Family[Gauge]] = {}
        self._histograms: dict[str, tuple[Family[Histogram], tuple[float, ...]]] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._overflow = self.counters(
            "metrics_overflow_total", "Label values that were counted as other.", labels=("metric",)
        )
        self._failures = self.counter("metrics_failures_total", "Figures that could not be fetched for a scrape.")

    def counter(self, what: str, words: str) -> Counter:
        """Return a counter without labels; `what` ends in `_total`."""
        return self.counters(what, words).labels()

    def gauge(self, what: str, words: str) -> Gauge:
        """Return a gauge without labels."""
        return self.gauges(what, words).labels()

    def histogram(self, what: str, words: str, buckets: Sequence[float] = LATENCY_BUCKETS_S) -> Histogram:
        """Return a histogram without labels; `what` ends in its unit."""
        return self.histograms(what, words, buckets=buckets).labels()

    def counters(
        self,
        what: str,
        words: str,
        labels: Sequence[str] = (),
        *,
        values_max: int = LABEL_VALUES_MAX,
        combinations_max: int = COMBINATIONS_MAX,
        is_shared: bool = False,
    ) -> Family[Counter]:
        """Return a counter with labels; `what` ends in `_total`, and is the whole name of a shared one."""
        name = self._new_name(what, labels, is_shared=is_shared)
        if not what.endswith("_total"):
            raise LocalError(f"The counter {name} must end in _total.")
        family = Family(name, words, tuple(labels), Counter, self._overflowed, values_max, combinations_max)
        self._counters[name] = family
        return family

    def gauges(
        self,
        what: str,
        words: str,
        labels: Sequence[str] = (),
        *,
        values_max: int = LABEL_VALUES_MAX,
        combinations_max: int = COMBINATIONS_MAX,
        is_shared: bool = False,
    ) -> Family[Gauge]:
        """Return a gauge with labels; `what` is the whole name of a shared one."""
        name = self._new_name(what, labels, is_shared=is_shared)
        if what.endswith(_RESERVED):
            raise LocalError(f"The gauge {name} ends like a counter or a histogram; choose a name without that ending.")
        family = Family(name, words, tuple(labels), Gauge, self._overflowed, values_max, combinations_max)
        self._gauges[name] = family
        return family

    def histograms(
        self,
        what: str,
        words: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float] = LATENCY_BUCKETS_S,
        values_max: int = LABEL_VALUES_MAX,
        combinations_max: int = COMBINATIONS_MAX,
    ) -> Family[Histogram]:
        """Return a histogram with labels; `what` ends in its unit, `buckets` are increasing upper bounds."""
        name = self._new_name(what, labels)
        bounds = tuple(map(float, buckets))
        if not what.endswith(_UNITS):
            raise LocalError(f"The histogram {name} must end in a unit: {', '.join(_UNITS)}.")
        if "le" in labels:
            raise LocalError(f"The histogram {name} has a label le, which is reserved for the buckets.")
        rising = all(low < high for low, high in pairwise(bounds))
        if not rising or not 0 < len(bounds) <= BUCKETS_MAX or not all(map(math.isfinite, bounds)):
            raise LocalError(f"The buckets of {name} must be 1 to {BUCKETS_MAX} increasing finite numbers.")
        family = Family(
            name, words, tuple(labels), lambda: Histogram(bounds), self._overflowed, values_max, combinations_max
        )
        self._histograms[name] = (family, bounds)
        return family

    def at_scrape(self, callback: Callable[[], None]) -> None:
        """Call a function before each rendering; it sets figures that are cheaper to fetch than to keep up to date."""
        self._callbacks.append(callback)

    def render(self) -> str:
        """Return all metrics in Prometheus' text format, sorted by name."""
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - whatever the error, the other figures are still needed
                self._failures.inc()
                _log.exception("figures could not be fetched for a scrape")
        pages: dict[str, list[str]] = {}
        for counters in self._counters.values():
            pages[counters.name] = _plain(counters, "counter")
        for gauges in self._gauges.values():
            pages[gauges.name] = _plain(gauges, "gauge")
        for histograms, bounds in self._histograms.values():
            pages[histograms.name] = _buckets(histograms, bounds)
        return "".join(f"{line}\n" for name in sorted(pages) for line in pages[name])

    def _overflowed(self, name: str) -> None:
        if name != self._overflow.name:  # there are fewer metrics than label values allowed
            self._overflow.labels(name).inc()

    def _new_name(self, what: str, labels: Sequence[str], *, is_shared: bool = False) -> str:
        name = what if is_shared else self._prefix + what
        if _NAME.fullmatch(what) is None:
            raise LocalError(
                f"The metric {name!r} is not a valid name; use small letters, digits and single underscores."
            )
        if name in self._counters or name in self._gauges or name in self._histograms:
            raise LocalError(f"The metric {name} exists already; share it, or name the new one differently.")
        for label in labels:
            if _NAME.fullmatch(label) is None or list(labels).count(label) > 1:
                raise LocalError(f"The label {label!r} of {name} is not a valid name, or is repeated.")
        return name


def _plain(family: Family[Counter] | Family[Gauge], kind: str) -> list[str]:
    lines = _head(family.name, family.help, kind)
    for values, child in family.children():
        lines.append(f"{family.name}{_labels(family.label_names, values)} {_number(child.value)}")
    return lines


def _buckets(family: Family[Histogram], bounds: tuple[float, ...]) -> list[str]:
    lines = _head(family.name, family.help, "histogram")
    names = (*family.label_names, "le")
    for values, child in family.children():
        count = 0
        for bound, more in zip((*map(_number, bounds), "+Inf"), child.counts, strict=True):
            count += more
            lines.append(f"{family.name}_bucket{_labels(names, (*values, bound))} {count}")
        shown = _labels(family.label_names, values)
        lines += [f"{family.name}_sum{shown} {_number(child.sum)}", f"{family.name}_count{shown} {count}"]
    return lines


def _head(name: str, words: str, kind: str) -> list[str]:
    escaped = words.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _label_value(value: str | int) -> str:
    text = str(value)[:LABEL_CHARACTERS_MAX]
    # A lone surrogate has no encoding in UTF-8, and the page is UTF-8.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # a bool is an int, and Prometheus refuses a page with "True" on it
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
