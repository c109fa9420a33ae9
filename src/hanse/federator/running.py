"""A federator from its command to its end: one run after another, each under one id.

Rules:

1. SIGTERM and SIGINT end it in order at any time: it first leaves the meshes.
2. With a manager, each run begins with a join. A different id begins a new run in the same process, with the settings
   read again.
3. The state directory is locked over all runs.
"""

import asyncio
import logging
import signal
from typing import Any

import hanse
from hanse import logs
from hanse.federator import entering
from hanse.federator.agent import Agent
from hanse.federator.entering import ReadAgain
from hanse.federator.settings import FederatorSettings
from hanse.federator.store import StateDirectory
from hanse.mqtt.allocator import keep_freed_blocks

_log = logging.getLogger(__name__)


async def run(settings: FederatorSettings, read_again: ReadAgain | None = None) -> int:
    """Run a federator until SIGTERM or SIGINT, and return the exit code.

    Args:
        settings: settings before the manager was asked.
        read_again: function that reads the settings with the manager's values below all other sources.
    """
    logs.configure(settings.log_format, settings.log_level)
    keep_freed_blocks()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    with StateDirectory(settings.state_dir) as state:
        _log.info("hanse %s, %s", hanse.__version__, "compiled" if hanse.is_compiled else "not compiled")
        for warning in settings.warnings():
            _log.warning("%s", warning)
        while not ended.is_set():
            await _live(settings, state, ended, read_again)
    return 0


async def _live(
    settings: FederatorSettings, state: StateDirectory, ended: asyncio.Event, read_again: ReadAgain | None
) -> None:
    """Run once under one id: until the end, or until the manager gives another id."""
    entrance = None
    if settings.manager:
        settings = entering.with_link_port(settings)
        entering_task = asyncio.create_task(entering.enter(settings, state))
        if not await first(ended, entering_task):
            return
        entrance = entering_task.result()
        settings = entering.with_handed_out(settings, entrance, read_again)
    agent = Agent(settings, state, entrance)
    await agent.start()
    changed = asyncio.Event() if agent.membership is None else agent.membership.must_restart
    await first(ended, asyncio.create_task(_wait(changed)))
    await agent.stop()


async def first(ended: asyncio.Event, task: "asyncio.Task[Any]") -> bool:
    """Wait for the end or the task, and return whether the task came first."""
    waiting = asyncio.create_task(_wait(ended))
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    for one in (waiting, task):
        if not one.done():
            one.cancel()
    await asyncio.gather(waiting, *([] if task.done() else [task]), return_exceptions=True)
    return task.done() and not task.cancelled()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
