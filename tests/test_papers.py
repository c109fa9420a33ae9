"""docs/papers.md names modules, settings and rules that exist."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from hanse.federator.settings import FederatorSettings
from hanse.settings import settings_of
from hanse.topology.settings import ManagerSettings

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "papers.md").read_text()
MODULES = sorted(
    set(
        re.findall(r"`(?:hanse\.)?((?:protocol|federator|gateway|interest|topology)\.[a-z_0-9]+)(?:\.[A-Z]\w*)?`", PAGE)
    )
)


@pytest.mark.parametrize("name", MODULES)
def test_each_module_of_the_page_exists(name: str) -> None:
    assert find_spec(f"hanse.{name}") is not None


def test_each_variable_of_the_page_is_an_alias_of_the_setting_beside_it() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \|[^|]*\| `([a-z_]+)` \|", PAGE, re.MULTILINE)
    aliases = {
        (alias, one.name)
        for settings in (FederatorSettings, ManagerSettings)
        for one in settings_of(settings)
        for alias in one.spec.aliases
    }
    assert len(rows) == 7
    assert set(rows) <= aliases


def test_each_setting_of_the_page_takes_the_value_beside_it() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([a-z_]+) = ([a-z_-]+)`", PAGE, re.MULTILINE)
    by_name = {one.name: one for one in settings_of(FederatorSettings)}
    assert len(rows) > 7
    for name, value in rows:
        choices = by_name[name].spec.choices
        assert not choices or value in choices, name


def test_each_rule_of_the_page_is_a_rule_of_the_specification() -> None:
    rules = set(re.findall(r"^\*\*(R\d+) ", (DOCS / "protocol.md").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bR\d+\b", PAGE)) <= rules
