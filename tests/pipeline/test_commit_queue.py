import asyncio
import time

from hanse.pipeline.commit_queue import CommitQueue


def queue(interval_s: float = 0.01, bytes_max: int = 10) -> CommitQueue[bytes]:
    return CommitQueue(len, interval_s=interval_s, bytes_max=bytes_max)


def test_a_commit_takes_the_oldest_up_to_its_size_and_leaves_the_rest_in_order() -> None:
    waiting = queue()
    waiting.add([b"aaaa", b"bbbb", b"cccc", b"d"])
    assert waiting.take() == ([b"aaaa", b"bbbb", b"cccc"], 12)
    assert (len(waiting), waiting.bytes) == (1, 13)
    waiting.done(12)
    assert waiting.take() == ([b"d"], 1)
    assert not waiting
    waiting.done(1)
    assert waiting.bytes == 0


def test_an_item_larger_than_a_commit_is_committed_alone() -> None:
    waiting = queue()
    waiting.add([b"x" * 100, b"y"])
    assert waiting.take() == ([b"x" * 100], 100)


def test_a_full_commit_does_not_wait_and_a_smaller_one_waits_for_the_interval() -> None:
    async def drive() -> tuple[float, float]:
        waiting = queue(interval_s=0.3)
        waiting.add([b"x" * 10])
        began = time.monotonic()
        await waiting.gather()
        at_once = time.monotonic() - began
        waiting.take()
        waiting.done(10)
        waiting.add([b"x"])
        began = time.monotonic()
        await waiting.gather()
        return at_once, time.monotonic() - began

    at_once, later = asyncio.run(drive())
    assert at_once < 0.25
    assert later >= 0.29


def test_a_waiting_writer_is_woken_by_items_and_by_wake() -> None:
    async def drive(*, by_rows: bool) -> None:
        waiting = queue()
        task = asyncio.create_task(waiting.wait_for_some())
        await asyncio.sleep(0)
        assert not task.done()
        if by_rows:
            waiting.add([b"x"])
        else:
            waiting.wake()
        async with asyncio.timeout(0.5):
            await task

    asyncio.run(drive(by_rows=True))
    asyncio.run(drive(by_rows=False))
