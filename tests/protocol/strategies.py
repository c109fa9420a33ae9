"""Hypothesis strategies for every message of the protocol."""

from hypothesis import strategies as st
from tests.protocol.net import packet

from hanse.protocol.messages import (
    Announcement,
    ClaimChange,
    ClaimDelta,
    ClaimPart,
    ClaimRequest,
    ControlFrame,
    HandOver,
    Run,
    SetAck,
    SetDelta,
    SetStep,
    Solicit,
    Summary,
)
from hanse.protocol.settings import EPOCH_MAX, FEDERATOR_ID_MAX, RANK_MAX, SEQUENCE_MAX

LEVELS = st.sampled_from(["a", "b", "", "+", "sensors", "höhe", "温度", "e\u0301", "$x"])


def numbers(largest: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, min(300, largest)), st.integers(0, largest), st.just(largest))


@st.composite
def groups(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVELS, min_size=1, max_size=4))
    if draw(st.booleans()) or not "".join(levels):
        levels.append("#")
    return "/".join(levels)


IDS, EPOCHS, SEQUENCES = numbers(FEDERATOR_ID_MAX), numbers(EPOCH_MAX), numbers(SEQUENCE_MAX)
RANKS = st.one_of(st.none(), st.integers(0, RANK_MAX))
CHANGES = st.builds(ClaimChange, groups(), RANKS, st.sampled_from(["", "filter", "prefix:2"]))
MANY_CHANGES = st.lists(CHANGES, max_size=4).map(tuple)
STEPS = st.builds(SetStep, st.booleans(), IDS, groups())
SETS = st.none() | st.builds(SetDelta, SEQUENCES, SEQUENCES, SEQUENCES, st.lists(STEPS, max_size=4).map(tuple))
ACKS = st.builds(SetAck, SEQUENCES, SEQUENCES)
ANNOUNCEMENTS = st.builds(
    Announcement, IDS, EPOCHS, SEQUENCES, numbers(0xFFFF), SEQUENCES, st.one_of(st.just(""), groups())
)
REQUESTS = st.builds(ClaimRequest, IDS, EPOCHS, SEQUENCES, st.integers(-1, SEQUENCE_MAX - 1), SEQUENCES)
DELTAS = st.builds(ClaimDelta, IDS, EPOCHS, SEQUENCES, MANY_CHANGES)
PARTS = st.builds(ClaimPart, IDS, EPOCHS, SEQUENCES, SEQUENCES, SEQUENCES, MANY_CHANGES)
SOLICITS = st.builds(Solicit, IDS, EPOCHS, SEQUENCES)
HAND_OVERS = st.builds(HandOver, IDS, groups())

CONTROL_FRAMES = st.builds(
    ControlFrame,
    sender=IDS,
    epoch=EPOCHS,
    number=SEQUENCES,
    echo_epoch=EPOCHS,
    echo_number=SEQUENCES,
    is_full=st.booleans(),
    is_leaving=st.booleans(),
    announcements=st.lists(ANNOUNCEMENTS, max_size=3).map(tuple),
    claim_deltas=st.lists(DELTAS, max_size=3).map(tuple),
    claim_requests=st.lists(REQUESTS, max_size=3).map(tuple),
    claim_parts=st.lists(PARTS, max_size=2).map(tuple),
    solicits=st.lists(SOLICITS, max_size=3).map(tuple),
    hand_overs=st.lists(HAND_OVERS, max_size=3).map(tuple),
    memberships=SETS,
    connections=SETS,
    memberships_ack=ACKS,
    connections_ack=ACKS,
)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    qos = draw(st.integers(0, 2))
    payloads = draw(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
    body = b"".join(packet(draw(st.sampled_from(["a", "a/b", "ü"])), payload, qos) for payload in payloads)
    named = draw(st.lists(groups(), min_size=1, max_size=3, unique=True))
    origin, epoch, first = draw(IDS), draw(EPOCHS), draw(numbers(SEQUENCE_MAX - 5))
    run = Run(origin, epoch, first, len(payloads), qos, draw(st.integers(0, 255)), tuple(named), body)
    stamp = draw(st.none() | numbers(SEQUENCE_MAX - 5))
    return run if stamp is None else run._replace(stamp_base=stamp - first or 1)


@st.composite
def batches(draw: st.DrawFn) -> list[Run]:
    """Draw runs of which some follow the one before, as in a burst of publications."""
    batch: list[Run] = []
    drawn: list[tuple[Run, bool]] = draw(st.lists(st.tuples(runs(), st.booleans()), max_size=5))
    for run, is_next in drawn:
        if batch and is_next:
            before = batch[-1]
            # Up to the largest number there is. A stamp that equals the number is moved by 1, and needs room for it.
            last = SEQUENCE_MAX - 1 if run.stamp_base else SEQUENCE_MAX
            follows = min(before.first + before.length, last - run.length + 1)
            stamp_base = run.stamp_base and (run.stamp_base + run.first - follows or 1)
            batch.append(run._replace(origin=before.origin, epoch=before.epoch, first=follows, stamp_base=stamp_base))
        else:
            batch.append(run)
    return batch


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Draw ranges in order, with gaps between them, as `Retention` makes them."""
    found: list[tuple[int, int]] = []
    end = 0
    for gap, count in draw(st.lists(st.tuples(numbers(2**40), st.integers(1, 2**40)), max_size=5)):
        first = end + gap + (1 if found else 0)
        found.append((first, count))
        end = first + count
    return tuple(found)


SUMMARIES = st.builds(
    Summary, groups(), numbers(86_400_000), st.lists(st.tuples(IDS, EPOCHS, ranges()), max_size=3).map(tuple)
)
