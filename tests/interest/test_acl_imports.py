"""Topics that clients may read, from a Mosquitto's access list."""

import tomllib
from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.federator.settings import FederatorSettings
from hanse.interest.acl import mosquitto_acl
from hanse.interest.acl_imports import FILTERS_MAX, import_settings, readable

LIST = """\
# Anonymous clients.
topic read public/#

user app
topic readwrite plant/+/state
topic plant/notes
topic write plant/orders
topic deny plant/secret
topic read public/news
topic read $SYS/#

user hanse-1
topic readwrite #

pattern read device/%c/#
pattern read user-%u/inbox
pattern write reports/%u
"""


def test_reading_rights_of_everybody_but_the_federators_count() -> None:
    assert readable(LIST) == ["+/inbox", "device/+/#", "plant/+/state", "plant/notes", "public/#"]
    assert "#" in readable(LIST, user_prefix="other-")


def test_list_that_hanse_prints_lets_clients_read_nothing(tmp_path: Path) -> None:
    assert readable(mosquitto_acl(1, [2])) == []
    path = tmp_path / "acl"
    path.write_text(mosquitto_acl(1, [2]))
    found = tomllib.loads(import_settings(path))["federator"]
    assert found == {"import_deny": ["#"]}
    assert FederatorSettings(id=1, import_deny=tuple(found["import_deny"])).crossing().outward_filter("#") == []


def test_result_is_a_configuration_that_the_federator_takes(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_text(LIST + 'user odd\ntopic read odd/"quoted"\\back\n')
    found = tomllib.loads(import_settings(path))["federator"]
    crossing = FederatorSettings(id=1, import_allow=tuple(found["import_allow"])).crossing()
    assert crossing.imports("public/news")
    assert crossing.imports('odd/"quoted"\\back')
    assert not crossing.imports("plant/orders")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topik read a", "Line 1 .* 'topik'"),
        ("user app\ntopic", "Line 2 .* 'topic'"),
        ("topic read a/#/b", "Line 1 .* no valid filter"),
        ("".join(f"topic read many/{k}\n" for k in range(5_001)), "5001 filters"),
    ],
)
def test_text_that_is_no_access_list_is_refused(text: str, says: str) -> None:
    with pytest.raises(LocalError, match=says):
        readable(text)


def test_file_that_cannot_be_used_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    with pytest.raises(LocalError, match="cannot be read"):
        import_settings(path)
    path.write_bytes(b"topic read \xff\n")
    with pytest.raises(LocalError, match="not UTF-8"):
        import_settings(path)
    path.write_text("".join(f"topic read many/{k}\n" for k in range(FILTERS_MAX + 1)))
    with pytest.raises(LocalError, match="wider filters"):
        import_settings(path)
