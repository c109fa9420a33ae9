"""`tools/mutate` makes the changes that it lists, and detects both failing and passing tests."""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "mutate"

SOURCE = '''
def share(part: int, whole: int = 100) -> float:
    """Return a share."""
    if whole <= 0 or part is None:
        raise ValueError(f"{whole + 1} is wrong")
    for number in [part]:
        continue
    return min(part + 1, whole)
'''


@pytest.fixture(scope="module")
def mutate() -> Iterator[ModuleType]:
    loader = importlib.machinery.SourceFileLoader("hanse_mutate", str(TOOL))
    spec = importlib.util.spec_from_loader("hanse_mutate", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hanse_mutate"] = module
    loader.exec_module(module)
    yield module
    del sys.modules["hanse_mutate"]


def test_each_change_affects_one_place_and_no_error_texts(mutate: ModuleType) -> None:
    changed = {
        (mutant.kind, line)
        for mutant in mutate.mutants_of("share.py", SOURCE)
        for line in set(mutant.text.splitlines()) - set(SOURCE.splitlines())
    }

    assert changed == {
        ("and", "    if (whole <= 0 and part is None):"),
        ("negated", "    if (not (whole <= 0 or part is None)):"),
        ("lt", "    if (whole < 0) or part is None:"),
        ("one-more", "    if whole <= 1 or part is None:"),
        ("isnot", "    if whole <= 0 or (part is not None):"),
        ("break", "        break"),
        ("no-value", "    return None"),
        ("max", "    return max(part + 1, whole)"),
        ("sub", "    return min((part - 1), whole)"),
        ("one-more", "    return min(part + 2, whole)"),
    }


def test_mutants_have_distinct_names_and_differ_from_their_source(mutate: ModuleType) -> None:
    mutants = mutate.all_mutants()

    assert len(mutants) > 3_000
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert all(mutate.tests_of(mutant.file) for mutant in mutants)
    assert "+" in mutate.difference(mutants[0])


@pytest.mark.slow
def test_a_mutant_that_breaks_a_tested_rule_is_killed(mutate: ModuleType) -> None:
    name = "protocol/identity.py:election_key"
    killed = [one for one in mutate.all_mutants() if one.name.startswith(name) and one.kind == "no-value"]

    assert set(mutate.try_all(killed, 1).values()) == {"killed"}


@pytest.mark.slow
def test_a_mutant_of_untested_code_survives(mutate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "TARGETS", (("protocol/identity.py", ("tests/protocol/test_grouping.py",)),))
    untested = [one for one in mutate.all_mutants() if one.kind == "no-value"][:1]

    assert set(mutate.try_all(untested, 1).values()) == {"survived"}
