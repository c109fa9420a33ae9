"""Settings with one name each, read from flags, the environment, a TOML file, and values that the manager hands out.

A command's settings are a frozen dataclass whose fields are created with `setting` or `duration`. The field's name is
the setting's only name, written in three ways: `x_y` in TOML (under the command's table), `HANSE_X_Y` in the
environment, `--x-y` as a flag. A duration's field ends in `_s`, its setting does not: `probe_timeout_s` is read from
`probe_timeout = "500ms"`.

Rules:

1. The precedence is: flag, environment, credential, file, handed-out value, default.
2. `HANSE_X_Y` takes precedence over an alias (the papers' names, such as `TOP_MAX_REDUNDANCY`). An empty variable
   counts as not set.
3. Any mistake raises a `LocalError` that names the source, the value and the allowed values. Values of secret settings
   are never shown.
4. Nothing is ignored silently: an unknown name in the file or in the environment is refused, with the nearest known
   name. Unknown handed-out names are skipped, because an older agent must work with a newer manager.
5. A credential is a file `hanse.SECTION.SETTING` in the directory that systemd names in `CREDENTIALS_DIRECTORY`. A
   secret setting takes its content, a setting that names a file takes its path. No other setting can be a credential.
"""

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hanse.errors import LocalError

T = TypeVar("T")

PREFIX = "HANSE_"
CONFIG_VARIABLE = "HANSE_CONFIG"
# A configuration file that may be missing, as systemd marks optional files.
OPTIONAL_MARK = "-"
# Tables of the configuration file, one per service.
SECTIONS = frozenset({"federator", "gateway", "manager"})
CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
_CREDENTIAL_BYTES_MAX = 1 << 16
_ENDINGS_OF_FILES = ("_file", "_key", "_certificate", "_ca")

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h)")
_WORDS_TRUE = frozenset({"1", "true", "yes", "on"})
_WORDS_FALSE = frozenset({"0", "false", "no", "off"})
_METADATA = "hanse"
# A federator has some 70 settings: all of their names would make an error that nobody reads to its end.
_NAMES_SHOWN_MAX = 20


