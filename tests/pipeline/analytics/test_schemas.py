import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType, TimestampType

from hanse.pipeline.quality import RULES
from hanse.pipeline.schemas import silver
from hanse.pipeline.schemas.catalog import GOLD, SILVER, TABLES
from hanse.pipeline.schemas.document import render
from hanse.telemetry import KINDS, fields_of

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_silver_table_has_its_contracts_fields_and_nullability(kind: str) -> None:
    spark_types = {int: LongType(), bool: BooleanType(), str: StringType()}
    columns = silver.TABLES[kind].struct.fields[2:]
    for field, column in zip(fields_of(KINDS[kind]), columns, strict=True):
        assert column.nullable == field.is_nullable
        if field.is_moment:
            assert f"{column.name}_us" == field.name
            assert column.dataType == TimestampType()
        else:
            assert column.name == field.name
            assert column.dataType == spark_types[field.type]


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_arrow_schema_equals_sparks_own_conversion(name: str) -> None:
    table = TABLES[name]
    assert table.arrow.equals(to_arrow_schema(table.struct, timezone="UTC"))
    for field, column in zip(table.arrow, table.columns, strict=True):
        assert field.nullable == (not column.is_required)
        assert column.type != "timestamp" or field.type == pa.timestamp("us", tz="UTC")


def test_tables_are_named_after_their_layer_and_have_distinct_columns() -> None:
    assert all(name.startswith("silver_") for name in SILVER)
    assert all(name.startswith("gold_") for name in GOLD)
    assert all(len(set(table.names)) == len(table.names) for table in TABLES.values())


def test_every_column_and_every_table_has_a_meaning() -> None:
    for table in TABLES.values():
        assert table.row.endswith("."), table.name
        assert all(column.meaning for column in table.columns), table.name


def test_every_meaning_belongs_to_a_field() -> None:
    names = {name for table in silver.TABLES.values() for name in table.names}
    assert set(silver.MEANINGS) <= names


def test_every_table_that_comes_from_outside_has_rules() -> None:
    assert set(RULES) == {f"silver_{kind}" for kind in KINDS} | {"silver_messages"}


def test_the_page_of_tables_matches_the_schemas() -> None:
    assert (DOCS / "pipeline-tables.md").read_text(encoding="utf-8") == render(), (
        "make docs/pipeline-tables.md anew: python -m hanse.pipeline.schemas.document > docs/pipeline-tables.md"
    )


@pytest.mark.spark
def test_the_session_is_of_the_requested_kind(spark: SparkSession) -> None:
    is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
    assert is_connect == (os.environ.get("HANSE_TEST_SPARK", "classic") != "classic")
