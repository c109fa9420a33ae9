"""Collector: holds a session at a broker and acknowledges a message only once it is on disk. It does not use Spark.

This module handles the broker's side. `spool_keeper` writes rows to disk and reports the collector's status. The
collector that joins a federation as a member is `leaf_collector`.

Rules:

1. The collector sends PUBACK (PUBREC for QoS 2) only after the block with the message is on disk.
2. Group commit: received messages are committed after `commit_interval_s` or `commit_bytes_max`, whichever is reached
   first. A thread runs one commit at a time while the next one fills.
3. The session is persistent and the client id stable, so the broker queues messages while no collector runs. A derived
   client id ends in 128 random bits, which are kept in the spool: a broker gives a session to any client with its id.
4. The broker's window (receive maximum) provides back-pressure. Beyond `QUEUE_BYTES_MAX` the collector disconnects
   until it has caught up. If the spool is full, the collector stops acknowledging, reports it and retries; it drops
   nothing. QoS 0 has no acknowledgement: messages that the broker sends while no collector listens are lost, as MQTT
   defines.
5. A redelivery of a message that is already in the spool is acknowledged and not written again (see `redelivery`).

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
from hanse.mqtt.client import Client, ClientHandler, ClientSettings, SentAway
from hanse.mqtt.client_ids import ID, RANDOM, ClientIds, SessionRecord, read_record, write_record
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

# Limit for messages received and not yet durable. The broker's window bounds messages, not bytes: 65534 messages of 16
# MiB would be a terabyte.
QUEUE_BYTES_MAX = 64 * 1024 * 1024
# Limit for redelivered messages not yet known to be duplicates or new. No connection has so many bytes of lost
# acknowledgements in flight.
HELD_BYTES_MAX = 64 * 1024 * 1024
# Queue bytes counted per packet beyond its own size: the tuple, the list entry and the strings.
_PACKET_OVERHEAD_BYTES = 200

# Number of rows that a restart reads back: the broker cannot hold more than its window unacknowledged.
_WINDOW = 65_534

# A broker redelivers at once after connecting. If it pauses this long within a run of redeliveries, it has no more.
REDELIVERY_QUIET_S = 5.0

_SESSION_FILE = "session.json"
# The client id of the session, readable by its owner only.
_IDS_FILE = "session"

# Mosquitto's counter of dropped messages, which includes drops from the queues of absent clients. The collector reads
# it so that no lost row goes unreported. Other brokers do not provide it.
_DROPPED_TOPIC = "$SYS/broker/publish/messages/dropped"


class _Session(ClientHandler):
    """One connection. After it has ended it reports nothing more, whatever its client still does."""

    def __init__(self, collector: "Collector") -> None:
        self._collector = collector
        self.is_over = False

    def on_connected(self, session_present: bool) -> None:
        """Tell the collector whether the broker still has the session."""
        # The client of an ended connection may reconnect before it is stopped.
        if self.is_over:
            self._collector.has_lost_session |= not session_present
        else:
            self._collector.begin(session_present)

    def on_disconnected(self, error: HanseError | None) -> None:
        """Report the end of the connection; every connection has a client of its own."""
        if not self.is_over:
            self.is_over = True
            self._collector.end(error)

    def on_subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Pass on the broker's SUBACK codes."""
        if not self.is_over:
            self._collector.subscribed(answers)

    def on_publications(self, publications: list[Publication]) -> None:
        """Pass on the publications of one read.

        Publications that the collector does not take stay unacknowledged, so they come again on a new connection.
        """
        if not self.is_over and not self._collector.take(publications):
            self.is_over = True


