"""Rules that a row must satisfy to enter silver; a row that breaks one goes to the quarantine with the rules' names.

Rules of this module:

- A rule is a name and a condition that must hold. A condition that evaluates to null holds, because it reads an
  optional column that is missing. Columns are created when a rule is applied, not when it is declared: only then is it
  known whether the session is classic or Spark Connect.
- No row is dropped. Each row is either in `valid` or in `quarantined`, and every broken rule is named, not only the
  first.
- The quarantine shows text cut to length and escaped. The whole row is still in bronze.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from hanse.pipeline.schemas import quarantine
from hanse.pipeline.transforms.shown_text import show
from hanse.telemetry import FLOW_MEASURES, MESH_EVENTS, ROLES, TOPOLOGY_EVENTS

# Limits of MQTT and of the federation (docs/protocol.md): no message that passed them can be larger.
TOPIC_BYTES_MAX = 65_535
TOPIC_LEVELS_MAX = 200
PAYLOAD_BYTES_MAX = 16 << 20
# User properties of one message. Brokers bound only the packet size; thousands in one row are an attack or a mistake.
PROPERTIES_MAX = 1_000
# Above twice the largest distance in an overlay of 10,000; the protocol's own limit is lower (2 x distance + 4).
HOPS_MAX = 255
# A reporter's clock that is this far ahead of the collector's is wrong, not skewed. A time far behind is allowed,
# because a spool may have waited long.
CLOCK_AHEAD_S = 86_400


@dataclass(frozen=True, slots=True)
class Rule:
    """Name that says what must hold, and the condition."""

    name: str
    holds: Callable[[], Column]


def _known(column: str, values: Sequence[str]) -> Rule:
    return Rule(f"{column}_is_known", lambda: F.col(column).isin(*values))


def _said(column: str) -> Rule:
    return Rule(f"{column}_is_not_empty", lambda: F.length(column) > 0)


def _in_order(earlier: str, later: str) -> Rule:
    return Rule(f"{earlier}_is_not_after_{later}", lambda: F.col(earlier) <= F.col(later))


def _plausible(column: str) -> Rule:
    ahead = f"{column}_is_not_in_the_future"
    latest = F.make_dt_interval
    return Rule(ahead, lambda: F.col(column) <= F.col("collected_at") + latest(secs=F.lit(CLOCK_AHEAD_S)))


def _all_four_moments() -> Column:
    moments = [F.col(name).isNotNull() for name in ("received_at", "answered_at", "returned_at")]
    return ~F.col("is_ok") | (moments[0] & moments[1] & moments[2])


RULES: dict[str, tuple[Rule, ...]] = {
    "silver_hop": (
        _said("origin"),
        _plausible("received_at"),
        _in_order("received_at", "sent_at"),
        Rule("hop_is_within_limit", lambda: F.col("hop") <= HOPS_MAX),
        Rule("only_the_origin_has_no_previous", lambda: (F.col("hop") == 0) == F.col("previous").isNull()),
        Rule("previous_is_another", lambda: F.col("previous") != F.col("reporter")),
    ),
    "silver_delivery": (
        _said("origin"),
        _plausible("delivered_at"),
        Rule("qos_is_0_1_or_2", lambda: F.col("qos") <= 2),
        Rule("hops_is_within_limit", lambda: F.col("hops").between(1, HOPS_MAX)),
        Rule("origin_is_another", lambda: F.col("origin") != F.col("reporter")),
    ),
    "silver_flow": (
        _said("origin"),
        _plausible("at"),
        _in_order("started_at", "at"),
        _known("measure", FLOW_MEASURES),
        Rule(
            "only_the_origin_publishes",
            lambda: (F.col("measure") != "published") | (F.col("origin") == F.col("reporter")),
        ),
    ),
    "silver_link": (
        _plausible("at"),
        _in_order("started_at", "at"),
        Rule("neighbour_is_another", lambda: F.col("neighbour") != F.col("reporter")),
    ),
    "silver_health": (
        _said("host"),
        _said("target_host"),
        _plausible("sent_at"),
        _in_order("sent_at", "returned_at"),
        _in_order("received_at", "answered_at"),
        Rule("an_answer_has_all_four_moments", _all_four_moments),
    ),
    "silver_topology": (
        _said("federator"),
        _plausible("at"),
        _known("event", TOPOLOGY_EVENTS),
        Rule(
            "a_link_has_two_ends",
            lambda: (
                ~F.col("event").startswith("link_") | F.coalesce(F.col("neighbour") != F.col("federator"), F.lit(False))
            ),
        ),
    ),
    "silver_mesh": (_said("federator"), _plausible("at"), _known("event", MESH_EVENTS)),
    "silver_resource": (_said("host"), _plausible("at"), _in_order("started_at", "at"), _known("role", ROLES)),
    "silver_messages": (
        _said("topic"),
        Rule("topic_has_no_wildcard", lambda: ~F.col("topic").rlike("[+#]")),
        Rule("topic_has_no_nul", lambda: ~F.col("topic").contains("\0")),
        Rule("topic_is_within_limit", lambda: F.octet_length("topic") <= TOPIC_BYTES_MAX),
        Rule("levels_are_within_limit", lambda: F.col("levels") <= TOPIC_LEVELS_MAX),
        Rule("payload_is_within_limit", lambda: F.col("payload_bytes") <= PAYLOAD_BYTES_MAX),
        Rule("properties_are_within_limit", lambda: F.col("properties") <= PROPERTIES_MAX),
        Rule("qos_is_0_1_or_2", lambda: F.col("qos").between(0, 2)),
    ),
}


def judge(frame: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Add the column `broken`: the names of the rules that each row breaks."""
    verdicts = [F.when(~F.coalesce(rule.holds(), F.lit(True)), F.lit(rule.name)) for rule in rules]
    return frame.withColumn("broken", F.array_compact(F.array(*verdicts)))


def valid(frame: DataFrame, dataset: str, seen: Observation | None = None) -> DataFrame:
    """Return the rows of `frame` that satisfy all rules of `dataset`.

    After the result has been written, `seen` holds `broken`, the number of the other rows.
    """
    judged = judge(frame, RULES[dataset])
    if seen is not None:
        judged = judged.observe(seen, F.count_if(F.size("broken") > 0).alias("broken"))
    return judged.where(F.size("broken") == 0).drop("broken")


def quarantined(frame: DataFrame, dataset: str) -> DataFrame:
    """Return the rows that break a rule, in the schema of the quarantine."""
    broken = judge(frame, RULES[dataset]).where(F.size("broken") > 0)
    row = F.to_json(F.struct(*[name for name in frame.columns if name != "collected_at"]))
    kept = broken.select(
        "collected_at",
        F.lit(dataset).alias("dataset"),
        F.col("topic") if "topic" in frame.columns else F.lit(None).cast("string").alias("topic"),
        F.array_join("broken", ", ").alias("reasons"),
        row.alias("sample"),
        F.octet_length(row).cast("long").alias("payload_bytes"),
    )
    return kept.mapInArrow(_show, quarantine.TABLE.struct)


def _show(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = quarantine.TABLE.arrow
    for batch in batches:
        shown = {name: [show(text) for text in batch.column(name).to_pylist()] for name in ("topic", "sample")}
        arrays = [
            pa.array(shown[field.name], field.type) if field.name in shown else batch.column(field.name)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
