"""Choice of a client's next server, without a network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.client.route import MOVED_FAILURES_MAX, AllowList, Move, Route, Server
from hanse.errors import LocalError

TEMPORARY, MOVED = 0x9C, 0x9D
HOME = Server("gateway.example.org", 1883)
A, B, C = (Server(f"{name}.example.org", 1883) for name in "abc")


def route(*patterns: str, hops_max: int = 3) -> Route:
    return Route(HOME, 1883, AllowList(patterns or ["*.example.org"]), hops_max=hops_max)


def test_temporary_reference_holds_for_one_connection() -> None:
    one = route()
    assert one.on_ended(TEMPORARY, str(A), 0.1) == Move(A, True, TEMPORARY)
    one.on_accepted()
    assert one.on_ended(0, None, 100.0) == Move(HOME, at_once=False)
    one.on_accepted()
    assert one.on_ended(0, None, 100.0) is None
    assert one.current == HOME


def test_moved_server_is_remembered_once_it_has_accepted_the_client() -> None:
    one = route()
    assert one.on_ended(MOVED, str(A), 0.0) == Move(A, True, MOVED)
    assert one.home == HOME
    one.on_accepted()
    assert one.home == A
    assert one.on_ended(0, None, 100.0) is None
    assert one.on_ended(TEMPORARY, str(B), 0.0) == Move(B, True, TEMPORARY)
    one.on_accepted()
    assert one.on_ended(0, None, 100.0) == Move(A, at_once=False)


def test_moved_server_that_never_accepted_is_not_remembered() -> None:
    one = route()
    one.on_ended(MOVED, str(A), 0.0)
    assert one.on_ended(0, None, 0.0) == Move(HOME, at_once=False)
    assert one.home == HOME


def test_moved_server_is_forgotten_after_failures_in_a_row() -> None:
    one = route()
    one.on_ended(MOVED, str(A), 0.0)
    one.on_accepted()
    one.on_ended(0, None, 100.0)
    for _ in range(MOVED_FAILURES_MAX - 1):
        assert one.on_ended(0, None, 0.0) is None
    assert one.on_ended(0, None, 0.0) == Move(HOME, at_once=False)
    assert one.home == HOME


def test_reference_to_a_server_that_moved_leads_to_its_new_place() -> None:
    one = route()
    one.on_ended(TEMPORARY, str(A), 0.0)
    one.on_accepted()
    one.on_ended(MOVED, str(B), 0.1)
    one.on_accepted()
    assert one.on_ended(0, None, 100.0) == Move(HOME, at_once=False)
    assert one.on_ended(TEMPORARY, str(A), 0.1) == Move(B, True, TEMPORARY)


def test_references_of_one_packet_are_tried_in_their_order() -> None:
    one = route()
    assert one.on_ended(TEMPORARY, f"{A} {B} {C}", 0.1) == Move(A, True, TEMPORARY)
    assert one.on_ended(0, None, 0.0) == Move(B, at_once=True)
    assert one.on_ended(0, None, 0.0) == Move(C, at_once=True)
    assert one.on_ended(0, None, 0.0) == Move(HOME, at_once=False)


def test_reference_is_not_followed_without_a_list() -> None:
    one = Route(HOME, 1883, AllowList([]))
    assert one.on_ended(TEMPORARY, str(A), 0.1) is None
    assert "follow" in one.refusal
    assert one.current == HOME


@pytest.mark.parametrize(
    "text", ["evil.example.com", "a.example.org.evil.com", "aexample.org", "10.0.0.1", "[::1]:1883", "a b/c", ""]
)
def test_attack_reference_outside_the_list_is_not_followed(text: str) -> None:
    one = route()
    assert one.on_ended(TEMPORARY, text, 0.1) is None
    assert one.current == HOME


def test_attack_poisoned_target_cannot_send_the_client_on_or_keep_it() -> None:
    one = route("a.example.org")
    one.on_ended(TEMPORARY, str(A), 0.1)
    one.on_accepted()
    assert one.on_ended(MOVED, "evil.example.com:1883", 0.1) == Move(HOME, at_once=False)
    assert one.home == HOME
    assert "evil" in one.refusal


def test_attack_servers_that_send_a_client_round_in_circles_are_left_after_a_bounded_chain() -> None:
    one = route(hops_max=3)
    followed = 0
    move: Move | None = Move(HOME, True)
    while move is not None and move.at_once:
        one.on_accepted()
        move = one.on_ended(TEMPORARY, str(A if one.current != A else B), 0.1)
        followed += 1
    assert followed == 4
    assert move == Move(HOME, at_once=False)
    assert "in a row" in one.refusal


def test_connection_that_held_begins_a_new_chain() -> None:
    one = route(hops_max=1)
    assert one.on_ended(TEMPORARY, str(A), 0.1) is not None
    one.on_accepted()
    assert one.on_ended(TEMPORARY, str(B), 60.0) == Move(B, True, TEMPORARY)


def test_reference_to_the_server_that_names_it_is_not_followed() -> None:
    one = route()
    assert one.on_ended(TEMPORARY, "GATEWAY.example.org.:1883", 0.1) is None


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("a.example.org", ("a.example.org", 1), ("b.example.org", 1)),
        ("A.Example.org.", ("a.example.org", 1), ("xa.example.org", 1)),
        ("a.example.org:7", ("a.example.org", 7), ("a.example.org", 8)),
        ("*.example.org", ("a.b.example.org", 1), ("example.org", 1)),
        ("10.0.0.0/8", ("10.1.2.3", 1), ("11.1.2.3", 1)),
        ("127.0.0.1:1884", ("127.0.0.1", 1884), ("127.0.0.1", 1883)),
        ("[fd00::/8]:1883", ("fd00::1", 1883), ("fd00::1", 1884)),
        ("::1", ("::1", 1), ("::2", 1)),
    ],
)
def test_each_kind_of_pattern_fits_what_it_says(
    pattern: str, allowed: tuple[str, int], refused: tuple[str, int]
) -> None:
    assert AllowList([pattern]).allows(Server(*allowed))
    assert not AllowList([pattern]).allows(Server(*refused))


@pytest.mark.parametrize(
    "pattern", ["", "*", "*.", "a b", "a:", "a:0", "a:70000", "[::1", "[::1]x", "mqtt://a", "a..b"]
)
def test_what_is_no_pattern_is_a_local_error(pattern: str) -> None:
    with pytest.raises(LocalError, match="follow"):
        AllowList([pattern])


_ENDINGS = st.one_of(
    st.just("accepted"),
    st.tuples(
        st.sampled_from([0, 0x8F, TEMPORARY, MOVED]),
        st.sampled_from([None, "evil.com", str(HOME), str(A), str(B), f"{B} {C}", f"{C} {HOME}"]),
        st.sampled_from([0.0, 0.1, 60.0]),
    ),
)


@given(st.lists(_ENDINGS, max_size=40))
def test_a_client_dials_only_allowed_servers_and_not_for_ever(steps: list[object]) -> None:
    one = route("*.example.org", hops_max=2)
    hurried = 0
    for step in steps:
        if isinstance(step, tuple):
            move = one.on_ended(*step)
            # 2 references with 2 servers each, before a delay or a connection that holds.
            hurried = 0 if move is None or not move.at_once or step[2] >= 5 else hurried + 1
            assert hurried <= 4
        else:
            one.on_accepted()
        assert one.current in {HOME, A, B, C}
