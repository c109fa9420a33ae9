"""Supervision of N brokers and N agents on one machine, from start through convergence to a clean end.

Rules:
1. Nothing is started before all that can be checked has been checked: program, ports, overlay, directory.
2. Brokers start first. When all are ready, services and agents follow. The state file is written only after the
   convergence callback has succeeded. A failure on the way takes everything down again.
3. A restarted broker or agent has a new process id, and the state file is updated.
4. Agents end before brokers, so that they can leave the federation. The state file is removed first, so that nobody
   uses it any more.
"""

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanse.errors import LocalError, Unavailable
from hanse.local import mosquitto, overlay, ports, state
from hanse.local.client import broker_answers
from hanse.local.emulator import LinkEmulator
from hanse.local.ports import LOOPBACK
from hanse.local.processes import ProcessSettings, SupervisedProcess
from hanse.mqtt import urls

_POLL_S = 0.05
_WATCH_S = 0.2
SERVICES = ("manager", "dashboard", "gateway", "collector")


@dataclass(frozen=True, slots=True)
class FederationSettings:
    """Settings of `hanse up`.

    Attributes:
        brokers: number of brokers to start; broker k listens on `base_port` + k.
        broker_urls: brokers that are already running; each gets an agent, numbered after the started ones.
        base_port: None for free ports.
        directory: brokers and agents each get a directory below it.
        emulated_links: pass each link through a link emulator of its own (`Federation.links`), so that it can be
            delayed and cut. This costs the supervisor time for every byte: for faults, not for benchmarks.
        restarts: restart processes that end.
        ready_s: deadline for brokers to answer.
        converged_s: deadline for the federation to converge.
        autosave_s, queued_max: for the started brokers; see `mosquitto.BrokerSettings`.
    """

    brokers: int
    directory: Path
    base_port: int | None = None
    overlay: str = "ring"
    state_path: Path | None = None
    emulated_links: bool = False
    restarts: bool = True
    ready_s: float = 15.0
    converged_s: float = 60.0
    broker_urls: tuple[str, ...] = ()
    autosave_s: int = 30
    queued_max: int = 100_000


@dataclass(frozen=True, slots=True)
class Site:
    """One broker and its agent, with everything that the agent's command line needs.

    Attributes:
        k: its number, from 0; also the federator's id.
        neighbours: link URLs of the neighbours to which this side connects: those with a smaller number. One
            connection serves both directions, so each link is opened once.
        neighbours_all: link URLs of all neighbours.
        neighbour_brokers: number and broker URL of all neighbours, for links through their brokers.
    """

    k: int
    directory: Path
    broker_port: int
    link_port: int
    metrics_port: int
    neighbours: tuple[str, ...]
    neighbours_all: tuple[str, ...]
    neighbour_brokers: tuple[tuple[int, str], ...]
    broker_given: str | None = None
    lane_port: int | None = None

    @property
    def broker_directory(self) -> Path:
        """Directory of a broker that was started here."""
        return self.directory / "broker"

    @property
    def broker_output(self) -> Path | None:
        """File with the output of a started broker."""
        return None if self.broker_given else self.broker_directory / "output.log"

    @property
    def broker_socket(self) -> Path | None:
        """Unix socket of a started broker for its federator, if any."""
        return None if self.broker_given else mosquitto.socket_path(self.broker_directory)

    @property
    def broker_url(self) -> str:
        """URL of its broker, with the login if one was given."""
        return self.broker_given or f"mqtt://{LOOPBACK}:{self.broker_port}"

    @property
    def broker_shown(self) -> str:
        """URL of its broker without a login."""
        return str(urls.parse(self.broker_url))

    @property
    def has_login(self) -> bool:
        """True if its broker's URL contains a login."""
        return urls.parse(self.broker_url).username is not None

    @property
    def link_url(self) -> str:
        """URL at which its agent listens for neighbours."""
        return f"mqtt://{LOOPBACK}:{self.link_port}"

    @property
    def metrics_url(self) -> str:
        """URL of its agent's metrics and pages."""
        return f"http://{LOOPBACK}:{self.metrics_port}"


@dataclass(frozen=True, slots=True)
class Service:
    """Process beside the sites; the state file names a manager's, dashboard's or gateway's URL.

    Attributes:
        further: returns more words of the command, which depend on the ports of the sites.
    """

    name: str
    url: str | None
    command: Sequence[str]
    further: Callable[[Sequence[Site]], Sequence[str]] | None = None

    def command_for(self, sites: Sequence[Site]) -> list[str]:
        """Return the whole command."""
        return [*self.command, *(self.further(sites) if self.further is not None else ())]


@dataclass(frozen=True, slots=True)
class Plan:
    """All sites, and for each emulated link `(a, b)` the port to which `b` connects instead of `a`'s."""

    sites: tuple[Site, ...]
    emulated: dict[tuple[int, int], int]


