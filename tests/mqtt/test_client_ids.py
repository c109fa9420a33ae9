"""Client ids and their record on disk."""

import re
from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.mqtt.client_ids import (
    CLIENT_ID_BYTES_MAX,
    ClientIds,
    SessionRecord,
    check_pattern,
    new_secret,
    prefix_of,
    read_record,
    write_record,
)

PATTERN = "hanse-federator-{id}-{random}"


def test_an_id_ends_in_128_bits_that_depend_on_the_secret_and_on_the_role() -> None:
    ids = ClientIds(PATTERN, "7", new_secret())
    found = {ids.of(), ids.of("lane"), ids.of("probe"), ClientIds(PATTERN, "7", new_secret()).of()}
    assert len(found) == 4
    assert re.fullmatch("hanse-federator-7-[0-9a-f]{32}", ids.of())
    assert re.fullmatch("hanse-federator-7-[0-9a-f]{32}-lane", ids.of("lane"))
    assert len({re.findall("[0-9a-f]{32}", one)[0] for one in found}) == 4


def test_the_same_secret_gives_the_same_ids_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "session"
    record = SessionRecord(current="a", ending=["b"])
    write_record(path, record)
    assert read_record(path) == record
    assert ClientIds(PATTERN, "1", record.secret).of("x") == ClientIds(PATTERN, "1", record.secret).of("x")


def test_the_record_is_readable_by_its_owner_alone_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "session"
    (tmp_path / "session.new").touch(mode=0o644)
    record = SessionRecord()
    write_record(path, record)
    assert path.stat().st_mode & 0o777 == 0o600
    assert record.secret.hex() not in repr(record)
    assert repr(record.secret) not in repr(record) + repr(ClientIds(PATTERN, "1", record.secret))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"secret": "zz", "current": "", "ending": []}', b"x" * 70_000])
def test_a_damaged_record_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "session"
    path.write_bytes(content)
    with pytest.raises(LocalError, match=r"damaged.*expected JSON"):
        read_record(path)
    path.write_text('{"secret": "00", "current": "", "ending": []}')
    with pytest.raises(LocalError, match="1 bytes instead of 32"):
        read_record(path)


def test_no_record_is_no_error(tmp_path: Path) -> None:
    assert read_record(tmp_path / "session") is None


@pytest.mark.parametrize("pattern", [PATTERN, "plant-{id}", "edge7", "x" * (CLIENT_ID_BYTES_MAX - 64)])
def test_a_pattern_may_omit_the_random_bits(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("hanse-{name}", "braces"),
        ("hanse-{id", "braces"),
        ("hanse {id}", "a character"),
        ("hanse/{id}", "a character"),
        ("hänse-{id}", "a character"),
        ("hanse-{random}{random}", "twice"),
        ("x" * CLIENT_ID_BYTES_MAX, "too long"),
        ("{random}-hanse", "fewer than 3"),
        ("f-{id}", "fewer than 3"),
        ("", "fewer than 3"),
    ],
)
def test_a_pattern_that_makes_no_usable_ids_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(LocalError, match=why):
        check_pattern(pattern)


def test_a_client_id_never_exceeds_its_limit() -> None:
    pattern = check_pattern("x" * (CLIENT_ID_BYTES_MAX - 64) + "{id}{random}")
    assert len(ClientIds(pattern, "4294967295", new_secret()).of("at-4294967295")) <= CLIENT_ID_BYTES_MAX


def test_the_prefix_ends_where_the_first_variable_begins() -> None:
    assert prefix_of(PATTERN) == "hanse-federator-"
    assert prefix_of("edge7") == "edge7"
