"""Brokers other than Mosquitto start, keep their state over a kill, and leave nothing behind."""

import socket
import subprocess
from pathlib import Path

import pytest
from tests.federation import Client

from hanse.errors import LocalError, Unavailable
from hanse.interest import vendor
from hanse.local import foreign
from hanse.local.foreign import answers
from hanse.local.nats import Nats
from hanse.local.rabbitmq import Rabbitmq

pytestmark = pytest.mark.processes


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("make", [Nats, pytest.param(Rabbitmq, marks=pytest.mark.slow)])
def test_a_broker_keeps_port_and_retained_messages_and_leaves_nothing_behind(make: type[Nats | Rabbitmq]) -> None:
    with make() as broker:
        first = broker.pids
        with Client(broker.port, version=4) as client:
            client.publish("kept", b"x", 1, retain=True)
        broker.stop()
        assert not is_open(broker.port)
        broker.start()
        second = broker.pids
        assert not set(first) & set(second)
        with Client(broker.port, version=4) as client:
            client.subscribe("kept", 1)
            assert client.expect(1)[0].retain
        with pytest.raises(LocalError, match="is already running"):
            broker.start()
    assert not is_open(broker.port)
    assert not broker.directory.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*first, *second))
    left = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(broker.directory).encode() in words for words in left)


def test_a_broker_that_does_not_start_is_reported_with_its_output() -> None:
    broker = Nats("no_such_option: 1")
    with pytest.raises(Unavailable, match="no_such_option"), broker:
        pass
    assert not broker.directory.exists()


def test_a_directory_given_by_the_caller_is_kept(tmp_path: Path) -> None:
    with Nats(directory=tmp_path / "mine") as broker:
        assert answers(broker.port)
    assert (tmp_path / "mine" / "nats.conf").exists()


def test_a_missing_program_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_OTHER_PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LocalError, match="apt install nats-server"):
        foreign.find("nats-server", "nats-server")


def test_nats_accepts_its_generated_configuration(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(vendor.lines("nats").replace("/var/lib/nats", str(tmp_path)), encoding="utf-8")
    checked = subprocess.run(
        [foreign.find("nats-server", "nats-server"), "-t", "-c", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
