"""Second process that does the same work as the first, for its own part, and the pipe between the two.

Rules:
- Both run the same function on the same argument and call `share` at the same places, in the same order. Both get what
  either shares.
- The end of one process ends both. An error of the second is raised in the first, with its traceback as a note. When
  the first ends, for whatever reason, the pipe ends, and the second process with it.
- The first writes before it reads and the second reads before it writes. If both wrote first, they would block for good
  when the data did not fit into the pipe.
"""

import contextlib
import copyreg
import io
import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from operator import attrgetter
from typing import Any, NamedTuple

from hanse.errors import HanseError
from hanse.protocol.messages import (
    Announcement,
    ClaimChange,
    ClaimDelta,
    ClaimPart,
    ClaimRequest,
    ControlFrame,
    SetAck,
    SetDelta,
    SetStep,
)

# How long a process may take to end after its pipe has ended.
END_S = 5.0


class _Failure(NamedTuple):
    """Error that ended the second process."""

    text: str
    traceback: str


class Peer:
    """One end of the pipe. The first process has number 0, the second 1."""

    def __init__(self, number: int, connection: Connection, process: BaseProcess | None = None) -> None:
        self.number = number
        self._connection = connection
        self._process = process

    def share(self, mine: object) -> tuple[Any, Any]:
        """Return the values of the first and the second process at this point."""
        body = _dumps(mine)
        try:
            if self.number == 0:
                self._connection.send_bytes(body)
            theirs = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own process wrote it
            if self.number == 1:
                self._connection.send_bytes(body)
        except (EOFError, OSError) as error:
            raise _EndedError(self._obituary()) from error
        if isinstance(theirs, _Failure):
            failed = HanseError(f"The second process failed: {theirs.text}")
            failed.add_note(theirs.traceback)
            raise failed
        return (mine, theirs) if self.number == 0 else (theirs, mine)

    def _obituary(self) -> str:
        if self._process is None:
            return "The first process ended."
        self._process.join(END_S)
        return (
            f"The second process ended with exit code {self._process.exitcode} in the middle of the run; if the memory "
            "was not enough for both, run it with one process."
        )


class _EndedError(HanseError):
    """Loss of the other end of the pipe."""


@contextlib.contextmanager
def second_process(function: Callable[[Any, Peer], object], argument: object) -> Iterator[Peer]:
    """Call `function(argument, peer)` in a new process for the duration of the context.

    Yield the peer of this process.
    """
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_second, args=(function, argument, there), name="hanse-sim-second", daemon=True
    )
    with here:
        with there:
            process.start()
        try:
            yield Peer(0, here, process)
        finally:
            # The work is done or no longer wanted. An orderly exit would free its memory piece by piece, which takes
            # seconds.
            process.kill()
            process.join()
            process.close()


def _second(function: Callable[[Any, Peer], object], argument: object, connection: Connection) -> None:
    """Run the function in the second process and report its error."""
    # Ctrl-C reaches both processes. The first one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        function(argument, Peer(1, connection))
    except _EndedError:
        return
    except Exception as error:  # noqa: BLE001 - boundary of a process: the first one raises any error
        text = str(error) if isinstance(error, HanseError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            connection.send_bytes(_dumps(_Failure(text, traceback.format_exc())))
    # Read what the first process may still be writing. Otherwise the failure would be lost with the pipe.
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.recv_bytes()


def _dumps(value: object) -> bytes:
    """Pickle a value, in a third of the time that pickling of named tuples takes by default."""
    into = io.BytesIO()
    pickler = pickle.Pickler(into, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return into.getvalue()


# Unpickled values that are equal are one object, as they are in a single process. The name of a group is a key in
# thousands of tables, and each receiver keeps an announcement. Copies would cost memory and comparisons.
_ONE_EACH_MAX = 1 << 16


@lru_cache(_ONE_EACH_MAX)
def _announcement(*values: *tuple[int, int, int, int, int, str]) -> Announcement:
    return Announcement(*values)


@lru_cache(_ONE_EACH_MAX)
def _claim_change(group: str, rank: int | None, grouping: str) -> ClaimChange:
    return ClaimChange(sys.intern(group), rank, sys.intern(grouping))


@lru_cache(_ONE_EACH_MAX)
def _set_step(is_added: bool, core: int, group: str) -> SetStep:
    return SetStep(is_added, core, sys.intern(group))


_values_of_frame = attrgetter(*(field.name for field in fields(ControlFrame)))

_REDUCERS: dict[type, Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    Announcement: lambda announcement: (_announcement, tuple(announcement)),
    ClaimChange: lambda change: (_claim_change, tuple(change)),
    SetStep: lambda step: (_set_step, tuple(step)),
    ControlFrame: lambda frame: (ControlFrame, _values_of_frame(frame)),
    **dict.fromkeys((ClaimDelta, ClaimPart, ClaimRequest, SetAck, SetDelta), lambda part: (type(part), tuple(part))),
}
