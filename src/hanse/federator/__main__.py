"""`python -m hanse.federator`: the agent as `hanse federator` runs it, without what only a command line needs.

The library behind `hanse --help` brings some 10 MB into the process, which an agent beside a small broker would hold
for all of its life. The flags are the same, read and checked by the same `read_settings`; for `--help`, and for a flag
that is unknown, `hanse federator` itself answers.
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
    """Flags by the names of their settings, and the file; None where the words are not all flags with a value."""
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
    """Run until SIGTERM; a broken rule of the operator's is one sentence and exit code 2, as everywhere."""
    parsed = parse(sys.argv[1:])
    if parsed is None:
        from hanse import cli  # noqa: PLC0415 - what this module is there to leave out

        sys.argv = ["hanse", "federator", *sys.argv[1:]]
        cli.main()
        return
    try:
        read = functools.partial(_read, *parsed)
        settings = read({})
        # Only here: a wrong setting must not wait for the event loop and the codec.
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
