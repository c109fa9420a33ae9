import json
import os
from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.local import state
from hanse.local.state import FederatorState, State

STATE = State(
    federators=(
        FederatorState(0, "mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:7000", "http://127.0.0.1:9000", 10, 11),
        FederatorState(1, "mqtt://127.0.0.1:1884", None, None, 12, 13),
    ),
    manager="http://127.0.0.1:8080",
    supervisor_pid=9,
    supervisor_started="12345",
)


def test_state_is_read_back_as_written_without_temporary_files(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    state.write(path, STATE)
    assert state.read(path) == STATE
    assert list(path.parent.iterdir()) == [path]


def test_the_file_has_the_fields_that_scripts_rely_on(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state.write(path, STATE)
    document = json.loads(path.read_text())
    assert {"manager", "dashboard", "gateway", "federators"} <= set(document)
    assert document["dashboard"] is None
    assert set(document["federators"][0]) == {"id", "broker", "link", "metrics", "broker_pid", "federator_pid"}


def test_a_broker_is_selected_by_its_number() -> None:
    assert STATE.broker_at(1) == "mqtt://127.0.0.1:1884"
    for k in (-1, 2):
        with pytest.raises(LocalError, match="has 2, numbered 0 to 1"):
            STATE.broker_at(k)


def test_a_missing_state_file_gives_start_instructions(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="start one with `hanse up`"):
        state.read(tmp_path / "none.json")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"federators": [{}]}', '{"federators": [{"id": 0, "broker": 5}]}'])
def test_a_file_that_is_not_a_state_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(LocalError, match="state file"):
        state.read(path)


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="name another with --state"):
        state.write(tmp_path / "file" / "state.json", STATE)


def test_only_an_existing_process_has_a_start_time() -> None:
    own = state.process_start(os.getpid())
    assert own is not None
    assert own.isdecimal()
    assert state.process_start(2**22 + 1) is None
