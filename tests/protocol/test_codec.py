import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.protocol.net import packet
from tests.protocol.strategies import CONTROL_FRAMES, SUMMARIES, batches

from hanse.errors import RemoteError
from hanse.protocol import codec
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
from hanse.protocol.settings import SEQUENCE_MAX

BOUNDED = settings(max_examples=examples(40), deadline=None)

CONTROL = ControlFrame(
    sender=5,
    epoch=1_000,
    number=300,
    echo_epoch=1_000,
    echo_number=2,
    is_full=True,
    announcements=(Announcement(9, 1_000, 7, 2, 1), Announcement(3, 1_000, 8, 0xFFFF, 0, "g")),
    claim_deltas=(ClaimDelta(9, 1_000, 0, (ClaimChange("$hanse/management", 100, "filter"), ClaimChange("g", None))),),
    claim_requests=(ClaimRequest(4, 0, 0, -1, 0),),
    claim_parts=(ClaimPart(9, 1_000, 2, 0, 1, (ClaimChange("g", 0),)),),
    solicits=(Solicit(9, 1_000, 8),),
    hand_overs=(HandOver(9, "g"),),
    memberships=SetDelta(1, 4, 0, (SetStep(True, 9, "g"), SetStep(False, 9, "h"))),
    connections=SetDelta(2, 0, 1, (SetStep(True, 5, "+"),)),
    memberships_ack=SetAck(1, 2),
    connections_ack=SetAck(3, 4),
)
# The layout of docs/protocol.md, field by field. 1,000 is e8 07 and 300 is ac 02.
CONTROL_BYTES = bytes.fromhex(
    "01 01  05  e807  ac02  e807 02  01  01 02  03 04"
    "01 02  09 e807 07 02 01 00  03 e807 08 ffff03 00 01 67"
    "02 01  09 e807 00 02  11 2468616e73652f6d616e6167656d656e74 65 06 66696c746572  01 67 00 00"
    "03 01  04 00 00 00 00"
    "04 01  09 e807 02 00 01 01  01 67 01 00"
    "05 01  09 e807 08"
    "06 01  09 01 67"
    "07 01  01 04 00 02  13 01 67  12 01 68"
    "08 01  02 00 01 01  0b 01 2b"
)

DATA = [
    Run(5, 1_000, 7, 2, 1, 3, ("g", "+"), packet("g", b"1", 1) + packet("g", b"2", 1)),
    Run(5, 1_000, 9, 1, 0, 3, ("g",), packet("g")),
    Run(6, 2, 0, 1, 2, 1, ("+",), packet("x" * 130, b"", 2)),
]
DATA_BYTES = bytes.fromhex(
    "01 02  02 01 67 01 2b  03"
    "01 03  05 e807 07  02  02 00 01  12  32 07 0001 67 0000 00 31  32 07 0001 67 0000 00 32"
    "04 03  01  01 00  06  30 04 0001 67 00"
    "02 01  06 02 00  01  01 01  8a01  34 8701 0082" + "78" * 130 + "0000 00"
)

SUMMED = (
    Summary("g", 6_000, ((5, 1_000, ((0, 3), (7, 1))), (6, 2, ((300, 2),)))),
    Summary("+", 0),
)
SUMMED_BYTES = bytes.fromhex("01 06  02  01 67 f02e 02  05 e807 02 00 03 04 01  06 02 01 ac02 02  01 2b 00 00")


def test_control_frame_bytes_match_the_document() -> None:
    assert codec.encode_control(CONTROL) == CONTROL_BYTES
    assert codec.decode_control(CONTROL_BYTES) == CONTROL


def test_data_frame_bytes_match_the_document() -> None:
    assert codec.encode_data(DATA) == DATA_BYTES
    assert codec.decode_data(DATA_BYTES) == DATA


def test_summaries_frame_bytes_match_the_document() -> None:
    assert codec.encode_summaries(SUMMED) == SUMMED_BYTES
    assert codec.decode_summaries(SUMMED_BYTES) == SUMMED


@BOUNDED
@given(st.lists(SUMMARIES, max_size=4).map(tuple))
def test_a_summaries_frame_survives_a_round_trip(summaries: tuple[Summary, ...]) -> None:
    assert codec.decode_summaries(codec.encode_summaries(summaries)) == summaries


