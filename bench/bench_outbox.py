"""Compare the outbox with SQLite and its write-ahead log: CPU time per record for append, commit, read and discard.

    PYTHONPATH=src python bench/bench_outbox.py [--records 200000] [--rounds 5] [--payload-bytes 200] [--dir DIR]

Prints one JSON object. Both keep the same records and sync the same groups of them; rounds alternate. `cpu_us` is user
and system time of the process for one record, so that a disk that is slow or shared does not blur it; `commit_ms` is
wall-clock time of one commit, which is the disk's. A batch is what one read from a connection gives; a commit takes
some batches together, and what was sent is discarded a batch at a time. `memory_bytes` is what all records on disk
cost in memory. The mapped tables (ring, packet slots, journal) have no peer here: their figures stand alone.
"""

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hanse.federator import records as record_bytes
from hanse.federator.journal import DeliveryJournal
from hanse.federator.outbox import Outbox
from hanse.federator.ring import DeliveredRing
from hanse.federator.segment import HEADER_BYTES
from hanse.federator.slots import PacketSlots
from hanse.mqtt.publication import encode
from hanse.protocol.messages import Run

BATCH = 64
BATCHES_A_COMMIT = 16


class Store(Protocol):
    """Operations of both stores."""

    def append(self, payloads: list[bytes]) -> None:  # noqa: D102
        ...

    def commit(self) -> None:  # noqa: D102
        ...

    def read(self, position: int) -> list[tuple[int, bytes]]:  # noqa: D102
        ...

    def discard(self, positions: list[int]) -> None:  # noqa: D102
        ...


class OurOutbox:
    """One way of an outbox."""

    def __init__(self, path: Path) -> None:
        self._outbox = Outbox(path, bytes_max=1 << 40)

    def append(self, payloads: list[bytes]) -> None:  # noqa: D102
        self._outbox.append(1, payloads)

    def commit(self) -> None:  # noqa: D102
        self._outbox.commit()

    def read(self, position: int) -> list[tuple[int, bytes]]:  # noqa: D102
        return self._outbox.read(1, position, BATCH, 1 << 20)

    def discard(self, positions: list[int]) -> None:  # noqa: D102
        self._outbox.discard(1, positions)


