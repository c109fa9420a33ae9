"""A federator whose host broker does not answer: what it logs."""

import socket
import threading
from pathlib import Path

import pytest
from tests.brokers import Mosquitto
from tests.federation import eventually
from tests.federators import LOG_LINES, Federator

pytestmark = pytest.mark.processes


class NoBroker:
    """A server that accepts each connection and closes it without an answer."""

    def __init__(self) -> None:
        self.accepted = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.recv(1_000)
            connection.close()
            self.accepted += 1

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def test_a_wrong_port_of_the_host_broker_is_one_warning_for_many_attempts(tmp_path: Path) -> None:
    server = NoBroker()
    federator = Federator(0, f"mqtt://127.0.0.1:{server.port}", tmp_path)
    try:
        federator.start()
        eventually(lambda: server.accepted >= 5, "five attempts")
    finally:
        federator.end()
        server.close()
    assert _warnings(federator) == 1, federator.log


def test_a_host_broker_that_goes_away_again_is_another_warning(tmp_path: Path) -> None:
    with Mosquitto(*LOG_LINES) as broker:
        federator = Federator(0, broker.url, tmp_path)
        try:
            federator.start()
            for times in (1, 2):
                eventually(lambda: federator.health() is not None, "connected")
                broker.restart()
                eventually(lambda times=times: _warnings(federator) >= times, "a warning")  # type: ignore[misc]
            eventually(lambda: federator.health() is not None, "connected again")
        finally:
            federator.end()


def _warnings(federator: Federator) -> int:
    return sum("WARN" in line and "host broker" in line for line in federator.log.splitlines())
