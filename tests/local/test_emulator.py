"""The schedule, tested without a clock, and the emulator, tested over real loopback connections."""

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from hanse.errors import LocalError
from hanse.local import emulator_control
from hanse.local.emulator import Conditions, Direction, LinkEmulator, Schedule

DEADLINE_S = 10


def test_bytes_arrive_after_the_delay() -> None:
    schedule = Schedule(random.Random(1))
    assert schedule.due_s(10.0, 100, Conditions(delay_s=0.5)) == 10.5
    assert schedule.due_s(10.1, 100, Conditions(delay_s=0.5)) == 10.6


def test_a_shorter_delay_does_not_overtake() -> None:
    schedule = Schedule(random.Random(1))
    assert schedule.due_s(10.0, 100, Conditions(delay_s=5)) == 15
    assert schedule.due_s(11.0, 100, Conditions()) == 15


def test_bandwidth_makes_chunks_wait_for_each_other() -> None:
    schedule = Schedule(random.Random(1))
    narrow = Conditions(bytes_per_s=1000, delay_s=1)
    assert [schedule.due_s(0.0, 500, narrow) for _ in range(3)] == [1.5, 2.0, 2.5]
    assert schedule.due_s(100.0, 500, narrow) == 101.5


def test_jitter_is_bounded_keeps_order_and_repeats_with_its_seed() -> None:
    def drawn() -> list[float]:
        schedule = Schedule(random.Random(7))
        return [schedule.due_s(float(k), 1, Conditions(delay_s=1, jitter_s=3)) for k in range(200)]

    due = drawn()
    assert due == drawn()
    assert due == sorted(due)
    assert all(k + 1 <= at <= k + 4 for k, at in enumerate(due))
    assert len(set(due)) > 100


@pytest.mark.parametrize("wrong", [{"delay_s": -1}, {"jitter_s": -0.1}, {"bytes_per_s": 0}])
def test_impossible_conditions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(LocalError, match="at least 0"):
        Conditions(**wrong)  # type: ignore[arg-type]


