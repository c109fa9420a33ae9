"""`python -m hanse.federator`: the agent as `hanse federator` runs it, without the rest of the command line.

The library behind `hanse --help` brings some 10 MB into the process, which an agent beside a small broker would hold as
long as it runs. The flags are the same, parsed and checked by the same `read_settings`. For `--help`, and for an
unknown flag, `hanse federator` itself answers.
"""

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hanse.errors import HanseError, LocalError
from hanse.federator.settings import FederatorSettings
from hanse.settings import read_settings, settings_of


def parse(words: Sequence[str]) -> tuple[dict[str, object], Path | None] | None:
    """Return flags by the names of their settings, and the file; None if the words are not all flags with a value."""
    known = {one.flag: one for one in settings_of(FederatorSettings)}
    switches = {f"--no-{flag.removeprefix('--')}": one for flag, one in known.items() if one.kind is bool}
    flags: dict[str, object] = {}
    lists: dict[str, list[str]] = {}
    config: Path | None = None
    left = list(words)
    while left:
        flag, equals, value = left.pop(0).partition("=")
        setting = known.get(flag) or switches.get(flag)
        if setting is not None and setting.kind is bool:
            if equals:
                return None
            flags[setting.name] = flag in known
            continue
        if setting is None and flag != "--config":
            return None
        if not equals:
            if not left:
                return None
            value = left.pop(0)
        if setting is None:
            config = Path(value)
        elif setting.kind is tuple:
            lists.setdefault(setting.name, []).append(value)
        else:
            flags[setting.name] = value
    return {**flags, **lists}, config


def main() -> None:
    """Run until SIGTERM. A mistake of the operator is one sentence and exit code 2, as in every command."""
    parsed = parse(sys.argv[1:])
    if parsed is None:
        from hanse import cli  # noqa: PLC0415 - this module exists to avoid this import

        sys.argv = ["hanse", "federator", *sys.argv[1:]]
        cli.main()
        return
    try:
        read = functools.partial(_read, *parsed)
        settings = read({})
        # Import only here: a wrong setting must not wait for the event loop and the codec.
        import uvloop  # noqa: PLC0415

        from hanse.federator import running  # noqa: PLC0415

        sys.exit(uvloop.run(running.run(settings, read)))
    except HanseError as error:
        sys.stderr.write(f"hanse: {error}\n")
        sys.exit(2 if isinstance(error, LocalError) else 1)


def _read(flags: Mapping[str, object], file: Path | None, handed_out: Mapping[str, object]) -> FederatorSettings:
    return read_settings(
        FederatorSettings, section="federator", flags=flags, environment=os.environ, file=file, handed_out=handed_out
    )


if __name__ == "__main__":
    main()
