"""Short pauses before reads in which arrivals gather, so that reading does not slow the broker down.

Mosquitto writes every message by itself. A reader that reads each at once spends 8 us per message on waking up: as much
as the broker needs, on the machine that they share. For throughput, a millisecond's worth is read at once (1 us per
message), and the socket's buffer holds many times as much. For latency, nothing waits.

At QoS 1 and 2, a broker with a small window (20 messages by Mosquitto's default) sends no more until it gets
acknowledgements. A pause would then be measured itself. If pauses gather little, there are none for a while.
"""

GATHER_S = 0.001
# More than the window of a Mosquitto with default settings. Fewer arrive slowly enough to be read one by one.
_WORTHWHILE = 25
# Small windows of other brokers (32, 100) appear as the same number again and again. A free stream's numbers differ.
_WINDOW_MAX = 200
_MISSES_MAX = 3
_REST_NS = 100_000_000


class Gathering:
    """Decision before each read. Pure: time and counts come in as arguments."""

    def __init__(self, qos: int) -> None:
        self._is_certain = qos == 0
        self._received = 0
        self._gained = 0
        self._misses = 0
        self._rests_until_ns = 0

    def should_pause(self, now_ns: int, received: int) -> bool:
        """Return whether to wait `GATHER_S` before the next read; `received` counts all arrivals so far."""
        if self._is_certain:
            return True
        gained, self._received = received - self._received, received
        is_window, self._gained = gained == self._gained and gained <= _WINDOW_MAX, gained
        if now_ns < self._rests_until_ns:
            return False
        self._misses = self._misses + 1 if gained < _WORTHWHILE or is_window else 0
        if self._misses >= _MISSES_MAX:
            self._misses = 0
            self._rests_until_ns = now_ns + _REST_NS
            return False
        return True
