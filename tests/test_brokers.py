import socket

import pytest
from tests.brokers import Mosquitto

from hanse.errors import Unavailable


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.processes
def test_a_broker_keeps_its_port_over_a_kill_and_leaves_nothing_behind() -> None:
    with Mosquitto() as broker:
        first = broker.pid
        broker.kill()
        assert not is_open(broker.port)
        broker.start()
        assert is_open(broker.port)
        assert broker.pid != first
    assert not is_open(broker.port)
    assert not broker.directory.exists()


@pytest.mark.processes
def test_a_wrong_configuration_is_reported_with_the_log() -> None:
    broker = Mosquitto("no_such_option 1")
    with pytest.raises(Unavailable, match="no_such_option"), broker:
        pass
    assert not broker.directory.exists()
