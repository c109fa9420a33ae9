import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from hanse.errors import Unavailable
from hanse.topology.events import QUEUE_MAX, RING_MAX, WATCHERS_MAX, EventLog


async def take(stream: AsyncIterator[str], count: int) -> list[str]:
    return [await asyncio.wait_for(anext(stream), 5) for _ in range(count)]


def test_an_event_has_the_form_of_server_sent_events() -> None:
    async def main() -> None:
        log = EventLog()
        stream = log.watch(None)
        assert (await take(stream, 1)) == ["retry: 1000\n\n"]
        log.tell("gone", 7, {"id": 3, "cause": "a\nb"})
        text = (await take(stream, 1))[0]
        assert text.startswith("id: 1\nevent: gone\ndata: {")
        assert text.endswith("}\n\n")
        assert json.loads(text.splitlines()[2].removeprefix("data: ")) == {"epoch": 7, "id": 3, "cause": "a\nb"}
        await stream.aclose()  # type: ignore[attr-defined]
        assert log.watchers == 0

    asyncio.run(main())


def test_a_returning_watcher_gets_the_events_that_it_missed() -> None:
    async def main() -> None:
        log = EventLog()
        for number in range(5):
            log.tell("linked", number, {})
        stream = log.watch(3)
        texts = await take(stream, 3)
        assert [text.split("\n")[0] for text in texts[1:]] == ["id: 4", "id: 5"]
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_slow_watcher_loses_the_oldest_events_and_learns_how_many() -> None:
    async def main() -> None:
        log = EventLog()
        stream = log.watch(None)
        await take(stream, 1)
        for number in range(QUEUE_MAX + 10):
            log.tell("linked", number, {})
        texts = await take(stream, 2)
        assert texts[0] == 'event: dropped\ndata: {"count":10}\n\n'
        assert texts[1].startswith("id: 11\n")
        assert log.dropped == 10
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_the_ring_and_the_number_of_watchers_are_bounded() -> None:
    async def main() -> None:
        log = EventLog()
        for number in range(RING_MAX * 2):
            log.tell("linked", number, {})
        assert len(log._ring) == RING_MAX
        streams = [log.watch(None) for _ in range(WATCHERS_MAX)]
        for stream in streams:
            await take(stream, 1)
        with pytest.raises(Unavailable, match="already watch"):
            log.check_room()
        log.close()
        for stream in streams:
            assert [text async for text in stream] == []

    asyncio.run(main())
