"""Free ports on the loopback.

A port that is free now may be taken a moment later by anyone. It is asked of the kernel, which hands out its
ephemeral ports far apart, so that two runs on one machine rarely meet; who starts a listener must still cope.
"""

import contextlib
import socket

from hanse.errors import LocalError

LOOPBACK = "127.0.0.1"


def free(count: int) -> list[int]:
    """So many different ports that nobody listens on at this moment."""
    with contextlib.ExitStack() as stack:
        # All are held at once: asking one by one could hand out one twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in sockets]


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
