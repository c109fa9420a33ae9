"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a control frame's bytes. The decoder accepts exactly the output of an encoder.
"""

import pytest
from tests.fuzz.fuzzing import assert_linear, fuzz
from tests.protocol.strategies import CONTROL_FRAMES

from hanse.protocol import codec
from hanse.protocol.messages import Announcement, ClaimChange, ClaimDelta, ControlFrame


def take(data: bytes) -> None:
    frame = codec.decode_control(data)
    assert codec.encode_control(frame) == data


def test_any_control_frame_is_read_or_refused() -> None:
    fuzz("control_frames", CONTROL_FRAMES.map(codec.encode_control), take)


@pytest.mark.slow
def test_a_control_frame_of_a_megabyte_is_read_in_linear_time() -> None:
    def changes(size: int) -> bytes:
        many = tuple(ClaimChange(f"group/{n:010}", 1) for n in range(size // 20))
        return codec.encode_control(ControlFrame(1, 1, 1, 0, 0, claim_deltas=(ClaimDelta(1, 1, 0, many),)))

    def announcements(size: int) -> bytes:
        many = tuple(Announcement(n, 1, 1, 1, 0) for n in range(size // 8))
        return codec.encode_control(ControlFrame(1, 1, 1, 0, 0, announcements=many))

    assert_linear(changes, take)
    assert_linear(announcements, take)
    assert_linear(lambda size: b"\x01\x01" + b"\xff" * size, take)
