import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.logs import FIELD_CHARACTERS_MAX, JsonFormatter, LineLimit, PlainFormatter, configure, note_security

LOG = logging.getLogger("hanse.federator.test")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, logger = logging.getLogger(), logging.getLogger("hanse")
    before = (root.handlers[:], root.level, logger.level, logging.raiseExceptions)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logger.setLevel(before[2])
    logging.raiseExceptions = before[3]


def plain(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure("plain", level, stream)
    return stream


def fail(words: str) -> None:
    raise ValueError(words)


def record(message: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("hanse.x", logging.INFO, "", 0, message, (), None)
    vars(made).update(fields)
    return made


def test_a_plain_line_has_time_level_place_event_and_fields() -> None:
    stream = plain()
    LOG.warning("link is up", extra={"neighbour": 7, "address": "mqtt://h:1", "why": "two words", "is_new": True})
    line = stream.getvalue()
    assert line.endswith(
        'Z WARNING federator.test link is up neighbour=7 address=mqtt://h:1 why="two words" is_new=true\n'
    )
    assert line[4] == line[7] == "-"
    assert line[10] == "T"


def test_a_json_line_is_one_object() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    LOG.info("link %s", "up", extra={"neighbour": 7, "lag_s": 0.5, "event": "x", "nothing": None, "topic": "grün"})
    (line,) = stream.getvalue().splitlines()
    assert line.isascii()
    said = json.loads(line)
    assert said.pop("time").endswith("Z")
    assert said == {
        "level": "info",
        "logger": "hanse.federator.test",
        "event": "link up",
        "neighbour": 7,
        "lag_s": 0.5,
        "event_": "x",
        "nothing": None,
        "topic": "grün",
    }


def test_the_level_selects_the_written_lines_and_configuring_again_replaces() -> None:
    first = plain("error")
    LOG.warning("not this")
    second = plain("debug")
    LOG.debug("but this")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


@pytest.mark.parametrize("formatter", [PlainFormatter(), JsonFormatter()])
@pytest.mark.parametrize(
    "fields",
    [
        {"password": "hunter2"},
        {"join_token": "hunter2"},
        {"key_password": "hunter2"},
        {"client_secret": "hunter2"},
        {"url": "mqtt://u:hunter2@h:1"},
        {"url": "mqtt://u:p@hunter2@h:1"},
        {"error": ValueError("cannot reach mqtts://u:hunter2@h:1/x")},
        {"url": "x" * (FIELD_CHARACTERS_MAX - 20) + "mqtt://u:hunter2" + "y" * 50 + "@h"},
    ],
)
def test_no_secret_is_written(formatter: logging.Formatter, fields: dict[str, Any]) -> None:
    assert "hunter2" not in formatter.format(record("dialling", **fields))
    assert "hunter2" not in formatter.format(record(f"dialling {fields.get('url', '')}"))


def test_names_that_only_sound_like_secrets_are_written() -> None:
    line = PlainFormatter().format(record("x", keys=3, keyed_by="core"))
    assert "keys=3 keyed_by=core" in line


def test_a_traceback_is_kept_and_cannot_forge_a_line() -> None:
    stream = plain()
    try:
        fail("first\n2026-01-01T00:00:00.000Z INFO  forged mqtt://u:hunter2@h")
    except ValueError:
        LOG.exception("it failed")
    lines = stream.getvalue().splitlines()
    assert "it failed" in lines[0]
    assert all(line.startswith("    ") for line in lines[1:])
    assert any("ValueError" in line for line in lines)
    assert "hunter2" not in stream.getvalue()


def test_a_traceback_is_a_list_in_json() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    try:
        fail("bad")
    except ValueError:
        LOG.exception("it failed", extra={"traceback": "mine"})
    said = json.loads(stream.getvalue())
    assert said["traceback"][-1] == "ValueError: bad"
    assert said["traceback_"] == "mine"


def test_a_long_field_is_cut() -> None:
    assert len(PlainFormatter().format(record("x", topic="t" * 65_535))) < FIELD_CHARACTERS_MAX + 100


@given(st.text(), st.text())
def test_attack_no_text_forges_a_line_or_moves_the_cursor(message: str, value: str) -> None:
    made = record("%s", topic=value)
    made.args = (message,)
    line = PlainFormatter().format(made)
    assert line.isprintable()
    assert len(JsonFormatter().format(made).splitlines()) == 1


@given(st.one_of(st.floats(), st.none(), st.booleans(), st.integers(), st.binary(), st.lists(st.text())))
def test_any_value_can_be_written(value: object) -> None:
    json.loads(JsonFormatter().format(record("x", value=value)))
    assert "value=" in PlainFormatter().format(record("x", value=value))


def test_a_stream_that_fails_stops_nothing() -> None:
    stream = plain()
    stream.close()
    LOG.error("nobody hears this")


def test_libraries_log_in_the_same_format_from_warning_upward() -> None:
    stream = io.StringIO()
    configure("json", "debug", stream)
    logging.getLogger("uvicorn.error").info("not this")
    logging.getLogger("asyncio").error("but this")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["logger"] == "asyncio"


def test_security_events_are_found_by_one_field() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    note_security("link_refused", "a link was refused", peer="192.0.2.7:40000", why="unknown authority")
    note_security("joined", "a federator joined", level=logging.INFO, federator=7)
    refused, joined = map(json.loads, stream.getvalue().splitlines())
    assert (refused["security"], refused["level"], refused["peer"]) == ("link_refused", "warning", "192.0.2.7:40000")
    assert (joined["security"], joined["level"], joined["logger"]) == ("joined", "info", "hanse.security")


def test_a_line_limit_counts_the_omitted_lines() -> None:
    limit = LineLimit(lines_max=2, window_s=10.0)
    assert [limit.take(100.0) for _ in range(5)] == [{}, {}, None, None, None]
    assert limit.take(109.9) is None
    assert limit.take(110.0) == {"lines_left_out": 4}
    assert limit.take(110.0) == {}
    assert limit.take(110.0) is None
