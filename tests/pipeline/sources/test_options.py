from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.pipeline.collector_settings import (
    CollectorSettings,
    check_url,
    covers,
    default_spool,
    parse_duration_s,
    split_filters,
)
from hanse.pipeline.sources.options import KNOWN, ReadOptions, WriteOptions
from hanse.pipeline.spool import Position


def test_without_options_the_spool_is_in_the_users_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    options = ReadOptions.parse({})
    assert options.spool == "/data/hanse/spool" == default_spool()
    assert (options.collector, options.producer, options.starting) == (None, None, "earliest")
    assert (options.rows_per_batch_max, options.bytes_per_batch_max) == (1_000_000, 256 * 1024 * 1024)


def test_option_names_are_case_insensitive_and_load_takes_the_spool_as_its_path() -> None:
    options = ReadOptions.parse({"PATH": "/s", "MAXROWSPERBATCH": "7", "clientid": "c", "FailOnDataLoss": "FALSE"})
    assert (options.spool, options.rows_per_batch_max, options.producer) == ("/s", 7, "c")
    assert options.fail_on_data_loss is False


def test_a_url_and_topics_define_a_collector_with_a_stable_name() -> None:
    given = {"url": "mqtt://h:1883", "topics": " a/#, b/+ ,a/b", "spool": "/s", "retention": "2h"}
    one, two = ReadOptions.parse(given).collector, ReadOptions.parse(given).collector
    assert one is not None
    assert two is not None
    assert one.topics == ("a/#", "b/+")
    assert one.client_id == two.client_id
    assert one.client_id.startswith("hanse-")
    assert one.retention_s == 7200
    other = ReadOptions.parse(given | {"spool": "/t"}).collector
    assert other is not None
    assert other.client_id != one.client_id
    assert ReadOptions.parse(given).producer == one.client_id
    assert ReadOptions.parse(given).topics == ()


def test_settings_survive_the_pipe_to_the_helper() -> None:
    settings = CollectorSettings(url="mqtt://h", topics=("a", "b/#"), username="u", password="s3cret", client_id="c")
    assert CollectorSettings.from_json(settings.to_json()) == settings
    assert "s3cret" not in repr(settings)


def test_starting_offsets_may_be_an_offset() -> None:
    options = ReadOptions.parse({"startingOffsets": '{"p": {"seg": 2, "pos": 10, "rows": 5}}'})
    assert options.starting == {"p": Position(2, 10, 5)}


def test_times_without_a_zone_are_utc() -> None:
    assert ReadOptions.parse({"since": "1970-01-01T00:00:01"}).since_us == 1_000_000
    assert ReadOptions.parse({"until": "1970-01-01T02:00:00+02:00"}).until_us == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic_s": "a"}, "did you mean topics"),
        ({"zzz": "a"}, "known are url, topics"),
        ({"url": "mqtt://h"}, "needs topics"),
        ({"url": "http://h", "topics": "a"}, "no known scheme"),
        ({"url": "mqtt://h:99999", "topics": "a"}, "cannot be read"),
        ({"url": "mqtt://", "topics": "a"}, "names no host"),
        ({"url": "mqtt://u:p@h", "topics": "a"}, "username and password"),
        ({"url": "mqtt://h", "topics": " , "}, "separated by commas"),
        ({"url": "mqtt://h", "topics": "a/#/b"}, "wildcard in the wrong place"),
        ({"url": "mqtt://h", "topics": "a+"}, "wildcard in the wrong place"),
        ({"url": "mqtt://h", "topics": "a", "qos": "3"}, "qos is 3"),
        ({"url": "mqtt://h", "topics": "a", "qos": "one"}, "whole number"),
        ({"url": "mqtt://h", "topics": "a", "password": "p"}, "without a username"),
        ({"url": "mqtt://h", "topics": "a", "certFile": "/c"}, "both certFile and keyFile"),
        ({"url": "mqtt://h", "topics": "a", "caFile": "/nosuch"}, "not a file on this machine"),
        ({"url": "mqtt://h", "topics": "a", "clientId": "a/b"}, "cannot name a producer"),
        ({"url": "mqtt://h", "topics": "a", "retention": "7"}, "expected a duration"),
        ({"username": "u"}, "there is no url"),
        ({"maxRowsPerBatch": "0"}, "from 1"),
        ({"maxRowsPerBatch": "-1"}, "from 1"),
        ({"maxBytesPerBatch": "1e6"}, "whole number"),
        ({"minPartitions": "0"}, "from 1"),
        ({"startingOffsets": "newest"}, "expected earliest, latest"),
        ({"startingOffsets": "[]"}, "expected earliest, latest"),
        ({"startingOffsets": '{"p": 3}'}, "not a spool offset"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"since": "yesterday"}, "expected a time"),
        ({"consumer": "a b"}, "cannot name a consumer"),
    ],
)
def test_a_wrong_option_is_refused_with_the_expected_value(options: dict[str, str], says: str) -> None:
    with pytest.raises(LocalError, match=says):
        ReadOptions.parse(options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs the option url"),
        ({"url": "mqtt://h", "topic": "a/+"}, "without wildcards"),
        ({"url": "mqtt://h", "qos": "3"}, "qos is 3"),
        ({"url": "mqtt://h", "appId": "a b"}, "cannot name a appId"),
        ({"url": "mqtt://h", "retain": "1"}, "true or false"),
    ],
)
def test_a_wrong_option_of_a_writer_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(LocalError, match=says):
        WriteOptions.parse(options)


def test_options_that_spark_adds_for_a_writer_are_accepted(tmp_path: Path) -> None:
    options = WriteOptions.parse({"url": "mqtt://h", "checkpointLocation": str(tmp_path), "appId": "x"})
    assert (options.app_id, options.qos, options.retain) == ("x", 1, False)


def test_every_option_of_the_source_is_explained() -> None:
    assert all(KNOWN.values())


@pytest.mark.parametrize(
    ("wide", "narrow", "is_covered"),
    [
        ("a/#", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/+/c", True),
        ("a/#", "a/#", True),
        ("#", "a/b", True),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("a/+", "a/b", True),
        ("a/+", "a/#", False),
        ("a/+", "a/b/c", False),
        ("a/b", "a/+", False),
        ("+/+", "a/+", True),
        ("a", "a/#", False),
    ],
)
def test_a_filter_covers_another_if_it_matches_every_topic_of_it(wide: str, narrow: str, is_covered: bool) -> None:
    assert covers(wide, narrow) is is_covered


def test_covered_filters_are_left_out() -> None:
    assert split_filters("a/b,a/#,c,c,a/b/c") == ("a/#", "c")


def test_durations_have_units() -> None:
    assert [parse_duration_s("x", text) for text in ("500ms", "2s", "1.5m", "1h", "7d")] == [
        0.5,
        2,
        90,
        3600,
        604800,
    ]


def test_addresses_in_the_papers_form_are_accepted() -> None:
    for url in ("tcp://h:1", "ssl://h:1", "mqtts://h", "mqtt://[::1]:1883"):
        assert check_url(url) == url
