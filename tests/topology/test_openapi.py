import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from tests.topology.simulated import running

from hanse.topology.api import create_app

# These headers say where a request ends. The HTTP server refuses a wrong one in plain text, before the API sees it.
FRAMING = ("connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade")
EXAMPLES = 8  # for each operation; the slow form takes ten times as many


@pytest.fixture(scope="module")
def manager_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a manager with simulated brokers behind a real HTTP server, on a thread of its own."""
    folder = tmp_path_factory.mktemp("openapi")
    started = threading.Event()
    found: list[str] = []
    ends: list[uvicorn.Server] = []

    async def main() -> None:
        async with running(folder) as here:
            for number in range(5):
                await here.join(number)
            config = uvicorn.Config(create_app(here.manager), port=0, log_level="critical", lifespan="off")
            server = uvicorn.Server(config)
            ends.append(server)
            task = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 - uvicorn has a flag, no event
                await asyncio.sleep(0.01)
            found.append(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
            started.set()
            await task

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(30)
    yield found[0]
    ends[0].should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.processes
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(EXAMPLES * 10, marks=pytest.mark.slow)])
def test_schemathesis_finds_nothing(manager_url: str, mode: GenerationMode, examples: int) -> None:
    # The stream of events never ends, and has its own tests.
    found = schemathesis.openapi.from_url(f"{manager_url}/api/v1/openapi.json").exclude(path_regex="/events$")
    operations = [one.ok() for one in found.get_all_operations() if isinstance(one, Ok)]
    assert len(operations) == 14

    for operation in operations:

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            wait = case.query.get("wait")
            if isinstance(wait, int | float) and wait > 0:
                case.query["wait"] = 0.01  # waiting is what a poll is for, and tested elsewhere
            for name in [name for name in case.headers or () if name.lower() in FRAMING]:
                del case.headers[name]
            case.call_and_validate(timeout=30)

        try:
            check()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, "nothing can be wrong in a request without parameters"
