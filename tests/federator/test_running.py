"""Wait of a federator between two runs: for the end or for work, whichever comes first."""

import asyncio

from hanse.federator.running import first


def test_work_that_finishes_first_returns_its_result() -> None:
    async def steps() -> None:
        ended = asyncio.Event()
        task = asyncio.create_task(asyncio.sleep(0, "found"))
        assert await first(ended, task)
        assert task.result() == "found"
        assert len(asyncio.all_tasks()) == 1, "nothing waits for the end any more"

    asyncio.run(steps())


def test_an_end_during_the_work_cancels_it() -> None:
    async def steps() -> None:
        ended = asyncio.Event()
        task = asyncio.create_task(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(ended.set)
        assert not await first(ended, task)
        assert task.cancelled()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(steps())


def test_work_that_fails_is_done_and_says_why() -> None:
    async def fail() -> None:
        raise ValueError("no way in")

    async def steps() -> None:
        task = asyncio.create_task(fail())
        assert await first(asyncio.Event(), task)
        assert str(task.exception()) == "no way in"

    asyncio.run(steps())
