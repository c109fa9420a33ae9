"""Check that a broker has accepted a client's credentials. Without that, no broker is named to the client.

Rules:

1. The check is a session of its own at a broker: the client's user name and password, a fresh client id, clean, without
   a will, ended at once. The client's own id would end the session that the client has there.
2. A verdict is kept under a keyed hash of the credentials, for a time. No credentials are kept or logged.
3. Checks are limited in rate and number. A client whose check cannot be made now is proxied.
4. A client whose credentials are not accepted is proxied as well: its broker then refuses it with its own reason. A
   broker that judges by client id refuses the fresh id, and its clients are always proxied.
5. A reference to another server in a broker's answer does not count as acceptance, and is not passed on.
"""

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from hanse.errors import Unavailable
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.discovery.asking import Connection, Greeter, connack_of
from hanse.gateway.discovery.packets import connack_code, connect
from hanse.gateway.front.connect import MQTT_5, Connect
from hanse.gateway.placement import Broker

ACCEPTED_S: Final = 60.0
REFUSED_S: Final = 5.0
VERDICTS_MAX: Final = 100_000
AT_ONCE_MAX: Final = 50
RATE: Final = 200.0

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"
BUSY: Final = "busy"
UNAVAILABLE: Final = "unavailable"


class Credentials:
    """The verdicts of one worker.

    Args:
        rate: checks per second.
        timeout_s: time for one check.
        clock: monotonic seconds.
    """

    def __init__(
        self, dialler: Dialler, *, rate: float = RATE, timeout_s: float = 2.0, clock: Callable[[], float]
    ) -> None:
        self.checks = 0
        self._dialler = dialler
        self._rate = rate
        self._timeout_s = timeout_s
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._verdicts: OrderedDict[bytes, tuple[float, bool]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[str]] = {}
        self._allowance = rate
        self._allowed_at = clock()

    def key(self, client: Connect) -> bytes:
        """Return the keyed hash of a client's credentials (rule 2)."""
        text = b"".join(
            b"\0" if part is None else b"\1" + len(part).to_bytes(4, "big") + part
            for part in (client.username, client.password)
        )
        return hashlib.blake2b(text, digest_size=16, key=self._secret).digest()

    def known(self, key: bytes) -> str:
        """Return the verdict if there is one, else nothing."""
        found = self._verdicts.get(key)
        if found is None or found[0] < self._clock():
            return ""
        return ACCEPTED if found[1] else REFUSED

    async def check(self, key: bytes, client: Connect, broker: Broker) -> str:
        """Ask a broker; return `accepted`, `refused`, `busy` (rule 3) or `unavailable`."""
        task = self._asking.get(key)
        if task is None:
            if len(self._asking) >= AT_ONCE_MAX or not self._is_allowed():
                return BUSY
            task = self._asking[key] = asyncio.get_running_loop().create_task(self._check(key, client, broker))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """End the checks that are under way."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_allowed(self) -> bool:
        now = self._clock()
        self._allowance = min(self._rate, self._allowance + (now - self._allowed_at) * self._rate)
        self._allowed_at = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    async def _check(self, key: bytes, client: Connect, broker: Broker) -> str:
        self.checks += 1
        greeter = Greeter(connect(f"hanse-check-{secrets.token_hex(12)}", MQTT_5, client.username, client.password))
        connection = Connection(greeter)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._dialler.dial(broker.url, lambda: connection, self._timeout_s)
                await connack_of(connection, greeter)
        except (Unavailable, TimeoutError):
            return UNAVAILABLE
        finally:
            if greeter.connack is None:
                connection.abort()
            else:
                connection.close()
        if greeter.connack is None:
            return UNAVAILABLE
        is_accepted = connack_code(greeter.connack) == 0
        self._verdicts[key] = (self._clock() + (ACCEPTED_S if is_accepted else REFUSED_S), is_accepted)
        self._verdicts.move_to_end(key)
        while len(self._verdicts) > VERDICTS_MAX:
            self._verdicts.popitem(last=False)
        return ACCEPTED if is_accepted else REFUSED
