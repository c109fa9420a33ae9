from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hanse.cli.flags import with_settings
from hanse.errors import LocalError
from hanse.settings import (
    duration,
    format_duration,
    parse_duration_s,
    read_settings,
    setting,
    settings_of,
)


def _even(value: int) -> str | None:
    return None if value % 2 == 0 else "an even number"


@dataclass(frozen=True, slots=True)
class Harbour:
    name: str = setting("lubeck", "The harbour's name.")
    berths: int = setting(5, "How many ships.", aliases=("TOP_MAX_REDUNDANCY",), minimum=2, maximum=100)
    interval_s: float = duration(1.0, "Between two tides.", aliases=("CORE_ANN_INTERVAL",), minimum_s=0.1)
    share: float = setting(0.5, "A share.", minimum=0, maximum=1)
    is_open: bool = setting(False, "Open to all.")
    chart: Path | None = setting(None, "Where the chart lies.")  # noqa: RUF009
    goods: tuple[str, ...] = setting((), "What is traded.")
    flag_colour: str = setting("red", "The colour.", choices=("red", "white"))
    password: str = setting("", "The watchword.", is_secret=True, check=lambda value: None if value else "some text")
    pairs: int = setting(2, "In pairs.", check=_even)
    key_file: Path | None = setting(None, "The key of the gate.")  # noqa: RUF009


def read(**sources: object) -> Harbour:
    return read_settings(Harbour, section="harbour", **sources)  # type: ignore[arg-type]


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "hanse.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_any_source_the_defaults_apply() -> None:
    assert read() == Harbour()


def test_a_flag_wins_over_the_environment_over_the_file_over_the_manager(tmp_path: Path) -> None:
    file = write(tmp_path, "[harbour]\nberths = 7\n")
    handed_out: dict[str, object] = {"berths": 6}
    environment = {"HANSE_BERTHS": "8"}
    assert read(handed_out=handed_out).berths == 6
    assert read(handed_out=handed_out, file=file).berths == 7
    assert read(handed_out=handed_out, file=file, environment=environment).berths == 8
    assert read(handed_out=handed_out, file=file, environment=environment, flags={"berths": "9"}).berths == 9


def test_a_flag_that_was_not_given_does_not_hide_the_environment() -> None:
    assert read(flags={"berths": None}, environment={"HANSE_BERTHS": "8"}).berths == 8


def test_the_papers_names_are_aliases_and_ours_wins() -> None:
    assert read(environment={"TOP_MAX_REDUNDANCY": "3"}).berths == 3
    assert read(environment={"TOP_MAX_REDUNDANCY": "3", "HANSE_BERTHS": "4"}).berths == 4


def test_an_empty_variable_is_not_set() -> None:
    assert read(environment={"HANSE_BERTHS": ""}).berths == 5


def test_a_configuration_file_marked_as_optional_may_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "hanse.toml"
    variable = {"HANSE_CONFIG": f"-{file}"}
    assert read(environment=variable).berths == 5
    file.write_text("[harbour]\nberths = 7\n", encoding="utf-8")
    assert read(environment=variable).berths == 7
    file.unlink()
    with pytest.raises(LocalError, match="cannot be read"):
        read(environment={"HANSE_CONFIG": str(file)})


def test_a_credential_gives_a_secret_and_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "hanse.harbour.password").write_text("from systemd\n", encoding="utf-8")
    (tmp_path / "hanse.elsewhere.password").write_text("another service's", encoding="utf-8")
    file = tmp_path / "hanse.toml"
    file.write_text('[harbour]\npassword = "from the file"\n', encoding="utf-8")
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert read(environment=environment, file=file).password == "from systemd"
    assert read(environment=environment | {"HANSE_PASSWORD": "set"}, file=file).password == "set"


def test_a_credential_for_a_file_gives_its_path(tmp_path: Path) -> None:
    (tmp_path / "hanse.harbour.key_file").write_bytes(b"\xff not text")
    assert read(environment={"CREDENTIALS_DIRECTORY": str(tmp_path)}).key_file == tmp_path / "hanse.harbour.key_file"


@pytest.mark.parametrize("name", ["pasword", "berths", "chart"])
def test_a_credential_that_no_setting_can_take_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / f"hanse.harbour.{name}").write_text("x", encoding="utf-8")
    with pytest.raises(LocalError, match=f"hanse.harbour.{name} belongs to no setting"):
        read(environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 70_000])
def test_a_credential_that_is_not_a_short_text_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "hanse.harbour.password").write_bytes(content)
    with pytest.raises(LocalError, match="credential hanse") as caught:
        read(environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert "xxx" not in str(caught.value)


def test_the_configuration_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "[harbour]\nname = 'visby'\n[other]\nx = 1\n")
    assert read(environment={"HANSE_CONFIG": str(file)}).name == "visby"


