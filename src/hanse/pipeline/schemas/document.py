"""The tables as a page of docs: `docs/pipeline-tables.md` is this text, and a test keeps it so.

python -m hanse.pipeline.schemas.document > docs/pipeline-tables.md
"""

from hanse.pipeline.schemas.catalog import GOLD, SILVER
from hanse.pipeline.schemas.table import Table

INTRODUCTION = """# The pipeline's tables

Bronze (`bronze_mqtt`) holds what the collector received, as it came; see [pipeline.md](pipeline.md). Silver holds
one row a measured thing, decoded from telemetry and judged by rules; what breaks a rule is in `silver_quarantine`
with the rule's name. Gold answers questions. All tables are Delta tables (Parquet files and a log) in one directory
each, which Spark, delta-rs, DuckDB or pandas can read.

- Windows are tumbling, 60 s by default, counted from 1970, by the reporting broker's clock (clock skew: by the
  collector's).
- Counts (throughput, traffic matrix, delivery, drops) come from counters and are exact; latency, paths, reordering
  and `delivered_twice` come from sampled messages.
- "Required" columns are never null. Types are Spark's; `strings` is an array of strings.
- Silver of telemetry is added to, once for each row of bronze, whatever is killed when. Everything after it (paths,
  increments, latencies, all of gold) is made anew from all of silver at each run, and replaced in one step a table.
- Latency is corrected for the two hosts' clocks; `skew_error_ms` says how far the correction may be off (half the
  wire time of the best two-way check, and 15 parts in a million of drift). Without checks it is not corrected, and
  the row says so.
- Loss is known where a broker was a member throughout; what was published between two reports while it joined or
  left is `uncertain`. Totals are exact once traffic has come to rest; a window by itself may hold a message that is
  published and not yet delivered.

This page is made from the schemas (`python -m hanse.pipeline.schemas.document`); a test fails if the two differ.
"""


def _section(table: Table) -> str:
    lines = [
        f"### {table.name}",
        "",
        table.row,
        "",
        "| column | type | required | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for column in table.columns:
        required = "yes" if column.is_required else ""
        lines.append(f"| `{column.name}` | {column.type} | {required} | {column.meaning} |")
    return "\n".join(lines)


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Silver\n", *[f"{_section(table)}\n" for table in SILVER.values()]]
    parts += ["## Gold\n", *[f"{_section(table)}\n" for table in GOLD.values()]]
    return "\n".join(parts)


if __name__ == "__main__":
    print(render(), end="")
