"""Run of the load generator: it starts workers, tells them when to begin, and combines their counts into one result."""

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hanse
from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.load.histogram import Histogram
from hanse.load.plan import Load
from hanse.load.result import Latency, Result
from hanse.local.processes import die_with_parent

# A worker's report is one line. A histogram of every bucket fits in this.
_LINE_BYTES_MAX = 16 * 1024 * 1024
_READY_S = 60.0
_ERRORS: dict[str, type[HanseError]] = {
    "LocalError": LocalError,
    "RemoteError": RemoteError,
    "Unavailable": Unavailable,
}

Progress = Callable[[int, int], None]


async def throughput(
    publish_url: str,
    subscribe_url: str | Sequence[str],
    *,
    count: int,
    size_bytes: int = 64,
    qos: int = 0,
    window: int | None = None,
    warm_up: int = 0,
    settle_s: float = 0.5,
    idle_s: float = 5.0,
    topic: str = "load/{publisher}",
    subscribers: int = 1,
) -> Result:
    """Measure throughput: one publisher as fast as possible, to the given brokers, each with so many subscribers."""
    urls = (subscribe_url,) if isinstance(subscribe_url, str) else tuple(subscribe_url)
    return await run(
        Load(
            publish_urls=(publish_url,),
            subscribe_urls=urls,
            subscribers=subscribers * len(urls),
            count=count,
            size_bytes=size_bytes,
            qos=qos,
            window=window,
            warm_up=warm_up,
            settle_s=settle_s,
            idle_s=idle_s,
            topic=topic,
        )
    )


async def latency(
    publish_url: str,
    subscribe_url: str | Sequence[str],
    *,
    count: int = 5_000,
    rate_per_s: float = 1_000.0,
    size_bytes: int = 64,
    qos: int = 0,
    warm_up: int | None = None,
    settle_s: float = 0.5,
    idle_s: float = 5.0,
    topic: str = "load/{publisher}",
) -> Result:
    """Measure latency at a steady rate. By default, the first tenth of the messages warms up."""
    urls = (subscribe_url,) if isinstance(subscribe_url, str) else tuple(subscribe_url)
    return await run(
        Load(
            publish_urls=(publish_url,),
            subscribe_urls=urls,
            subscribers=len(urls),
            count=count,
            rate_per_s=rate_per_s,
            size_bytes=size_bytes,
            qos=qos,
            warm_up=count // 10 if warm_up is None else warm_up,
            settle_s=settle_s,
            idle_s=idle_s,
            topic=topic,
        )
    )


async def run(load: Load, progress: Progress | None = None) -> Result:
    """Run a plan. `progress` is called now and then with the numbers of sent and received messages.

    Raises:
        Unavailable: a broker does not answer, or the connection to it broke.
        RemoteError: a broker refused something.
    """
    number = secrets.randbits(32)
    counts = {"publish": 0, "subscribe": 0}
    seen: dict[_Worker, int] = {}

    def tell(worker: _Worker, count: int) -> None:
        seen[worker] = count
        counts[worker.role] = sum(value for other, value in seen.items() if other.role == worker.role)
        if progress is not None:
            progress(counts["publish"], counts["subscribe"])

    async with contextlib.AsyncExitStack() as stack:

        async def start(role: str, clients: int) -> list[_Worker]:
            processes = min(load.processes, clients)
            workers = [
                await stack.enter_async_context(
                    _Worker(load, number, role, list(range(first, clients, processes)), tell)
                )
                for first in range(processes)
            ]
            await asyncio.gather(*(worker.expect("ready", _READY_S) for worker in workers))
            return workers

        subscribing = await start("subscribe", load.subscribers)
        publishing = await start("publish", load.publishers)
        if load.settle_s:
            await asyncio.sleep(load.settle_s)
        for worker in publishing:
            worker.say("go")
        # A subscriber that fails meanwhile should end the run at once, not after the publishers have finished.
        reports = [asyncio.ensure_future(worker.expect("done")) for worker in [*publishing, *subscribing]]
        try:
            await _first_failure_or(reports[: len(publishing)], reports)
            published = [report.result() for report in reports[: len(publishing)]]
            sent = [row for document in published for row in document["sent"]]
            for worker in subscribing:
                worker.say(json.dumps({"sent": sent}))
            received = await asyncio.gather(*reports[len(publishing) :])
        finally:
            for report in reports:
                report.cancel()
            await asyncio.gather(*reports, return_exceptions=True)
    return _result(load, published, list(received))


