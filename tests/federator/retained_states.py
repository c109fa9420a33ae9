"""Retained state of several federators in memory: brokers are dictionaries, and everything that is sent arrives."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from hanse.errors import Unavailable
from hanse.federator.crossing import Crossing
from hanse.federator.gate import Gate
from hanse.federator.retained import BookFile, RetainedState, keeping
from hanse.federator.retained.look import Seen
from hanse.mqtt.client import ClientSettings
from hanse.mqtt.publication import encode, topic_of
from hanse.protocol.identity import private_group
from hanse.protocol.messages import Publication
from hanse.protocol.retained import RetainedSettings
from hanse.protocol.settings import MANAGEMENT_GROUP
from hanse.protocol.topics import matches

SETTINGS = RetainedSettings(look_gap_s=0.0, look_retry_s=0.01, fetch_s=0.2, linger_s=0.1, sweep_s=0.1)


class Member:
    """One federator and its broker."""

    def __init__(self, federation: "Federation", identity: int, path: Path, crossing: Crossing | None = None) -> None:
        self.federation = federation
        self.identity = identity
        self.path = path / f"{identity}.db"
        self.broker: dict[str, bytes] = {}
        self.uptime_s: int | None = None
        self.is_up = True
        self.looks: list[list[str]] = []
        self.injected: list[str] = []
        self.found: list[tuple[Publication, int]] = []
        self.released: list[str] = []
        self.held: list[bool] = []
        self.is_joined = False
        self.counters: Counter[str] = Counter()
        self.crossing = crossing or Crossing()
        federation.members[identity] = self
        self.state = self.make()

    def make(self) -> RetainedState:
        """Return the state of a new process."""
        return RetainedState(
            self.identity,
            SETTINGS,
            ClientSettings("mqtt://memory", f"look-{self.identity}"),
            book=BookFile(self.path, self.counters),
            crossing=self.crossing,
            gate=Gate(self.counters),
            publish=lambda publication, stamp: self.found.append((publication, stamp)),
            publish_to=self._publish_to,
            is_known=lambda group: any(
                member.is_joined and private_group(member.identity) == group
                for member in self.federation.members.values()
            ),
            join=self._join,
            inject=self._inject,
            release=self.released.append,
            hold=self.held.append,
            counters=self.counters,
        )

    def _join(self) -> None:
        self.is_joined = True

    def _publish_to(self, group: str, packets: list[bytes]) -> None:
        for packet in packets:
            for member in self.federation.members.values():
                if member is not self and group in (MANAGEMENT_GROUP, private_group(member.identity)):
                    asyncio.get_running_loop().call_soon(member.state.hear, self.identity, packet)

    def _inject(self, packet: bytes, number: int) -> None:
        topic = topic_of(packet)
        self.injected.append(topic)
        self.retain(topic, packet)
        self.state.injected([number])

    def retain(self, topic: str, packet: bytes) -> None:
        """Let the broker retain a packet, or delete what it retains."""
        if packet == encode(topic, b"", qos=1, retain=True):
            self.broker.pop(topic, None)
        else:
            self.broker[topic] = packet

    def write(self, topic: str, payload: bytes, qos: int = 1) -> None:
        """Let a client write, unheard."""
        self.retain(topic, encode(topic, payload, qos=qos, retain=True))

    def hear(self, topic: str, payload: bytes, qos: int = 1) -> int:
        """Let a client write, and the federator hear it."""
        self.write(topic, payload, qos)
        name = self.crossing.leave(topic)
        assert name is not None
        return self.state.heard([(name, qos, encode(name, payload, qos=qos, retain=True))])


class Federation:
    """All members."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: dict[int, Member] = {}

    async def begin(self, *crossings: Crossing | None) -> list[Member]:
        """Start a member per crossing; None is the usual one."""
        members = [Member(self, k, self.path, crossing) for k, crossing in enumerate(crossings, start=1)]
        for member in members:
            await member.state.start()
            member.state.host_up(session_present=False)
        return members

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - several objects' state
                await asyncio.sleep(0.001)


def play(monkeypatch: pytest.MonkeyPatch, path: Path, steps: Callable[[Federation], Coroutine[Any, Any, None]]) -> None:
    """Run steps in a federation whose looks read the dictionaries."""
    federation = Federation(path)

    async def look(settings: ClientSettings, filters: Iterable[str], qos_of: object = None) -> Seen:
        del qos_of
        member = federation.members[int(settings.client_id.split("-")[1])]
        member.looks.append(sorted(filters))
        await asyncio.sleep(0)
        if not member.is_up:
            raise Unavailable("the broker is away")
        found = {
            topic: packet for topic, packet in member.broker.items() if any(matches(one, topic) for one in filters)
        }
        return Seen(found, member.uptime_s, frozenset())

    monkeypatch.setattr(keeping, "look", look)

    async def all_steps() -> None:
        try:
            await steps(federation)
        finally:
            for member in federation.members.values():
                await member.state.stop()

    asyncio.run(all_steps())
