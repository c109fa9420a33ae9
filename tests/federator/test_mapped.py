import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.budget import examples

from hanse.errors import LocalError
from hanse.federator.journal import DeliveryJournal
from hanse.federator.mapped import MappedTable, slots_of
from hanse.federator.ring import DeliveredRing
from hanse.federator.slots import PacketSlots
from hanse.protocol.settings import EPOCH_MAX, FEDERATOR_ID_MAX

NUMBER_MAX = 2**62 - 1
HEADER_BYTES = 64
TABLES = [DeliveredRing, PacketSlots, DeliveryJournal]
ONCE = settings(
    max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


# The file.


def test_a_table_is_found_again_and_has_its_space_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "below" / "table"
    table = MappedTable(path, b"HANSEXX1", 2, 1000)
    assert len(table.words) == 2000
    assert not any(table.words)
    assert path.stat().st_size == HEADER_BYTES + 16_000
    assert path.stat().st_blocks * 512 >= 16_000  # no hole: a full disk cannot end the process
    assert path.stat().st_mode & 0o077 == 0
    table.words[1999] = 2**64 - 1
    again = MappedTable(path, b"HANSEXX1", 2, 1000)
    assert again.words[1999] == 2**64 - 1
    table.close()
    again.close()
    assert slots_of(path, b"HANSEXX1", 2) == 1000
    assert slots_of(path, b"HANSEXX2", 2) is None
    assert slots_of(tmp_path / "none", b"HANSEXX1", 2) is None
    assert [file.name for file in path.parent.iterdir()] == ["table"]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("damage", ["empty", "short", "long", "header", "other"])
def test_a_damaged_file_is_put_aside_and_replaced(
    tmp_path: Path, kind: type, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "table"
    kind(path).close()
    raw = path.read_bytes()
    damaged = {
        "empty": b"",
        "short": raw[:-1],
        "long": raw + b"\0",
        "header": raw[:20] + b"\x77" + raw[21:],
        "other": b"{}" * 4_000,
    }[damage]
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        table = kind(path)
    assert "damaged" in caplog.text
    assert (tmp_path / "table.damaged").read_bytes() == damaged
    assert path.read_bytes() == raw
    table.close()


@pytest.mark.parametrize("kind", TABLES)
def test_a_file_that_cannot_be_made_is_refused_with_its_name(tmp_path: Path, kind: type) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match=r"file/table.*(rights|check the disk)"):
        kind(tmp_path / "file" / "table")


@pytest.mark.processes
@pytest.mark.parametrize("kind", TABLES)
def test_a_full_disk_refuses_at_the_start_and_not_by_a_signal_later(tmp_path: Path, kind: type) -> None:
    script = (
        "import resource, sys; from pathlib import Path\n"
        f"from {kind.__module__} import {kind.__name__} as Table; from hanse.errors import LocalError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: Table(Path(sys.argv[1]))\n"
        "except LocalError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "table")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "table cannot be mapped" in done.stdout, done.stderr
    assert "its space" in done.stdout
    assert list(tmp_path.iterdir()) == []


# The ring.


def entries(path: Path, capacity: int = 8) -> list[tuple[int, int, int, int]]:
    ring = DeliveredRing(path, capacity)
    try:
        return list(ring.entries())
    finally:
        ring.close()


def test_the_ring_gives_its_ranges_oldest_first_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    ring = DeliveredRing(path, 8)
    assert list(ring.entries()) == []
    ring.add(0, 0, 0, 1)
    ring.add(FEDERATOR_ID_MAX, EPOCH_MAX, NUMBER_MAX, 1)
    ring.add(5, 1_731_000_000, 10, 3)
    expected = [(0, 0, 0, 1), (FEDERATOR_ID_MAX, EPOCH_MAX, NUMBER_MAX, 1), (5, 1_731_000_000, 10, 3)]
    assert list(ring.entries()) == expected
    assert entries(path) == expected  # nothing was closed or synced


def test_a_range_that_continues_the_last_is_one_entry(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    ring = DeliveredRing(path, 8)
    ring.add(1, 1, 10, 5)
    ring.add(1, 1, 15, 2)
    ring.add(1, 1, 17, 1)
    ring.add(1, 2, 18, 1)  # another epoch
    ring.add(2, 2, 19, 1)  # another origin
    ring.add(2, 2, 21, 1)  # a gap
    ring.add(2, 2, 22, 2**32 - 2)
    ring.add(2, 2, 20 + 2**32, 1)  # more than one entry can count
    assert entries(path) == [
        (1, 1, 10, 8),
        (1, 2, 18, 1),
        (2, 2, 19, 1),
        (2, 2, 21, 2**32 - 1),
        (2, 2, 20 + 2**32, 1),
    ]
    # After a restart the last entry stays as it is.
    again = DeliveredRing(path, 8)
    again.add(2, 2, 21 + 2**32, 1)
    assert len(entries(path)) == 6


@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 9), st.integers(1, 3)), max_size=20),
        max_size=4,
    ),
    capacity=st.integers(1, 6),
)
@ONCE
def test_the_ring_keeps_the_newest_ranges_over_restarts(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, int, int, int]]], capacity: int
) -> None:
    path = tmp_path_factory.mktemp("ring") / "ring"
    model: list[tuple[int, int, int, int]] = []
    for batch in batches:
        ring = DeliveredRing(path, capacity)
        is_first = True
        for origin, epoch, first, count in batch:
            ring.add(origin, epoch, first, count)
            if not is_first and model[-1][:2] == (origin, epoch) and sum(model[-1][2:]) == first:
                model[-1] = (*model[-1][:3], model[-1][3] + count)
            else:
                model.append((origin, epoch, first, count))
            is_first = False
        assert list(ring.entries()) == model[-capacity:]
    if batches:
        assert entries(path, capacity) == model[-capacity:]


