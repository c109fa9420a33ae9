"""docs/benchmarks.md as readable tables: one section per benchmark, a sentence of explanation, units beside figures.

Rules:

1. A section is a title, the command, a sentence, and a function from the result to tables.
2. No figure is lost: what a section's function does not take is listed below its tables. Lists of the rounds' single
   measurements stay in the JSON.
3. Pure: results in, text out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MISSING = object()


class Figures:
    """One benchmark's result; it remembers which figures were taken."""

    def __init__(self, result: object) -> None:
        self._result = result
        self._taken: set[tuple[str, ...]] = set()

    def take(self, *path: str) -> Any:  # noqa: ANN401 - JSON
        """Return the value at a path of keys, None where there is none."""
        self._taken.add(path)
        value: Any = self._result
        for key in path:
            value = value.get(key, _MISSING) if isinstance(value, Mapping) else _MISSING
            if value is _MISSING:
                return None
        return value

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of the result."""
        return iter(self._result) if isinstance(self._result, Mapping) else iter(())

    def rest(self) -> list[tuple[str, Any]]:
        """Return name and value of each figure that was not taken."""
        return [
            (", ".join(_words(key) for key in path), value)
            for path, value in _leaves(self._result)
            if not any(path[: len(taken)] == taken for taken in self._taken)
        ]


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        if not all(isinstance(item, int | float) for item in value):
            for index, inner in enumerate(value, start=1):
                yield from _leaves(inner, (*path, str(index)))
    else:
        yield path, value


def _words(key: str) -> str:
    for end, words in (("_per_s", " per second"), ("_s", " (s)"), ("_ms", " (ms)"), ("_us", " (µs)"), ("_mb", " (MB)")):
        if key.endswith(end):
            return key.removesuffix(end).replace("_", " ") + words
    return key.replace("_", " ")


def shown(value: object) -> str:
    """Return a value as a cell: thousands with commas, three significant digits, yes and no."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def spread(value: object) -> str:
    """Return a median with the smallest and largest, or a single value."""
    if not isinstance(value, Mapping):
        return shown(value)
    return f"{shown(value['median'])} ({shown(value['min'])} to {shown(value['max'])})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


# What a row shows, its keys in the result, its unit.
Row = tuple[str, str, str]


def listed(figures: Figures, rows: Iterable[Row]) -> list[str]:
    """Return a table of single figures; keys are joined by slashes."""
    cells = []
    for words, path, unit in rows:
        value = figures.take(*path.split("/"))
        if value is not None:
            cells.append((words, spread(value), unit))
    return table(("figure", "value", "unit"), cells)


def promises(figures: Figures) -> list[str]:
    """Return the promises that a drill checked, and whether each held."""
    held = figures.take("held") or {}
    return table(("promise", "held"), [(_words(name), shown(value)) for name, value in held.items()])


# --- one function per benchmark --------------------------------------------------------------------------------------

_SCENARIOS = {
    "qos0_1hop": "QoS 0, 64 bytes, 1 hop",
    "qos0_3hops": "QoS 0, 64 bytes, 3 hops",
    "qos0_7hops": "QoS 0, 64 bytes, 7 hops",
    "qos1_1hop": "QoS 1, 64 bytes, 1 hop",
    "qos1_3hops": "QoS 1, 64 bytes, 3 hops",
    "qos1_1hop_10kib": "QoS 1, 10 KiB, 1 hop",
    "latency_3hops": "latency at 1,000 messages/s, QoS 0, 3 hops",
    "hanse": "Hanse",
    "relays": "two relays in C",
    "relays_gathering": "two relays in C that gather for 3 ms",
}