def plan(settings: FederationSettings) -> Plan:
    """Plan every site with its ports and neighbours; check everything that can be checked beforehand."""
    given = [urls.parse(url) for url in settings.broker_urls]
    count = settings.brokers + len(given)
    links = overlay.edges(settings.overlay, count)
    has_lanes = bool(settings.brokers) and mosquitto.has_websockets(mosquitto.find_program())
    if settings.base_port is not None:
        broker_ports = [settings.base_port + k for k in range(settings.brokers)]
        ports.require_free(broker_ports)
        others = [port for port in ports.free(4 * count) if port not in broker_ports]
    else:
        others = ports.free(4 * count)
        broker_ports, others = others[: settings.brokers], others[settings.brokers :]
    link_ports, metrics_ports, lane_ports = others[:count], others[count : 2 * count], others[2 * count : 3 * count]
    broker_urls = [f"mqtt://{LOOPBACK}:{port}" for port in broker_ports] + [str(address) for address in given]
    broker_ports += [address.port for address in given]
    if len(set(broker_urls)) != count:
        raise LocalError("A broker is given twice; each broker has one federator, so name it once.")

    emulated = dict(zip(links, ports.free(len(links)), strict=True)) if settings.emulated_links else {}

    def link(k: int, dialled_by: int) -> str:
        return f"mqtt://{LOOPBACK}:{emulated.get((k, dialled_by), link_ports[k])}"

    sites = tuple(
        Site(
            k=k,
            directory=settings.directory / f"site-{k}",
            broker_port=broker_ports[k],
            link_port=link_ports[k],
            metrics_port=metrics_ports[k],
            neighbours=tuple(link(other, k) for other in of if other < k),
            neighbours_all=tuple(link(other, k) for other in of),
            neighbour_brokers=tuple((other, broker_urls[other]) for other in of),
            broker_given=None if k < settings.brokers else settings.broker_urls[k - settings.brokers],
            lane_port=lane_ports[k] if has_lanes and k < settings.brokers else None,
        )
        for k, of in enumerate(overlay.neighbours(links, count))
    )
    return Plan(sites, emulated)


Prepare = Callable[[Sequence[Site]], Awaitable[None]]
AgentCommand = Callable[[Site], Sequence[str]]
Converged = Callable[[Sequence[Site]], Awaitable[bool]]