class Sqlite:
    """The obvious alternative: a queue table by way and position, synced at each commit."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._database = sqlite3.connect(path / "outbox.db", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(
            "CREATE TABLE records (way INTEGER, position INTEGER, payload BLOB, PRIMARY KEY (way, position)) "
            "WITHOUT ROWID"
        )
        self._database.execute("BEGIN")
        self._next = 0

    def append(self, payloads: list[bytes]) -> None:  # noqa: D102
        rows = [(1, position, payload) for position, payload in enumerate(payloads, self._next)]
        self._database.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
        self._next += len(payloads)

    def commit(self) -> None:  # noqa: D102
        self._database.execute("COMMIT")
        self._database.execute("BEGIN")

    def read(self, position: int) -> list[tuple[int, bytes]]:  # noqa: D102
        query = "SELECT position, payload FROM records WHERE way = 1 AND position >= ? ORDER BY position LIMIT ?"
        return self._database.execute(query, (position, BATCH)).fetchall()

    def discard(self, positions: list[int]) -> None:  # noqa: D102
        query = "DELETE FROM records WHERE way = 1 AND position = ?"
        self._database.executemany(query, [(position,) for position in positions])


def run_store(store: Store, records: int, payload_bytes: int) -> dict[str, float]:
    """Run one round: fill, read all, discard all, in batches."""
    payloads = [os.urandom(payload_bytes) for _ in range(BATCH)]
    cpu = time.process_time
    spent = dict.fromkeys(("append", "commit", "read", "discard"), 0.0)
    commit_s = []

    def commit() -> None:
        begin, begin_s = cpu(), time.perf_counter()
        store.commit()
        spent["commit"] += cpu() - begin
        commit_s.append(time.perf_counter() - begin_s)

    batches = records // BATCH
    for number in range(batches):
        begin = cpu()
        store.append(payloads)
        spent["append"] += cpu() - begin
        if number % BATCHES_A_COMMIT == BATCHES_A_COMMIT - 1:
            commit()
    commit()
    filled = spent["commit"]
    position = 0
    for number in range(batches):
        begin = cpu()
        found = store.read(position)
        spent["read"] += cpu() - begin
        assert len(found) == BATCH
        positions = [at for at, _ in found]
        begin = cpu()
        store.discard(positions)
        spent["discard"] += cpu() - begin
        position = positions[-1] + 1
        if number % BATCHES_A_COMMIT == BATCHES_A_COMMIT - 1:
            commit()
    commit()
    assert store.read(0) == []
    figures = {f"{name}_cpu_us": seconds / (batches * BATCH) * 1e6 for name, seconds in spent.items()}
    figures["commit_cpu_us"] = filled / (batches * BATCH) * 1e6
    figures["commit_of_discards_cpu_us"] = (spent["commit"] - filled) / (batches * BATCH) * 1e6
    figures["all_cpu_us"] = sum(spent.values()) / (batches * BATCH) * 1e6
    figures["commit_ms"] = statistics.median(commit_s) * 1e3
    return figures


def recovery(path: Path, records: int, payload_bytes: int) -> dict[str, float]:
    """Measure a start that finds many records."""
    outbox = Outbox(path, bytes_max=1 << 40)
    payloads = [os.urandom(payload_bytes)] * BATCH
    for number in range(records // BATCH):
        outbox.append(1, payloads)
        if number % 1_000 == 999:
            outbox.commit()
    outbox.close()
    begin = time.process_time()
    again = Outbox(path, bytes_max=1 << 40)
    spent = time.process_time() - begin
    del again
    tracemalloc.start()
    again = Outbox(path, bytes_max=1 << 40)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "records": again.records,
        "start_cpu_us": spent / again.records * 1e6,
        "memory_bytes": memory,
        "memory_bytes_per_record": memory / again.records,
    }


def parts(path: Path, batches: int = 2_000) -> dict[str, float]:
    """Compare parts with whole batches, per publication: batches of 64 with payloads of 200 bytes.

    `damage_costs` is the cost of one flipped byte, in publications, at the worst of 50 places.
    """
    body = b"".join(encode("plant/line/machine", os.urandom(200), qos=1) for _ in range(BATCH))
    run = Run(1, 1_731_000_000, 0, BATCH, 1, 1, ("plant/#",), body)
    figures = {}
    for name, limits in (("whole", {"publications_max": 1 << 30, "bytes_max": 1 << 30}), ("parts", {})):
        outbox = Outbox(path / name, bytes_max=1 << 40)
        begin = time.process_time()
        for number in range(batches):
            outbox.append(1, [record_bytes.encode([run], 1.7e9, **limits)])
            if number % BATCHES_A_COMMIT == BATCHES_A_COMMIT - 1:
                outbox.commit()
        outbox.commit()
        written = time.process_time()
        position = count = 0
        while found := outbox.read(1, position, BATCH, 1 << 20):
            count += sum(publications(payload) for _, payload in found)
            position = found[-1][0] + 1
        read = time.process_time()
        assert count == batches * BATCH
        figures[f"{name}_write_cpu_us"] = (written - begin) / count * 1e6
        figures[f"{name}_read_cpu_us"] = (read - written) / count * 1e6
        figures[f"{name}_bytes"] = outbox.bytes / count
        figures[f"{name}_damage_costs"] = damage(path / name)
    return figures


def publications(payload: bytes) -> int:
    """Return how many publications a record holds."""
    return sum(run.length for _, runs in record_bytes.decode(payload) for run in runs)


def damage(path: Path) -> int:
    """Return the most publications that one flipped byte cost, of 50 places."""
    log = min(path.glob("*.log"))
    whole = log.read_bytes()
    worst = 0
    for number in range(50):
        raw = bytearray(whole)
        raw[HEADER_BYTES + number * 997] ^= 4
        log.write_bytes(raw)
        outbox = Outbox(path, bytes_max=1 << 40)
        first = [outbox.read(1, position, 1, 1 << 20) for position in range(BATCH)]
        left = sum(publications(found[0][1]) for position, found in enumerate(first) if found[0][0] == position)
        worst = max(worst, BATCH * BATCH - left)
    log.write_bytes(whole)
    return worst


def mapped_tables(path: Path, calls: int = 100_000) -> dict[str, float]:
    """Return CPU time per call, or per message if a call handles many."""
    ring, slots = DeliveredRing(path / "ring"), PacketSlots(path / "slots")
    journal = DeliveryJournal(path / "journal")
    packets = [os.urandom(200) for _ in range(BATCH)]
    packet_ids = range(1, BATCH + 1)
    epoch = 1_731_000_000

    def each(count: int, call: Callable[[int], object]) -> float:
        begin = time.process_time()
        for number in range(count):
            call(number)
        return (time.process_time() - begin) / count * 1e6

    many = calls // BATCH
    return {
        "ring_add_us": each(calls, lambda n: ring.add(n & 3, epoch, n * 10, 5)),
        "ring_add_continued_us": each(calls, lambda n: ring.add(9, epoch, n * 5, 5)),
        "slots_note_us": each(many, lambda n: slots.note(packet_ids, epoch, n * BATCH, packets)) / BATCH,
        "slots_find_us": each(calls, lambda n: slots.find(n % BATCH + 1, packets[n % BATCH])),
        "slots_clear_us": each(many, lambda _: slots.clear(packet_ids)) / BATCH,
        "journal_assign_us": each(60_000, lambda n: journal.assign(n + 1, 5, epoch, n)),
        "journal_release_us": each(60_000, lambda n: journal.release(n + 1)),
        "journal_complete_us": each(60_000, lambda n: journal.complete(n + 1)),
    }


def run(records: int, rounds: int, payload_bytes: int, folder: str | None) -> dict[str, object]:
    kinds: dict[str, Callable[[Path], Store]] = {"outbox": OurOutbox, "sqlite": Sqlite}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for number in range(rounds):
        # The order changes as well.
        for name in sorted(kinds, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory(dir=folder) as path:
                found[name].append(run_store(kinds[name](Path(path) / name), records, payload_bytes))
    with tempfile.TemporaryDirectory(dir=folder) as path:
        start = recovery(Path(path), records * 5, payload_bytes)
    with tempfile.TemporaryDirectory(dir=folder) as path:
        in_parts = parts(Path(path))
    with tempfile.TemporaryDirectory(dir=folder) as path:
        tables = mapped_tables(Path(path))
    return {
        "records": records // BATCH * BATCH,
        "payload_bytes": payload_bytes,
        "records_a_batch": BATCH,
        "records_a_commit": BATCH * BATCHES_A_COMMIT,
        "rounds": rounds,
        **{name: medians(figures) for name, figures in found.items()},
        "all_cpu_outbox_per_sqlite": round(
            statistics.median(
                ours["all_cpu_us"] / theirs["all_cpu_us"]
                for ours, theirs in zip(found["outbox"], found["sqlite"], strict=True)
            ),
            3,
        ),
        "start": {key: round(value, 3) for key, value in start.items()},
        "parts": {key: round(value, 3) for key, value in in_parts.items()},
        "mapped": {key: round(value, 3) for key, value in tables.items()},
    }


def medians(figures: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(each[key] for each in figures), 3) for key in figures[0]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--payload-bytes", type=int, default=200)
    parser.add_argument("--dir", help="directory of the files; the system's temporary directory by default")
    given = parser.parse_args()
    print(json.dumps(run(given.records, given.rounds, given.payload_bytes, given.dir), indent=2))