def test_every_strict_prefix_of_a_summaries_frame_is_refused() -> None:
    for size in range(len(SUMMED_BYTES)):
        with pytest.raises(RemoteError):
            codec.decode_summaries(SUMMED_BYTES[:size])


def test_the_largest_number_fits_into_a_summary() -> None:
    """A run may end with it. If a summary could not, the summaries of others in its frame would be refused with it."""
    last = SEQUENCE_MAX
    run = Run(5, 1, last, 1, 1, 1, ("g",), packet("g", b"", 1))
    assert codec.decode_data(codec.encode_data([run])) == [run]
    summary = (Summary("g", 1, ((5, 1, ((last, 1),)),)),)
    assert codec.decode_summaries(codec.encode_summaries(summary)) == summary


def test_a_returned_run_keeps_its_flag() -> None:
    returned = [DATA[0]._replace(is_returned=True), DATA[1]]
    assert codec.decode_data(codec.encode_data(returned)) == returned
    alone = returned[:1]
    assert codec.decode_data(codec.encode_data(alone)) == alone


def test_a_stamped_run_says_the_stamp_of_its_first_publication() -> None:
    stamped = [DATA[0]._replace(stamp_base=300 - 7), DATA[1]]
    assert codec.decode_data(codec.encode_data(stamped)) == stamped
    alone = stamped[:1]
    assert codec.encode_data(alone) == DATA_BYTES[:7] + bytes.fromhex("01 11 03 05 e807 07 ac02") + DATA_BYTES[14:37]
    assert codec.decode_data(codec.encode_data(alone)) == alone
    piece = [DATA[0]._replace(first=8, length=1, body=packet("g", b"2", 1), stamp_base=300 - 7)]
    assert codec.decode_data(codec.encode_data(piece))[0].stamp_base + 8 == 301


def test_a_run_whose_stamps_are_too_large_is_refused() -> None:
    """Else a piece of it could not be sent on."""
    stamped = DATA[0]._replace(stamp_base=SEQUENCE_MAX - 7)
    with pytest.raises(RemoteError, match="ends with the stamp 4611686018427387904; the largest stamp is"):
        codec.decode_data(codec.encode_data([stamped]))


def test_a_run_without_groups_is_valid_in_the_outbox_only() -> None:
    record = codec.encode_data([DATA[0]._replace(groups=())])
    assert codec.decode_data(record, is_record=True) == [DATA[0]._replace(groups=())]
    with pytest.raises(RemoteError, match=r"^A run names group -1, but the frame lists 0\.$"):
        codec.decode_data(record)


def test_kind_of_returns_the_type_of_a_frame() -> None:
    assert codec.kind_of(SUMMED_BYTES) == codec.SUMMARIES
    assert codec.kind_of(CONTROL_BYTES) == codec.CONTROL
    assert codec.kind_of(DATA_BYTES) == codec.DATA


@BOUNDED
@given(CONTROL_FRAMES)
def test_a_control_frame_survives_a_round_trip(frame: ControlFrame) -> None:
    assert codec.decode_control(codec.encode_control(frame)) == frame


@BOUNDED
@given(batches())
def test_a_data_frame_survives_a_round_trip(batch: list[Run]) -> None:
    assert codec.decode_data(codec.encode_data(batch)) == batch


def test_every_strict_prefix_of_a_control_frame_is_refused_or_lacks_its_last_sections() -> None:
    # A control frame ends where a section ends, so the bytes before a section are a frame that holds less.
    accepted = set()
    for size in range(len(CONTROL_BYTES)):
        try:
            frame = codec.decode_control(CONTROL_BYTES[:size])
        except RemoteError:
            continue
        accepted.add(size)
        assert codec.encode_control(frame) == CONTROL_BYTES[:size]
    assert len(accepted) == 8  # one before each section


def test_every_strict_prefix_of_a_data_frame_is_refused() -> None:
    for size in range(len(DATA_BYTES)):
        with pytest.raises(RemoteError):
            codec.decode_data(DATA_BYTES[:size])


@pytest.mark.parametrize("tail", [b"\0", b"\x01", b"\xff" * 9])
def test_trailing_bytes_are_refused(tail: bytes) -> None:
    with pytest.raises(RemoteError):
        codec.decode_control(CONTROL_BYTES + tail)
    with pytest.raises(
        RemoteError, match=f"^The frame has {len(tail)} bytes after its end at byte {len(DATA_BYTES)}.$"
    ):
        codec.decode_data(DATA_BYTES + tail)


