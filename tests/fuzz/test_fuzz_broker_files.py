"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is what the federator reads from files of its host broker: the subscription tree, the database, the log. What
they show goes through the ledger into the registry, which wants only what the protocol takes.
"""

from collections import Counter

from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.interest.test_log_replay import LOG
from tests.interest.test_mosquitto_database import SAVED
from tests.interest.test_tree import PRINTED

from hanse.errors import RemoteError
from hanse.interest import InterestRegistry, InterestSettings, tree
from hanse.interest.ledger import Counts, Ledger
from hanse.interest.log_replay import replay
from hanse.interest.mosquitto_database import parse
from hanse.protocol.topics import check_filter

LIMITS = InterestSettings(filters_max=20, clients_max=10, filters_per_client_max=5)


def take(data: bytes) -> None:
    ledger, registry = Ledger("hanse-", Counter(), subscriptions_max=50), InterestRegistry(LIMITS)
    reports = []
    if (printed := tree.parse(data)) is not None:
        ledger.begin_snapshot()
        reports += ledger.take_snapshot(printed.subscriptions, is_whole=printed.is_whole)
    reports += ledger.take_hints(replay(data, "hanse-")[0])
    refused: RemoteError | None = None
    try:
        reports += ledger.take_hints(parse(data, 0.0))
    except RemoteError as error:
        refused = error
    for _ in range(3):
        reports += ledger.tick(Counts(3, 0))
    change = registry.apply(0.0, "mosquitto-log", reports)
    for wanted, qos in change.added:
        check_filter(wanted)
        assert qos in (0, 1, 2)
    assert ledger.state.known <= 50
    again = Ledger("hanse-", Counter(), subscriptions_max=50)
    again.load(ledger.dump())
    assert again.dump() == ledger.dump()
    if refused is not None:
        raise refused


def test_any_content_of_a_brokers_files_is_applied_or_refused() -> None:
    fuzz("broker_files", st.sampled_from([SAVED, PRINTED, LOG]), take)


def test_files_are_read_in_linear_time() -> None:
    chunk = SAVED[-28:]
    for part in (b"    \n      \n", b"        a (b, 1)\n", b" (" * 50, b"    " * 50 + b"a\n"):
        assert_linear(lambda size, part=part: b"    \n" + part * (size // len(part)) + b"\n", tree.parse, large=1 << 18)  # type: ignore[misc]
    assert_linear(lambda size: SAVED + chunk * (size // len(chunk)), lambda data: parse(data, 0.0), large=1 << 18)
    line = b"mosquitto version 2.0.11 starting\n"
    assert_linear(lambda size: line * (size // len(line)), lambda data: replay(data, "hanse-"), large=1 << 18)
