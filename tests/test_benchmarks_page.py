"""docs/benchmarks.md is what bench/page.py makes of bench/results/."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


page = loaded("page")
run_all = loaded("run_all")


def test_the_page_is_made_of_the_results() -> None:
    assert (ROOT / "docs" / "benchmarks.md").read_text() == run_all.page()


def test_every_benchmark_has_a_section_and_a_script() -> None:
    assert set(run_all.BENCHMARKS) == set(page.SECTIONS)
    for words in run_all.BENCHMARKS.values():
        assert words[0] == sys.executable or (ROOT / words[0]).exists()


# The results of `bridge` and `floor` are scenarios under names of their own: each becomes a row.
@pytest.mark.parametrize("name", sorted(set(page.SECTIONS) - {"bridge", "floor"}))
def test_a_figure_without_a_table_is_listed_below_the_tables(name: str) -> None:
    document = {"measured": "now", "machine": "this one", "result": {"a_new_thing": {"other_ms": 4.25}}}
    assert "| a new thing, other (ms) | 4.25 |" in page.render({name: document}, {name: "command"})


def test_figures_are_shown_with_three_digits_and_a_spread() -> None:
    assert [page.shown(value) for value in (1234567, 0.04567, 23456.7, True, None)] == [
        "1,234,567",
        "0.0457",
        "23,457",
        "yes",
        "",
    ]
    assert page.spread({"min": 1, "median": 2, "max": 3}) == "2 (1 to 3)"
