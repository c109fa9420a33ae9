"""Choice of the publications to trace, by the id alone, so that all federators trace the same ones."""

import zlib

from hanse.errors import LocalError

RATE_DENOMINATOR = 1 << 32


def is_sampled(origin: str, epoch: int, seq: int, rate: float) -> bool:
    """Return whether the message `(origin, epoch, seq)` is traced at `rate`, the share of messages from 0 to 1.

    A message traced at one rate is traced at every higher one, so federators in the midst of a change of rate still
    share the smaller sample.
    """
    if not 0 <= rate <= 1:
        raise LocalError(f"A sampling rate must be between 0 and 1; got {rate}.")
    # CRC32 is linear, so ids that differ only in seq would fill the range too evenly. The multiplication (Knuth's)
    # mixes the bits.
    mixed = zlib.crc32(f"{origin}/{epoch}/{seq}".encode()) * 2_654_435_761 % RATE_DENOMINATOR
    return mixed < rate * RATE_DENOMINATOR
