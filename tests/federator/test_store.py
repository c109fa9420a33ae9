import asyncio
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.federator.store import NO_EPOCH, SAVE_EVERY_S, StateDirectory, save_again
from hanse.interest import InterestRegistry, Subscribed
from hanse.protocol.settings import EPOCH_MAX


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "7"


def test_a_new_directory_knows_nothing(path: Path) -> None:
    with StateDirectory(path) as state:
        assert state.read_epoch() == NO_EPOCH
        assert state.read_interest() is None
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("epoch", [0, 1_731_000_000, EPOCH_MAX])
def test_the_epoch_survives_a_restart(path: Path, epoch: int) -> None:
    with StateDirectory(path) as state:
        state.write_epoch(1)
        state.write_epoch(epoch)
    with StateDirectory(path) as state:
        assert state.read_epoch() == epoch


def test_the_epoch_is_on_disk_before_the_call_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, replace = os.fsync, Path.replace

    def seen_sync(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink().name
        order.append(f"sync {target}")
        sync(descriptor)

    def seen_replace(self: Path, target: Path) -> Path:
        order.append(f"rename {self.name} {target.name}")
        return replace(self, target)

    with StateDirectory(path) as state:
        monkeypatch.setattr(os, "fsync", seen_sync)
        monkeypatch.setattr(Path, "replace", seen_replace)
        state.write_epoch(5)
        assert order == ["sync epoch.new", "rename epoch.new epoch", "sync 7"]


@pytest.mark.parametrize("content", [b"", b"x", b"-1\n", b"12 13", b"1.5", b"9" * 33, b"\xff\x00", b"281474976710656"])
def test_a_damaged_epoch_is_put_aside_with_a_warning(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with StateDirectory(path) as state:
        (path / "epoch").write_bytes(content)
        with caplog.at_level(logging.WARNING):
            assert state.read_epoch() == NO_EPOCH
        assert "damaged" in caplog.text
        assert (path / "epoch.damaged").read_bytes() == content
        assert not (path / "epoch").exists()
        state.write_epoch(3)
        assert state.read_epoch() == 3


def test_an_interrupted_write_leaves_the_old_epoch(path: Path) -> None:
    with StateDirectory(path) as state:
        state.write_epoch(7)
        (path / "epoch.new").write_bytes(b"8")  # killed before the rename
        assert state.read_epoch() == 7
        state.write_epoch(9)
        assert state.read_epoch() == 9


def test_interest_survives_a_restart(path: Path) -> None:
    before = InterestRegistry()
    before.apply(0, "beacon", [Subscribed("a", "t/+", 1)])
    with StateDirectory(path) as state:
        state.write_interest(before.dump(0, 100))
    after = InterestRegistry()
    with StateDirectory(path) as state:
        document = state.read_interest()
    assert document is not None
    assert after.load(0, 110, document).added == (("t/+", 1),)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_damaged_interest_is_put_aside(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with StateDirectory(path) as state:
        (path / "interest.json").write_bytes(content)
        assert state.read_interest() is None
        assert "damaged" in caplog.text
        assert (path / "interest.json.damaged").exists()
        assert state.read_interest() is None


def test_useless_interest_can_be_dropped(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StateDirectory(path) as state:
        state.write_interest({"version": 99})
        state.drop_interest("version 99")
        assert state.read_interest() is None
        state.drop_interest("nothing there: harmless")
    assert "damaged" in caplog.text


def test_two_federators_do_not_share_a_directory(path: Path) -> None:
    words = f"in use by the process {os.getpid()}; .*--state-dir"
    with StateDirectory(path), pytest.raises(LocalError, match=words):
        StateDirectory(path)
    with StateDirectory(path) as again:
        again.close()
        StateDirectory(path).close()


@pytest.mark.processes
def test_a_killed_federator_does_not_keep_its_directory(path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from hanse.federator.store import StateDirectory\n"
        "state = StateDirectory(Path(sys.argv[1])); state.write_epoch(41); print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(LocalError, match=str(process.pid)):
            StateDirectory(path)
    finally:
        process.kill()
        process.communicate()
    with StateDirectory(path) as state:
        assert state.read_epoch() == 41


def test_a_path_that_is_not_a_directory_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(LocalError, match=r"file.*--state-dir"):
        StateDirectory(file)
    with pytest.raises(LocalError, match="--state-dir"):
        StateDirectory(file / "below")


def test_a_refusing_disk_is_an_error_for_the_operator(path: Path) -> None:
    with StateDirectory(path) as state:
        (path / "epoch.new").mkdir()
        with pytest.raises(LocalError, match="check space and rights"):
            state.write_epoch(1)
        (path / "epoch").mkdir()
        with pytest.raises(LocalError, match="check its rights"):
            state.read_epoch()
        (path / "interest.json.new").mkdir()
        with pytest.raises(LocalError, match="check space and rights"):
            state.write_interest({})


def test_slow_saves_are_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    saved: list[str] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    def slow() -> None:
        saved.append("slow")
        if len(saved) == 1:
            time.sleep(0.02)  # as a disk would

    monkeypatch.setattr(asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(save_again(slow, lambda: saved.append("quick")))
    assert saved == ["slow", "quick"] * 2
    assert pauses[0] == SAVE_EVERY_S
    assert pauses[1] >= 20 * 0.02
    assert pauses[2] < pauses[1]
