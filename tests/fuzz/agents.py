"""A whole agent without sockets: bytes arrive like a link's, and publications for the host broker are checked."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hanse.federator.agent import Agent
from hanse.federator.settings import FederatorSettings
from hanse.federator.store import StateDirectory
from hanse.mqtt.endpoints import LinkListener
from hanse.mqtt.publication import Reader
from hanse.protocol.events import Subscribed, Tick
from hanse.protocol.topics import may_cross

IDENTITY = 7


class Sink(asyncio.Transport):
    """Other end of a connection: it accepts written bytes, and learns of the end."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


class Scene:
    """One agent. Everything that it would publish at its host is parsed as the host would."""

    def __init__(self, state: StateDirectory, settings: FederatorSettings) -> None:
        # On a busy machine, a scene may last so long that something is stored. The next one must not restore it.
        shutil.rmtree(state.path / "outbox", ignore_errors=True)
        self.agent = Agent(settings, state)
        self.delivered: list[str] = []
        self.agent.host.deliver = self._deliver  # type: ignore[method-assign]
        self.agent._carry_out(self.agent.machine.start(0.0))
        for wanted in ("a/#", "+/b", "$hanse/telemetry/#"):
            self.agent._step(Subscribed(wanted))
        self.agent.reporter._sample_rate = 1.0  # each publication is traced
        self.agent.reporter.report()
        assert self.agent.reporter.is_active

    def _deliver(self, body: bytes, qos: int, count: int, obligation: object) -> None:
        del obligation
        found = Reader(is_canonical=True).read_run(body)
        assert len(found) == count
        assert {one.qos for one in found} == {qos}
        for one in found:
            assert may_cross(one.topic), f"{one.topic!r} was published at the host"
        self.delivered += [one.topic for one in found]

    def connect(self) -> tuple[asyncio.Protocol, Sink]:
        """Return a new connection to the agent's link port."""
        listener = LinkListener(str(IDENTITY), self.agent.links)  # type: ignore[arg-type]
        protocol, sink = listener.listener.make(), Sink()
        protocol.connection_made(sink)
        return protocol, sink

    def end(self) -> None:
        self.agent._step(Tick())
        self.agent.reporter.report()
        self.agent.interest.stop()
        if self.agent._timer is not None:
            self.agent._timer.cancel()


@contextmanager
def scenes(folder: Path, **settings: object) -> Iterator[tuple[asyncio.Runner, StateDirectory, FederatorSettings]]:
    """Yield the parts of scenes, one for each input."""
    with asyncio.Runner() as runner, StateDirectory(folder) as state:
        state.write_epoch = lambda epoch: None  # type: ignore[method-assign]  # noqa: ARG005 - the time of the disk is irrelevant here
        yield runner, state, FederatorSettings(id=IDENTITY, metrics="off", insecure=True, **settings)  # type: ignore[arg-type]
