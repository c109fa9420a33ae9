"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a federator's state directory after an accident: no file in it stops a start. A file is used whole, or put
aside.
"""

import json
import re
from pathlib import Path

import pytest
from hypothesis import strategies as st
from tests.fuzz.fuzzing import fuzz

from hanse.errors import LocalError
from hanse.federator import membership_cache
from hanse.federator.membership_cache import Membership
from hanse.federator.store import NO_EPOCH, StateDirectory
from hanse.federator.words import OverlayMap, Peer, Word
from hanse.interest import InterestRegistry, Subscribed
from hanse.protocol.settings import EPOCH_MAX
from hanse.protocol.topics import check_filter

ONE, TWO = Peer(1, "tcp://b1:1883", "mqtt://b1:1893"), Peer(2, "tcp://b2:1883")
MEMBERSHIP = Membership(
    Word(7, 3, 2, "up", (ONE, TWO), {"redundancy": 2}, "m", "hanse-fed-7-open-00"),
    OverlayMap(3, {1: ONE, 2: TWO}, frozenset({(1, 2)})),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


def interest() -> bytes:
    registry = InterestRegistry()
    registry.apply(0.0, "mosquitto-log", [Subscribed("c", "a/+/#", 1), Subscribed("d", "$share/g/b", 2, 60.0)])
    return json.dumps(registry.dump(1.0, 1_000.0)).encode()


def with_edges(text: bytes) -> list[bytes]:
    """Return the text with numbers that no clock shows in place of each number."""
    edges = (b"1e999", b"-1e999", b"NaN", b"9" * 400, b"-" + b"9" * 400, b"null", b"true", b'"x"', b"[]")
    spots = [match.span() for match in re.finditer(rb"[0-9]+(\.[0-9]+)?", text)]
    return [text[:start] + edge + text[end:] for start, end in spots for edge in edges]


def membership(folder: Path) -> bytes:
    membership_cache.write(folder, MEMBERSHIP)
    return (folder / membership_cache.FILE_NAME).read_bytes()


def take(folder: Path, data: bytes) -> None:
    name = {b"e": "epoch", b"i": "interest.json"}.get(data[:1], membership_cache.FILE_NAME)
    (folder / name).write_bytes(data[1:])
    with StateDirectory(folder) as state:
        epoch = state.read_epoch()
        assert epoch == NO_EPOCH or 0 <= epoch <= EPOCH_MAX
        document = state.read_interest()
        found = membership_cache.read(folder)
        if found is not None:
            membership_cache.write(folder, found)
            assert membership_cache.read(folder) == found
        if document is not None:
            load(state, document)
    for left in (name, f"{name}.damaged"):
        (folder / left).unlink(missing_ok=True)


def load(state: StateDirectory, document: dict[str, object]) -> None:
    registry = InterestRegistry()
    try:
        change = registry.load(10.0, 1_010.0, document)
    except LocalError as error:
        state.drop_interest(str(error))
        assert state.read_interest() is None
        return
    for wanted, qos in change.added:
        check_filter(wanted)
        assert qos in (0, 1, 2)
    registry.next_expiry_s()
    state.write_interest(registry.dump(11.0, 1_011.0))


def test_any_state_file_is_used_or_put_aside(folder: Path) -> None:
    files = st.sampled_from([b"e1700000000\n", b"i" + interest(), b"m" + membership(folder)])
    for data in (b"i" + interest(), b"m" + membership(folder)):
        for edge in with_edges(data):
            take(folder, edge)
    fuzz("state_files", files, lambda data: take(folder, data), refusals=(LocalError,))
