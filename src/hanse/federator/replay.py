"""Replay of publications that this federator retains, to a gateway whose client has moved from a lost broker.

Request `replay` of gateways (`hanse.federator.gateways`):

- `filters`: topic filters as clients at this broker write them; `age_ms`: how far back; at most the retention.
- `is_host`: the client is at this federator's host broker now. What that broker has not acknowledged yet is then named
  without its packets, because it will come to the client from there. What is on its way when the request arrives is
  waited for, up to `WAIT_S`, because it may have been there before the client's subscription.

The answer comes in parts: `rows` of `[origin, epoch, first id, count, age in ms, whether its packets follow]`, oldest
first, and the packets of all rows one after the other. A publication may be named twice. The last frame also has
`late`: whether something that was on its way to the host broker has not arrived in time.

Rules:

1. Only this gateway gets anything: nothing is published. No publication is acknowledged or delivered by a replay.
2. Answers contain ages, never clock times.
3. QoS 0 is not retained, and the federators' own topics are not replayed.
4. The snapshot is taken in one step, then sent as the gateway takes it; it shares the retained bytes.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from hanse.errors import RemoteError
from hanse.federator.crossing import Crossing
from hanse.federator.gateways import GatewayPeer, Gateways
from hanse.federator.naming import renamed
from hanse.protocol.machine import Machine
from hanse.protocol.messages import Run
from hanse.protocol.packets import split, topic_of
from hanse.protocol.trie import FilterIndex
from hanse.request_channel import Answer, Request

FILTERS_MAX: Final = 10_000
PART_BYTES: Final = 128 * 1024
# For what is on its way to the host broker. A healthy broker acknowledges within milliseconds.
WAIT_S: Final = 1.0
LOOK_S: Final = 0.01

Row = list[int]


class Replay:
    """Answers the requests of gateways.

    Args:
        gateways: whose requests are answered.
        machine: asked for what is retained.
        crossing: names of topics at the host broker.
        counters: to count into: `replays`, `replayed`.
        clock: the machine's time.
    """

    def __init__(
        self,
        gateways: Gateways,
        machine: Machine,
        crossing: Crossing,
        counters: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        self._machine = machine
        self._crossing = crossing
        self._counters = counters
        self._clock = clock
        gateways.offer("replay", self._replay)

    async def _replay(self, _peer: GatewayPeer, request: Request) -> Answer:
        fields = request.fields
        index = _index_of(fields.get("filters"))
        age_ms = fields.get("age_ms")
        if not isinstance(age_ms, int | float) or not age_ms >= 0:
            raise RemoteError(f"age_ms of a replay is {age_ms!r}; a number of milliseconds was expected.")
        self._counters["replays"] += 1
        is_host = bool(fields.get("is_host"))
        is_late = is_host and not await self._wait_for_host()
        now = self._clock()
        pending = self._machine.pending_at_host() if is_host else {}
        rows: list[Row] = []
        packets: list[bytes] = []
        size = 0
        for at, run in self._machine.retained_since(now - age_ms / 1000):
            age = max(0, int((now - at) * 1000))
            waiting = pending.get((run.origin, run.epoch), ())
            for first, is_sent, found in self._matching(run, index, waiting):
                rows.append([run.origin, run.epoch, first, len(found), age, int(is_sent)])
                if is_sent:
                    packets += found
                    size += sum(map(len, found))
                    self._counters["replayed"] += len(found)
            if size > PART_BYTES or len(rows) > PART_BYTES // 64:
                await request.part({"rows": rows}, b"".join(packets))
                rows, packets, size = [], [], 0
        return Answer({"rows": rows, "late": is_late}, b"".join(packets))

    async def _wait_for_host(self) -> bool:
        """Wait until the host broker has what is on its way there now; return whether it has in time."""
        until = time.monotonic() + WAIT_S
        waiting = self._machine.pending_at_host()
        while waiting:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(LOOK_S)
            now = self._machine.pending_at_host()
            waiting = {
                source: left
                for source, ranges in waiting.items()
                if (left := [one for one in ranges if _is_within(now.get(source, ()), one[0])])
            }
        return True

    def _matching(
        self, run: Run, index: FilterIndex, waiting: Sequence[tuple[int, int]]
    ) -> list[tuple[int, bool, list[bytes]]]:
        """Return what a run has for these filters, as this broker's clients see it.

        Each entry has the first id, whether its packets are sent, and the packets of consecutive ids.
        """
        found: list[tuple[int, bool, list[bytes]]] = []
        crossing = self._crossing
        for offset, (start, end) in enumerate(split(run.body)):
            packet = run.body[start:end]
            topic = topic_of(packet)
            if topic.startswith("$"):
                continue
            if not crossing.is_trivial:
                name = crossing.enter(topic)
                if name is None:
                    continue
                if name != topic:
                    packet, topic = renamed(packet, name), name
            if not index.match(topic):
                continue
            one = run.first + offset
            is_sent = not _is_within(waiting, one)
            if found and found[-1][0] + len(found[-1][2]) == one and found[-1][1] is is_sent:
                found[-1][2].append(packet)
            else:
                found.append((one, is_sent, [packet]))
        return found


def _index_of(filters: Any) -> FilterIndex:  # noqa: ANN401 - from outside
    if not isinstance(filters, list) or len(filters) > FILTERS_MAX:
        raise RemoteError(f"The filters of a replay are no list of at most {FILTERS_MAX}.")
    index = FilterIndex()
    for text in filters:
        if not isinstance(text, str):
            raise RemoteError("A filter of a replay is no text.")
        index.add(text)
    return index


def _is_within(ranges: Sequence[tuple[int, int]], one: int) -> bool:
    return any(first <= one < first + count for first, count in ranges)