async def _first_failure_or(wanted: Sequence[asyncio.Future[Any]], watched: Sequence[asyncio.Future[Any]]) -> None:
    pending = set(watched)
    while not all(future.done() for future in wanted):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()


class _Worker:
    """One worker process, as the run sees it."""

    def __init__(
        self, load: Load, number: int, role: str, clients: list[int], tell: Callable[["_Worker", int], None]
    ) -> None:
        self.role = role
        self._task = {"role": role, "run": number, "numbers": clients, "load": asdict(load)}
        self._tell = tell
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> "_Worker":  # noqa: PYI034 - not meant to be derived from
        parent_pid = os.getpid()
        source = str(Path(hanse.__file__).parents[1])
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hanse.load.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent_pid),
        )
        self.say(json.dumps(self._task))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        # Its pipe must be read to the end, or asyncio keeps the transport.
        await self._process.communicate()

    def say(self, line: str) -> None:
        """Send one line to the worker. If the worker is gone, its last report tells why."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(line.encode() + b"\n")

    async def expect(self, event: str, deadline_s: float | None = None) -> dict[str, Any]:
        """Wait for the next report of this kind.

        Raises:
            HanseError: the worker's own error, or that it ended without one.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await self._expect(event)
        except TimeoutError as error:
            raise Unavailable(f"A load worker was not {event} within {deadline_s:g} s.") from error

    async def _expect(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            document: dict[str, Any] = json.loads(line)
            match document.pop("event"):
                case "progress":
                    self._tell(self, document["count"])
                case "error":
                    raise _ERRORS.get(document["kind"], Unavailable)(document["message"])
                case seen if seen == event:
                    return document
        code = await self._process.wait()
        raise Unavailable(f"A load worker ({self.role}) ended with code {code} and no report; see its error output.")


def _result(load: Load, published: list[dict[str, Any]], received: list[dict[str, Any]]) -> Result:
    sent = sum(count for document in published for _, count in document["sent"])
    first_ns = min(document["first_send_ns"] for document in published)
    last_ns = max(document["last_send_ns"] for document in published)
    from_ns = min(document["measured_from_ns"] for document in published)
    times, lag = Histogram(), Histogram()
    for document in received:
        times.merge(Histogram.from_json(document["latency"]))
    for document in published:
        lag.merge(Histogram.from_json(document["lag"]))
    spans = [
        (count, (at_ns - from_ns) / 1e9) for document in received for count, at_ns in document["measured"] if count
    ]
    publish_s = (last_ns - first_ns) / 1e9

    def total(documents: list[dict[str, Any]], name: str) -> Any:  # noqa: ANN401 - a number of JSON
        return sum(document[name] for document in documents)

    return Result(
        published=sent,
        acknowledged=total(published, "acknowledged"),
        refused=total(published, "refused"),
        expected=sent * load.subscribers,
        received=total(received, "received"),
        lost=total(received, "lost"),
        duplicates=total(received, "duplicates"),
        reordered=total(received, "reordered"),
        corrupted=total(received, "corrupted"),
        foreign=total(received, "foreign"),
        publish_s=publish_s,
        receive_s=max((span_s for _, span_s in spans), default=0.0),
        publish_rate_per_s=sent / publish_s if publish_s else 0.0,
        receive_rate_per_s=sum(count / span_s for count, span_s in spans if span_s > 0) / max(1, load.subscribers),
        latency=Latency.of(times),
        send_lag_ms_p99=lag.percentile_ns(99) / 1e6,
        publisher_cpu_s=total(published, "cpu_s"),
        subscriber_cpu_s=total(received, "cpu_s"),
    )
