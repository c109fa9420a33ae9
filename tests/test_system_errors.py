"""Plain words for errors of the system."""

import asyncio
import socket

import pytest

from hanse.local import ports
from hanse.system_errors import reason


def test_a_refused_connection_is_named_without_the_notation_of_python() -> None:
    with pytest.raises(ConnectionRefusedError) as caught:
        asyncio.run(asyncio.open_connection("127.0.0.1", ports.free(1)[0]))
    assert reason(caught.value) == "Connection refused"


def test_errors_of_files_and_of_names_are_named() -> None:
    assert reason(FileNotFoundError(2, "No such file or directory", "gateway.json")) == "No such file or directory"
    assert reason(ConnectionResetError(104, "x")) == "Connection reset by peer"
    assert reason(socket.gaierror(-2, "Name or service not known")) == "Name or service not known"
    assert reason(OSError("something")) == "something"
