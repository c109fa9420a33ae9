"""Links by way of the neighbour's broker, as in the papers: which frame goes to which topic, and back.

A federator publishes to the *neighbour's* broker, where the neighbour's own session receives it:

    federator/core_ann/<to>/<from>   a control frame with announcements, claims, or what belongs to neither
    federator/memb_ann/<to>/<from>   a control frame with memberships or connections, and nothing of the above
    federator/routing/<to>/<from>    a numbered data or summaries frame
    federator/ack/<to>/<from>        numbers of data frames that `from` has taken from `to`
    federator/probe/<to>/<from>      a probe (`hanse.federator.tracing`), as `hanse.protocol.codec` makes it
    federator/beacon/<topic>         a client's beacon: no link's business, `hanse.interest.beacon` reads it

Rules:

1. A control frame goes whole to one topic: the protocol takes its parts together or not at all.
2. An id is written in decimal, one way only: no sign, no leading zero, no wildcard, within range. What names
   another federator than us, or us as its sender, is refused.
3. A retained message on these topics is refused: it would speak for ever, for somebody who may be gone.
4. The broker's PUBACK says only that the *broker* has a frame. So a data frame that must arrive carries its
   sender's epoch and a number, and the receiver names both in its acknowledgement. Number 0 asks for none.
5. Pure: no sockets, no clock. What a topic or payload says wrongly is a `RemoteError`: count, drop, go on.

A data payload is the bytes 1, 3 (version, type), the sender's epoch and the frame's number as varints, and the data or
summaries frame as `hanse.protocol.codec` makes it. An acknowledgement is the bytes 1, 4, the epoch of the federator
that it goes to, a count, and that many pairs: the gap since the end of the pair before (for the first, since 0) and
the length - 1 of a range of numbers. Varints are those of docs/protocol.md.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from hanse.errors import RemoteError
from hanse.protocol.identity import check_federator_id
from hanse.protocol.messages import ControlFrame
from hanse.protocol.settings import EPOCH_MAX, FEDERATOR_ID_MAX, SEQUENCE_MAX

ROOT = "federator/"
_VERSION, _CONTROL, _DATA, _NUMBERED, _ACK, _SUMMARIES = 1, 1, 2, 3, 4, 6
# Ranges in one acknowledgement: a window of 65,535 frames, every second one missing.
RANGES_MAX = 32_768
_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_BEACON = "beacon"
_SHOWN_CHARACTERS_MAX = 60


class Kind(StrEnum):
    """What a topic carries; the value is its second level."""

    CORE_ANNOUNCEMENT = "core_ann"
    MEMBERSHIP_ANNOUNCEMENT = "memb_ann"
    ROUTING = "routing"
    ACKNOWLEDGEMENT = "ack"
    PROBE = "probe"


CONTROL_KINDS = frozenset({Kind.CORE_ANNOUNCEMENT, Kind.MEMBERSHIP_ANNOUNCEMENT})
_KINDS = {kind.value: kind for kind in Kind}


class Route(NamedTuple):
    """Where a message on a control topic goes, and who sent it."""

    kind: Kind
    to: int
    from_: int


class Numbered(NamedTuple):
    """A data frame as it travels: `number` is 0 where no acknowledgement is wanted."""

    epoch: int
    number: int
    frame: bytes


class Acknowledgement(NamedTuple):
    """Numbers, in rising order, of frames that were sent in `epoch`."""

    epoch: int
    numbers: tuple[int, ...]


def topic_for(kind: Kind, to: int, from_: int) -> str:
    """The topic at the broker of `to` on which `from_` tells it something.

    Raises:
        LocalError: One of them is no federator id.
    """
    check_federator_id(to)
    check_federator_id(from_)
    return f"{ROOT}{kind.value}/{to}/{from_}"


def kind_of(frame: ControlFrame) -> Kind:
    """Which topic a control frame goes to (rule 1)."""
    has_sets = frame.memberships is not None or frame.connections is not None
    speaks_of_cores = (
        frame.is_full
        or frame.is_leaving
        or frame.announcements
        or frame.claim_deltas
        or frame.claim_requests
        or frame.claim_parts
        or frame.solicits
        or frame.hand_overs
    )
    return Kind.MEMBERSHIP_ANNOUNCEMENT if has_sets and not speaks_of_cores else Kind.CORE_ANNOUNCEMENT


def subscriptions(identity: int) -> list[str]:
    """What the session at the own host broker subscribes to for links: all that is addressed to us, by anyone.

    Raises:
        LocalError: It is no federator id.
    """
    check_federator_id(identity)
    return [f"{ROOT}{kind.value}/{identity}/+" for kind in Kind]


def parse_topic(topic: str) -> Route | None:
    """Kind, destination and sender of a topic; None for a beacon or a topic that is not under `federator/`.

    Raises:
        RemoteError: It is under `federator/` and no topic of ours, or an id in it is malformed.
    """
    if not topic.startswith(ROOT):
        return None
    levels = topic.split("/", 5)
    if levels[1] == _BEACON:
        return None
    kind = _KINDS.get(levels[1])
    if kind is None or len(levels) != 4:
        raise RemoteError(
            f"The control topic {_shown(topic)} is unknown; expected federator/<kind>/<to>/<from> with one of "
            f"{', '.join(_KINDS)}."
        )
    return Route(kind, _id(levels[2], topic), _id(levels[3], topic))


def accept(identity: int, topic: str, *, is_retained: bool) -> Route | None:
    """As `parse_topic`, for a message that came to `identity` (rules 2 and 3).

    Raises:
        RemoteError: It is malformed, retained, addressed to somebody else, or seems to come from ourselves.
    """
    route = parse_topic(topic)
    if route is None:
        return None
    if is_retained:
        raise RemoteError(
            f"A retained message lies on the control topic {_shown(topic)}; control is never retained, clear it."
        )
    if route.to != identity:
        raise RemoteError(f"The control topic {_shown(topic)} is addressed to {route.to}, not to {identity}.")
    if route.from_ == identity:
        raise RemoteError(f"The control topic {_shown(topic)} names this federator, {identity}, as its sender.")
    return route


def control_payload(route: Route, payload: bytes) -> bytes:
    """The control frame in a payload, for `codec` to decode.

    Raises:
        RemoteError: It does not begin as one.
    """
    if payload[:2] != bytes((_VERSION, _CONTROL)):
        raise RemoteError(
            f"A message from {route.from_} on {route.kind.value} begins with {payload[:2].hex() or 'nothing'}; a "
            "control frame of version 1 begins with 0101."
        )
    return payload


def encode_data(epoch: int, number: int, frame: bytes) -> bytes:
    """The payload of a data frame; `number` 0 asks for no acknowledgement."""
    assert 0 <= epoch <= EPOCH_MAX, epoch
    assert 0 <= number <= SEQUENCE_MAX, number
    return bytes((_VERSION, _NUMBERED)) + _varint(epoch) + _varint(number) + frame


def decode_data(payload: bytes) -> Numbered:
    """Return epoch, number and frame of a payload; `codec` decodes the frame.

    Raises:
        RemoteError: The payload does not hold a data or summaries frame.
    """
    at = _check_head(payload, _NUMBERED, "data")
    epoch, at = _read_varint(payload, at, EPOCH_MAX)
    number, at = _read_varint(payload, at, SEQUENCE_MAX)
    frame = payload[at:]
    if frame[:2] not in (bytes((_VERSION, _DATA)), bytes((_VERSION, _SUMMARIES))):
        raise RemoteError(
            f"A data payload holds a frame that begins with {frame[:2].hex() or 'nothing'}; a data frame of version "
            "1 begins with 0102, a summaries frame with 0106."
        )
    return Numbered(epoch, number, frame)


def encode_acknowledgements(epoch: int, numbers: Iterable[int]) -> list[bytes]:
    """Payloads that acknowledge frames of the neighbour's `epoch`; none for no numbers, usually one."""
    assert 0 <= epoch <= EPOCH_MAX, epoch
    ranges = _ranges(numbers)
    head = bytes((_VERSION, _ACK)) + _varint(epoch)
    payloads = []
    for start in range(0, len(ranges), RANGES_MAX):
        part = ranges[start : start + RANGES_MAX]
        out = bytearray(head + _varint(len(part)))
        end = 0
        for first, last in part:
            out += _varint(first - end) + _varint(last - first)
            end = last
        payloads.append(bytes(out))
    return payloads


