"""The collector: holds the session at a broker and makes what arrives durable before it says so. No Spark here.

How rows become durable, and what the collector says of itself, is `spool_keeper`'s; this is the broker's side. The
collector that is a member of a federation is `leaf_collector`.

Rules:

1. PUBACK (PUBREC at QoS 2) goes out only after the block that holds the message is on disk.
2. Group commit: what has come is committed at least every `commit_interval_s` or `commit_bytes_max`, one commit at
   a time, in a thread; meanwhile the next one fills.
3. The session is persistent and the client id stable, so that the broker keeps what comes while no collector runs.
4. Back-pressure is the broker's window (receive maximum); beyond `QUEUE_BYTES_MAX` the collector leaves until it
   has caught up. A spool without room stops acknowledging, says so, and tries again: nothing is dropped. QoS 0 has
   no acknowledgement: what a broker sends while nobody listens is gone, as MQTT has it.
5. A redelivery of what is spooled already is acknowledged and not spooled again (`redelivery`).

`python -m hanse.pipeline.collector` reads its settings as one line of JSON and runs until its input ends.
"""

import asyncio
import contextlib
import functools
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import uvloop

from hanse import logs
from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.mqtt.backoff import Backoff, BackoffSettings
from hanse.mqtt.client import Client, ClientHandler, ClientSettings
from hanse.mqtt.publication import Publication
from hanse.mqtt.subscriptions import Subscription
from hanse.mqtt.tls import TlsSettings
from hanse.pipeline.collector_rows import Row, build, content_of, last_rows
from hanse.pipeline.collector_settings import CollectorSettings, covers
from hanse.pipeline.collector_status import CollectorStatus, State
from hanse.pipeline.commit_queue import CommitQueue
from hanse.pipeline.redelivery import Redelivery
from hanse.pipeline.spool_keeper import SpoolKeeper

_log = logging.getLogger("hanse.collect")

# Received and not yet durable. The broker's window bounds messages, not bytes: 65534 of 16 MiB would be a terabyte.
QUEUE_BYTES_MAX = 64 * 1024 * 1024
# Redelivered and not yet known to be copies or new: acknowledgements lost for this much is more than any connection
# has under way.
HELD_BYTES_MAX = 64 * 1024 * 1024
# A packet's share of the queue beyond its own bytes: the tuple, the list, the strings.
_PACKET_OVERHEAD_BYTES = 200

# How many rows a restart looks back for: the broker can hold no more than its window unacknowledged.
_WINDOW = 65_534

# A broker redelivers at once on connecting; one that is silent for so long within a run has nothing more to send.
REDELIVERY_QUIET_S = 5.0

_SESSION_FILE = "session.json"

# Where Mosquitto counts what it dropped, for a client away too long for its queue among others. No row is lost in
# silence: what did not reach the collector is counted here. Other brokers leave it out.
_DROPPED_TOPIC = "$SYS/broker/publish/messages/dropped"


class _Session(ClientHandler):
    """One connection. It says nothing more once it has ended, whatever its client still does."""

    def __init__(self, collector: "Collector") -> None:
        self._collector = collector
        self.is_over = False

    def on_connected(self, session_present: bool) -> None:
        """Whether the broker knows us still."""
        # The client of a connection that has ended may dial again before it is stopped.
        if self.is_over:
            self._collector.has_lost_session |= not session_present
        else:
            self._collector.begin(session_present)

    def on_disconnected(self, error: HanseError | None) -> None:
        """The end; every connection has a client of its own."""
        if not self.is_over:
            self.is_over = True
            self._collector.end(error)

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """The broker's answers."""
        if not self.is_over:
            self._collector.subscribed(answers)

    def on_publications(self, publications: list[Publication]) -> None:
        """One read. What is not taken is not acknowledged either, so it comes again: after a new connection."""
        if not self.is_over and not self._collector.take(publications):
            self.is_over = True


