"""Control of the link emulator: one line in, one line out, so that a shell script can use it with `nc`.

    delay 20ms [forward|backward]        jitter 5ms [forward|backward]
    bandwidth 1000000 [forward|backward] (bytes per second; 0 means no limit)
    cut [forward|backward]    restore    reset    show

Every reply is `ok {...}` with the current state of the link, or `error` and a sentence.
"""

import asyncio
import json
import re

from hanse.errors import HanseError, LocalError
from hanse.local.emulator import Direction, LinkEmulator
from hanse.local.ports import LOOPBACK

_LINE_BYTES_MAX = 256
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


async def obey(emulator: LinkEmulator, line: str) -> str:
    """Execute one line and return the reply."""
    try:
        await _do(emulator, line.split())
    except HanseError as error:
        return f"error {error}"
    return f"ok {json.dumps(_show(emulator))}"


async def serve(emulator: LinkEmulator, port: int = 0) -> asyncio.Server:
    """Listen for control connections on the loopback."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = await obey(emulator, line.decode(errors="replace").strip())
                writer.write(answer.encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # the client is gone, or its line is too long
        finally:
            writer.close()

    try:
        return await asyncio.start_server(talk, LOOPBACK, port, limit=_LINE_BYTES_MAX)
    except OSError as error:
        raise LocalError(f"Control cannot listen on {LOOPBACK}:{port} ({error.strerror}).") from error


async def _do(emulator: LinkEmulator, words: list[str]) -> None:
    match words:
        case ["show"]:
            pass
        case ["restore"]:
            emulator.restore()
        case ["reset"]:
            await emulator.reset()
        case ["cut", *where]:
            emulator.cut(_direction(where))
        case ["delay", value, *where]:
            emulator.shape(_direction(where), delay_s=_seconds(value))
        case ["jitter", value, *where]:
            emulator.shape(_direction(where), jitter_s=_seconds(value))
        case ["bandwidth", value, *where]:
            if not value.isdecimal():
                raise LocalError(f"Bandwidth is {value!r}; expected bytes per second as a whole number.")
            emulator.shape(_direction(where), bytes_per_s=float(value))
        case _:
            raise LocalError("Expected one of: show, restore, reset, cut, delay, jitter, bandwidth.")


def _direction(words: list[str]) -> Direction | None:
    match words:
        case []:
            return None
        case ["forward"]:
            return Direction.FORWARD
        case ["backward"]:
            return Direction.BACKWARD
    raise LocalError(f"Direction {' '.join(words)!r} is not known; expected forward, backward, or nothing for both.")


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise LocalError(f"Duration is {text!r}; expected a number with a unit, such as 20ms or 1.5s.")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def _show(emulator: LinkEmulator) -> dict[str, object]:
    shown: dict[str, object] = {"connections": emulator.connections, "port": emulator.port}
    for direction in Direction:
        now = emulator.conditions(direction)
        shown[direction.value] = {
            "delay_s": now.delay_s,
            "jitter_s": now.jitter_s,
            "bytes_per_s": now.bytes_per_s,
            "is_cut": now.is_cut,
            "bytes_passed": emulator.bytes_passed(direction),
        }
    return shown
