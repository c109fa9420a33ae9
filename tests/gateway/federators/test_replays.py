"""Merging of the answers of several federators into one replay."""

import pytest

from hanse.errors import RemoteError
from hanse.gateway.federators.replays import Replay, _Collected
from hanse.gateway.session.publication import write_publish
from hanse.gateway.session.replayed import Replayed, read_replayed
from hanse.request_channel import Answer


def packet(topic: str, payload: str, qos: int = 1) -> bytes:
    return write_publish(5, topic.encode(), payload.encode(), qos, 0)


def item(topic: str, time: float = 1.0) -> Replayed:
    found = read_replayed(packet(topic, "x"), time)
    assert found is not None
    return found


def test_each_publication_is_replayed_once_with_its_greatest_age() -> None:
    collected = _Collected(lambda: 100.0)
    one, two, three = (packet("t", name) for name in ("one", "two", "three"))
    collected.take(Answer({"rows": [[7, 1, 1, 2, 2000, 1]]}, one + two))
    collected.take(Answer({"rows": [[7, 1, 2, 2, 3000, 1]]}, two + three))
    found = collected.items()
    assert [one.packet for one in found] == [one, two, three]
    assert [one.time for one in found] == [98.0, 97.0, 97.0]


def test_publications_of_one_origin_keep_their_order_at_any_age() -> None:
    collected = _Collected(lambda: 100.0)
    packets = {k: packet("t", f"{k}") for k in range(1, 5)}
    # The second federator had number 1 later than the first one had number 2.
    collected.take(Answer({"rows": [[7, 1, 2, 1, 5000, 1], [8, 1, 4, 1, 4500, 1]]}, packets[2] + packets[4]))
    collected.take(Answer({"rows": [[7, 1, 1, 1, 4000, 1], [7, 1, 3, 1, 100, 1]]}, packets[1] + packets[3]))
    assert [one.packet for one in collected.items()] == [packets[1], packets[4], packets[2], packets[3]]


def test_publications_that_the_new_broker_sends_itself_are_left_out() -> None:
    collected = _Collected(lambda: 100.0)
    collected.take(Answer({"rows": [[7, 1, 1, 3, 500, 1]]}, b"".join(packet("t", f"{k}") for k in range(3))))
    collected.take(Answer({"rows": [[7, 1, 2, 5, 400, 0]]}, b""))
    assert [one.packet for one in collected.items()] == [packet("t", "0")]


def test_publications_at_the_new_broker_are_distinguished_from_later_ones() -> None:
    collected = _Collected(lambda: 100.0)
    collected.take(Answer({"rows": [[7, 1, 1, 2, 500, 1]]}, packet("t", "1") + packet("t", "2")))
    collected.take_of_host(Answer({"rows": [[7, 1, 2, 1, 400, 1], [7, 1, 3, 1, 300, 0]]}, packet("t", "2")))
    assert [one.is_at_host for one in collected.items()] == [False, True]


def test_qos_0_and_nonsense_are_left_out_and_a_malformed_answer_is_refused() -> None:
    collected = _Collected(lambda: 100.0)
    collected.take(Answer({"rows": [[7, 1, 1, 1, 500, 1]]}, packet("t", "x", 0)))
    assert collected.items() == []
    for rows in ([[7, 1, 1, 2, 500, 1]], [[7, 1]], "rows", [["a", "b", "c", "d", "e", "f"]]):
        with pytest.raises(RemoteError):
            collected.take(Answer({"rows": rows}, packet("t", "x")))
    with pytest.raises(RemoteError):
        collected.take(Answer({"rows": []}, b"\x30\x7f"))


def test_each_client_gets_the_matches_of_its_own_filters_in_order() -> None:
    items = [item("a/1"), item("b"), item("a/2"), item("c")]
    replay = Replay(["a/#", "a/1", "b"], items, is_complete=True)
    assert [one.topic for one in replay.matching(["a/#"])] == [b"a/1", b"a/2"]
    assert [one.topic for one in replay.matching(["a/1", "a/#", "b"])] == [b"a/1", b"b", b"a/2"]
    assert replay.matching(["c"]) == []