class Collector:
    """One session into one producer's spool.

    Args:
        settings: where from, where to, how.
        waits_for_lock: wait while another collector writes to the spool, instead of refusing.
    """

    def __init__(self, settings: CollectorSettings, *, waits_for_lock: bool = False) -> None:
        self.settings = settings
        self.status = CollectorStatus(pid=os.getpid())
        self._waits_for_lock = waits_for_lock
        self._redelivery: Redelivery[Row] = Redelivery()
        self._queue: CommitQueue[Row] = CommitQueue(
            lambda row: len(row[1].packet) + _PACKET_OVERHEAD_BYTES,
            interval_s=settings.commit_interval_s,
            bytes_max=settings.commit_bytes_max,
        )
        self._stopping = asyncio.Event()
        self.keeper = SpoolKeeper(
            settings,
            self.status,
            self._stopping,
            is_busy=lambda: bool(self._queue.bytes or self._redelivery.held),
            state_now=self._state_now,
        )
        self._held_since = 0.0
        self._held_bytes = 0
        # Rows that wait, received in a session that the broker has lost since.
        self._old_rows = 0
        # A connection that had ended came back to a broker that had lost the session.
        self.has_lost_session = False
        self._fatal: LocalError | None = None
        self._client: Client | None = None
        # One that collects it as data gets it as data alone.
        self._watches_drops = not any(covers(one, _DROPPED_TOPIC) for one in settings.topics)
        _warn_of_overlaps(settings.topics)

    def _client_settings(self) -> ClientSettings:
        given = self.settings
        has_tls = given.ca_file or given.cert_file
        return ClientSettings(
            url=given.url,
            client_id=given.client_id,
            username=given.username,
            password=given.password,
            tls=TlsSettings(
                ca_file=Path(given.ca_file) if given.ca_file else None,
                cert_file=Path(given.cert_file) if given.cert_file else None,
                key_file=Path(given.key_file) if given.key_file else None,
            )
            if has_tls
            else None,
            clean_start=False,
            session_expiry_s=given.session_expiry_s,
        )

    # The life of it.

    async def run(self) -> None:
        """Collect until `stop` is called.

        Raises:
            LocalError: the spool cannot be written, or the broker refuses what it was told.
        """
        try:
            if not await self.keeper.open(waits_for_lock=self._waits_for_lock):
                return
            self._recover()
            await self._collect()
        finally:
            self.keeper.say("stopped", self.status.reason)
            self.keeper.close()

    def stop(self) -> None:
        """Finish what has come, acknowledge it, end."""
        self._stopping.set()
        self._queue.wake()

    def _state_now(self) -> State:
        return "collecting" if self._client is not None and self._client.is_subscribed else "connecting"

    async def _collect(self) -> None:
        self.keeper.begin()
        backoff = Backoff(BackoffSettings(), random.random)
        try:
            while not self._stopping.is_set():
                self.keeper.say("connecting", self.status.reason)
                began = time.monotonic()
                if await self._connect():
                    backoff.held(time.monotonic() - began)
                if not self._stopping.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stopping.wait(), backoff.next_s())
        finally:
            await self.keeper.end()
        if self._fatal is not None:
            raise self._fatal

    async def _connect(self) -> bool:
        """One connection, from CONNECT to its end; whether it stood.

        Each has a client of its own, so that a lost connection is the same as a killed process: whatever the broker
        did not hear of comes again, in order, and is sorted into copies and new rows.
        """
        session = _Session(self)
        client = Client(self._client_settings(), session)
        client.subscribe(
            Subscription(
                one,
                qos=self.settings.qos,
                no_local=False,
                retain_as_published=True,
                # Retained messages come with a new subscription, not once more at every restart.
                retain_handling=1,
            )
            for one in self.settings.topics
        )
        if self._watches_drops:
            client.subscribe([Subscription(_DROPPED_TOPIC, qos=0, no_local=False, retain_handling=0)])
        # Known before it starts: publications may come, and be acknowledged, in the same turn as the CONNACK.
        self._client = client
        try:
            await client.start(must_connect=True)
            await self._commit_until_over(session)
        except (RemoteError, Unavailable) as error:
            self._complain(error)
            return False
        except LocalError as error:
            if not self.status.connects:
                raise
            self._complain(error)
            return False
        finally:
            session.is_over = True
            self._client = None
            await client.stop()
        # Durable before the next connection, which then finds them to be copies.
        while self._queue and not self._stopping.is_set():
            await self._commit()
        return True

    def _complain(self, error: HanseError) -> None:
        self.keeper.say("connecting", str(error))
        _log.warning("%s Trying again.", error)

    # What a connection tells.

    def begin(self, session_present: bool) -> None:
        """The broker let us in. A session that is not the old one starts the packet identifiers anew."""
        self.status.connects += 1
        self._held_bytes = 0
        if session_present and not self.has_lost_session:
            self.status.sessions_resumed += 1
            self._redelivery.resumed()
        else:
            self.has_lost_session = False
            # Received in a session that is gone: nobody will send it again.
            self._queue.add(self._redelivery.give_up())
            self._old_rows = len(self._queue)
            self._redelivery.forget()
            self._remember_session()

    def end(self, error: HanseError | None) -> None:
        """The connection is lost."""
        if error is not None:
            self._complain(error)
        self._queue.wake()

    def subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Filters that the broker refuses are the operator's to settle."""
        refused = [(one.filter, code) for one, code in answers if code >= 0x80 and one.filter != _DROPPED_TOPIC]
        if refused:
            what = ", ".join(f"{name!r} (reason 0x{code:02X})" for name, code in refused)
            self._fatal = LocalError(f"{self.settings.url} refused the subscription to {what}; check its rules.")
            self.stop()
            return
        for one, code in answers:
            if code < one.qos:
                _log.warning("%r was granted QoS %d instead of %d.", one.filter, code, one.qos)
        self.keeper.note_activity()
        if self.status.state != "full":
            self.keeper.say("collecting")

    def take(self, publications: list[Publication]) -> bool:
        """One read; whether it was taken. No row is built here: that is the committing thread's work."""
        if self._stopping.is_set():
            return False
        if self._queue.bytes > QUEUE_BYTES_MAX:
            _log.warning("%d bytes wait for the disk: leaving the broker until they are written.", self._queue.bytes)
            self._queue.wake()
            return False
        if self._watches_drops and any(one.topic == _DROPPED_TOPIC for one in publications):
            publications = self._note_drops(publications)
        now_us = time.time_ns() // 1000
        self.status.received += len(publications)
        if self._redelivery.is_open:
            self._sort_redelivered(now_us, publications)
        else:
            self._queue.add([(now_us, one) for one in publications])
        self._note_queue()
        return True

    def _note_drops(self, publications: list[Publication]) -> list[Publication]:
        for one in publications:
            if one.topic == _DROPPED_TOPIC and one.payload.isdigit():
                self._dropped_by_broker(int(one.payload))
        return [one for one in publications if one.topic != _DROPPED_TOPIC]

    def _dropped_by_broker(self, count: int) -> None:
        before, self.status.broker_dropped = self.status.broker_dropped, count
        if before is not None and count > before:
            _log.error(
                "The broker has dropped %d messages more. If they were for this session, its queue is too short "
                "(Mosquitto: max_queued_messages).",
                count - before,
            )

    def _sort_redelivered(self, now_us: int, publications: list[Publication]) -> None:
        found = self._redelivery.sort(
            [((now_us, one), one.dup, one.packet_id, content_of(one) if one.dup else 0) for one in publications]
        )
        self._held_since = time.monotonic()
        self._held_bytes += sum(len(one.packet) + _PACKET_OVERHEAD_BYTES for one in publications)
        if not self._redelivery.held:
            self._held_bytes = 0
        elif self._held_bytes > HELD_BYTES_MAX:
            # More than memory may hold: rather twice than not at all.
            found.new += self._redelivery.give_up()
            self._held_bytes = 0
        self.status.copies += len(found.copies)
        self._acknowledge([one.receipt for _, one in found.copies])
        self._queue.add(found.new)

    def _note_queue(self) -> None:
        self.status.queue_bytes = self._queue.bytes
        self.status.queue_bytes_peak = max(self.status.queue_bytes_peak, self._queue.bytes)

    # Commits.

    async def _commit_until_over(self, session: _Session) -> None:
        while not session.is_over:
            if self._stopping.is_set() and not self._queue:
                return
            if not self._queue:
                await self._queue.wait_for_some()
                self._decide_silent_run()
            if not self._stopping.is_set():
                await self._queue.gather()
            await self._commit()

    def _decide_silent_run(self) -> None:
        if self._redelivery.held and time.monotonic() - self._held_since > REDELIVERY_QUIET_S:
            self._queue.add(self._redelivery.give_up())
            self._held_bytes = 0

    async def _commit(self) -> None:
        """Write what has come, in blocks of the commit's size, and acknowledge each."""
        while self._queue:
            rows, size = self._queue.take()
            client = self._client
            seen = await self.keeper.write(
                functools.partial(build, self.settings.client_id, rows), [received_us for received_us, _ in rows]
            )
            if seen is None:
                return
            # Acknowledged on the connection that brought them, or not at all: on another one they are copies.
            if client is not None and client is self._client:
                self._acknowledge([one.receipt for _, one in rows if one.receipt])
            old, self._old_rows = min(self._old_rows, len(rows)), max(0, self._old_rows - len(rows))
            self._redelivery.spooled(seen[old:])
            self._queue.done(size)
            self.status.queue_bytes = self._queue.bytes
            if not self._queue.is_urgent:
                return

    def _acknowledge(self, receipts: list[int]) -> None:
        if receipts and self._client is not None:
            self._client.ack(receipts)
            self.status.acknowledged += len(receipts)

    # The session, over restarts.

    def _remember_session(self) -> None:
        """Rows before this one belong to sessions whose packet identifiers mean nothing any more."""
        path = self.keeper.writer.directory / _SESSION_FILE
        beside = path.with_suffix(".tmp")
        first = self.keeper.writer.position.rows + self._old_rows
        with beside.open("w", encoding="utf-8") as file:
            json.dump({"url": self.settings.url, "first_row": first}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def _recover(self) -> None:
        """Learn from the spool what was spooled last in this session."""
        try:
            session = json.loads((self.keeper.writer.directory / _SESSION_FILE).read_text(encoding="utf-8"))
            first, url = int(session["first_row"]), session["url"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if url == self.settings.url:
            seen = last_rows(self.settings.spool, self.settings.client_id, first_row=first, count=_WINDOW)
            self._redelivery.spooled(seen)


def _warn_of_overlaps(topics: Iterable[str]) -> None:
    names = list(topics)
    for n, one in enumerate(names):
        for other in names[n + 1 :]:
            if "+" in one + other and not covers(one, other) and not covers(other, one) and may_overlap(one, other):
                _log.warning(
                    "The filters %r and %r overlap: some brokers (Mosquitto) send what matches both twice, and it "
                    "is two rows then.",
                    one,
                    other,
                )


def may_overlap(one: str, other: str) -> bool:
    """Whether some topic matches both filters."""
    left, right = one.split("/"), other.split("/")
    for n in range(max(len(left), len(right))):
        ours = left[n] if n < len(left) else None
        theirs = right[n] if n < len(right) else None
        if "#" in {ours, theirs}:
            return True
        if ours is None or theirs is None:
            return False
        if ours != theirs and "+" not in {ours, theirs}:
            return False
    return True


# The helper process of a source.


async def _run_until_input_ends(settings: CollectorSettings) -> None:
    collector = Collector(settings, waits_for_lock=True)
    loop = asyncio.get_running_loop()
    ended = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ended), sys.stdin)
    watcher = asyncio.create_task(ended.read())
    watcher.add_done_callback(lambda _: collector.stop())
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, collector.stop)
    try:
        await collector.run()
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


def main() -> int:
    """The helper: settings on the first line of the input, and its end is the order to stop."""
    logs.configure("plain", "warning")
    try:
        settings = CollectorSettings.from_json(_first_line())
        uvloop.run(_run_until_input_ends(settings))
    except LocalError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except HanseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _first_line() -> str:
    # Byte by byte: what a buffered reader takes beyond the line would be lost to the loop that waits for the end.
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in {b"", b"\n"}:
        line += byte
    return line.decode()


if __name__ == "__main__":
    sys.exit(main())
