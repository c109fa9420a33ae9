"""A gateway's connection to one federator: it dials, sends the hello, stays connected, and carries requests.

    federator = FederatorConnection(endpoint, login, on_open=..., on_lost=...)
    federator.start()
    answer = await federator.ask("replay", {"filters": [...]}, timeout_s=2, on_part=take)

`ask` raises `Unavailable` at once while there is no connection. The federator's side is `hanse.federator.gateways`:
there `offer(kind, handler)` answers requests of a kind, and `request.part(...)` streams a long answer.

Rules:

1. It never gives up: it dials again with a back-off, and calls `on_open` for every new connection. The federator keeps
   nothing of the previous connection, except the reports for its owner (`login`).
2. The federator's certificate must hold the host name of its address.
3. A federator that refuses the hello is asked again, slowly: an operator may correct the token there.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.mqtt.backoff import Backoff, BackoffSettings
from hanse.mqtt.tls import TlsSettings, client_context
from hanse.request_channel import Answer, Endpoint, Handler, RequestChannel
from hanse.system_errors import reason

VERSION: Final = 1
DIAL_S: Final = 5.0
# The first pause is short: a federator restarts within a second, and clients wait for its barrier and its replay.
BACKOFF: Final = BackoffSettings(first_s=0.1, max_s=2.0)
REFUSED_PAUSE_S: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FederatorLogin:
    """Identity of a gateway for federators.

    Attributes:
        gateway: Its id.
        incarnation: A random text, new at each start of the process.
        connection: The number of the worker.
        token: The secret for federators; None if the certificate is enough.
        tls: CA, certificate and key for `tls://`.
    """

    gateway: str
    incarnation: str
    connection: int = 0
    token: str | None = field(default=None, repr=False)
    tls: TlsSettings | None = None


class FederatorConnection:
    """The connection to one federator.

    Args:
        endpoint: Where it listens for gateways.
        login: Who this gateway is.
        on_open: Called when the federator has answered the hello.
        on_lost: Called when that connection has ended.
        handlers: What answers the federator's own requests, by kind.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        login: FederatorLogin,
        *,
        on_open: Callable[["FederatorConnection"], None] | None = None,
        on_lost: Callable[["FederatorConnection"], None] | None = None,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        self.endpoint = endpoint
        # The federator's id, as soon as it is known.
        self.federator: int | None = None
        # Connections that were opened, and attempts that failed.
        self.opened = 0
        self.failures = 0
        self._login = login
        self._context = client_context(login.tls or TlsSettings()) if endpoint.is_tls else None
        self._on_open = on_open
        self._on_lost = on_lost
        self._handlers = {} if handlers is None else handlers
        self._channel: RequestChannel | None = None
        self._backoff = Backoff(BACKOFF, random.random)
        self._task: asyncio.Task[None] | None = None
        self._is_failure_logged = False

    def start(self) -> None:
        """Begin to connect."""
        assert self._task is None, "the connection was started before"
        self._task = asyncio.get_running_loop().create_task(self._stay(), name=f"federator at {self.endpoint}")

    async def stop(self) -> None:
        """End the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def is_open(self) -> bool:
        """Return whether the federator is reachable for requests."""
        return self._channel is not None and self._channel.is_open

    async def ask(
        self,
        kind: str,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
        on_part: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Ask the federator; see `RequestChannel.ask`.

        Raises:
            RemoteError: It refused.
            Unavailable: There is no connection, or no answer in time.
        """
        channel = self._channel
        if channel is None or not channel.is_open:
            raise Unavailable(f"There is no connection to the federator at {self.endpoint}.")
        return await channel.ask(kind, fields, body, timeout_s=timeout_s, on_part=on_part)

    async def _stay(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause_s = 0.0
            try:
                closed = asyncio.Event()
                channel = await self._connect(closed)
            except HanseError as error:
                self.failures += 1
                if not self._is_failure_logged:
                    _log.warning("federator at %s: %s", self.endpoint, error)
                    self._is_failure_logged = True
                pause_s = REFUSED_PAUSE_S if isinstance(error, RemoteError) else 0.0
            else:
                since = loop.time()
                await self._use(channel, closed)
                self._backoff.held(loop.time() - since)
            await asyncio.sleep(pause_s or self._backoff.next_s())

    async def _connect(self, closed: asyncio.Event) -> RequestChannel:
        loop = asyncio.get_running_loop()
        channel = RequestChannel(self._handlers, lambda _: closed.set())
        try:
            async with asyncio.timeout(DIAL_S):
                await loop.create_connection(lambda: channel, self.endpoint.host, self.endpoint.port, ssl=self._context)
                login = self._login
                hello = {
                    "version": VERSION,
                    "gateway": login.gateway,
                    "incarnation": login.incarnation,
                    "connection": login.connection,
                    "token": login.token,
                }
                answer = await channel.ask("hello", hello, timeout_s=DIAL_S)
        except TimeoutError:
            channel.abort("The hello was not answered.")
            raise Unavailable(f"It did not answer within {DIAL_S:g} s.") from None
        except OSError as error:  # ssl.SSLError is one
            channel.abort("It cannot be reached.")
            raise Unavailable(f"It cannot be reached: {reason(error)}.") from None
        except BaseException:
            channel.abort("The hello failed.")
            raise
        federator = answer.fields.get("federator")
        if type(federator) is not int:
            channel.abort("The hello was answered wrongly.")
            raise RemoteError("It answers the hello without its id; is it a federator's gateway listener?")
        self.federator = federator
        return channel

    async def _use(self, channel: RequestChannel, closed: asyncio.Event) -> None:
        self._channel = channel
        self.opened += 1
        self._is_failure_logged = False
        _log.info("connected to federator %s at %s", self.federator, self.endpoint)
        try:
            if self._on_open is not None:
                self._on_open(self)
            await closed.wait()
        finally:
            self._channel = None
            channel.abort("The gateway stops.")
            if self._on_lost is not None:
                self._on_lost(self)
