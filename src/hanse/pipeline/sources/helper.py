"""Collector process that a source runs for itself if it has a url, beside the query's driver.

Rules:

1. The helper ends with the process that started it, however that process ends: it reads its settings from a pipe and
   stops at the end of the pipe. Nothing relies on a call of `stop`.
2. The password travels in the pipe, never in arguments or in the environment.
3. Two queries on one spool share one collector. The second helper waits for the writer's lock and then takes over.
4. A collector that was killed is restarted. If it ended with a permanent error (a wrong login, for example), the query
   fails with the collector's message.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from hanse.errors import LocalError, Unavailable
from hanse.pipeline.collector_settings import CollectorSettings
from hanse.pipeline.collector_status import read_status

# The end of the collector's log that goes into the query's error.
_LAST_WORDS_BYTES = 2000
_RESTART_INTERVAL_S = 1.0


class CollectorHelper:
    """Runs `python -m hanse.pipeline.collector` with the given settings."""

    def __init__(self, settings: CollectorSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self.restarts = 0

    @property
    def log_path(self) -> Path:
        """The collector's log file, overwritten at each start."""
        return Path(self._settings.spool) / self._settings.client_id / "collector.log"

    def ensure_running(self) -> None:
        """Start the collector, or restart it.

        Raises:
            LocalError: it ended because of its settings.
        """
        if self._process is None:
            self._start()
            return
        code = self._process.poll()
        if code is None:
            return
        if code == 2:
            raise LocalError(f"The collector of {self._settings.url} stopped: {self._last_words()}")
        if time.monotonic() - self._started_at >= _RESTART_INTERVAL_S:
            self.restarts += 1
            self._start()

    def wait_until_settled(self, *, quiet_s: float = 1.0, deadline_s: float = 30.0) -> None:
        """Wait until it is subscribed and has received nothing for `quiet_s`, or until the deadline.

        Raises:
            Unavailable: it did not subscribe in time.
        """
        give_up_at = time.monotonic() + deadline_s
        is_subscribed = False
        while time.monotonic() < give_up_at:
            self.ensure_running()
            status = read_status(self._settings.spool, self._settings.client_id)
            is_subscribed = status is not None and status.state == "collecting"
            if status is not None and is_subscribed and status.idle_s >= quiet_s:
                return
            time.sleep(0.05)
        if not is_subscribed:
            raise Unavailable(
                f"The collector of {self._settings.url} was not subscribed within {deadline_s:.0f} s: "
                f"{self._last_words()}"
            )

    def stop(self) -> None:
        """Let the collector finish its work and end; kill it after 5 s."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hanse.pipeline.collector"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                # The driver may have found this package on a path of its own (--py-files).
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._started_at = time.monotonic()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(self._settings.to_json().encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # The collector ended at once; the next `ensure_running` reports why.
            return

    def _last_words(self) -> str:
        try:
            log = self.log_path.read_bytes()
            words = log[-_LAST_WORDS_BYTES:].decode("utf-8", "replace")
            if len(log) > _LAST_WORDS_BYTES:
                # Whole lines only: the cut is in the middle of one.
                words = words.partition("\n")[2]
            words = words.strip()
        except OSError:
            words = ""
        return words or f"it logged nothing to {self.log_path}"
