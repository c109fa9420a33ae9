"""The host broker's subscription tree, which Mosquitto prints to its standard output on SIGUSR2.

The tree is the only complete list of a Mosquitto's subscriptions: it has those from before the federator's start, and
those of clean sessions. It can be read if the standard output goes to a file that the federator may read, on the same
machine, and if the federator may signal the broker, which requires the same user.

Rules:

1. The signal ends a process that does not handle it. The federator therefore sends it only to a process that does, and
   whose standard output is this file. If that cannot be checked, because the broker began as another user, the process
   of `broker_pid_file` gets it if its program is called mosquitto.
2. Mosquitto 2.0.11 writes its output in blocks of 4,096 bytes, also with `log_dest stdout`. The federator therefore
   makes it log more than a block, until a line follows the tree. A tree that no line follows, or that a line
   interrupts, is not used.
3. Only output after the signal is read, up to a limit. A file that a rotation cuts meanwhile gives no tree.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from hanse.errors import LocalError, Unavailable
from hanse.federator.settings import FederatorSettings
from hanse.interest.tree import Tree, parse

# A tree of a million filters.
TREE_BYTES_MAX = 256 * 1024 * 1024
DEADLINE_S = 10.0
POLL_S = 0.1
POLL_S_MAX = 1.0
_PROC = Path("/proc")
_PROGRAM = "mosquitto"
_HOW = "put `log_dest stdout` into mosquitto.conf, and let the broker's standard output go to this file"


class BrokerOutput:
    """The file with the broker's standard output, and the broker behind it.

    Args:
        path: the file.
        pid_file: the broker's `pid_file`; None if the broker can be found by its output.
    """

    def __init__(self, path: Path, pid_file: Path | None = None) -> None:
        self.path = path
        self._pid_file = pid_file

    def find(self) -> int:
        """Return the broker's process id.

        Raises:
            LocalError: there is none that may be signalled; the message says why.
        """
        if self._pid_file is not None:
            return self._pid_of_file(self._pid_file)
        try:
            output = self.path.stat()
        except OSError as error:
            raise LocalError(f"{self.path} cannot be read ({error.strerror}); {_HOW}.") from error
        if not _PROC.is_dir():
            raise LocalError("This system has no /proc, so the broker is not found; name its `broker_pid_file`.")
        for entry in _PROC.iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                found = (entry / "fd" / "1").stat()
            except OSError:
                continue  # it has ended, or belongs to another user
            if (found.st_dev, found.st_ino) == (output.st_dev, output.st_ino) and _handles_signal(entry):
                return int(entry.name)
        raise LocalError(
            f"No process of this user that handles SIGUSR2 has {self.path} as its standard output; {_HOW}, run the "
            "federator as the broker's user, and name its `broker_pid_file` if it was started by root."
        )

    def _pid_of_file(self, pid_file: Path) -> int:
        try:
            text = pid_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise LocalError(f"{pid_file} cannot be read ({error}); is the broker running?") from error
        if not text.isdecimal() or len(text) > 10:
            raise LocalError(f"{pid_file} holds no process id.")
        entry = _PROC / text
        try:
            program = (entry / "comm").read_text().strip()
        except OSError as error:
            raise LocalError(f"{pid_file} names process {text}, which does not run.") from error
        if program != _PROGRAM or not _handles_signal(entry):
            raise LocalError(f"{pid_file} names process {text}, which is {program} and not {_PROGRAM}.")
        return int(text)

    async def tree(self, prompt: Callable[[], None]) -> Tree:
        """Ask for the tree, and return it; `prompt` makes the broker log more than a block (rule 2).

        Raises:
            LocalError: the broker cannot be found or signalled, or the file cannot be read.
            Unavailable: no tree came within the deadline.
        """
        pid = await asyncio.to_thread(self.find)
        try:
            begin = self.path.stat().st_size
            os.kill(pid, signal.SIGUSR2)
        except ProcessLookupError as error:
            raise Unavailable(f"The broker, process {pid}, has ended.") from error
        except OSError as error:
            raise LocalError(
                f"The broker, process {pid}, cannot be signalled ({error.strerror}); run the federator as its user."
            ) from error
        loop = asyncio.get_running_loop()
        until_s = loop.time() + DEADLINE_S
        wait_s = POLL_S
        while loop.time() < until_s:
            prompt()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, POLL_S_MAX)
            found = await asyncio.to_thread(self._read, begin)
            if found is not None and found.is_ended:
                if found.is_whole:
                    return found
                raise Unavailable(
                    f"The tree in {self.path} is interrupted by another line; let nothing but the broker's standard "
                    "output go to this file, and leave out `log_dest stderr`."
                )
        raise Unavailable(f"The broker, process {pid}, printed no tree to {self.path}; {_HOW}.")

    def _read(self, begin: int) -> Tree | None:
        """Read the part of the tree that is in the file; None if there is none."""
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                return parse(file.read(TREE_BYTES_MAX))
        except OSError as error:
            raise LocalError(f"{self.path} cannot be read ({error.strerror}); {_HOW}.") from error


def broker_output(settings: FederatorSettings) -> BrokerOutput | None:
    """Return the output that the settings name, if any."""
    return None if settings.broker_output is None else BrokerOutput(settings.broker_output, settings.broker_pid_file)


def _handles_signal(entry: Path) -> bool:
    """Return whether a process handles SIGUSR2 (rule 1)."""
    try:
        status = (entry / "status").read_text(errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            return bool(int(value.strip(), 16) >> (signal.SIGUSR2 - 1) & 1)
    return False
