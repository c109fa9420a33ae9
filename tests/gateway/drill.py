"""Load on a gateway while a broker behind it fails: clients that count their publications and deliveries.

One event loop runs all clients, so that hundreds of them fit beside the brokers, federators and the gateway of a test.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from tests.gateway import packets as p
from tests.gateway.session_world import id_of, split

from hanse.gateway.session.publication import read_publish

WINDOW = 20


class LoadClient(asyncio.Protocol):
    """A client that acknowledges everything and never connects again.

    Attributes:
        got: number of deliveries by payload.
        last_at, gap_s: time of the last publication, and the longest time between two.
        acknowledged: payloads for which PUBACK or PUBCOMP has come.
        is_lost: whether the connection has ended without a request of the test.
    """

    def __init__(self, version: int = 5) -> None:
        self.version = version
        self.got: Counter[bytes] = Counter()
        self.acknowledged: list[bytes] = []
        self.gap_s = 0.0
        self.last_at = 0.0
        self.is_lost = False
        self.reason: int | None = None
        self._is_closing = False
        self._have = b""
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._sent: dict[int, bytes] = {}
        self._to_send: deque[tuple[bytes, bytes, int]] = deque()
        self._next_id = 0
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int, name: str, version: int = 5, **more: object) -> Self:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(version), "127.0.0.1", port)
        answer = client._wait(0)
        client.write(p.connect(version, name.encode(), **more).packet)  # type: ignore[arg-type]
        accepted = await asyncio.wait_for(answer, 20)
        assert (accepted[0], accepted[3]) == (0x20, 0), accepted
        return client

    # --- packets ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it is counted either way
        self.is_lost = not self._is_closing

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def close(self, *, goodbye: bool = True) -> None:
        self._is_closing = True
        if goodbye:
            self.write(b"\xe0\x00")
        assert self._transport is not None
        self._transport.close()

    def _wait(self, packet_id: int) -> asyncio.Future[bytes]:
        made: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[packet_id] = made
        return made

    def data_received(self, data: bytes) -> None:
        found, self._have = split(self._have + data)
        out = []
        for packet in found:
            kind = packet[0] & 0xF0
            if kind == 0x30:
                one = read_publish(packet, self.version)
                self._count(one.payload)
                if one.qos:
                    out.append(p.ack(0x40 if one.qos == 1 else 0x50, one.packet_id))
            elif kind == 0x60:
                out.append(p.ack(0x70, id_of(packet)))
            elif kind == 0x50:
                out.append(p.ack(0x62, id_of(packet)))
            elif kind in (0x40, 0x70):
                self.acknowledged.append(self._sent.pop(id_of(packet)))
            elif kind in (0x20, 0x90):
                self._waiting.pop(0 if kind == 0x20 else id_of(packet)).set_result(packet)
            elif kind == 0xE0:
                self.reason = packet[2] if len(packet) > 2 else 0
        if out:
            self.write(b"".join(out))
        while self._to_send and len(self._sent) < WINDOW:
            self.publish(*self._to_send.popleft())

    def _count(self, payload: bytes) -> None:
        now = time.monotonic()
        if self.last_at:
            self.gap_s = max(self.gap_s, now - self.last_at)
        self.last_at = now
        self.got[payload] += 1

    # --- actions of the client ----------------------------------------------------------------------------------------

    def _new_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        while self._next_id in self._sent:
            self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    async def subscribe(self, *filters: tuple[bytes, int]) -> None:
        packet_id = self._new_id()
        answer = self._wait(packet_id)
        self.write(p.subscribe(packet_id, *filters, version=self.version))
        granted = await asyncio.wait_for(answer, 20)
        assert granted[-1] < 0x80, granted

    def publish(self, topic: bytes, payload: bytes, qos: int) -> None:
        if qos and len(self._sent) >= WINDOW:
            self._to_send.append((topic, payload, qos))
            return
        packet_id = self._new_id() if qos else 0
        if qos:
            self._sent[packet_id] = payload
        self.write(p.publish(topic, payload, qos, packet_id, version=self.version))

    @property
    def outstanding(self) -> int:
        return len(self._sent) + len(self._to_send)


async def at_rate(count: int, per_second: float, do: Callable[[int], None]) -> None:
    """Do something a number of times at equal intervals; after a delay of a busy machine, catch up."""
    began = time.monotonic()
    done = 0
    while done < count:
        due = min(count, int((time.monotonic() - began) * per_second) + 1)
        while done < due:
            do(done)
            done += 1
        await asyncio.sleep(0.002)


async def until(condition: Callable[[], object], what: str, deadline_s: float = 30.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        await asyncio.sleep(0.02)


class Outcome:
    """Result of one drill."""

    def __init__(self) -> None:
        self.lost = 0
        self.missing: list[str] = []
        self.repeated = 0
        self.repeats: list[str] = []
        self.received = 0
        self.gap_s = 0.0

    def __str__(self) -> str:
        return (
            f"{self.received} received, {self.repeated} repeated, {len(self.missing)} missing, "
            f"{self.lost} clients lost, longest gap {self.gap_s:.2f} s"
        )


def judge(readers: Iterable[tuple[LoadClient, Sequence[bytes]]]) -> Outcome:
    """Compare the deliveries of each client with the expected ones."""
    outcome = Outcome()
    for k, (reader, wanted) in enumerate(readers):
        outcome.lost += reader.is_lost
        outcome.gap_s = max(outcome.gap_s, reader.gap_s)
        outcome.received += reader.got.total()
        outcome.repeated += reader.got.total() - len(reader.got)
        outcome.repeats += [f"{k}: {one.decode()}" for one, count in reader.got.items() if count > 1]
        outcome.missing += [f"{k}: {one.decode()}" for one in wanted if not reader.got[one]]
    return outcome
