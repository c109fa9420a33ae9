"""The tables as a page of documentation. A test ensures that `docs/pipeline-tables.md` equals this text.

python -m hanse.pipeline.schemas.document > docs/pipeline-tables.md
"""

from hanse.pipeline.schemas.catalog import GOLD, SILVER
from hanse.pipeline.schemas.table import Table

INTRODUCTION = """# The pipeline's tables

Bronze (`bronze_mqtt`) holds the messages that the collector received, unchanged; see [pipeline.md](pipeline.md).
Silver holds one row per measurement, decoded from telemetry and checked against rules. A row that breaks a rule goes
to `silver_quarantine` with the rule's name. Gold answers questions. Every table is a Delta table (Parquet files and a
log) in a directory of its own, which Spark, delta-rs, DuckDB and pandas can read.

- Windows are tumbling, 60 s by default, counted from 1970, by the reporting broker's clock. Windows of clock skew
  follow the collector's clock.
- Counts (throughput, traffic matrix, delivery, drops) come from counters and are exact. Latency, paths, reordering and
  `delivered_twice` come from sampled messages.
- "Required" columns are never null. Types are Spark's; `strings` is an array of strings.
- Each row of bronze is added to the silver tables of telemetry exactly once, even if a process is killed. All later
  tables (paths, increments, latencies, all of gold) are rebuilt from all of silver in each run. Each table is replaced
  in one step.
- Latency is corrected for the two hosts' clocks. `skew_error_ms` is the maximum error of the correction: half the wire
  time of the best two-way check, plus 15 parts per million of drift. Without checks latency is not corrected, and the
  row says so.
- Loss is known while a broker was a member throughout. A message published between two reports, while the broker
  joined or left, counts as `uncertain`. Totals are exact once traffic has come to rest. A single window may include a
  message that is published and not yet delivered.

This page is generated from the schemas (`python -m hanse.pipeline.schemas.document`); a test fails if the two differ.
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
    """Return the whole page."""
    parts = [INTRODUCTION, "## Silver\n", *[f"{_section(table)}\n" for table in SILVER.values()]]
    parts += ["## Gold\n", *[f"{_section(table)}\n" for table in GOLD.values()]]
    return "\n".join(parts)


if __name__ == "__main__":
    print(render(), end="")