def _pairs(figures: Figures, system_of: Callable[[str], str]) -> list[str]:
    names = [name for name in _SCENARIOS if name in set(figures)]
    names += [name for name in figures if name not in names]
    rows: list[tuple[str, ...]] = []
    costs: list[tuple[str, ...]] = []
    for name in names:
        system = system_of(name)
        words = _SCENARIOS.get(name, _words(name))
        take = figures.take
        ours, theirs = take(name, f"{system}_median"), take(name, "bridges_median")
        p99 = take(name, f"{system}_p99_ms"), take(name, "bridges_p99_ms")
        unit = take(name, "unit") or ""
        ratio, least, most = (take(name, f"ratio_{which}") for which in ("median", "min", "max"))
        rows.append(
            (
                words,
                shown(ours),
                shown(theirs),
                unit,
                shown(ratio),
                f"{shown(least)} to {shown(most)}",
                shown(take(name, "rounds")),
            )
        )
        if p99 != (None, None):
            rows.append((f"{words}, slowest hundredth", *map(shown, p99), "ms (p99)", "", "", ""))
        take(name, system)
        take(name, "bridges")
        for one in (system, "bridges"):
            spent = take(name, "cpu_us_a_message", one) or {}
            between = spent.get("federators", spent.get("relays"))
            cells = (spent.get("all"), spent.get("brokers"), between, spent.get("publisher"), spent.get("subscriber"))
            costs.append((words, "bridges" if one == "bridges" else _SCENARIOS.get(one, one), *map(shown, cells)))
    measured = "Hanse" if system_of(names[0]) == system_of(names[-1]) else "this system"
    return [
        *table(("", measured, "bridges", "unit", "ratio, median", "smallest to largest", "rounds"), rows),
        "Processor time per message, in µs, by kind of process:",
        "",
        *table(
            ("", "system", "all", "brokers", "federators or relays", "publisher", "subscriber"),
            costs,
        ),
    ]


def _bridge(figures: Figures) -> list[str]:
    return _pairs(figures, lambda _: "hanse")


def _floor(figures: Figures) -> list[str]:
    return _pairs(figures, lambda name: name)


def _idle(figures: Figures) -> list[str]:
    measures = (
        ("memory, idle", "idle_mb", "MB"),
        ("memory with 1,000 groups", "with_groups_mb", "MB"),
        ("memory when sampled under load", "sampled_mb", "MB"),
        ("memory, most before the load", "high_water_before_load_mb", "MB"),
        ("memory, most under load", "loaded_mb", "MB"),
        ("processor, idle with 1,000 groups", "idle_cpu_percent", "% of a core"),
    )
    rows = []
    for words, key, unit in measures:
        values = figures.take(key) or []
        limit = figures.take("limits", key)
        is_within = figures.take("within_limits", key)
        rows.append((words, *map(shown, values), unit, shown(limit), shown(is_within)))
    for words, key, unit in (
        ("processor time for the load", "cpu_s", "s"),
        ("delivered", "delivered", "messages"),
        ("forwarded", "forwarded", "messages"),
    ):
        rows.append((words, *map(shown, figures.take("load", key) or []), unit, "", ""))
    count = len(rows[0]) - 4
    head = ("federator", *map(str, range(count)), "unit", "limit", "within")
    single = (
        ("brokers", "brokers", ""),
        ("groups", "groups", ""),
        ("load offered", "load/messages_per_s", "messages/s"),
        ("received by subscribers", "load/received", "messages"),
        ("lost", "load/lost", "messages"),
    )
    return [*table(head, rows), *listed(figures, single)]


def _rates(figures: Figures, names: Mapping[str, str]) -> list[str]:
    rows = []
    for key, words in names.items():
        cells = [
            figures.take(key, f"{clock}_{which}_per_s") for clock in ("cpu", "wall") for which in ("best", "median")
        ]
        rows.append((words, *map(shown, cells)))
    head = ("publications per second", "CPU time, best", "CPU time, median", "wall clock, best", "wall clock, median")
    return table(head, rows)


def _route(figures: Figures) -> list[str]:
    names = {
        "publish_same": "origin, a batch on one topic",
        "publish_mixed": "origin, each on any of 1,000 topics",
        "publish_mixed_encoded": "the same, with encoding of frames",
        "forward": "transit to three neighbours",
        "decode_forward_encode": "the same, from bytes to bytes",
    }
    return _rates(figures, names)


