"""Recognition of takeovers: another client connects with the client id of the federator's session at its host broker.

A broker gives the session to the client that connects last, together with the messages that wait there, and
acknowledged messages go to that client instead of the federator. They cannot be recovered; the federator can only
notice.

Rules:

1. There are three signs of a takeover. The broker ends the connection with "session taken over" (MQTT 5, 0x8E). The
   broker's log shows a connection with the client id that the federator did not make. Or the federator was down, and
   the session lacks ticks of the broker's uptime that must have waited in it.
2. Mosquitto 2.0 only closes the socket, and other brokers have no such log. Without either sign, a takeover cannot be
   distinguished from a broken network.
3. Each takeover is logged as an error, counted (`session_taken_over`) and added to the gaps of `/accounts`. The gap
   begins when the federator lost the session and ends when the broker admits the federator again, with a new client id
   (`session_renewal`).
4. Connections in the log are distinguished by address and port. If a device translates addresses between the federator
   and its broker, only their number is compared.
5. Missing ticks prove nothing if they may have expired, or if the session's queue may have been full: the broker drops
   from a full queue without notice.
"""

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hanse import logs
from hanse.federator.gaps import GapBook, OpenGap

# Log lines reach the federator over another connection than the answer to its CONNECT. They are compared when neither
# arrived for this time. Larger: later alarms; smaller: false ones on a busy machine.
SETTLE_S = 3.0
# This many connections beyond the federator's own need no comparison: two clients fight for the session.
FIGHT = 3
# Rule 5: Mosquitto queues 1,000 messages by default. A full queue would have delivered more than this before the tick.
QUEUED_MAX = 500
# Rule 5: messages below `$SYS` expire at Mosquitto after this time.
TICK_EXPIRY_S = 60
# Intervals between two ticks beyond which some are missing. The broker rounds to seconds.
_MISSING = 2.5
# More connections within `SETTLE_S` are not distinguished.
_ADDRESSES_MAX = 16
# Log lines about ids of other sessions; more are only counted.
_LINES_MAX = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _FirstTick:
    """The first tick after the start, and the data to compare it with.

    Attributes:
        uptime_s: the broker's uptime in this tick.
        received: publications that came to the session before it.
        last_s, interval_s: the last tick of the former process, and the shortest time between two.
    """

    uptime_s: int
    received: int
    last_s: int
    interval_s: int


