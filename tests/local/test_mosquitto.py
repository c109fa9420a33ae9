import socket
import subprocess
import time
from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.local import mosquitto, ports
from hanse.local.mosquitto import BrokerSettings


def test_the_configuration_is_bounded_persistent_and_on_the_loopback(tmp_path: Path) -> None:
    lines = mosquitto.configuration(BrokerSettings(18830, tmp_path, extra=("max_keepalive 60",))).splitlines()
    assert lines[0] == "listener 18830 127.0.0.1"
    assert {
        "max_inflight_messages 20000",
        "persistence true",
        "autosave_interval 30",
        "set_tcp_nodelay true",
        "log_dest topic",
        "log_type subscribe",
        "log_type unsubscribe",
        "log_type notice",
        "max_keepalive 60",
    } <= set(lines)
    limits = [int(line.split()[1]) for line in lines if line.startswith("max_queued")]
    assert len(limits) == 2
    assert all(limit > 0 for limit in limits)  # 0 would mean no limit


def test_mosquitto_listens_on_a_unix_socket_unless_the_path_is_too_long(tmp_path: Path) -> None:
    lines = mosquitto.configuration(BrokerSettings(18830, Path("/srv/b"))).splitlines()
    assert "listener 0 /srv/b/mosquitto.sock" in lines
    long = BrokerSettings(18830, tmp_path / ("d" * 100))
    assert not [line for line in mosquitto.configuration(long).splitlines() if line.startswith("listener 0")]


def test_mosquitto_listens_for_websockets_only_if_configured(tmp_path: Path) -> None:
    without = mosquitto.configuration(BrokerSettings(18830, tmp_path)).splitlines()
    assert "protocol websockets" not in without
    lines = mosquitto.configuration(BrokerSettings(18830, tmp_path, lane_port=18831)).splitlines()
    at = lines.index("listener 18831 127.0.0.1")
    assert lines[at + 1 : at + 3] == ["protocol websockets", "socket_domain ipv4"]
    assert at > lines.index("listener 18830 127.0.0.1")


def test_the_websocket_listener_accepts_connections_to_its_own_address_only(tmp_path: Path) -> None:
    port, lane_port = ports.free(2)
    settings = BrokerSettings(port, tmp_path, lane_port=lane_port)
    with subprocess.Popen(mosquitto.command(settings), stderr=subprocess.DEVNULL) as broker:
        try:
            deadline = time.monotonic() + 20
            while not (ports.answers(port) and ports.answers(lane_port)):
                assert broker.poll() is None, "Mosquitto ended"
                assert time.monotonic() < deadline, "Mosquitto does not listen"
                time.sleep(0.02)
            # The whole of 127.0.0.0/8 is this machine: a listener on all interfaces would accept these.
            for listening in (port, lane_port):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.2", listening), timeout=5).close()
        finally:
            broker.terminate()


def test_websocket_support_is_detected_from_the_program(tmp_path: Path) -> None:
    assert mosquitto.has_websockets(mosquitto.find_program())
    (tmp_path / "plain").write_bytes(b"a program without")
    assert not mosquitto.has_websockets(str(tmp_path / "plain"))
    assert not mosquitto.has_websockets(str(tmp_path / "none"))


def test_a_missing_mosquitto_is_reported_with_install_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANSE_MOSQUITTO", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(mosquitto, "_OTHER_PLACES", ())
    with pytest.raises(LocalError, match="apt install mosquitto"):
        mosquitto.find_program()


def test_a_configured_program_that_does_not_exist_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_MOSQUITTO", "/no/such/program")
    with pytest.raises(LocalError, match="HANSE_MOSQUITTO"):
        mosquitto.find_program()


def test_mosquitto_is_found_outside_an_ordinary_users_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANSE_MOSQUITTO", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert Path(mosquitto.find_program()).name == "mosquitto"


def test_a_directory_with_a_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="has a space"):
        mosquitto.write_configuration(BrokerSettings(1, tmp_path / "a b"))
