"""HTML report on the gold tables: one page that needs no network and no server, and trusts none of its data.

Rules of this module:

- Every name and text from a table is escaped before it enters the page or a plot (`_safe`), because topics and ids come
  from clients. Plotly interprets a few tags in labels; escaped text is displayed literally.
- Everything is aggregated in Spark and limited to `ROWS_MAX` rows before it arrives here. The page says where rows were
  left out.
- A table without rows is shown as a sentence, not as an empty plot.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

Read = Callable[[str], DataFrame]
Row = dict[str, Any]

# Points per plot, or lines per table: a browser opens such a page at once, and more would not be readable.
ROWS_MAX = 5_000
# Lines per plot; colours repeat beyond this.
LINES_MAX = 12
BARS_MAX = 40
TEXT_CHARS_MAX = 120

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1200px; padding: 1rem 2rem; color: #1c2733
}} h1 {{ margin-bottom: 0 }} h2 {{ margin: 2.5rem 0 .3rem; border-bottom: 1px solid #d5dde5 }}
.tiles {{ display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0 }}
.tile {{ border: 1px solid #d5dde5; border-radius: 6px; padding: .6rem 1rem; min-width: 8rem }}
.tile b {{ display: block; font-size: 1.5rem }}
table {{ border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; max-height: 32rem }}
th, td {{ padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #e8edf2; white-space: nowrap }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums }} .none, .note {{ color: #5b6b7b }}
</style><script>{plotly}</script></head><body>
<h1>{title}</h1><p class="note">Made {made}. Times are UTC, by the reporting broker's clock.</p>
{body}
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Section:
    """Heading, a sentence that explains the content, and the content as HTML."""

    heading: str
    note: str
    html: str


def write_report(read: Read, path: Path, title: str = "Federation report", now: datetime | None = None) -> None:
    """Write the report on the gold tables returned by `read` to `path`."""
    made = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M")
    body = "\n".join([_tiles(read), *map(_show, _sections(read))])
    page = _PAGE.format(title=_safe(title), plotly=get_plotlyjs(), made=made, body=body)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _show(section: Section) -> str:
    return f"<h2>{_safe(section.heading)}</h2><p class='note'>{_safe(section.note)}</p>{section.html}"


def _safe(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…")


def _rows(frame: DataFrame) -> list[Row]:
    rows: list[Row] = frame.limit(ROWS_MAX + 1).toArrow().to_pylist()
    return rows


def _sections(read: Read) -> Iterator[Section]:
    yield _latency_by_path(read("gold_latency_by_path"))
    yield _latency_by_group(read("gold_latency_by_group"))
    yield _throughput(read("gold_throughput"))
    yield _traffic(read("gold_traffic_matrix"))
    yield _delivery(read("gold_delivery"))
    yield _listing(
        "Drops",
        "Publications that were dropped, by reason.",
        read("gold_drops").groupBy("broker", "reason", "group").agg(F.sum("publications").alias("publications")),
        F.desc("publications"),
    )
    yield _listing(
        "Duplicates",
        "Suppressed duplicates are the cost of redundancy. There should be no duplicates delivered twice.",
        read("gold_duplicates")
        .groupBy("broker", "group")
        .agg(*[F.sum(name).alias(name) for name in ("suppressed", "sampled", "delivered_twice")]),
        F.desc("delivered_twice"),
        F.desc("suppressed"),
    )
    yield _listing(
        "Reordering",
        "Sampled deliveries that came after a later message of the same origin and topic.",
        read("gold_reordering")
        .groupBy("origin", "destination", "group")
        .agg(
            F.sum("sampled").alias("sampled"),
            F.sum("reordered").alias("reordered"),
            F.max("depth_max").alias("depth_max"),
        )
        .where("reordered > 0"),
        F.desc("reordered"),
    )
    yield _overhead(read("gold_control_overhead"))
    yield _topology(read("gold_topology_snapshots"))
    yield _listing(
        "Outages",
        "Federators and links that went down.",
        read("gold_topology_intervals").where("down_at is not null"),
        F.desc("down_at"),
    )
    yield _load(read("gold_broker_load"))
    yield _listing(
        "Anomalies",
        "Brokers and links that deviate from their own baseline, strongest first.",
        read("gold_anomalies"),
        F.desc(F.abs("score")),
    )
    yield _listing(
        "Advice",
        "The federator that would anchor each group with the fewest link crossings.",
        read("gold_advice"),
        F.desc("is_worth_moving"),
        F.desc("saving_share"),
    )
    yield _listing(
        "Clock skew",
        "The other host's clock minus the host's clock in the last window, and the error of that estimate.",
        _last_window(read("gold_clock_skew")).where("host < other_host"),
        F.desc("skew_error_ms"),
    )
    yield _listing(
        "Quarantine",
        "Rows that were refused, by reason.",
        read("silver_quarantine")
        .groupBy("dataset", "reasons")
        .agg(F.count("*").alias("rows"), F.max_by("topic", "collected_at").alias("last_topic")),
        F.desc("rows"),
    )


def _last_window(frame: DataFrame) -> DataFrame:
    last = frame.agg(F.max("window_start").alias("window_start"))
    return frame.join(F.broadcast(last), "window_start")


def _tiles(read: Read) -> str:
    last = read("gold_delivery").groupBy("origin", "destination", "group")
    names = ("expected_total", "delivered_total", "lost_total", "unexplained_total")
    totals = last.agg(*[F.max_by(name, "window_start").alias(name) for name in names])
    certain = F.least("expected_total", "delivered_total")
    sums = _rows(totals.agg(*[F.sum(name).alias(name) for name in names], F.sum(certain).alias("arrived")))[0]
    shape = _rows(read("gold_topology_snapshots").orderBy(F.desc("at")).limit(1))
    anomalies = _rows(read("gold_anomalies").agg(F.count("*").alias("n")))[0]["n"]
    worst = _rows(read("gold_latency_by_group").agg(F.max("latency_ms_p99").alias("p99")))[0]["p99"]
    expected, arrived = sums["expected_total"], sums["arrived"]
    tiles = {
        "federators up": shape[0]["federators"] if shape else None,
        "deliveries": sums["delivered_total"],
        "delivery ratio": f"{arrived / expected:.4%}" if expected else None,
        "lost": sums["lost_total"],
        "lost, unexplained": sums["unexplained_total"],
        "worst p99": f"{worst:.1f} ms" if worst is not None else None,
        "anomalies": anomalies,
    }
    shown = [f"<div class='tile'><b>{_safe(_cell(value))}</b>{_safe(name)}</div>" for name, value in tiles.items()]
    return f"<div class='tiles'>{''.join(shown)}</div>"


def _plot(figure: go.Figure, rows: Sequence[Row]) -> str:
    if not rows:
        return "<p class='none'>Nothing to show yet.</p>"
    figure.update_layout(template="plotly_white", height=420, margin={"t": 20, "b": 40})
    config = {"displaylogo": False, "responsive": True}
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    return html + _cut(rows)


def _cut(rows: Sequence[Row]) -> str:
    return f"<p class='note'>Only the first {ROWS_MAX} rows are shown.</p>" if len(rows) > ROWS_MAX else ""


def _cell(value: object) -> str:
    match value:
        case None:
            return "–"
        case float():
            return f"{value:,.3f}"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case _:
            return str(value)


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return "<p class='none'>None.</p>"
    head = "".join(f"<th>{_safe(name.replace('_', ' '))}</th>" for name in rows[0])
    lines = []
    for row in rows[:ROWS_MAX]:
        cells = [f"<td{_align(value)}>{_safe(_cell(value))}</td>" for value in row.values()]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>{_cut(rows)}"


def _align(value: object) -> str:
    return " class='n'" if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _listing(heading: str, note: str, frame: DataFrame, *order: Any) -> Section:  # noqa: ANN401 - Spark's Column
    return Section(heading, note, _table(_rows(frame.orderBy(*order))))


def _lines(rows: Sequence[Row], x: str, y: str, name: str, title: str) -> go.Figure:
    figure = go.Figure()
    lines: dict[str, list[Row]] = {}
    for row in rows[:ROWS_MAX]:
        lines.setdefault(str(row[name]), []).append(row)
    # Show the longest lines, because colours are limited.
    for line, points in sorted(lines.items(), key=lambda item: (-len(item[1]), item[0]))[:LINES_MAX]:
        points.sort(key=lambda point: point[x])
        figure.add_trace(
            go.Scatter(x=[p[x] for p in points], y=[p[y] for p in points], name=_safe(line), mode="lines+markers")
        )
    figure.update_yaxes(title_text=title, rangemode="tozero")
    return figure


def _latency_by_path(frame: DataFrame) -> Section:
    # Percentiles cannot be added over windows, so the window with the most deliveries represents the path.
    measures = ("latency_ms_p50", "latency_ms_p95", "latency_ms_p99", "skew_error_ms_max")
    busiest = frame.groupBy("path").agg(
        F.sum("deliveries").alias("deliveries"), *[F.max_by(name, "deliveries").alias(name) for name in measures]
    )
    rows = _rows(busiest.orderBy(F.desc("deliveries"), "path").limit(BARS_MAX))
    figure = go.Figure()
    for name in measures[:3]:
        figure.add_bar(x=[_safe(row["path"]) for row in rows], y=[row[name] for row in rows], name=name[-3:])
    figure.update_layout(barmode="group")
    figure.update_yaxes(title_text="ms")
    note = f"Each path's busiest window, corrected for clock skew, for the {BARS_MAX} paths with the most deliveries."
    return Section("Latency by path", note, _plot(figure, rows) + _table(rows))


def _latency_by_group(frame: DataFrame) -> Section:
    rows = _rows(frame.select("window_start", "group", "latency_ms_p99").orderBy("window_start"))
    figure = _lines(rows, "window_start", "latency_ms_p99", "group", "p99, ms")
    return Section("Latency by group", "The 99th percentile of each group over time.", _plot(figure, rows))


def _throughput(frame: DataFrame) -> Section:
    summed = frame.groupBy("window_start", "measure").agg(F.sum("publications_per_s").alias("publications_per_s"))
    rows = _rows(summed.orderBy("window_start"))
    figure = _lines(rows, "window_start", "publications_per_s", "measure", "publications/s")
    return Section("Throughput", "Publications per second in the whole federation, by measure.", _plot(figure, rows))


def _traffic(frame: DataFrame) -> Section:
    summed = frame.groupBy("origin", "destination").agg(F.sum("publications").alias("publications"))
    rows = _rows(summed.orderBy(F.desc("publications")))
    origins = sorted({row["origin"] for row in rows})
    destinations = sorted({row["destination"] for row in rows})
    cells = {(row["origin"], row["destination"]): row["publications"] for row in rows}
    figure = go.Figure(
        go.Heatmap(
            x=[_safe(name) for name in destinations],
            y=[_safe(name) for name in origins],
            z=[[cells.get((origin, destination)) for destination in destinations] for origin in origins],
            colorscale="Blues",
        )
    )
    # Ids are names even if they look like numbers.
    figure.update_xaxes(title_text="delivered at", type="category")
    figure.update_yaxes(title_text="published at", type="category")
    return Section("Traffic matrix", "Publications delivered, over all windows and groups.", _plot(figure, rows))


def _delivery(frame: DataFrame) -> Section:
    names = ("expected_total", "uncertain_total", "delivered_total", "dropped_total", "lost_total")
    last = frame.groupBy("origin", "destination", "group").agg(
        *[F.max_by(name, "window_start").alias(name) for name in (*names, "unexplained_total", "delivery_ratio")]
    )
    rows = _rows(last.orderBy(F.desc("unexplained_total"), F.desc("lost_total"), "origin", "destination", "group"))
    note = "Expected: publications that a member had to receive. Uncertain: published while it joined or left."
    return Section("Delivery and loss", note, _table(rows))


def _overhead(frame: DataFrame) -> Section:
    summed = frame.groupBy("window_start").agg(
        F.sum("control_bytes").alias("control"), F.sum("data_bytes").alias("data")
    )
    long = summed.unpivot(["window_start"], ["control", "data"], "kind", "bytes")
    rows = _rows(long.orderBy("window_start"))
    figure = _lines(rows, "window_start", "bytes", "kind", "bytes per window")
    return Section("Control overhead", "Control frames beside data frames, over all links.", _plot(figure, rows))


def _topology(frame: DataFrame) -> Section:
    measures = ("federators", "links", "components", "diameter")
    rows = _rows(frame.unpivot(["at"], measures, "measure", "value").orderBy("at"))
    figure = _lines(rows, "at", "value", "measure", "")
    figure.update_traces(line_shape="hv")
    weak = _rows(frame.orderBy(F.desc("at")).select(F.array_join("articulation_points", ", ").alias("points")).limit(1))
    points = weak[0]["points"] if weak else ""
    note = f"State after every change. Federators whose loss would split the overlay now: {points or 'none'}."
    return Section("Topology", note, _plot(figure, rows))


def _load(frame: DataFrame) -> Section:
    federators = frame.where("role = 'federator'")
    rows = _rows(federators.select("window_start", "broker", "cpu_share").orderBy("window_start"))
    figure = _lines([r for r in rows if r["cpu_share"] is not None], "window_start", "cpu_share", "broker", "of a core")
    return Section("Broker load", "CPU time of the federators.", _plot(figure, rows))