@asynccontextmanager
async def echo_through_emulator() -> AsyncIterator[LinkEmulator]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            await close(writer)
            echoing.discard(writer)

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        echoing.add(writer)
        await echo(reader, writer)

    echoing: set[asyncio.StreamWriter] = set()
    server = await asyncio.start_server(note, "127.0.0.1", 0)
    emulator = LinkEmulator("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with emulator:
            yield emulator
        await eventually(lambda: not echoing)
    finally:
        server.close()
        await server.wait_closed()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition lies outside this event loop
            await asyncio.sleep(0.005)


def with_emulator(body: Callable[[LinkEmulator], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(4 * DEADLINE_S), echo_through_emulator() as emulator:
            await body(emulator)

    asyncio.run(run())


async def dial(emulator: LinkEmulator) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", emulator.port)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@pytest.mark.processes
def test_bytes_pass_unchanged_and_the_end_is_passed_on() -> None:
    async def body(emulator: LinkEmulator) -> None:
        reader, writer = await dial(emulator)
        sent = random.Random(3).randbytes(9_000_000)  # more than the buffer of one direction
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        assert emulator.bytes_passed(Direction.FORWARD) == emulator.bytes_passed(Direction.BACKWARD) == len(sent)
        await close(writer)
        await eventually(lambda: emulator.connections == 0)

    with_emulator(body)


@pytest.mark.processes
def test_a_round_trip_takes_both_delays() -> None:
    async def body(emulator: LinkEmulator) -> None:
        emulator.shape(delay_s=0.05)
        emulator.shape(Direction.BACKWARD, delay_s=0.1, jitter_s=0.01)
        reader, writer = await dial(emulator)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        assert loop.time() - began_s >= 0.149  # only a lower bound, because load can make it longer
        await close(writer)

    with_emulator(body)


@pytest.mark.processes
def test_a_narrow_link_limits_throughput() -> None:
    async def body(emulator: LinkEmulator) -> None:
        emulator.shape(Direction.FORWARD, bytes_per_s=100_000)
        reader, writer = await dial(emulator)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        writer.write(bytes(20_000))
        await reader.readexactly(20_000)
        assert loop.time() - began_s >= 0.199
        emulator.shape(Direction.FORWARD, bytes_per_s=0)
        assert emulator.conditions(Direction.FORWARD).bytes_per_s is None
        await close(writer)

    with_emulator(body)


@pytest.mark.processes
def test_a_cut_holds_bytes_and_a_restored_link_delivers_them() -> None:
    async def body(emulator: LinkEmulator) -> None:
        reader, writer = await dial(emulator)
        writer.write(b"before")
        await reader.readexactly(6)
        emulator.cut()
        writer.write(b"during")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.2)
        assert emulator.bytes_passed(Direction.FORWARD) == 6
        emulator.restore()
        assert await reader.readexactly(6) == b"during"
        await close(writer)

    with_emulator(body)


@pytest.mark.processes
def test_a_cut_in_one_direction_leaves_the_other_open() -> None:
    async def body(emulator: LinkEmulator) -> None:
        reader, writer = await dial(emulator)
        writer.write(b"x")
        await reader.readexactly(1)
        emulator.cut(Direction.BACKWARD)
        writer.write(b"heard, not answered")
        await eventually(lambda: emulator.bytes_passed(Direction.FORWARD) == 20)
        assert emulator.bytes_passed(Direction.BACKWARD) == 1
        emulator.restore()
        assert await reader.readexactly(19) == b"heard, not answered"
        await close(writer)

    with_emulator(body)


@pytest.mark.processes
def test_a_reset_breaks_connections_and_refuses_new_ones_until_restored() -> None:
    async def body(emulator: LinkEmulator) -> None:
        reader, writer = await dial(emulator)
        writer.write(b"x")
        await reader.readexactly(1)
        await emulator.reset()
        try:
            ended = await reader.read(1)
        except ConnectionError:
            ended = b""
        assert ended == b""
        await close(writer)
        reader, writer = await dial(emulator)
        with suppress(ConnectionError):
            assert await reader.read(1) == b""
        await close(writer)
        assert emulator.connections_refused == 1
        emulator.restore()
        reader, writer = await dial(emulator)
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        await close(writer)

    with_emulator(body)


@pytest.mark.processes
def test_a_target_that_does_not_answer_closes_the_connection() -> None:
    async def run() -> None:
        from hanse.local.ports import free

        async with asyncio.timeout(DEADLINE_S), LinkEmulator("127.0.0.1", free(1)[0]) as emulator:
            reader, writer = await dial(emulator)
            with suppress(ConnectionError):
                assert await reader.read(1) == b""
            await close(writer)

    asyncio.run(run())


@pytest.mark.processes
def test_control_lines_are_executed_and_answered() -> None:
    async def body(emulator: LinkEmulator) -> None:
        server = await emulator_control.serve(emulator)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])

        async def ask(line: str) -> str:
            writer.write(line.encode() + b"\n")
            return (await reader.readline()).decode().strip()

        for line in ("delay 20ms", "jitter 1.5s backward", "bandwidth 1000 forward", "cut forward"):
            answer = await ask(line)
            assert answer.startswith("ok ")
        shown = json.loads(answer.removeprefix("ok "))
        assert shown["forward"] == {
            "delay_s": 0.02,
            "jitter_s": 0.0,
            "bytes_per_s": 1000,
            "is_cut": True,
            "bytes_passed": 0,
        }
        assert shown["backward"]["jitter_s"] == 1.5
        assert '"is_cut": true' not in await ask("restore")
        for wrong in ("", "explode", "delay fast", "delay", "cut sideways", "bandwidth -1"):
            assert (await ask(wrong)).startswith("error Expected" if wrong in {"", "explode", "delay"} else "error ")
        await close(writer)
        server.close()
        await server.wait_closed()

    with_emulator(body)


@pytest.mark.processes
def test_the_command_prints_its_address_and_obeys_control_lines() -> None:
    async def body(emulator: LinkEmulator) -> None:
        # The echo behind one emulator is the target of a second one, which runs as a command.
        source = str(Path(__file__).parents[2] / "src")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from hanse.cli import main; main()",
            "link-emulator",
            "--target",
            f"127.0.0.1:{emulator.port}",
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": source},
        )
        try:
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            found = re.fullmatch(r"link 127\.0\.0\.1:(\d+) -> .*, control 127\.0\.0\.1:(\d+)\n", line)
            assert found is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            answers, control = await asyncio.open_connection("127.0.0.1", int(found[2]))
            control.write(b"show\n")
            shown = json.loads((await answers.readline()).removeprefix(b"ok "))
            assert shown["forward"]["bytes_passed"] == 5
            await close(writer)
            await close(control)
        finally:
            process.terminate()
            await process.communicate()

    with_emulator(body)


def test_a_narrow_link_with_a_small_buffer_blocks_its_sender() -> None:
    async def talk() -> None:
        async with echo_through_emulator() as emulator:
            emulator.set_buffer(16 * 1024)
            emulator.shape(bytes_per_s=1_000)
            _, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
            writer.write(b"x" * 50_000_000)
            await eventually(lambda: emulator.bytes_passed(Direction.FORWARD) > 0)
            # The sender's own kernel buffer does not belong to the link.
            assert emulator.bytes_passed(Direction.FORWARD) < 16 * 1024
            assert writer.transport.get_write_buffer_size() > 30_000_000
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
            with pytest.raises(LocalError, match="1 or more"):
                emulator.set_buffer(0)

    asyncio.run(talk())