def _hop(figures: Figures) -> list[str]:
    kinds = {"hot": "one message per read", "cold": "the same with cold caches", "batch": "64 messages per read"}
    rows = []
    for kind, words in kinds.items():
        for qos in ("qos0", "qos1"):
            cells = []
            for position in ("origin", "transit", "last"):
                found = figures.take("us_a_message", f"{kind}_{qos}", position) or {}
                cells.append(f"{shown(found.get('median_us'))} ({shown(found.get('min_us'))})")
            rows.append((words, qos.removeprefix("qos"), *cells))
    return [
        "In µs per message, the median of the rounds and the smallest:",
        "",
        *table(("", "QoS", "origin", "transit", "last"), rows),
    ]


def _match(figures: Figures) -> list[str]:
    return listed(
        figures,
        (
            ("filters in the index", "filters", ""),
            ("of these with wildcards", "with_wildcards", ""),
            ("topics matched", "topics", ""),
            ("matches per topic", "matches_per_topic", ""),
            ("adding a filter", "add_us", "µs"),
            ("matching, cached", "cached_us", "µs"),
            ("matching, uncached, mean", "uncached_us_mean", "µs"),
            ("matching, uncached, p50", "uncached_us_p50", "µs"),
            ("matching, uncached, p99", "uncached_us_p99", "µs"),
            ("memory per filter", "bytes_per_filter", "bytes"),
            ("memory of the index", "index_bytes", "bytes"),
            ("twins of 200 levels: levels", "twins/levels", ""),
            ("twins of 200 levels: matching, uncached, p50", "twins/uncached_us_p50", "µs"),
            ("twins of 200 levels: memory per filter", "twins/bytes_per_filter", "bytes"),
        ),
    )


def _groups(figures: Figures) -> list[str]:
    return listed(
        figures,
        (
            ("groups", "groups", ""),
            ("brokers", "brokers", ""),
            ("topics matched", "topics", ""),
            ("memory per group", "bytes_per_group", "bytes"),
            ("memory grown by, after", "rss_bytes", "bytes"),
            ("memory grown by, at most", "rss_bytes_max", "bytes"),
            ("processor time to take the claims", "fill_cpu_s", "s"),
            ("matching, cached, best", "match_cached_us_best", "µs"),
            ("matching, cached, median", "match_cached_us_median", "µs"),
            ("matching, uncached, p50", "match_uncached_us_p50", "µs"),
            ("matching, uncached, p99", "match_uncached_us_p99", "µs"),
        ),
    )


def _per_federator(figures: Figures, measures: Sequence[Row]) -> list[str]:
    rows = [(words, *map(shown, figures.take(key) or []), unit) for words, key, unit in measures]
    count = max(len(row) for row in rows) - 2
    padded = [(row[0], *row[1:-1], *[""] * (count + 2 - len(row)), row[-1]) for row in rows]
    return table(("federator", *map(str, range(count)), "unit"), padded)


def _topics(figures: Figures) -> list[str]:
    return [
        *_per_federator(
            figures,
            (
                ("memory, idle", "idle_mb", "MB"),
                ("memory with the subscriptions", "subscribed_mb", "MB"),
                ("memory after the publications", "published_mb", "MB"),
                ("processor time to spread the subscriptions", "spread_cpu_s", "s"),
                ("processor time for the publications", "publish_cpu_s", "s"),
            ),
        ),
        *listed(
            figures,
            (
                ("brokers", "brokers", ""),
                ("distinct topics", "topics", ""),
                ("subscriptions", "subscriptions", ""),
                ("time until all know the subscriptions", "spread_s", "s"),
                ("memory per subscription", "bytes_per_subscription", "bytes"),
                ("publications that arrived", "arrived", ""),
                ("duplicates", "copies", ""),
            ),
        ),
        *promises(figures),
    ]


