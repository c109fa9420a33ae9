"""A second process that does the same as the first, for its own part, and the pipe between the two.

Rules:
- Both run the same function on the same argument and `share` at the same places, in the same order. What each shares,
  both get.
- Whatever ends one of them ends both: an error of the second is raised in the first, with its traceback as a note; when
  the first ends, for whatever reason, the pipe ends, and the second with it.
- The first writes before it reads and the second reads before it writes: with both writing, what does not fit into
  the pipe would stop both for good.
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

# How long a process whose pipe has ended may take to end itself.
END_S = 5.0


class _Failure(NamedTuple):
    """What ended the second process."""

    text: str
    traceback: str


class Peer:
    """One end of the pipe: the first process has number 0, the second 1."""

    def __init__(self, number: int, connection: Connection, process: BaseProcess | None = None) -> None:
        self.number = number
        self._connection = connection
        self._process = process

    def share(self, mine: object) -> tuple[Any, Any]:
        """What the first process has at this place and what the second has."""
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
    """The other end of the pipe is gone."""


@contextlib.contextmanager
def second_process(function: Callable[[Any, Peer], object], argument: object) -> Iterator[Peer]:
    """Call `function(argument, peer)` in a new process, for as long as the context lasts; yields its peer here."""
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
            # Its work is done, or no longer wanted: taking its memory apart would take seconds for nothing.
            process.kill()
            process.join()
            process.close()


def _second(function: Callable[[Any, Peer], object], argument: object, connection: Connection) -> None:
    """The life of the second process."""
    # Ctrl-C goes to both; the first decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        function(argument, Peer(1, connection))
    except _EndedError:
        return
    except Exception as error:  # noqa: BLE001 - the edge of a process: whatever it is, the first one raises it
        text = str(error) if isinstance(error, HanseError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            connection.send_bytes(_dumps(_Failure(text, traceback.format_exc())))
    # What the first process may still be writing must be read, or the failure would be lost with the pipe.
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.recv_bytes()


def _dumps(value: object) -> bytes:
    """Pickled, in a third of the time that named tuples take by themselves."""
    into = io.BytesIO()
    pickler = pickle.Pickler(into, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return into.getvalue()


# What is read is one object for each value, as it is where all is in one process: the name of a group is a key in
# thousands of tables, an announcement is kept by each who hears it. Copies would cost memory, and comparisons.
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
