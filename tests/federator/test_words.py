"""Strict parsing of the manager's messages, checked against the manager's own code that writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from hanse.errors import LocalError, RemoteError
from hanse.federator import membership_cache
from hanse.federator.membership import GROUPS_BYTES_MAX, fit_groups
from hanse.federator.membership_cache import Membership
from hanse.federator.words import OverlayMap, Peer, Word, read_announcement, read_map, read_word
from hanse.topology import announcements
from hanse.topology.changes import Announcement
from hanse.topology.model import Federator, LinkKind, Topology

WORD: dict[str, Any] = {
    "id": 2,
    "epoch": 1_794_742_297,
    "changedEpoch": 1_794_742_290,
    "state": "up",
    "neighbors": [{"id": 1, "ip": "tcp://b1:1883", "link": "mqtts://f1:1893"}, {"id": 0, "ip": "tcp://b0:1883"}],
    "neighborsAmount": 2,
    "settings": {"announcement_interval": "1s", "redundancy": 2},
    "manager": "cea38251",
    "credential": "hanse-fed-2-open-00",
    "a_field_of_a_newer_manager": {},
}
CREDENTIAL = "hanse-fed-0-open-00"


def test_a_reply_is_parsed_with_its_neighbours_in_order() -> None:
    assert read_word(WORD) == Word(
        2,
        1_794_742_297,
        1_794_742_290,
        "up",
        (Peer(0, "tcp://b0:1883"), Peer(1, "tcp://b1:1883", "mqtts://f1:1893")),
        {"announcement_interval": "1s", "redundancy": 2},
        "cea38251",
        "hanse-fed-2-open-00",
    )


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("id", -1, "`id`"),
        ("id", True, "`id`"),
        ("id", 2**32, "`id`"),
        ("id", "2", "`id`"),
        ("epoch", 2**53, "`epoch`"),
        ("epoch", 1.5, "`epoch`"),
        ("changedEpoch", None, "`changedEpoch`"),
        ("state", 7, "`state`"),
        ("state", "u\np", "`state`"),
        ("neighbors", None, "not a list"),
        ("neighbors", [{}] * 257, "not a list of at most 256"),
        ("neighbors", [7], "not a JSON object"),
        ("neighbors", [{"id": 1}], "`ip`"),
        ("neighbors", [{"id": 1, "ip": "http://b1"}], "no known scheme"),
        ("neighbors", [{"id": 1, "ip": "tcp://user:hunter2@b1:1"}], "holds a login"),
        ("neighbors", [{"id": 1, "ip": "tcp://b1:1", "link": 7}], "`link`"),
        ("settings", [], "`settings`"),
        ("credential", "x" * 201, "`credential`"),
    ],
)
def test_a_malformed_reply_is_refused_with_the_reason(field: str, value: object, said: str) -> None:
    with pytest.raises(RemoteError) as caught:
        read_word({**WORD, field: value})
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def three() -> Topology:
    federators = {
        node: Federator(node, f"tcp://b{node}:1883", f"mqtt://b{node}:1883", f"mqtt://f{node}:1893")
        for node in range(3)
    }
    return Topology(7, federators, {(0, 1): LinkKind.PLACED, (0, 2): LinkKind.PLACED})


def test_an_announcement_of_the_manager_is_parsed() -> None:
    payload = announcements.compose(Announcement(0, "add", 2), three(), [1, 2], CREDENTIAL, "m")
    found = read_announcement(payload, 0, CREDENTIAL)
    assert found is not None
    assert (found.epoch, [one.id for one in found.neighbours]) == (7, [1, 2])
    assert read_announcement(payload, 1, CREDENTIAL) is None, "for another federator"


def test_attack_an_announcement_by_a_client_of_the_broker_is_refused() -> None:
    payload = announcements.compose(Announcement(0, "add", 2), three(), [1, 2], CREDENTIAL, "m")
    forged = json.loads(payload)
    forged["neighbors"] = []
    for attempt in (json.dumps(forged).encode(), json.dumps({**forged, "mac": 7}).encode()):
        with pytest.raises(RemoteError, match="not from the manager"):
            read_announcement(attempt, 0, CREDENTIAL)
    with pytest.raises(RemoteError, match="not from the manager"):
        read_announcement(payload, 0, "hanse-fed-0-open-11")
    with pytest.raises(RemoteError, match="not from the manager"):
        read_announcement(payload, 0, None)
    for cut in range(len(payload)):
        with pytest.raises(RemoteError):
            read_announcement(payload[:cut], 0, CREDENTIAL)


@pytest.mark.parametrize("payload", [b"", b"[]", b"7", b"\xff", b"[" * 100_000])
def test_an_announcement_that_is_not_an_object_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteError, match="not a JSON object"):
        read_announcement(payload, 0, CREDENTIAL)


def test_the_map_has_the_federators_that_are_up_and_their_links() -> None:
    rows = [{"id": node, "ip": f"tcp://b{node}:1883", "link": None, "state": "up"} for node in range(3)]
    rows[2]["state"] = "gone"
    found = read_map({"epoch": 7, "federators": rows, "links": [{"a": 1, "b": 0}, {"a": 1, "b": 2}]})
    assert found == OverlayMap(7, {0: Peer(0, "tcp://b0:1883"), 1: Peer(1, "tcp://b1:1883")}, frozenset({(0, 1)}))


@pytest.mark.parametrize(
    "document", [{}, {"federators": [], "links": {}}, {"federators": [], "links": [7], "epoch": 1}]
)
def test_a_malformed_map_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(RemoteError):
        read_map(document)


def test_a_membership_is_found_again_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    kept = Membership(
        read_word(WORD), OverlayMap(7, {0: Peer(0, "tcp://b0:1"), 2: Peer(2, "tcp://b2:1")}, frozenset({(0, 2)}))
    )
    assert membership_cache.read(tmp_path) is None
    membership_cache.write(tmp_path, kept)
    assert membership_cache.read(tmp_path) == kept
    assert (tmp_path / membership_cache.FILE_NAME).stat().st_mode & 0o777 == 0o600
    with pytest.raises(LocalError, match="could not be saved"):
        membership_cache.write(tmp_path / "nowhere", kept)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[7]", b'{"version": 2}', b'{"version": 1, "word": {}}', b"\xff"])
def test_a_damaged_membership_is_put_aside(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / membership_cache.FILE_NAME
    path.write_bytes(damage)
    assert membership_cache.read(tmp_path) is None
    assert not path.exists()
    assert path.with_name(f"{path.name}.damaged").read_bytes() == damage


def test_groups_beyond_the_limit_of_a_report_are_left_out_and_counted() -> None:
    short: list[dict[str, object]] = [{"group": f"a/{number}", "core": None} for number in range(100)]
    assert fit_groups(short) == (short, ",".join(json.dumps(row, separators=(",", ":")) for row in short), 0)
    long: dict[str, object] = {"group": "x" * 60_000, "core": 1}
    kept, text, left_out = fit_groups([long] * 40 + short)
    assert len(text) <= GROUPS_BYTES_MAX
    assert left_out == 40 - sum(row is long for row in kept) > 0
    assert kept[-1] == short[-1], "one long name does not hide the short ones"


def test_every_prefix_of_a_membership_is_put_aside_without_an_error(tmp_path: Path) -> None:
    membership_cache.write(tmp_path, Membership(read_word(WORD), OverlayMap()))
    path = tmp_path / membership_cache.FILE_NAME
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert membership_cache.read(tmp_path) is None
