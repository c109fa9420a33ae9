import dataclasses
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from hanse.pipeline.quality import RULES, quarantined, valid
from hanse.pipeline.schemas import messages as messages_schema
from hanse.pipeline.schemas import quarantine, silver
from hanse.pipeline.schemas.mqtt import ROW
from hanse.pipeline.transforms.messages import messages
from hanse.pipeline.transforms.shown_text import SHOWN_CHARS_MAX, show
from hanse.pipeline.transforms.telemetry_rows import refused, telemetry_rows
from hanse.telemetry import Delivery, TopologyEvent, encode, topic_for

START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = 1_767_225_600_000_000


@pytest.fixture(scope="session")
def bronze(spark: Any) -> Any:
    """Return a function that builds rows of bronze from `topic` and `payload`, and other columns by name."""

    def build(*rows: dict[str, Any]) -> Any:
        blank = {"producer": "p", "received_at": START, "qos": 1, "retain": False, "dup": False}
        return spark.createDataFrame(
            pa.Table.from_pylist([blank | {"seq": i} | row for i, row in enumerate(rows)], ROW)
        )

    return build


def delivery(seq: int, **changes: Any) -> Delivery:
    row = Delivery("1", 9, seq, "a/b", "a/+", 1, 2, None, START_US + seq)
    return dataclasses.replace(row, **changes)


@pytest.mark.spark
def test_payloads_become_rows_and_duplicates_are_read_once(bronze: Any, check: Any) -> None:
    topic = topic_for("delivery", "7")
    payload = encode("delivery", [delivery(1), delivery(2, published_at_us=START_US)])
    frame = bronze(
        {"topic": topic, "payload": payload},
        {"topic": topic, "payload": payload, "dup": True},  # the same batch again
        {"topic": topic_for("delivery", "8"), "payload": payload},  # another reporter
        {"topic": topic, "payload": encode("delivery", [delivery(3)])},
        {"topic": topic, "payload": payload[:-1]},  # truncated
        {
            "topic": topic_for("topology", "7"),
            "payload": encode("topology", [TopologyEvent(1, "join", "7", None, None)]),
        },
        {"topic": "plant/1", "payload": payload},
    )
    check(
        telemetry_rows(frame, "delivery"),
        silver.TABLES["delivery"],
        "reporter collected_at origin epoch seq topic group qos hops published_at delivered_at",
        ("7", 0, "1", 9, 1, "a/b", "a/+", 1, 2, None, 1e-6),
        ("7", 0, "1", 9, 2, "a/b", "a/+", 1, 2, 0, 2e-6),
        ("8", 0, "1", 9, 1, "a/b", "a/+", 1, 2, None, 1e-6),
        ("8", 0, "1", 9, 2, "a/b", "a/+", 1, 2, 0, 2e-6),
        ("7", 0, "1", 9, 3, "a/b", "a/+", 1, 2, None, 3e-6),
    )
    assert telemetry_rows(frame, "delivery").schema == silver.TABLES["delivery"].struct


@pytest.mark.spark
def test_telemetry_that_cannot_be_decoded_is_refused_with_the_reason(bronze: Any, check: Any) -> None:
    topic = topic_for("delivery", "7")
    frame = bronze(
        {"topic": topic, "payload": encode("delivery", [delivery(1)])},
        {"topic": topic, "payload": b"<script>\xff\x00"},
        {"topic": "$hanse/telemetry/v9/delivery/7", "payload": b""},
        {"topic": "$hanse/telemetry/v1/delivery/<script>", "payload": b""},
    )
    check(
        refused(frame),
        quarantine.TABLE,
        "dataset topic reasons sample payload_bytes",
        (
            "telemetry",
            topic,
            "Telemetry payload has format 60; this build supports 1.",
            r"<script>\xff\x00",
            10,
        ),
        (
            "telemetry",
            "$hanse/telemetry/v9/delivery/7",
            "Telemetry has version 'v9'; this build supports v1: upgrade the older side.",
            "",
            0,
        ),
        (
            "telemetry",
            "$hanse/telemetry/v1/delivery/<script>",
            "Telemetry has the id '<script>'; expected 1 to 260 letters, digits and _.:@-.",
            "",
            0,
        ),
    )


