"""State directory: files that one federator must find again after a restart.

    lock           held while the federator runs; names its holder
      epoch          the last boot epoch, in decimal
      interest.json  interest of local clients, in the form of `hanse.interest`

(and the files of custody: see `hanse.federator.custodian`)

Rules:

1. One directory, one federator: the kernel's lock on `lock` ends with its process, however that ends.
2. A write returns when it would survive a power cut: a temporary file, fsync, rename, fsync of the directory. The
   result is the old content or the new, never half of one.
3. A file that cannot be parsed never stops a start. It is put aside as `<name>.damaged` with a warning, and the
   federator starts without it. The wall clock and the neighbours also keep the epoch rising (R1, R2), and clients' next
   actions restore the interest.
4. The operator must repair a disk that refuses: a `LocalError` says what and where.

Calls block for as long as the disk takes. Only `write_epoch` may run on the event loop, because the next steps must
wait.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hanse.errors import LocalError
from hanse.federator.damaged import put_aside
from hanse.interest import store as interest_store
from hanse.protocol.settings import EPOCH_MAX

# Value for `boot_epoch` if no epoch is stored.
NO_EPOCH = -1

SAVE_EVERY_S = 0.2
# Largest share of time for writing. With many clients, a write takes long.
_SAVING_SHARE = 1 / 20

_EPOCH_BYTES_MAX = 32
_OWNER_BYTES_MAX = 64
_log = logging.getLogger(__name__)


class StateDirectory:
    """Open, locked state directory; use it in a `with`, or call `close`."""

    def __init__(self, path: Path) -> None:
        """Create it if it is missing, and lock it.

        Raises:
            LocalError: It cannot be created or used, or another federator has it.
        """
        self.path = path
        try:
            # Only for the owner: interest names clients.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LocalError(
                f"The state directory {path} cannot be used: {error.strerror}; give another --state-dir."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._lock, _OWNER_BYTES_MAX).decode("ascii", "replace").strip()
            os.close(self._lock)
            by = f"the process {owner}" if owner.isdigit() else "another process"
            raise LocalError(
                f"The state directory {path} is in use by {by}; end that federator, or give this one its own "
                "--state-dir."
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; the files stay. Do nothing if it is closed."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read_epoch(self) -> int:
        """Return the last written epoch; `NO_EPOCH` if there is none or it is damaged.

        Raises:
            LocalError: The file exists, but the system does not let us read it.
        """
        path = self.path / "epoch"
        try:
            with path.open("rb") as file:
                raw = file.read(_EPOCH_BYTES_MAX + 1)
        except FileNotFoundError:
            return NO_EPOCH
        except OSError as error:
            raise LocalError(f"{path} cannot be read: {error.strerror}; check its rights.") from error
        text = raw.removesuffix(b"\n")
        if len(raw) > _EPOCH_BYTES_MAX or not text.isdigit() or int(text) > EPOCH_MAX:
            put_aside(path, f"expected a number up to {EPOCH_MAX}")
            return NO_EPOCH
        return int(text)

    def write_epoch(self, epoch: int) -> None:
        """Write the epoch; when this returns it is on disk.

        Raises:
            LocalError: The disk refuses.
        """
        assert 0 <= epoch <= EPOCH_MAX, epoch
        path = self.path / "epoch"
        beside = self.path / "epoch.new"
        try:
            with beside.open("wb") as file:
                file.write(f"{epoch}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            self._sync()
        except OSError as error:
            raise LocalError(
                f"The epoch could not be written to {path}: {error.strerror}; check space and rights."
            ) from error

    def read_interest(self) -> dict[str, Any] | None:
        """Return the document for `InterestRegistry.load`; None if there is none or it is damaged.

        If `load` cannot use the document, call `drop_interest`.
        """
        path = self.path / "interest.json"
        try:
            return interest_store.read(path)
        except LocalError as error:
            put_aside(path, str(error))
            return None

    def write_interest(self, document: dict[str, Any]) -> None:
        """Write the result of `InterestRegistry.dump`.

        Raises:
            LocalError: The disk refuses.
        """
        path = self.path / "interest.json"
        interest_store.save(path, document)
        try:
            self._sync()
        except OSError as error:
            raise LocalError(f"Interest could not be saved to {path}: {error.strerror}; check the disk.") from error

    def drop_interest(self, why: str) -> None:
        """Put the stored interest aside: it is readable, but useless."""
        put_aside(self.path / "interest.json", why)

    def _sync(self) -> None:
        """Sync the directory, or a power cut may restore the old name."""
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


async def save_again(*save: Callable[[], None]) -> None:
    """Call the functions that save state, soon after changes, until the end."""
    loop = asyncio.get_running_loop()
    pause_s = SAVE_EVERY_S
    while True:
        await asyncio.sleep(pause_s)
        begun = loop.time()
        for one in save:
            one()
        pause_s = max(SAVE_EVERY_S, (loop.time() - begun) / _SAVING_SHARE)
