"""The gateway's own session at a broker, which tests the broker's health.

Rules:

1. One session per broker stays open and is pinged. When it ends, the next one is dialled at once, then at the health
   interval.
2. A broker that answers CONNECT with a refusal of the credentials is up: it speaks MQTT. Without a session there is no
   ping, so CONNECT itself is the question. The pause between two doubles up to `LOGIN_PAUSE_S_MAX`.
3. MQTT 5 is asked for first, because its CONNACK says what the broker offers. A broker that refuses it is asked again
   with 3.1.1.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from hanse.errors import Unavailable
from hanse.gateway.brokers.dialling import Dialler
from hanse.gateway.brokers.health import Health
from hanse.gateway.front.connect import MQTT_3_1_1, MQTT_5
from hanse.gateway.placement import Broker
from hanse.mqtt.framing import Splitter
from hanse.mqtt.properties import read_varint, varint

_log = logging.getLogger(__name__)

_PING: Final = b"\xc0\x00"
_DISCONNECT: Final = b"\xe0\x00"
# Maximum size of a broker's answer to CONNECT and PINGREQ.
_ANSWER_BYTES_MAX: Final = 65_536
# The broker ends a health session of a gateway that is gone after one and a half of these.
_KEEP_ALIVE_S: Final = 30
# Refusals of the version: 1 in 3.1.1, 0x84 in MQTT 5.
_BAD_VERSION: Final = frozenset({1, 0x84})
# Refusals that say that the broker is not there for anybody: 3 in 3.1.1; unavailable, shutting down.
_UNAVAILABLE: Final = frozenset({3, 0x88, 0x8B})
# Longest pause between CONNECTs at a broker that refuses the login of the health session. One per interval would fill
# its log with refusals for ever; a longer pause would notice a hung broker later.
LOGIN_PAUSE_S_MAX: Final = 5.0


def connect_packet(client_id: str, level: int, username: str | None, password: str | None) -> bytes:
    """Return the CONNECT of a session that leaves nothing behind."""
    flags = 0x02
    parts = [client_id]
    if username is not None:
        flags |= 0x80
        parts.append(username)
    if password is not None and username is not None:
        flags |= 0x40
        parts.append(password)
    head = (
        b"\x00\x04MQTT" + bytes((level, flags)) + _KEEP_ALIVE_S.to_bytes(2, "big") + (b"\0" if level == MQTT_5 else b"")
    )
    body = head + b"".join(len(raw).to_bytes(2, "big") + raw for raw in (part.encode() for part in parts))
    return b"\x10" + varint(len(body)) + body


class _Session(asyncio.Protocol):
    """One connection of the probe."""

    def __init__(self, probe: "Probe") -> None:
        self._probe = probe
        self._splitter = Splitter(_ANSWER_BYTES_MAX)
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        self.is_accepted = False
        self.connack = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._probe.connect())

    def data_received(self, data: bytes) -> None:
        found, offsets = self._splitter.feed(data)
        for start, end in offsets:
            self._probe.on_packet(self, found[start:end])
        if self._splitter.refusal is not None and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - what follows tells why
        self.transport = None
        self.ended.set()

    def ping(self) -> None:
        if self.transport is not None:
            self.transport.write(_PING)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.write(_DISCONNECT)
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Probe:
    """Watches one broker.

    Args:
        on_changed: called when the verdict or the incarnation changed.
        on_connack: called with the CONNACK of each session and its version: what the broker offers.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        broker: Broker,
        dialler: Dialler,
        client_id: str,
        *,
        username: str | None,
        password: str | None,
        interval_s: float,
        timeout_s: float,
        on_changed: Callable[["Probe"], None],
        on_connack: Callable[["Probe", bytes, int], None],
        clock: Callable[[], float],
    ) -> None:
        self.broker = broker
        self.health = Health()
        self._dialler = dialler
        self._client_id = client_id
        self._username = username
        self._password = password
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._on_changed = on_changed
        self._on_connack = on_connack
        self._clock = clock
        self._level = MQTT_5
        self._session: _Session | None = None
        self._hint = asyncio.Event()
        self._is_refused_by_credentials = False
        self._login_pause_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"health of {self.broker.id}")

    async def stop(self) -> None:
        """End the session."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._session is not None:
            self._session.close()

    @property
    def is_unknown(self) -> bool:
        """Return whether the broker has neither answered nor refused yet."""
        return self.health.rtt_s is None and self.health.verdict == "up"

    def hint(self) -> None:
        """Look now: a client's session at this broker has ended."""
        self._hint.set()

    def connect(self) -> bytes:
        """Return CONNECT in the version that the broker speaks."""
        return connect_packet(self._client_id, self._level, self._username, self._password)

    def on_packet(self, session: _Session, packet: bytes) -> None:
        """Take one packet of the broker's."""
        kind = packet[0] >> 4
        if kind == 2 and not session.connack:
            session.connack = packet
            self._on_answer(session, packet)
        elif kind == 13:
            self._answered()
        # Anything else is not for this session, and no answer either.

    def _on_answer(self, session: _Session, packet: bytes) -> None:
        at = read_varint(packet, 1, len(packet))[1] + 1
        code = packet[at] if at < len(packet) else 0x81
        if code == 0:
            session.is_accepted = True
            self._is_refused_by_credentials = False
            self._login_pause_s = self._interval_s
            self._answered()
            self._on_connack(self, packet, self._level)
        elif code in _BAD_VERSION and self._level == MQTT_5:
            self._level = MQTT_3_1_1
            self._answered()
        elif code in _UNAVAILABLE:
            self._refused(f"CONNACK with code {code:#04x}")
        else:
            if not self._is_refused_by_credentials:
                self._is_refused_by_credentials = True
                _log.warning(
                    "the broker refuses the health session; give probe_username and probe_password",
                    extra={"broker": self.broker.id, "code": code},
                )
            self._answered()
        if code:
            session.abort()

    def _answered(self) -> None:
        if self.health.answered(self._clock()):
            self._on_changed(self)

    def _refused(self, detail: str) -> None:
        if self.health.refused(detail):
            self._on_changed(self)

    async def _run(self) -> None:
        while True:
            try:
                await self._watch()
            except Exception:  # noqa: BLE001 - a watch that ended would leave the broker up for ever
                _log.exception("the health session failed", extra={"broker": self.broker.id})
                self._refused("its health session failed; the log says why")
                await asyncio.sleep(self._interval_s)

    async def _watch(self) -> None:
        had_session = False
        while True:
            session = self._session = _Session(self)
            self.health.asked(self._clock())
            try:
                # The verdict must not wait for a slow connect: silence is judged by `Health`, from outside.
                await self._dialler.dial(self.broker.url, lambda made=session: made, self._patience_s())  # type: ignore[misc]
            except Unavailable as error:
                if "did not accept" not in str(error):
                    self._refused(str(error))
                had_session = False
                await self._pause()
                continue
            if had_session and self.health.verdict == "up":
                await self._until_answered(session)
                if session.is_accepted:
                    self.health.restarted()
                    self._on_changed(self)
            await self._hold(session)
            if not session.connack:
                if self._level == MQTT_5 and self.health.verdict == "up" and not had_session:
                    # NATS closes on a CONNECT of MQTT 5.
                    self._level = MQTT_3_1_1
                else:
                    self._refused("it closed the connection before CONNACK")
                    self._level = MQTT_5
            had_session = session.is_accepted
            if self._is_refused_by_credentials and self.health.verdict == "up":
                await self._pause(limit_s=self._login_pause_s)
                self._login_pause_s = min(2 * self._login_pause_s, max(LOGIN_PAUSE_S_MAX, self._interval_s))
            elif not had_session:
                await self._pause()

    def _patience_s(self) -> float:
        return max(4 * self._timeout_s, 1.0)

    async def _until_answered(self, session: _Session) -> None:
        """Wait for CONNACK or the end, without judging how long that takes."""
        while not session.connack and not session.ended.is_set():
            with_s = self._interval_s / 4
            try:
                async with asyncio.timeout(with_s):
                    await session.ended.wait()
            except TimeoutError:
                continue

    async def _hold(self, session: _Session) -> None:
        """Ping until the session ends."""
        until_connack = self._clock() + self._patience_s()
        while not session.ended.is_set():
            await self._pause(session.ended)
            if session.ended.is_set():
                return
            if session.is_accepted:
                self.health.asked(self._clock())
                session.ping()
            elif self._clock() > until_connack:
                # The kernel answers for a stopped process. It is judged already, so dial again now and then.
                session.abort()
                await session.ended.wait()

    async def _pause(self, ended: asyncio.Event | None = None, limit_s: float | None = None) -> None:
        """Wait for the interval or `limit_s`, a hint or the end of the session."""
        waits = [asyncio.ensure_future(self._hint.wait())]
        if ended is not None:
            waits.append(asyncio.ensure_future(ended.wait()))
        try:
            await asyncio.wait(waits, timeout=limit_s or self._interval_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        self._hint.clear()
