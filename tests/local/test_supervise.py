"""Supervision with real brokers; the agents are stand-ins that sleep."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hanse.cli import build
from hanse.errors import LocalError, Unavailable
from hanse.local import ports, state, supervise, table
from hanse.local.client import Connection, broker_answers
from hanse.local.supervise import Federation, FederationSettings, Service, Site

pytestmark = pytest.mark.processes
DEADLINE_S = 30


def sleeper(_: Site | None) -> list[str]:
    return [sys.executable, "-S", "-c", "import signal; signal.pause()"]


async def at_once(_: Sequence[Site]) -> bool:
    return True


async def never(_: Sequence[Site]) -> bool:
    return False


def federation(tmp_path: Path, brokers: int = 2, **more: object) -> Federation:
    settings = FederationSettings(brokers, tmp_path, state_path=tmp_path / "state.json", **more)  # type: ignore[arg-type]
    return Federation(settings, sleeper, at_once)


def pids(found: state.State) -> list[int]:
    return [pid for one in found.federators for pid in (one.broker_pid, one.federator_pid) if pid is not None]


async def all_gone(of: list[int]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(state.process_start(pid) is not None for pid in of):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_sites_are_linked_by_the_overlay_and_each_link_is_opened_once(tmp_path: Path) -> None:
    sites = supervise.plan(FederationSettings(4, tmp_path, overlay="ring")).sites
    assert [len(site.neighbours_all) for site in sites] == [2, 2, 2, 2]
    dialled = [(site.link_url, url) for site in sites for url in site.neighbours]
    assert len(dialled) == 4
    assert len({site.broker_port for site in sites} | {site.link_port for site in sites}) == 8


def test_a_federation_starts_carries_messages_and_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with federation(tmp_path) as running:
            found = state.read(tmp_path / "state.json")
            assert [one.id for one in found.federators] == [0, 1]
            assert all(state.process_start(pid) for pid in pids(found))
            async with Connection(found.broker_at(1)) as subscriber, Connection(found.broker_at(1)) as publisher:
                await subscriber.subscribe(["hello/#"], qos=2)
                for qos in (0, 1, 2):
                    await publisher.publish("hello/world", b"%d" % qos, qos=qos, user_properties=[("a", "b")])
                got = []
                async for message in subscriber.messages():
                    got.append((int(message.qos), message.payload, message.user_properties))
                    if len(got) == 3:
                        break
                assert got == [(qos, b"%d" % qos, [("a", "b")]) for qos in (0, 1, 2)]
            assert running.state() == found
        assert not (tmp_path / "state.json").exists()
        await all_gone(pids(found))

    asyncio.run(run())


def test_a_killed_broker_returns_on_its_port_and_the_state_file_is_updated(tmp_path: Path) -> None:
    async def run() -> None:
        async with federation(tmp_path, 1) as running:
            before = state.read(tmp_path / "state.json")
            pid = before.federators[0].broker_pid
            assert pid
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    now = state.read(tmp_path / "state.json")
                    if now.federators[0].broker_pid not in {0, before.federators[0].broker_pid}:
                        break
                    await asyncio.sleep(0.02)
                while not await broker_answers(now.broker_at(0)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert running.brokers[0].restarts == 1
            console = Console(width=200, record=True, file=StringIO())
            shown = asyncio.create_task(table.show(running, console))
            await asyncio.sleep(0)
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)
            text = console.export_text()
            assert now.broker_at(0) in text
            assert f"{now.federators[0].broker_pid} (restarted 1 times)" in text

    asyncio.run(run())


def test_a_federation_that_does_not_converge_is_taken_down_without_a_state_file(tmp_path: Path) -> None:
    async def run() -> None:
        settings = FederationSettings(1, tmp_path, state_path=tmp_path / "state.json", converged_s=0.2)
        one = Federation(settings, sleeper, never)
        with pytest.raises(Unavailable, match="did not converge within"):
            await one.start()
        assert one.brokers[0].pid is None
        assert one.agents[0].pid is None
        assert not (tmp_path / "state.json").exists()

    asyncio.run(run())


def test_a_state_file_that_cannot_be_written_takes_everything_down(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "file").write_text("")
        settings = FederationSettings(1, tmp_path, state_path=tmp_path / "file" / "state.json")
        one = Federation(settings, sleeper, at_once)
        with pytest.raises(LocalError, match="name another with --state"):
            await one.start()
        assert one.brokers[0].pid is None
        assert one.agents[0].pid is None

    asyncio.run(run())


def test_an_agent_that_ends_is_reported_if_restarts_are_disabled(tmp_path: Path) -> None:
    async def run() -> None:
        settings = FederationSettings(1, tmp_path, restarts=False)
        one = Federation(settings, lambda _: [sys.executable, "-S", "-c", "raise SystemExit(3)"], never)
        with pytest.raises(Unavailable, match="federator 0 ended with code 3"):
            await one.start()

    asyncio.run(run())


_LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        connection, _ = server.accept()
        connection.sendall(b"agent " + sys.argv[1].encode())
        connection.close()
"""


