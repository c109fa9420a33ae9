"""Checksum that recognises a packet again, if keeping the packet would cost too much."""

from zlib import crc32

_END_BYTES = 512


def checksum_of(packet: bytes) -> int:
    """Return a checksum over all of a short packet, or over both ends of a long one. Compare the lengths as well.

    Over the whole of packets of 10 KiB, it took 7 % of a federator's time.
    """
    if len(packet) <= 2 * _END_BYTES:
        return crc32(packet)
    return crc32(packet[-_END_BYTES:], crc32(packet[:_END_BYTES]))
