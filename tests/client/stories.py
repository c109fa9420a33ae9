"""Stories for the tests of the client: each runs in an event loop, with a deadline for every wait."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from hanse.client import BackoffSettings, Message

DEADLINE_S = 20.0
QUICK = BackoffSettings(first_s=0.02, max_s=0.2)

Story = Callable[[], Coroutine[Any, Any, None]]


def run(story: Story) -> None:
    asyncio.run(asyncio.wait_for(story(), 2 * DEADLINE_S))


async def until(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, f"not within {DEADLINE_S} s: {what if isinstance(what, str) else what()}"
        await asyncio.sleep(0.005)


async def take(stream: AsyncIterator[Message], count: int) -> list[Message]:
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(stream) for _ in range(count)]
