import os
import signal
from pathlib import Path

import pytest
from tests.brokers import Mosquitto, free_port
from tests.pipeline.publishing import publish, wait_for

from hanse.errors import LocalError, Unavailable
from hanse.pipeline.collector_settings import CollectorSettings
from hanse.pipeline.collector_status import read_status
from hanse.pipeline.sources.helper import CollectorHelper
from hanse.pipeline.spool import SpoolReader

pytestmark = pytest.mark.processes


def settings(url: str, spool: Path, **more: str) -> CollectorSettings:
    return CollectorSettings(url=url, topics=("t/#",), spool=str(spool), client_id="c", **more)  # type: ignore[arg-type]


def state(spool: Path) -> str | None:
    status = read_status(spool, "c")
    return None if status is None else status.state


def pid_of(helper: CollectorHelper) -> int:
    assert helper._process is not None
    return helper._process.pid


def test_a_killed_helper_is_restarted_and_stops_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse.pipeline.sources.helper._RESTART_INTERVAL_S", 0.0)
    with Mosquitto("max_queued_messages 0") as broker:
        helper = CollectorHelper(settings(broker.url, tmp_path))
        try:
            helper.ensure_running()
            wait_for("collecting", lambda: state(tmp_path) == "collecting")
            os.kill(pid_of(helper), signal.SIGKILL)
            publish(broker.url, [("t/a", b"1")])
            wait_for("another", lambda: _restarted(helper))
            helper.wait_until_settled(quiet_s=0.2)
            assert SpoolReader(tmp_path, "c").tail().rows == 1
        finally:
            helper.stop()
        assert state(tmp_path) is None


def _restarted(helper: CollectorHelper) -> bool:
    helper.ensure_running()
    return helper.restarts == 1


def test_the_password_is_on_no_command_line_and_in_no_environment(tmp_path: Path) -> None:
    helper = CollectorHelper(settings(f"mqtt://127.0.0.1:{free_port()}", tmp_path, username="u", password="s3cret-9"))
    try:
        helper.ensure_running()
        own = Path("/proc") / str(pid_of(helper))
        wait_for("its own command line", lambda: b"hanse.pipeline.collector" in (own / "cmdline").read_bytes())
        wait_for("its attempt", lambda: state(tmp_path) == "connecting")
        assert b"s3cret-9" not in (own / "cmdline").read_bytes() + (own / "environ").read_bytes()
    finally:
        helper.stop()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cret-9" not in path.read_bytes()


def test_an_unreachable_broker_is_reported_after_the_deadline(tmp_path: Path) -> None:
    helper = CollectorHelper(settings(f"mqtt://127.0.0.1:{free_port()}", tmp_path))
    try:
        with pytest.raises(Unavailable, match=r"was not subscribed within 3 s: .*cannot be reached"):
            helper.wait_until_settled(quiet_s=0.1, deadline_s=3)
    finally:
        helper.stop()


def test_a_refused_login_is_a_local_error(tmp_path: Path) -> None:
    with Mosquitto(anonymous=False) as broker:
        helper = CollectorHelper(settings(broker.url, tmp_path, username="u", password="wrong"))
        try:
            with pytest.raises(LocalError, match=r"The collector of mqtt://.* stopped: .*refused the session"):
                helper.wait_until_settled(deadline_s=20)
        finally:
            helper.stop()


def test_a_second_helper_on_the_same_spool_waits_and_takes_over(tmp_path: Path) -> None:
    with Mosquitto("max_queued_messages 0") as broker:
        first, second = (CollectorHelper(settings(broker.url, tmp_path)) for _ in range(2))
        try:
            first.ensure_running()
            wait_for("collecting", lambda: state(tmp_path) == "collecting")
            second.ensure_running()
            first.stop()
            wait_for("the second", lambda: _pid(tmp_path) == pid_of(second) and state(tmp_path) == "collecting")
        finally:
            first.stop()
            second.stop()


def _pid(spool: Path) -> int | None:
    status = read_status(spool, "c")
    return None if status is None else status.pid
