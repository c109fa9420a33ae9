"""Supervised processes: started, waited for by condition, restarted with back-off, and never left behind.

Rules:
1. Ready means that a condition holds, within a deadline; never that some time has passed.
2. A process that ends unexpectedly is restarted, unless configured otherwise. The back-off doubles up to a limit, and
   starts again from its first value once a process has run for a while.
3. Ending a process sends SIGTERM and, after a grace period, SIGKILL to the whole process group, so that its descendants
   end too.
4. If this process is killed, the kernel ends its children: PR_SET_PDEATHSIG, set between fork and exec.
5. A process appends its output to a file of its own. If it does not start, the error quotes the end of that file.
6. Beyond `output_bytes_max` the file becomes `<name>.1`, in place of an older one, and is emptied. A line that is
   written meanwhile may be lost.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hanse.errors import LocalError, Unavailable

_PR_SET_PDEATHSIG = 1
_log = logging.getLogger(__name__)
_TAIL_BYTES = 2_000
_POLL_S = 0.02
# Loaded before any fork: between fork and exec little more than a system call is safe.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Supervision of a process.

    Attributes:
        restarts: restart the process if it ends unexpectedly.
        back_off_s: wait before the first restart; doubles with each one.
        back_off_s_max: longest wait; a larger value leaves a broker down that could be up, a smaller one uses a core
            for one that cannot start.
        settled_s: a process that ran this long starts with the first back-off again.
        grace_s: time from SIGTERM to SIGKILL, in which a federator leaves its meshes.
        output_bytes_max: size at which the output file is emptied; one older file of that size is kept.
        check_s: time between two looks at that size.
    """

    restarts: bool = True
    back_off_s: float = 0.2
    back_off_s_max: float = 10.0
    settled_s: float = 10.0
    grace_s: float = 5.0
    output_bytes_max: int = 64 << 20
    check_s: float = 10.0


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; for `preexec_fn`.

    To the kernel the parent is the thread that forked, so start processes from the main thread.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the call; then no signal would ever come.
        if os.getppid() != parent_pid:
            os._exit(1)


@dataclass(slots=True)
class SupervisedProcess:
    """One command, kept running until `stop`.

    Attributes:
        name: for messages and logs.
        output: the file for its output.
        restarts: number of restarts so far.
    """

    name: str
    command: Sequence[str]
    output: Path
    settings: ProcessSettings = field(default_factory=ProcessSettings)
    environment: dict[str, str] | None = None
    restarts: int = 0
    _process: asyncio.subprocess.Process | None = None
    _keeper: asyncio.Task[None] | None = None
    _is_stopping: bool = False

    @property
    def pid(self) -> int | None:
        """Id of the current process; None while none runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    @property
    def returncode(self) -> int | None:
        """Exit code of the current or last process; None while it runs or before its first start."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start the process and supervise it.

        Raises:
            LocalError: there is no such program, or its output file cannot be written.
        """
        if self._keeper is not None:
            raise LocalError(f"{self.name} was started already; stop it first.")
        self._is_stopping = False
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    async def wait_ready(self, condition: Callable[[], Awaitable[bool]], deadline_s: float) -> None:
        """Wait until the condition holds.

        Raises:
            Unavailable: the deadline passed, or the process ended and is not restarted.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        while not await condition():
            if self.pid is None and not self.settings.restarts:
                raise Unavailable(f"{self.name} ended with code {self.returncode} before it was ready.{self._said()}")
            if loop.time() > until_s:
                raise Unavailable(f"{self.name} was not ready within {deadline_s:g} s.{self._said()}")
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """End the process and its group, and return when they are gone; does nothing if it does not run."""
        self._is_stopping = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), self.settings.grace_s)
            except TimeoutError:
                _signal_group(process.pid, signal.SIGKILL)
                await process.wait()
        # The group's leader is gone; its children may still run.
        _signal_group(process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Kill it (SIGKILL) as a crash would; supervision restarts it if configured."""
        process = self._process
        if process is not None and process.returncode is None:
            _signal_group(process.pid, signal.SIGKILL)
            await process.wait()

    async def _spawn(self) -> None:
        parent_pid = os.getpid()
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            with self.output.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.environment,
                    start_new_session=True,  # a group of its own, out of reach of the terminal's Ctrl-C
                    preexec_fn=lambda: die_with_parent(parent_pid),
                )
        except OSError as error:
            raise LocalError(
                f"{self.name} could not be started: {self.command[0]}: {error.strerror}; check that it is installed."
            ) from error

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        back_off_s = self.settings.back_off_s
        while True:
            assert self._process is not None
            began_s = loop.time()
            await self._ended(self._process)
            if self._is_stopping or not self.settings.restarts:
                return
            # Children of the crashed process may still hold its ports.
            _signal_group(self._process.pid, signal.SIGKILL)
            if loop.time() - began_s >= self.settings.settled_s:
                back_off_s = self.settings.back_off_s
            ended = self._process
            _log.warning(
                "a process ended and is restarted",
                extra={"program": self.name, "code": ended.returncode, "output": str(self.output)},
            )
            while self._process is ended:
                await asyncio.sleep(back_off_s)
                back_off_s = min(2 * back_off_s, self.settings.back_off_s_max)
                # The program may be missing briefly while it is being replaced.
                with contextlib.suppress(LocalError):
                    await self._spawn()
            self.restarts += 1

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the process ends, and keep its output within the limit meanwhile."""
        end = asyncio.ensure_future(process.wait())
        try:
            while not (await asyncio.wait((end,), timeout=self.settings.check_s))[0]:
                self._bound_output()
        finally:
            end.cancel()

    def _bound_output(self) -> None:
        # The process has the file open to append, so it goes on at the new end. Its file cannot be replaced under it.
        with contextlib.suppress(OSError):
            if self.output.stat().st_size > self.settings.output_bytes_max:
                shutil.copyfile(self.output, self.output.with_name(self.output.name + ".1"))
                os.truncate(self.output, 0)

    def _said(self) -> str:
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, self.output.stat().st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace").strip()
        except OSError:
            return ""
        return f" Its last output ({self.output}):\n{text}" if text else f" It wrote no output ({self.output})."


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