def _outage(figures: Figures) -> list[str]:
    return [
        *listed(
            figures,
            (
                ("neighbour away for", "away_s", "s"),
                ("rate", "rate_per_s", "messages/s"),
                ("published", "published", "messages"),
                ("acknowledged to the publisher", "acknowledged", "messages"),
                ("lost", "lost", "messages"),
                ("duplicates", "duplicates", "messages"),
                ("out of order at the neighbour", "reordered_at_away", "messages"),
                ("outbox empty after the return within", "drained_after_s", "s"),
                ("outbox at most", "outbox_gauge_max", "bytes"),
                ("outbox at the end", "outbox_gauge_after", "bytes"),
                ("memory grown by, at most", "grown_mb_max", "MB"),
                ("another path, p50 before", "other_p50_ms_before", "ms"),
                ("another path, p50 during", "other_p50_ms_during", "ms"),
                ("another path, p99 before", "other_p99_ms_before", "ms"),
                ("another path, p99 during", "other_p99_ms_during", "ms"),
                ("another path, p99 during by before", "other_p99_ratio", ""),
            ),
        ),
        *_per_federator(
            figures,
            (
                ("disk before", "disk_mb_before", "MB"),
                ("disk at most", "disk_mb_max", "MB"),
                ("disk after", "disk_mb_after", "MB"),
                ("memory in the first quarter", "resident_mb_first_quarter", "MB"),
                ("memory in the rest", "resident_mb_rest", "MB"),
            ),
        ),
        *promises(figures),
    ]


def _retained(figures: Figures) -> list[str]:
    return [
        *listed(
            figures,
            (
                ("retained topics", "topics", ""),
                ("payload", "payload_bytes", "bytes"),
                ("all of them at the second broker after", "whole_s", "s"),
                ("topics", "per_s", "per s"),
                ("messages that its subscriber received", "arrived", ""),
                ("on the link for the first comparison", "fetch_link_bytes", "bytes"),
                ("the same per topic", "fetch_link_bytes_per_topic", "bytes"),
                ("on the link per comparison while nothing changes", "quiet_link_bytes_per_comparison", "bytes"),
                ("book on disk at the origin", "book_bytes_origin", "bytes"),
                ("book on disk at the copy", "book_bytes_copy", "bytes"),
                ("the same per topic", "book_bytes_per_topic", "bytes"),
                ("1,000 values written again, until they arrive", "changed_per_s", "per s"),
            ),
        ),
        *_per_federator(
            figures,
            (
                ("memory before", "memory_mb_idle", "MB"),
                ("memory after", "memory_mb", "MB"),
                ("longest wait for a page", "longest_pause_ms", "ms"),
            ),
        ),
    ]


def _retained_drill(figures: Figures) -> list[str]:
    return [
        *listed(
            figures,
            (
                ("topics", "topics", ""),
                ("writes and deletions", "writes", ""),
                ("of these, deletions", "deletions", ""),
                ("written within", "written_s", "s"),
                ("all brokers equal after", "equal_after_s", "s"),
                ("last writes judged", "judged", ""),
                ("of these, deletions", "deletions_judged", ""),
            ),
        ),
        *_per_federator(
            figures,
            (("retained at the end", "retained_at_the_end", ""), ("messages received live", "received_live", "")),
        ),
        *promises(figures),
    ]


def _storm(figures: Figures) -> list[str]:
    return [
        *listed(
            figures,
            (
                ("capacity of the link", "capacity_per_s", "messages/s"),
                ("offered", "offered_per_s", "messages/s"),
                ("offered, in capacities", "offered_in_capacities", ""),
                ("for", "storm_s", "s"),
                ("published", "published", "messages"),
                ("received", "received", "messages"),
                ("not received", "not_received", "messages"),
                ("back to normal after", "recovered_after_s", "s"),
                ("QoS 1 trickle beside it: lost", "trickle_lost", "messages"),
                ("QoS 1 trickle beside it: p99 before the storm", "trickle_p99_ms_before", "ms"),
            ),
        ),
        *_per_federator(figures, (("memory at most", "resident_mb_max", "MB"),)),
        *promises(figures),
    ]


_SIMULATED = (
    ("brokers", "brokers"),
    ("links", "links"),
    ("groups", "groups"),
    ("cores", "cores"),
    ("frames per round", "frames_per_round"),
    ("announcements per round", "announcements_per_round"),
    ("control bytes per round", "control_bytes_per_round"),
    ("largest frame (bytes)", "frame_bytes_largest"),
    ("rounds to converge", "rounds"),
    ("delivered of eligible", "delivered"),
    ("forwards per message", "forwards_per_message"),
    ("seconds", "seconds"),
    ("memory (bytes)", "rss_bytes"),
)