def test_a_half_written_entry_is_ignored_and_the_others_stay_valid(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    ring = DeliveredRing(path, 4)
    for number in range(6):
        ring.add(number, 1, 7, 2)
    ring.close()
    raw = path.read_bytes()
    slot = HEADER_BYTES + 6 % 4 * 32  # the last; entries are numbered from 1
    fresh = DeliveredRing(tmp_path / "other", 4)
    for number in range(10):
        fresh.add(number + 100, 1, 9, 1)
    fresh.close()
    newer = (tmp_path / "other").read_bytes()[slot : slot + 32]
    for cut in range(1, 29):  # the last bytes are 0 in both
        mixed = newer[:cut] + raw[slot + cut : slot + 32]
        path.write_bytes(raw[:slot] + mixed + raw[slot + 32 :])
        assert entries(path, 4) == [(2, 1, 7, 2), (3, 1, 7, 2), (4, 1, 7, 2)], cut
    # In the middle of writing, the last word is 0.
    path.write_bytes(raw[:slot] + newer[:24] + bytes(8) + raw[slot + 32 :])
    ring = DeliveredRing(path, 4)
    assert list(ring.entries()) == [(2, 1, 7, 2), (3, 1, 7, 2), (4, 1, 7, 2)]
    ring.add(9, 9, 9, 9)
    assert list(ring.entries())[-1] == (9, 9, 9, 9)


@pytest.mark.parametrize(
    "number", [(-1, 1, 1, 1), (2**32, 1, 1, 1), (1, 2**48, 1, 1), (1, 1, 2**64, 1), (1, 1, 1, 2**32)]
)
def test_a_number_out_of_range_is_refused_before_anything_is_written(
    tmp_path: Path, number: tuple[int, int, int, int]
) -> None:
    ring = DeliveredRing(tmp_path / "ring", 4)
    ring.add(1, 2, 3, 4)
    with pytest.raises(Exception, match=r"format|argument|range|large|convert"):
        ring.add(*number)
    assert entries(tmp_path / "ring", 4) == [(1, 2, 3, 4)]


@pytest.mark.parametrize("capacity", [3, 20])
def test_the_entries_of_a_ring_of_another_capacity_are_copied(tmp_path: Path, capacity: int) -> None:
    path = tmp_path / "ring"
    ring = DeliveredRing(path, 8)
    for number in range(12):
        ring.add(1, 1, number * 10, 1)
    ring.close()
    expected = [(1, 1, number * 10, 1) for number in range(4, 12)]
    assert entries(path, capacity) == expected[-capacity:]
    assert [file.name for file in tmp_path.iterdir()] == ["ring"]
    with pytest.raises(LocalError, match="capacity is 0"):
        DeliveredRing(path, 0)


# The slots.


def test_a_redelivered_packet_gets_its_old_id(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    slots = PacketSlots(path)
    slots.note([1, 2, 65535], EPOCH_MAX, NUMBER_MAX - 2, [b"a", b"", b"c"])
    slots.note([7], 0, 0, [b"zero"])
    for table in (slots, PacketSlots(path)):
        assert table.find(1, b"a") == (EPOCH_MAX, NUMBER_MAX - 2)
        assert table.find(2, b"") == (EPOCH_MAX, NUMBER_MAX - 1)
        assert table.find(65535, b"c") == (EPOCH_MAX, NUMBER_MAX)
        assert table.find(7, b"zero") == (0, 0)
        assert table.find(1, b"b") is None
        assert table.find(1, b"a\0") is None
        assert table.find(3, b"a") is None
        assert table.find(4, b"") is None


def test_a_long_packet_is_recognised_by_its_length_and_both_ends(tmp_path: Path) -> None:
    slots = PacketSlots(tmp_path / "slots")
    packet = bytes(5_000)
    slots.note([1], 5, 10, [packet])
    assert slots.find(1, packet) == (5, 10)
    assert slots.find(1, b"\1" + packet[1:]) is None
    assert slots.find(1, packet[:-1] + b"\1") is None
    assert slots.find(1, packet[1:]) is None
    slots.close()


def test_an_acknowledged_identifier_is_forgotten_and_used_again(tmp_path: Path) -> None:
    slots = PacketSlots(tmp_path / "slots")
    slots.note([1, 2, 3], 5, 10, [b"a", b"b", b"c"])
    slots.clear([1, 2, 4])
    assert [slots.find(n, packet) for n, packet in ((1, b"a"), (2, b"b"), (3, b"c"))] == [None, None, (5, 12)]
    slots.note([1], 6, 0, [b"a"])
    assert slots.find(1, b"a") == (6, 0)
    slots.clear_all()
    assert slots.find(1, b"a") is slots.find(3, b"c") is None
    slots.close()


def test_packets_without_their_identifiers_are_an_error_of_the_caller(tmp_path: Path) -> None:
    slots = PacketSlots(tmp_path / "slots")
    with pytest.raises(ValueError, match="zip"):
        slots.note([1, 2], 1, 1, [b"a"])
    with pytest.raises(IndexError):
        slots.note([65536], 1, 1, [b"a"])


def test_a_half_written_slot_is_free(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    slots = PacketSlots(path)
    slots.note([9], 5, 1_000, [b"same"])
    old = path.read_bytes()
    slots.note([9], 6, 70_000, [b"same"])
    new = path.read_bytes()
    slots.close()
    start = HEADER_BYTES + 9 * 24
    for cut in (8, 16):  # words are written whole; the last is 0 until the others stand
        path.write_bytes(
            old[:start] + new[start : start + cut] + old[start + cut : start + 16] + bytes(8) + old[start + 24 :]
        )
        table = PacketSlots(path)
        assert table.find(9, b"same") is None
        table.close()
    for cut in (8, 16):  # not even a page that the disk mixed up is believed
        path.write_bytes(old[: start + cut] + new[start + cut :])
        table = PacketSlots(path)
        assert table.find(9, b"same") is None
        table.close()


# The journal.


def test_the_journal_returns_messages_under_way_in_the_order_of_assignment(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = DeliveryJournal(path)
    assert journal.open() == []
    journal.assign(65534, 1, 2, 3)
    journal.assign(65535, FEDERATOR_ID_MAX, EPOCH_MAX, NUMBER_MAX)
    journal.assign(1, 0, 0, 0)
    journal.release(65535)
    expected = [
        (65534, (1, 2, 3), False),
        (65535, (FEDERATOR_ID_MAX, EPOCH_MAX, NUMBER_MAX), True),
        (1, (0, 0, 0), False),
    ]
    for table in (journal, DeliveryJournal(path)):
        assert table.open() == expected
        assert len(table) == 3
        assert table.packet_id_of(1, 2, 3) == 65534
        assert table.packet_id_of(FEDERATOR_ID_MAX, EPOCH_MAX, NUMBER_MAX) == 65535
        assert table.packet_id_of(1, 2, 4) is None
    again = DeliveryJournal(path)
    again.assign(2, 9, 9, 9)  # continues behind the existing entries
    again.complete(65535)
    again.release(65535)  # free: ignored
    again.complete(65535)
    again.close()
    assert DeliveryJournal(path).open() == [(65534, (1, 2, 3), False), (1, (0, 0, 0), False), (2, (9, 9, 9), False)]


def test_a_message_has_one_identifier_and_an_identifier_one_message(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = DeliveryJournal(path)
    journal.assign(1, 5, 5, 5)
    journal.assign(2, 5, 5, 5)  # the host lost the session: sent anew
    journal.assign(3, 5, 5, 6)
    journal.assign(3, 5, 5, 7)
    for table in (journal, DeliveryJournal(path)):
        assert table.open() == [(2, (5, 5, 5), False), (3, (5, 5, 7), False)]
        assert table.packet_id_of(5, 5, 6) is None
    with pytest.raises(LocalError, match="0 is not a packet identifier"):
        journal.assign(0, 1, 1, 1)
    with pytest.raises(LocalError, match="65536"):
        journal.assign(65536, 1, 1, 1)


def test_a_half_written_assignment_is_free(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = DeliveryJournal(path)
    journal.assign(9, 1, 1, 1)
    journal.release(9)
    old = path.read_bytes()
    journal.assign(9, 2, 2, 2)
    new = path.read_bytes()
    journal.close()
    start = HEADER_BYTES + 9 * 32
    for cut in (8, 16, 24):
        path.write_bytes(
            old[:start] + new[start : start + cut] + old[start + cut : start + 24] + bytes(8) + old[start + 32 :]
        )
        assert DeliveryJournal(path).open() == []
        path.write_bytes(old[: start + cut] + new[start + cut :])
        assert DeliveryJournal(path).open() == []
        path.write_bytes(new[: start + cut] + old[start + cut :])
        assert DeliveryJournal(path).open() == []


@given(
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("assign"), st.integers(1, 6), st.integers(0, 9)),
            st.tuples(st.just("release"), st.integers(1, 6), st.just(0)),
            st.tuples(st.just("complete"), st.integers(1, 6), st.just(0)),
            st.tuples(st.just("kill"), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
@ONCE
def test_the_journal_against_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    journal = DeliveryJournal(path)
    model: dict[int, tuple[int, bool]] = {}
    for call, packet_id, number in calls:
        match call:
            case "assign":
                journal.assign(packet_id, 3, 4, number)
                model = {key: value for key, value in model.items() if key != packet_id and value[0] != number}
                model[packet_id] = (number, False)
            case "release":
                journal.release(packet_id)
                if packet_id in model:
                    model[packet_id] = (model[packet_id][0], True)
            case "complete":
                journal.complete(packet_id)
                model.pop(packet_id, None)
            case _:
                journal = DeliveryJournal(path)
        expected = [(key, (3, 4, number), is_released) for key, (number, is_released) in model.items()]
        assert journal.open() == expected
        assert [journal.packet_id_of(3, 4, number) for _, (_, _, number), _ in expected] == list(model)


# Killed at any moment.

WRITES = """
import sys
from itertools import count
from pathlib import Path
from hanse.federator.journal import DeliveryJournal
from hanse.federator.ring import DeliveredRing
from hanse.federator.slots import PacketSlots

path, begin = Path(sys.argv[1]), int(sys.argv[2])
ring, slots, journal = DeliveredRing(path / "ring", 64), PacketSlots(path / "slots"), DeliveryJournal(path / "journal")
for number in count(begin):
    packet_id = number % 20 + 1
    journal.complete(packet_id)
    slots.clear([packet_id])
    slots.note([packet_id], 7, number, [b"%d" % number])
    journal.assign(packet_id, 3, 7, number)
    if number % 3:
        ring.add(3, 7, number * 2, 1)
    else:
        ring.add(3, 7, number * 2 - 1, 2)
    journal.release(packet_id)
    if number % 50 == 0:
        print(number, flush=True)
"""


@pytest.mark.processes
def test_a_kill_at_any_moment_leaves_nothing_half_done(tmp_path: Path) -> None:
    rng = random.Random(5)
    begin = 1
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(tmp_path), str(begin)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )
        assert process.stdout is not None
        for _ in range(rng.randrange(2, 200)):
            process.stdout.readline()
        process.kill()
        said = max(int(line) for line in process.communicate()[0].splitlines(keepends=True)[:-1] or ["0"])
        ring, slots = DeliveredRing(tmp_path / "ring", 64), PacketSlots(tmp_path / "slots")
        journal = DeliveryJournal(tmp_path / "journal")
        ranges = list(ring.entries())
        assert len(ranges) >= 63
        covered = {
            first + n for origin, epoch, first, count in ranges for n in range(count) if (origin, epoch) == (3, 7)
        }
        last = max(covered) // 2
        assert last >= said
        # Every recent delivery is there, except the current one.
        assert {number * 2 for number in range(last - 50, last + 1)} <= covered
        assert len(ranges) == len({first for _, _, first, _ in ranges})
        open_now = journal.open()
        assert len(open_now) in (19, 20)
        numbers = [number for _, (_, _, number), _ in open_now]
        assert numbers == sorted(numbers)
        assert numbers[-1] in (last, last + 1)
        assert all(is_released for _, (_, _, number), is_released in open_now if number < numbers[-1])
        for packet_id, (origin, epoch, number), _ in open_now:
            assert (packet_id, origin, epoch) == (number % 20 + 1, 3, 7)
            assert slots.find(packet_id, b"%d" % number) == (7, number)
        begin = last + 100
        for table in (ring, slots, journal):
            table.close()


@pytest.mark.parametrize("kind", TABLES)
def test_a_damaged_header_keeps_the_entries(tmp_path: Path, kind: type, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "table"
    kind(path).close()
    raw = bytearray(path.read_bytes())
    raw[-1] = 0x77
    path.write_bytes(raw[:9] + b"\x55" + raw[10:])
    table = MappedTable(path, bytes(raw[:8]), 4 if kind is not PacketSlots else 3, _slots(raw))
    assert table.words[len(table.words) - 1] >> 56 == 0x77
    assert "written again" in caplog.text
    assert (tmp_path / "table.damaged").exists()
    assert not table.is_new
    table.close()


def _slots(raw: bytes | bytearray) -> int:
    return int.from_bytes(raw[16:24], "little")


@pytest.mark.parametrize("word", range(4))
@pytest.mark.parametrize("bits", [0x01, 0x03, 0x80, 0xFF])
def test_a_damaged_entry_of_the_journal_is_known_as_lost(tmp_path: Path, word: int, bits: int) -> None:
    path = tmp_path / "journal"
    journal = DeliveryJournal(path)
    assert journal.lost == []
    journal.assign(7, 1, 2, 3)
    journal.assign(8, 1, 2, 4)
    journal.release(8)
    journal.close()
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + 7 * 32 + word * 8] ^= bits
    path.write_bytes(raw)
    after = DeliveryJournal(path)
    assert (after.lost, after.open()) == ([7], [(8, (1, 2, 4), True)])
    after.close()
    again = DeliveryJournal(path)
    assert again.lost == []
    again.close()


def test_a_journal_of_an_older_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = DeliveryJournal(path)
    journal.assign(7, 1, 2, 3)
    journal.assign(8, 1, 2, 4)
    journal.close()
    raw = bytearray(path.read_bytes())
    for packet_id, state in ((7, 1), (8, 2)):
        raw[HEADER_BYTES + packet_id * 32 + 24 : HEADER_BYTES + packet_id * 32 + 26] = state.to_bytes(2, "little")
    path.write_bytes(raw)
    after = DeliveryJournal(path)
    assert (after.lost, after.open()) == ([], [(7, (1, 2, 3), False), (8, (1, 2, 4), True)])
    after.close()


def test_a_journal_that_is_gone_has_lost_all_identifiers(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = DeliveryJournal(path, is_expected=True)
    assert len(journal.lost) == 65_535
    journal.close()
    again = DeliveryJournal(path, is_expected=True)
    assert again.lost == []
    again.close()