HEAD = bytes.fromhex("01 01 05 01 01 00 00 00 00 00 00 00")
RUN = bytes.fromhex("00 01 05 01 00 01 01 00 06 30 04 0001 67 00")
NINES = b"\xff" * 9
QOS_0 = "a PUBLISH with DUP 0 and the run's QoS of 0, whatever its RETAIN."

MALFORMED: list[tuple[str, Callable[[bytes], object], bytes, str]] = [
    ("empty", codec.kind_of, b"", "The frame ends at byte 0, but more was expected; it is cut short."),
    ("one byte", codec.kind_of, b"\x01", "The frame ends at byte 1, but more was expected; it is cut short."),
    ("version", codec.kind_of, b"\x02\x01", "The frame has version 2; this federator speaks version 1."),
    (
        "type",
        codec.kind_of,
        b"\x01\x03",
        "The frame has type 3; known are 1 (control), 2 (data), 5 (probe) and 6 (summaries).",
    ),
    ("kind", codec.decode_control, b"\x01\x02\x00\x00", "The frame has type 2 where 1 was expected."),
    ("kind", codec.decode_data, HEAD, "The frame has type 1 where 2 was expected."),
    (
        "json",
        codec.kind_of,
        b'{"core": ' + b"[" * 10_000,
        "The frame has version 123; this federator speaks version 1.",
    ),
    (
        "federator id",
        codec.decode_control,
        bytes.fromhex("01 01 8080808010"),
        "The federator id before byte 7 is 4294967296; it must be at most 4294967295.",
    ),
    (
        "epoch",
        codec.decode_control,
        bytes.fromhex("01 01 05 80808080808040"),
        "The epoch before byte 10 is 281474976710656; it must be at most 281474976710655.",
    ),
    (
        "number",
        codec.decode_control,
        bytes.fromhex("01 01 05 01 808080808080808040"),
        "The frame number before byte 13 is 4611686018427387904; it must be at most 4611686018427387903.",
    ),
    (
        "ten bytes",
        codec.decode_control,
        b"\x01\x01" + NINES + b"\x01",
        "The federator id before byte 11 is longer than nine bytes; it is malformed.",
    ),
    (
        "not shortest",
        codec.decode_control,
        bytes.fromhex("01 01 8500"),
        "The federator id before byte 4 is not in its shortest form; it is malformed.",
    ),
    (
        "flags",
        codec.decode_control,
        HEAD[:7] + b"\x04" + HEAD[8:],
        "The control frame of federator 5 has flags 0x4; known are 0x1 and 0x2.",
    ),
    (
        "unknown section",
        codec.decode_control,
        HEAD + b"\x09\x01",
        "The control frame of federator 5 has section 9 after 0; sections are 1 to 8, in rising order.",
    ),
    (
        "section twice",
        codec.decode_control,
        HEAD + bytes.fromhex("05 01 01 01 01") * 2,
        "The control frame of federator 5 has section 5 after 5; sections are 1 to 8, in rising order.",
    ),
    (
        "empty section",
        codec.decode_control,
        HEAD + b"\x05\x00",
        "The control frame of federator 5 has 0 items in section 5.",
    ),
    (
        "two sets",
        codec.decode_control,
        HEAD + bytes.fromhex("07 02 01 00 00 00 01 00 00 00"),
        "The control frame of federator 5 has 2 items in section 7.",
    ),
    (
        "huge count",
        codec.decode_control,
        HEAD + b"\x05" + b"\xff" * 8 + b"\x3f",
        "The number of solicits before byte 22 is 4611686018427387903; it must be at most 9.",
    ),
    (
        "distance",
        codec.decode_control,
        HEAD + bytes.fromhex("01 01 09 01 01 808004 00 00"),
        "The distance before byte 20 is 65536; it must be at most 65535.",
    ),
    (
        "rank",
        codec.decode_control,
        HEAD + bytes.fromhex("02 01 09 01 00 01 01 67 ea07 00"),
        "The rank before byte 22 is 1002; it must be at most 1001.",
    ),
    (
        "text beyond the end",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 05 67"),
        "The group at byte 16 has 5 bytes, but 1 are left.",
    ),
    (
        "text too long",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 808004") + b"g" * 65_536,
        "The length of the group before byte 18 is 65536; it must be at most 65535.",
    ),
    (
        "not UTF-8",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 02 c0 80"),
        "The group before byte 18 is not UTF-8; it is malformed.",
    ),
    (
        "a surrogate",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 03 eda080"),
        "The group before byte 19 is not UTF-8; it is malformed.",
    ),
    (
        "empty group",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 00"),
        "The topic filter is empty; expected at least one character.",
    ),
    (
        "NUL",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 01 00"),
        "The topic filter '\\x00' holds U+0000, which MQTT forbids; leave it out.",
    ),
    (
        "misplaced wildcard",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 02 2362"),
        "The topic filter '#b' has a misplaced #; it must be the whole last level, as in a/#.",
    ),
    (
        "shared group",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 0a") + b"$share/g/t",
        "The group before byte 26 is a shared subscription; expected the filter behind it (R39).",
    ),
    (
        "201 levels",
        codec.decode_control,
        HEAD + bytes.fromhex("06 01 09 c801") + b"/" * 200,
        f"The topic filter {'/' * 60!r}... has 201 levels; at most 200 are allowed, use fewer slashes.",
    ),
    (
        "flags of a run",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + b"\x20" + RUN[1:],
        "A run has flags 0x20; expected a QoS of 0 to 2, and no flags but 0x4, 0x8 and 0x10.",
    ),
    (
        "QoS 3",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + b"\x03" + RUN[1:],
        "A run has flags 0x3; expected a QoS of 0 to 2, and no flags but 0x4, 0x8 and 0x10.",
    ),
    (
        "follows nothing",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + b"\x04" + RUN[1:2] + RUN[5:],
        "The first run of a data frame says that it follows another; there is none.",
    ),
    (
        "too many runs",
        codec.decode_data,
        bytes.fromhex("01 02 00 808004"),
        "The number of runs before byte 6 is 65536; it must be at most 65535.",
    ),
    (
        "unknown group",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + RUN[:7] + b"\x01" + RUN[8:],
        "A run names group 1, but the frame lists 1.",
    ),
    (
        "no group",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + RUN[:6] + b"\x00" + RUN[8:],
        "A run names group -1, but the frame lists 1.",
    ),
    (
        "no publication",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + RUN[:5] + b"\x00" + RUN[6:],
        "A run says it holds 0 publications in 6 bytes.",
    ),
    (
        "more publications than bytes",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + RUN[:5] + b"\x07" + RUN[6:],
        "A run says it holds 7 publications in 6 bytes.",
    ),
    (
        "body beyond the end",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + RUN[:8] + b"\x07" + RUN[9:],
        "The run at byte 15 has 7 bytes, but 6 are left.",
    ),
    (
        "beyond the last number",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01 00 01 05 01")
        + b"\xff" * 8
        + b"\x3f"
        + bytes.fromhex("02 01 00 0c")
        + RUN[9:] * 2,
        "A run ends with the number 4611686018427387904; the largest number is 4611686018427387903.",
    ),
    (
        "not a PUBLISH",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + RUN[:9] + b"\x40" + RUN[10:],
        "A run holds no PUBLISH packet at byte 0 of 6; the frame is malformed.",
    ),
    (
        "another QoS",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + RUN[:9] + b"\x32" + RUN[10:],
        f"The packet at byte 0 of a run has the first byte 0x32; expected 0x30, {QOS_0}",
    ),
    (
        "DUP",
        codec.decode_data,
        bytes.fromhex("01 02 01 01 67 01") + RUN[:9] + b"\x38" + RUN[10:],
        f"The packet at byte 0 of a run has the first byte 0x38; expected 0x30, {QOS_0}",
    ),
    ("kind", codec.decode_summaries, b"\x01\x02\x00\x00", "The frame has type 2 where 6 was expected."),
    (
        "huge number of summaries",
        codec.decode_summaries,
        b"\x01\x06" + b"\xff" * 8 + b"\x3f",
        "The number of summaries before byte 11 is 4611686018427387903; it must be at most 9.",
    ),
    (
        "empty group of a summary",
        codec.decode_summaries,
        bytes.fromhex("01 06 01 00 00 00"),
        "The topic filter is empty; expected at least one character.",
    ),
    (
        "age",
        codec.decode_summaries,
        bytes.fromhex("01 06 01 01 67 81b89929 00"),
        "The age before byte 9 is 86400001; it must be at most 86400000.",
    ),
    (
        "origin",
        codec.decode_summaries,
        bytes.fromhex("01 06 01 01 67 00 01 8080808010 01 00"),
        "The federator id before byte 12 is 4294967296; it must be at most 4294967295.",
    ),
    (
        "empty range",
        codec.decode_summaries,
        bytes.fromhex("01 06 01 01 67 00 01 05 01 01 07 00"),
        "A summary has a range of 0 ids after a gap of 7; both must be above 0.",
    ),
    (
        "ranges that touch",
        codec.decode_summaries,
        bytes.fromhex("01 06 01 01 67 00 01 05 01 02 07 01 00 01"),
        "A summary has a range of 1 ids after a gap of 0; both must be above 0.",
    ),
    (
        "a range beyond the last number",
        codec.decode_summaries,
        bytes.fromhex("01 06 01 01 67 00 01 05 01 01") + b"\xff" * 8 + b"\x3f" + b"\x02",
        "A range of a summary ends with the number 4611686018427387904; the largest number is 4611686018427387903.",
    ),
    (
        "bytes after the summaries",
        codec.decode_summaries,
        bytes.fromhex("01 06 01 01 67 00 00 00"),
        "The frame has 1 bytes after its end at byte 7.",
    ),
]