class Federation:
    """Brokers and agents together. Use `run` for a command, or `async with` in tests and in the lab."""

    def __init__(
        self,
        settings: FederationSettings,
        agent_command: AgentCommand,
        is_converged: Converged,
        services: Sequence[Service] = (),
        prepare: Prepare | None = None,
    ) -> None:
        """Plan a federation.

        `agent_command` returns the command line of a site's agent. `is_converged` is polled. `prepare` runs after the
        services have started and before the agents start.
        """
        for service in services:
            if service.name not in SERVICES:
                raise LocalError(f"Service {service.name!r} is not known; expected one of: {', '.join(SERVICES)}.")
        self.settings = settings
        self._is_converged = is_converged
        self._prepare = prepare
        planned = plan(settings)
        self.sites: list[Site] = list(planned.sites)
        self.links: dict[tuple[int, int], LinkEmulator] = {}
        self._emulated = planned.emulated
        self._urls = {service.name: service.url for service in services}
        keep = ProcessSettings(restarts=settings.restarts)
        self.brokers: list[SupervisedProcess] = []
        self.agents: list[SupervisedProcess] = []
        for site in self.sites[: settings.brokers]:
            directory = site.broker_directory
            broker = mosquitto.command(
                mosquitto.BrokerSettings(
                    site.broker_port,
                    directory,
                    autosave_s=settings.autosave_s,
                    queued_max=settings.queued_max,
                    lane_port=site.lane_port,
                )
            )
            self.brokers.append(SupervisedProcess(f"broker {site.k}", broker, directory / "output.log", keep))
        for site in self.sites:
            # All users of the machine can see a command line, so a login is passed in the environment.
            environment = {**os.environ, "HANSE_BROKER": site.broker_url} if site.has_login else None
            output = site.directory / "federator" / "output.log"
            self.agents.append(SupervisedProcess(f"federator {site.k}", agent_command(site), output, keep, environment))
        self.services = [
            SupervisedProcess(
                service.name, service.command_for(self.sites), settings.directory / service.name / "output.log", keep
            )
            for service in services
        ]
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all processes, wait for convergence, write the state file.

        Raises:
            Unavailable: a process did not start within its deadline; everything is taken down again.
        """
        try:
            await self._start_all(self.brokers)
            await asyncio.gather(
                *(
                    broker.wait_ready(functools.partial(broker_answers, site.broker_url), self.settings.ready_s)
                    for broker, site in zip(self.brokers, self.sites, strict=False)
                )
            )
            await self._require_given()
            for (a, b), port in self._emulated.items():
                emulator = LinkEmulator(LOOPBACK, self.sites[a].link_port, seed=a * self.settings.brokers + b)
                await emulator.start(port)
                self.links[a, b] = emulator
            await self._start_all(self.services)
            if self._prepare is not None:
                await self._prepare(self.sites)
            await self._start_all(self.agents)
            await self._converge()
            if self.settings.state_path is not None:
                state.write(self.settings.state_path, self.state())
        except BaseException:
            await self.stop()
            raise
        self._watcher = asyncio.create_task(self._watch(), name="watch processes")

    async def _require_given(self) -> None:
        """Raise if a given broker does not answer; only its agent can test a broker behind TLS."""
        for site in self.sites[len(self.brokers) :]:
            is_tls = urls.parse(site.broker_url).is_tls
            if not is_tls and not await broker_answers(site.broker_url):
                raise Unavailable(f"No broker answers at {site.broker_shown}; start it first, or leave it out.")

    async def stop(self) -> None:
        """Take everything down; returns when nothing is left."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
            if self.settings.state_path is not None:
                state.remove(self.settings.state_path)
        await asyncio.gather(*(agent.stop() for agent in self.agents))
        await asyncio.gather(*(process.stop() for process in [*self.services, *self.brokers]))
        while self.links:
            await self.links.popitem()[1].stop()

    async def __aenter__(self) -> "Federation":  # noqa: PYI034 - not meant to be derived from
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def run(self, on_started: Callable[["Federation"], Awaitable[None]] | None = None) -> None:
        """Start, and hold until SIGINT or SIGTERM; then take everything down.

        `on_started` runs concurrently (a live table, for example) and is cancelled at the end.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        try:
            starting = asyncio.create_task(self.start())
            waiting = asyncio.create_task(ended.wait())
            await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            beside = asyncio.ensure_future(on_started(self)) if on_started and not ended.is_set() else None
            await waiting
            if beside is not None:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
        finally:
            await self.stop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def state(self) -> state.State:
        """Return the running processes; a process that is being restarted has the id 0."""
        return state.State(
            federators=tuple(
                state.FederatorState(
                    id=site.k,
                    broker=site.broker_shown,
                    link=site.link_url,
                    metrics=site.metrics_url,
                    broker_pid=(self.brokers[site.k].pid or 0) if site.k < len(self.brokers) else None,
                    federator_pid=agent.pid or 0,
                )
                for site, agent in zip(self.sites, self.agents, strict=True)
            ),
            manager=self._urls.get("manager"),
            dashboard=self._urls.get("dashboard"),
            gateway=self._urls.get("gateway"),
            supervisor_pid=os.getpid(),
            supervisor_started=state.process_start(os.getpid()),
        )

    async def _start_all(self, processes: list[SupervisedProcess]) -> None:
        await asyncio.gather(*(process.start() for process in processes))

    async def _converge(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.settings.converged_s
        while not await self._is_converged(self.sites):
            for process in [*self.brokers, *self.services, *self.agents]:
                if process.pid is None and not self.settings.restarts:
                    raise Unavailable(f"{process.name} ended with code {process.returncode}: see {process.output}.")
            if loop.time() > until_s:
                raise Unavailable(
                    f"The federation did not converge within {self.settings.converged_s:g} s; "
                    f"see the agents' output below {self.settings.directory}."
                )
            await asyncio.sleep(_POLL_S)

    async def _watch(self) -> None:
        known = self.state()
        while True:
            await asyncio.sleep(_WATCH_S)
            now = self.state()
            if now == known or self.settings.state_path is None:
                continue
            # A disk that is full for a moment must not end the supervision, so the write is retried.
            with contextlib.suppress(LocalError):
                state.write(self.settings.state_path, now)
                known = now


async def down(path: Path, deadline_s: float = 30.0) -> bool:
    """End the federation of a state file; return False if it had ended already.

    Only the supervisor is signalled, and it ends the processes that it started. The file of a federation that is gone
    is removed.

    Raises:
        LocalError: there is no state file, or it names no supervisor.
        Unavailable: the supervisor did not end within the deadline.
    """
    found = state.read(path)
    pid, started = found.supervisor_pid, found.supervisor_started
    if pid is None or started is None:
        raise LocalError(f"{path} names no supervisor; end the federation where it was started.")
    # The same id with another start time is another process, which must not be signalled.
    if state.process_start(pid) != started:
        state.remove(path)
        return False
    os.kill(pid, signal.SIGTERM)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + deadline_s
    while state.process_start(pid) == started:
        if loop.time() > until_s:
            raise Unavailable(f"The supervisor (process {pid}) did not end within {deadline_s:g} s.")
        await asyncio.sleep(_POLL_S)
    state.remove(path)
    return True
