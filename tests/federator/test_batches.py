"""Batches of the host broker: acknowledged in its order, and recognised after a kill."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.protocol.net import Network

from hanse.federator.batches import HostBatches
from hanse.federator.slots import PacketSlots
from hanse.mqtt.publication import Publication, encode


def handed_in(packet_id: int, payload: bytes = b"x", *, is_again: bool = False, identifier: int = 2) -> Publication:
    # A receipt is the packet identifier below the connection's number.
    return Publication(encode("t", payload, qos=1), "t", 1, False, is_again, 7 << 16 | packet_id, (identifier,))


class Process:
    """One run of the federator: its machine, and the file that outlives it."""

    def __init__(self, slots: PacketSlots) -> None:
        self.machine = Network(1).machines[0]
        self.acknowledged: list[int] = []
        self.batches = HostBatches(self.machine, slots, self._ack)

    def _ack(self, receipts: list[int]) -> None:
        self.acknowledged += [receipt & 0xFFFF for receipt in receipts]

    def take(self, first: int, *publications: Publication, batch: list[Publication] | None = None) -> int:
        came = list(publications)
        number = self.batches.begin([publication[5] for publication in came if publication[5]])
        self.batches.note(came, came if batch is None else batch, True, first)
        return number


@contextmanager
def life(directory: Path) -> Iterator[Process]:
    slots = PacketSlots(directory / "packets")
    yield Process(slots)
    slots.close()


def test_the_host_is_acknowledged_in_its_own_order(tmp_path: Path) -> None:
    with life(tmp_path) as process:
        one, two = process.take(0, handed_in(1), handed_in(2)), process.take(2, handed_in(3))
        process.batches.finish(two)
        assert process.acknowledged == []
        process.batches.finish(one)
        assert process.acknowledged == [1, 2, 3]
        assert len(process.batches) == 0


def test_after_the_host_lost_the_session_an_old_batch_frees_no_identifier_of_a_new_one(tmp_path: Path) -> None:
    with life(tmp_path) as process:
        epoch = process.machine.epoch
        old = process.take(40, handed_in(1, b"old"))
        process.batches.forget()
        process.take(41, handed_in(1, b"new"))
        process.batches.finish(old)
    with life(tmp_path) as process:
        assert process.batches.former_id(handed_in(1, b"new", is_again=True)) == (epoch, 41)
        assert process.batches.former_id(handed_in(1, b"old", is_again=True)) is None


def test_a_publication_repeated_after_a_kill_has_its_former_id(tmp_path: Path) -> None:
    with life(tmp_path) as process:
        epoch = process.machine.epoch
        process.take(40, handed_in(1, b"a"), handed_in(2, b"b"))
    with life(tmp_path) as process:
        assert process.batches.former_id(handed_in(2, b"b", is_again=True)) == (epoch, 41)
        assert process.batches.former_id(handed_in(2, b"b")) is None, "without DUP it is a new one"
        assert process.batches.former_id(handed_in(2, b"c", is_again=True)) is None, "and so it is with other content"


def test_acknowledged_publications_are_forgotten(tmp_path: Path) -> None:
    with life(tmp_path) as process:
        process.batches.finish(process.take(40, handed_in(1, b"a")))
    with life(tmp_path) as process:
        assert process.batches.former_id(handed_in(1, b"a", is_again=True)) is None


def test_a_duplicate_has_the_id_of_its_original(tmp_path: Path) -> None:
    with life(tmp_path) as process:
        epoch = process.machine.epoch
        loose = Publication(encode("t", b"0"), "t", 0, False, False, 0, (2,))
        first, copy, other = handed_in(1, b"a"), handed_in(2, b"a", identifier=3), handed_in(3, b"b")
        process.take(40, loose, first, copy, other, batch=[loose, first, other])
        found = [process.batches.former_id(one._replace(dup=True)) for one in (first, copy, other)]
        assert found == [(epoch, 41), (epoch, 41), (epoch, 42)]


def test_no_ids_are_kept_if_some_publications_do_not_leave(tmp_path: Path) -> None:
    with life(tmp_path) as process:
        came = [handed_in(1, b"a"), handed_in(2, b"b")]
        process.batches.note(came, came, False, 40)
        assert process.batches.former_id(came[0]._replace(dup=True)) is None