@pytest.mark.parametrize(
    ("decode", "data", "message"),
    [case[1:] for case in MALFORMED],
    ids=[f"{case[0]}-{index}" for index, case in enumerate(MALFORMED)],
)
def test_malformed_bytes_are_refused_with_a_sentence(
    decode: Callable[[bytes], object], data: bytes, message: str
) -> None:
    with pytest.raises(RemoteError) as refusal:
        decode(data)
    assert str(refusal.value) == message


def refuses_or_reads(data: bytes) -> None:
    for decode in (codec.decode_control, codec.decode_data, codec.decode_summaries):
        try:
            decode(data)
        except RemoteError:
            continue


def test_no_flipped_bit_raises_anything_but_remote_error_or_allocates_much() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for whole in (CONTROL_BYTES, DATA_BYTES, SUMMED_BYTES):
            for position in range(len(whole)):
                for bit in range(8):
                    flipped = bytearray(whole)
                    flipped[position] ^= 1 << bit
                    refuses_or_reads(bytes(flipped))
        assert tracemalloc.get_traced_memory()[1] - before < 1_000_000
    finally:
        tracemalloc.stop()


@BOUNDED
@given(st.binary(max_size=200), st.sampled_from([b"", b"\x01\x01", b"\x01\x02", b"\x01\x06", HEAD]))
def test_random_bytes_raise_nothing_but_remote_error(tail: bytes, head: bytes) -> None:
    refuses_or_reads(head + tail)


