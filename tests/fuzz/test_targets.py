"""The fuzzing itself: it fails when it should, and every target states the invariant."""

import ast
import time
from pathlib import Path

import pytest
from hypothesis import strategies as st
from tests.fuzz import fuzzing
from tests.fuzz.agents import Scene, scenes
from tests.fuzz.fuzzing import HERE, assert_linear, corpus, fuzz

from hanse.errors import RemoteError
from hanse.mqtt.publication import encode
from hanse.protocol.effects import Store
from hanse.protocol.messages import Run

INVARIANT = (
    "Accepted, ignored or refused with a clear error and a counter; nothing else happens; "
    "memory grows by at most 20 MB; nothing of it is forwarded."
)
TARGETS = sorted(HERE.glob("test_fuzz_*.py"))


@pytest.fixture(autouse=True)
def _a_small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_FUZZ_SECONDS", "1")


@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.stem)
def test_every_target_begins_with_the_invariant(path: Path) -> None:
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert " ".join(words.split()).startswith(INVARIANT)


def test_every_corpus_belongs_to_a_target() -> None:
    names = {path.stem.removeprefix("test_fuzz_") for path in TARGETS}
    files = list((HERE / "corpus").glob("*"))
    assert {path.stem for path in files} <= names
    assert all(corpus(path.stem) for path in files)


def test_an_unexpected_error_is_found_shortened_and_shown() -> None:
    def take(data: bytes) -> None:
        if b"\xff" in data:
            raise KeyError(data)

    with pytest.raises(KeyError) as found:
        fuzz("none", st.just(b"\x01" * 20), take)
    assert "ff  # KeyError" in found.value.__notes__[0]


@pytest.mark.parametrize("words", ["no", "a line\nforged in a log", "x" * 2_000])
def test_a_refusal_that_is_not_one_clear_sentence_is_found(words: str) -> None:
    def take(data: bytes) -> None:
        if not data:
            raise RemoteError(words)

    with pytest.raises(AssertionError):
        fuzz("none", st.just(b"1"), take)


def test_memory_that_grows_is_found() -> None:
    held: list[bytes] = []
    with pytest.raises(AssertionError, match="bytes were held"):
        fuzz("none", st.just(b"1"), lambda _: held.append(bytes(1_000_000)))


def test_quadratic_time_is_found() -> None:
    def quadratic(data: bytes) -> None:
        while data:
            data = data[64:]

    def linear(data: bytes) -> None:
        for at in range(0, len(data), 64):
            data[at : at + 64]

    assert_linear(bytes, linear)
    with pytest.raises(AssertionError, match="took"):
        assert_linear(bytes, quadratic)


def test_a_round_is_the_same_each_time_and_the_budget_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs() -> list[bytes]:
        seen: list[bytes] = []
        fuzz("none", st.binary(max_size=50), seen.append)
        return seen

    monkeypatch.setattr(fuzzing, "share_s", lambda: 0.0)
    first, again = inputs(), inputs()
    assert first == again
    assert len(first) > fuzzing.MUTANTS_AN_EXAMPLE
    monkeypatch.setattr(fuzzing, "share_s", lambda: 0.5)
    before = time.monotonic()
    assert len(inputs()) > len(first)
    assert time.monotonic() - before >= 0.5


def test_a_scene_finds_no_files_of_the_previous_one(tmp_path: Path) -> None:
    run = Run(8, 1, 0, 1, 1, 1, ("a",), encode("a", b"x", qos=1))
    with scenes(tmp_path) as (runner, state, read):

        async def once() -> None:
            custodian = Scene(state, read).agent.custodian
            custodian.store(Store(2, 0, ((run,),)))
            custodian.outbox.commit()

        runner.run(once())
        runner.run(once())
