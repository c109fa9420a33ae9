"""The judge and its input, with invented histories: every error in one must be found."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hanse.lab.chaos import stamp
from hanse.lab.chaos.history import COPIES_MAX, History, Reader, Seen, Sent, Span, write
from hanse.lab.chaos.judge import DURABLE_S, SETTLE_S, Accounting, Evidence, count, judge
from hanse.lab.chaos.rounds import Round, Workload
from hanse.lab.chaos.stamp import Stamp

ORIGIN, LAST = 0, 4
# Message n is sent at 100 + n / 10 s, acknowledged 1 ms later and seen 2 ms later; the fault is from 102 to 103 s.
SPAN = Span(102.0, 102.1, 103.0)
MESSAGES = 50
SERVED = "all messages are published, and acknowledged after the fault"


def history(qos: int = 1, messages: int = MESSAGES) -> History:
    sent = Sent(ORIGIN, (qos,), messages)
    seen = Seen(1, messages)
    for number in range(messages):
        sent.sent_s[number] = 100 + number / 10
        sent.acked_s[number] = sent.sent_s[number] + 0.001
        seen.take(number, sent.sent_s[number] + 0.002)
    sent.count = messages
    return History([sent], [Reader(LAST, [seen])])


def lose(made: History, *numbers: int) -> None:
    for number in numbers:
        made.readers[0].seen[0].copies[number] = 0
        made.readers[0].seen[0].first_s[number] = 0.0


def verdicts(found: Accounting, *, has_fault: bool = True, drops: int = 0, converged_s: float | None = 1.0) -> set[str]:
    """Return the promises that were broken."""
    evidence = Evidence(has_fault, {"federator 1: link_down": drops}, converged_s, 10.0)
    return {verdict.promise for verdict in judge(found, evidence) if not verdict.held}


def test_a_history_in_which_all_arrived_once_keeps_every_promise() -> None:
    found = count(history(), SPAN)
    assert (found.published, found.acked, found.pairs, found.delivered) == (50, 50, 50, 50)
    assert (found.lost, found.unknown, found.not_durable, found.duplicates.total()) == (0, 0, 0, 0)
    assert found.acked_during_fault == 11
    assert found.first_after_s == pytest.approx(0.002, abs=1e-6)
    assert verdicts(found) == set()
    assert verdicts(count(history(), None), has_fault=False) == set()


def test_a_history_is_written_down_message_by_message(tmp_path: Path) -> None:
    made = history()
    lose(made, 17)
    made.publishers[0].connected(99.0)
    made.publishers[0].disconnected(102.5)
    made.publishers[0].connected(102.75)
    write(tmp_path / "below" / "one.csv", made, replace(SPAN, brokers_killed={LAST: 102.05}))
    lines = (tmp_path / "below" / "one.csv").read_text().splitlines()
    assert lines[:3] == [
        "# fault: begun 0.100000, ended 1.000000; brokers killed: 4 at 0.050000",
        "# publisher 0 at 0: connected -3.000000 to 0.500000, 0.750000 to ",
        "publisher,number,qos,sent,received,acked,retried,refused,seen_at_4,copies_at_4",
    ]
    assert len(lines) == 3 + MESSAGES
    assert lines[3 + 17] == "0,17,1,-0.300000,,-0.299000,0,0,,0"
    assert lines[3 + 18] == "0,18,1,-0.200000,,-0.199000,0,0,-0.198000,1"


def test_a_round_names_its_history_after_fault_qos_and_seed(tmp_path: Path) -> None:
    made = Round("cut-link", "0 to 1", 3, Workload(MESSAGES, qos=0), Accounting(), [], None, history(), SPAN)
    path = made.keep_history(tmp_path)
    assert path == tmp_path / "cut-link-qos-mix-seed-3.csv"
    assert len(path.read_text().splitlines()) == 3 + MESSAGES


def test_a_lost_message_is_found_and_named() -> None:
    made = history()
    lose(made, 17, 19)
    found = count(made, SPAN)
    assert (found.lost, found.delivered) == (2, 48)
    lost = found.lost_where["0 > 4 at QoS 1"]
    assert (lost.count, lost.first, lost.last) == (2, 17, 19)
    assert lost.from_s == pytest.approx(-0.3)
    assert lost.to_s == pytest.approx(-0.1)
    assert verdicts(found) == {"nothing acknowledged is lost", "every loss is explained by a counter"}


def test_a_counted_loss_is_still_a_loss_but_explained() -> None:
    made = history()
    lose(made, 17)
    assert verdicts(count(made, SPAN), drops=1) == {"nothing acknowledged is lost"}
    assert "every loss is explained by a counter" in verdicts(count(made, SPAN), drops=0)


def test_one_drop_explains_the_losses_of_several_subscribers() -> None:
    made = history()
    twice = History(made.publishers, [*made.readers, Reader(2, [Seen(1, MESSAGES)])])
    for number in range(MESSAGES):
        if number != 17:
            twice.readers[1].seen[0].take(number, 100 + number / 10)
    lose(twice, 17)
    found = count(twice, SPAN)
    assert (found.lost, found.lost_publications) == (2, 1)
    assert verdicts(found, drops=1) == {"nothing acknowledged is lost"}


def test_an_unacknowledged_publication_is_unknown_and_never_lost() -> None:
    made = history()
    made.publishers[0].acked_s[17] = 0.0
    lose(made, 17)
    found = count(made, SPAN)
    assert (found.unknown, found.lost, found.pairs) == (1, 0, 49)
    assert verdicts(found) == {SERVED}
    made.publishers[0].refused[17] = 1
    found = count(made, SPAN)
    assert (found.unknown, found.refused) == (0, 1)
    assert verdicts(found) == set()


def test_a_duplicate_at_qos_2_breaks_the_promise() -> None:
    made = history(qos=2)
    made.readers[0].seen[0].take(20, 103.0)
    found = count(made, SPAN)
    assert found.duplicates[2] == 1
    assert verdicts(found) == {"at QoS 2 there are no duplicates"}


def test_duplicates_at_qos_1_are_allowed_up_to_the_number_in_flight() -> None:
    made = history()
    in_flight = count(made, SPAN).in_flight
    # Sent before the fault began, and seen at the earliest SETTLE_S before it: ten per second.
    assert in_flight == 1 + round((SPAN.began_s - SPAN.begin_s + SETTLE_S) * 10)
    for number in range(in_flight):
        made.readers[0].seen[0].take(20 - number, 103.0)
    found = count(made, SPAN)
    assert found.duplicates[1] == in_flight
    assert verdicts(found) == set()
    made.readers[0].seen[0].take(0, 103.0)
    assert verdicts(count(made, SPAN)) == {"at QoS 1 there are no more duplicates than messages in flight"}


def test_a_duplicate_without_a_fault_is_one_too_many() -> None:
    made = history()
    made.readers[0].seen[0].take(0, 103.0)
    assert verdicts(count(made, None), has_fault=False) == {
        "at QoS 1 there are no more duplicates than messages in flight"
    }


def test_an_altered_message_is_found() -> None:
    made = history()
    made.readers[0].corrupted = 1
    assert verdicts(count(made, SPAN)) == {"no message is altered"}
    made.readers[0].corrupted = 0
    made.readers[0].seen[0].take(MESSAGES, 103.0)
    assert verdicts(count(made, SPAN)) == {"no message is altered"}


def test_order_is_judged_without_a_fault_and_counted_with_one() -> None:
    made = history()
    lose(made, 10)
    made.readers[0].seen[0].take(10, 106.0)
    found = count(made, None)
    assert found.reordered == 1
    assert verdicts(found, has_fault=False) == {"order holds"}
    assert verdicts(count(made, SPAN)) == set()


def test_order_is_judged_per_topic_and_a_duplicate_is_not_reordering() -> None:
    seen = Seen(2, 10)
    for number in (0, 3, 2, 4, 4, 0, 5):
        seen.take(number, 1.0)
    assert seen.reordered == 0
    seen.take(1, 1.0)
    assert seen.reordered == 1
    for _ in range(COPIES_MAX + 5):
        seen.take(4, 1.0)
    assert seen.copies[4] == COPIES_MAX


def test_the_first_message_after_the_fault_has_to_arrive() -> None:
    made = history()
    first_after = 30
    lose(made, first_after)
    found = count(made, SPAN)
    assert found.first_missing == 1
    assert found.first_after_s == pytest.approx(0.102)
    assert "the first message after the fault arrives" in verdicts(found)
    lose(made, *range(first_after, MESSAGES))
    found = count(made, SPAN)
    assert found.first_after_s == math.inf
    assert found.to_json()["first_after_s"] == "never"


@pytest.mark.parametrize("site", [ORIGIN, LAST])
def test_messages_that_a_killed_broker_had_not_saved_are_counted_separately(site: int) -> None:
    made = history(messages=100)
    killed_s = 106.0
    span = Span(killed_s, killed_s, 107.0, {site: killed_s})
    saved, unsaved = round((killed_s - DURABLE_S - 100) * 10) - 1, 59
    lose(made, unsaved)
    found = count(made, span)
    assert (found.lost, found.not_durable) == (0, 1)
    lose(made, saved)
    found = count(made, span)
    assert (found.lost, found.not_durable) == (1, 1)
    # An acknowledgement of the next broker counts like any other.
    lose(made, 75)
    assert count(made, span).lost == 2


def test_a_broker_outside_the_pair_excuses_nothing() -> None:
    made = history()
    lose(made, 19)
    made.readers[0].seen[0].take(18, 104.0)
    found = count(made, Span(102.0, 102.0, 103.0, {1: 102.0}))
    assert (found.lost, found.not_durable, found.doubled_by_broker, found.duplicates[1]) == (1, 0, 0, 1)


def test_a_publication_received_by_the_killed_broker_counts_as_its_own_even_if_another_completes_it() -> None:
    """The publisher only releases a message after its PUBREC. A broker that has forgotten it sends PUBCOMP."""
    made = history()
    made.publishers[0].received_s[19] = 101.95
    made.publishers[0].acked_s[19] = 103.5
    lose(made, 19)
    found = count(made, Span(102.0, 102.0, 103.0, {ORIGIN: 102.0}))
    assert (found.lost, found.not_durable) == (0, 1)
    made.publishers[0].received_s[19] = 102.5
    found = count(made, Span(102.0, 102.0, 103.0, {ORIGIN: 102.0}))
    assert (found.lost, found.not_durable) == (1, 0)


def test_a_publication_that_was_acknowledged_only_after_the_kill_must_arrive() -> None:
    made = history()
    made.publishers[0].acked_s[19] = 103.5
    lose(made, 19)
    found = count(made, Span(102.0, 102.0, 103.0, {ORIGIN: 102.0}))
    assert (found.lost, found.not_durable) == (1, 0)


@pytest.mark.parametrize("column", ["acked_s", "received_s"])
def test_an_acknowledgement_read_after_the_kill_is_the_killed_brokers_while_its_connection_lasts(column: str) -> None:
    made = history()
    sent = made.publishers[0]
    span = Span(102.0, 102.0, 103.0, {ORIGIN: 102.0})
    sent.connected(100.0)
    getattr(sent, column)[19] = 102.4
    lose(made, 19)
    sent.disconnected(102.3)
    assert (count(made, span).lost, count(made, span).not_durable) == (1, 0)
    sent.connections = [(100.0, 102.5), (102.6, 0.0)]
    assert (count(made, span).lost, count(made, span).not_durable) == (0, 1)
    # An acknowledgement of the next broker belongs to the next broker.
    getattr(sent, column)[19] = 102.7
    assert (count(made, span).lost, count(made, span).not_durable) == (1, 0)


def test_connections_are_noted_from_beginning_to_end() -> None:
    sent = Sent(ORIGIN, (1,), 1)
    sent.disconnected(1.0)  # an attempt that failed
    for begin_s in (2.0, 5.0):
        sent.connected(begin_s)
        sent.disconnected(begin_s + 1.0)
        sent.disconnected(begin_s + 2.0)
    assert sent.connections == [(2.0, 3.0), (5.0, 6.0)]
    assert [sent.answered_until_s(at_s) for at_s in (1.0, 2.5, 4.0, 5.5)] == [1.0, 3.0, 4.0, 6.0]


def test_repeats_of_a_killed_broker_are_counted_separately_even_at_qos_2() -> None:
    made = history(qos=2)
    made.readers[0].seen[0].take(15, 104.0)
    found = count(made, Span(102.0, 102.0, 103.0, {LAST: 102.0}))
    assert (found.doubled_by_broker, found.duplicates[2]) == (1, 0)
    # A message that the broker completed long before is not excused.
    made = history(qos=2, messages=100)
    made.readers[0].seen[0].take(0, 109.0)
    found = count(made, Span(108.0, 108.0, 109.0, {LAST: 108.0}))
    assert (found.doubled_by_broker, found.duplicates[2]) == (0, 1)


def test_a_federation_that_does_not_converge_in_time_breaks_the_promise() -> None:
    found = count(history(), SPAN)
    assert verdicts(found, converged_s=None) == {"the federation converges again"}
    assert verdicts(found, converged_s=10.5) == {"the federation converges again"}


def test_a_run_that_has_nothing_to_judge_fails() -> None:
    made = history()
    made.publishers[0].acked_s = made.publishers[0].acked_s[:0] + type(made.publishers[0].acked_s)("d", bytes(8 * 50))
    assert "the run has pairs to judge" in verdicts(count(made, SPAN))


def test_a_stream_that_could_not_be_published_to_its_end_breaks_the_promise() -> None:
    for messages, broken in ((MESSAGES, set()), (MESSAGES + 1, {SERVED})):
        evidence = Evidence(True, {}, 1.0, 10.0, messages=messages)
        found = {verdict.promise for verdict in judge(count(history(), SPAN), evidence) if not verdict.held}
        assert found == broken


def test_a_process_that_ends_by_itself_breaks_the_promise() -> None:
    evidence = Evidence(True, {}, 1.0, 10.0, unasked_ends=1)
    broken = [verdict.promise for verdict in judge(count(history(), SPAN), evidence) if not verdict.held]
    assert broken == ["no process ends by itself"]


def test_a_message_that_a_federator_never_releases_breaks_the_promise() -> None:
    evidence = Evidence(True, {}, 1.0, 10.0, under_way={"federator 3: outbox_bytes": 4096.0})
    broken = [verdict for verdict in judge(count(history(), SPAN), evidence) if not verdict.held]
    assert [verdict.promise for verdict in broken] == ["no message stays in a federator"]
    assert broken[0].seen == "federator 3: outbox_bytes 4096"


def test_a_payload_names_its_publisher_and_reveals_every_change() -> None:
    whole = stamp.payload(Stamp(7, 1, 4_000_000_000), b"chaos/t", 64)
    assert len(whole) == 64
    assert stamp.read(whole, b"chaos/t") == Stamp(7, 1, 4_000_000_000)
    assert stamp.read(whole, b"chaos/u") is None
    for length in range(len(whole)):
        assert stamp.read(whole[:length], b"chaos/t") is None
    for at in range(len(whole)):
        assert stamp.read(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], b"chaos/t") is None
