"""Probes of host brokers over MQTT: a publication, and the time until it returns. Announcements take the same route.

Rules:

1. One connection per federator to its broker, kept open, under a client id of its own. With one id for all, a broker
   that two federators share (or a relay in front of several) would end one connection for the next.
2. `hanse/probe/<manager>/<nonce>` is published and comes back by the manager's own subscription: the broker is healthy.
   Its federator answers on `hanse/probe/<manager>/<nonce>/<id>`: it is healthy as well, and gives the times by its own
   clock.
3. All probes of a round run at once. Only dialling is bounded, because it costs most. Each probe has the same deadline,
   and each ends in an observation, whatever happens.
4. A lost connection is reported at once, and not reopened: the next probe dials again.
"""

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hanse.errors import HanseError, Unavailable
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication
from hanse.mqtt.subscriptions import Subscription
from hanse.mqtt.tls import TlsSettings
from hanse.topology.checks import read_answer
from hanse.topology.health import Answer, Exchange, Observation, Outcome
from hanse.topology.model import Probe

PROBE_TOPIC = "hanse/probe"
DIALS_MAX = 200  # connections being opened at once; each takes a few milliseconds of this process
HELD_PACKETS_MAX = 64  # announcements under way to one broker


@dataclass(frozen=True, slots=True)
class Target:
    """Federator to probe, at the canonical spelling of its broker's address."""

    id: int
    key: str
    probe: Probe


class Prober(Protocol):
    """The manager's access to brokers."""

    async def probe(self, targets: Sequence[Target], timeout_s: float) -> list[Observation]:
        """Return one observation for each target, within the time."""

    async def publish(self, target: Target, topic: str, payload: bytes, timeout_s: float) -> bool:
        """Publish on a host broker, and return whether the broker accepted it."""

    async def keep(self, nodes: Sequence[int]) -> None:
        """Close the connections to all other federators."""

    async def close(self) -> None:
        """Close all connections."""


class MqttProber:
    """A `Prober` over `hanse.mqtt`."""

    def __init__(
        self,
        manager: str,
        on_lost: Callable[[int], None],
        *,
        username: str = "",
        password: str = "",
        ca_file: Path | None = None,
    ) -> None:
        self._manager = manager
        # Known ids would let anyone end the manager's connections. Their sessions hold nothing, so each process makes
        # new ones.
        self._random = secrets.token_hex(16)
        self._on_lost = on_lost
        self._username = username or None
        self._password = password or None
        self._ca_file = ca_file
        self._lines: dict[int, _Line] = {}
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._farewells: set[asyncio.Task[None]] = set()

    async def probe(self, targets: Sequence[Target], timeout_s: float) -> list[Observation]:
        """Probe all targets (rule 3)."""
        return list(await asyncio.gather(*(self._probe(target, timeout_s) for target in targets)))

    async def _probe(self, target: Target, timeout_s: float) -> Observation:
        asked = _Asked()
        begin_s = time.monotonic()
        try:
            # The deadline covers all of it, including the wait for a turn to dial.
            async with asyncio.timeout(timeout_s):
                line = await self._line(target, timeout_s)
                await line.ask(asked, must_answer=target.probe is Probe.FEDERATOR)
        except TimeoutError:
            if asked.latency_ms is not None:
                return Observation(target.id, Outcome.SILENT, asked.latency_ms, exchange=asked.exchange)
            self._drop(target.id)
            return Observation(target.id, Outcome.FAILED, exchange=asked.exchange)
        except (HanseError, OSError):
            self._drop(target.id)
            # A probe that ends well before the deadline was refused or broken, not slow.
            is_definite = time.monotonic() - begin_s < timeout_s * 0.8
            return Observation(target.id, Outcome.FAILED, is_definite=is_definite, exchange=asked.exchange)
        return Observation(target.id, Outcome.WELL, asked.latency_ms, exchange=asked.exchange)

    async def publish(self, target: Target, topic: str, payload: bytes, timeout_s: float) -> bool:
        """Publish at QoS 1, so that the broker confirms that it accepted the publication."""
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._line(target, timeout_s)
                await line.publish(topic, payload)
        except (TimeoutError, HanseError, OSError):
            return False
        return True

    async def _line(self, target: Target, timeout_s: float) -> "_Line":
        line = self._lines.get(target.id)
        if line is not None and line.is_open and line.key == target.key:
            return line
        if line is not None:
            self._drop(target.id)
        async with self._dials:
            line = self._lines.get(target.id)
            if line is not None and line.is_open:
                return line
            line = _Line(target, self._manager, self._settings(target, timeout_s), self._lost)
            try:
                await line.open()
            except BaseException:
                await line.close()
                raise
            self._lines[target.id] = line
            return line

    def _settings(self, target: Target, timeout_s: float) -> ClientSettings:
        is_tls = target.key.startswith("mqtts://")
        return ClientSettings(
            url=target.key,
            # Rule 1.
            client_id=f"hanse-manager-{self._manager}-{target.id}-{self._random}",
            username=self._username,
            password=self._password,
            tls=TlsSettings(ca_file=self._ca_file) if is_tls else None,
            keep_alive_s=max(5, round(timeout_s * 8)),
            connect_timeout_s=timeout_s,
            held_packets_max=HELD_PACKETS_MAX,
            auto_ack=True,
            version="auto",
        )

    def _lost(self, line: "_Line") -> None:
        """Apply rule 4."""
        if self._lines.get(line.id) is line:
            self._drop(line.id)
            self._on_lost(line.id)

    def _drop(self, node: int) -> None:
        line = self._lines.pop(node, None)
        if line is not None:
            task = asyncio.create_task(line.close())
            self._farewells.add(task)
            task.add_done_callback(self._farewells.discard)

    async def keep(self, nodes: Sequence[int]) -> None:
        """Close the connections to all other federators."""
        for node in self._lines.keys() - set(nodes):
            self._drop(node)

    async def close(self) -> None:
        """Close all connections."""
        await self.keep([])
        while self._farewells:
            await asyncio.gather(*self._farewells, return_exceptions=True)