def _simulated(
    runs: Sequence[Mapping[str, Any]],
    first: Sequence[tuple[str, str]] = (),
    last: Sequence[tuple[str, str]] = (),
) -> list[str]:
    columns = [*first, *(column for column in _SIMULATED if column not in first), *last]
    rows = []
    for run in runs:
        cells = {key: shown(run.get(key)) for _, key in columns}
        cells["delivered"] = f"{shown(run['delivered'])} of {shown(run['eligible'])}"
        rows.append(list(cells.values()))
    return table([words for words, _ in columns], rows)


def _sim(figures: Figures) -> list[str]:
    scaling = figures.take("scaling") or []
    thousand = figures.take("thousand_groups")
    return [
        "Announcements per core, as Hanse makes them, against per group, as in the papers:",
        "",
        *_simulated(figures.take("forms") or [], (("announcements", "announcements"), ("groups", "groups"))),
        "One group in large federations. The last column should not grow:",
        "",
        *_simulated(scaling, last=(("seconds / (n log n), n brokers", "seconds_per_n_log_n"),)),
        "A thousand groups with a hundred cores on a thousand brokers:",
        "",
        *_simulated([] if thousand is None else [thousand]),
    ]


def _manager(figures: Figures) -> list[str]:
    losses = figures.take("losses") or []
    rounds = ", ".join(map(shown, figures.take("round_s") or []))
    return [
        *listed(
            figures,
            (
                ("federators", "federators", ""),
                ("joins", "joins_per_s", "per second"),
                ("a join among many at once, p50", "join_ms_p50", "ms"),
                ("a join among many at once, p99", "join_ms_p99", "ms"),
                ("a join alone, p50", "join_alone_ms_p50", "ms"),
                ("memory, empty", "memory_mb_empty", "MB"),
                ("memory, full", "memory_mb_full", "MB"),
                ("processor time of the whole run", "cpu_s", "s"),
                ("health interval", "health_interval_s", "s"),
                ("a health round fits the interval", "round_fits_interval", ""),
                ("longest delay of its event loop", "loop_lag_s", "s"),
                ("probes that failed before the losses", "probe_failures_before_kill", ""),
                ("overlay connected at the end", "is_connected_after", ""),
                ("overlay two-connected at the end", "is_two_connected_after", ""),
            ),
        ),
        f"Health rounds took {rounds} s. Losses of federators:",
        "",
        *table(
            ("lost at once", "detected and repaired after (s)", "repair computed in (s)", "two-connected again"),
            [
                [
                    shown(one[key])
                    for key in ("lost", "detected_and_repaired_s", "repair_computed_s", "is_two_connected")
                ]
                for one in losses
            ],
        ),
    ]


def _join(figures: Figures) -> list[str]:
    return listed(
        figures,
        (
            ("federators", "federators", ""),
            ("rounds", "rounds", ""),
            ("health interval", "health_interval", ""),
            ("a federator's process starts until it answers", "process_s", "s"),
            ("until it has all links", "join_s", "s"),
            ("until its client receives the first message", "join_message_s", "s"),
            ("two neighbours killed: until the manager counts both as gone", "detected_s", "s"),
            ("until the third federator's client receives a message", "repair_s", "s"),
            ("the same without a manager", "relink_s", "s"),
        ),
    )


def _redirect(figures: Figures) -> list[str]:
    rows = (
        ("a redirect, median", "at_rate/ms_p50", "ms"),
        ("99 % within", "at_rate/ms_p99", "ms"),
        ("99.9 % within", "at_rate/ms_p999", "ms"),
        ("99 % within, from the moment at which the client should have come", "at_rate/from_schedule_ms_p99", "ms"),
        ("most redirects, 64 clients at a time", "most_per_s", "redirects/s"),
        ("processor time of the gateway", "cpu_ms", "ms per redirect"),
        ("clients that got no reference", "failed", ""),
    )
    general = (
        ("rounds", "rounds", ""),
        ("seconds per round", "seconds", "s"),
        ("clients come at", "clients_per_s", "per second"),
    )
    forms = ("disconnect", "connack")
    cells = [
        (words, *(spread(figures.take(form, *path.split("/"))) for form in forms), unit) for words, path, unit in rows
    ]
    return listed(figures, general) + table(("figure", "DISCONNECT (figure 2)", "CONNACK", "unit"), cells)