def decode_acknowledgement(payload: bytes, numbers_max: int) -> Acknowledgement:
    """The numbers in an acknowledgement.

    Args:
        payload: What came.
        numbers_max: How many frames can be waiting at all; a range is only spelled out up to this many.

    Raises:
        RemoteError: It is malformed, or names more than that.
    """
    at = _check_head(payload, _ACK, "acknowledgement")
    epoch, at = _read_varint(payload, at, EPOCH_MAX)
    count, at = _read_varint(payload, at, RANGES_MAX)
    numbers: list[int] = []
    end = 0
    for _ in range(count):
        gap, at = _read_varint(payload, at, SEQUENCE_MAX)
        more, at = _read_varint(payload, at, SEQUENCE_MAX)
        if gap == 0:
            raise RemoteError("An acknowledgement names a number twice, or 0; ranges rise, from 1.")
        if len(numbers) + more + 1 > numbers_max:
            raise RemoteError(f"An acknowledgement names more than {numbers_max} frames, all that can be waiting.")
        first = end + gap
        end = first + more
        if end > SEQUENCE_MAX:
            raise RemoteError(f"An acknowledgement names frame {end}; the largest number is {SEQUENCE_MAX}.")
        numbers.extend(range(first, end + 1))
    if at != len(payload):
        raise RemoteError(f"An acknowledgement has {len(payload) - at} bytes behind its last range.")
    return Acknowledgement(epoch, tuple(numbers))


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        assert 0 < number <= SEQUENCE_MAX, number
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _id(text: str, topic: str) -> int:
    if _ID.fullmatch(text) is None or int(text) > FEDERATOR_ID_MAX:
        raise RemoteError(
            f"The control topic {_shown(topic)} has {_shown(text)} where a federator id stands; expected 0 to "
            f"{FEDERATOR_ID_MAX} in plain decimal."
        )
    return int(text)


def _check_head(payload: bytes, kind: int, what: str) -> int:
    if payload[:2] != bytes((_VERSION, kind)):
        raise RemoteError(
            f"A payload for {what} begins with {payload[:2].hex() or 'nothing'}; expected {_VERSION:02x}{kind:02x}."
        )
    return 2


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(payload: bytes, at: int, largest: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(payload):
            raise RemoteError(f"A payload ends at byte {len(payload)}, within a number; it is cut short.")
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 62:
            raise RemoteError(f"A payload has a number of more than nine bytes before byte {at}.")
    if byte == 0 and shift > 7:
        raise RemoteError(f"A payload has a number before byte {at} that is not in its shortest form.")
    if value > largest:
        raise RemoteError(f"A payload has {value} before byte {at}; at most {largest} is allowed there.")
    return value, at


def _shown(text: str) -> str:
    return ascii(text) if len(text) <= _SHOWN_CHARACTERS_MAX else ascii(text[:_SHOWN_CHARACTERS_MAX]) + "..."