class Takeovers:
    """Takeovers of one federator's session.

    Args:
        path: file that keeps the last tick that the session received.
        gaps, counters: where a takeover is noted.
        on_taken_over: called after each takeover; returns whether the session will get another client id.
        clock_us: microseconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        *,
        gaps: GapBook,
        counters: Counter[str],
        on_taken_over: Callable[[], bool] = lambda: False,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._path = path
        self._gaps = gaps
        self._counters = counters
        self._on_taken_over = on_taken_over
        self._clock_us = clock_us
        self._is_connected = False
        self._left_us: int | None = None
        self._open: list[OpenGap] = []
        # Addresses of connections that the federator made, and of those that the broker's log shows, both without those
        # that were found in the other list. None: a connection with an unknown address.
        self._own: deque[str | None] = deque(maxlen=_ADDRESSES_MAX)
        self._shown: deque[str] = deque(maxlen=_ADDRESSES_MAX)
        # Whether the log shows the addresses that the federator sees, because no device translates them.
        self._is_exact = False
        self._own_host = ""
        self._changed_s = 0.0
        # The last tick of the session, and the shortest time between two; a former process left them.
        self._last_tick, self._interval_s = self._read_ticks()
        self._watched_tick: int | None = None
        # Kept until the second session has a tick as well.
        self._first: _FirstTick | None = None
        self._awaits_first = False
        self._is_first_connection = True
        self._received = 0

    # --- the session itself -------------------------------------------------------------------------------------------

    def connected(self, now_s: float, *, session_present: bool, address: str | None = None) -> None:
        """Note that the broker admitted the federator, which connected from this address."""
        self._is_connected = True
        self._note_own(address)
        self._own_host = "" if address is None else address.rpartition(":")[0]
        self._changed_s = now_s
        now_us = self._clock_us()
        for gap in self._open:
            gap.until_us = now_us
        self._open.clear()
        self._awaits_first = self._is_first_connection and session_present
        self._is_first_connection = False
        self._received = 0

    def disconnected(self, now_s: float, *, is_taken_over: bool, address: str | None) -> None:
        """Note that a connection ended or an attempt failed; `is_taken_over` if the broker gave that as the reason.

        `address` is the address of the connection; None if there was none.
        """
        if self._is_connected:
            self._left_us = self._clock_us()
        elif address is not None:
            # The broker may have admitted this attempt, and its answer was lost.
            self._note_own(address)
        self._is_connected = False
        self._changed_s = now_s
        if is_taken_over:
            self._own.append(None)  # the log shows that client's connection as well
            self._found("the broker said so", self._left_us)

    def _note_own(self, address: str | None) -> None:
        if address is not None and address in self._shown:
            self._shown.remove(address)
            self._is_exact = True
        else:
            self._own.append(address)

    def received(self, count: int) -> None:
        """Note publications that came to the session."""
        self._received += count

    def tick(self, payload: bytes) -> None:
        """Take a tick of the broker's uptime that came to the session."""
        uptime_s = uptime_of(payload)
        if uptime_s is None:
            return
        if self._awaits_first:
            self._awaits_first = False
            if self._last_tick is not None and self._interval_s is not None:
                self._first = _FirstTick(uptime_s, self._received, self._last_tick, self._interval_s)
            self._last_tick = uptime_s
            self._write_ticks()
            self._check_first()
        else:
            self._note_tick(uptime_s)

    def _note_tick(self, uptime_s: int) -> None:
        if self._last_tick is not None and uptime_s > self._last_tick:
            step_s = uptime_s - self._last_tick
            self._interval_s = min(self._interval_s or step_s, step_s)
        self._last_tick = uptime_s
        self._write_ticks()

    def _check_first(self) -> None:
        """Compare the first tick after the start with the last one that a former process received."""
        if self._first is None or self._watched_tick is None:
            return
        tick, self._first = self._first, None
        begin = max(tick.last_s, self._watched_tick - TICK_EXPIRY_S)
        if tick.received <= QUEUED_MAX and tick.uptime_s - begin > _MISSING * tick.interval_s:
            self._found(
                f"what waited between {tick.last_s} s and {tick.uptime_s} s of the broker's uptime is gone",
                self._clock_us() - (tick.uptime_s - tick.last_s) * 1_000_000,
            )

    # --- the second session -------------------------------------------------------------------------------------------

    def watching(self) -> None:
        """Note that the second session begins to listen: earlier connections are unknown."""
        self._own.clear()
        self._shown.clear()

    def admitted(self, now_s: float, address: str) -> None:
        """Note a line of the broker's log: it admitted a client under the client id of the session."""
        self._changed_s = now_s
        if address in self._own:
            self._own.remove(address)
            self._is_exact = True
            return
        self._shown.append(address)
        if len(self._shown) - len(self._own) >= FIGHT:
            self.check(now_s + SETTLE_S)

    def other_admitted(self, address: str) -> None:
        """Note a line of the broker's log: it admitted a client under the id of another session of this federator.

        Those sessions hold nothing, so nobody gains messages by that. But a client that knows their ids reads the log.
        """
        host = address.rpartition(":")[0]
        if self._is_exact and self._own_host and host != self._own_host:
            self._counters["session_id_used_elsewhere"] += 1
            if self._counters["session_id_used_elsewhere"] <= _LINES_MAX:
                logs.note_security(
                    "session_id_used_elsewhere",
                    "another client connected with a client id of this federator; it must have read the broker's log",
                    address=address,
                )

    def watched_tick(self, payload: bytes) -> None:
        """Take a tick that came to the second session."""
        self._watched_tick = uptime_of(payload)
        self._check_first()

    def check(self, now_s: float) -> None:
        """Compare the connections that the log shows with the federator's own; call this every second or so."""
        if not (self._own or self._shown) or now_s - self._changed_s < SETTLE_S:
            return
        addresses = sorted(set(self._shown))
        own = self._own.count(None) if self._is_exact else len(self._own)
        excess = len(self._shown) - own
        self.watching()
        if excess > 0:
            self._found(
                f"the broker's log shows {excess} more connections with its client id than the federator made; "
                f"from {', '.join(addresses)}",
                self._left_us,
            )

    # --- a takeover ---------------------------------------------------------------------------------------------------

    def _found(self, why: str, since_us: int | None) -> None:
        self._counters["session_taken_over"] += 1
        _log.error(
            "the session at the host broker was taken over by another client: %s. Messages that came there meanwhile "
            "are lost to the federation. Close `$SYS/broker/log/#` to other logins, and find out who knows the id.",
            why,
        )
        gap = self._gaps.add("session taken over", why, since_us=since_us)
        if self._on_taken_over() or not self._is_connected:
            self._open.append(gap)
        else:
            gap.until_us = self._clock_us()

    def _read_ticks(self) -> tuple[int | None, int | None]:
        with contextlib.suppress(OSError, ValueError):
            last, interval_s = self._path.read_bytes()[:40].split()
            return int(last), int(interval_s) or None
        return None, None

    def _write_ticks(self) -> None:
        # Without a sync, as this happens every ten seconds. After a power cut the file may be older, or empty.
        with contextlib.suppress(OSError):
            self._path.write_bytes(b"%d %d\n" % (self._last_tick or 0, self._interval_s or 0))


def uptime_of(payload: bytes) -> int | None:
    """Return the seconds of `$SYS/broker/uptime`, such as `95 seconds`; None if it is something else."""
    word = payload.split(b" ", 1)[0]
    return int(word) if word.isdigit() and len(word) <= 12 else None