def test_every_type_is_read_from_text_and_from_toml(tmp_path: Path) -> None:
    expected = Harbour("a", 6, 0.5, 0.25, True, Path("/x"), ("rye", "salt"), "white", "pw", 4)
    file = write(
        tmp_path,
        """[harbour]
        name = "a"
        berths = 6
        interval = "500ms"
        share = 0.25
        is_open = true
        chart = "/x"
        goods = ["rye", "salt"]
        flag_colour = "white"
        password = "pw"
        pairs = 4
        """,
    )
    environment = {
        "HANSE_NAME": "a",
        "HANSE_BERTHS": "6",
        "HANSE_INTERVAL": "500ms",
        "HANSE_SHARE": "0.25",
        "HANSE_IS_OPEN": "yes",
        "HANSE_CHART": "/x",
        "HANSE_GOODS": "rye, salt",
        "HANSE_FLAG_COLOUR": "white",
        "HANSE_PASSWORD": "pw",
        "HANSE_PAIRS": "4",
    }
    assert read(file=file) == expected
    assert read(environment=environment) == expected


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HANSE_BERTHS", "many", ["HANSE_BERTHS", "'many'", "a whole number"]),
        ("HANSE_BERTHS", "1", ["HANSE_BERTHS", "at least 2"]),
        ("TOP_MAX_REDUNDANCY", "101", ["TOP_MAX_REDUNDANCY", "at most 100"]),
        ("HANSE_BERTHS", "9" * 40, ["a whole number"]),
        ("CORE_ANN_INTERVAL", "2", ["CORE_ANN_INTERVAL", "'2'", "500ms, 2s, 1m or 1h"]),
        ("HANSE_INTERVAL", "50ms", ["at least 100ms"]),
        ("HANSE_INTERVAL", "-1s", ["a number and a unit"]),
        ("HANSE_SHARE", "nan", ["a number"]),
        ("HANSE_SHARE", "x", ["a number"]),
        ("HANSE_IS_OPEN", "maybe", ["true or false"]),
        ("HANSE_FLAG_COLOUR", "blue", ["one of red, white"]),
        ("HANSE_PAIRS", "3", ["an even number"]),
    ],
)
def test_the_error_for_a_bad_value_names_source_value_and_allowed_values(
    variable: str, value: str, words: list[str]
) -> None:
    with pytest.raises(LocalError) as caught:
        read(environment={variable: value})
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[harbour]\nberth = 7\n", ["berth", "Did you mean 'berths'"]),
        ("[harbour]\nzzz = 7\n", ["zzz", "Known: "]),
        ("berths = 7\n", ["outside a table", "[harbour]"]),
        ("[harbours]\nberths = 7\n", ["[harbours] is not a known table", "Did you mean [harbour]?"]),
        ("[federators]\nid = 7\n", ["[federators] is not a known table", "Did you mean [federator]?"]),
        ("[harbour\n", ["not TOML"]),
        ("[harbour]\ninterval = 2\n", ["in quotes"]),
        ("[harbour]\nname = 2\n", ["text"]),
        ("[harbour]\nberths = true\n", ["a whole number"]),
        ("[harbour]\nshare = true\n", ["a number"]),
        ("[harbour]\ngoods = [1]\n", ["a list of strings"]),
        ("[harbour]\nis_open = 1\n", ["true or false"]),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, words: list[str]) -> None:
    file = write(tmp_path, text)
    with pytest.raises(LocalError) as caught:
        read(file=file)
    assert all(word in str(caught.value) for word in [*words, str(file)]), caught.value


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot be read"):
        read(file=tmp_path / "nothing.toml")


def test_a_refused_secret_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(LocalError) as caught:
        read(file=write(tmp_path, "[harbour]\npassword = 1234567\n"))
    assert "1234567" not in str(caught.value)


def test_a_typing_error_in_a_variable_is_refused_but_other_commands_variables_are_not() -> None:
    with pytest.raises(LocalError, match="Did you mean HANSE_BERTHS"):
        read(environment={"HANSE_BERTH": "3"})
    assert read(environment={"HANSE_ADVERTISED_LISTENER": "tcp://x:1"}) == Harbour()


def test_two_commands_may_share_a_table(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True)
    class Pilot:
        name: str = setting("", "The harbour's name.")

    file = write(tmp_path, "[harbour]\nname = 'visby'\nberths = 3\n")
    assert read_settings(Pilot, section="harbour", file=file, others=Harbour) == Pilot("visby")
    with pytest.raises(LocalError, match="unknown setting 'berths'"):
        read_settings(Pilot, section="harbour", file=file)


def test_unknown_settings_from_a_newer_manager_are_skipped() -> None:
    assert read(handed_out={"berths": 7, "news": 1}).berths == 7


def test_names_derive_from_the_field() -> None:
    by_field = {one.field: one for one in settings_of(Harbour)}
    assert by_field["interval_s"].name == "interval"
    assert by_field["is_open"].flag == "--is-open"
    assert by_field["is_open"].variable == "HANSE_IS_OPEN"


@given(st.integers(min_value=0, max_value=10**9))
def test_a_duration_is_read_back_as_written(milliseconds: int) -> None:
    duration_s = milliseconds / 1000
    assert parse_duration_s(format_duration(duration_s)) == pytest.approx(duration_s)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        value = parse_duration_s(text)
    except ValueError:
        return
    assert value >= 0


def test_flags_are_derived_from_the_class() -> None:
    app = typer.Typer()
    seen: list[object] = []

    @app.command()
    @with_settings(Harbour, "harbour")
    def open_harbour(settings: Harbour, *, loud: bool = False) -> None:
        """Opens the harbour."""
        seen.append((settings, loud))

    runner = CliRunner()
    words = ["--loud", "--berths", "9", "--interval", "2s", "--is-open", "--goods", "rye", "--goods", "salt"]
    result = runner.invoke(app, words, env={"CORE_ANN_INTERVAL": "9s"})
    assert result.exit_code == 0, result.output
    assert seen == [(Harbour(berths=9, interval_s=2.0, is_open=True, goods=("rye", "salt")), True)]
    help_text = runner.invoke(app, ["--help"]).output
    assert "--no-is-open" in help_text
    assert "--config" in help_text


def test_a_bad_flag_gives_the_same_error() -> None:
    app = typer.Typer()

    @app.command()
    @with_settings(Harbour, "harbour")
    def open_harbour(settings: Harbour) -> None:
        """Opens the harbour."""

    result = CliRunner().invoke(app, ["--berths", "1"])
    assert isinstance(result.exception, LocalError)
    assert "--berths: '1' is not allowed; expected at least 2" in str(result.exception)
