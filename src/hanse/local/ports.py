"""Free ports on the loopback.

A port that is free now may be taken a moment later by anyone. So they are drawn at random from those that the kernel
does not give to outgoing connections: only another listener could come in between, and who starts one must cope.
"""

import contextlib
import random
import socket
from pathlib import Path

from hanse.errors import LocalError

LOOPBACK = "127.0.0.1"
FIRST_PORT = 10_240
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Linux's own default, for a kernel that does not say.
_OUTGOING_FROM = 32_768


def _end() -> int:
    """The first port that the kernel may give to an outgoing connection."""
    try:
        found = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        found = _OUTGOING_FROM
    return found if found > FIRST_PORT + 1_000 else _OUTGOING_FROM


def free(count: int) -> list[int]:
    """So many different ports that nobody listens on at this moment."""
    with contextlib.ExitStack() as stack:
        # All are held at once: asking one by one could hand out one twice.
        found: list[int] = []
        candidates = list(range(FIRST_PORT, _end()))
        random.shuffle(candidates)
        for port in candidates:
            if len(found) == count:
                break
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind((LOOPBACK, port))
                found.append(port)
        if len(found) < count:
            raise LocalError(
                f"{count} free ports were asked for, and {len(found)} found; end what listens on this machine."
            )
        return found


def require_free(ports: list[int]) -> None:
    """Refuse to start over somebody else's listener.

    Raises:
        LocalError: a port is taken, or is no port.
    """
    for port in ports:
        if not 0 < port < 65_536:
            raise LocalError(f"Port {port} was asked for; ports are 1 to 65535. Choose another --base-port.")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                raise LocalError(
                    f"Port {port} on {LOOPBACK} is not free ({error.strerror}); "
                    "end what listens there, or choose another --base-port."
                ) from error


def answers(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0
