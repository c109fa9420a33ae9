from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hanse.interest import MosquittoFileAdapter, MosquittoLogAdapter
from hanse.interest.follow import LogFollower, Read, Rotated, Truncated, reports
from hanse.interest.reports import ClientBack, ClientLeft, Gap, Report, Session, Subscribed, Unsubscribed

# As Mosquitto 2.0.11 wrote it.
LOG = """\
1794740386: mosquitto version 2.0.11 starting
1794740386: Opening ipv4 listen socket on port 1883.
1794740388: New connection from 127.0.0.1:41558 on port 28831.
1794740388: New client connected from 127.0.0.1:41558 as my client 1 x (p2, c1, k60).
1794740388: my client 1 x 1 a b/+/#
1794740388: my client 1 x 1 $share/g one/s/#
1794740389: Client my client 1 x disconnected.
1794740389: New client connected from 127.0.0.1:59614 as pers (p2, c0, k60).
1794740389: pers 2 p/#
1794740389: pers p/#
1794740390: Client pers has exceeded timeout, disconnecting.
1794740390: early 0 e/#
1794740390: hanse-1 2 #
1794740391: Warning: 1 something
"""
REPORTS: list[Report] = [
    ClientBack("my client 1 x", session_kept=False),
    Subscribed("my client 1 x", "a b/+/#", 1),
    Subscribed("my client 1 x", "$share/g one/s/#", 1),
    ClientLeft("my client 1 x", Session.ENDED),
    ClientBack("pers", session_kept=True),
    Subscribed("pers", "p/#", 2),
    Unsubscribed("pers", "p/#"),
    ClientLeft("pers", Session.KEPT),
    Subscribed("early", "e/#", 0),
]


def adapter() -> MosquittoFileAdapter:
    return MosquittoFileAdapter("hanse-")


def test_a_captured_log_gives_its_reports() -> None:
    assert adapter().feed(LOG.encode()) == REPORTS


def test_a_captured_log_without_timestamps_gives_the_same_reports() -> None:
    plain = "".join(line.split(": ", 1)[1] for line in LOG.splitlines(keepends=True) if "Warning" not in line)
    assert adapter().feed(plain.encode()) == REPORTS


@given(st.lists(st.integers(1, 60), max_size=40))
def test_the_size_of_chunks_makes_no_difference(sizes: list[int]) -> None:
    log, rest, got = adapter(), LOG.encode(), []
    for size in sizes:
        got += log.feed(rest[:size])
        rest = rest[size:]
    assert got + log.feed(rest) == REPORTS


def test_a_line_without_end_is_dropped_and_the_next_one_is_read() -> None:
    log = adapter()
    for _ in range(5):
        assert log.feed(b"x" * 4000) == []
    assert log.feed(b"the end\na 1 b\n") == [Subscribed("a", "b", 1)]
    assert log.counters["lines_without_end"] == 1


def test_a_cut_line_is_refused() -> None:
    log = adapter()
    assert log.feed(b"long 0 " + b"x" * 992 + b"\n") == []
    assert log.counters["lines_cut"] == 1


def test_a_half_line_of_a_rotated_file_is_not_joined_to_the_next_file() -> None:
    log = adapter()
    assert log.feed(b"a 1 b") == []
    assert log.began_anew() == []
    assert log.feed(b"c 1 d\n") == [Subscribed("c", "d", 1)]
    assert log.counters["lines_unfinished"] == 1


def test_a_truncated_file_is_a_gap() -> None:
    assert adapter().lost() == [Gap()]


def test_attack_a_connected_client_cannot_write_anothers_disconnect_line() -> None:
    log = adapter()
    forger = "Client v disconnected:"
    log.feed(f"New client connected from 1.2.3.4:5 as {forger} (p2, c1, k60).\n".encode())
    assert log.feed(f"{forger} 0 foo.\n".encode()) == [Subscribed(forger, "foo.", 0)]


def test_an_id_that_begins_another_id_is_distinguished_by_the_qos() -> None:
    log = adapter()
    for client in ("a", "a 1 b"):
        log.feed(f"New client connected from 1.2.3.4:5 as {client} (p2, c1, k60).\n".encode())
    assert log.feed(b"a 1 b 1 c\n") == [Subscribed("a", "b 1 c", 1)]
    assert log.counters["lines_ambiguous"] == 1
    assert log.feed(b"a 2 b 1 c\n") == [Subscribed("a", "b 1 c", 2)]


def test_file_and_topics_agree_on_the_connection_lines() -> None:
    topics = MosquittoLogAdapter("hanse-")
    line = "New client connected from 127.0.0.1:59614 as pers (p2, c0, k60)."
    assert topics.message("$SYS/broker/log/N", line.encode()) == adapter().feed(line.encode() + b"\n")


def read_all(follower: LogFollower) -> bytes:
    text = b""
    while isinstance(found := follower.poll(), Read):
        text += found.chunk
    assert found is None
    return text


def test_following_begins_at_the_start_of_the_file_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.log"
    follower = LogFollower(path)
    assert follower.poll() is None
    path.write_bytes(b"one\n")
    assert read_all(follower) == b"one\n"
    with path.open("ab") as file:
        file.write(b"two\n")
    assert read_all(follower) == b"two\n"
    follower.close()
    assert read_all(follower) == b"one\ntwo\n"
    follower.close()


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.log"
    path.write_bytes(b"one\n")
    follower = LogFollower(path)
    assert read_all(follower) == b"one\n"
    path.rename(tmp_path / "mosquitto.log.1")
    assert follower.poll() is None
    with (tmp_path / "mosquitto.log.1").open("ab") as file:
        file.write(b"late\n")
    path.write_bytes(b"new\n")
    assert follower.poll() == Read(b"late\n")
    assert follower.poll() == Rotated()
    assert read_all(follower) == b"new\n"
    follower.close()


def test_a_log_is_followed_through_growth_rotation_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.log"
    follower, log = LogFollower(path), adapter()

    def new_reports() -> list[Report]:
        found: list[Report] = []
        while (event := follower.poll()) is not None:
            found += reports(log, event)
        return found

    path.write_bytes(b"a 1 first/#\nb 2 ha")
    assert new_reports() == [Subscribed("a", "first/#", 1)]
    path.rename(tmp_path / "mosquitto.log.1")
    path.write_bytes(b"c 0 second\n")
    assert new_reports() == [Subscribed("c", "second", 0)]
    path.write_bytes(b"d 1 x\n")
    assert new_reports() == [Gap(), Subscribed("d", "x", 1)]
    follower.close()


def test_a_truncated_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.log"
    path.write_bytes(b"a long first line\n")
    follower = LogFollower(path)
    read_all(follower)
    path.write_bytes(b"short\n")
    assert follower.poll() == Truncated()
    assert read_all(follower) == b"short\n"
    follower.close()