@pytest.mark.slow
@pytest.mark.spark
def test_poisoned_messages_break_nothing_and_show_as_text(bronze: Any, check: Any) -> None:
    many = {"user": [{"name": f"n{i}", "value": "<script>"} for i in range(10_000)]}
    frame = bronze(
        {"topic": "a/<script>alert(1)</script>", "payload": b"<script>alert(2)</script>"},
        {"topic": "a/b", "payload": b"\xff\xfe\x00gr\xc3\xbc\xc3\x9fe"},
        {"topic": "a/c", "payload": b"", "properties": {"user": [{"name": "k", "value": "v"}]}},
        {"topic": "a/d", "payload": b"x", "properties": many},
        {"topic": "a/#", "payload": b"x"},
        {"topic": "", "payload": b"x"},
        {"topic": "nul/\0", "payload": b"x"},
        {"topic": "/".join("a" * 201), "payload": b"x"},
        {"topic": "e/é", "payload": "é".encode(), "origin_broker": "3", "message_id": "3-9-1", "retain": True},
        {"topic": topic_for("delivery", "7"), "payload": encode("delivery", [delivery(1)])},
    )
    seen = messages(frame)
    check(
        valid(seen, "silver_messages"),
        messages_schema.TABLE,
        "topic levels payload_bytes payload_text is_text is_retained properties origin message_id",
        ("a/<script>alert(1)</script>", 3, 25, "<script>alert(2)</script>", True, False, 0, None, None),
        ("a/b", 2, 10, r"\xff\xfe\x00grüße", False, False, 0, None, None),
        ("a/c", 2, 0, "", True, False, 1, None, None),
        ("e/é", 2, 2, "é", True, True, 0, "3", "3-9-1"),
    )
    refused_rows = quarantined(seen, "silver_messages")
    assert refused_rows.schema == quarantine.TABLE.struct
    assert {row["topic"][:10]: row["reasons"] for row in refused_rows.collect()} == {
        "a/d": "properties_are_within_limit",
        "a/#": "topic_has_no_wildcard",
        "": "topic_is_not_empty",
        r"nul/\x00": "topic_has_no_nul",
        "a/a/a/a/a/": "levels_are_within_limit",
    }


@pytest.mark.spark
def test_every_broken_rule_of_a_row_is_named_and_no_row_is_lost(make: Any) -> None:
    day = 86_400
    rows = make(
        silver.TABLES["topology"],
        "reporter collected_at at event federator neighbour",
        ("m", 0, 0, "join", "1", None),
        ("m", 0, 0, "exploded", "1", None),
        ("m", 0, 0, "link_up", "1", None),
        ("m", 0, 0, "link_up", "1", "1"),
        ("m", 0, 0, "link_up", "1", "2"),
        ("m", 0, 2 * day, "imploded", "", None),
    )
    good = valid(rows, "silver_topology")
    assert good.schema == rows.schema
    from pyspark.testing import assertDataFrameEqual  # loads pandas, so not at collection time

    assertDataFrameEqual(good, rows.where("event = 'join' or neighbour = '2'"))
    bad = quarantined(rows, "silver_topology").select("dataset", "reasons")
    assert sorted(row["reasons"] for row in bad.collect()) == [
        "a_link_has_two_ends",
        "a_link_has_two_ends",
        "event_is_known",
        "federator_is_not_empty, at_is_not_in_the_future, event_is_known",
    ]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("kind", sorted(silver.TABLES))
def test_every_kind_has_rules_that_a_blank_row_breaks_or_keeps_without_an_error(make: Any, kind: str) -> None:
    table = silver.TABLES[kind]
    rows = make(table, "reporter", ("7",))
    dataset = f"silver_{kind}"
    assert valid(rows, dataset).count() + quarantined(rows, dataset).count() == 1


def test_rules_have_distinct_names_within_a_dataset() -> None:
    for rules in RULES.values():
        assert len({rule.name for rule in rules}) == len(rules)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, None),
        (b"", ""),
        (b"<script>", "<script>"),
        ("\x1b[31m\u202e", r"\x1b[31m\u202e"),
        (b"\xc3\x28", r"\xc3("),
        ("ü" * 201, "ü" * SHOWN_CHARS_MAX + "… (201 in all)"),
        (b"a" * 1_000_000, "a" * SHOWN_CHARS_MAX + "… (1000000 in all)"),
    ],
)
def test_shown_text_is_printable_and_short(data: Any, text: Any) -> None:
    assert show(data) == text