def _spool(figures: Figures) -> list[str]:
    return listed(
        figures,
        (
            ("rows", "rows", ""),
            ("rounds", "rounds", ""),
            ("written, each block synced", "write_rows_per_s", "rows/s"),
            ("read", "read_rows_per_s", "rows/s"),
            ("a commit of 4,000 rows", "commit_ms_of_4000_rows", "ms"),
        ),
    )


def _collector(figures: Figures) -> list[str]:
    return listed(
        figures,
        (
            ("messages", "messages", ""),
            ("payload", "payload_bytes", "bytes"),
            ("rounds", "rounds", ""),
            ("collected into the spool", "collected_per_s", "messages/s"),
            ("received by a client that keeps nothing", "received_without_spool_per_s", "messages/s"),
            ("ratio of the two", "ratio", ""),
        ),
    )


def _ingest(figures: Figures) -> list[str]:
    def rates(words: str, *path: str) -> list[tuple[str, ...]]:
        take = figures.take
        return [
            (f"spool to bronze, {words}", spread(take(*path, "spool_to_bronze_rows_per_s")), "rows/s"),
            (f"Parquet to bronze, {words}", spread(take(*path, "parquet_to_bronze_rows_per_s")), "rows/s"),
            (f"ratio of the two, {words}", spread(take(*path, "ratio")), ""),
            (f"ratio of source `mqtt` to Parquet, {words}", spread(take(*path, "source_ratio")), ""),
        ]

    rows = [
        ("rows", shown(figures.take("rows")), ""),
        ("payload", shown(figures.take("payload_bytes")), "bytes"),
        ("rounds", shown(figures.take("rounds")), ""),
        *rates("by the batches' time"),
        *rates("by the clock, start included", "whole_run"),
        ("processor time, job of `hanse pipeline`", spread(figures.take("cpu_s", "ingest")), "s"),
        ("processor time, source `mqtt`", spread(figures.take("cpu_s", "source")), "s"),
        ("processor time, Parquet", spread(figures.take("cpu_s", "parquet")), "s"),
    ]
    return table(("figure", "median (smallest to largest)", "unit"), rows)


def _gold(figures: Figures) -> list[str]:
    steps = figures.take("steps_s") or {}
    rows = figures.take("gold_rows") or {}
    return [
        *listed(
            figures,
            (
                ("telemetry rows", "rows", ""),
                ("rows from bronze to gold", "rows_per_s", "rows/s"),
                ("heap", "heap", ""),
                ("cores", "cores", ""),
                ("JVM memory at most", "jvm_mb_max", "MB"),
                ("memory of Python workers at most", "python_workers_mb_max", "MB"),
                ("time to generate the rows", "generated_s", "s"),
                ("time for silver", "silver_s", "s"),
                ("time for gold", "gold_s", "s"),
                ("traffic matrix equals what was generated", "traffic_matrix_is_exact", ""),
            ),
        ),
        *table(
            ("table", "rows", "seconds"), [(name, shown(count), shown(steps.get(name))) for name, count in rows.items()]
        ),
        *table(
            ("other step", "seconds"),
            [(name.removeprefix("batch 0: "), shown(value)) for name, value in steps.items() if name not in rows],
        ),
    ]


_LOADS = {
    "pair_qos0": "one pair, 64 bytes, QoS 0",
    "pair_qos1": "one pair, 1 KiB, QoS 1",
    "many": "200 connections, one message of 64 bytes in flight each",
    "single": "1 connection, one message of 64 bytes in flight",
}


