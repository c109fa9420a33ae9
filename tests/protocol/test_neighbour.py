from hanse.protocol.messages import ClaimRequest
from hanse.protocol.neighbour import Neighbour


def test_what_the_next_frame_would_carry_is_dropped_with_the_link() -> None:
    neighbour = Neighbour(1)
    neighbour.come_up(0.0)
    neighbour.claim_requests.append(ClaimRequest(9, 0, 0, -1, 0))
    neighbour.claim_resends[9] = 3
    neighbour.go_down(1.0)
    assert not neighbour.claim_requests
    assert not neighbour.claim_resends


def test_the_newest_version_that_a_neighbour_was_told_is_remembered() -> None:
    neighbour = Neighbour(1)
    assert neighbour.told_version(9, 0) == 0
    neighbour.note_told(9, 0, 1)
    assert neighbour.told_version(9, 0) == 1
    neighbour.note_told(9, 5, 2)
    neighbour.note_told(9, 4, 7)
    assert (neighbour.told_version(9, 5), neighbour.told_version(9, 4)) == (2, 0)
