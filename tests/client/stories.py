"""Stories for the tests of the client: each runs in an event loop, with a deadline for every wait."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from hanse.client import BackoffSettings, Message

DEADLINE_S = 20.0
QUICK = BackoffSettings(first_s=0.02, max_s=0.2)

Story = Callable[[], Coroutine[Any, Any, None]]


def run(story: Story, within_s: float = 2 * DEADLINE_S) -> None:
    asyncio.run(asyncio.wait_for(story(), within_s))


async def until(condition: Callable[[], object], what: str | Callable[[], str], within_s: float = DEADLINE_S) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline, f"not within {within_s} s: {what if isinstance(what, str) else what()}"
        await asyncio.sleep(0.005)


async def take(stream: AsyncIterator[Message], count: int) -> list[Message]:
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(stream) for _ in range(count)]
