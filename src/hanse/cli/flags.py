"""Flags from a settings class: each setting of `hanse.settings` becomes `--x-y`, with its help, names and default.

The flags reach the command as raw text. `read_settings` reads and checks them, so a bad value gives the same error
whether it came from a flag, a variable or the file.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from hanse.errors import LocalError
from hanse.settings import Setting, format_duration, read_settings, settings_of

T = TypeVar("T")


def with_settings(
    cls: type[T], section: str, *, others: type | None = None, takes_handed_out: bool = False, is_group: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command all settings of `cls` as flags, and `--config`.

    The command is called with the settings as its first argument. With `takes_handed_out` the second argument is a
    function that reads the settings again from the same sources, with values that the manager handed out as the lowest
    layer. Other parameters of the command stay unchanged, and must be keyword-only. `others` is a settings class that
    shares the table in the file. With `is_group` the command is the callback of a group, and runs only
    if no subcommand is given.
    """
    known = settings_of(cls)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ]

        def run(**arguments: Any) -> None:  # noqa: ANN401 - typer passes the parameters of the signature below
            config = arguments.pop("config")
            flags = {one.name: arguments.pop(one.name) for one in known}
            called = arguments.pop("context").invoked_subcommand if is_group else None
            if called is not None:
                # The group's own settings do not concern a subcommand, which has settings of its own.
                if any(value is not None for value in (config, *flags.values())):
                    raise LocalError(f"Flags before `{called}` would have no effect; put them after it.")
                return

            def read(handed_out: Mapping[str, object]) -> T:
                return read_settings(
                    cls,
                    section=section,
                    flags=flags,
                    environment=os.environ,
                    file=config,
                    handed_out=handed_out,
                    others=others,
                )

            command(read({}), *((read,) if takes_handed_out else ()), **arguments)

        config = inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Path | None,
                typer.Option("--config", help=f"TOML file; its table '{section}' is read. [HANSE_CONFIG]"),
            ],
        )
        if is_group:
            own.insert(0, inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
        parameters = [*own, config, *(_parameter(one) for one in known)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _parameter(one: Setting) -> inspect.Parameter:
    kind: Any = bool if one.kind is bool else list[str] if one.kind is tuple else str
    flag = f"{one.flag}/--no-{one.flag.removeprefix('--')}" if one.kind is bool else one.flag
    option = typer.Option(flag, help=_help(one), show_default=False)
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _help(one: Setting) -> str:
    names = " or ".join((one.variable, *one.spec.aliases))
    if one.default in (None, (), "") or one.spec.is_secret:
        return f"{one.spec.help} [{names}]"
    shown = format_duration(one.default) if one.spec.is_duration else one.default
    return f"{one.spec.help} [{names}; default {shown}]"