def parse_duration_s(text: str) -> float:
    """Convert `500ms`, `2s`, `1m` or `1h` to seconds; a ValueError says what is allowed."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("a number and a unit: 500ms, 2s, 1m or 1h")
    return float(match[1]) * _UNIT_S[match[2]]


def format_duration(duration_s: float) -> str:
    """Return the text that `parse_duration_s` reads back: whole seconds as `2s`, fractions in `ms`."""
    return f"{duration_s:.0f}s" if duration_s == int(duration_s) else f"{duration_s * 1000:.10g}ms"


@dataclass(frozen=True, slots=True)
class Spec:
    """Constraints of a setting besides its type."""

    help: str
    is_duration: bool = False
    aliases: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    check: Callable[[Any], str | None] | None = None


def setting(
    default: T,
    help: str,  # noqa: A002 - the name that typer and argparse use for it
    *,
    aliases: Collection[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Collection[str] = (),
    is_secret: bool = False,
    check: Callable[[Any], str | None] | None = None,
) -> T:
    """Define a field of a settings class; `check` returns the allowed values if it refuses the value, else None.

    What `check` returns follows "expected". It may raise a LocalError instead, whose sentence is shown as it is.
    """
    spec = Spec(help, False, tuple(aliases), minimum, maximum, tuple(choices), is_secret, check)
    return dataclasses.field(default=default, metadata={_METADATA: spec})


def duration(
    default_s: float,
    help: str,  # noqa: A002 - as above
    *,
    aliases: Collection[str] = (),
    minimum_s: float = 0.0,
    maximum_s: float | None = None,
) -> float:
    """Define a field in seconds, which people write as `500ms`, `2s`, `1m` or `1h`; its name ends in `_s`."""
    spec = Spec(help, True, tuple(aliases), minimum_s, maximum_s)
    return dataclasses.field(default=default_s, metadata={_METADATA: spec})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a class, with its names."""

    field: str
    name: str
    kind: type
    is_optional: bool
    default: Any
    spec: Spec

    @property
    def variable(self) -> str:
        """Name of its environment variable."""
        return PREFIX + self.name.upper()

    @property
    def can_be_credential(self) -> bool:
        """True for a secret or the name of a PEM file: systemd may pass it as a credential."""
        return self.spec.is_secret or (self.kind is Path and self.name.endswith(_ENDINGS_OF_FILES))

    @property
    def flag(self) -> str:
        """Its flag."""
        return "--" + self.name.replace("_", "-")


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Return the settings of a class, in the order of its fields."""
    hints = typing.get_type_hints(cls)
    return tuple(
        _describe(field, hints[field.name]) for field in dataclasses.fields(cls) if _METADATA in field.metadata
    )


def _describe(field: "dataclasses.Field[Any]", hint: Any) -> Setting:  # noqa: ANN401 - a type or a union of types
    spec: Spec = field.metadata[_METADATA]
    kind, is_optional = hint, False
    if isinstance(hint, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        assert len(members) == 1, f"setting {field.name}: one type, or one type and None"
        kind, is_optional = members[0], True
    kind = typing.get_origin(kind) or kind
    assert kind in (str, int, float, bool, Path, tuple), f"setting {field.name}: no reader for {kind}"
    assert field.name.endswith("_s") == spec.is_duration, f"setting {field.name}: durations, and only they, end in _s"
    name = field.name.removesuffix("_s") if spec.is_duration else field.name
    return Setting(field.name, name, kind, is_optional, field.default, spec)


def read_settings(
    cls: type[T],
    *,
    section: str,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    handed_out: Mapping[str, object] | None = None,
    others: type | None = None,
) -> T:
    """Read the settings of `cls` from all sources.

    Args:
        cls: A dataclass whose fields are created with `setting` and `duration`.
        section: The TOML table to read, by convention the name of the command.
        flags: Name to value; None means that the flag was not given.
        environment: Usually `os.environ`.
        file: A TOML file; if this is None, `HANSE_CONFIG` may name one. With `HANSE_CONFIG=-FILE` it may be missing.
        handed_out: Name to value, as handed out by the manager.
        others: Another settings class that shares the table; its names are accepted in the file.

    Raises:
        LocalError: A value or a name is wrong; the message names the source, the value and the allowed values.
    """
    known = {one.name: one for one in settings_of(cls)}
    environment = environment or {}
    if file is None:
        file = _named_file(environment.get(CONFIG_VARIABLE, ""))
    every = known if others is None else {**{one.name: one for one in settings_of(others)}, **known}
    _refuse_unknown_variables(every.values(), environment)
    table = _read_table(file, section) if file is not None else {}
    for name in table:
        if name not in every:
            raise LocalError(f"{file}: [{section}] has the unknown setting {name!r}.{_nearest(name, every)}")
    credentials = _credentials(environment.get(CREDENTIALS_VARIABLE, ""), section, every)

    values: dict[str, object] = {}
    for one in known.values():
        found = _find(one, flags or {}, environment, credentials, table, handed_out or {}, file, section)
        if found is not None:
            source, raw = found
            values[one.field] = _convert(one, raw, source)
    return cls(**values)


def _find(
    one: Setting,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    credentials: Mapping[str, Path],
    table: Mapping[str, object],
    handed_out: Mapping[str, object],
    file: Path | None,
    section: str,
) -> tuple[str, object] | None:
    """Return the first source that has the setting, as (name of the source, raw value), by rule 1."""
    if flags.get(one.name) is not None:
        return one.flag, flags[one.name]
    for variable in (one.variable, *one.spec.aliases):
        if environment.get(variable):
            return variable, environment[variable]
    if one.name in credentials:
        path = credentials[one.name]
        return f"credential {path.name}", path if one.kind is Path else _read_credential(path)
    if one.name in table:
        return f"{one.name} in {file} [{section}]", table[one.name]
    if handed_out.get(one.name) is not None:
        return f"{one.name} from the manager", handed_out[one.name]
    return None


def _named_file(name: str) -> Path | None:
    """Return the file that `HANSE_CONFIG` names, if it names one; one marked as optional must also exist."""
    if name.startswith(OPTIONAL_MARK):
        file = Path(name.removeprefix(OPTIONAL_MARK))
        return file if file.exists() else None
    return Path(name) if name else None


def _credentials(directory: str, section: str, known: Mapping[str, Setting]) -> dict[str, Path]:
    """Return the credentials for one section, by the name of their setting."""
    prefix = f"hanse.{section}."
    found = {path.name.removeprefix(prefix): path for path in Path(directory).glob(prefix + "*")} if directory else {}
    allowed = {name: one for name, one in known.items() if one.can_be_credential}
    for name, path in sorted(found.items()):
        if name not in allowed:
            raise LocalError(f"The credential {path.name} belongs to no setting.{_nearest(name, allowed)}")
    return found


def _read_credential(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_CREDENTIAL_BYTES_MAX + 1)
        if len(content) > _CREDENTIAL_BYTES_MAX:
            raise LocalError(
                f"The credential {path.name} has more than {_CREDENTIAL_BYTES_MAX} bytes; give the secret only."
            )
        return content.decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise LocalError(f"The credential {path.name} cannot be read; give a readable file of UTF-8 text.") from error


def _read_table(file: Path, section: str) -> Mapping[str, object]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LocalError(f"{file}: cannot be read ({error.strerror}); give a readable TOML file.") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, an endless number, unclosed brackets
        raise LocalError(f"{file}: not TOML ({error}).") from error
    loose = sorted(name for name, value in document.items() if not isinstance(value, dict))
    if loose:
        raise LocalError(f"{file}: {loose[0]!r} is outside a table; settings belong under [{section}].")
    # Tables of other services are allowed, but one that nearly equals a known one is a typing error.
    for name in sorted(set(document) - SECTIONS - {section}):
        near = difflib.get_close_matches(name, [section, *sorted(SECTIONS - {section})], 1, 0.8)
        if near:
            raise LocalError(f"{file}: [{name}] is not a known table. Did you mean [{near[0]}]?")
    table: Mapping[str, object] = document.get(section, {})
    return table


def _refuse_unknown_variables(known: Iterable[Setting], environment: Mapping[str, str]) -> None:
    mine = {one.variable for one in known} | {CONFIG_VARIABLE}
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable not in mine:
            near = difflib.get_close_matches(variable, mine, 1, 0.85)
            # Variables of other commands are allowed, but one that nearly equals one of ours is a typing error.
            if near:
                raise LocalError(f"{variable}: no such setting. Did you mean {near[0]}?")


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f" Did you mean {near[0]!r}?"
    names = sorted(known)
    shown = ", ".join(names[:_NAMES_SHOWN_MAX])
    return f" Known: {shown}." if len(names) <= _NAMES_SHOWN_MAX else f" Known: {shown}, ...; --help lists all."


def _convert(one: Setting, raw: object, source: str) -> object:
    shown = "the given value" if one.spec.is_secret else repr(raw)
    try:
        value = _parse(one, raw)
        _check(one.spec, value)
    except LocalError as error:
        raise LocalError(f"{source}: {error}") from error
    except ValueError as error:
        raise LocalError(f"{source}: {shown} is not allowed; expected {error}.") from error
    return value


def _parse(one: Setting, raw: object) -> object:
    if one.spec.is_duration:
        if not isinstance(raw, str):
            raise ValueError("a number and a unit in quotes: 500ms, 2s, 1m or 1h")
        return parse_duration_s(raw)
    if one.kind is bool:
        return _parse_bool(raw)
    if one.kind is int:
        return _parse_int(raw)
    if one.kind is float:
        return _parse_float(raw)
    if one.kind is tuple:
        return _parse_list(raw)
    if not isinstance(raw, str | Path):
        raise ValueError("text")  # noqa: TRY004 - one kind of refusal, converted to a LocalError above
    if one.kind is Path:
        return Path(raw)
    return str(raw)


def _parse_bool(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.strip().lower() in _WORDS_TRUE | _WORDS_FALSE:
        return raw.strip().lower() in _WORDS_TRUE
    raise ValueError("true or false")


def _parse_int(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and re.fullmatch(r"-?\d{1,18}", raw.strip()):
        return int(raw)
    raise ValueError("a whole number")


def _parse_float(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError("a number")  # noqa: TRY004 - as in _parse
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a number")
    return value


def _parse_list(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if isinstance(raw, list | tuple) and all(isinstance(part, str) for part in raw):
        return tuple(raw)
    raise ValueError("a list of strings, or one string with commas")


def _check(spec: Spec, value: object) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        write = format_duration if spec.is_duration else "{:g}".format
        if spec.minimum is not None and value < spec.minimum:
            raise ValueError(f"at least {write(spec.minimum)}")
        if spec.maximum is not None and value > spec.maximum:
            raise ValueError(f"at most {write(spec.maximum)}")
    if spec.choices and value not in spec.choices:
        raise ValueError("one of " + ", ".join(spec.choices))
    if spec.check is not None and (allowed := spec.check(value)) is not None:
        raise ValueError(allowed)
