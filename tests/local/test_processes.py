import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hanse.errors import LocalError, Unavailable
from hanse.local import ports, state
from hanse.local.processes import ProcessSettings, SupervisedProcess

pytestmark = pytest.mark.processes
DEADLINE_S = 20
QUICK = ProcessSettings(back_off_s=0.01, back_off_s_max=0.05, grace_s=2)


def python(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def process(tmp_path: Path, text: str, settings: ProcessSettings = QUICK) -> SupervisedProcess:
    return SupervisedProcess("stand-in", python(text), tmp_path / "output.log", settings)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition lies outside this event loop
            await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    return state.process_start(pid) is None


def test_ready_means_that_the_condition_holds(tmp_path: Path) -> None:
    async def run() -> None:
        mark = tmp_path / "ready"
        one = process(tmp_path, f"open({str(mark)!r}, 'w'); import signal; signal.pause()")

        async def is_marked() -> bool:
            return mark.exists()

        await one.start()
        await one.wait_ready(is_marked, DEADLINE_S)
        pid = one.pid
        assert pid is not None
        await one.stop()
        assert is_gone(pid)
        assert one.pid is None

    asyncio.run(run())


def test_output_beyond_the_limit_is_kept_once_and_the_file_is_emptied(tmp_path: Path) -> None:
    async def run() -> None:
        settings = ProcessSettings(restarts=False, output_bytes_max=1000, check_s=0.01)
        lines = "import time\nfor n in range(400):\n print(n, 'x' * 20, flush=True); time.sleep(0.002)\n"
        one = process(tmp_path, lines + "print('the end', flush=True)", settings)
        await one.start()
        await until(lambda: one.pid is None)
        kept = (tmp_path / "output.log.1").stat().st_size
        assert kept >= 1000
        assert (tmp_path / "output.log").read_text().endswith("the end\n")
        assert (tmp_path / "output.log").stat().st_size + kept < 400 * 23
        await one.stop()

    asyncio.run(run())


def test_a_process_that_never_becomes_ready_is_reported_with_its_output(tmp_path: Path) -> None:
    async def run() -> None:
        async def never() -> bool:
            return False

        one = process(tmp_path, "raise SystemExit('the port is taken')", ProcessSettings(restarts=False))
        await one.start()
        with pytest.raises(Unavailable, match=r"(?s)ended with code 1 before it was ready.*the port is taken"):
            await one.wait_ready(never, DEADLINE_S)
        await one.stop()
        other = process(tmp_path, "import signal; signal.pause()")
        await other.start()
        with pytest.raises(Unavailable, match=r"not ready within 0\.1 s"):
            await other.wait_ready(never, 0.1)
        await other.stop()

    asyncio.run(run())


def test_a_killed_process_is_restarted_only_if_configured(tmp_path: Path) -> None:
    async def run() -> None:
        kept = process(tmp_path, "import signal; signal.pause()")
        once = process(tmp_path, "import signal; signal.pause()", ProcessSettings(restarts=False))
        await kept.start()
        await once.start()
        first = kept.pid
        await kept.kill()
        await once.kill()
        await until(lambda: kept.pid is not None and kept.pid != first)
        assert kept.restarts == 1
        assert once.pid is None
        assert once.returncode == -signal.SIGKILL
        await kept.stop()
        await once.stop()

    asyncio.run(run())


def test_a_process_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    async def run() -> None:
        mark = tmp_path / "child"
        text = (
            "import signal, subprocess, sys, pathlib\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "child = subprocess.Popen([sys.executable, '-S', '-c', 'import signal; signal.pause()'])\n"
            f"pathlib.Path({str(mark)!r}).write_text(str(child.pid))\n"
            "signal.pause()\n"
        )
        one = process(tmp_path, text, ProcessSettings(grace_s=0.2))
        await one.start()
        await until(lambda: mark.exists() and bool(mark.read_text()))
        child = int(mark.read_text())
        pid = one.pid
        assert pid is not None
        await one.stop()
        assert is_gone(pid)
        await until(lambda: is_gone(child))

    asyncio.run(run())


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    supervisor = f"""
import asyncio, pathlib, sys
from hanse.local.processes import SupervisedProcess
async def main():
    output = pathlib.Path({str(tmp_path)!r}) / "o"
    one = SupervisedProcess("x", [sys.executable, "-S", "-c", "import signal; signal.pause()"], output)
    await one.start()
    pathlib.Path({str(mark)!r}).write_text(str(one.pid))
    await asyncio.sleep(60)
asyncio.run(main())
"""
    source = str(Path(__file__).parents[2] / "src")
    with subprocess.Popen([sys.executable, "-c", supervisor], env={**os.environ, "PYTHONPATH": source}) as parent:

        async def run() -> None:
            await until(lambda: mark.exists() and bool(mark.read_text()))
            parent.kill()
            child = int(mark.read_text())
            await until(lambda: is_gone(child))

        try:
            asyncio.run(run())
        finally:
            parent.kill()


def test_a_program_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    async def run() -> None:
        one = SupervisedProcess("ghost", ["/no/such/program"], tmp_path / "o", QUICK)
        with pytest.raises(LocalError, match="ghost could not be started"):
            await one.start()
        await one.stop()

    asyncio.run(run())


def test_starting_twice_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        one = process(tmp_path, "import signal; signal.pause()")
        await one.start()
        with pytest.raises(LocalError, match="started already"):
            await one.start()
        await one.stop()

    asyncio.run(run())


def test_free_ports_differ_and_a_taken_one_is_refused() -> None:
    some = ports.free(20)
    assert len(set(some)) == 20
    ports.require_free(some)
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert ports.answers(port)
        with pytest.raises(LocalError, match=f"Port {port} .* is not free"):
            ports.require_free([port])
    with pytest.raises(LocalError, match="1 to 65535"):
        ports.require_free([70_000])
