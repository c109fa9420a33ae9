"""When to let bytes gather: many small reads cost more than a few large ones, and a millisecond buys a hundred of them.

A broker writes each message by itself, so a quick reader gets one or two of them a read, and what a batch costs (one
turn of the loop, one frame a neighbour, one write that wakes the next process) is paid for each. On an idle machine
of two cores that held one hop at 65,000 messages/s; gathered for 1 ms it is 77,000, for 3 ms 86,000 (QoS 0), and at
QoS 1 29,000, 33,000 and 40,000.

Rules:

- Only who is read very often is made to wait: below `READS_A_WINDOW` reads, or `SMALL_BYTES`, in `WINDOW_S` every read
  is handled at once, so a stream of 1,000 messages a second sees no delay.
- A pause is short, longer only while it gathers much; everything that came meanwhile is one read. It ends by itself, so
  it cannot hold acknowledgements back for good.
- As soon as a pause gathers little (`SMALL_BYTES`), the stream has ebbed and reads are handled at once again.
"""

# libuv's timers count milliseconds: the shortest wait there is, and the one for streams of tens of thousands a second.
SHORT_S = 0.001
LONG_S = 0.005
WINDOW_S = 0.01
READS_A_WINDOW = 20
SMALL_BYTES = 1_024
LARGE_BYTES = 2_048
# A read of this size is a batch already: waiting would only hold a stream of large messages to a buffer a pause.
ENOUGH_BYTES = 49_152


class Gathering:
    """Decides for one connection; no IO."""

    __slots__ = ("_bytes", "_pause_s", "_reads", "_since")

    def __init__(self) -> None:
        # The pause after each read; 0 while reads are handled at once.
        self._pause_s = 0.0
        self._reads = 0
        self._bytes = 0
        self._since = 0.0

    def pause_s(self, now: float, size: int) -> float:
        """A read of `size` bytes came: how long to pause before the next one, 0 for not at all."""
        if size >= ENOUGH_BYTES:
            return 0.0
        if self._pause_s:
            if size < SMALL_BYTES:
                self._pause_s = 0.0
                self._reads, self._bytes, self._since = 0, 0, now
            else:
                self._pause_s = LONG_S if size >= LARGE_BYTES else SHORT_S
            return self._pause_s
        self._reads += 1
        self._bytes += size
        if self._reads >= READS_A_WINDOW:
            if now - self._since < WINDOW_S and self._bytes >= SMALL_BYTES:
                self._pause_s = SHORT_S
            self._reads, self._bytes, self._since = 0, 0, now
        return self._pause_s
