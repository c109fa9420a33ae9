"""`hanse gateway` from its command to its end."""

import asyncio
import dataclasses
import logging
import resource
import signal
import socket
from typing import Any, Final

import hanse
from hanse import logs
from hanse.gateway import garbage
from hanse.gateway.pages import make_server
from hanse.gateway.process import OtherProcess, tls_context
from hanse.gateway.settings import GatewaySettings
from hanse.gateway.supervisor import Supervisor, listen
from hanse.gateway.worker import Worker

_log = logging.getLogger(__name__)

# Descriptors of a process beside two per client.
_FILES_BESIDE: Final = 256


class InProcess:
    """The only worker, in the supervisor's own process."""

    restarts = 0

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def send(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - as for a worker elsewhere
        """Send it a message."""
        self._worker.on_message({"kind": kind, **fields})

    def heard(self) -> dict[str, float]:
        """Return when it last heard each broker."""
        return self._worker.heard()

    def count(self) -> dict[str, Any]:
        """Return its counts."""
        return self._worker.count()

    async def stop(self) -> None:
        """End its clients."""
        await self._worker.stop()


async def run(settings: GatewaySettings) -> int:
    """Run a gateway until SIGTERM or SIGINT; return the exit code."""
    logs.configure(settings.log_format, settings.log_level)
    _log.info("hanse %s, %s", hanse.__version__, "compiled" if hanse.is_compiled else "not compiled")
    raise_file_limit(settings.connections_max)
    tls = tls_context(settings)
    asked = settings.listeners()
    sockets = [listen(address, settings.workers) for address in asked]
    listeners = [
        dataclasses.replace(address, port=made[0].getsockname()[1])
        for address, made in zip(asked, sockets, strict=True)
    ]
    supervisor = Supervisor(settings, listeners)
    server = make_server(supervisor)
    ending = asyncio.Event()
    hurry = asyncio.Event()
    _on_signals(ending, hurry)
    url = await server.start(*settings.metrics_address())
    try:
        await supervisor.start()
        if settings.workers == 1:
            worker = Worker(settings, supervisor.on_report)
            supervisor.add(InProcess(worker))
            await worker.start([(one, made[0]) for one, made in zip(listeners, sockets, strict=True)], tls)
        else:
            await _start_workers(supervisor, [[made[k] for made in sockets] for k in range(settings.workers)])
        garbage.tune()
        supervisor.write_running(url)
        for one in listeners:
            _log.info("clients may connect", extra={"listener": one.url(), "pages": url})
        await ending.wait()
        supervisor.is_ending = True
        _log.info("ending; /healthz answers 503", extra={"grace_s": settings.shutdown_grace_s})
        await _pause(hurry, settings.shutdown_grace_s)
    finally:
        await supervisor.stop()
        await server.stop()
        for made in sockets:
            for owned in made:
                owned.close()
    return 0


async def _start_workers(supervisor: Supervisor, sockets: list[list[socket.socket]]) -> None:
    """Start a process for each list of sockets, one per listener."""
    workers = [
        OtherProcess(
            index,
            supervisor.settings,
            supervisor.listeners,
            own,
            on_report=supervisor.on_report,
            on_connected=supervisor.tell,
            on_gone=supervisor.on_worker_gone,
        )
        for index, own in enumerate(sockets)
    ]
    for worker in workers:
        supervisor.add(worker)
    await asyncio.gather(*(worker.start() for worker in workers))


def raise_file_limit(connections_max: int) -> None:
    """Allow as many open files as the clients need, two each; warn if the system does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections_max + _FILES_BESIDE
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if reachable > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
        except (OSError, ValueError):
            # A sandbox may forbid it.
            pass
    if soft < wanted:
        _log.warning(
            "the limit on open files is too low for connections_max; raise it (LimitNOFILE in systemd)",
            extra={"files": soft, "wanted": wanted},
        )


def _on_signals(ending: asyncio.Event, hurry: asyncio.Event) -> None:
    def signalled() -> None:
        if ending.is_set():
            hurry.set()
        ending.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)


async def _pause(hurry: asyncio.Event, for_s: float) -> None:
    try:
        async with asyncio.timeout(for_s):
            await hurry.wait()
    except TimeoutError:
        pass
