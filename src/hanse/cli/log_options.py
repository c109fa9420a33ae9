"""Log options of commands that have no settings class: `--log-format` and `--log-level`."""

from typing import Annotated

import typer

from hanse import logs
from hanse.errors import LocalError

LogFormat = Annotated[
    str, typer.Option(envvar="HANSE_LOG_FORMAT", help=f"{logs.FORMAT_HELP} One of {', '.join(logs.FORMATS)}.")
]
LogLevel = Annotated[
    str, typer.Option(envvar="HANSE_LOG_LEVEL", help=f"{logs.LEVEL_HELP} One of {', '.join(logs.LEVELS)}.")
]


def check_log_options(log_format: str, log_level: str) -> None:
    """Refuse values that `logs.configure` does not know."""
    for flag, value, known in (("--log-format", log_format, logs.FORMATS), ("--log-level", log_level, logs.LEVELS)):
        if value not in known:
            raise LocalError(f"{flag}: {value!r} is not allowed; expected one of {', '.join(known)}.")
