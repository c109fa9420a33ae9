"""A new client id for the session at the host broker: after a take-over, or in place of an id that can be guessed.

Rules:

1. The new id is on disk before it is used. The broker learns of the new session first. Then the old session is ended
   by a clean start, which also disconnects the client that has it and deletes what waits there.
2. An old session that cannot be ended now is tried again every `RETRY_S`, also by the next process.
3. Whoever learns the new id as well takes the session over again. So ids change at most once in `RENEW_S`: each change
   costs the messages between two sessions.
4. A pattern without `{random}` gives the same id again. Then nothing changes, and the log says what to do.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from hanse.errors import HanseError, LocalError
from hanse.federator.sessions import Sessions
from hanse.mqtt.client import Client, ClientHandler, ClientSettings

RENEW_S = 30.0
RETRY_S = 30.0
_log = logging.getLogger(__name__)


class SessionRenewal:
    """The renewal for one federator.

    Args:
        sessions: the client ids on disk.
        settings: those of the session at the host broker.
        rename: makes that session connect with another client id.
        is_up: returns whether that session stands.
    """

    def __init__(
        self, sessions: Sessions, settings: ClientSettings, *, rename: Callable[[str], None], is_up: Callable[[], bool]
    ) -> None:
        self._sessions = sessions
        self._settings = settings
        self._rename = rename
        self._is_up = is_up
        self._loop = asyncio.get_running_loop()
        self._renewed_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()

    def taken_over(self) -> bool:
        """Change the client id, now or when rule 3 allows it, and return True; return False if it stays (rule 4)."""
        if not self._sessions.is_random:
            _log.error(
                "the session at the host broker keeps the client id that another client used: the setting client_id "
                "has no {random}. Add it, or let the broker decide who may use the id."
            )
            return False
        wait_s = 0.0 if self._renewed_s is None else self._renewed_s + RENEW_S - self._loop.time()
        if wait_s <= 0:
            self._renew()
        elif self._timer is None:
            self._timer = self._loop.call_later(wait_s, self._renew)
        return True

    def connected(self, *, session_present: bool) -> None:
        """Note that the session stands: former ones may be ended.

        An id of an older version, or of another pattern, is given up once the broker has forgotten that session,
        because nothing waits there then.
        """
        self._wake.set()
        if not session_present and self._sessions.must_move:
            self._loop.call_soon(self._renew)

    async def end_former_sessions(self) -> None:
        """End former sessions, again and again; cancel it to stop."""
        try:
            while True:
                self._wake.clear()
                for client_id in list(self._sessions.record.ending) if self._is_up() else ():
                    await self._end(client_id)
                await self._wake_or(RETRY_S if self._sessions.record.ending else None)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _renew(self) -> None:
        self._timer = None
        self._renewed_s = self._loop.time()
        try:
            client_id = self._sessions.begin_anew()
        except LocalError as error:
            _log.error("the session at the host broker keeps the client id that another client used: %s", error)
            return
        _log.warning("the session at the host broker gets a new client id; the former session is ended")
        self._rename(client_id)

    async def _end(self, client_id: str) -> None:
        settings = replace(
            self._settings,
            client_id=client_id,
            clean_start=True,
            session_expiry_s=0,
            tells_packet_max=True,
            probe_topic=None,
        )
        client = Client(settings, ClientHandler())
        try:
            await client.start(must_connect=True)
            await client.stop()
            self._sessions.note_ended(client_id)
        except HanseError as error:
            _log.warning("a former session at the host broker could not be ended, it is tried again: %s", error)
        else:
            _log.info("a former session at the host broker was ended")

    async def _wake_or(self, timeout_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)
