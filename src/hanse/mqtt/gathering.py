"""Short pauses in which bytes gather: many small reads cost more than a few large ones.

A broker writes each message by itself, so a quick reader gets one or two messages per read. Each read then pays the
fixed cost of a batch: one turn of the loop, one frame per neighbour, one write that wakes the next process. On an idle
machine of two cores, that limited one hop to 65,000 messages/s. With pauses of 1 ms it is 77,000, with 3 ms 86,000 (QoS
0). At QoS 1 it is 29,000, 33,000 and 40,000.

Rules:

- Only a connection with very many reads pauses. Every read is handled at once below `READS_A_WINDOW` reads in
  `WINDOW_S`, if a read has no packet, or if all reads together have less than `SMALL_BYTES`. A stream of 1,000
  messages per second sees no delay.
- A pause is short, and longer only while it gathers much. All that arrived during the pause is one read. A pause ends
  by itself, so it cannot hold acknowledgements back for good.
- When a pause gathers little, the stream has ebbed, and reads are again handled at once. If the first pause gathers
  little `MISSES_MAX` times in a row, there is no pause for `REST_S`: the peer waits for our acknowledgements
  (Mosquitto's default window is 20 messages), and a pause would only delay it.
- A sender that was stopped by a full socket does not wait long: the pause after such a read is a short one.
- Little and much are counted in bytes and in packets, because a thousand acknowledgements have only 4,000 bytes.
- If a read has only acknowledgements, from a peer whose window is wide, a few are enough to pause, because neither side
  waits for them. At QoS 1 with 10 KiB, a broker sends 12,000 per second, which arrived in sixes. With pauses, two
  federators take 60 us per message instead of 70, and carry 7 % more.
"""

# libuv's timers count milliseconds. This is the shortest wait, and the one for streams of tens of thousands per second.
SHORT_S = 0.001
LONG_S = 0.005
# A Unix socket holds some 270 small messages, because the kernel counts 768 bytes for each. 5 ms would fill it at
# 54,000 per second, and the writer would stand still for the rest of the pause.
UNIX_LONG_S = 0.003
# From this count on, the socket was full or nearly so: the writer had to stop, and has more. 3 ms limited one hop to
# 90,000 messages per second where brokers of a faster machine carry 150,000. 1 ms after a full read lets 17 % more
# through (QoS 0).
UNIX_FULL_PACKETS = 256
WINDOW_S = 0.01
READS_A_WINDOW = 20
MISSES_MAX = 3
REST_S = 0.1
SMALL_BYTES = 1_024
FEW_PACKETS = 25
FEW_ACKNOWLEDGEMENTS = 8
WIDE_WINDOW = 1_000
LARGE_BYTES = 2_048
MANY_PACKETS = 32
# A read of this size is already a batch. Waiting would limit a stream of large messages to one buffer per pause.
ENOUGH_BYTES = 49_152


class Gathering:
    """Decision of one connection to pause or not; no IO.

    Args:
        long_s: length of the pause while much is gathered.
        full_packets: from so many packets in one read, other than acknowledgements, the socket was full; 0: that
            cannot be known.
    """

    __slots__ = (
        "_bytes",
        "_few_acknowledgements",
        "_full_packets",
        "_is_new",
        "_long_s",
        "_misses",
        "_packets",
        "_pause_s",
        "_reads",
        "_rests_until",
        "_since",
    )

    def __init__(self, long_s: float = LONG_S, full_packets: int = 0) -> None:
        self._long_s = long_s
        self._full_packets = full_packets
        self._few_acknowledgements = FEW_PACKETS
        # The pause after each read; 0 while reads are handled at once.
        self._pause_s = 0.0
        # Whether no pause has paid off since reads were last handled at once.
        self._is_new = False
        self._misses = 0
        self._reads = 0
        self._bytes = 0
        self._packets = 0
        self._since = 0.0
        self._rests_until = 0.0

    def know_window(self, window: int) -> None:
        """Note how many publications the peer accepts before it needs one of its acknowledgements to be read."""
        self._few_acknowledgements = FEW_ACKNOWLEDGEMENTS if window >= WIDE_WINDOW else FEW_PACKETS

    def pause_s(self, now: float, size: int, packets: int) -> float:
        """Return how long to pause after a read of `size` bytes and so many packets, 0 for not at all."""
        if size >= ENOUGH_BYTES:
            return 0.0
        if self._pause_s:
            # An acknowledgement without a reason has four bytes.
            if size < SMALL_BYTES and packets < (FEW_PACKETS if size != 4 * packets else self._few_acknowledgements):
                if self._is_new:
                    self._misses += 1
                    if self._misses >= MISSES_MAX:
                        self._misses = 0
                        self._rests_until = now + REST_S
                self._pause_s = 0.0
                self._reads = self._bytes = self._packets = 0
                self._since = now
            else:
                self._is_new = False
                self._misses = 0
                is_much = size >= LARGE_BYTES or packets >= MANY_PACKETS
                was_full = self._full_packets and packets >= self._full_packets and size != 4 * packets
                self._pause_s = self._long_s if is_much and not was_full else SHORT_S
            return self._pause_s
        self._reads += 1
        self._bytes += size
        self._packets += packets
        if self._reads >= READS_A_WINDOW:
            is_much = self._bytes >= SMALL_BYTES or self._packets >= READS_A_WINDOW
            if is_much and now - self._since < WINDOW_S and now >= self._rests_until:
                self._pause_s = SHORT_S
                self._is_new = True
            self._reads = self._bytes = self._packets = 0
            self._since = now
        return self._pause_s