def _gateway(figures: Figures) -> list[str]:
    rates = []
    added = []
    for load, words in _LOADS.items():
        if load not in figures:
            continue
        rates.append(
            (
                words,
                spread(figures.take(load, "throughput_ratio")),
                spread(figures.take(load, "cpu_ratio")),
                *(spread(figures.take(load, system, "per_s")) for system in ("direct", "haproxy", "gateway")),
                *(spread(figures.take(load, system, "cpu_us")) for system in ("haproxy", "gateway")),
            )
        )
        for quantile in ("p50", "p99"):
            cells = [figures.take(load, f"added_{quantile}_us", system) for system in ("haproxy", "gateway")]
            whole = [figures.take(load, system, f"{quantile}_us") for system in ("direct", "haproxy", "gateway")]
            if cells[0] is not None:
                added.append((f"{words}, {quantile}", *map(spread, cells), *map(spread, whole)))
        # Rates and times say the same.
        for system in ("direct", "haproxy", "gateway"):
            for name in ("messages", "seconds", "cpu_us"):
                figures.take(load, system, name)
    idle = [
        (
            f"{_words(kind)}, {shown(figures.take('idle', 'clients'))} clients",
            *(shown(figures.take("idle", f"{system}_{kind}", "mb")) for system in ("haproxy", "gateway")),
            *(shown(figures.take("idle", f"{system}_{kind}", "before_mb")) for system in ("haproxy", "gateway")),
            *(shown(figures.take("idle", f"{system}_{kind}", "kb_per_client")) for system in ("haproxy", "gateway")),
            *(shown(figures.take("idle", f"{system}_{kind}", "connects_per_s")) for system in ("haproxy", "gateway")),
        )
        for kind in ("plain", "tls")
        if "idle" in figures
    ]
    return [
        *table(
            (
                "load",
                "throughput, ratio to HAProxy",
                "processor time, ratio",
                "direct, messages/s",
                "HAProxy",
                "gateway",
                "HAProxy, µs per message",
                "gateway",
            ),
            rates,
        ),
        *table(
            (
                "round trip, µs",
                "added by HAProxy",
                "added by the gateway",
                "direct",
                "with HAProxy",
                "with the gateway",
            ),
            added,
        ),
        *table(
            (
                "idle clients",
                "HAProxy, MB",
                "gateway, MB",
                "HAProxy before them, MB",
                "gateway",
                "HAProxy, kB per client",
                "gateway",
                "HAProxy, connects/s",
                "gateway",
            ),
            idle,
        ),
    ]


