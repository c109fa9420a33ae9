"""One connection of the load generator: a non-blocking socket, and the bytes that wait to be sent on it."""

import contextlib
import os
import socket
import time
from collections import deque

import mqtt5

from hanse.errors import RemoteError, Unavailable
from hanse.load.packets import Arrivals, Reader
from hanse.load.plan import Address

_HANDSHAKE_S = 20.0
RECEIVE_BYTES = 256 * 1024


class Wire:
    """Connection that the constructor opens. `flush` and `receive` never block."""

    def __init__(self, address: Address, client_id: str, reader: Reader) -> None:
        """Connect, and wait for the CONNACK.

        Raises:
            Unavailable: nobody answers.
            RemoteError: the broker refuses the connection.
        """
        self._where = f"{address.host}:{address.port}"
        self._reader = reader
        self._queue: deque[memoryview] = deque()
        connect = mqtt5.ConnectPacket(
            client_id,
            username=address.username,
            password=None if address.password is None else address.password.encode(),
            clean_start=True,
            # 65,535 is MQTT's default, which the codec omits; Mosquitto then uses its own value of 20.
            receive_max=65_534,
        )
        try:
            self.socket = socket.create_connection((address.host, address.port), timeout=_HANDSHAKE_S)
        except OSError as error:
            raise Unavailable(f"No broker answers at {self._where} ({error.strerror or error}).") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel may grow the receive buffer. An explicit size would be capped by net.core.rmem_max.
        arrivals = self._ask(connect.write(), "connected")
        assert arrivals.connected is not None
        answer, _ = mqtt5.read(memoryview(arrivals.connected))
        assert isinstance(answer, mqtt5.ConnAckPacket)
        if answer.reason_code != mqtt5.ConnAckReasonCode.SUCCESS:
            raise RemoteError(f"The broker at {self._where} refused the connection: {answer.reason_code.name}.")
        self.receive_max = answer.receive_max
        self.socket.setblocking(False)

    def subscribe(self, wanted: str, qos: int) -> None:
        """Subscribe, and wait for the SUBACK. Call it before anything is published.

        Raises:
            RemoteError: the broker refuses the subscription.
        """
        topic = mqtt5.TopicFilter(wanted, max_qos=mqtt5.QoS(qos), retain_handling=mqtt5.RetainHandling.SEND_NEVER)
        self.socket.settimeout(_HANDSHAKE_S)
        arrivals = self._ask(mqtt5.SubscribePacket(1, [topic]).write(), "subscribed")
        self.socket.setblocking(False)
        assert arrivals.subscribed is not None
        if arrivals.subscribed[-1] >= 0x80:
            raise RemoteError(
                f"The broker at {self._where} refused the subscription to {wanted!r}: "
                f"reason {arrivals.subscribed[-1]:#x}."
            )

    @property
    def has_unsent(self) -> bool:
        """Return whether bytes wait for capacity in the socket."""
        return bool(self._queue)

    def send(self, content: bytes | bytearray | memoryview) -> None:
        """Queue bytes, and send as many as possible now. They must not change until they are sent."""
        self._queue.append(memoryview(content))
        self.flush()

    def flush(self) -> None:
        """Send as many bytes as possible now.

        Raises:
            Unavailable: the connection is gone.
        """
        queue = self._queue
        while queue:
            try:
                sent = self.socket.send(queue[0])
            except BlockingIOError:
                return
            except OSError as error:
                raise Unavailable(f"The connection to {self._where} broke: {error.strerror}.") from error
            if sent < len(queue[0]):
                queue[0] = queue[0][sent:]
            else:
                queue.popleft()

    def receive(self) -> tuple[int, Arrivals] | None:
        """Return the arrivals and their time; None if there are none.

        Raises:
            Unavailable: the connection is gone.
        """
        try:
            chunk = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise Unavailable(f"The connection to {self._where} broke: {error.strerror}.") from error
        now_ns = time.perf_counter_ns()
        if not chunk:
            raise Unavailable(f"The broker at {self._where} closed the connection.")
        arrivals = self._reader.feed(chunk)
        if arrivals.disconnect_reason is not None:
            raise Unavailable(
                f"The broker at {self._where} ended the connection: reason {arrivals.disconnect_reason:#x}."
            )
        return now_ns, arrivals

    def close(self) -> None:
        """Send DISCONNECT and close."""
        with contextlib.suppress(OSError):
            self.socket.send(b"\xe0\x00")
        self.socket.close()

    def _ask(self, request: bytes, answer: str) -> Arrivals:
        until_s = time.monotonic() + _HANDSHAKE_S
        try:
            self.socket.sendall(request)
            while time.monotonic() < until_s:
                chunk = self.socket.recv(RECEIVE_BYTES)
                if not chunk:
                    break
                arrivals = self._reader.feed(chunk)
                if getattr(arrivals, answer) is not None:
                    return arrivals
        except OSError as error:
            raise Unavailable(f"The broker at {self._where} did not answer ({error.strerror or error}).") from error
        raise Unavailable(f"The broker at {self._where} closed the connection instead of answering.")


def client_id(run: int, role: str, number: int) -> str:
    """Return a client id of one run. It contains the process, so a restarted worker is another client."""
    return f"load-{run:08x}-{role}-{number}-{os.getpid()}"