class Collector:
    """Collects the messages of one session into one producer's spool.

    Args:
        settings: the broker, the spool and the limits.
        waits_for_lock: wait while another collector writes to the spool, instead of raising an error.
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
        self._client_id = ""
        self.keeper = SpoolKeeper(
            settings,
            self.status,
            self._stopping,
            is_busy=lambda: bool(self._queue.bytes or self._redelivery.held),
            state_now=self._state_now,
        )
        self._held_since = 0.0
        self._held_bytes = 0
        # Queued rows that were received in a session which the broker has lost since.
        self._old_rows = 0
        # Set when an ended connection reconnected and the broker had lost the session.
        self.has_lost_session = False
        self._fatal: LocalError | None = None
        self._client: Client | None = None
        # A collector that subscribes to the counter as data must not consume it here.
        self._watches_drops = not any(covers(one, _DROPPED_TOPIC) for one in settings.topics)
        _warn_of_overlaps(settings.topics)

    def _client_settings(self) -> ClientSettings:
        given = self.settings
        has_tls = given.ca_file or given.cert_file
        return ClientSettings(
            url=given.url,
            client_id=self._session_id(),
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

    # Life cycle.

    async def run(self) -> None:
        """Collect until `stop` is called.

        LocalError: the spool cannot be written, or the broker refuses the settings.
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
        """Finish and acknowledge the messages received so far, then end `run`."""
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
        """Run one connection from CONNECT to its end; return True if it was established.

        Each connection has a client of its own, so a lost connection needs the same handling as a killed process: the
        broker sends every message without an acknowledgement again, in order, and `redelivery` separates duplicates
        from new rows.
        """
        session = _Session(self)
        try:
            client = Client(self._client_settings(), session)
        except Unavailable as error:
            self._complain(error)
            return False
        client.subscribe(
            Subscription(
                one,
                qos=self.settings.qos,
                no_local=False,
                retain_as_published=True,
                # Send retained messages for a new subscription only, not again after every restart.
                retain_handling=1,
            )
            for one in self.settings.topics
        )
        if self._watches_drops:
            client.subscribe([Subscription(_DROPPED_TOPIC, qos=0, no_local=False, retain_handling=0)])
        # Set before the start: publications may arrive and be acknowledged in the same read as the CONNACK.
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
        # Make these rows durable before the next connection, so that it recognises them as duplicates.
        while self._queue and not self._stopping.is_set():
            await self._commit()
        return True

    def _complain(self, error: HanseError) -> None:
        self.keeper.say("connecting", str(error))
        _log.warning("%s Trying again.", error)

    # Events of a connection.

    def begin(self, session_present: bool) -> None:
        """Start work on a new connection. Packet identifiers from a lost session are no longer valid."""
        self.status.connects += 1
        self._held_bytes = 0
        if session_present and not self.has_lost_session:
            self.status.sessions_resumed += 1
            self._redelivery.resumed()
        else:
            self.has_lost_session = False
            # These publications belong to a lost session, so nobody will send them again.
            self._queue.add(self._redelivery.give_up())
            self._old_rows = len(self._queue)
            self._redelivery.forget()
            self._remember_session()

    def end(self, error: HanseError | None) -> None:
        """Handle a lost connection."""
        if isinstance(error, SentAway) and error.is_taken_over:
            _log.error(
                "Another client took over the session at the broker: messages that came there meanwhile are lost. Find "
                "out who knows the client id, and stop that client."
            )
        if error is not None:
            self._complain(error)
        self._queue.wake()

    def subscribed(self, answers: list[tuple[Subscription, int]]) -> None:
        """Check the SUBACK codes; stop if the broker refused a filter, because only the operator can resolve that."""
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
        """Queue the publications of one read; return False if they were refused.

        The commit thread builds the rows later.
        """
        if self._stopping.is_set():
            return False
        if self._queue.bytes > QUEUE_BYTES_MAX:
            _log.warning("%d bytes wait for the disk; disconnecting from the broker meanwhile.", self._queue.bytes)
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
                "The broker has dropped another %d messages. If they were for this session, its queue is too short "
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
            # The limit on memory is reached: a duplicate row is better than a lost one.
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
        """Write the queued rows in blocks of the commit's size, and acknowledge each block."""
        while self._queue:
            rows, size = self._queue.take()
            client = self._client
            seen = await self.keeper.write(
                functools.partial(build, self.settings.client_id, rows), [received_us for received_us, _ in rows]
            )
            if seen is None:
                return
            # Acknowledge only on the connection that delivered these rows. On a new one they come again, as duplicates.
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

    # The session, across restarts.

    def _session_id(self) -> str:
        """Return the client id of the session, which is on disk when this returns.

        Raises:
            Unavailable: The disk refuses.
        """
        if self._client_id:
            return self._client_id
        given = self.settings
        if not given.has_derived_id:
            self._client_id = given.client_id
            return self._client_id
        path = self.keeper.writer.directory / _IDS_FILE
        record = None
        try:
            try:
                record = read_record(path)
            except LocalError as error:
                if not path.exists():
                    raise
                _log.error(
                    "%s It is put aside. What waits in the former session at the broker is not collected.", error
                )
                path.replace(path.with_name(path.name + ".damaged"))
            else:
                if record is None and path.with_name(_SESSION_FILE).exists():
                    # The session of an older version goes on, with what waits in it.
                    record = SessionRecord(current=given.client_id)
            record = record or SessionRecord()
            if not record.current:
                record.current = ClientIds(f"{ID}-{RANDOM}", given.client_id, record.secret).of()
            write_record(path, record)
        except (LocalError, OSError) as error:
            raise Unavailable(str(error)) from error
        self._client_id = record.current
        return self._client_id

    def _remember_session(self) -> None:
        """Record the first row of this session; the packet identifiers of earlier rows are no longer valid."""
        path = self.keeper.writer.directory / _SESSION_FILE
        beside = path.with_suffix(".tmp")
        first = self.keeper.writer.position.rows + self._old_rows
        with beside.open("w", encoding="utf-8") as file:
            json.dump({"url": self.settings.url, "first_row": first}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def _recover(self) -> None:
        """Read the last spooled rows of this session, so that their redeliveries are recognised."""
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
                    "The filters %r and %r overlap. Some brokers (Mosquitto) send a message that matches both twice, "
                    "which gives two rows.",
                    one,
                    other,
                )


def may_overlap(one: str, other: str) -> bool:
    """Return whether some topic matches both filters."""
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


# The helper process of a data source.


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
    """Run the helper process; the first line of its input holds the settings, and the end of the input stops it."""
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
    # Read byte by byte: a buffered reader would swallow input that the event loop needs in order to see the end.
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in {b"", b"\n"}:
        line += byte
    return line.decode()


if __name__ == "__main__":
    sys.exit(main())
