"""Links through the neighbour's broker, as in the papers: the mapping between frames and topics.

A federator publishes to the *neighbour's* broker, where the neighbour's own session receives it:

    federator/core_ann/<to>/<from>   a control frame with announcements, claims, or neither of these and those below
    federator/memb_ann/<to>/<from>   a control frame with memberships or connections, and nothing of the above
    federator/routing/<to>/<from>    a numbered data or summaries frame
    federator/ack/<to>/<from>        numbers of data frames from `to` that `from` has accepted
    federator/probe/<to>/<from>      a probe (`hanse.federator.tracing`) in the form of `hanse.protocol.codec`
    federator/beacon/<topic>         a client's beacon, which is not part of a link: see `hanse.interest.beacon`

Rules:

1. A control frame goes whole to one topic: the protocol applies its parts together or not at all.
2. An id has one decimal form only: no sign, no leading zero, no wildcard, within range. A topic with another
   federator's id as destination, or with our own as sender, is refused.
3. A retained message on these topics is refused. It would speak for ever, for a federator that may be gone.
4. The broker's PUBACK only shows that the *broker* has a frame. A data frame that must arrive therefore carries its
   sender's epoch and a number, and the receiver names both in its acknowledgement. Number 0 requests none.
5. Pure: no sockets, no clock. An invalid topic or payload is a `RemoteError`: count it, drop it, go on.

A data payload consists of the bytes 1, 3 (version, type), the sender's epoch and the frame's number as varints, and the
data or summaries frame in the form of `hanse.protocol.codec`. An acknowledgement consists of the bytes 1, 4, the epoch
of the federator that it goes to, a count, and that many pairs. A pair is the gap since the end of the previous pair
(for the first, since 0) and the length - 1 of a range of numbers. Varints are those of docs/protocol.md.
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
    """Content of a topic; the value is its second level."""

    CORE_ANNOUNCEMENT = "core_ann"
    MEMBERSHIP_ANNOUNCEMENT = "memb_ann"
    ROUTING = "routing"
    ACKNOWLEDGEMENT = "ack"
    PROBE = "probe"


CONTROL_KINDS = frozenset({Kind.CORE_ANNOUNCEMENT, Kind.MEMBERSHIP_ANNOUNCEMENT})
_KINDS = {kind.value: kind for kind in Kind}


class Route(NamedTuple):
    """Destination and sender of a message on a control topic."""

    kind: Kind
    to: int
    from_: int


class Numbered(NamedTuple):
    """Data frame in transit: `number` is 0 if no acknowledgement is wanted."""

    epoch: int
    number: int
    frame: bytes


class Acknowledgement(NamedTuple):
    """Numbers, in rising order, of frames that were sent in `epoch`."""

    epoch: int
    numbers: tuple[int, ...]


def topic_for(kind: Kind, to: int, from_: int) -> str:
    """Return the topic at the broker of `to` on which `from_` publishes for it.

    Raises:
        LocalError: One of the two is not a federator id.
    """
    check_federator_id(to)
    check_federator_id(from_)
    return f"{ROOT}{kind.value}/{to}/{from_}"


def kind_of(frame: ControlFrame) -> Kind:
    """Return the kind of the topic for a control frame (rule 1)."""
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
    """Return the filters of the session at the own host broker for links: all messages to this federator.

    Raises:
        LocalError: `identity` is not a federator id.
    """
    check_federator_id(identity)
    return [f"{ROOT}{kind.value}/{identity}/+" for kind in Kind]


def parse_topic(topic: str) -> Route | None:
    """Return kind, destination and sender of a topic; None for a beacon or a topic that is not under `federator/`.

    Raises:
        RemoteError: It is under `federator/` but unknown, or an id in it is malformed.
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
    """Return the result of `parse_topic` for a message to `identity` (rules 2 and 3).

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
    """Return the control frame in a payload, for `codec` to decode.

    Raises:
        RemoteError: The payload does not begin like a control frame.
    """
    if payload[:2] != bytes((_VERSION, _CONTROL)):
        raise RemoteError(
            f"A message from {route.from_} on {route.kind.value} begins with {payload[:2].hex() or 'nothing'}; a "
            "control frame of version 1 begins with 0101."
        )
    return payload


def encode_data(epoch: int, number: int, frame: bytes) -> bytes:
    """Return the payload of a data frame; `number` 0 requests no acknowledgement."""
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
    """Return payloads that acknowledge frames of the neighbour's `epoch`: none without numbers, usually one."""
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
    """Return the numbers in an acknowledgement.

    Args:
        payload: The received payload.
        numbers_max: Largest number of frames that can be waiting; longer lists of numbers are refused.

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
            raise RemoteError("An acknowledgement names a number twice, or 0; ranges must rise, from 1.")
        if len(numbers) + more + 1 > numbers_max:
            raise RemoteError(
                f"An acknowledgement names more than {numbers_max} frames, the largest number that can be waiting."
            )
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
            f"The control topic {_shown(topic)} has {_shown(text)} in place of a federator id; expected 0 to "
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
