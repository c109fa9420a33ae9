"""Measure the time that one federator takes over one message, by its position: origin, transit, last.

    python bench/bench_hop.py [--rounds 15] [--messages 640] [--payload 64] [--json]

Three real agents in a line run in one process, over wires in memory instead of sockets. The first has the publisher's
broker, the last the subscriber's. A message moves from one to the next, and each read of each agent is timed by itself,
from `data_received` to the bytes at the transport. The kernel and the loop are not included. At QoS 1, the
acknowledgements move back, and count where they are read.

Microseconds per message, minimum and median of the rounds' medians:

- `hot`: one message per read, one after the other.
- `cold`: the same after a walk over 2 MiB, like the caches of a federator that shares the machine with others.
- `batch`: 64 messages per read.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import mqtt5
import uvloop

from hanse.federator import linking
from hanse.federator.agent import Agent
from hanse.federator.links import LinkBook
from hanse.federator.settings import FederatorSettings
from hanse.federator.store import StateDirectory
from hanse.mqtt.connection import Connection
from hanse.mqtt.endpoints import LinkDialler, LinkListener
from hanse.protocol.events import Subscribed

GROUP = "plant/line1/#"
TOPIC = "plant/line1/machine7/temperature"
POSITIONS = ("origin", "transit", "last")
BATCH = 64
COLD_BYTES = 2 << 20
SETUP_S = 20.0
# Probes that must arrive one after the other before anything is timed.
SETTLED = 20


class Wire(asyncio.Transport):
    """One end of a connection.

    It keeps written bytes while a read is timed, and otherwise sends them to the other end.
    """

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        super().__init__()
        self.is_kept = False
        self.written: list[bytes] = []
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the bytes, or send them on in the loop's next turn."""
        if self.is_kept:
            self.written.append(bytes(data))
        else:
            self._loop.call_soon(self._deliver, bytes(data))

    def take(self) -> bytes:
        """Return the kept bytes."""
        written, self.written = self.written, []
        return b"".join(written)

    def get_write_buffer_size(self) -> int:
        """Return 0, because nothing waits on this side."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits."""

    def get_extra_info(self, name: str, default: object = None) -> object:  # noqa: ARG002 - as asyncio has it
        """Return the default, because there is no socket."""
        return default

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing, because the end of the process closes it."""

    abort = close


class Plug:
    """Both ends of one connection of an agent: its protocol, which reads, and the wire that it writes to."""

    def __init__(self, connection: Connection, deliver: Callable[[bytes], None]) -> None:
        self.connection = connection
        self.wire = Wire(deliver)
        # It is read far more often than from any broker, and must not be slowed down for that.
        connection._gathering._rests_until = float("inf")  # noqa: SLF001
        connection.connection_made(self.wire)


class Broker:
    """Broker that answers correctly; its wire keeps publications while a read is timed."""

    def __init__(self) -> None:
        self.plug: Plug
        self.published = 0

    async def dial(self, make: Callable[[], Connection]) -> None:
        """Dial in place of the network."""
        self.plug = Plug(make(), self._answer)

    def _answer(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            packet, size = mqtt5.read(view)
            view = view[size:]
            if isinstance(packet, mqtt5.ConnectPacket):
                self._say(mqtt5.ConnAckPacket(receive_max=65_535))
            elif isinstance(packet, mqtt5.SubscribePacket):
                granted = [mqtt5.SubAckReasonCode(2)] * len(packet.topic_filters)
                self._say(mqtt5.SubAckPacket(packet.packet_id, granted))
            elif isinstance(packet, mqtt5.PingReqPacket):
                self._say(mqtt5.PingRespPacket())
            elif isinstance(packet, mqtt5.PublishPacket) and packet.topic == TOPIC:
                self.published += 1
                if packet.packet_id:
                    self._say(mqtt5.PubAckPacket(packet.packet_id))

    def _say(self, packet: mqtt5.Packet) -> None:
        self.plug.connection.data_received(packet.write())


class Line:
    """Three agents in a line, with a broker at the host session of each end."""

    def __init__(self, agents: list[Agent]) -> None:
        self.agents = agents
        self.brokers = [Broker() for _ in agents]
        # For each link the end at the agent nearer to the origin, and the other.
        self.links: list[tuple[Plug, Plug]] = []

    async def start(self) -> None:
        """Start the agents, link them, and wait until messages arrive."""
        for agent, broker in zip(self.agents, self.brokers, strict=True):
            agent.host.client._dial = broker.dial  # noqa: SLF001 - in the place of the network
            await agent.start()
        diallers = [self._link(one, other) for one, other in zip(self.agents, self.agents[1:], strict=False)]
        self.agents[-1]._step(Subscribed(GROUP))  # noqa: SLF001 - as if a client had
        await self._until_routed()
        self.diallers = diallers

    def _link(self, one: Agent, other: Agent) -> LinkDialler:
        async def dial(make: Callable[[], Connection]) -> None:
            listener = LinkListener(str(other.identity), other.links)  # type: ignore[arg-type]
            there, here = listener.listener.make(), make()
            far = Plug(there, here.data_received)
            near = Plug(here, there.data_received)
            self.links.append((near, far))

        links = cast("LinkBook", one.links)
        dialler = LinkDialler("mqtt://127.0.0.1:1", str(one.identity), links, properties=linking.properties, dial=dial)
        dialler.start()
        return dialler

    async def _until_routed(self) -> None:
        """Publish at the origin until each publication arrives at the other end: the meshes are ready by then."""
        deadline = time.monotonic() + SETUP_S
        probe = packet(0, 1, b"x")
        in_a_row = 0
        while in_a_row < SETTLED:
            if time.monotonic() > deadline:
                raise SystemExit(f"The line does not pass each message on after {SETUP_S} s.")
            before = self.brokers[-1].published
            if len(self.links) == 2 and GROUP in self.agents[0].machine.host_subscriptions():
                self.brokers[0].plug.connection.data_received(probe)
            await asyncio.sleep(0.05)
            in_a_row = in_a_row + 1 if self.brokers[-1].published == before + 1 else 0
        for agent in self.agents:
            agent._may_come_again = False  # noqa: SLF001 - as half a minute after the start

    async def come_to_rest(self) -> None:
        """Let the loop run until nothing waits to be written, such as a control frame."""
        plugs = [plug for link in self.links for plug in link] + [broker.plug for broker in self.brokers]
        is_waiting = True
        while is_waiting:
            await asyncio.sleep(0)
            is_waiting = any(plug.connection.waiting_bytes() for plug in plugs)

    def walk(self, data: bytes, qos: int, pause: Callable[[], None]) -> list[int] | None:
        """Move one read of the publisher's broker to the other end and, at QoS 1, back; return nanoseconds by position.

        Return None if it left some agent behind a control frame that waited for the end of the loop's turn: it then
        goes on by itself.
        """
        (near_1, far_1), (near_2, far_2) = self.links
        host_in, host_out = self.brokers[0].plug, self.brokers[-1].plug
        way = [(host_in, near_1), (far_1, near_2), (far_2, host_out)]
        sums = [0, 0, 0]
        for position, (plug, into) in enumerate(way):
            sums[position] = _timed(plug, data, into, pause)
            data = into.wire.take()
            if not data:
                return None
        if qos:
            data = acknowledgements(data)
            for position in (2, 1, 0):
                into, plug = way[position]
                sums[position] += _timed(plug, data, into, pause)
                data = into.wire.take()
                if not data:
                    return None
        return sums


def _timed(plug: Plug, data: bytes, into: Plug, pause: Callable[[], None]) -> int:
    read = plug.connection.data_received
    into.wire.is_kept = True
    pause()
    begun = time.perf_counter_ns()
    read(data)
    taken = time.perf_counter_ns() - begun
    into.wire.is_kept = False
    return taken


def packet(qos: int, packet_id: int, payload: bytes) -> bytes:
    return mqtt5.PublishPacket(
        TOPIC, payload, qos=mqtt5.QoS(qos), packet_id=packet_id if qos else None, subscription_ids=[2]
    ).write()


def acknowledgements(published: bytes) -> bytes:
    """Return PUBACKs for all publications."""
    out = []
    view = memoryview(published)
    while view:
        found, size = mqtt5.read(view)
        view = view[size:]
        assert isinstance(found, mqtt5.PublishPacket)
        assert found.packet_id is not None
        out.append(b"\x40\x02" + found.packet_id.to_bytes(2))
    return b"".join(out)


def nothing() -> None:
    pass


def chilled() -> Callable[[], None]:
    """Return a function that walks through more memory than the nearest caches of a core hold."""
    source, target = bytes(COLD_BYTES // 2), bytearray(COLD_BYTES // 2)

    def go_through() -> None:
        target[:] = source

    return go_through


async def measure(
    line: Line, qos: int, batch: int, pause: Callable[[], None], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    payload = b"x" * options.payload
    turns = max(1, options.messages // batch)
    rounds: list[list[float]] = []
    for _ in range(options.rounds + 1):
        walks = []
        for turn in range(turns):
            data = b"".join(packet(qos, turn % 500 * batch + n + 1, payload) for n in range(batch))
            walks.append(line.walk(data, qos, pause))
            await line.come_to_rest()
        whole = [walk for walk in walks if walk is not None]
        if len(whole) * 10 < turns * 9:
            raise SystemExit(f"Of {turns} reads only {len(whole)} came through; what was timed is something else.")
        # The median, because time that another process took does not count for this one.
        rounds.append([statistics.median(taken) / batch / 1000 for taken in zip(*whole, strict=True)])
    return {
        name: {"min_us": round(min(taken), 2), "median_us": round(statistics.median(taken), 2)}
        # The first round fills the caches.
        for name, taken in zip(POSITIONS, zip(*rounds[1:], strict=True), strict=True)
    }


async def run(options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    with contextlib.ExitStack() as stack:
        agents = []
        for identity in range(1, len(POSITIONS) + 1):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            state = stack.enter_context(StateDirectory(folder))
            agents.append(Agent(FederatorSettings(id=identity, metrics="off", insecure=True), state))
        line = Line(agents)
        await line.start()
        gc.collect()
        gc.freeze()
        cold = chilled()
        figures = {}
        for qos in (0, 1):
            for name, batch, pause in (("hot", 1, nothing), ("cold", 1, cold), ("batch", BATCH, nothing)):
                figures[f"{name}_qos{qos}"] = await measure(line, qos, batch, pause, options)
        for agent in agents:
            agent.custodian.stop()
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--messages", type=int, default=640, help="a round")
    parser.add_argument("--payload", type=int, default=64, help="bytes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = uvloop.run(run(options))
    if options.json:
        settings = {"rounds": options.rounds, "messages": options.messages, "payload_bytes": options.payload}
        json.dump({"settings": settings, "python": platform.python_version(), "us_a_message": figures}, sys.stdout)
        print()
        return
    print(f"{'us a message (min / median)':28}" + "".join(f"{position:>16}" for position in POSITIONS))
    for name, row in figures.items():
        print(f"{name:28}" + "".join(f"{one['min_us']:8.2f} /{one['median_us']:6.2f}" for one in row.values()))


if __name__ == "__main__":
    main()