def _nothing(figures: Figures) -> list[str]:  # noqa: ARG001 - a section without tables of its own
    return []


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark on the page."""

    title: str
    words: str
    tables: Callable[[Figures], list[str]] = _nothing


SECTIONS: dict[str, Section] = {
    "gateway": Section(
        "The gateway beside HAProxy in TCP mode",
        "Both stand in front of the same Mosquitto, one process each, and take turns. Figures are medians of the "
        "rounds; the ratios are those of the rounds. A larger throughput is better, a smaller processor time is.",
        _gateway,
    ),
    "bridge": Section(
        "Hanse beside Mosquitto's bridges",
        "Chains of brokers are joined by federators, and the same chains by Mosquitto's own bridges; the two "
        "take turns on one machine, and every message must arrive once and in order. Figures are medians of "
        "the rounds. The ratio is that of the pairs: for messages/s a larger one is better, for latency a "
        "smaller one.",
        _bridge,
    ),
    "floor": Section(
        "Hanse beside two relays in C that only pass bytes on, 10 KiB at QoS 1",
        "The relays show the least that two processes between two brokers can cost. They keep no promise: no "
        "routing, no custody, no protection from duplicates and loops. Each system is paired with bridges.",
        _floor,
    ),
    "idle": Section(
        "A federator at rest and under load",
        "Five federators, measured from outside: without groups, with 1,000 groups, and while 200,000 messages cross.",
        _idle,
    ),
    "route": Section(
        "The data path of the protocol on one core",
        "A federator with three mesh neighbours and 1,000 groups routes batches of 64 publications in memory.",
        _route,
    ),
    "hop": Section(
        "One message through one federator, by its position",
        "Three real agents in a line, over wires in memory: time from the bytes read to the bytes written, "
        "without kernel and event loop.",
        _hop,
    ),
    "match": Section(
        "Matching topics against 100,000 filters",
        "Half of the filters hold wildcards. *Twins* are the worst shape for a plain trie: pairs that share "
        "all but the last of many levels.",
        _match,
    ),
    "groups": Section(
        "100,000 groups at one federator",
        "One federator learns the claims of eleven cores part by part, as on the wire, and matches topics "
        "against them.",
        _groups,
    ),
    "topics": Section(
        "100,000 topics and 10,000 subscriptions at one broker",
        "A real federation of three brokers; clients subscribe to 10,000 filters at one of them, and others "
        "publish on 100,000 distinct topics.",
        _topics,
    ),
    "outage": Section(
        "A neighbour away for five minutes",
        "A federation of four carries 1,000 messages/s at QoS 1 while one neighbour is away; afterwards it "
        "must get everything, in order.",
        _outage,
    ),
    "storm": Section(
        "A storm at ten times capacity",
        "For a minute clients publish ten times what a link can carry at QoS 0, beside a trickle at QoS 1.",
        _storm,
    ),
    "retained": Section(
        "Retained state: many topics",
        "Two real brokers. Everything is written at the first before anybody is interested; then a client subscribes "
        "at the second.",
        _retained,
    ),
    "retained_drill": Section(
        "Retained state: kills, a partition and a restored backup",
        "Writes and deletions at three real brokers at once, while federators and brokers are killed, a site is cut "
        "off for 30 s, and a broker comes back with older files.",
        _retained_drill,
    ),
    "sim": Section(
        "The simulator, and announcements per core against per group",
        "Federations without faults, grown until every subscriber is reached; control traffic is that of a "
        "quiet round.",
        _sim,
    ),
    "mqtt": Section("MQTT in and out on one core", "Publications through `hanse.mqtt` in memory, without a network."),
    "outbox": Section(
        "The outbox beside SQLite",
        "Processor time per record to append, commit, read and discard, in turns with SQLite.",
    ),
    "manager": Section(
        "The topology manager",
        "One real manager with a SQLite store and simulated brokers: joins, health rounds, loss and repair.",
        _manager,
    ),
    "join": Section(
        "Joining, and the time to heal",
        "Real brokers, federators and manager on one machine. Times run from the start of a process, or from "
        "the moment of a kill.",
        _join,
    ),
    "redirect": Section(
        "Redirects at a gateway",
        "One worker in front of two brokers names the broker of each client's topic, in DISCONNECT after SUBSCRIBE, or "
        "in CONNACK if the client names its topic in CONNECT. Clients come at a fixed rate, whatever happened to those "
        "before. The load generator runs on the same machine.",
        _redirect,
    ),
    "spool": Section("The spool", "One process writes and reads rows with payloads of 200 bytes.", _spool),
    "collector": Section(
        "The collector",
        "QoS 1 messages from a broker into the spool, each acknowledged after the sync, beside a client that "
        "keeps nothing.",
        _collector,
    ),
    "ingest": Section(
        "Spool to bronze beside Spark's own Parquet source",
        "The same rows go into a Delta table by the job of `hanse pipeline`, by the source `mqtt`, and from "
        "Parquet files by Spark's own source.",
        _ingest,
    ),
    "gold": Section(
        "Bronze to gold",
        "Generated telemetry goes through all silver and gold tables on a heap of 2 GB.",
        _gold,
    ),
}

_HEAD = [
    "# Measured figures",
    "",
    "`bench/run_all.py` writes this page from `bench/results/`; do not edit it. Compare only figures of the same run:",
    "another machine, or another hour, gives other figures. A value such as 3.25 (3.04 to 8.57) is a median with the",
    "smallest and largest of the rounds.",
    "",
]


def render(results: Mapping[str, Mapping[str, Any]], commands: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        results: name of a benchmark to its document: `measured`, `machine`, `result`.
        commands: name of a benchmark to the command that measures it.
    """
    lines = list(_HEAD)
    for name, section in SECTIONS.items():
        document = results.get(name)
        if document is None:
            continue
        figures = Figures(document["result"])
        lines += [f"## {section.title}", "", section.words, ""]
        lines += [f"`{commands[name]}`, {document['measured']}, {document['machine']}", ""]
        lines += section.tables(figures)
        rest = figures.rest()
        if rest:
            lines += table(("other figure", "value"), [(words, shown(value)) for words, value in rest])
    return "\n".join(lines).rstrip() + "\n"
