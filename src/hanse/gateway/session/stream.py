"""The bytes of one direction that do not form a whole packet yet.

Rules: a length is judged from the header, before anything of the packet is kept; pieces are joined once, so that a
packet of 16 MiB in pieces of 1 KiB costs 16 MiB of copying.
"""

from hanse.mqtt.refusal import malformed


class Stream:
    """One direction of one connection.

    Attributes:
        pieces: the start of a packet whose rest has not arrived.
        passing: number of bytes of a large packet that are still to come and pass as they arrive.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.have = 0
        self.need = 0
        self.passing = 0

    def take(self, data: bytes) -> bytes:
        """Return the kept bytes and these together; nothing while the packet at their start is not complete."""
        if not self.pieces:
            return data
        self.pieces.append(data)
        self.have += len(data)
        if self.have < self.need:
            return b""
        joined = b"".join(self.pieces)
        self.pieces = []
        self.have = 0
        return joined

    def keep(self, rest: bytes, need: int) -> None:
        """Keep the start of a packet until `need` bytes are there."""
        self.pieces = [rest]
        self.have = len(rest)
        self.need = need

    def clear(self) -> None:
        """Forget the kept bytes: the connection is a new one."""
        self.pieces = []
        self.have = self.need = self.passing = 0


def end_of(data: bytes, start: int, size: int) -> int:
    """Return the end of the packet that begins at `start`; 0 if its header is not complete.

    Raises:
        Refusal: the length is longer than it needs to be, or than MQTT allows.
    """
    length = shift = 0
    for i in range(start + 1, min(start + 5, size)):
        byte = data[i]
        length |= (byte & 0x7F) << shift
        if byte < 128:
            if byte == 0 and shift:
                raise malformed("a remaining length is longer than it needs to be")
            return i + 1 + length
        shift += 7
    if size - start >= 5:
        raise malformed("a remaining length has five bytes or more; MQTT allows four")
    return 0