def test_an_emulated_link_can_be_cut(tmp_path: Path) -> None:
    async def first_bytes(url: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        try:
            return await reader.read(100)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def all_listen(sites: Sequence[Site]) -> bool:
        return all(ports.answers(site.link_port) for site in sites)

    def listener(site: Site) -> list[str]:
        return [sys.executable, "-S", "-c", _LISTENER, str(site.link_port)]

    async def run() -> None:
        settings = FederationSettings(2, tmp_path, overlay="line", emulated_links=True)
        async with Federation(settings, listener, all_listen) as running:
            (url,) = running.sites[1].neighbours
            assert url != running.sites[0].link_url
            expected = f"agent {running.sites[0].link_port}".encode()
            assert await first_bytes(url) == expected
            running.links[0, 1].cut()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(first_bytes(url), 0.2)
            running.links[0, 1].restore()
            assert await first_bytes(url) == expected
        assert running.links == {}

    asyncio.run(run())


def test_services_run_beside_the_sites_and_are_named_in_the_state(tmp_path: Path) -> None:
    async def run() -> None:
        settings = FederationSettings(1, tmp_path, state_path=tmp_path / "state.json")
        manager = Service("manager", "http://127.0.0.1:1", sleeper(None))
        async with Federation(settings, sleeper, at_once, [manager]) as running:
            assert state.read(tmp_path / "state.json").manager == "http://127.0.0.1:1"
            pid = running.services[0].pid
            assert pid is not None
        await all_gone([pid])
        with pytest.raises(LocalError, match="expected one of: manager, dashboard, gateway"):
            Federation(settings, sleeper, at_once, [Service("king", "", [])])

    asyncio.run(run())


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(LocalError, match="choose another --base-port"):
            federation(tmp_path, 1, base_port=holder.getsockname()[1])


_UP = """
import asyncio, pathlib, sys
from hanse.local.supervise import Federation, FederationSettings
async def at_once(sites): return True
path = pathlib.Path(sys.argv[1])
settings = FederationSettings(1, path, state_path=path / "state.json")
sleeper = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
asyncio.run(Federation(settings, lambda site: sleeper, at_once).run())
"""


@contextmanager
def start_up(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", _UP, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": source}) as up:
        try:
            until_s = time.monotonic() + DEADLINE_S
            while not (tmp_path / "state.json").exists():
                if up.poll() is not None or time.monotonic() > until_s:
                    pytest.fail(f"no state file; code {up.returncode}")
                time.sleep(0.02)
            yield up
        finally:
            up.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_the_supervisor_ends(tmp_path: Path, number: signal.Signals) -> None:
    with start_up(tmp_path) as up:
        found = state.read(tmp_path / "state.json")
        up.send_signal(number)
        up.wait(DEADLINE_S)
    asyncio.run(all_gone(pids(found)))
    if number is signal.SIGKILL:
        assert asyncio.run(supervise.down(tmp_path / "state.json")) is False
    assert not (tmp_path / "state.json").exists()


def test_down_ends_it_and_pub_and_sub_use_the_state_file(tmp_path: Path) -> None:
    runner = CliRunner()
    words = ["--state", str(tmp_path / "state.json")]
    with start_up(tmp_path) as up:
        found = state.read(tmp_path / "state.json")
        sent = runner.invoke(build(["pub"]), ["pub", "-t", "a/b", "-m", "hi", "-r", "--at", "0", *words])
        assert sent.exit_code == 0, sent.output
        got = runner.invoke(build(["sub"]), ["sub", "-t", "a/#", "-v", "-C", "1", "-W", "20", *words])
        assert got.stdout == "a/b hi\n"
        late = runner.invoke(build(["sub"]), ["sub", "-t", "none", "-C", "1", "-W", "0.2", *words])
        assert isinstance(late.exception, Unavailable)
        both = runner.invoke(build(["pub"]), ["pub", "-t", "x", "--at", "0", "--url", "mqtt://h", *words])
        assert isinstance(both.exception, LocalError)
        assert isinstance(runner.invoke(build(["pub"]), ["pub", "-t", "x", "--at", "7", *words]).exception, LocalError)
        ended = runner.invoke(build(["down"]), ["down", *words])
        assert ended.stdout == "The federation is down.\n"
        up.wait(DEADLINE_S)
    asyncio.run(all_gone(pids(found)))


def test_a_wrong_filter_and_an_absent_broker_give_different_errors(tmp_path: Path) -> None:
    async def run() -> None:
        async with federation(tmp_path, 1) as running:
            url = running.sites[0].broker_url
            async with Connection(url) as connection:
                with pytest.raises(LocalError, match="must fill a level"):
                    await connection.subscribe(["a/#/b"])
                with pytest.raises(LocalError, match="must not be empty"):
                    await connection.publish("a/#", b"")
        assert not await broker_answers(url)
        with pytest.raises(Unavailable, match="No broker answers"):
            async with Connection(url):
                pass
        with pytest.raises(LocalError, match="expected mqtt://host:port"):
            Connection("http://x")

    asyncio.run(run())
