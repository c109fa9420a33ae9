"""When to let arrivals gather before they are read, so that reading them does not slow the broker down.

Mosquitto writes every message by itself, and who reads each at once spends 8 us a message on waking up: as much as
the broker needs, on a machine that they share. Where throughput is measured, a millisecond's worth is read at
once (1 us a message); the socket's buffer holds many times as much. Where latency is measured, nothing waits.

At QoS 1 and 2 a broker with a small window sends no more until it is acknowledged (20 messages, by Mosquitto's
default), and a pause would be what is measured: where pauses bring little, there are none for a while.
"""

GATHER_S = 0.001
# More than the window of a Mosquitto that nobody configured. Fewer arrive slowly enough to be read one by one.
_WORTHWHILE = 25
# Other brokers' small windows (32, 100) show as the same number again and again; a free stream's numbers differ.
_WINDOW_MAX = 200
_MISSES_MAX = 3
_REST_NS = 100_000_000


class Gathering:
    """Decides before each read. Pure: time and counts come in."""

    def __init__(self, qos: int) -> None:
        self._is_certain = qos == 0
        self._received = 0
        self._gained = 0
        self._misses = 0
        self._rests_until_ns = 0

    def should_pause(self, now_ns: int, received: int) -> bool:
        """Whether to wait `GATHER_S` before the next read; `received` counts all arrivals so far."""
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