@BOUNDED
@given(CONTROL_FRAMES, st.data())
def test_damaged_frames_raise_nothing_but_remote_error(frame: ControlFrame, data: st.DataObject) -> None:
    whole = bytearray(codec.encode_control(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    refuses_or_reads(bytes(whole))


@given(st.integers(1, 9), st.data())
def test_a_frame_decodes_the_same_whether_or_not_its_groups_were_seen_before(groups: int, data: st.DataObject) -> None:
    names = tuple(f"g{number}/{'x' * data.draw(st.integers(0, 130))}" for number in range(groups))
    body = b"\x32\x05\x00\x01t\x00\x00"
    count = data.draw(st.integers(1, 40))
    numbers = [data.draw(st.integers(0, largest)) for largest in (2**32 - 1, 2**48 - 1, 2**62 - 1)]
    origin, epoch, first = numbers
    first = min(first, 2**62 - 1 - count)
    run = Run(origin, epoch, first, count, 1, data.draw(st.integers(0, 255)), names, body * count)
    whole = codec.encode_data([run])
    assert codec.decode_data(whole) == codec.decode_data(whole) == [run]
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(whole)))] + data.draw(st.binary(max_size=3))
    assert outcome(codec.decode_data, bytes(damaged)) == outcome(codec._decode_any, bytes(damaged))
    before, behind = data.draw(st.binary(max_size=3)), data.draw(st.binary(max_size=200) | st.just(whole))
    within = before + bytes(damaged) + behind
    found = outcome(lambda lies: codec.decode_data(lies, len(before), len(within) - len(behind)), within)
    assert found == outcome(codec._decode_any, bytes(damaged)), "what stands around a frame does not matter"


