"""Free ports on the loopback.

Any process may take a port that is free now a moment later. The ports are therefore drawn at random from those that the
kernel does not assign to outgoing connections. Only another listener can still take one; its owner must handle that.
"""

import contextlib
import random
import socket
from pathlib import Path

from hanse.errors import LocalError

LOOPBACK = "127.0.0.1"
FIRST_PORT = 10_240
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Linux's default, for a kernel that does not report its range.
_OUTGOING_FROM = 32_768


def _end() -> int:
    """Return the first port that the kernel may assign to an outgoing connection."""
    try:
        found = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        found = _OUTGOING_FROM
    return found if found > FIRST_PORT + 1_000 else _OUTGOING_FROM


def free(count: int) -> list[int]:
    """Return different ports that nothing listens on at this moment."""
    with contextlib.ExitStack() as stack:
        # All are held at once, because single requests could return a port twice.
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
                f"{count} free ports are needed, but only {len(found)} found; stop other listeners on this machine."
            )
        return found


def require_free(ports: list[int]) -> None:
    """Raise if another process listens on one of the ports.

    Raises:
        LocalError: a port is taken, or is not a valid number.
    """
    for port in ports:
        if not 0 < port < 65_536:
            raise LocalError(f"Port {port} is out of range; ports are 1 to 65535. Choose another --base-port.")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                raise LocalError(
                    f"Port {port} on {LOOPBACK} is not free ({error.strerror}); "
                    "stop the process that listens there, or choose another --base-port."
                ) from error


def answers(port: int) -> bool:
    """Return whether something accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0