class _Asked:
    """One probe under way, and its results so far."""

    __slots__ = ("_answer", "_returned_us", "_sent_us", "latency_ms")

    def __init__(self) -> None:
        self._sent_us = _now_us()
        self._returned_us: int | None = None
        self._answer: Answer | None = None
        self.latency_ms: float | None = None

    def sent(self) -> None:
        self._sent_us = _now_us()

    def answered(self, payload: bytes) -> None:
        self._returned_us = _now_us()
        self._answer = read_answer(payload)

    @property
    def exchange(self) -> Exchange:
        return Exchange(self._sent_us, self._returned_us, self._answer)


def _now_us() -> int:
    return time.time_ns() // 1000


class _Line(ClientHandler):
    """One connection to one broker."""

    def __init__(
        self, target: Target, manager: str, settings: ClientSettings, on_lost: Callable[["_Line"], None]
    ) -> None:
        self.id = target.id
        self.key = target.key
        self._prefix = f"{PROBE_TOPIC}/{manager}/"
        self._on_lost = on_lost
        self._client = Client(settings, self)
        self._is_closing = False
        self._subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: dict[str, Callable[[bytes], None]] = {}
        self._published: dict[int, asyncio.Future[None]] = {}

    @property
    def is_open(self) -> bool:
        return self._client.is_connected and not self._is_closing

    async def open(self) -> None:
        await self._client.start(must_connect=True)
        # Without No Local here: the point is to get our own publication back.
        own = Subscription(self._prefix + "#", qos=0, no_local=False, retain_as_published=False)
        self._client.subscribe([own])
        await self._subscribed

    async def ask(self, asked: _Asked, *, must_answer: bool) -> None:
        """Publish a probe, and return when all expected replies came back; `asked` gets the times."""
        nonce = secrets.token_hex(6)
        topics = [self._prefix + nonce]
        if must_answer:
            topics.append(f"{self._prefix}{nonce}/{self.id}")
        came = asyncio.Event()
        missing = set(topics)
        begin_s = time.perf_counter()

        def note(topic: str, payload: bytes) -> None:
            if topic == topics[0]:
                asked.latency_ms = (time.perf_counter() - begin_s) * 1000
            else:
                asked.answered(payload)
            missing.discard(topic)
            if not missing:
                came.set()

        for topic in topics:
            self._waiting[topic] = functools.partial(note, topic)
        try:
            asked.sent()
            self._client.publish(topics[0], b"", qos=0)
            await came.wait()
        finally:
            for topic in topics:
                self._waiting.pop(topic, None)

    async def publish(self, topic: str, payload: bytes) -> None:
        number = self._client.publish(topic, payload, qos=1)
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._published[number] = taken
        try:
            await taken
        finally:
            self._published.pop(number, None)

    async def close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(HanseError, OSError):
            await self._client.stop()
        if not self._subscribed.done():
            self._subscribed.cancel()

    def on_publications(self, publications: list[Publication]) -> None:
        for publication in publications:
            note = self._waiting.pop(publication.topic, None)
            if note is not None:
                note(publication.payload)

    def on_acknowledged(self, numbers: list[int]) -> None:
        for number in numbers:
            self._settle(number, None)

    def on_refused(self, refused: list[tuple[int, int]]) -> None:
        for number, code in refused:
            self._settle(number, Unavailable(f"The broker {self.key} refused a publication (0x{code:02x})."))

    def _settle(self, number: int, error: Unavailable | None) -> None:
        taken = self._published.get(number)
        if taken is not None and not taken.done():
            if error is None:
                taken.set_result(None)
            else:
                taken.set_exception(error)

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        if self._subscribed.done():
            return
        refused = [code for _, code in answers if code >= 0x80]
        if refused:
            self._subscribed.set_exception(
                Unavailable(f"The broker {self.key} refused the subscription to probes (0x{refused[0]:02x}).")
            )
        else:
            self._subscribed.set_result(None)

    def on_disconnected(self, error: HanseError | None) -> None:
        if not self._is_closing:
            failure = error or Unavailable(f"The broker {self.key} closed the connection.")
            if not self._subscribed.done():
                self._subscribed.set_exception(failure)
                self._subscribed.exception()
            self._on_lost(self)