def test_a_large_run_is_a_separate_part_and_not_copied() -> None:
    for count, is_apart in ((1, False), (700, True)):
        run = USUAL._replace(length=count, body=USUAL.body * count)
        front, body = codec.encode_data_parts([run])
        assert front + body == codec.encode_data([run])
        assert (body is run.body) is is_apart
        assert codec.encode_data_parts([run, run])[1] == b""


def test_the_memory_of_frame_beginnings_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may have 65,535 bytes, and thousands of those would be remembered after one frame each."""
    monkeypatch.setattr(codec, "_heads", {})
    usual, long = ("g",), tuple(f"g{number}/" + "x" * 400 for number in range(3))
    for groups in (usual, long):
        for first in (1, 2):
            run = USUAL._replace(first=first, groups=groups)
            assert codec.decode_data(codec.encode_data([run])) == [run]
    assert set(codec._heads) == {usual}


def outcome(decode: Callable[[bytes], object], data: bytes) -> object:
    """Return the decoded value or the error."""
    try:
        return decode(data)
    except RemoteError as error:
        return str(error)


def test_attack_an_endless_length_is_refused_early() -> None:
    usual = codec.encode_data([Run(1, 1, 1, 1, 0, 1, ("g",), b"\x30\x04\x00\x01t\x00")])
    codec.decode_data(usual)
    start = usual.index(b"g") + 4  # after the number of runs, flags and hops
    with pytest.raises(RemoteError, match="longer than nine bytes"):
        codec.decode_data(usual[:start] + b"\xff" * 4_000_000)


USUAL = Run(1, 1_800_000_000, 70_000, 1, 0, 1, ("g",), b"\x30\x04\x00\x01t\x00")


@pytest.mark.parametrize(
    ("number", "size"),
    [
        (b"\xff" * 12, b"\x06"),  # without an end
        (b"\xf0\xa2\x84\x00", b"\x06"),  # not in its shortest form
        (b"\xf0\xa2\x04", b"\x86" + b"\x80" * 12),
        (b"\xf0\xa2\x04", b"\x86\x00"),
    ],
)
def test_numbers_after_a_known_beginning_are_checked_as_usual(number: bytes, size: bytes) -> None:
    whole = codec.encode_data([USUAL])
    for _ in range(3):
        assert codec.decode_data(whole) == [USUAL]
    front = whole[: whole.index(b"\xf0\xa2\x04\x01")]
    assert front + b"\xf0\xa2\x04" + b"\x01\x01\x00" + b"\x06" + USUAL.body == whole
    damaged = front + number + b"\x01\x01\x00" + size + USUAL.body
    assert isinstance(outcome(codec.decode_data, damaged), str)
    assert outcome(codec.decode_data, damaged) == outcome(codec._decode_any, damaged)


@pytest.mark.parametrize("remembered", [5, 4_096])
def test_frames_of_many_interleaved_streams_decode_as_if_each_came_alone(
    remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if not all of them can be remembered."""
    monkeypatch.setattr(codec, "_REMEMBERED_MAX", remembered)
    caches = ("_heads", "_origins", "_tables", "_fronts")
    for name in caches:
        monkeypatch.setattr(codec, name, {})
    streams = [
        USUAL._replace(origin=origin, epoch=epoch, groups=groups)
        for groups in (("g",), ("g", "other/#"), *((f"other/{number}",) for number in range(6)))
        for origin in (1, 200, 70_000)
        for epoch in (3, 1_800_000_000)
    ]
    for first in (1, 100, 20_000, 3_000_000, 2**40):
        for run in [one._replace(first=first) for one in streams]:
            assert codec.decode_data(codec.encode_data([run])) == [run]
    sizes = {name: len(getattr(codec, name)) for name in caches}
    assert all(0 < size <= remembered for size in sizes.values()), sizes


def test_a_run_may_follow_one_of_federator_0() -> None:
    pair = [USUAL._replace(origin=0, first=1), USUAL._replace(origin=0, first=2)]
    assert codec.decode_data(codec.encode_data(pair)) == pair


@pytest.mark.parametrize("size", [1, 121, 122, 200, 20_000, 3_000_000])
def test_a_usual_frame_is_read_by_the_short_way_whatever_its_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = USUAL._replace(body=packet("t", b"x" * size))
    first = codec.encode_data([run])
    assert codec.decode_data(first) == [run]
    monkeypatch.setattr(codec, "_decode_any", None)
    again = run._replace(first=run.first + 1)
    assert codec.decode_data(codec.encode_data([again])) == [again]
